"""Targets without oneDNN: every cube operator is a generated kernel, with the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ge
from ge.compiler import compile_graph, compile_plan
from ge.implementations import CANDIDATES, GENERATED, candidates_for
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.target import Target, named
from tests.implementations.plans_of_targets import GRAPHS
from tests.support.small_graphs import feeds_of, floats, graph_of

_LAST = {"data_format": "channels_last"}
_PADS = {"pads_begin": [1, 1], "pads_end": [1, 1]}


def _without_library() -> Target:
    return replace(named("host"), library=False)


def _windows(b: GraphBuilder) -> Any:
    """Pools, a local response normalisation, groups, holes in a kernel."""
    x = b.input("x", (2, 8, 11, 9), "float32")
    y = b.op("Conv", x, floats(12, 4, 3, 3), floats(12), groups=2, dilations=[2, 2], pads_begin=[2, 1])
    pools = [b.op(kind, y, kernel=[2, 2], strides=[2, 1]) for kind in ("MaxPool", "AvgPool")]
    return [*pools, b.op("Lrn", x, size=3)]


def _gradients(b: GraphBuilder) -> Any:
    """Of pools and of convolutions by their source."""
    x, dy = b.input("x", (2, 8, 10, 16), "float32"), b.input("dy", (2, 4, 5, 16), "float32")
    window = {"kernel": [2, 2], "strides": [2, 2], **_LAST}
    return [
        b.op("MaxPoolGrad", dy, x, **window),
        b.op("AvgPoolGrad", dy, shape=[2, 8, 10, 16], **window),
        b.op("ConvTranspose", dy, floats(16, 24, 3, 3), strides=[2, 2], **_LAST),
    ]


def _layers(b: GraphBuilder) -> Any:
    """A recurrent layer, and a product of a transposed operand."""
    x = b.input("x", (5, 2, 8), "float32")
    w, r, bias = floats(8, 4, 16), floats(16, 4, 16), floats(4, 16)
    zeros = np.zeros((1, 2, 16), np.float32)
    lstm = b.op("LSTM", x, w[None], r[None], bias[None], zeros, zeros)
    keys = b.op("MatMul", x, b.input("k", (5, 7, 8), "float32"), transpose_b=True)
    return [*lstm, b.op("Softmax", keys, axes=[-1])]


def _integers(b: GraphBuilder) -> Any:
    """Products of 8-bit integers, with scales and without."""
    x, w = b.input("x", (2, 7, 12), "uint8"), b.input("w", (12, 20), "int8")
    scales = floats(20, low=0.1)
    exact = b.op("QMatMul", x, w, src_zero_point=3)
    image = b.input("image", (1, 6, 5, 8), "int8")
    weight = np.random.default_rng(0).integers(-9, 9, (16, 8, 3, 3), np.int8)
    bias = floats(16, seed=3)
    attrs = {"src_scale": 0.5, "dst_scale": 2.0, "src_zero_point": -2, "dst_zero_point": 4, **_PADS, **_LAST}
    small = b.op("QConv", image, weight, bias, floats(16, low=0.1), output_dtype="uint8", **attrs)
    return [exact, b.op("QMatMul", x, w, floats(20), scales, output_dtype="float32"), small]


OWN: dict[str, Callable[[GraphBuilder], Any]] = {
    "windows": _windows, "gradients": _gradients, "layers": _layers, "integers": _integers,
}  # fmt: skip


@pytest.mark.parametrize("name", [*GRAPHS, *OWN])
def test_answers_are_right_and_no_primitive_is_left(name: str) -> None:
    graph = graph_of((GRAPHS | OWN)[name])
    options = ge.CompileOptions(target=_without_library())
    assert not {t.kind for t in compile_plan(graph, options).tasks} & set(CANDIDATES)
    feeds = feeds_of(graph)
    expected = interpret(graph, feeds)
    for got, want in zip(compile_graph(graph, options).run(feeds), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * max(1, np.abs(want).max()))


def test_epilogues_are_part_of_the_kernel() -> None:
    def block(b: GraphBuilder) -> Any:
        x = b.input("x", (1, 14, 14, 16), "float32")
        y = b.op("Relu", b.op("Conv", x, floats(16, 16, 3, 3), floats(16), **_PADS, **_LAST))
        return b.op("Relu", b.op("Add", b.op("Conv", y, floats(16, 16, 1, 1), **_LAST), x))

    plan = compile_plan(graph_of(block), ge.CompileOptions(target=_without_library()))
    names = [t.name.partition(":")[0] for t in plan.tasks]
    assert [name for name in names if "Conv" in name] == ["Conv+Relu", "Conv+Add+Relu"], names


def test_every_kind_has_one_way_without_the_library() -> None:
    target = _without_library()
    assert all(len(candidates_for(kind, target)) == 1 for kind in CANDIDATES)
    assert candidates_for("matmul", target)[0].name == GENERATED


def test_the_variable_asks_for_generated_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_ONEDNN", "off")
    assert not named("host").library
    model = compile_graph(graph_of(GRAPHS["products"]))
    assert "the target has no oneDNN" in str(ge.explain(model))
