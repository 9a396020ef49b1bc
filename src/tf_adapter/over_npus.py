"""Functions whose nodes are placed on several NPUs: the steps they are cut into.

1. A node runs on the NPU that the program names for it. One that has none goes with what it reads, else with what reads
   it; lists of tensors (variants) stay on one NPU.
2. Steps are assigned to levels. All steps of a level run at the same time, each on its NPU; what an NPU reads of
   another was made in an earlier level. In a training step the first level is forward and backward pass, the second
   the sum of the replicas' gradients with the update of the variables.
3. Updates that all NPUs would compute alike are divided among them (`shares.py`).
4. What depends on nothing but variables, arguments and constants waits for the level that uses it, so that variables
   are read where they are updated and can be written in place. An update that nothing waits for does not keep what
   it follows in an early level: it goes where its variable was last read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import tensorflow as tf

from ge.hybrid import assign_levels
from ge.parsers.tensorflow.convert import EFFECTS
from tf_adapter.graphs import ARGUMENT, FlatGraph
from tf_adapter.partition import FREE, HEAVY, READS, Cut, Cutter, Step, Writer
from tf_adapter.shares import Share, divide

__all__ = ["cut", "spans"]

_VARIANT = tf.variant.as_datatype_enum


def spans(graph: FlatGraph) -> bool:
    """Whether the nodes of a graph are on more than one NPU."""
    return len({node.npu for node in graph.nodes.values()} - {None}) > 1


def cut(graph: FlatGraph, sizes: Mapping[int, int]) -> tuple[Cut, dict[int, Share]]:
    """The steps of a graph that runs on several NPUs, and the shares that can take their place.

    `sizes` are the bytes of the variables among the arguments.
    """
    cutter = Cutter(graph)
    sides = _sides(graph, cutter.order)
    levels = _Levels(graph, cutter, sides).find()
    npus = sorted(set(sides.values()))
    stages = {name: level * len(npus) + npus.index(sides[name]) for name, level in levels.items()}
    done = Writer(graph, cutter, stages, {}).write()
    numbers = sorted(set(stages.values()))
    steps = [
        replace(step, npu=npus[number % len(npus)], stage=number // len(npus))
        for step, number in zip(done.steps, numbers, strict=True)
    ]
    return Cut(tuple(steps), done.sources, done.refused), _shares(steps, sizes)


def _shares(steps: Sequence[Step], sizes: Mapping[int, int]) -> dict[int, Share]:
    """The shares of steps, by their number (rule 3)."""
    found: dict[int, Share] = {}
    for _, members in groupby(enumerate(steps), key=lambda numbered: numbered[1].stage):
        numbers, stage = zip(*members, strict=True)
        shares = divide(stage, sizes) if len(stage) > 1 else None
        found.update(zip(numbers, shares, strict=True) if shares else ())
    return found


def _sides(graph: FlatGraph, order: Iterable[str]) -> dict[str, int]:
    """The NPU of each node (rule 1)."""
    order, nodes = list(order), graph.nodes
    sides = {name: npu for name in order if (npu := nodes[name].npu) is not None}
    least = min(sides.values())
    for name in order:
        if name not in sides:
            known = (sides[other] for other, _ in nodes[name].inputs if other in sides)
            first = next(known, None)
            if first is not None:
                sides[name] = first
    for name in reversed(order):
        if name in sides:
            for other, _ in nodes[name].inputs:
                sides.setdefault(other, sides[name])
    for name in order:
        sides.setdefault(name, least)
        for ref in nodes[name].inputs:
            if graph.type_of(ref) == _VARIANT and nodes[ref[0]].op != ARGUMENT:
                sides[name] = sides[ref[0]]
    return sides


class _Levels:
    """Assigns nodes to levels (rules 2 and 4)."""

    def __init__(self, graph: FlatGraph, cutter: Cutter, sides: Mapping[str, int]) -> None:
        self.graph = graph
        self.sides = sides
        left_out = {ARGUMENT, "NoOp", *FREE}
        needed = self._needed(cutter)
        self.order = [n for n in cutter.order if n in needed and graph.nodes[n].op not in left_out]
        self.before = {name: self._before(cutter, name) for name in self.order}

    def _before(self, cutter: Cutter, name: str) -> list[str]:
        return [*(n for n, _ in self.graph.nodes[name].inputs), *cutter.before.get(name, ())]

    def _needed(self, cutter: Cutter) -> set[str]:
        """What results and effects read: an unused read of a variable would only delay others."""
        nodes = self.graph.nodes
        effects = (n for n in cutter.order if cutter.has_effect(nodes[n]) and nodes[n].op not in READS)
        todo = [*(n for n, _ in self.graph.results), *effects]
        needed = set(todo)
        while todo:
            for name, _ in nodes[todo.pop()].inputs:
                if name not in needed:
                    needed.add(name)
                    todo.append(name)
        return needed

    def find(self) -> dict[str, int]:
        levels = assign_levels(self.order, lambda n: self.before[n], lambda n: self.sides[n])
        movable = self._movable()
        last = self._waited_for_by_none(movable)
        latest: dict[str, list[int]] = defaultdict(list)  # of each node, by those that wait for it
        for name in reversed(self.order):
            if name in last:
                continue
            if name in movable and latest[name]:
                levels[name] = max(levels[name], min(latest[name]))
            for other in self.before[name]:
                if other in levels:
                    latest[other].append(levels[name] - (self.sides[other] != self.sides[name]))
        for name in self.order:
            if name in last:
                for n in self.before[name]:
                    if n in levels:
                        levels[name] = max(levels[name], levels[n] + (self.sides[n] != self.sides[name]))
        return levels

    def _waited_for_by_none(self, movable: Collection[str]) -> set[str]:
        """Movable updates of variables that only such updates follow."""
        found: set[str] = set()
        after: dict[str, list[str]] = defaultdict(list)
        for name in reversed(self.order):
            op = self.graph.nodes[name].op
            if name in movable and op in EFFECTS and all(n in found for n in after[name]):
                found.add(name)
            for other in self.before[name]:
                after[other].append(name)
        return found - {name for name, _ in self.graph.results}

    def _movable(self) -> set[str]:
        """Nodes that no heavy work is needed for, neither by their inputs nor by what they read of a variable."""
        movable: set[str] = set()
        for name in self.order:
            node = self.graph.nodes[name]
            others = self.before[name] if node.op in READS else [n for n, _ in node.inputs]
            if node.op not in HEAVY and all(n in movable for n in others if n in self.before):
                movable.add(name)
        return movable
