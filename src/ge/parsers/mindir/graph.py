"""The functions of a MINDIR file as plain records: arguments, nodes in execution order, a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ge.ops.plugins import Unsupported
from ge.parsers.mindir.protos import malformed
from ge.parsers.mindir.values import Binding, Form, Monad, attribute_value, form_of

__all__ = ["Body", "Library", "MsGraphNode"]

_REF = "REF::"


@dataclass
class MsGraphNode:
    """A node: a primitive with attributes, or a call of a function (the name of a graph or of a value)."""

    output: str
    operator: str
    function: str
    inputs: tuple[str, ...]
    label: str
    declared: Any  # the attribute that declares the result
    stated: tuple[Any, ...]  # attribute messages of the node or its primitive
    _attributes: dict[str, Any] | None = field(default=None, repr=False)

    def attributes(self) -> dict[str, Any]:
        """The attributes of the primitive that can be read; those of unknown kinds are left out."""
        if self._attributes is None:
            found = {}
            for item in self.stated:
                try:
                    found[item.name] = attribute_value(item)
                except Unsupported:
                    continue
            self._attributes = found
        return self._attributes

    def form(self) -> Form:
        """The form of the result as MindSpore inferred it."""
        return None if self.declared is None else form_of(self.declared)


@dataclass(frozen=True)
class Body:
    """A function."""

    name: str
    arguments: tuple[str, ...]
    nodes: tuple[MsGraphNode, ...]
    result: str


class Library:
    """All functions of a model and the constants that they share."""

    def __init__(self, model: Any, source: str = "", folder: Path | None = None) -> None:
        self.source = source
        self.folder = folder
        self.messages = {graph.name: graph for graph in (model.graph, *model.functions)}
        self.primitives = {p.name: p for p in model.primitives}
        self._bodies: dict[str, Body] = {}
        self._constants: dict[str, Any] = {}
        self._values: dict[str, Binding] = {}
        self._loops: dict[str, bool] = {}
        for graph in self.messages.values():
            for node in graph.node:
                if node.op_type == "Constant" and len(node.output) and len(node.attribute):
                    self._constants[node.output[0]] = node.attribute[0]

    def __contains__(self, name: str) -> bool:
        return name in self.messages

    def value(self, name: str) -> Binding:
        """A constant that all functions share."""
        if name not in self._values:
            if name not in self._constants:
                if not name:
                    return Monad(0)
                raise malformed(self.source, f"there is no value '{name}'")
            self._values[name] = attribute_value(self._constants[name], self.source)
        return self._values[name]

    def body(self, name: str) -> Body:
        """A function by its name."""
        if name not in self._bodies:
            graph = self.messages[name]
            if not len(graph.output):
                raise malformed(self.source, f"graph {name} has no output")
            arguments = (*(i.name for i in graph.input), *(p.name for p in graph.parameter))
            nodes = tuple(self._node(n) for n in graph.node if n.op_type != "Constant")
            self._bodies[name] = Body(name, arguments, nodes, graph.output[0].name)
        return self._bodies[name]

    def _node(self, node: Any) -> MsGraphNode:
        if not len(node.output):
            raise malformed(self.source, f"node {node.name} has no output")
        declared = next((a for a in node.attribute if a.name == "shape"), None)
        own = tuple(a for a in node.attribute if a.name != "shape")
        referred = node.op_type.removeprefix(_REF) if node.op_type.startswith(_REF) else ""
        operator, function, stated = node.op_type, "", own
        if referred in self.primitives:
            found = self.primitives[referred]
            operator, stated = found.op_type, (*found.attribute, *own)
        elif referred:
            operator, function = "", referred
        label = node.domain or node.name
        return MsGraphNode(
            node.output[0], operator, function, tuple(node.input), label, declared, tuple(stated)
        )

    # -- loops -----------------------------------------------------------------------------------------------

    def is_loop(self, name: str) -> bool:
        """Whether a function is the header of a loop: it ends in a choice, and one choice calls it again."""
        if name not in self._loops:
            self._loops[name] = False
            try:
                _, _, step = self.loop_parts(name)
            except Unsupported:
                return False
            self._loops[name] = self._leads_to(step, name)
        return self._loops[name]

    def loop_parts(self, name: str) -> tuple[tuple[MsGraphNode, ...], MsGraphNode, str]:
        """The nodes of a header before its last call, that call, and the function of a step."""
        body = self.body(name)
        last = next((n for n in body.nodes if n.output == body.result), None)
        if last is None or not last.function:
            raise Unsupported(f"{name} is not a loop")
        makers = {n.output: n for n in body.nodes}
        switch = makers.get(last.function)
        if switch is None or switch.operator != "Switch" or len(switch.inputs) != 3:
            raise Unsupported(f"{name} is not a loop")
        then = makers.get(switch.inputs[1])
        step = then.inputs[0] if then is not None and then.operator == "Partial" else switch.inputs[1]
        return tuple(n for n in body.nodes if n is not last), last, step

    def _leads_to(self, start: str, goal: str) -> bool:
        """Whether a function may call another, itself or by those it calls."""
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            name = ahead.pop()
            if name in seen or name not in self.messages:
                continue
            seen.add(name)
            for node in self.body(name).nodes:
                named = (*node.inputs, node.function)
                if goal in named:
                    return True
                ahead += [n for n in named if n in self.messages]
        return False
