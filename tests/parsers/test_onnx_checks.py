"""Indices out of range and whole numbers divided by zero fail a run of an ONNX model; the next run is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import ge
from ge.errors import GeError

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
EYE = np.eye(4, dtype=np.float32).reshape(1, 1, 4, 4)


def model(text: str, opset: int = 24) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\ng {text}')


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


# text, values that are right, values that are wrong, what the error says
CASES: dict[str, tuple[str, list[Any], list[Any], str]] = {
    "Gather": (
        "(float[4,3] t, int64[2] i) => (float[2,3] y) { [n] y = Gather(t, i) }",
        [TABLE, ints(-4, 3)],
        [TABLE, ints(0, 9)],
        r"indices\[1\] = 9 is not in \[-4, 4\)",
    ),
    "Gather of one": (
        "(float[4,3] t, int32 i) => (float[4] y) { [n] y = Gather <axis = -1>(t, i) }",
        [TABLE, np.int32(-3)],
        [TABLE, np.int32(-4)],
        r"indices\[\] = -4 is not in \[-3, 3\)",
    ),
    "GatherElements": (
        "(float[4,3] t, int64[1,3] i) => (float[1,3] y) { [n] y = GatherElements(t, i) }",
        [TABLE, ints([3, -1, 0])],
        [TABLE, ints([3, -5, 0])],
        r"indices\[0,1\] = -5 is not in \[-4, 4\)",
    ),
    "GatherND": (
        "(float[4,3] t, int64[1,2] i) => (float[1] y) { [n] y = GatherND(t, i) }",
        [TABLE, ints([3, -3])],
        [TABLE, ints([3, 3])],
        r"indices\[0,1\] = 3 is not in \[-3, 3\)",
    ),
    "ScatterElements": (
        "(float[4,3] t, int64[1,3] i, float[1,3] u) => (float[4,3] y)"
        ' { [n] y = ScatterElements <axis = 1, reduction = "add">(t, i, u) }',
        [TABLE, ints([0, 1, -3]), TABLE[:1]],
        [TABLE, ints([0, 1, 3]), TABLE[:1]],
        r"indices\[0,2\] = 3 is not in \[-3, 3\)",
    ),
    "ScatterND": (
        "(float[4,3] t, int64[1,1] i, float[1,3] u) => (float[4,3] y) { [n] y = ScatterND(t, i, u) }",
        [TABLE, ints([-4]), TABLE[:1]],
        [TABLE, ints([4]), TABLE[:1]],
        r"indices\[0,0\] = 4 is not in \[-4, 4\)",
    ),
    "ReverseSequence": (
        "(float[4,3] t, int64[3] i) => (float[4,3] y) { [n] y = ReverseSequence(t, i) }",
        [TABLE, ints(4, 1, 2)],
        [TABLE, ints(4, 5, 2)],
        r"sequence_lens\[1\] = 5 is not in \[0, 5\)",
    ),
    "TensorScatter": (
        "(float[1,4,3] t, float[1,2,3] u, int64[1] i) => (float[1,4,3] y) { [n] y = TensorScatter(t, u, i) }",
        [TABLE[None], TABLE[None, :2], ints(2)],
        [TABLE[None], TABLE[None, :2], ints(3)],
        r"write_indices\[0,1,0\] = 4 is not in \[0, 4\)",
    ),
    "MaxUnpool": (
        "(float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,4,4] y)"
        " { [n] y = MaxUnpool <kernel_shape = [2,2], strides = [2,2]>(x, i) }",
        [EYE[:, :, :2, :2], ints([[[0, 3], [8, 15]]])],
        [EYE[:, :, :2, :2], ints([[[0, 3], [8, 16]]])],
        r"indices\[0,0,1,1\] = 16 is not in \[0, 16\)",
    ),
    "RoiAlign": (
        "(float[1,1,4,4] x, float[1,4] r, int64[1] i) => (float[1,1,1,1] y) { [n] y = RoiAlign(x, r, i) }",
        [EYE, np.array([[0, 0, 2, 2]], np.float32), ints(0)],
        [EYE, np.array([[0, 0, 2, 2]], np.float32), ints(1)],
        r"batch_indices\[0\] = 1 is not in \[0, 1\)",
    ),
    "NegativeLogLikelihoodLoss": (
        '(float[4,3] t, int64[4] i) => (float y) { [n] y = NegativeLogLikelihoodLoss <reduction = "sum">(t, i) }',
        [TABLE, ints(0, 1, 2, 0)],
        [TABLE, ints(0, 1, 3, 0)],
        r"= 3 is not in \[-3, 3\)",
    ),
    **{
        f"{op} of {dtype}": (
            f"({dtype}[2] a, {dtype}[2] b) => ({dtype}[2] y) {{ [n] y = {op}(a, b) }}",
            [np.array([7, 5], dtype), np.array([2, 3], dtype)],
            [np.array([7, 5], dtype), np.array([2, 0], dtype)],
            r"Integer division by zero: divisor\[1\] is 0",
        )
        for op in ("Div", "Mod")
        for dtype in INTEGERS
    },
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_wrong_numbers_fails_and_the_next_is_right(name: str) -> None:
    text, good, bad, message = CASES[name]
    proto = model(text)
    compiled = ge.compile(proto)
    wanted = ReferenceEvaluator(proto)
    names = [v.name for v in proto.graph.input]
    for _ in range(2):
        with pytest.raises(GeError, match=message) as caught:
            compiled(*bad)
        assert caught.value.code == "E10024" and caught.value.remedy
        assert caught.value.node.startswith("n")
        if "Loss" not in name:  # a function, whose inner operator is named
            assert (caught.value.node, caught.value.operator) == ("n", name.split()[0])
        expected = wanted.run(None, dict(zip(names, good, strict=True)))[0]
        np.testing.assert_array_equal(compiled(*good), expected)


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("divisor", ["<int32 b = {0}>", ""])
def test_nothing_may_be_divided_by_zero(op: str, divisor: str) -> None:
    fed = "int32[0,2] a" if divisor else "int32[0,2] a, int32[2] b"
    compiled = ge.compile(model(f"({fed}) => (int32[0,2] y) {divisor} {{ [n] y = {op}(a, b) }}"))
    given = [np.zeros((0, 2), np.int32)] + ([] if divisor else [np.zeros(2, np.int32)])
    assert compiled(*given).shape == (0, 2)


@pytest.mark.parametrize(
    "text",
    [
        "(float[4,3] t) => (float[2,3] y) <int64[2] i = {0, 9}> { [n] y = Gather(t, i) }",
        "() => (float[2] y) <float[4] t = {0, 1, 2, 3}, int64[2] i = {0, -5}> { [n] y = Gather(t, i) }",
        "(float[4,3] t) => (float[3] y) <int64 i = {9}> { [n] y = Gather(t, i) }",
        "(float[4,3] t, float[1,3] u) => (float[4,3] y) <int64[1,1] i = {4}> { [n] y = ScatterND(t, i, u) }",
        "(int32[2] a) => (int32[2] y) <int32[2] b = {1, 0}> { [n] y = Div(a, b) }",
        "() => (int32[2] y) <int32[2] a = {1, 0}, int32 b = {0}> { [n] y = Mod(a, b) }",
        "(float[3] t) => (float[K] y) <bool[4] c = {1, 0, 0, 1}> { [n] y = Compress <axis = 0>(t, c) }",
    ],
)
def test_constants_that_are_wrong_are_refused(text: str) -> None:
    with pytest.raises(GeError, match=r"is not in \[|division by zero") as caught:
        ge.compile(model(text))
    assert (caught.value.code, caught.value.node) == ("E10024", "n")


@pytest.mark.parametrize(("length", "step"), [(17, 4), (0, 4), (-1, 4), (2**40, 4), (8, 0), (8, -1)])
def test_frames_that_do_not_fit_their_signal_are_refused(length: int, step: int) -> None:
    text = (
        f"(float[1,16,1] x) => (float[A,B,C,D] y) <int64 step = {{{step}}}, int64 length = {{{length}}}>"
        " { [n] y = STFT(x, step, , length) }"
    )
    with pytest.raises(GeError, match=f"frames of {length} samples every {step} do not fit"):
        ge.compile(model(text))


def test_floats_may_be_divided_by_zero() -> None:
    divide = ge.compile(model("(float[2] a, float[2] b) => (float[2] y) { y = Div(a, b) }"))
    assert np.isinf(divide(np.ones(2, np.float32), np.zeros(2, np.float32))).all()


def test_a_branch_that_is_not_taken_does_not_fail() -> None:
    text = """(float[4] t, bool c, int64 i) => (float[1] y) {
        y = If (c) <
            then_branch = a () => (float[1] p) {
                k = Constant <value_ints = [9]>()  d = Add(k, i)  p = Gather(t, d)
            },
            else_branch = b () => (float[1] q) { k2 = Constant <value_ints = [7]>()  q = Gather(t, k2) }
        > }"""
    compiled = ge.compile(model(text))
    t = np.arange(4, dtype=np.float32)
    assert compiled(t, np.True_, np.int64(-8)) == 1.0
    with pytest.raises(GeError, match=r"= 9 is not in \[-4, 4\)"):
        compiled(t, np.True_, np.int64(0))
    with pytest.raises(GeError, match=r"= 7 is not in \[-4, 4\)"):
        compiled(t, np.False_, np.int64(0))


def test_a_step_of_a_loop_fails() -> None:
    text = """(int64 n, float[4] t) => (float s) {
        zero = Constant <value_float = 0.0>()
        s = Loop (n, , zero) < body = b (int64 i, bool go, float before) => (bool going, float after) {
            going = Identity(go)  x = Gather(t, i)  after = Add(before, x)
        } > }"""
    compiled = ge.compile(model(text))
    t = np.ones(4, np.float32)
    for steps in (4, 0):
        assert compiled(np.int64(steps), t) == steps
        with pytest.raises(GeError, match=r"indices\[\] = 4 is not in \[-4, 4\)"):
            compiled(np.int64(5), t)


def test_a_model_from_a_file_names_the_node_too(tmp_path: Path) -> None:
    text, good, bad, message = CASES["Gather"]
    loaded = ge.load(ge.compile(model(text)).save(tmp_path / "m.om"))
    with pytest.raises(GeError, match=message) as caught:
        loaded(*bad)
    assert (caught.value.node, caught.value.operator) == ("n", "Gather")
    np.testing.assert_array_equal(loaded(*good), TABLE[[0, 3]])
