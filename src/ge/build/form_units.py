"""Groups the nodes of a placed graph into units, one per task, in execution order; finds aliases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ge.build.aliases import Aliases, find_aliases, is_free, root_of
from ge.build.donate import Donation, writers_last
from ge.build.fusion import fuse, group_outputs
from ge.build.order import updates_early
from ge.build.units import Unit, in_order, unit_of
from ge.ops.base import Engine
from ge.options import CompileOptions

__all__ = ["UnitSequence", "form_units"]


@dataclass
class UnitSequence:
    """The units of a graph in order, and its aliases."""

    units: list[Unit]
    aliases: Aliases


def form_units(graph: ir.Graph, options: CompileOptions, donated: Sequence[Donation] = ()) -> UnitSequence:
    """Group a placed graph into units; a unit that overwrites a donated input comes after all its readers."""
    strided = "strided_views" not in options.disabled_passes
    aliases = find_aliases(graph, options.target, strided=strided)
    groups = fuse(graph, aliases, options.target, enabled="vector_fusion" not in options.disabled_passes)
    grouped = {node for group in groups for node in group}
    units = [unit_of(node, view=is_free(node, aliases)) for node in graph if node not in grouped]
    units += _vector_units(graph, groups, aliases)
    positions = {node: index for index, node in enumerate(graph)}
    after = writers_last(graph, units, aliases, donated)
    ordered = in_order(units, positions, after)
    if donated:
        ordered = updates_early(graph, ordered, aliases, after)
    return UnitSequence(ordered, aliases)


def _vector_units(graph: ir.Graph, groups: list[list[ir.Node]], aliases: Aliases) -> list[Unit]:
    readers: dict[ir.Value, list[ir.Node]] = {}
    for node in graph:
        for value in node.inputs:
            if value is not None and node not in aliases.forward:
                readers.setdefault(root_of(value, aliases), []).append(node)
    returned = {root_of(v, aliases) for v in graph.outputs}
    return [
        Unit(Engine.VECTOR, nodes, _inputs(nodes, aliases), group_outputs(nodes, readers, returned))
        for nodes in groups
    ]


def _inputs(nodes: list[ir.Node], aliases: Aliases) -> list[ir.Value]:
    made = {v for n in nodes for v in n.outputs}
    return [
        v
        for v in dict.fromkeys(v for n in nodes for v in n.inputs if v is not None)
        if root_of(v, aliases) not in made
    ]
