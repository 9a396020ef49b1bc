"""Restores While and If nodes from version-1 control flow (Enter, Switch, Merge, NextIteration, Exit).

1. Loops, innermost first: the nodes of a frame become a While node; its Exit nodes read that node's results.
2. Branches, innermost first: Merge nodes that join the two sides of one predicate become the results of an If
   node.
3. Stacks, by which a loop hands values to the loop of its gradient, become lists.
4. What does not have that structure is left as it is; Switch and Merge nodes with a known predicate convert
   all the same, any other loop or branch is reported when something depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ge.errors import GeError
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import Context, Outputs, handler
from ge.parsers.tensorflow.graph import ARGUMENT, Body, GraphNode, Ref, topological
from ge.parsers.tensorflow.stacks import with_lists

__all__ = ["structured"]

_ENTER = ("Enter", "RefEnter")
_EXIT = ("Exit", "RefExit")
_MERGE = ("Merge", "RefMerge")
_SWITCH = ("Switch", "RefSwitch")
_NEXT = ("NextIteration", "RefNextIteration")
_UNSTRUCTURED = "_Unstructured"

Frame = tuple[str, ...]
Tags = frozenset[tuple[Ref, bool]]


@handler(_UNSTRUCTURED)
def _report(c: Context) -> Outputs:
    raise Unsupported(
        f"the loop '{c.attr('frame')}' {c.attr('reason')}",
        "export the model with control flow of version 2 (tf.function)",
    )


def structured(body: Body) -> Body:
    """The body with its version 1 loops and branches restored; nodes that lack inputs raise GeError."""
    try:
        return _structured(body)
    except (IndexError, KeyError) as error:
        raise GeError(
            "E10105", f"a control flow node is malformed ({error!r})", location=body.name
        ) from error


def _structured(body: Body) -> Body:
    kinds = {node.op for node in body.nodes.values()}
    if kinds.isdisjoint((*_ENTER, *_MERGE)):
        return with_lists(body)
    result = replace(body, nodes={name: _copy(node) for name, node in body.nodes.items()})
    if not kinds.isdisjoint(_ENTER):
        _Loops(result).restore()
    _Branches(result).restore()
    return with_lists(result)


def _copy(node: GraphNode, **changes: object) -> GraphNode:
    given: dict[str, Any] = {"inputs": list(node.inputs), "controls": list(node.controls), **changes}
    return replace(node, **given)


def _dependencies(nodes: Mapping[str, GraphNode], node: GraphNode) -> Iterable[str]:
    """What a node waits for, the back edges of loops left out."""
    for name, _ in node.inputs:
        if not (node.op in _MERGE and nodes[name].op in _NEXT):
            yield name
    yield from node.controls


def _arguments(count: int) -> tuple[dict[str, GraphNode], list[Ref]]:
    names = [f"argument.{i}" for i in range(count)]
    return {n: GraphNode(n, ARGUMENT, [], [], {"count": 1}) for n in names}, [(n, 0) for n in names]


def _fresh(nodes: Mapping[str, GraphNode], wanted: str) -> str:
    name, serial = wanted, 1
    while name in nodes:
        name, serial = f"{wanted}.{serial}", serial + 1
    return name


# -- loops ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """A loop variable: where it enters, is joined with the next step's value, is tested, and goes on."""

    enter: GraphNode
    merge: GraphNode
    next: GraphNode
    switches: tuple[GraphNode, ...]


class _Loops:
    """Restores the loops of a body in place."""

    def __init__(self, body: Body) -> None:
        self.nodes = body.nodes
        order = topological(self.nodes, list(self.nodes), lambda n: _dependencies(self.nodes, n))
        self.frames: dict[str, Frame] = {}
        for name in order:
            self.frames[name] = self._frame(self.nodes[name])

    def _frame(self, node: GraphNode) -> Frame:
        inner = max((self.frames[d] for d in _dependencies(self.nodes, node)), key=len, default=())
        if node.op in _ENTER:
            return (*inner, str(node.attrs.get("frame_name", "")))
        return inner[:-1] if node.op in _EXIT else inner

    def restore(self) -> None:
        for frame in sorted({f for f in self.frames.values() if f}, key=len, reverse=True):
            exits = [n for n in self.nodes.values() if n.op in _EXIT and self.frames[n.inputs[0][0]] == frame]
            members = {
                name: self.nodes[name] for name, f in self.frames.items() if f == frame and name in self.nodes
            }
            self._loop(frame, members, exits)

    def _loop(self, frame: Frame, members: dict[str, GraphNode], exits: list[GraphNode]) -> None:
        name = _fresh(self.nodes, frame[-1] or "while")
        try:
            made = self._while(name, members, exits)
        except Unsupported as error:
            made = GraphNode(name, _UNSTRUCTURED, [], [], {"frame": frame[-1], "reason": error.reason})
            for node in exits:
                node.inputs = [(name, 0)]
        for member in members:
            del self.nodes[member]
        for node in exits:
            node.op, node.controls = "Identity", []
        self.nodes[name] = made
        self.frames[name] = frame[:-1]
        for node in self.nodes.values():
            node.controls = [c for c in node.controls if c in self.nodes]

    def _while(self, name: str, members: dict[str, GraphNode], exits: list[GraphNode]) -> GraphNode:
        conditions = [n for n in members.values() if n.op == "LoopCond"]
        if len(conditions) != 1:
            raise Unsupported(f"has {len(conditions)} conditions")
        states = self._states(members, conditions[0])
        entered = {s.enter.name for s in states}
        fixed = [n for n in members.values() if n.op in _ENTER and n.name not in entered]
        arguments, args = _arguments(len(states) + len(fixed))
        renamed = self._renamed(states, fixed, args)
        removed = {n.name for s in states for n in (s.enter, s.merge, s.next, *s.switches)} | {
            n.name for n in fixed
        }
        inner = arguments | {n.name: _copy(n) for n in members.values() if n.name not in removed}
        for node in inner.values():
            node.inputs = [renamed.get(r, r) for r in node.inputs]
            node.controls = [c for c in node.controls if c in inner]
        self._check_closed(inner)
        cond = Body(f"{name}.cond", inner, args, [renamed.get(r, r) for r in conditions[0].inputs[:1]])
        results = [renamed.get(s.next.inputs[0], s.next.inputs[0]) for s in states] + args[len(states) :]
        body = Body(f"{name}.body", inner, args, results)
        self._connect_exits(name, exits, states)
        inputs = [s.enter.inputs[0] for s in states] + [n.inputs[0] for n in fixed]
        return GraphNode(name, "While", inputs, [], {"cond": structured(cond), "body": structured(body)})

    def _states(self, members: dict[str, GraphNode], condition: GraphNode) -> list[_State]:
        result = []
        for merge in members.values():
            sources = [members.get(name) for name, _ in merge.inputs]
            if merge.op not in _MERGE or not any(s is not None and s.op in _NEXT for s in sources):
                continue
            enter = next((s for s in sources if s is not None and s.op in _ENTER), None)
            following = next((s for s in sources if s is not None and s.op in _NEXT), None)
            if len(sources) != 2 or enter is None or following is None:
                raise Unsupported("joins more than an entry and a next step")
            switches = tuple(
                n
                for n in members.values()
                if n.op in _SWITCH and n.inputs[0] == (merge.name, 0) and n.inputs[1][0] == condition.name
            )
            result.append(_State(enter, merge, following, switches))
        return result

    @staticmethod
    def _renamed(states: Sequence[_State], fixed: Sequence[GraphNode], args: Sequence[Ref]) -> dict[Ref, Ref]:
        """What refers to a loop variable refers to the body's argument."""
        result: dict[Ref, Ref] = {}
        for state, arg in zip(states, args, strict=False):
            result[state.merge.name, 0] = arg
            result.update({(s.name, 1): arg for s in state.switches})
        result.update({(n.name, 0): arg for n, arg in zip(fixed, args[len(states) :], strict=True)})
        return result

    @staticmethod
    def _check_closed(inner: Mapping[str, GraphNode]) -> None:
        for node in inner.values():
            outside = next((n for n, _ in node.inputs if n not in inner), None)
            if outside is not None:
                raise Unsupported(f"reads '{outside}' in a way that is not a loop's")

    @staticmethod
    def _connect_exits(name: str, exits: Sequence[GraphNode], states: Sequence[_State]) -> None:
        position = {(s.name, 0): i for i, state in enumerate(states) for s in state.switches}
        for node in exits:
            if node.inputs[0] not in position:
                raise Unsupported(f"is left through '{node.name}' in a way that is not a loop's")
        for node in exits:
            node.inputs = [(name, position[node.inputs[0]])]


# -- branches ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Join:
    """A Merge of the two sides of a predicate; `sides` are its inputs for false and true."""

    merge: GraphNode
    predicate: Ref
    sides: tuple[Ref, Ref]
    tags: Tags  # the branches that the Merge itself is in


class _Branches:
    """Restores the branches of a body in place.

    A node's tags are the sides of predicates that it executes on: all those of its inputs. A Switch adds a
    side of its predicate, a Merge takes away a predicate whose two sides it joins.
    """

    def __init__(self, body: Body) -> None:
        self.nodes = body.nodes
        self.name = body.name
        self.order = topological(self.nodes, list(self.nodes), lambda n: _dependencies(self.nodes, n))
        self.tags: dict[str, Tags] = {}
        self.joins: list[_Join] = []
        for name in self.order:
            self.tags[name] = self._tags(self.nodes[name])

    def _predicate(self, switch: GraphNode) -> Ref:
        """A switch's predicate, looking through identities."""
        ref = switch.inputs[1]
        while self.nodes[ref[0]].op == "Identity":
            ref = self.nodes[ref[0]].inputs[0]
        return ref

    def _tags_of(self, ref: Ref) -> Tags:
        node = self.nodes[ref[0]]
        tags = self.tags[ref[0]]
        return tags | {(self._predicate(node), ref[1] == 1)} if node.op in _SWITCH else tags

    def _tags(self, node: GraphNode) -> Tags:
        if node.op in _MERGE:
            join = self._join(node)
            if join is not None:
                self.joins.append(join)
                return join.tags
        sources = [self._tags_of(r) for r in node.inputs] + [self.tags[c] for c in node.controls]
        return frozenset().union(*sources)

    def _join(self, merge: GraphNode) -> _Join | None:
        if len(merge.inputs) != 2:
            return None
        first, second = (self._tags_of(r) for r in merge.inputs)
        for predicate, side in first:
            if (predicate, not side) in second and (predicate, not side) not in first:
                sides = (merge.inputs[1], merge.inputs[0]) if side else (merge.inputs[0], merge.inputs[1])
                rest = (first | second) - {(predicate, True), (predicate, False)}
                return _Join(merge, predicate, sides, rest)
        return None

    def restore(self) -> None:
        for group in self._groups():
            self._if(group)

    def _groups(self) -> list[list[_Join]]:
        """Joins that can share an If, innermost branches first."""
        by_key: dict[tuple[Ref, Tags], list[_Join]] = defaultdict(list)
        for join in self.joins:
            by_key[join.predicate, join.tags].append(join)
        groups = [g for joins in by_key.values() for g in self._independent(joins)]
        return sorted(groups, key=lambda g: len(g[0].tags), reverse=True)

    def _independent(self, joins: list[_Join]) -> list[list[_Join]]:
        """Joins of one predicate, apart where one depends on another."""
        if len(joins) == 1:
            return [joins]
        merges = {j.merge.name: j for j in joins}
        level: dict[str, int] = {}
        groups: dict[int, list[_Join]] = defaultdict(list)
        for name in self.order:
            before = max((level[d] for d in _dependencies(self.nodes, self.nodes[name])), default=0)
            level[name] = before + (name in merges)
            if name in merges:
                groups[before].append(merges[name])
        return list(groups.values())

    def _if(self, group: list[_Join]) -> None:
        predicate, tags = group[0].predicate, group[0].tags
        outside: dict[Ref, Ref] = {}
        sides = [self._side(group, side, outside) for side in (False, True)]
        arguments, args = _arguments(len(outside))
        spelled = dict(zip(outside, args, strict=True))
        name = _fresh(self.nodes, f"{group[0].merge.name}.if")
        bodies = []
        for side, (nodes, results) in zip((False, True), sides, strict=True):
            inner = {n.name: _copy(n, inputs=[spelled.get(r, r) for r in n.inputs]) for n in nodes.values()}
            body = Body(
                f"{name}.{'then' if side else 'else'}",
                inner | arguments,
                args,
                [spelled.get(r, r) for r in results],
            )
            self._add_indices(group, side, body)
            bodies.append(body)
        attrs = {"then_branch": bodies[1], "else_branch": bodies[0]}
        self.nodes[name] = GraphNode(name, "If", [predicate, *outside], [], attrs)
        self.tags[name] = tags
        for position, join in enumerate(group):
            join.merge.op = "IdentityN"
            join.merge.inputs = [(name, position), (name, len(group) + position)]
            join.merge.controls = []

    @staticmethod
    def _add_indices(group: Sequence[_Join], side: bool, body: Body) -> None:
        """The position of the taken input, which is a Merge's second output."""
        for position, join in enumerate(group):
            index = join.merge.inputs.index(join.sides[side])
            const = GraphNode(
                f"index.{position}", "Const", [], [], {"value": np.asarray(index, np.int32), "dtype": "int32"}
            )
            body.nodes[const.name] = const
            body.results.append((const.name, 0))

    def _side(
        self, group: Sequence[_Join], side: bool, outside: dict[Ref, Ref]
    ) -> tuple[dict[str, GraphNode], list[Ref]]:
        """The nodes on one side of a predicate that the results need, and the results; all else is left."""
        predicate = group[0].predicate
        inner: dict[str, GraphNode] = {}
        todo: list[str] = []

        def resolve(ref: Ref) -> Ref:
            node = self.nodes[ref[0]]
            while node.op in _SWITCH and self._predicate(node) == predicate:
                ref = node.inputs[0]
                node = self.nodes[ref[0]]
            if (predicate, side) in self.tags[ref[0]]:
                todo.append(ref[0])
            else:
                outside[ref] = ref
            return ref

        results = [resolve(join.sides[side]) for join in group]
        while todo:
            name = todo.pop()
            if name in inner:
                continue
            node = self.nodes[name]
            kept = [
                c
                for c in node.controls
                if (predicate, side) in self.tags[c] and self.nodes[c].op not in _SWITCH
            ]
            inner[name] = _copy(node, inputs=[resolve(r) for r in node.inputs], controls=kept)
            todo += kept
        return inner, results
