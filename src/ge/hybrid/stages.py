"""Assigns graph nodes to stages that host and device run alternately.

1. The side of a stage is its number modulo the number of sides; all nodes of a device stage can be one part.
2. A node's stage is at least that of every node it waits for, so parts and host calls run in the order of stages.
3. A node's stage is the earliest that rules 1 and 2 allow; so no other assignment has fewer stages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

__all__ = ["Groups", "assign_levels", "assign_stages", "follow", "in_order"]

N = TypeVar("N", bound=Hashable)


def assign_stages(
    nodes: Iterable[N],
    before: Callable[[N], Iterable[N]],
    side: Callable[[N], int],
    sides: int = 2,
    *,
    floor: Mapping[N, int] | None = None,
    alone: int | None = None,
) -> dict[N, int]:
    """The stage of each node; `nodes` are in topological order.

    `before` gives the dependencies of a node (those outside `nodes` do not count), `floor` the earliest stages of
    nodes. Nodes of the side `alone` get one stage each.

    >>> assign_stages("abc", lambda n: {"b": "a", "c": "b"}.get(n, ""), lambda n: int(n != "b"))
    {'a': 1, 'b': 2, 'c': 3}
    """
    floors = floor or {}
    stages: dict[N, int] = {}
    taken: set[int] = set()
    for node in nodes:
        least = max((stages[other] for other in before(node) if other in stages), default=0)
        least = max(least, floors.get(node, 0))
        wanted = side(node)
        stage = least + (wanted - least) % sides
        if wanted == alone:
            while stage in taken:
                stage += sides
            taken.add(stage)
        stages[node] = stage
    return stages


def assign_levels(
    nodes: Iterable[N], before: Callable[[N], Iterable[N]], side: Callable[[N], int]
) -> dict[N, int]:
    """The level of each node if all sides run concurrently; `nodes` are in topological order.

    A node's level is at least that of every dependency on its own side, and above that of every dependency on another
    side: nothing in a level waits for another side in the same level.

    >>> assign_levels(["a0", "a1", "sum0"], lambda n: ["a0", "a1"] if n == "sum0" else [], lambda n: int(n[-1]))
    {'a0': 0, 'a1': 0, 'sum0': 1}
    """
    levels: dict[N, int] = {}
    for node in nodes:
        own = side(node)
        waits = (levels[other] + (side(other) != own) for other in before(node) if other in levels)
        levels[node] = max(waits, default=0)
    return levels


class Groups(Generic[N]):
    """Nodes that must be on one side, as a union-find structure.

    >>> groups = Groups[str]()
    >>> groups.join("a", "b")
    >>> groups.find("a") == groups.find("b"), groups.find("c")
    (True, 'c')
    """

    def __init__(self) -> None:
        self._parent: dict[N, N] = {}

    def find(self, node: N) -> N:
        """The representative of a node's group."""
        root = node
        while self._parent.get(root, root) != root:
            root = self._parent[root]
        while self._parent.get(node, node) != root:
            self._parent[node], node = root, self._parent[node]
        return root

    def join(self, first: N, second: N) -> None:
        """Merge two groups."""
        self._parent[self.find(first)] = self.find(second)

    def joined(self) -> list[tuple[N, ...]]:
        """The groups of more than one node."""
        return list(self.members({*self._parent, *self._parent.values()}).values())

    def members(self, nodes: Iterable[N]) -> dict[N, tuple[N, ...]]:
        """The groups that some nodes form, by representative; including groups of one."""
        found: dict[N, list[N]] = defaultdict(list)
        for node in nodes:
            found[self.find(node)].append(node)
        return {root: tuple(members) for root, members in found.items()}

    def join_cycles(self, nodes: Iterable[N], before: Callable[[N], Iterable[N]]) -> None:
        """Merge groups that depend on each other, and the nodes between them: no stages can separate them.

        >>> groups = Groups[str]()
        >>> groups.join("in", "out")
        >>> groups.join_cycles(["in", "host", "out"], {"in": "", "host": ["in"], "out": ["host"]}.__getitem__)
        >>> groups.find("host") == groups.find("in")
        True
        """
        members = self.members(nodes)
        waits = {root: [self.find(o) for n in names for o in before(n)] for root, names in members.items()}
        after: dict[N, list[N]] = defaultdict(list)
        for root, others in waits.items():
            for other in others:
                after[other].append(root)
        seen: set[N] = set()
        for root in reversed(
            in_order(members, waits.__getitem__)
        ):  # strongly connected components (Kosaraju)
            todo = [root]
            while todo:
                node = todo.pop()
                if node not in seen:
                    seen.add(node)
                    self.join(node, root)
                    todo += after[node]


def follow(groups: Iterable[Sequence[N]], reasons: dict[N, str], why: str) -> None:
    """Add the nodes that are grouped with a host node to `reasons`."""
    for group in groups:
        blamed = next((node for node in group if node in reasons), None)
        if blamed is not None:
            for node in group:
                reasons.setdefault(node, f"{why} {blamed}: {reasons[blamed]}")


def in_order(nodes: Iterable[N], before: Callable[[N], Iterable[N]]) -> list[N]:
    """Nodes with their dependencies in topological order; within a cycle in any order."""
    done: dict[N, bool] = {}
    order: list[N] = []
    for root in nodes:
        stack = [root]
        while stack:
            node = stack[-1]
            if done.get(node):
                stack.pop()
            elif node in done:
                stack.pop()
                done[node] = True
                order.append(node)
            else:
                done[node] = False
                stack += [other for other in before(node) if other not in done]
    return order
