"""Storage precision: float32 values that vector kernels hand to one another are kept in memory in the narrow type."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir import facts
from ge.ir.values import desc_of
from ge.ops.base import Engine, lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.lower_precision import MODES, mode_of

__all__ = ["StoreNarrow"]

_WIDE = "float32"


class StoreNarrow(Pass):
    """Store values narrow in the mixed precision modes.

    1. A float32 value made by a vector operator and read only by vector operators is stored in the mode's type; the
       kernels widen it when they read and round it when they write.
    2. A view is stored as what it views.
    3. Inputs and outputs of the graph, constants, and nodes exempt from the mode keep float32.
    """

    name = "store_narrow"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        mode = MODES.get(options.precision_mode)
        if mode is None or not mode.stores:
            return False
        for node in graph:
            if mode_of(node, options) is None:
                continue
            for value in node.outputs:
                if _storable(value):
                    facts.set_storage_dtype(value, mode.dtype)
        return False


def _storable(value: ir.Value) -> bool:
    node = value.producer()
    if node is None or value.is_graph_output() or desc_of(value).dtype != _WIDE:
        return False
    if not _is_vector(node) or not value.uses():
        return False
    if node.op_type in ("Reshape", "Identity") and not _is_narrow(node.inputs[0]):
        return False
    return all(_is_vector(n) for n in value.consumers())


def _is_narrow(value: ir.Value | None) -> bool:
    return value is not None and facts.storage_dtype(value) != _WIDE


def _is_vector(node: ir.Node) -> bool:
    return lookup(node.op_type).engine in (Engine.VECTOR, Engine.VIEW)
