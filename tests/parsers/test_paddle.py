"""Programs of PaddlePaddle, written here by hand in the form of `paddle.jit.save`."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge
from ge.errors import GeError, UnsupportedOperatorsError
from ge.parsers.paddle import parser
from ge.parsers.paddle.program import read

_TYPES = {"float32": "0.t_f32", "int64": "0.t_i64", "bool": "0.t_bool"}
_CODES = {"float32": 5, "int64": 3}


def _type(shape: Sequence[int], dtype: str) -> dict[str, Any]:
    return {"#": "0.t_dtensor", "D": [{"#": _TYPES[dtype]}, list(shape), "NCHW", [], 0]}


def _attribute(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"#": "0.a_bool", "D": value}
    if isinstance(value, list):
        return {"#": "0.a_array", "D": [_attribute(v) for v in value]}
    kinds = {int: "0.a_i32", float: "0.a_f32", str: "0.a_str"}
    return {"#": kinds[type(value)], "D": value}


class Writer:
    """A program in the making; values are numbers."""

    def __init__(self) -> None:
        self.operations: list[dict[str, Any]] = []
        self.parameters: dict[str, np.ndarray] = {}
        self.last = 0

    def op(
        self, type_: str, inputs: Sequence[int], shape: Sequence[int], dtype: str = "float32", /, **attrs: Any
    ) -> int:
        self.last += 1
        written = [{"N": name, "AT": _attribute(value)} for name, value in attrs.items()]
        result = {"%": self.last, "TT": _type(shape, dtype)}
        operands = [{"%": i} for i in inputs]
        self.operations.append({"#": type_, "A": written, "I": operands, "O": [result], "OA": []})
        return self.last

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> int:
        return self.op("1.data", (), shape, dtype, name=name)

    def parameter(self, name: str, array: np.ndarray) -> int:
        self.last += 1
        self.parameters[name] = array
        result = {"%": self.last, "TT": _type(array.shape, str(array.dtype))}
        self.operations.append({"#": "p", "A": [0, 1, 1, name], "DA": [], "O": result, "OA": [1, 0, 1]})
        return self.last

    def ints(self, *values: int) -> int:
        return self.op("1.full_int_array", (), [len(values)], "int64", value=[*values], dtype="int64")

    def fetch(self, value: int, shape: Sequence[int], dtype: str = "float32") -> None:
        self.op("1.fetch", [value], shape, dtype, name="fetch_0", col=0)

    def text(self) -> str:
        block = {"#": "block_0", "args": [], "ops": self.operations}
        region = {"#": "region_0", "blocks": [block]}
        return json.dumps(
            {"base_code": {"magic": "pir", "trainable": True, "version": 4}, "program": {"regions": [region]}}
        )

    def save(self, folder: Path) -> Path:
        path = folder / "net.json"
        path.write_text(self.text())
        stored = [_stored(self.parameters[name]) for name in sorted(self.parameters)]
        path.with_suffix(".pdiparams").write_bytes(b"".join(stored))
        return path


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _stored(array: np.ndarray) -> bytes:
    desc = b"\x08" + _varint(_CODES[str(array.dtype)]) + b"".join(b"\x10" + _varint(d) for d in array.shape)
    return struct.pack("<IQIi", 0, 0, 0, len(desc)) + desc + array.tobytes()


def _network(batch: int = -1) -> tuple[Writer, Mapping[str, np.ndarray]]:
    """relu(x @ w + b), with the rows then taken two by two where the batch is even."""
    random = np.random.default_rng(0)
    w = Writer()
    weight = w.parameter("w", random.standard_normal((4, 200)).astype(np.float32))
    bias = w.parameter("b", random.standard_normal(200).astype(np.float32))
    x = w.input("x", [batch, 4])
    y = w.op("1.matmul", [x, weight], [batch, 200], transpose_x=False, transpose_y=False)
    y = w.op("1.relu_", [w.op("1.add", [y, bias], [batch, 200])], [batch, 200])
    w.fetch(w.op("1.reshape", [y, w.ints(-1, 400)], [-1, 400]), [-1, 400])
    return w, w.parameters


def test_a_program_runs_with_the_batch_that_is_given(tmp_path: Path) -> None:
    writer, arrays = _network()
    path = writer.save(tmp_path)
    for batch in (2, 6):
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
        model = ge.compile(path, ge.CompileOptions(input_shapes={"x": (batch, 4)}))
        wanted = np.maximum(x @ arrays["w"] + arrays["b"], 0).reshape(-1, 400)
        np.testing.assert_allclose(model(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "slope"),
    [
        ("sqrt", lambda y: 0.5 / y),
        ("exp", lambda y: y),
        ("reciprocal", lambda y: -(y**2)),
        ("log1p", lambda x: 1 / (x + 1)),
        ("square", lambda x: 2 * x),
        ("hardswish", lambda x: np.where(np.abs(x) < 3, x / 3 + 0.5, x > 0)),
    ],
)
def test_gradients_read_the_operand_or_the_result_and_then_the_gradient(
    name: str, slope: Any, tmp_path: Path
) -> None:
    writer = Writer()
    value, gradient = writer.input("value", [2, 3]), writer.input("gradient", [2, 3])
    writer.fetch(writer.op(f"1.{name}_grad", [value, gradient], [2, 3]), [2, 3])
    given = np.array([[0.5, 1, 2], [2.9, 3, 4]], np.float32)
    g = np.array([[1, -2, 3], [0.5, 1, 7]], np.float32)
    found = ge.compile(writer.save(tmp_path))(given, g)
    np.testing.assert_allclose(found, g * slope(given), rtol=1e-5)


def test_all_unmapped_operators_are_named_at_once(tmp_path: Path) -> None:
    writer = Writer()
    x = writer.input("x", [2, 3])
    y = writer.op("1.qr_of_something", [x], [2, 3])
    z = writer.op("1.another", [x], [2, 3])
    writer.fetch(writer.op("1.add", [y, z], [2, 3]), [2, 3])
    with pytest.raises(UnsupportedOperatorsError) as caught:
        ge.compile(writer.save(tmp_path))
    assert [item.operator for item in caught.value.items] == ["pd_op.qr_of_something", "pd_op.another"]


def test_a_result_of_another_shape_than_the_program_says_is_refused(tmp_path: Path) -> None:
    writer = Writer()
    writer.fetch(writer.op("1.relu", [writer.input("x", [2, 3])], [3, 2]), [3, 2])
    with pytest.raises(
        UnsupportedOperatorsError, match=r"float32\[2,3\] where PaddlePaddle has float32\[3, 2\]"
    ):
        ge.compile(writer.save(tmp_path))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [({"x": (3, 5)}, "does not fit"), ({"y": (3, 4)}, "no input y"), ({"x": (3,)}, "does not fit")],
)
def test_wrong_shapes_are_named(shapes: Any, message: str, tmp_path: Path) -> None:
    path = _network()[0].save(tmp_path)
    with pytest.raises(GeError, match=message):
        ge.compile(path, ge.CompileOptions(input_shapes=shapes))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = _network()[0].save(tmp_path)
    stored = path.with_suffix(".pdiparams")
    content = stored.read_bytes()
    for damaged in (content[:-1], content[:10], content + b"x", b""):
        stored.write_bytes(damaged)
        with pytest.raises(GeError, match=r"net\.pdiparams"):
            ge.compile(path)
    stored.unlink()
    with pytest.raises(GeError, match="keep both files"):
        ge.compile(path)
    text = path.read_text()
    for damaged_text in (
        "{}",
        text[: len(text) // 2],
        "[]",
        text.replace('"magic": "pir"', '"magic": "other"'),
    ):
        path.write_text(damaged_text)
        with pytest.raises(GeError, match="is not a program of PaddlePaddle"):
            ge.compile(path)


def test_branches_take_the_values_around_them() -> None:
    writer = Writer()
    x = writer.input("x", [3])
    total = writer.op("1.sum", [x, writer.ints()], [], keepdim=False, dtype="Undefined(ALL_DTYPE)")
    zero = writer.op("1.full", (), [], shape=[], value=0.0, dtype="float32")
    holds = writer.op("1.greater_than", [total, zero], [], "bool")
    blocks = []
    for type_ in ("1.exp", "1.square"):
        inner = Writer()
        inner.last = writer.last = writer.last + 5
        made = inner.op(type_, [x], [3])
        inner.operations.append({"#": "2.yield", "A": [], "I": [{"%": made}], "O": []})
        blocks.append({"blocks": [{"#": "block", "args": [], "ops": inner.operations}]})
        writer.last = inner.last
    result = writer.op("1.if", [holds], [3])
    writer.operations[-1]["regions"] = blocks
    writer.fetch(result, [3])
    made = parser.convert(read(writer.text()))
    model = ge.compile(made.graph)
    for array in (np.array([1, 2, -1], np.float32), np.array([-1, -2, 1], np.float32)):
        wanted = np.exp(array) if array.sum() > 0 else array**2
        np.testing.assert_allclose(model(array), wanted, rtol=1e-6)


def test_updates_of_parameters_are_outputs_for_a_door() -> None:
    writer = Writer()
    x = writer.input("x", [2])
    counter = writer.parameter("counter", np.zeros(2, np.float32))
    writer.op("1.add_", [counter, x], [2])
    writer.fetch(writer.op("1.scale", [counter, writer.op("1.full", (), [1], shape=[1], value=2.0, dtype="float32")],
                           [2], bias=0.0, bias_after_scale=True), [2])  # fmt: skip
    made = parser.convert(read(writer.text()))
    assert made.updates == {"counter": "counter.updated"}
    model = ge.compile(made.graph)
    names = [str(v.name) for v in made.graph.inputs]
    arrays = {"x": np.array([1, 2], np.float32), "counter": np.array([10, 20], np.float32)}
    doubled, updated = model(*(arrays[name] for name in names))
    np.testing.assert_array_equal(updated, [11, 22])
    np.testing.assert_array_equal(doubled, [22, 44])


def test_two_hundred_operators_are_mapped() -> None:
    assert len(parser.names()) >= 200
