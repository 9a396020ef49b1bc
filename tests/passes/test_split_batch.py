"""Working through a batch in steps gives the answers of the whole batch."""

from __future__ import annotations

import numpy as np
import pytest

from ge.compiler import compile_graph, compile_plan
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions

WHOLE = CompileOptions(disabled_passes=frozenset({"split_batch"}))


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE_BYTES", "32768")


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_network_is_split_and_gives_the_same_answers() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 10, 10, 8), "float32")
    shared = b.input("scale", (3, 16), "float32")
    w = _rng().standard_normal((3, 3, 8, 16)).astype(np.float32)
    y = b.op(
        "Conv", x, w, data_format="channels_last", weight_format="IO", pads_begin=[1, 1], pads_end=[1, 1]
    )
    y = b.op("Relu", y)
    y = b.op("ReduceMean", y, axes=[1, 2])
    y = b.op("Reshape", y, shape=[8, 1, 16])
    y = b.op("Add", y, b.op("Square", shared))
    y = b.op("Reshape", y, shape=[24, 16])
    y = b.op("MatMul", y, _rng().standard_normal((16, 5)).astype(np.float32))
    b.output(b.op("Softmax", y, axes=[1]), "y")
    feeds = [
        _rng().standard_normal((8, 10, 10, 8)).astype(np.float32),
        _rng().standard_normal((3, 16)).astype(np.float32),
    ]
    assert compile_plan(b.graph).steps > 1
    model = compile_graph(b.graph)
    assert model.inputs[0].desc.shape == (8, 10, 10, 8)
    assert model.outputs[0].desc.shape == (24, 5)
    np.testing.assert_allclose(model.run(feeds)[0], compile_graph(b.graph, WHOLE).run(feeds)[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("operator", "attrs"),
    [
        ("ReduceSum", {"axes": [0], "keepdims": True}),
        ("Softmax", {"axes": [0]}),
        ("Transpose", {"perm": [1, 0, 2]}),
        ("Reverse", {"axes": [0]}),
        ("CumSum", {"axis": 0}),
        ("Slice", {"starts": [1, 0, 0], "ends": [8, 64, 64]}),
        ("Pad", {"low": [1, 0, 0], "high": [0, 0, 0]}),
    ],
)
def test_rows_that_depend_on_each_other_are_never_split(operator: str, attrs: dict) -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input("x", (8, 64, 64), "float32"))
    b.output(b.op(operator, x, **attrs), "y")
    assert compile_plan(b.graph).steps == 1


def test_a_constant_of_the_size_of_the_batch_keeps_it_whole() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 64, 64), "float32")
    b.output(b.op("Add", x, np.arange(8, dtype=np.float32).reshape(8, 1, 1)), "y")
    assert compile_plan(b.graph).steps == 1


def test_a_matrix_product_of_two_inputs_keeps_the_batch_whole() -> None:
    b = GraphBuilder()
    x = b.input("x", (64, 64), "float32")
    b.output(b.op("MatMul", x, b.input("w", (64, 64), "float32")), "y")
    assert compile_plan(b.graph).steps == 1


def test_a_batch_that_fits_the_cache_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE_BYTES", str(1 << 31))
    b = GraphBuilder()
    b.output(b.op("Relu", b.input("x", (8, 64, 64), "float32")), "y")
    assert compile_plan(b.graph).steps == 1


def test_attention_goes_in_steps() -> None:
    def build(mask_rows: int) -> GraphBuilder:
        b = GraphBuilder()
        heads = [b.input(n, (8, 2, 24, 16), "float32") for n in "qkv"]
        mask = b.input("mask", (mask_rows, 1, 1, 24), "float32")
        scores = b.op("Add", b.op("MatMul", heads[0], heads[1], transpose_b=True), mask)
        b.output(b.op("MatMul", b.op("Softmax", scores, axes=[-1]), heads[2]), "y")
        return b

    feeds = [_rng().standard_normal((8, 2, 24, 16)).astype(np.float32) for _ in range(3)]
    for mask_rows in (1, 8):
        given = [*feeds, _rng().standard_normal((mask_rows, 1, 1, 24)).astype(np.float32)]
        split = compile_graph(build(mask_rows).graph, CompileOptions(), "split")
        assert split.plan.steps > 1
        whole = compile_graph(build(mask_rows).graph, WHOLE, "whole")
        np.testing.assert_allclose(split.run(given)[0], whole.run(given)[0], rtol=1e-5, atol=1e-6)
