"""Precision modes on the simulated GPU: products with every epilogue that the compiler can fuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ge.compiler import compile_graph
from ge.ir.types import numpy_dtype
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.options import CompileOptions, PrecisionMode

WIDTH = 16
UNARY: dict[str, dict[str, Any]] = {
    "Relu": {},
    "LeakyRelu": {"alpha": 0.1},
    "Sigmoid": {},
    "Tanh": {},
    "Gelu": {},
    "HardSwish": {},
    "Swish": {},
    "Clip": {"min": 0.0, "max": 6.0},
}
BINARY = ("Add", "Sub", "Mul", "Div", "Maximum", "Minimum")
# Of the largest result of two products, whose operands, or results too, are rounded.
TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
NARROW = {
    PrecisionMode.MIX_BF16: "bfloat16",
    PrecisionMode.MIX_FP16: "float16",
    PrecisionMode.FORCE_FP16: "float16",
    PrecisionMode.CUBE_FP16: "float16",
}


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def _net(dtype: str) -> ir.Graph:
    """Branches of two products each, with one epilogue; each has an input, and the result of the latter as output."""
    b, rng = GraphBuilder(dtype), np.random.default_rng(0)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(numpy_dtype(dtype))

    def product(x: ir.Value, *bias: np.ndarray) -> ir.Value:
        return b.op("MatMul", x, random(WIDTH, WIDTH) / 4, *bias)

    def branch(epilogue: Callable[[ir.Value], ir.Value], *bias: np.ndarray) -> None:
        x = b.input(f"x{len(b.graph.inputs)}", (8, WIDTH), dtype)
        b.output(epilogue(product(epilogue(product(x, *bias)), *bias)))

    other = b.input("other", (8, WIDTH), dtype)
    for bias in ([], [random(WIDTH)]):
        branch(lambda y: y, *bias)
        branch(lambda y: b.op("Add", y, other), *bias)
        branch(lambda y: b.op("Relu", b.op("Add", y, other)), *bias)
        branch(lambda y: b.op("Gelu", b.op("Add", y, other), approximate="tanh"), *bias)
    for type_, attrs in UNARY.items():
        branch(lambda y, t=type_, a=attrs: b.op(t, y, **a), random(WIDTH))
    one = np.ones((), numpy_dtype(dtype))
    positive = b.op("Add", b.op("Abs", other), one)
    operands = [(type_, positive) for type_ in BINARY] + [("Mul", random(WIDTH)), ("Add", one)]
    for type_, operand in operands:
        branch(lambda y, t=type_, v=operand: b.op(t, y, v), random(WIDTH))
    return b.graph


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("dtype", "mode"),
    [*(("float32", mode) for mode in PrecisionMode), ("bfloat16", PrecisionMode.CUBE_FP16)],
)
def test_products_with_epilogues(dtype: str, mode: PrecisionMode, target: str) -> None:
    """What no primitive of the mode has is a kernel; no product is."""
    graph, rng = _net(dtype), np.random.default_rng(1)
    feeds = [rng.standard_normal((8, WIDTH)).astype(numpy_dtype(dtype)) for _ in graph.inputs]
    model = compile_graph(graph, CompileOptions(target=target, precision_mode=mode))
    tasks = [task.kind for task in model.plan.tasks]
    assert tasks.count("matmul") == sum(node.op_type == "MatMul" for node in graph)
    rounded = dtype if dtype != "float32" else NARROW.get(mode, dtype)
    for got, want in zip(model.run(feeds), interpret(graph, feeds), strict=True):
        size = np.abs(want.astype(np.float64)).max()
        assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max() <= TOLERANCE[rounded] * size
