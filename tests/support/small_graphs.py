"""Compiling small graphs and comparing them with the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

import ge.ops  # noqa: F401  (registers the operators)
from ge.compiler import compile_graph
from ge.ir.values import desc_of
from ge.model.model import Model
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.options import CompileOptions


def floats(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    """Repeatable random float32 numbers."""
    return np.random.default_rng(seed + sum(shape)).uniform(low, high, shape).astype(np.float32)


def graph_of(build: Callable[[GraphBuilder], Any]) -> ir.Graph:
    """The graph that a function builds; what it returns are the outputs."""
    b = GraphBuilder("test")
    results = build(b)
    for value in [results] if isinstance(results, ir.Value) else results:
        b.output(value)
    return b.graph


def feeds_of(graph: ir.Graph, seed: int = 0) -> list[np.ndarray]:
    """Random inputs of a graph."""
    rng = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        desc = desc_of(value)
        if desc.dtype == "bool":
            arrays.append(rng.integers(0, 2, desc.shape).astype(bool))
        elif desc.dtype.startswith(("int", "uint")):
            arrays.append(rng.integers(0, 4, desc.shape).astype(desc.dtype))
        else:
            arrays.append(rng.uniform(-2, 2, desc.shape).astype(desc.dtype))
    return arrays


def assert_close(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float) -> None:
    """Same shapes, same types, nearly the same numbers."""
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        scale = max(1.0, float(np.abs(other.astype(np.float64)).max(initial=0.0)))
        np.testing.assert_allclose(
            one.astype(np.float64), other.astype(np.float64), rtol=tolerance, atol=tolerance * scale
        )


def compiled(
    build: Callable[[GraphBuilder], Any] | ir.Graph,
    options: CompileOptions | None = None,
    tolerance: float = 2e-5,
    seed: int = 0,
) -> Model:
    """The compiled model; its answers are compared with the interpreter's, twice."""
    graph = build if isinstance(build, ir.Graph) else graph_of(build)
    model = compile_graph(graph, options or CompileOptions(), "test")
    for turn in (seed, seed + 1):
        feeds = feeds_of(graph, turn)
        assert_close(model.run(feeds), interpret(graph, feeds), tolerance)
    return model


def kinds(model: Model) -> list[str]:
    """The kinds of a model's tasks in order."""
    return [task.kind for task in model.plan.tasks]
