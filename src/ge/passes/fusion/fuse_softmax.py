"""Recognises softmax decomposed into simpler operators."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, only_use, producer

__all__ = ["FuseSoftmax"]


def _axes(node: ir.Node, rank: int) -> tuple[int, ...]:
    axes = attrs_of(node)["axes"]
    return tuple(range(rank)) if axes is None else tuple(sorted(a % rank for a in axes))


def _total(value: ir.Value | None, exponent: ir.Value) -> tuple[int, ...] | None:
    """The axes (kept) over which a value sums the exponentials."""
    node = producer(value, "ReduceSum")
    if node is None or node.inputs[0] is not exponent or not attrs_of(node)["keepdims"]:
        return None
    return _axes(node, desc_of(exponent).rank)


def _shifted(value: ir.Value, axes: tuple[int, ...]) -> ir.Value:
    """The value before its maximum was subtracted (softmax does that itself)."""
    node = producer(value, "Sub")
    if node is None:
        return value
    peak = producer(node.inputs[1], "ReduceMax")
    if peak is None or peak.inputs[0] is not node.inputs[0] or not attrs_of(peak)["keepdims"]:
        return value
    assert node.inputs[0] is not None
    return node.inputs[0] if _axes(peak, desc_of(value).rank) == axes else value


def _softmax(r: Rewriter, node: ir.Node) -> ir.Value | None:
    exponent, total = node.inputs
    if node.op_type == "Mul":
        inverse = producer(total, "Reciprocal")
        if inverse is None:
            return None
        total = inverse.inputs[0]
    inner = producer(exponent, "Exp")
    if inner is None or exponent is None or exponent.is_graph_output() or len(exponent.uses()) != 2:
        return None
    axes = _total(total, exponent)
    source = inner.inputs[0]
    if axes is None or source is None:
        return None
    r.stands_for(inner)
    return r.op("Softmax", _shifted(source, axes), axes=axes)


def _log_of_softmax(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Softmax")
    if inner is None or not only_use(inner.outputs[0]):
        return None
    r.stands_for(inner)
    return r.op("LogSoftmax", inner.inputs[0], axes=attrs_of(inner)["axes"])


def _log_softmax(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Match s - log(sum(exp(s))) for s = x - max(x)."""
    source, log = node.inputs[0], producer(node.inputs[1], "Log")
    total = None if log is None else producer(log.inputs[0], "ReduceSum")
    inner = None if total is None else producer(total.inputs[0], "Exp")
    if source is None or total is None or inner is None or inner.inputs[0] is not source:
        return None
    axes = _total(total.outputs[0], inner.outputs[0])
    if axes is None:
        return None
    r.stands_for(log, total, inner)
    return r.op("LogSoftmax", _shifted(source, axes), axes=axes)


class FuseSoftmax(RewritePass):
    """Recognise softmax.

    1. exp(x) / sum(exp(x)), with or without subtracting the maximum first, is Softmax over the summed axes; the
       exponentials must have no other reader.
    2. x - log(sum(exp(x))) is LogSoftmax; so is log(softmax(x)).
    3. A sum that drops its axes is not recognised.
    """

    name = "fuse_softmax"
    rules: ClassVar[Rules] = {
        "Div": (_softmax,),
        "Mul": (_softmax,),
        "Log": (_log_of_softmax,),
        "Sub": (_log_softmax,),
    }
