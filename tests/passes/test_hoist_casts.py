"""Casts taken out of loops: each rule of the pass, and answers as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.options import CompileOptions, PrecisionMode
from ge.passes import optimize
from ge.passes.base import run_passes
from ge.passes.precision.hoist_casts import HoistCasts
from tests.support.small_graphs import assert_close, compiled, feeds_of, graph_of

STEPS = 5


def _loop(b: GraphBuilder) -> Any:
    """state = tanh(bf16(state) · bf16(w))."""
    w, initial = b.input("w", (4, 4), "float32"), b.input("s", (3, 4), "float32")
    body = b.subgraph("body")
    body.input("i", (), "int64")
    body.input("c", (), "bool")
    state = body.input("state", (3, 4), "float32")
    narrow = [body.op("Cast", v, to="bfloat16") for v in (state, w)]
    product = body.op("Cast", body.op("MatMul", *narrow), to="float32")
    body.output(body.op("Identity", body.constant(np.bool_(True))))
    body.output(body.op("Tanh", product))
    given = (b.constant(np.int64(STEPS)), None, initial, *body.captures())
    return b.ops("Loop", given, body=body.graph, num_states=1, max_trip=STEPS)


def _casts_inside(graph: ir.Graph) -> int:
    loops = [n for n in graph if n.op_type == "Loop"]
    return sum(n.op_type == "Cast" for loop in loops for n in loop.attributes["body"].value)


def test_a_cast_of_an_outside_value_is_made_once() -> None:
    graph = graph_of(_loop)
    feeds = feeds_of(graph)
    expected = interpret(graph, feeds)
    changed = graph.clone()
    assert run_passes(changed, (HoistCasts(),), CompileOptions())
    assert _casts_inside(changed) == 2  # of the state and of the product
    loop = next(n for n in changed if n.op_type == "Loop")
    assert len(loop.inputs) == 4, "the float32 weights are no longer handed over"
    assert_close(interpret(changed, feeds), expected, 0)
    assert not run_passes(changed, (HoistCasts(),), CompileOptions())
    compiled(graph)


def test_a_loop_in_mixed_precision_casts_no_weights() -> None:
    def build(b: GraphBuilder) -> Any:
        w, initial = b.input("w", (64, 64), "float32"), b.input("s", (16, 64), "float32")
        body = b.subgraph("body")
        body.input("i", (), "int64")
        body.input("c", (), "bool")
        state = body.input("state", (16, 64), "float32")
        body.output(body.op("Identity", body.constant(np.bool_(True))))
        body.output(body.op("Tanh", body.op("MatMul", state, w)))
        given = (b.constant(np.int64(STEPS)), None, initial, *body.captures())
        return b.ops("Loop", given, body=body.graph, num_states=1, max_trip=STEPS)

    graph = graph_of(build)
    optimize(graph, CompileOptions(precision_mode=PrecisionMode.MIX_BF16))
    loop = next(n for n in graph if n.op_type == "Loop")
    casts = [n for n in loop.attributes["body"].value if n.op_type == "Cast"]
    assert all(n.inputs[0] not in loop.attributes["body"].value.inputs[3:] for n in casts)
