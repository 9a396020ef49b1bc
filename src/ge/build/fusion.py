"""Fusion: groups vector nodes with their producers and consumers; each group becomes one kernel.

1. A node joins the group of a node it reads from, so that the value between them is not loaded; it is not stored either
   if nothing else reads it.
2. Elementwise nodes of one shape always fuse. `tbe.schedule`, which knows what one kernel can compute, decides the
   rest; verdicts are memoised by structure, so that repeated layers are decided once.
3. A value smaller than its reader's result is recomputed there only if it is cheap and has no other reader.
4. Joining never creates a dependency cycle between units, never exceeds a bounded number of nodes and values, and never
   leaves a large kernel with too few pieces for all cores.
   Products that no primitive computes start a group, which elementwise nodes of the same size join.
5. Views are not members: a group looks through them.
6. Column sums do not join the producer of their operand if that operand is stored anyway and expensive: they need a
   separate pass, which would recompute it.
7. A recomputed node does not join the group of its original, where it would be computed early and kept. Neither does a
   node much later in the graph, if its inputs stay live for most of that distance anyway.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

import tbe
from ge.build.aliases import Aliases, root_of
from ge.build.expression import express
from ge.ir import facts
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Engine, Pattern, lookup, pattern_of
from ge.ops.traits import Cost
from ge.target import Target

__all__ = ["fuse"]

# Bounds of kernels and of the search, which keep compilation short: no times of kernels were measured for them.
MAX_NODES = 48
MAX_VALUES = 64  # loaded and stored by one kernel
MAX_VISITS = 256  # in the search for a cycle
FAR = 12  # nodes between a group and a node from which the node counts as late
CHEAP_NODES = 4


@dataclass(eq=False, slots=True)
class Group:
    """Vector nodes of a future kernel, in topological order."""

    nodes: list[ir.Node]
    first: int
    last: int
    size: int  # elements of the largest result
    uniform: bool  # elementwise over one shape throughout
    before: set[Group] = field(default_factory=set)  # groups it reads from
    merged_into: Group | None = None


def fuse(graph: ir.Graph, aliases: Aliases, target: Target, *, enabled: bool = True) -> list[list[ir.Node]]:
    """The groups of a graph's vector nodes; every vector node is in exactly one."""
    return _Fusion(graph, aliases, target, enabled).run()


class _Fusion:
    def __init__(self, graph: ir.Graph, aliases: Aliases, target: Target, enabled: bool) -> None:
        self.graph = graph
        self.aliases = aliases
        self.target = target
        self.enabled = enabled
        self.group_of: dict[ir.Node, Group] = {}
        self.position: dict[ir.Node, int] = {}
        self.readers: dict[ir.Value, list[ir.Node]] = {}
        self.returned: set[ir.Value] = set()
        self.verdicts: dict[Hashable, bool] = {}

    def run(self) -> list[list[ir.Node]]:
        self._index()
        groups: dict[Group, None] = {}
        for node in self.graph:
            if node in self.aliases.forward:
                continue
            group = self._singleton(node)
            groups[group] = None
            if self.enabled and self._is_member(node) and not self._is_product(node):
                for other in self._candidates(group, node):
                    if self._fits(other, group, node):
                        group = self._merge(other, group)
        alive = [g for g in groups if g.merged_into is None and self._is_vector(g.nodes[0])]
        return [part for group in alive for part in self._checked(group.nodes)]

    # -- looking around ----------------------------------------------------------------------------------------

    def _index(self) -> None:
        """Index the actual readers of values, looking through views."""
        self.returned.update(map(self.root, self.graph.outputs))
        for index, node in enumerate(self.graph):
            self.position[node] = index
            if node in self.aliases.forward:
                continue
            for value in node.inputs:
                if value is not None and constant_of(value) is None:
                    self.readers.setdefault(self.root(value), []).append(node)

    def root(self, value: ir.Value) -> ir.Value:
        """The value whose memory a value aliases."""
        return root_of(value, self.aliases)

    def _is_vector(self, node: ir.Node) -> bool:
        return facts.engine(node) == Engine.VECTOR.value and node not in self.aliases.joined

    def _is_member(self, node: ir.Node) -> bool:
        return self._is_vector(node) and (pattern_of(node) is not Pattern.OPAQUE or self._is_product(node))

    def _is_product(self, node: ir.Node) -> bool:
        """True if a kernel is generated where other targets have a primitive."""
        return not self.target.library and self._is_vector(node) and lookup(node.op_type).task is not None

    def _singleton(self, node: ir.Node) -> Group:
        place = self.position[node]
        size = max((desc_of(v).size for v in node.outputs), default=0)
        group = Group([node], place, place, size, self._is_uniform(node, size))
        self.group_of[node] = group
        for value in self._sources(node):
            source = value.producer()
            if source is not None:
                group.before.add(self._find(self.group_of[source]))
        return group

    def _is_uniform(self, node: ir.Node, size: int) -> bool:
        if not self._is_vector(node) or pattern_of(node) not in (
            Pattern.ELEMENTWISE,
            Pattern.BROADCAST,
        ):
            return False
        return len(node.outputs) == 1 and size > 0

    def _sources(self, node: ir.Node) -> Iterator[ir.Value]:
        for value in node.inputs:
            if value is not None and constant_of(value) is None:
                yield self.root(value)

    @staticmethod
    def _find(group: Group) -> Group:
        while group.merged_into is not None:
            group = group.merged_into
        return group

    # -- joining -----------------------------------------------------------------------------------------------

    def _candidates(self, group: Group, node: ir.Node) -> list[Group]:
        """The groups a node reads from, largest savings first."""
        saved: dict[Group, int] = {}
        for value in self._sources(node):
            source = value.producer()
            if source is not None and self._is_member(source) and not _crosses_recomputation(source, node):
                other = self._find(self.group_of[source])
                if self._already_live(value, other, node):
                    continue
                saved[other] = saved.get(other, 0) + desc_of(value).nbytes
        return sorted(saved, key=lambda g: -saved[g])

    def _already_live(self, value: ir.Value, other: Group, node: ir.Node) -> bool:
        """True if a late node reads values that others keep live until (nearly) then."""
        here = self.position[node]
        if here - other.last < FAR:
            return False
        halfway = (other.last + here) // 2
        return any(r is not node and self.position[r] > halfway for r in self.readers.get(value, ()))

    def _fits(self, other: Group, group: Group, node: ir.Node) -> bool:
        other = self._find(other)
        group = self._find(group)
        if other is group or len(other.nodes) + len(group.nodes) > MAX_NODES:
            return False
        if self._circular(other, group) or not self._may_join_product(other, group):
            return False
        shared = [v for v in self._sources(node) if v.producer() in other.nodes]
        if any(self._costly_to_repeat(v, node, other) or self._summed_later(v, node, other) for v in shared):
            return False
        nodes = self._in_order((*other.nodes, *group.nodes))
        outputs = self._outputs(nodes)
        if len(outputs) + self._count_inputs(nodes) > MAX_VALUES:
            return False
        alike = other.uniform and group.uniform and other.size == group.size
        if alike and all(desc_of(v).size == group.size for v in outputs):
            return True
        return self._one_kernel(nodes, outputs, max(other.size, group.size))

    def _may_join_product(self, other: Group, group: Group) -> bool:
        """True if only elementwise operators on its result follow a group that starts with a product."""
        if not any(self._is_product(n) for n in other.nodes):
            return not any(self._is_product(n) for n in group.nodes)
        return group.uniform and group.size == other.size

    def _costly_to_repeat(self, value: ir.Value, node: ir.Node, other: Group) -> bool:
        """True if a small but expensive value would be recomputed for many results."""
        if lookup(node.op_type).reads_once:
            return False
        result = max(desc_of(v).size for v in node.outputs)
        if desc_of(value).size >= result or other.size >= result:
            return False
        readers = self.readers.get(value, [])
        return (
            len(other.nodes) > CHEAP_NODES
            or any(lookup(n.op_type).cost >= Cost.EXPENSIVE for n in other.nodes)
            or any(pattern_of(n) is Pattern.REDUCE for n in other.nodes)
            or len(readers) > 1
            or value in self.returned
        )

    def _summed_later(self, value: ir.Value, node: ir.Node, other: Group) -> bool:
        """True if a node sums columns of a large value that is stored and slow to compute."""
        if pattern_of(node) is not Pattern.REDUCE or desc_of(value).size < self.target.kernel_elements:
            return False
        kept = value in self.returned or any(
            r not in other.nodes and r is not node for r in self.readers[value]
        )
        return (
            kept
            and desc_of(node.outputs[0]).shape[-1:] == desc_of(value).shape[-1:]
            and any(lookup(n.op_type).cost >= Cost.SLOW for n in other.nodes)
        )

    def _circular(self, other: Group, group: Group) -> bool:
        """True if `group` also depends on `other` through a third group."""
        stack = [g for g in map(self._find, group.before) if g is not other and g is not group]
        seen = set(stack)
        while stack:
            current = stack.pop()
            if len(seen) > MAX_VISITS:
                return True
            for above in map(self._find, current.before):
                if above is other:
                    return True
                if above not in seen and above is not group and above.last > other.first:
                    seen.add(above)
                    stack.append(above)
        return False

    def _merge(self, other: Group, group: Group) -> Group:
        other, group = self._find(other), self._find(group)
        group.nodes = self._in_order((*other.nodes, *group.nodes))
        group.first = min(other.first, group.first)
        group.last = max(other.last, group.last)
        group.uniform = group.uniform and other.uniform and group.size == other.size
        group.size = max(other.size, group.size)
        group.before = {
            g for g in map(self._find, group.before | other.before) if g is not other and g is not group
        }
        other.merged_into = group
        return group

    def _in_order(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        return sorted(nodes, key=self.position.__getitem__)

    def _outputs(self, nodes: list[ir.Node]) -> list[ir.Value]:
        return group_outputs(nodes, self.readers, self.returned)

    def _count_inputs(self, nodes: list[ir.Node]) -> int:
        made = {v for n in nodes for v in n.outputs}
        return len({self.root(v) for n in nodes for v in n.inputs if v is not None} - made)

    # -- what one kernel can do --------------------------------------------------------------------------------

    def _one_kernel(self, nodes: list[ir.Node], outputs: list[ir.Value], size: int) -> bool:
        key = self._structure(nodes, outputs)
        known = self.verdicts.get(key)
        if known is None:
            known = self.verdicts[key] = self._schedulable(nodes, outputs, size)
        return known

    def _schedulable(self, nodes: list[ir.Node], outputs: list[ir.Value], size: int) -> bool:
        kernel = express(nodes, outputs, self.aliases)
        try:
            plan = tbe.schedule(*kernel.tensors, self.target.processor)
        except tbe.Unfusable:
            return False
        enough = plan.total >= self.target.least_pieces or size < self.target.kernel_elements
        return enough or self._is_serial(nodes)

    def _is_serial(self, nodes: list[ir.Node]) -> bool:
        """True if the last node of a group has too few pieces even by itself."""
        last = express(nodes[-1:], nodes[-1].outputs, self.aliases)
        try:
            return tbe.schedule(*last.tensors, self.target.processor).total < self.target.least_pieces
        except tbe.Unfusable:
            return False

    def _structure(self, nodes: list[ir.Node], outputs: list[ir.Value]) -> Hashable:
        """A key that is equal for groups of equal structure."""
        numbers: dict[ir.Value, int] = {}
        parts: list[Hashable] = []
        for node in nodes:
            for value in node.outputs:
                numbers[value] = len(numbers)
            reads = [self._reference(v, numbers) for v in node.inputs]
            attrs = tuple((k, _plain(a.value)) for k, a in sorted(node.attributes.items()))
            parts.append((node.op_type, attrs, tuple(reads)))
        return tuple(parts), tuple(numbers[v] for v in outputs)

    def _reference(self, value: ir.Value | None, numbers: dict[ir.Value, int]) -> Hashable:
        if value is None:
            return None
        desc = desc_of(value)
        root = self.root(value)
        inside = numbers.get(root)
        if inside is None:
            inside = -1 - numbers.setdefault(root, len(numbers)) if constant_of(value) is None else -(10**9)
        part = self.aliases.backward.get(root) if root in self.aliases.scattered else None
        whole = None if part is None else (part[1], part[0].op_type, desc_of(part[0].outputs[0]).shape)
        return (inside, desc.shape, desc.dtype, desc_of(root).shape, value is root, whole)

    def _checked(self, nodes: list[ir.Node]) -> list[list[ir.Node]]:
        """A finished group, halved until each part is one kernel."""
        if len(nodes) == 1:
            return [nodes]
        outputs = self._outputs(nodes)
        size = max(desc_of(v).size for v in outputs)
        if self._one_kernel(nodes, outputs, size):
            return [nodes]
        middle = len(nodes) // 2
        return [*self._checked(nodes[:middle]), *self._checked(nodes[middle:])]


def _crosses_recomputation(source: ir.Node, node: ir.Node) -> bool:
    return facts.recomputed(node) and not facts.recomputed(source)


def group_outputs(
    nodes: list[ir.Node], readers: dict[ir.Value, list[ir.Node]], returned: set[ir.Value]
) -> list[ir.Value]:
    """The values of a group that are needed outside it."""
    inside = set(nodes)
    values = [v for n in nodes for v in n.outputs]
    return [v for v in values if v in returned or any(r not in inside for r in readers.get(v, ()))]


def _plain(value: object) -> Hashable:
    if isinstance(value, (list, tuple)):
        return tuple(value)
    return value if isinstance(value, (str, int, float, bool)) else id(value)
