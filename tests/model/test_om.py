"""`.om` files: models come back as they were; whatever does not make sense is refused before it is used."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ge
from ge.errors import GeError
from ge.ir.types import TensorDesc
from ge.model import codec, om
from ge.plan import Plan
from tests.model.plans import SENSELESS, dense, edited, expected, geared, replaced


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return om.write(om.Package([dense()], None, {"source": "hand"}), tmp_path / "dense")


def test_the_suffix_is_added(file: Path) -> None:
    assert file.name == "dense.om"


def test_a_plan_comes_back_equal(file: Path) -> None:
    before, after = dense(), om.read(file).plans[0]
    for name in (f.name for f in dataclasses.fields(Plan) if f.name != "constants"):
        assert getattr(after, name) == getattr(before, name), name
    for a, b in zip(after.constants, before.constants, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


def test_every_field_of_a_plan_is_stored() -> None:
    stored = codec.encode_plan(dense(), codec.ConstantPool(), codec.KernelPool())
    assert set(stored) == {f.name for f in dataclasses.fields(Plan)}


def test_a_loaded_model_runs(file: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 4), np.float32)
    np.testing.assert_allclose(om.load(file)(x), expected(x), rtol=1e-6)


def test_a_model_in_memory_runs(file: Path) -> None:
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(om.load(file.read_bytes())(x), expected(x), rtol=1e-6)


def test_values_of_a_loop_that_nobody_reads_take_no_memory_of_the_file(tmp_path: Path) -> None:
    body = "b (int64 i, bool c, float[] p, float[] q) => (bool d, float[] s, float[] t) "
    body += "{ d = Identity (c) s = Identity (p) t = Identity (x) }"
    text = f"g (float[64] x, float[1] y, int64 n, bool c) => (float[] v) {{ u, v = Loop (n, c, y, x) <body = {body}> }}"
    model = ge.compile(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'))
    x = np.arange(64, dtype=np.float32)
    feeds = {"x": x, "y": x[:1], "n": np.array(2), "c": np.array(True)}
    loaded = ge.load(model.save(tmp_path / "loop.om"))
    np.testing.assert_array_equal(loaded.run([feeds[p.name] for p in loaded.inputs])[0], x)


def test_weights_stay_mapped(file: Path) -> None:
    weights = om.read(file).plans[0].constants[0]
    assert not weights.flags.owndata
    assert not weights.flags.writeable
    assert weights.ctypes.data % 64 == 0


def test_writing_the_same_model_twice_gives_the_same_file(file: Path, tmp_path: Path) -> None:
    again = om.write(om.Package([dense()], None, {"source": "hand"}), tmp_path / "again.om")
    assert again.read_bytes() == file.read_bytes()


def test_all_element_types_come_back(tmp_path: Path) -> None:
    plan = dense()
    plan.constants += [np.ones((2, 3)).astype(codec.numpy_dtype(t)) for t in sorted(codec.TENSORS)]
    plan.constants += [np.float32(3.5).reshape(()), np.empty((0, 4), np.int8)]
    loaded = om.read(om.write(om.Package([plan]), tmp_path / "all")).plans[0]
    for a, b in zip(loaded.constants, plan.constants, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, b)


def test_equal_constants_are_stored_once(tmp_path: Path) -> None:
    plan = dense()
    plan.constants += [np.ones(100_000, np.float32), np.ones(100_000, np.float32)]
    path = om.write(om.Package([plan]), tmp_path / "twice")
    assert path.stat().st_size < 600_000


def test_the_summary_needs_no_plan(file: Path) -> None:
    info = om.summary(file)
    assert info["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [2, 4], "format": "ND", "dynamic": False}
    ]
    assert info["properties"] == {"source": "hand"}
    assert info["sealed_by_this_user"]


# -- gears -------------------------------------------------------------------------------------------


def test_gears_share_weights_and_are_chosen_by_shape(tmp_path: Path) -> None:
    path = om.write(geared(1, 2, 8), tmp_path / "geared")
    package = om.read(path)
    assert len({plan.constants[0].ctypes.data for plan in package.plans}) == 1
    model = om.load(path)
    for batch in (8, 1, 2):
        x = np.full((batch, 4), 0.5, np.float32)
        np.testing.assert_allclose(model(x), expected(x), rtol=1e-6)
        np.testing.assert_allclose(model(x=x), expected(x), rtol=1e-6)


def test_a_shape_without_gear_names_the_gears(tmp_path: Path) -> None:
    model = om.load(om.write(geared(1, 2), tmp_path / "geared"))
    with pytest.raises(GeError, match="1; 2") as caught:
        model(np.zeros((3, 4), np.float32))
    assert caught.value.code == "E11101"


def test_a_geared_model_can_be_saved_again(tmp_path: Path) -> None:
    model = om.load(om.write(geared(1, 2), tmp_path / "a"))
    again = om.load(om.save(model, tmp_path / "b"))
    assert again(np.zeros((2, 4), np.float32)).shape == (2, 3)


# -- refusal -----------------------------------------------------------------------------------------


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.om", tmp_path):
        with pytest.raises(GeError) as caught:
            om.read(path)
        assert caught.value.code == "E11001"


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.om")
    with pytest.raises(GeError, match="regular file"):
        om.read(tmp_path / "pipe.om")


@pytest.mark.parametrize("change", SENSELESS)
def test_content_that_does_not_make_sense_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    plan = dense()
    with pytest.raises(GeError) as caught:
        codec.decode_plan(edited(change), plan.constants, [], "plan")
    assert caught.value.code == "E11006"


def test_steps_that_leave_the_input_are_refused() -> None:
    data = edited(replaced("steps", to=4))
    data["buffers"][0][1] = 16
    with pytest.raises(GeError, match="steps"):
        codec.decode_plan(data, dense().constants, [], "plan")


def test_blocks_may_not_nest_in_a_circle() -> None:
    data = edited(replaced("blocks", to=3))
    inner = copy.deepcopy(data["tasks"][1])
    for block, target in ((1, 2), (2, 1)):
        task = copy.deepcopy(inner)
        task.update(block=block, attrs={"then_block": target})
        data["tasks"].append(task)
    with pytest.raises(GeError, match="circle"):
        codec.decode_plan(data, dense().constants, [], "plan")


def test_a_block_may_not_be_entered_from_two_places() -> None:
    data = edited(replaced("blocks", to=2))
    data["tasks"][0]["attrs"] = {"then_block": 1, "else_block": 1}
    with pytest.raises(GeError, match="two places"):
        codec.decode_plan(data, dense().constants, [], "plan")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"1" * 10_000, b"nul"]
)
def test_json_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(GeError) as caught:
        codec.record(codec.decode_json(text, "section"), "section", "key")
    assert caught.value.code == "E11006"


def test_constants_outside_the_weights_are_refused() -> None:
    entry = {"dtype": "float32", "shape": [100], "offset": 0}
    with pytest.raises(GeError, match="outside"):
        codec.ConstantPool.decode([entry], memoryview(bytes(64)))


def test_a_desc_of_too_many_dimensions_is_refused() -> None:
    with pytest.raises(GeError):
        codec.shape([1] * 1000, "shape")
    assert TensorDesc(codec.shape([2, 3], "shape"), "int8").size == 6
