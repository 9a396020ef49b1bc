"""Recomputation: less memory for the same results, within the rules of the pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge.compiler import compile_graph, compile_plan
from ge.errors import GeError
from ge.ir import facts
from ge.ir.builder import GraphBuilder
from ge.options import CompileOptions
from ge.passes import optimize

SIZE = 64


def there_and_back(layers: int) -> Any:
    """Layers of a product and an activation, then their values once more, backwards, as gradients read them."""
    builder = GraphBuilder("net")
    x, weights = (builder.input(name, (SIZE, SIZE), "float32") for name in "xw")
    kept = []
    for _ in range(layers):
        before = builder.op("MatMul", x, weights)
        x = builder.op("Gelu", before, approximate="none")
        kept.append((before, x))
    back = builder.op("Tanh", x)
    for before, after in reversed(kept):
        slope = builder.op("Mul", builder.op("Sigmoid", before), back)
        back = builder.op("MatMul", slope, after)
        back = builder.op("Mul", back, 0.01)
    builder.output(back, "y")
    return builder.graph


def repeated(graph: Any, mode: str) -> list[str]:
    graph = graph.clone()
    optimize(graph, CompileOptions(recompute=mode))
    return [n.op_type for n in graph if facts.recomputed(n)]


def test_activations_are_made_again_from_what_is_kept() -> None:
    found = repeated(there_and_back(8), "vector")
    assert found
    assert set(found) == {"Gelu"}  # no product is repeated
    assert not repeated(there_and_back(8), "off")


def test_segments_repeat_products_too() -> None:
    assert set(repeated(there_and_back(16), "segments")) == {"MatMul", "Gelu"}


def test_less_memory_for_the_same_results() -> None:
    graph = there_and_back(16)
    random = np.random.default_rng(0)
    feeds = [random.standard_normal((SIZE, SIZE)).astype(np.float32) * s for s in (1.0, 0.1)]
    sizes, results = {}, {}
    for mode in ("off", "vector", "segments"):
        model = compile_graph(graph, CompileOptions(recompute=mode), "net")
        sizes[mode] = model.plan.arena_bytes
        results[mode] = model(*feeds)
    assert sizes["segments"] < 0.6 * sizes["off"]
    assert sizes["vector"] < 0.7 * sizes["off"]
    for mode in ("vector", "segments"):
        np.testing.assert_allclose(results[mode], results["off"], rtol=1e-5, atol=1e-6)


def test_what_is_read_soon_is_kept() -> None:
    assert not repeated(there_and_back(2), "vector")
    assert not repeated(there_and_back(2), "segments")


def test_results_of_the_graph_are_kept() -> None:
    graph = there_and_back(8)
    names = [n for n in graph if n.op_type == "Gelu"]
    graph.outputs.extend(n.outputs[0] for n in names)
    assert not repeated(graph, "vector")


def test_the_pass_can_be_switched_off_by_name() -> None:
    options = CompileOptions(recompute="vector", disabled_passes=frozenset({"recompute"}))
    whole = compile_plan(there_and_back(8), CompileOptions(), "net").arena_bytes
    assert compile_plan(there_and_back(8), options, "net").arena_bytes == whole


def test_unknown_ways_are_errors() -> None:
    with pytest.raises(GeError, match="use one of off, vector, segments"):
        CompileOptions(recompute="some")
