"""Storage precision: store intermediate float32 values in the narrow type between vector kernels."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir import facts
from ge.ir.values import desc_of
from ge.ops.base import Engine, is_custom, is_whole_view, lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.precision.lower_precision import MODES, feeding_products, mode_of

__all__ = ["StoreNarrow"]

_WIDE = "float32"
_NARROW = ("bfloat16", "float16")
SMALL_SHARE = 256  # of the elements of the largest value: below it there is next to nothing to save


class StoreNarrow(Pass):
    """Store values narrow in the mixed precision modes, and in all modes where nothing is lost.

    1. A float32 value computed by a vector operator and read only by vector operators is stored in the mode's type; the
       kernels widen it on load and round it on store.
    2. A value and its views are stored in the same type.
    3. Inputs and outputs of the graph, constants, and nodes exempt from the mode keep float32.
    4. So do values that are small beside the graph's largest (batch statistics: rounding them saves nothing), and
       values that no product depends on (gradients that feed a weight update).
    5. In every mode a float32 value that was widened from the 16-bit result of a vector operator, and that only vector
       operators read, is stored in the 16-bit type.
    """

    name = "store_narrow"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        for node in graph:
            narrow = _widened_from(node)
            family = _family(node.outputs[0]) if narrow else []
            if family and all(map(_storable, family)):
                for member in family:
                    facts.set_storage_dtype(member, narrow)
        mode = MODES.get(options.precision_mode)
        if mode is None or not mode.stores:
            return False
        feeding = feeding_products(graph)
        sizes = [desc_of(v).size for n in graph for v in n.outputs]
        small = max(sizes, default=0) // SMALL_SHARE
        for node in graph:
            if is_whole_view(node) or mode_of(node, options) is None:
                continue
            for value in node.outputs:
                family = _family(value)
                if desc_of(value).size <= small or not any(v in feeding for v in family):
                    continue
                if all(map(_storable, family)):
                    for member in family:
                        facts.set_storage_dtype(member, mode.dtype)
        return False


def _widened_from(node: ir.Node) -> str:
    """The 16-bit type that a Cast widens to float32, "" for other nodes."""
    if node.op_type != "Cast" or node.inputs[0] is None or desc_of(node.outputs[0]).dtype != _WIDE:
        return ""
    maker, source = node.inputs[0].producer(), desc_of(node.inputs[0]).dtype
    operator = None if maker is None else lookup(maker.op_type)
    is_vector = operator is not None and operator.engine is Engine.VECTOR and not operator.moves
    return source if is_vector and source in _NARROW else ""


def _family(value: ir.Value) -> list[ir.Value]:
    """A value and all its views, which share its memory."""
    found = [value]
    for member in found:
        found += [v for n in member.consumers() if is_whole_view(n) for v in n.outputs]
    return found


def _storable(value: ir.Value) -> bool:
    node = value.producer()
    if node is None or value.is_graph_output() or desc_of(value).dtype != _WIDE or not value.uses():
        return False
    return all(_is_vector(n) for n in (node, *value.consumers()))


def _is_vector(node: ir.Node) -> bool:
    operator = lookup(node.op_type)
    if is_custom(operator) and operator.aicpu:  # its engine is not chosen yet
        return False
    return operator.engine in (Engine.VECTOR, Engine.VIEW)
