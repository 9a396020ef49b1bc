"""Recomputation: less memory for the same results, within the rules of the pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge.compiler import compile_graph, compile_plan
from ge.errors import GeError
from ge.ir import facts
from ge.ir.types import numpy_dtype
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.passes import optimize
from ge.target import host

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


def normalised(layers: int, activation: str = "Relu") -> Any:
    """Products, normalised and activated, then what their gradients read: centred values, masks, activations."""
    builder = GraphBuilder("net")
    x, weights = (builder.input(name, (SIZE, SIZE), "float32") for name in "xw")
    kept = []
    for _ in range(layers):
        before = builder.op("MatMul", x, weights)
        mean = builder.op("ReduceMean", before, axes=(0,), keepdims=True)
        centred = builder.op("Sub", before, mean)
        spread = builder.op("ReduceMean", builder.op("Square", centred), axes=(0,), keepdims=True)
        scale = builder.op("Rsqrt", builder.op("Add", spread, 1e-3))
        shift = builder.op("Neg", builder.op("Mul", mean, scale))
        x = builder.op(activation, builder.op("Add", builder.op("Mul", before, scale), shift))
        kept.append((before, centred, scale, x))
    back = builder.op("Tanh", x)
    for before, centred, scale, after in reversed(kept):
        slope = builder.op("MatMul", after, back)
        slope = builder.op("Select", builder.op("Greater", after, 0.0), slope, 0.0)
        sums = builder.op("ReduceSum", builder.op("Mul", slope, before), axes=(0,), keepdims=True)
        slope = builder.op("Sub", builder.op("Mul", slope, scale), builder.op("Mul", sums, centred))
        back = builder.op("Mul", builder.op("MatMul", slope, weights), 0.01)
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


def test_light_repeats_what_kernels_can_make_as_they_read_or_one_pass_of_arithmetic_makes() -> None:
    found = repeated(normalised(8), "light")
    assert {"Sub", "Relu"} <= set(found)  # centred values in kernels, activations for products
    assert not {"MatMul", "ReduceMean", "Rsqrt"} & set(found)


def test_light_leaves_costly_activations_of_products_alone() -> None:
    assert "Gelu" not in repeated(normalised(8, "Gelu"), "light")
    assert not repeated(there_and_back(8), "light")


@pytest.mark.parametrize("activation", ["Relu", "Gelu"])
def test_light_takes_less_memory_and_no_more_traffic(activation: str) -> None:
    graph = normalised(12, activation)
    random = np.random.default_rng(0)
    feeds = [random.standard_normal((SIZE, SIZE)).astype(np.float32) * s for s in (1.0, 0.1)]
    models = {m: compile_graph(graph, CompileOptions(recompute=m), "net") for m in ("off", "light")}
    sizes = {m: model.plan.arena_bytes for m, model in models.items()}
    assert sizes["light"] < (0.6 if activation == "Relu" else 0.75) * sizes["off"]
    np.testing.assert_array_equal(*(model(*feeds) for model in models.values()))
    passes = 12 if activation == "Relu" else 0  # one over each activation for the products
    assert len(models["light"].plan.tasks) <= len(models["off"].plan.tasks) + passes


def test_light_is_the_default() -> None:
    assert CompileOptions().recompute == "light"


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
    whole = compile_plan(there_and_back(8), CompileOptions(recompute="off"), "net").arena_bytes
    assert compile_plan(there_and_back(8), options, "net").arena_bytes == whole


def test_unknown_ways_are_errors() -> None:
    with pytest.raises(GeError, match="use one of 'off', 'light', 'vector', 'segments'"):
        CompileOptions(recompute="some")


@pytest.mark.skipif(
    "bfloat16" not in host().narrow_floats, reason="nothing is stored narrow without its primitives"
)
def test_what_is_stored_narrow_is_widened_by_every_reader() -> None:
    builder = GraphBuilder("net")
    x, weights = (builder.input(name, (SIZE, SIZE), "bfloat16") for name in "xw")
    wide = builder.op("Cast", builder.op("MatMul", x, weights), to="float32")
    mean = builder.op("ReduceMean", wide, axes=(0,), keepdims=True)
    centred = builder.op("Sub", wide, mean)
    builder.output(
        builder.op("ReduceMean", builder.op("Square", centred), axes=(0,), keepdims=True), "spread"
    )
    builder.output(builder.op("Mul", wide, mean), "scaled")
    assert repeated(builder.graph, "light") == ["Cast", "Cast"]
    rng = np.random.default_rng(0)
    feeds = [rng.standard_normal((SIZE, SIZE)).astype(numpy_dtype("bfloat16")) for _ in "xw"]
    for mode in ("light", "off"):
        found = compile_graph(builder.graph.clone(), CompileOptions(recompute=mode)).run(feeds)
        product = (feeds[0].astype(np.float32) @ feeds[1].astype(np.float32)).astype(feeds[0].dtype)
        expected = product.astype(np.float32)
        mean = expected.mean(0, keepdims=True)
        np.testing.assert_allclose(found[0], ((expected - mean) ** 2).mean(0, keepdims=True), rtol=2e-2)
        np.testing.assert_allclose(found[1], expected * mean, atol=0.1)
