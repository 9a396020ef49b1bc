"""Storage format of computed weights on GPUs, whose tensor cores read the input channels of a tap contiguously."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.nn.spatial import weight_perm
from ge.passes.rewrite import RewritePass, Rewriter, Rule, attrs_of

__all__ = ["WeightsLast"]

_FORMAT = "OKI"


def _order(rank: int, weight_format: str) -> list[int]:
    """The permutation from a weight format to (O, kernel…, I)."""
    outputs, inputs, *kernel = weight_perm(rank, weight_format)
    return [outputs, *kernel, inputs]


def _is_open(r: Rewriter, node: ir.Node) -> bool:
    return r.options.target.kind == "cuda" and attrs_of(node)["weight_format"] != _FORMAT


def _read(r: Rewriter, node: ir.Node) -> ir.Value | None:
    data, weight, *rest = node.inputs
    assert weight is not None
    if not _is_open(r, node) or constant_of(weight) is not None:
        return None
    order = _order(desc_of(weight).rank, attrs_of(node)["weight_format"])
    moved = r.op("Transpose", weight, perm=order)
    return r.op_like(node, [data, moved, *rest], weight_format=_FORMAT)


def _written(r: Rewriter, node: ir.Node) -> ir.Value | None:
    if not _is_open(r, node):
        return None
    order = _order(desc_of(node.outputs[0]).rank, attrs_of(node)["weight_format"])
    gradient = r.op_like(node, node.inputs, weight_format=_FORMAT)
    return r.op("Transpose", gradient, perm=[int(p) for p in np.argsort(order)])


class WeightsLast(RewritePass):
    """Store the weights of GPU convolutions with the input channels last.

    1. Computed weights are transposed to (O, kernel…, I) before Conv and ConvTranspose, weight gradients from that
       order after ConvGradWeight.
    2. Constant weights stay: programs pack them at load time.
    """

    name = "weights_last"

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        if node.op_type == "ConvGradWeight":
            return (_written,)
        return (_read,) if node.op_type in ("Conv", "ConvTranspose") else ()
