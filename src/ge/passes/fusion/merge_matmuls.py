"""Merges matrix products of one input with several constant weights (query, key and value of attention)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.base import Pattern, lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, replace_node

__all__ = ["MergeMatmuls"]


class MergeMatmuls(Pass):
    """Multiply an input once by the concatenation of its weights.

    1. MatMuls of the same left operand by constant matrices, with constant or no biases and no post-ops, become one
       MatMul with their weights side by side, followed by a Split.
    2. So do PackedMatMuls whose weights have the same bits and groups.
    3. Only if every reader of the results accepts strided views (its `strided_inputs`) or is a view itself (its
       `views`), so that the Split is free.
    4. On GPUs, products of a few rows, which the memory of the weights limits, also if generated kernels read the
       results: they read slices of the wider one.
    5. Results that are outputs of the graph stay as they are.
    """

    name = "merge_matmuls"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        alike: dict[tuple[Any, ...], list[ir.Node]] = {}
        for node in graph:
            merge = _MERGES.get(node.op_type)
            key = merge.key(node) if merge and _has_open_readers(node, options) else None
            if key is not None:
                alike.setdefault((node.op_type, node.inputs[0], *key), []).append(node)
        changed = False
        for (kind, *_), nodes in alike.items():
            if len(nodes) > 1:
                _merge(graph, nodes, _MERGES[kind], options)
                changed = True
        return changed


def _has_open_readers(node: ir.Node, options: CompileOptions) -> bool:
    """True if all readers of a product take parts of a larger one."""
    result = node.outputs[0]
    readers = result.consumers()
    rows = desc_of(result).size // max(desc_of(result).shape[-1], 1)
    few = options.target.kind == "cuda" and 0 < rows <= options.target.measured.few_rows
    return not result.is_graph_output() and bool(readers) and all(_takes_views(n, few) for n in readers)


def _takes_views(node: ir.Node, few: bool) -> bool:
    operator = lookup(node.op_type)
    if few and operator.pattern in (Pattern.ELEMENTWISE, Pattern.BROADCAST):
        return True
    return bool(operator.strided_inputs) or (operator.views is not None and operator.views.looks_ahead)


@dataclass(frozen=True)
class _Merge:
    """How products of one kind are merged."""

    key: Callable[[ir.Node], tuple[Any, ...] | None]  # products with equal keys can be; None: not this one
    columns: int  # the axis of the right operands along which columns lie
    attrs: tuple[str, ...] = ()  # that the merged product has, too


def _plain_key(node: ir.Node) -> tuple[Any, ...] | None:
    attrs, (weight, *bias) = attrs_of(node), _constants(node)
    if attrs["transpose_a"] or attrs["transpose_b"] or attrs["post_ops"] or attrs["output_dtype"]:
        return None
    return () if weight is not None and weight.ndim == 2 and all(_is_known(node, bias)) else None


def _packed_key(node: ir.Node) -> tuple[Any, ...] | None:
    attrs, constants = attrs_of(node), _constants(node)
    if not all(_is_known(node, constants)):
        return None
    has_zeros = len(constants) > _ZEROS and constants[_ZEROS] is not None
    return *(attrs[name] for name in _PACKED_ATTRS), constants[0].dtype, has_zeros


_ZEROS = 2  # of a packed product, among the right operands
_PACKED_ATTRS = ("bits", "group", "signed")
_MERGES = {"MatMul": _Merge(_plain_key, 1), "PackedMatMul": _Merge(_packed_key, 0, _PACKED_ATTRS)}


def _constants(node: ir.Node) -> list[Any]:
    return [None if value is None else constant_of(value) for value in node.inputs[1:]]


def _is_known(node: ir.Node, constants: Sequence[Any]) -> list[bool]:
    """Of the last operands of a node: whether each is constant or absent."""
    values = node.inputs[len(node.inputs) - len(constants) :]
    return [value is None or array is not None for value, array in zip(values, constants, strict=True)]


def _merge(graph: ir.Graph, nodes: list[ir.Node], merge: _Merge, options: CompileOptions) -> None:
    """Replace products by slices of one product, placed where the first of them was."""
    r = Rewriter(graph, nodes[0], options)
    r.stands_for(*nodes)
    operands = [_constants(n) for n in nodes]
    sizes = [known[0].shape[merge.columns] for known in operands]
    right = [
        _joined([known[at] if at < len(known) else None for known in operands], sizes, merge)
        for at in range(max(map(len, operands)))
    ]
    attrs = {name: attrs_of(nodes[0])[name] for name in merge.attrs}
    product = r.op(nodes[0].op_type, nodes[0].inputs[0], *right, **attrs)
    pieces = r.op("Split", product, axis=desc_of(product).rank - 1, sizes=sizes)
    for node, piece in zip(nodes, pieces, strict=True):
        replace_node(graph, node, [piece])


def _joined(pieces: Sequence[np.ndarray | None], sizes: Sequence[int], merge: _Merge) -> np.ndarray | None:
    """The same operand of all products as one; a bias that a product lacks is zero."""
    given = [piece for piece in pieces if piece is not None]
    if not given:
        return None
    filled = [
        np.zeros(size, given[0].dtype) if piece is None else piece
        for piece, size in zip(pieces, sizes, strict=True)
    ]
    return np.concatenate(filled, merge.columns if given[0].ndim > 1 else 0)
