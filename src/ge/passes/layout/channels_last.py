"""Storage format: convolutions and poolings work on channels-last data, with transposes to and from it."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.base import lookup
from ge.ops.nn.spatial import channels_first_perm, channels_last_perm
from ge.ops.traits import ImageFormat
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, replace_node

__all__ = ["ChannelsLast"]


class ChannelsLast(Pass):
    """Convert convolutions to channels-last data.

    1. Every channels-first Conv, QConv, ConvTranspose and ConvGradWeight of one to three spatial axes becomes a
       channels-last one between Transposes (what Ascend calls TransData); so does every pooling beside them.
    2. `sink_transposes` and `merge_movements` cancel the Transposes along chains; the remaining ones are where a tensor
       is visible to the user or an operator needs channels first.
    3. Graphs without convolutions do not change; inputs and outputs keep their format.
    """

    name = "channels_last"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if not any(f.leads for f in map(_format, graph) if f is not None):
            return False
        changed = False
        for node in graph:
            if _is_channels_first(node):
                replace_node(graph, node, [_converted(Rewriter(graph, node, options), node)])
                changed = True
        return changed


def _format(node: ir.Node) -> ImageFormat | None:
    return lookup(node.op_type).image_format


def _is_channels_first(node: ir.Node) -> bool:
    if _format(node) is None:
        return False
    rank = desc_of(node.outputs[0]).rank
    attrs = attrs_of(node)
    return attrs["data_format"] == "channels_first" and 3 <= rank <= 5 and not attrs.get("post_ops")


def _converted(r: Rewriter, node: ir.Node) -> ir.Value:
    rank = desc_of(node.outputs[0]).rank
    first = channels_first_perm(rank, "channels_last")
    last = channels_last_perm(rank, "channels_last")
    form = _format(node)
    assert form is not None
    images = form.images
    data = [r.op("Transpose", v, perm=last) for v in node.inputs[:images]]
    result = r.op_like(node, [*data, *node.inputs[images:]], data_format="channels_last")
    return r.op("Transpose", result, perm=first) if form.image_result else result
