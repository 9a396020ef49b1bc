"""Tabulation: replaces elementwise functions of one 8-bit value by table lookups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir.types import numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Pattern, is_custom, lookup
from ge.ops.builder import GraphBuilder
from ge.ops.traits import Cost
from ge.passes.fusion.fuse_quantised import EIGHT_BIT
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of

__all__ = ["Tabulate"]

_MOST = 64  # operators of a function: bounds the search


def _table(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Match Quantize(f(Dequantize(x))) where f may read x any number of times."""
    out, costs = desc_of(node.outputs[0]), r.options.target.measured
    if out.dtype not in EIGHT_BIT or out.size < costs.lookup_elements:
        return None
    found = _function(node)
    if found is None:
        return None
    root, nodes = found
    slow = any(lookup(n.op_type).cost >= Cost.SLOW for n in nodes)
    if (not slow and len(nodes) < costs.lookup_operators) or all(lookup(n.op_type).quantises for n in nodes):
        return None
    table = _tabulated(root, nodes, node)
    if table is None:
        return None
    r.stands_for(*nodes)
    result: ir.Value = r.op("ByteTable", root, r.constant(table))
    return result


def _function(node: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    """The one 8-bit value that a node depends on, and the nodes between them in topological order."""
    nodes: dict[ir.Node, None] = {}
    leaves = _expand(node, nodes)
    while leaves is not None and len(leaves) > 1:  # one of them may depend on another
        leaf = next((v for v in leaves if _is_step(v.producer())), None)
        more = None if leaf is None else _expand(leaf.producer(), nodes)
        leaves = None if more is None else {v: None for v in (*leaves, *more) if v is not leaf}
    if not leaves:
        return None
    (root,) = leaves
    return root, _in_order(node, root)


def _expand(node: ir.Node | None, nodes: dict[ir.Node, None]) -> dict[ir.Value, None] | None:
    """The 8-bit values that a node is computed from; None if it depends on anything else."""
    if node is None or not _is_step(node):
        return None
    leaves: dict[ir.Value, None] = {}
    waiting = [node]
    while waiting:
        at = waiting.pop()
        if at in nodes:
            continue
        nodes[at] = None
        for value in _variables(at):
            source = value.producer()
            if desc_of(value).dtype in EIGHT_BIT:
                leaves[value] = None
            elif source is not None and _is_step(source) and len(nodes) < _MOST:
                waiting.append(source)
            else:
                return None
    return leaves


def _is_step(node: ir.Node | None) -> bool:
    """True if a node computes each element from the elements at the same position and from scalars."""
    if node is None or node.domain != "ge" or len(node.outputs) != 1:
        return False
    operator = lookup(node.op_type)
    plain = operator.pattern in (Pattern.ELEMENTWISE, Pattern.BROADCAST) or operator.quantises
    if not plain or is_custom(operator) or not operator.foldable or "shape" in attrs_of(node):
        return False
    out = desc_of(node.outputs[0]).shape
    numbers = [desc_of(v) for v in node.inputs if v is not None and constant_of(v) is not None]
    known = node.op_type == "ByteTable" or all(n.size == 1 for n in numbers)
    return known and all(desc_of(v).shape == out for v in _variables(node))


def _variables(node: ir.Node) -> Iterator[ir.Value]:
    return (v for v in node.inputs if v is not None and constant_of(v) is None)


def _in_order(node: ir.Node, root: ir.Value) -> list[ir.Node]:
    """The nodes between a value and a node that depends on no other value."""
    found: dict[ir.Node, None] = {}

    def visit(at: ir.Node) -> None:
        for value in _variables(at):
            source = value.producer()
            if value is not root and source is not None and source not in found:
                visit(source)
        found[at] = None

    visit(node)
    return list(found)


def _tabulated(root: ir.Value, nodes: list[ir.Node], last: ir.Node) -> np.ndarray | None:
    """The results for all byte values, ordered by their bits."""
    builder = GraphBuilder(graph=ir.Graph([], [], nodes=[], name="table", opset_imports={"ge": 1}))
    builder.folds_all = True
    bytes_ = np.arange(256, dtype=np.uint8).view(numpy_dtype(desc_of(root).dtype))
    made: dict[ir.Value, ir.Value] = {root: builder.constant(bytes_)}
    for node in nodes:
        inputs = [
            None if v is None else made[v] if v in made else builder.constant(_number(v)) for v in node.inputs
        ]
        given = {name: attr.value for name, attr in node.attributes.items()}
        made[node.outputs[0]] = builder.ops(node.op_type, inputs, **given)[0]
    table = constant_of(made[last.outputs[0]])
    return None if table is None or table.shape != (256,) else table


def _number(value: ir.Value) -> np.ndarray:
    """A constant; scalars lose their axes, which would broadcast against the axis of the table."""
    array = constant_of(value)
    assert array is not None, "the rest of a function of bytes is constant"
    return array.reshape(()) if array.size == 1 else array


class Tabulate(RewritePass):
    """Replace functions of bytes by table lookups.

    1. An 8-bit Quantize whose operand is an elementwise function of one other 8-bit value and of scalars only is a
       ByteTable of that value.
    2. Functions of few simple operators stay, as do small tensors.
    3. Intermediate values with other readers are still computed.
    """

    name = "tabulate"
    rules: ClassVar[Rules] = {"Quantize": (_table,)}
