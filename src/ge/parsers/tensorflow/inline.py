"""Inlines function calls, so that a graph can be partitioned anywhere."""

from __future__ import annotations

from collections.abc import Mapping

from ge.errors import GeError
from ge.parsers.tensorflow.graph import ARGUMENT, Body, GraphNode, Library, Ref
from ge.parsers.tensorflow.tensor import FunctionRef

__all__ = ["inlined", "with_branches"]

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES = ("If", "StatelessIf")
_MAX_NODES = 400_000


def inlined(body: Body, library: Library) -> Body:
    """The body without calls, and without control edges; its effects are those of the functions that were called.

    An inner node is named "call/node". Calls that stand for an operator of a user stay.
    """
    maker = _Inliner(library)
    maker.add(body, {}, "", ())
    return maker.body(body)


def with_branches(body: Body, library: Library, taken: Mapping[str, bool]) -> Body:
    """The body with the taken branch in place of each If that is named."""
    maker = _Inliner(library)
    for name, node in body.nodes.items():
        if name not in taken:
            maker.nodes[name] = node
            continue
        ref = node.attrs.get("then_branch" if taken[name] else "else_branch")
        branch = ref if isinstance(ref, Body) else library.body(ref, name)  # type: ignore[arg-type]
        results = maker.add(branch, _arguments(branch, node.inputs[1:]), f"{name}/", ())
        maker.nodes[name] = GraphNode(name, "IdentityN", results, [], {})
    return maker.body(body)


def _arguments(body: Body, inputs: list[Ref]) -> dict[Ref, Ref]:
    return dict(zip(body.args, inputs, strict=True))


class _Inliner:
    """Collects nodes under full names; `outputs` says what the results of a call are."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.nodes: dict[str, GraphNode] = {}
        self.outputs: dict[str, list[Ref]] = {}
        self.effects: list[str] = []

    def body(self, of: Body) -> Body:
        """What was collected, results of calls replaced by what they are."""
        for node in self.nodes.values():
            node.inputs = [self.resolved(ref) for ref in node.inputs]
        results = [self.resolved(ref) for ref in of.results]
        return Body(of.name, self.nodes, list(of.args), results, [*of.effects, *self.effects])

    def add(self, body: Body, arguments: Mapping[Ref, Ref], prefix: str, calls: tuple[str, ...]) -> list[Ref]:
        """Add a body's nodes; what its results are."""
        if body.name in calls or len(self.nodes) > _MAX_NODES:
            raise GeError("E10106", f"the function '{body.name}' calls itself, or the model has no end")

        def outer(ref: Ref) -> Ref:
            if ref in arguments:
                return arguments[ref]
            return f"{prefix}{ref[0]}", ref[1]

        for name, node in body.nodes.items():
            if node.op == ARGUMENT and prefix:
                continue
            full = f"{prefix}{name}"
            inputs = [outer(ref) for ref in node.inputs]
            called = self._called(node)
            if called is None:
                self.nodes[full] = GraphNode(full, node.op, inputs, [], node.attrs)
            else:
                inner = dict(zip(called.args, inputs, strict=True))
                self.outputs[full] = self.add(called, inner, f"{full}/", (*calls, body.name))
        self.effects += [f"{prefix}{name}" for name in body.effects if prefix]
        return [outer(ref) for ref in body.results]

    def _called(self, node: GraphNode) -> Body | None:
        ref = node.attrs.get("f") if node.op in _CALLS else None
        if node.op in self.library:
            ref = FunctionRef(node.op)
        if not isinstance(ref, FunctionRef) or self.library.implements(ref.name) is not None:
            return None
        return self.library.body(ref, node.name)

    def resolved(self, ref: Ref) -> Ref:
        """The node behind results of calls."""
        while ref[0] in self.outputs:
            ref = self.outputs[ref[0]][ref[1]]
        return ref
