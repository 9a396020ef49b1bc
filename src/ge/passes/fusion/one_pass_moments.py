"""Computes mean and variance of long columns in one pass over memory."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, producer, replace_node

__all__ = ["OnePassMoments"]

_SHARE = 32  # of the first axis, whose mean approximates the mean: costs at most 5 bits (rule 2)


def _mean_of(node: ir.Node, least: int) -> ir.Node | None:
    """The ReduceMean of `least` elements whose squared differences a ReduceMean averages over the same columns."""
    square = producer(node.inputs[0], "Square")
    centred = producer(square.inputs[0], "Sub") if square is not None else None
    mean = producer(centred.inputs[1], "ReduceMean") if centred is not None else None
    if mean is None or centred is None or mean.inputs[0] is not centred.inputs[0]:
        return None
    desc, attrs = desc_of(mean.inputs[0]), attrs_of(mean)  # type: ignore[arg-type]
    if attrs["axes"] is None or attrs["axes"] != attrs_of(node)["axes"] or not attrs["keepdims"]:
        return None
    axes = {a % desc.rank for a in attrs["axes"]}
    is_long = desc.size >= least and desc.shape[0] >= 2
    return mean if desc.dtype == "float32" and is_long and 0 in axes and desc.rank - 1 not in axes else None


class OnePassMoments(Pass):
    """Compute mean and variance from sums of differences to an estimate of the mean, on GPUs.

    1. If a variance reads its tensor again after the mean, over columns that include the first axis, both become sums
       of x - c and of its square, where c is the mean of the first rows.
    2. If these rows are a share s of all, (mean - c)² is at most variance / s: cancellation in the variance costs at
       most log2(1 / s) of its 24 bits.
    3. Short columns, and rows, stay: they are in registers or in the cache.
    """

    name = "one_pass_moments"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if options.target.kind != "cuda":
            return False
        least = options.target.measured.moments_elements
        pairs = [
            (mean, node)
            for node in graph
            if node.op_type == "ReduceMean" and (mean := _mean_of(node, least)) is not None
        ]
        for mean, variance in pairs:
            if variance.graph is graph and mean.graph is graph:
                _rewrite(graph, options, mean, variance)
        return bool(pairs)


def _rewrite(graph: ir.Graph, options: CompileOptions, mean: ir.Node, variance: ir.Node) -> None:
    r = Rewriter(graph, mean, options)
    r.stands_for(variance)
    x = mean.inputs[0]
    assert x is not None
    shape, axes = desc_of(x).shape, list(attrs_of(mean)["axes"])
    keeps = bool(attrs_of(variance)["keepdims"])
    first = r.op("Slice", x, starts=[0] * len(shape), ends=[-(-shape[0] // _SHARE), *shape[1:]])
    near = r.op("ReduceMean", first, axes=axes, keepdims=True)
    centred = r.op("Sub", x, near)
    squares = r.op("ReduceMean", r.op("Square", centred), axes=axes, keepdims=True)
    level = r.op("ReduceMean", centred, axes=axes, keepdims=True)
    spread = r.op("Relu", r.op("Sub", squares, r.op("Square", level)))
    if not keeps:
        spread = r.op("Reshape", spread, shape=list(desc_of(variance.outputs[0]).shape))
    replace_node(graph, variance, [spread])
    replace_node(graph, mean, [r.op("Add", near, level)])
