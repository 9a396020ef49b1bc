"""The C interface (npu/npu.h) reads `.om` files by itself: the same answers and the same errors as in Python."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ge
from ge.errors import GeError
from ge.ir.types import numpy_dtype
from ge.model import codec, kernels, om
from ge.model.container import PAGE, Section, read_sections, write_sections
from ge.plan import Plan
from tests.model.plans import SENSELESS, dense, edited, expected, geared
from tests.native.c_interface import Failed, Model, TensorInfo, check, library

X = np.random.default_rng(0).standard_normal((2, 4), np.float32)


@pytest.fixture(autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path_factory.getbasetemp() / "c_interface.key"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return om.write(om.Package([dense()]), tmp_path / "dense")


def compiled() -> ge.Model:
    """A model with a product and a generated kernel."""
    g = ge.Graph("net")
    x = g.input("x", (4, 16))
    w = g.constant(np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8))
    g.output(ge.ops.softmax(ge.ops.exp(x @ w) * 0.5, axes=[-1]), "y")
    return ge.compile(g)


def same_answers(model: ge.Model, path: Path, *feeds: np.ndarray) -> None:
    """A saved model gives in C what it gives in Python, bit for bit."""
    wanted = model.run_plan(list(feeds))
    results = [np.empty(p.desc.shape, numpy_dtype(p.desc.dtype)) for p in model.outputs]
    arrays = Model(model.save(path)).run(feeds, results)
    for found, actual, right in zip(results, arrays, wanted, strict=True):
        shape = tuple(actual.dims[: actual.rank])
        assert shape == right.shape
        np.testing.assert_array_equal(found.reshape(-1)[: right.size].reshape(shape), right)


def test_versions_agree() -> None:
    header = (Path(__file__).parents[2] / "src/npu_runtime/include/npu/npu.h").read_text()
    pkg_config = (Path(__file__).parents[2] / "src/npu_runtime/pkgconfig/tf_adapter.pc").read_text()
    major, minor = divmod(library().npu_version(), 1000)
    assert f"NPU_VERSION_MAJOR {major}\n" in header and f"NPU_VERSION_MINOR {minor}\n" in header
    assert f"Version: {major}.{minor}\n" in pkg_config


def test_a_model_tells_its_inputs_and_outputs(file: Path) -> None:
    model = Model(file)
    assert library().npu_model_name(model.handle) == b"dense"
    assert (
        library().npu_model_input_count(model.handle) == library().npu_model_output_count(model.handle) == 1
    )
    info = model.info("input")
    assert (info.name, info.format, info.dims[: info.rank], info.bytes) == (b"x", b"ND", [2, 4], 32)
    assert library().npu_dtype_name(info.dtype) == b"float32"
    assert not info.dynamic
    assert model.info("output").name == b"y"


def test_element_types_have_the_names_and_sizes_of_python() -> None:
    for number in range(13):
        name = library().npu_dtype_name(number).decode()
        assert library().npu_dtype_bytes(number) == numpy_dtype(name).itemsize
    assert library().npu_dtype_name(13) == b""


def test_it_runs_from_a_file_and_from_memory(file: Path) -> None:
    for source in (file, file.read_bytes()):
        y = np.empty((2, 3), np.float32)
        (array,) = Model(source).run([X], [y])
        assert array.dims[: array.rank] == [2, 3]
        np.testing.assert_allclose(y, expected(X), rtol=1e-6)


def test_generated_kernels_run_from_their_machine_code(tmp_path: Path) -> None:
    x = np.random.default_rng(3).standard_normal((4, 16), np.float32)
    same_answers(compiled(), tmp_path / "net.om", x)


def test_loops_run(tmp_path: Path) -> None:
    body = "b (int64 i, bool c, float[3] p) => (bool d, float[3] s) { d = Identity (c) t = Add (p, p) s = Exp (t) }"
    text = f"g (float[3] x, int64 n, bool c) => (float[3] u) {{ u = Loop (n, c, x) <body = {body}> }}"
    model = ge.compile(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'))
    feeds = {"x": np.zeros(3, np.float32), "n": np.array(2), "c": np.array(True)}
    same_answers(model, tmp_path / "loop.om", *(feeds[p.name] for p in model.inputs))


def test_shapes_that_only_the_run_decides_are_told(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]>\ng (float[5] x) => (int64[1, N] y) { y = NonZero (x) }'
    model = ge.compile(onnx.parser.parse_model(text))
    same_answers(model, tmp_path / "found.om", np.array([0, 1, 0, 2, 0], np.float32))


def test_gears_are_chosen_by_shape(tmp_path: Path) -> None:
    model = Model(om.write(geared(1, 2, 8), tmp_path / "geared"))
    assert library().npu_model_gear_count(model.handle) == 3
    for batch in (8, 1, 2):
        x, y = np.full((batch, 4), 0.5, np.float32), np.empty((batch, 3), np.float32)
        gear = model.gear([x])
        assert model.info("input", gear=gear).dims[0] == batch
        model.run([x], [y], gear)
        np.testing.assert_allclose(y, expected(x), rtol=1e-6)
    with pytest.raises(Failed, match="1; 2; 8") as caught:
        model.gear([np.zeros((3, 4), np.float32)])
    assert caught.value.code == "E11101"


def test_threads_share_a_model(file: Path) -> None:
    model, wrong = Model(file), []

    def work(seed: int) -> None:
        x, y = np.random.default_rng(seed).standard_normal((2, 4), np.float32), np.empty((2, 3), np.float32)
        for _ in range(20):
            model.run([x], [y])
            if not np.allclose(y, expected(x), rtol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_stream_runs_in_order_and_tells_the_first_failure(file: Path) -> None:
    model, stream = Model(file), ctypes.c_void_p()
    check(library().npu_stream_create(ctypes.byref(stream)))
    results = [np.empty((2, 3), np.float32) for _ in range(8)]
    feeds = [X * i for i in range(8)]
    kept = [model.run([x], [y], stream=stream) for x, y in zip(feeds, results, strict=True)]
    bad = np.empty(1, np.float32)
    kept.append(model.run([X], [bad], stream=stream))
    with pytest.raises(Failed, match="output 'y' needs 24 bytes, its memory has 4") as caught:
        check(library().npu_stream_synchronize(stream))
    assert caught.value.code == "E10020"
    for x, y in zip(feeds, results, strict=True):
        np.testing.assert_allclose(y, expected(x), rtol=1e-5)
    check(library().npu_stream_synchronize(stream))
    library().npu_stream_free(stream)


def test_a_buffer_is_aligned_zeroed_memory(file: Path) -> None:
    buffer = ctypes.c_void_p()
    check(library().npu_buffer_create(0, ctypes.c_size_t(100), ctypes.byref(buffer)))
    address = library().npu_buffer_data(buffer)
    assert address % 64 == 0
    assert ctypes.string_at(address, 100) == bytes(100)
    library().npu_buffer_free(buffer)


# -- refusal ---------------------------------------------------------------------------------------------------


def refused_alike(source: Path | bytes) -> str:
    """C refuses a file with the code and the words of Python."""
    with pytest.raises(GeError) as in_python:
        ge.load(source)
    with pytest.raises(Failed) as in_c:
        Model(source)
    assert in_c.value.code == in_python.value.code
    return str(in_c.value)


def test_a_missing_file_is_refused_as_in_python(tmp_path: Path) -> None:
    for path in (tmp_path / "none.om", tmp_path):
        assert "check the path and its permissions" in refused_alike(path)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 11, 12, 100, 127, 128, 200, 4000, -1])
def test_a_truncated_file_is_refused_as_in_python(file: Path, size: int) -> None:
    assert refused_alike(file.read_bytes()[:size]).startswith("[E11003] ")
    file.write_bytes(file.read_bytes()[:size])
    assert refused_alike(file).startswith("[E11003] ")


def test_every_flipped_byte_that_matters_is_refused_as_in_python(file: Path) -> None:
    data = file.read_bytes()
    for place in [*range(0, 64, 3), *range(128, 400, 7), len(data) - 1]:
        damaged = bytearray(data)
        damaged[place] ^= 0x41
        refused_alike(bytes(damaged))


@pytest.mark.parametrize(
    "head", [b"IMOD" + bytes(300), b"PK\x03\x04" + bytes(300), b"\x7fELF", b"garbage", b"{}"]
)
def test_foreign_files_are_named_as_in_python(head: bytes) -> None:
    with pytest.raises(GeError) as caught:
        ge.load(head)
    assert refused_alike(head) == str(caught.value)


def _with_plan(file: Path, data: dict[str, Any]) -> bytes:
    """The file with another plan, sealed again."""
    sections = {
        name: bytes(view) for name, view in read_sections(memoryview(file.read_bytes()), "f").sections.items()
    }
    table = codec.decode_json(sections["plans"], "plans")
    sections["plans"] = codec.encode_json({**table, "plans": [{**data, "constants": data["constants"]}]})
    return _written(file.with_name("edited.om"), sections)


def _written(path: Path, sections: dict[str, bytes], sealed: bool = True) -> bytes:
    from ge.model import keys

    pieces = {n: Section([s], PAGE if n in ("objects", "weights") else 16) for n, s in sections.items()}
    write_sections(path, pieces, keys.sign if sealed else None)
    return path.read_bytes()


@pytest.mark.parametrize("change", SENSELESS)
def test_content_that_does_not_make_sense_is_refused_as_in_python(
    change: Callable[[dict[str, Any]], None], file: Path
) -> None:
    if edited(change) == edited(lambda data: None):
        return
    assert refused_alike(_with_plan(file, edited(change))).startswith("[E11006] ")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"1" * 10_000, b"nul"]
)
def test_text_that_is_no_json_is_refused_as_in_python(file: Path, text: bytes) -> None:
    sections = {n: bytes(v) for n, v in read_sections(memoryview(file.read_bytes()), "f").sections.items()}
    for name in ("properties", "plans", "kernels"):
        assert "is not valid JSON" in refused_alike(_written(file, {**sections, name: text}))


def test_steps_blocks_and_donations_are_checked(file: Path) -> None:
    plan: Plan = dense()
    for change in (
        lambda d: d.update(donated=[[0, 0]]),  # of another size
        lambda d: d.update(donated=[[0, 9]]),
        lambda d: d.update(steps=4),
        lambda d: (d.update(blocks=2), d["tasks"][0].update(attrs={"then_block": 1, "else_block": 1})),
    ):
        refused_alike(_with_plan(file, {**edited(change), "name": plan.name}))


def test_machine_code_of_strangers_runs_only_when_trusted(tmp_path: Path) -> None:
    model, x = compiled(), np.ones((4, 16), np.float32)
    path = model.save(tmp_path / "net.om")
    sections = {n: bytes(v) for n, v in read_sections(memoryview(path.read_bytes()), "f").sections.items()}
    data = _written(path, sections, sealed=False)
    with pytest.raises(Failed, match="was not compiled by this user") as caught:
        Model(data)
    assert caught.value.code == "E11009"
    y = np.empty((4, 8), np.float32)
    Model(data, trust=True).run([x], [y])
    np.testing.assert_array_equal(y, model(x))
    sections["objects"] = b"\xcc" * len(sections["objects"])
    with pytest.raises(Failed) as caught:
        Model(_written(path, sections))
    assert caught.value.code == "E11007"


def test_files_for_other_processors_run_their_portable_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "machine", lambda: "host:another")
    model, x, y = compiled(), np.ones((4, 16), np.float32), np.empty((4, 8), np.float32)
    Model(model.save(tmp_path / "net.om")).run([x], [y])
    np.testing.assert_allclose(y, model(x), rtol=1e-5)
    path = om.write(om.Package([compiled().plan]), tmp_path / "bare.om", portable=False)
    with pytest.raises(Failed, match="no machine code for this processor") as caught:
        Model(path)
    assert caught.value.code == "E11009"


def test_what_needs_more_than_this_library_is_refused(file: Path) -> None:
    reports = {"is for the GPU target sm_90": {"target": {"name": "sm_90"}}, "strings": {"interface": {}}}
    for words, report in reports.items():
        data = _with_plan(file, edited(lambda d, report=report: d.update(report=report)))
        with pytest.raises(Failed, match=words) as caught:
            Model(data)
        assert caught.value.code == "E11009"


def test_a_task_that_fails_names_its_node_as_in_python(tmp_path: Path) -> None:
    text = "g (float[5] x, int64[2] i) => (float[2] y) { y = Gather (x, i) }"
    model = ge.compile(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'))
    feeds = [np.zeros(5, np.float32), np.array([0, 7])]
    with pytest.raises(GeError) as in_python:
        model.run(feeds)
    with pytest.raises(Failed) as in_c:
        Model(model.save(tmp_path / "net.om")).run(feeds, [np.empty(2, np.float32)])
    assert str(in_c.value) == str(in_python.value)
    assert in_c.value.code == "E10024"


def test_wrong_arguments_are_refused(file: Path) -> None:
    model, y = Model(file), np.empty((2, 3), np.float32)
    for call in (
        lambda: model.run([], [y]),
        lambda: model.run([X, X], [y]),
        lambda: model.run([X[:1]], [y]),
        lambda: model.run([X], [y], gear=1),
        lambda: model.info("input", index=1),
        lambda: model.info("input", gear=1),
        lambda: check(library().npu_model_load(None, None, None)),
        lambda: check(library().npu_model_run(None, ctypes.c_size_t(0), None, 0, None, 0)),
        lambda: check(library().npu_model_input(model.handle, 0, 0, ctypes.byref(TensorInfo(0)))),
        lambda: Model(file, device=99),
    ):
        with pytest.raises(Failed) as caught:
            call()
        assert caught.value.code in ("E10020", "E11101")
    library().npu_model_free(None)
    library().npu_stream_free(None)
    library().npu_buffer_free(None)
