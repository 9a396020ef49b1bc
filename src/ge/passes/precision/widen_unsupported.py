"""Runs 16-bit products in float32 on targets without 16-bit primitives."""

from __future__ import annotations

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.base import lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, replace_node

__all__ = ["WidenUnsupported"]

_WIDE = "float32"


class WidenUnsupported(Pass):
    """Run products in float32 if the machine's primitives lack their 16-bit type.

    1. Only operators whose precision declares `widens` (convolution, matrix product, recurrent layers) change.
    2. Operands are widened and results rounded once, as a primitive that accumulates in float32 does.
    3. A type that the primitives support stays, except for nodes whose bfloat16 primitive lets NaN and infinities
       spread (`Precision.spreads`).
    """

    name = "widen_unsupported"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        lacking = {"float16", "bfloat16"} - options.target.narrow_floats
        spreading = {"bfloat16"} if options.target.library and options.target.kind == "cpu" else set[str]()
        changed = False
        for node in graph if lacking | spreading else ():
            precision = lookup(node.op_type).precision
            narrow = lacking | spreading if precision.widens and precision.spreads(node) else lacking
            if precision.widens and any(_dtype(v) in narrow for v in node.inputs):
                _widen(graph, node, narrow, options)
                changed = True
        return changed


def _dtype(value: ir.Value | None) -> str:
    return "" if value is None else desc_of(value).dtype


def _widen(graph: ir.Graph, node: ir.Node, lacking: set[str], options: CompileOptions) -> None:
    r = Rewriter(graph, node, options)
    inputs = [r.op("Cast", v, to=_WIDE) if _dtype(v) in lacking else v for v in node.inputs]
    changes = {"output_dtype": None} if "output_dtype" in node.attributes else {}
    results = r.op_like(node, inputs, **changes)
    made = list(results) if isinstance(results, tuple) else [results]
    final = [
        v if desc_of(v) == desc_of(old) else r.op("Cast", v, to=desc_of(old).dtype)
        for v, old in zip(made, node.outputs, strict=True)
    ]
    replace_node(graph, node, final)
