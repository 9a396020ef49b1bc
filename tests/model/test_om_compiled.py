"""Compiled models in files: machine code is used from own files only; for others it is made anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge
from ge.errors import GeError
from ge.model import codec, kernels, om
from ge.model.container import PAGE, Section, read_sections, write_sections


def network() -> ge.Graph:
    g = ge.Graph("net")
    x = g.input("x", (4, 16))
    w = g.constant(np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8))
    y = ge.ops.softmax(ge.ops.exp(x @ w) * 0.5, axes=[-1])
    g.output(y, "y")
    return g


@pytest.fixture(scope="module")
def model() -> ge.Model:
    return ge.compile(network())


@pytest.fixture
def file(model: ge.Model, tmp_path: Path) -> Path:
    return model.save(tmp_path / "net")


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((4, 16), np.float32)


def strangers(file: Path, **changes: bytes) -> Path:
    """The file as another user would have made it, with some sections changed."""
    sections = read_sections(memoryview(file.read_bytes()), "file").sections
    pieces = {
        name: Section([changes.get(name, bytes(view))], align=PAGE if name in ("objects", "weights") else 16)
        for name, view in sections.items()
    }
    target = file.with_name("strangers.om")
    write_sections(target, pieces)
    return target


def test_saving_and_loading_keeps_the_answer(model: ge.Model, file: Path, x: np.ndarray) -> None:
    np.testing.assert_array_equal(ge.load(file)(x), model(x))


def test_own_files_are_trusted_and_bring_their_code(file: Path) -> None:
    package = om.read(file)
    assert package.trusted
    assert all(list(image.objects) == ["host"] for image in package.plans[0].kernels)


def test_a_file_holds_code_for_this_machine_and_portable_code(file: Path) -> None:
    table = codec.decode_json(
        read_sections(memoryview(file.read_bytes()), "f").sections["kernels"], "kernels"
    )
    assert table
    assert all(set(entry["objects"]) == {kernels.machine(), "portable"} for entry in table)


def test_strangers_files_bring_no_code(model: ge.Model, file: Path, x: np.ndarray) -> None:
    other = strangers(file)
    package = om.read(other)
    assert not package.trusted
    assert all(not image.objects for image in package.plans[0].kernels)
    np.testing.assert_array_equal(ge.load(other)(x), model(x))


def test_strangers_code_is_never_run(model: ge.Model, file: Path, x: np.ndarray) -> None:
    sections = read_sections(memoryview(file.read_bytes()), "f").sections
    other = strangers(file, objects=b"\xcc" * sections["objects"].nbytes)
    np.testing.assert_array_equal(ge.load(other)(x), model(x))


def test_code_trusted_by_mistake_is_still_checked_for_form(file: Path) -> None:
    sections = read_sections(memoryview(file.read_bytes()), "f").sections
    other = strangers(file, objects=b"\xcc" * sections["objects"].nbytes)
    with pytest.raises(GeError):
        ge.load(other, trust=True)


def test_a_changed_file_loses_its_seal(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[64 + 5] ^= 1  # a bit of the seal
    assert not om.read(bytes(data)).trusted


def _edited(file: Path, change: Any) -> Path:
    sections = read_sections(memoryview(file.read_bytes()), "f").sections
    data = codec.decode_json(sections["kernels"], "kernels")
    change(data)
    return strangers(file, kernels=codec.encode_json(data))


def test_an_expression_for_other_tensors_is_refused(file: Path) -> None:
    def smaller(data: Any) -> None:
        for entry in data:
            entry["expression"] = entry["expression"].replace('"shape":[4,8]', '"shape":[4,800]')

    with pytest.raises(GeError, match="do not match") as caught:
        ge.load(_edited(file, smaller))
    assert caught.value.code == "E11007"


@pytest.mark.parametrize(
    "expression", ["", "{}", "[" * 5000, '{"format":1,"inputs":[],"outputs":[9],"nodes":[]}']
)
def test_an_expression_that_is_none_is_refused(file: Path, expression: str) -> None:
    def replaced(data: Any) -> None:
        for entry in data:
            entry["expression"] = expression

    with pytest.raises(GeError) as caught:
        ge.load(_edited(file, replaced))
    assert caught.value.code == "E11007"


def test_how_a_stranger_divides_the_work_does_not_matter(model: ge.Model, file: Path, x: np.ndarray) -> None:
    sections = read_sections(memoryview(file.read_bytes()), "f").sections
    data = codec.decode_json(sections["plans"], "plans")
    for task in data["plans"][0]["tasks"]:
        if task["kind"] == "kernel":
            task["attrs"]["total"] = 1 << 40
    np.testing.assert_array_equal(ge.load(strangers(file, plans=codec.encode_json(data)))(x), model(x))


def test_code_for_another_machine_is_made_anew(
    model: ge.Model, file: Path, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "machine", lambda: "host:another")
    assert om.read(file).plans[0].kernels[0].objects == {}
    np.testing.assert_array_equal(ge.load(file)(x), model(x))


def test_without_a_code_generator_the_portable_code_runs(
    model: ge.Model, file: Path, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "machine", lambda: "host:another")
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: None)
    assert list(om.read(file).plans[0].kernels[0].objects) == ["portable"]
    np.testing.assert_allclose(ge.load(file)(x), model(x), rtol=1e-5)


def test_an_own_file_loads_without_llvm_and_without_frameworks(file: Path) -> None:
    code = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "import numpy as np, acl\n"
        f"y = acl.Model({str(file)!r})(np.zeros((4, 16), np.float32))\n"
        "assert y.shape == (4, 8), y.shape\n"
        "assert not {'tensorflow', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
