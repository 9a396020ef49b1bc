"""Fuses channel gates (a factor per channel) into the 1x1 convolution that reads the gated image."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from ge.engines import placement_of
from ge.engines.aicore import has_implementation
from ge.ir.values import desc_of
from ge.ops.base import Engine
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, only_use, producer
from ge.target import Target

__all__ = ["FuseGates"]


def _gate(r: Rewriter, node: ir.Node) -> ir.Value | None:
    product = producer(node.inputs[0], "Mul")
    if product is None or not only_use(product.outputs[0]) or not _is_open(node, r.options.target):
        return None
    batch, height, width, channels = desc_of(product.outputs[0]).shape
    if height * width == 1:
        return None
    for data, gate in (product.inputs, reversed(product.inputs)):
        assert data is not None and gate is not None
        whole = desc_of(data).shape == (batch, height, width, channels)
        if whole and desc_of(gate).shape == (batch, 1, 1, channels):
            bias = node.inputs[2] if len(node.inputs) > 2 else None
            values = [data, node.inputs[1], bias, gate, *node.inputs[3:]]
            attrs = {**attrs_of(node), "gated": True}
            if not has_implementation(r.options.target, "Conv", values, attrs, [desc_of(node.outputs[0])]):
                return None
            r.stands_for(product)
            return r.op_like(node, values, gated=True)
    return None


def _is_open(node: ir.Node, target: Target) -> bool:
    """True for a plain 1x1 convolution of channels-last images on the AI Core."""
    attrs = attrs_of(node)
    x, w = desc_of(node.inputs[0]), desc_of(node.inputs[1])  # type: ignore[arg-type]
    kernel = w.shape[2:] if attrs["weight_format"] == "OI" else w.shape[:-2]
    moves = [
        *(attrs["pads_begin"] or ()),
        *(attrs["pads_end"] or ()),
        *(s - 1 for s in attrs["strides"] or ()),
    ]
    return (
        x.rank == 4
        and attrs["data_format"] == "channels_last"
        and not attrs["gated"]
        and attrs["groups"] == 1
        and set(kernel) == {1}
        and not any(moves)
        and placement_of(node, target)[0] is Engine.AI_CORE
    )


class FuseGates(RewritePass):
    """Fuse gates into convolutions.

    1. The product of an image and one factor per channel (the end of a squeeze-and-excitation block), read by one 1x1
       convolution of stride 1 without padding, becomes the convolution's gate, if the target has an implementation with
       gates.
    """

    name = "fuse_gates"
    rules: ClassVar[Rules] = {"Conv": (_gate,)}
