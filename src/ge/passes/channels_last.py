"""Storage format: convolutions and poolings work on channels-last data, transposes bring it there and back."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.spatial import channels_first_perm, channels_last_perm
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, replace_node

__all__ = ["ChannelsLast"]

_WITH_CHANNELS = frozenset({"Conv", "ConvTranspose", "QConv", "ConvGradWeight"})
_FOLLOWING = frozenset({"MaxPool", "AvgPool", "Lrn", "MaxPoolGrad"})
_DATA_INPUTS = {"ConvGradWeight": 2, "MaxPoolGrad": 2}  # how many inputs are images; 1 for all others
_OTHER_RESULTS = frozenset({"ConvGradWeight"})  # whose result is no image


class ChannelsLast(Pass):
    """Give convolutions channels-last data.

    1. Every channels-first Conv, QConv, ConvTranspose and ConvGradWeight of one to three spatial axes becomes a
       channels-last one between Transposes (what Ascend calls TransData); so does every pooling beside them.
    2. The Transposes are left to `sink_transposes` and `merge_movements`, which cancel them along chains; what remains
       stands where a tensor is visible to the user or an operator needs channels first.
    3. Graphs without convolutions are left alone; inputs and outputs keep their format.
    """

    name = "channels_last"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if not any(node.op_type in _WITH_CHANNELS for node in graph):
            return False
        changed = False
        for node in graph:
            if _is_channels_first(node):
                replace_node(graph, node, [_converted(Rewriter(graph, node, options), node)])
                changed = True
        return changed


def _is_channels_first(node: ir.Node) -> bool:
    if node.op_type not in _WITH_CHANNELS and node.op_type not in _FOLLOWING:
        return False
    rank = desc_of(node.outputs[0]).rank
    attrs = attrs_of(node)
    return attrs["data_format"] == "channels_first" and 3 <= rank <= 5 and not attrs.get("post_ops")


def _converted(r: Rewriter, node: ir.Node) -> ir.Value:
    rank = desc_of(node.outputs[0]).rank
    first = channels_first_perm(rank, "channels_last")
    last = channels_last_perm(rank, "channels_last")
    images = _DATA_INPUTS.get(node.op_type, 1)
    data = [r.op("Transpose", v, perm=last) for v in node.inputs[:images]]
    result = r.op_like(node, [*data, *node.inputs[images:]], data_format="channels_last")
    return result if node.op_type in _OTHER_RESULTS else r.op("Transpose", result, perm=first)
