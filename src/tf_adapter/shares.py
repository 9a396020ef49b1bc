"""Shards updates that all NPUs of a stage would compute alike: each NPU computes its share for all.

The steps of a stage are compared node by node. Where they update variables in the same way from the same tensors (the
sum of all gradients, say), and the variables of the NPUs have the same value, one NPU does the work and all of them
have its result: their variables then share memory. Whether values are the same is known when the step runs; where they
are not, every NPU runs its step as it was.

1. Effects are compared: same operators, attributes and tensors; only the variables may differ. Where several fit, the
   first is taken.
2. Effects on the same variables belong to one group, which one NPU runs. What reads a variable of a group and is not
   part of it keeps the whole group with every NPU, as do variables of less than `LEAST_BYTES`.
3. Groups are assigned by size, the largest first, to the NPU with the least.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import tensorflow as tf

from ge.hybrid import Groups
from ge.parsers.tensorflow.convert import EFFECTS
from tf_adapter.graphs import ARGUMENT, FlatGraph, FlatNode, Ref, is_stateful
from tf_adapter.partition import READS, Source, Step

__all__ = ["LEAST_BYTES", "Mirrored", "Share", "divide"]

LEAST_BYTES = 4096  # of a variable whose update is divided; below, one more kernel costs more than it saves
_WORTH_BYTES = 256 << 10  # of all updates that are divided
_RESOURCE = tf.resource.as_datatype_enum


class Mirrored(NamedTuple):
    """An argument of the whole function, and those that must have its value on the other NPUs."""

    own: int
    others: tuple[int, ...]
    written: bool  # then they share its memory


@dataclass(frozen=True)
class Share:
    """What an NPU runs in place of its step where the mirrored variables have the same values."""

    graph: FlatGraph
    sources: tuple[Source, ...]
    mirrored: tuple[Mirrored, ...]


def divide(steps: Sequence[Step], sizes: Mapping[int, int]) -> list[Share] | None:
    """The shares of a stage's steps, one an NPU; None where dividing is not worth it.

    `sizes` are the bytes of the variables among the whole function's arguments.
    """
    replicas = [_Replica(step) for step in steps]
    pairs = _compare(replicas)
    groups = _groups(replicas, pairs, sizes)
    total = {root: sum(sizes.get(v, 0) for v in group.written) for root, group in groups.items()}
    if len(groups) < 2 or sum(total.values()) < _WORTH_BYTES:
        return None
    load = [0] * len(steps)
    owners: dict[str, int] = {}
    for root in sorted(groups, key=lambda r: -total[r]):
        owners[root] = load.index(min(load))
        load[owners[root]] += total[root]
    return [_share(k, replicas, pairs, groups, owners) for k in range(len(steps))]


class _Replica:
    """A step, and what its effects and results read."""

    def __init__(self, step: Step) -> None:
        self.graph = _without_identities(step.graph)
        self.source = dict(zip(step.graph.args, step.sources, strict=True))
        self.place = {name: i for i, name in enumerate(self.graph.order())}
        self.effects = sorted(step.graph.effects, key=self.place.__getitem__)
        self.variables = {
            arg: source[1]
            for arg, source in self.source.items()
            if self.graph.nodes[arg].types[0] == _RESOURCE and source[0] == "input"
        }

    def closure(self, names: Iterable[str]) -> set[str]:
        """Nodes that others read, themselves included."""
        todo = list(names)
        seen = set(todo)
        while todo:
            for name, _ in self.graph.nodes[todo.pop()].inputs:
                if name not in seen:
                    seen.add(name)
                    todo.append(name)
        return seen

    def touched(self, nodes: Iterable[str]) -> set[int]:
        """The variables that nodes have, as arguments of the whole function."""
        return {self.variables[n] for n in nodes if n in self.variables}


def _without_identities(graph: FlatGraph) -> FlatGraph:
    """The same graph; nodes read what is behind identities."""

    def behind(ref: Ref) -> Ref:
        while graph.nodes[ref[0]].op in ("Identity", "IdentityN"):
            ref = graph.nodes[ref[0]].inputs[ref[1]]
        return ref

    nodes = {name: replace(n, inputs=[behind(ref) for ref in n.inputs]) for name, n in graph.nodes.items()}
    return replace(graph, nodes=nodes)


# -- rule 1 ----------------------------------------------------------------------------------------------------


def _compare(replicas: Sequence[_Replica]) -> dict[str, tuple[str, ...]]:
    """The nodes of the first step that compute what nodes of all others compute, with these."""
    found: dict[str, tuple[str, ...]] = {name: (name,) for name in replicas[0].graph.nodes}
    for replica in replicas[1:]:
        alike = _counterparts(replicas[0], replica)
        found = {name: (*names, alike[name]) for name, names in found.items() if name in alike}
    return found


def _counterparts(first: _Replica, other: _Replica) -> dict[str, str]:
    """The nodes of a step that effects need, with those of another step that compute the same."""
    found: dict[str, str] = {}
    taken: dict[str, str] = {}  # the other way round
    left = list(other.effects)
    for effect in first.effects:
        for candidate in left:
            fresh = _same(first, other, (effect, candidate), found, taken)
            if fresh:
                found |= fresh
                taken |= {b: a for a, b in fresh.items()}
                left.remove(candidate)
                break
    return found


def _same(
    first: _Replica,
    other: _Replica,
    effects: tuple[str, str],
    found: Mapping[str, str],
    taken: Mapping[str, str],
) -> dict[str, str]:
    """The nodes behind an effect with their counterparts; nothing where one differs."""
    fresh: dict[str, str] = {}
    back: dict[str, str] = {}
    todo = [effects]
    while todo:
        a, b = todo.pop()
        known, whose = found.get(a, fresh.get(a)), taken.get(b, back.get(b))
        if (known, whose) == (b, a):
            continue
        if known is not None or whose is not None or not _alike(first, a, other, b):
            return {}
        fresh[a], back[b] = b, a
        inputs = zip(first.graph.nodes[a].inputs, other.graph.nodes[b].inputs, strict=True)
        todo.extend((one, two) for (one, _), (two, _) in inputs)
    return fresh


def _alike(first: _Replica, a: str, other: _Replica, b: str) -> bool:
    """Whether two nodes compute the same of equal inputs."""
    one, two = first.graph.nodes[a], other.graph.nodes[b]
    if one.op != two.op or one.types != two.types or (_has_state(one) and one.op not in READS | EFFECTS):
        return False
    if one.op == ARGUMENT:
        return (a in first.variables and b in other.variables) or first.source[a] == other.source[b]
    outputs = [[i for _, i in node.inputs] for node in (one, two)]
    return outputs[0] == outputs[1] and _attributes(one) == _attributes(two)


def _attributes(node: FlatNode) -> dict[str, bytes]:
    return {k: v.SerializeToString(deterministic=True) for k, v in node.attr.items() if not k.startswith("_")}


# -- rule 2 ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    effects: tuple[str, ...]  # of the first step
    written: frozenset[int]  # variables of the first step


def _groups(
    replicas: Sequence[_Replica], pairs: Mapping[str, tuple[str, ...]], sizes: Mapping[int, int]
) -> dict[str, _Group]:
    """The groups of effects that can be divided, by one of their effects."""
    first = replicas[0]
    written = {e: first.touched(n for n, _ in first.graph.nodes[e].inputs) for e in first.effects}
    able = [
        e for e in first.effects if e in pairs and all(sizes.get(v, 0) >= LEAST_BYTES for v in written[e])
    ]
    divided = {v for e in able for v in written[e]}
    groups = Groups[str]()
    holder: dict[int, str] = {}
    for effect in able:
        for variable in first.touched(first.closure([effect])) & divided:
            groups.join(holder.setdefault(variable, effect), effect)
    kept = {groups.find(holder[v]) for v in divided & _bound_to_all(replicas, pairs, able, divided)}
    return {
        root: _Group(effects, frozenset(v for e in effects for v in written[e]))
        for root, effects in groups.members(able).items()
        if root not in kept
    }


def _bound_to_all(
    replicas: Sequence[_Replica], pairs: Mapping[str, tuple[str, ...]], able: Iterable[str], divided: set[int]
) -> set[int]:
    """The variables of the first step that something but the effects that are divided reads, on any NPU."""
    first = replicas[0]
    meant: dict[int, set[int]] = defaultdict(set)  # whose counterpart a variable is
    found: set[int] = set()
    for name, names in pairs.items():
        if name in first.variables:
            places = [r.variables[n] for r, n in zip(replicas, names, strict=True)]
            for place in places:
                meant[place].add(first.variables[name])
            if len(set(places)) < len(places):  # all NPUs have the same one
                found.add(first.variables[name])
    for owners in meant.values():
        if len(owners) > 1:
            found |= owners
    for number, replica in enumerate(replicas):
        ours = {pairs[e][number] for e in able}
        for roots in (
            [n for n, _ in replica.graph.results],
            *([e] for e in replica.effects if e not in ours),
        ):
            for variable in replica.touched(replica.closure(roots)):
                found |= meant.get(variable, set())
    return found


# -- shares ----------------------------------------------------------------------------------------------------


def _share(
    number: int,
    replicas: Sequence[_Replica],
    pairs: Mapping[str, tuple[str, ...]],
    groups: Mapping[str, _Group],
    owners: Mapping[str, int],
) -> Share:
    replica = replicas[number]
    mine = {e for root, g in groups.items() if owners[root] == number for e in g.effects}
    others = {pairs[e][number] for root, g in groups.items() if owners[root] != number for e in g.effects}
    graph = _without(replica, others)
    written = {v for root, g in groups.items() if owners[root] == number for v in g.written}
    first = replicas[0]
    mirrored = []
    for name in first.closure(mine):
        if name in first.variables:
            places = [r.variables[n] for r, n in zip(replicas, pairs[name], strict=True)]
            own = places[number]
            rest = tuple(sorted({*places} - {own}))
            mirrored.append(Mirrored(own, rest, first.variables[name] in written))
    sources = tuple(replica.source[arg] for arg in graph.args)
    return Share(graph, sources, tuple(sorted(mirrored)))


def _without(replica: _Replica, removed: set[str]) -> FlatGraph:
    """A step without some of its effects; what is left keeps its order."""
    graph = replica.graph
    effects = [e for e in graph.effects if e not in removed]
    kept = replica.closure([*effects, *(n for n, _ in graph.results)])
    before = _effects_before(replica)
    stateful = [n for n in sorted(kept, key=replica.place.__getitem__) if _has_state(graph.nodes[n])]
    nodes = {}
    for name, node in graph.nodes.items():
        if name in kept:
            controls = [n for n in stateful if before[name] >> replica.place[n] & 1]
            nodes[name] = replace(node, controls=controls if _has_state(node) else [])
    return FlatGraph(graph.name, nodes, [a for a in graph.args if a in kept], list(graph.results), effects)


def _has_state(node: FlatNode) -> bool:
    return node.op != ARGUMENT and is_stateful(node.op)


def _effects_before(replica: _Replica) -> dict[str, int]:
    """The nodes with state that precede each node, as bits."""
    found: dict[str, int] = {}
    for name in replica.place:
        node = replica.graph.nodes[name]
        bits = 0
        for other in (*(n for n, _ in node.inputs), *node.controls):
            bits |= found[other]
            if _has_state(replica.graph.nodes[other]):
                bits |= 1 << replica.place[other]
        found[name] = bits
    return found
