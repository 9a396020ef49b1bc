"""Slices that move towards the inputs: the same answers, by smaller products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.layout.sink_slices import SinkSlices
from tests.passes.pass_support import transformed
from tests.support.small_graphs import compiled

B, S, D, H = 2, 18, 16, 2
Step = Callable[[GraphBuilder, Any, Any], Any]


def _taken(b: GraphBuilder, x: Any, axis: int, start: int, length: int) -> Any:
    shape = desc_of(x).shape
    starts, ends = [0] * len(shape), list(shape)
    starts[axis], ends[axis] = start, start + length
    return b.op("Slice", x, starts=starts, ends=ends)


def _heads(b: GraphBuilder, x: Any) -> Any:
    return b.op("Transpose", b.op("Reshape", x, shape=[B, S, H, D // H]), perm=(0, 2, 1, 3))


def _attended(b: GraphBuilder, x: Any, w: Any, causal: bool = False, masked: bool = False) -> Any:
    """With queries that are a product, joined heads behind it."""
    q, k = _heads(b, b.op("MatMul", x, w)), _heads(b, b.op("Tanh", x))
    mask = [b.input(f"mask{len(b.graph.inputs)}", (S, S), "float32")] if masked else []
    y = b.ops("Attention", (q, k, _heads(b, x), *mask), scale=0.5, causal=causal)[0]
    return b.op("Reshape", b.op("Transpose", y, perm=(0, 2, 1, 3)), shape=[B, S, D])


def _flat_product(b: GraphBuilder, x: Any, w: Any) -> Any:
    flat = b.op("MatMul", b.op("Reshape", x, shape=[B * S, D]), w)
    return b.op("Reshape", b.op("Gelu", flat), shape=[B, S, D])


def _of_one_row(b: GraphBuilder, x: Any, w: Any) -> Any:
    return b.op("MatMul", b.op("Reshape", x, shape=[B, S, 1, D]), w)


STEPS: dict[str, Step] = {
    "product": lambda b, x, w: b.op("MatMul", x, w),
    "transposed": lambda b, x, w: b.op("MatMul", b.op("Transpose", x, perm=(0, 2, 1)), w, transpose_a=True),
    "flat product": _flat_product,
    "stacked product": lambda b, x, w: b.op("Reshape", _of_one_row(b, x, w), shape=[B, S, D]),
    "residual": lambda b, x, w: b.op("Add", x, b.op("Tanh", x)),
    "scaled": lambda b, x, w: b.op("Mul", x, b.op("Slice", w, starts=[0, 0], ends=[1, D])),
    "norm": lambda b, x, w: b.op("LayerNorm", x, axes=[2], epsilon=1e-5),
    "softmax": lambda b, x, w: b.op("Softmax", x, axes=[2]),
    "over all": lambda b, x, w: b.op("Softmax", x, axes=[1]),
    "mean": lambda b, x, w: b.op("Sub", x, b.op("ReduceMean", x, axes=[-1], keepdims=True)),
    "attention": _attended,
    "masked": lambda b, x, w: _attended(b, x, w, masked=True),
    "causal": lambda b, x, w: _attended(b, x, w, causal=True),
    "halves": lambda b, x, w: b.op(
        "Concat", _taken(b, x, 2, D // 2, D // 2), _taken(b, x, 2, 0, D // 2), axis=2
    ),
    "rows of products": lambda b, x, w: b.op("MatMul", b.op("MatMul", x, x, transpose_b=True), x),
}


def _reading(steps: list[str], axis: int, start: int, length: int) -> Callable[[GraphBuilder], Any]:
    def build(b: GraphBuilder) -> Any:
        x, w = b.input("x", (B, S, D), "float32"), b.input("w", (D, D), "float32")
        for step in steps:
            x = STEPS[step](b, x, w)
        return _taken(b, b.op("MatMul", x, w), axis, start, length)

    return build


def _rows(graph: ir.Graph) -> list[int]:
    """How many rows each product and attention has, in all."""
    heavy = [node.outputs[0] for node in graph if node.op_type in ("MatMul", "Attention")]
    return [desc_of(v).size // desc_of(v).shape[-1] for v in heavy]


@pytest.mark.parametrize("step", STEPS)
def test_a_token_through(step: str) -> None:
    rows = _rows(transformed(_reading([step], 1, S - 1, 1), DeadCode(), SinkSlices(), DeadCode()))
    whole = _rows(transformed(_reading([step], 1, S - 1, 1), DeadCode()))
    assert rows[-1] == B < whole[-1]
    if step in ("product", "transposed", "flat product", "stacked product", "rows of products"):
        assert set(rows) == {B}
    if step in ("attention", "masked", "causal"):
        assert max(rows) == B * H  # for each head a row
    if step == "over all":
        assert rows == [B]  # a slice of softmax, which needs all


def test_causal_attention_of_other_rows_stays() -> None:
    graph = transformed(_reading(["causal"], 1, 0, 1), DeadCode(), SinkSlices(), DeadCode())
    assert _rows(graph) == [B * S, B * H * S, B]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    axis=st.sampled_from([0, 1, 2]),
    start=st.integers(0, 17),
    length=st.integers(1, 9),
)
def test_any_chain(steps: list[str], axis: int, start: int, length: int) -> None:
    size = (B, S, D)[axis]
    start = min(start, size - 1)
    build = _reading(steps, axis, start, min(length, size - start))
    rows, whole = (
        _rows(transformed(build, DeadCode(), SinkSlices(), DeadCode())),
        _rows(transformed(build, DeadCode())),
    )
    assert sum(rows) <= sum(whole)


def _also(read: Callable[[GraphBuilder, Any], Any]) -> Callable[[GraphBuilder], Any]:
    def build(b: GraphBuilder) -> Any:
        y = b.op("MatMul", b.input("x", (B, S, D), "float32"), b.input("w", (D, D), "float32"))
        return b.op("Tanh", _taken(b, y, 1, 2, 1)), read(b, y)

    return build


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        (lambda b, y: y, B * S),
        (lambda b, y: b.op("ReduceSum", y, axes=[1]), B * S),
        (lambda b, y: _taken(b, y, 1, 3, 1), B * S),
        (lambda b, y: _taken(b, y, 1, 2, 16), B * S),
        (lambda b, y: b.op("Slice", y, starts=[0, 0, 0], ends=[B, S, D], steps=[1, 2, 1]), B * S),
        (lambda b, y: b.op("Exp", _taken(b, y, 1, 2, 1)), B),
        (lambda b, y: b.op("Slice", y, starts=[0, 2, 1], ends=[B, 3, 4]), B),
    ],
)
def test_readers_must_agree(read: Callable[[GraphBuilder, Any], Any], rows: int) -> None:
    assert _rows(transformed(_also(read), DeadCode(), SinkSlices(), DeadCode())) == [rows]


def test_nothing_moves_where_no_product_becomes_smaller() -> None:
    def build(b: GraphBuilder) -> Any:
        return _taken(b, b.op("Exp", b.input("x", (B, S, D), "float32")), 1, 0, 1)

    graph = transformed(build, DeadCode(), SinkSlices(), DeadCode())
    assert [node.op_type for node in graph] == ["Exp", "Slice"]


@pytest.mark.parametrize("step", ["flat product", "attention", "masked", "halves"])
def test_compiled(step: str) -> None:
    compiled(_reading([step, "norm", step], 1, 1, 2))
