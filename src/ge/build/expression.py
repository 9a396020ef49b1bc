"""The expression of a vector unit: the computations of its nodes composed into one tensor expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

import tbe
from ge.build.aliases import Aliases, root_of
from ge.build.views import part_of
from ge.ir import facts
from ge.ir.values import constant_of, desc_of
from ge.ops.base import NodeView, lookup

__all__ = ["Expression", "express"]


@dataclass(frozen=True)
class Expression:
    """The expression of one kernel: placeholders for values it loads, expressions for values it stores."""

    inputs: tuple[tbe.Tensor, ...]
    outputs: tuple[tbe.Tensor, ...]
    reads: tuple[ir.Value, ...]  # the values of the placeholders

    @property
    def tensors(self) -> tuple[list[tbe.Tensor], list[tbe.Tensor]]:
        return list(self.inputs), list(self.outputs)


def express(
    nodes: Sequence[ir.Node], outputs: Sequence[ir.Value], aliases: Aliases | None = None
) -> Expression:
    """Compose the nodes (in topological order). Constants of one element become immediates in the code.

    Views between the nodes, and non-contiguous views, are computed from their sources. A value stored at a lower
    precision than it is computed in (facts.storage_dtype) is widened on load and rounded on store.
    """
    aliases = aliases or Aliases()
    made = {v for n in nodes for v in n.outputs}
    inside: dict[ir.Value, tbe.Tensor] = {}
    places: dict[ir.Value, tbe.Tensor] = {}

    def read(value: ir.Value | None) -> tbe.Tensor | None:
        if value is None:
            return None
        if value not in inside:
            inside[value] = find(value)
        return inside[value]

    def find(value: ir.Value) -> tbe.Tensor:
        number = _number(value)
        if number is not None:
            return number
        view = value.producer()
        if view in aliases.forward and (_views(value, made, aliases) or value in aliases.scattered):
            results = lookup(view.op_type).apply(NodeView.of(view), [read(v) for v in view.inputs])
            inside.update(zip(view.outputs, results, strict=True))
            return inside[value]
        if value in aliases.backward and value in aliases.scattered:
            by, index = aliases.backward[value]
            whole = read(by.outputs[0])
            assert whole is not None
            return part_of(by, index, whole)
        return _placeholder(value, places)

    for node in nodes:
        results = lookup(node.op_type).apply(NodeView.of(node), [read(v) for v in node.inputs])
        inside.update(zip(node.outputs, results, strict=True))
    results = tuple(tbe.cast(inside[v], facts.storage_dtype(v)) for v in outputs)
    return Expression(tuple(places.values()), results, tuple(places))


def _views(value: ir.Value, made: set[ir.Value], aliases: Aliases) -> bool:
    """True if a value is a view of one of the values computed here."""
    return root_of(value, aliases) in made


def _number(value: ir.Value) -> tbe.Tensor | None:
    array = constant_of(value)
    if array is None or array.size != 1:
        return None
    desc = desc_of(value)
    number = tbe.constant(array.reshape(()).item(), desc.dtype)
    return tbe.reshape(number, desc.shape) if desc.shape else number


def _placeholder(value: ir.Value, places: dict[ir.Value, tbe.Tensor]) -> tbe.Tensor:
    desc = desc_of(value)
    place = tbe.placeholder(desc.shape, facts.storage_dtype(value), name=f"x{len(places)}")
    places[value] = place
    return tbe.cast(place, desc.dtype)
