"""Run as a script: the plans of a few graphs for every named target, and answers on the machine at hand, as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

import npu_runtime as rt
from ge.compiler import compile_graph, compile_plan
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret
from ge.options import CompileOptions, PrecisionMode
from ge.target import NAMES
from tests.support.small_graphs import feeds_of, floats


def _images(b: GraphBuilder) -> Any:
    """A residual block by Winograd, a gated branch with swish, a strided transposed convolution."""
    x = b.input("x", (2, 32, 24, 24), "float32")
    pads = {"pads_begin": [1, 1], "pads_end": [1, 1]}
    y = b.op("Relu", b.op("Add", b.op("Conv", x, floats(32, 32, 3, 3), floats(32), **pads), x))
    y = b.op("Swish", b.op("Conv", y, floats(32, 1, 3, 3), groups=32, **pads))
    y = b.op("Swish", b.op("Conv", y, floats(48, 32, 1, 1)))
    return b.op("Relu", b.op("ConvTranspose", y, floats(48, 16, 2, 2), floats(16), strides=[2, 2]))


def _products(b: GraphBuilder) -> Any:
    """A large product, one of few rows, and attention."""
    x = b.input("x", (512, 512), "float32")
    large = b.op("Gelu", b.op("MatMul", x, b.input("w", (512, 768), "float32")))
    few = b.op("MatMul", b.input("row", (2, 512), "float32"), x)
    q, k, v = (b.input(name, (2, 3, 20, 16), "float32") for name in "qkv")
    return [large, few, b.op("Attention", q, k, v, scale=0.25)[0]]


def _loop(b: GraphBuilder) -> Any:
    """Steps that multiply by a weight from outside of the loop."""
    state, w = b.input("s", (4, 128), "float32"), b.input("w", (128, 128), "float32")
    body = b.subgraph("body")
    body.input("step", (), "int64")
    go = body.input("go", (), "bool")
    h = body.input("h", (4, 128), "float32")
    new = body.op("Tanh", body.op("MatMul", h, w))
    body.output(body.op("Identity", go))
    body.output(new)
    return b.op("Loop", np.asarray(3), None, state, *body.captured, body=body.graph, num_states=1)


def _training(b: GraphBuilder) -> Any:
    """Gradients of a convolution and of a layer normalisation."""
    x, dy = (b.input(name, (2, 16, 16, 64), "float32") for name in ("x", "dy"))
    last = {"data_format": "channels_last", "pads_begin": [1, 1], "pads_end": [1, 1]}
    dw = b.op("ConvGradWeight", x, dy, kernel=[3, 3], **last)
    rows, mean = b.input("rows", (6, 32), "float32"), b.input("mean", (6, 1), "float32")
    dx, *_ = b.op("LayerNormGrad", rows, rows, mean, b.op("Add", b.op("Abs", mean), 1.0))
    return [dw, dx]


GRAPHS: dict[str, Callable[[GraphBuilder], Any]] = {
    "images": _images,
    "products": _products,
    "loop": _loop,
    "training": _training,
}


def graph_of(name: str) -> ir.Graph:
    b = GraphBuilder(name)
    results = GRAPHS[name](b)
    for value in [results] if isinstance(results, ir.Value) else results:
        b.output(value)
    return b.graph


def _plain(graph: ir.Graph, target: str, mode: PrecisionMode) -> list[Any]:
    """A plan without the names of its nodes, which are numbered through the process."""
    plan = compile_plan(graph, CompileOptions(target=target, precision_mode=mode))  # type: ignore[arg-type]
    views = lambda side: [v.as_tuple() for v in side]  # noqa: E731
    tasks = [
        [t.kind, views(t.inputs), views(t.outputs), sorted(t.attrs.items()), t.block] for t in plan.tasks
    ]
    code = [hashlib.sha256(k.objects[target]).hexdigest() for k in plan.kernels]
    buffers = [[b.kind, b.nbytes, b.offset, b.index] for b in plan.buffers]
    return [tasks, code, buffers, plan.arena_bytes, plan.steps, plan.report["target"]]


def _error(graph: ir.Graph) -> float:
    feeds = feeds_of(graph)
    expected = interpret(graph, feeds)
    found = compile_graph(graph).run(feeds)
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(f - e).max() / max(np.abs(e).max(), 1)) for f, e in pairs)


def main() -> None:
    """Write plans (unless only answers are asked for) and errors to the standard output."""
    graphs = {name: graph_of(name) for name in GRAPHS}
    modes = (PrecisionMode.KEEP, PrecisionMode.MIX_BF16)
    plans = {
        f"{name} {target} {mode.value}": _plain(graph, target, mode)
        for name, graph in graphs.items()
        for target in (() if "--answers" in sys.argv else NAMES)
        if not target.startswith("sm_")
        if target != "host"
        for mode in modes
    }
    errors = {name: _error(graph) for name, graph in graphs.items()}
    json.dump({"isa": rt.version()["isa"], "plans": plans, "errors": errors}, sys.stdout, default=str)


if __name__ == "__main__":
    main()
