"""The evaluation order of an expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

__all__ = ["postorder"]

T = TypeVar("T")


def postorder(roots: Sequence[T], operands: Callable[[T], Sequence[T]], known: Iterable[int] = ()) -> list[T]:
    """The roots and all nodes below them in postorder: each once, after its operands.

    `known` are the ids of nodes to skip.

    >>> below = {"sum": ["x", "product"], "product": ["x", "y"]}
    >>> postorder(["sum"], lambda name: below.get(name, []))
    ['x', 'y', 'product', 'sum']
    """
    order: list[T] = []
    seen = set(known)
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(operands(node)))
    return order
