"""The graph drawing of the report: layers, their placement and edges.

1. Nodes with the same scope, placement and part form one layer. Scopes are shortened until there are few enough layers;
   if that does not suffice, neighbours in graph order are merged.
2. Layers are ordered by their first nodes. An edge may point backwards, to a layer that began earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["DrawnNode", "draw", "of_graph", "of_plan"]

MOST = 90  # layers
_NAMED = 6
_STORED = ("Const", "Constant", "ReadVariableOp", "VarHandleOp", "VariableV2")


@dataclass(frozen=True)
class DrawnNode:
    """A node in graph order; inputs are node names, `part` is the number of the part that runs it."""

    name: str
    operator: str
    place: str
    inputs: tuple[str, ...]
    part: int = 0
    engine: str = ""
    location: str = ""


def draw(nodes: Iterable[DrawnNode]) -> dict[str, Any]:
    """Layers and edges between them, by their positions in the list.

    >>> made = draw([DrawnNode("a/x", "Mul", "NPU", ()), DrawnNode("a/y", "Add", "NPU", ("a/x",)),
    ...              DrawnNode("b/z", "FFT", "host", ("a/y",))])
    >>> [(layer["name"], layer["place"], layer["nodes"]) for layer in made["layers"]], made["edges"]
    ([('a', 'NPU', 2), ('b/z', 'host', 1)], [[0, 1]])
    """
    given = list(nodes)
    keys = _joined(given, _keys(given))
    order: dict[Hashable, int] = {}
    for key in keys:
        order.setdefault(key, len(order))
    at = {node.name: order[key] for node, key in zip(given, keys, strict=True)}
    members: list[list[DrawnNode]] = [[] for _ in order]
    edges: dict[tuple[int, int], None] = {}
    for node in given:
        members[at[node.name]].append(node)
        for name in node.inputs:
            if name in at and at[name] != at[node.name]:
                edges[at[name], at[node.name]] = None
    return {"layers": [_layer(group) for group in members], "edges": [list(edge) for edge in edges]}


def _layer(group: Sequence[DrawnNode]) -> dict[str, Any]:
    first, lines = group[-1], dict.fromkeys(node.location for node in group if node.location)
    scope = _scope(first.name, 99)
    name = scope if all(_scope(node.name, 99) == scope for node in group) else _common(group)
    return {
        "name": (name if len(group) > 1 else first.name) or first.name,
        "place": first.place,
        "engine": first.engine,
        "nodes": len(group),
        "operators": Counter(node.operator for node in group).most_common(_NAMED),
        "locations": list(lines)[:_NAMED],
    }


def _keys(nodes: Sequence[DrawnNode]) -> list[Hashable]:
    """The layer of each node."""
    deepest = max((node.name.count("/") for node in nodes), default=0)
    for depth in range(deepest, 0, -1):
        keys: list[Hashable] = [
            (_scope(node.name, depth), node.place, node.engine, node.part) for node in nodes
        ]
        if len(set(keys)) <= MOST:
            return keys
    runs: list[tuple[Hashable, ...]] = []  # neighbours on one place
    run = 0
    for before, node in zip([*nodes[:1], *nodes], nodes, strict=False):
        run += (before.place, before.engine) != (node.place, node.engine)
        runs.append((node.place, node.engine, run))
    size = -(-len(nodes) // MOST)
    return (
        [(*key, index // size) for index, key in enumerate(runs)] if len(set(runs)) < MOST // 2 else [*runs]
    )


def _joined(nodes: Sequence[DrawnNode], keys: Sequence[Hashable]) -> list[Hashable]:
    """Move variables and constants into the layer that reads them, if it is the only one and has the same placement."""
    readers: dict[str, set[int]] = {}
    for index, node in enumerate(nodes):
        for name in node.inputs:
            readers.setdefault(name, set()).add(index)
    found = list(keys)
    for index, node in enumerate(nodes):
        layers = {keys[reader] for reader in readers.get(node.name, ())}
        if node.operator in _STORED and len(layers) == 1:
            reader = nodes[min(readers[node.name])]
            if (reader.place, reader.engine) == (node.place, node.engine):
                found[index] = layers.pop()
    return found


def _scope(node: str, depth: int) -> str:
    """Layer of a node: its name without the last component, limited to a depth.

    >>> _scope("sequential_1/dense_1/MatMul", 9), _scope("a/b/c/d", 1), _scope("x", 9)
    ('sequential_1/dense_1', 'a', 'x')
    """
    return "/".join(node.split("/")[:-1][:depth]) or node


def _common(group: Sequence[DrawnNode]) -> str:
    parts = [node.name.split("/") for node in group]
    same = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        same.append(names[0])
    return "/".join(same)


def of_graph(graph: Any, engine_of: Mapping[str, str]) -> dict[str, Any]:
    """Draw an engine graph under the framework's names; `engine_of` maps nodes to engines."""
    from ge.ir.facts import origin

    made: dict[str, DrawnNode] = {}
    for node in graph:
        name = _name(node, origin)
        producers = [value.producer() for value in node.inputs if value is not None]
        inputs = tuple(_name(producer, origin) for producer in producers if producer is not None)
        before = made.get(name)
        engine = engine_of.get(node.name) or engine_of.get(name, "")
        made[name] = DrawnNode(
            name,
            node.op_type if before is None else before.operator,
            "NPU",
            inputs if before is None else (*before.inputs, *inputs),
            engine=engine or (before.engine if before else ""),
        )
    return draw(made.values())


def of_plan(plan: Any) -> dict[str, Any]:
    """Draw a compiled model: its tasks under the names of their original nodes."""
    from npu_tools.profile_data import operators_of

    names: list[str] = []
    for task in plan.tasks:
        name = task.name.partition(":")[2] or next(iter(task.origin), task.name)
        names.append(f"{name} ({len(names)})" if name in names else name)
    return draw(
        DrawnNode(
            name,
            operators_of(task.name, task.kind),
            "NPU",
            tuple(names[i] for i in feeds),
            engine=task.engine,
        )
        for name, task, feeds in zip(names, plan.tasks, plan.feeds(), strict=True)
    )


def _name(node: Any, origin: Callable[[Any], tuple[str, ...]]) -> str:
    return next(iter(origin(node)), node.name or "")
