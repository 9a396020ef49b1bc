"""What the compiler writes into tasks besides the name of their implementation, for targets of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ge.compiler import compile_graph, compile_plan
from ge.implementations import SETTINGS
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.options import CompileOptions
from ge.target import CostTable, Target, host, named
from tests.support.small_graphs import feeds_of, floats


def _gradient(images: int, size: int, channels: int = 3, outputs: int = 24) -> ir.Graph:
    b = GraphBuilder("gradient")
    shape = (images, size, size)
    x, dy = b.input("x", (*shape, channels), "float32"), b.input("dy", (*shape, outputs), "float32")
    pads: dict[str, Any] = {"pads_begin": [2, 2], "pads_end": [2, 2]}
    b.output(b.op("ConvGradWeight", x, dy, kernel=[5, 5], data_format="channels_last", **pads))
    return b.graph


def _graph(build: Callable[[GraphBuilder], ir.Value]) -> ir.Graph:
    b = GraphBuilder("one task")
    b.output(build(b))
    return b.graph


def _product(b: GraphBuilder, rows: int) -> ir.Value:
    return b.op("MatMul", b.input("x", (rows, 64), "float32"), floats(64, 64))


def _pointwise(b: GraphBuilder, pixels: int) -> ir.Value:
    x = b.input("x", (1, 1, pixels, 96), "float32")
    return b.op(
        "Swish", b.op("Conv", x, floats(1, 1, 96, 96), data_format="channels_last", weight_format="IO")
    )


def _strassen(b: GraphBuilder) -> ir.Value:
    return b.op("MatMul", b.input("x", (1024, 1024), "float32"), b.input("w", (1024, 1536), "float32"))


def _neighbours(b: GraphBuilder, channels: int) -> ir.Value:
    return b.op("Lrn", b.input("x", (1, channels, 9, 7), "float32"), size=5)


def _chosen(graph: ir.Graph, target: Target, kind: str) -> tuple[str, dict[str, Any]]:
    """The implementation of the only task of a kind, and its settings."""
    (task,) = (t for t in compile_plan(graph, CompileOptions(target=target)).tasks if t.kind == kind)
    return task.attrs["implementation"], {n: v for n, v in task.attrs.items() if n in SETTINGS}


@pytest.mark.parametrize(
    ("images", "cores", "name", "serial"),
    [
        (8, 2, "onednn_shares", False),
        (8, 1, "onednn", True),  # one core has nothing to share
        (1, 2, "onednn", True),  # one image, too small for barriers
        (3, 2, "onednn", True),  # one core would wait for a third of the time
        (13, 2, "onednn_shares", False),
        (9, 8, "onednn", False),  # uneven, and large enough for barriers
    ],
)
def test_the_compiler_decides_how_cores_divide_the_images_of_a_gradient(
    images: int, cores: int, name: str, serial: bool
) -> None:
    target = replace(named("avx2"), cores=cores)
    chosen, settings = _chosen(_gradient(images, 40), target, "conv_grad_weights")
    assert (chosen, settings.get("serial", False)) == (name, serial)


def test_measured_costs_change_the_choice() -> None:
    target = replace(named("avx2"), costs=CostTable.of({"gradient_evenness": 0.5}))
    assert _chosen(_gradient(3, 40), target, "conv_grad_weights")[0] == "onednn_shares"
    assert _chosen(_gradient(2, 4), target, "conv_grad_weights") == ("onednn", {"serial": True})


def test_without_measurements_only_an_even_share_is_taken() -> None:
    target = replace(named("avx2"), costs=None)
    names = [_chosen(_gradient(n, 40), target, "conv_grad_weights")[0] for n in (4, 13)]
    assert names == ["onednn_shares", "onednn"]


@pytest.mark.parametrize(
    ("build", "kind", "settings"),
    [
        (lambda b: _product(b, 8), "matmul", {"serial": True}),
        (lambda b: _product(b, 512), "matmul", {}),
        (lambda b: _pointwise(b, 64), "conv", {"by_rows": False}),
        (lambda b: _pointwise(b, 512), "conv", {"by_rows": True}),
        (_strassen, "matmul", {"down": 1, "across": 2}),
        (lambda b: _neighbours(b, 17), "lrn", {"serial": True, "channels_last": True}),
        (lambda b: _neighbours(b, 32), "lrn", {"serial": True}),
    ],
    ids=["small product", "product", "few pixels", "many pixels", "strassen", "odd channels", "planes"],
)
def test_settings_of_implementations(
    build: Callable[[GraphBuilder], ir.Value], kind: str, settings: dict[str, Any]
) -> None:
    assert _chosen(_graph(build), named("avx512"), kind)[1] == settings


@pytest.mark.parametrize("cores", [1, 3, 4])
def test_plans_for_other_numbers_of_cores_are_right_here(cores: int) -> None:
    """The runtime executes what the plan says, with the threads that there are."""
    for graph in (
        _gradient(4, 24),
        _gradient(2, 12, 64, 64),
        _graph(_strassen),
        _graph(lambda b: _pointwise(b, 64)),
        _graph(lambda b: _neighbours(b, 17)),
    ):
        feeds = feeds_of(graph)
        (found,) = compile_graph(graph, CompileOptions(target=replace(host(), cores=cores))).run(feeds)
        (wanted,) = interpret(graph, feeds)
        assert float(np.abs(found - wanted).max()) < 1e-4 * max(float(np.abs(wanted).max()), 1.0)
