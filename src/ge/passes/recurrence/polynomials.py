"""Elementwise arithmetic as polynomials: two formulas are equivalent if their polynomials are equal."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ge.ir.types import FLOATS
from ge.ir.values import desc_of
from ge.passes.rewrite import scalar

__all__ = ["Formulas", "Polynomial", "formulas"]

_MAX_TERMS = 512
_Monomial = frozenset[tuple[Hashable, int]]  # atoms and their powers


@dataclass(frozen=True)
class Polynomial:
    """A sum of products of atoms. Values that broadcast against each other do so wherever they occur in it.

    >>> x, y = Polynomial.of("x"), Polynomial.of("y")
    >>> (x + y) * (x - y) == x * x - y * y
    True
    """

    terms: frozenset[tuple[_Monomial, float]]

    @staticmethod
    def of(atom: Hashable) -> Polynomial:
        """An atom: a term that is not decomposed further."""
        return Polynomial(frozenset({(frozenset({(atom, 1)}), 1.0)}))

    @staticmethod
    def number(value: float) -> Polynomial:
        """A constant."""
        return Polynomial(frozenset({(frozenset[Any](), float(value))} if value else ()))

    def __add__(self, other: Polynomial) -> Polynomial:
        return _collected([*self.terms, *other.terms])

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other * Polynomial.number(-1.0)

    def __mul__(self, other: Polynomial) -> Polynomial:
        pairs = itertools.product(self.terms, other.terms)
        return _collected([(_multiplied(a, b), x * y) for (a, x), (b, y) in pairs])


def _collected(terms: list[tuple[_Monomial, float]]) -> Polynomial:
    sums: defaultdict[_Monomial, float] = defaultdict(float)
    for monomial, factor in terms:
        sums[monomial] += factor
    return Polynomial(frozenset((m, f) for m, f in sums.items() if f))


def _multiplied(a: _Monomial, b: _Monomial) -> _Monomial:
    powers: defaultdict[Hashable, int] = defaultdict(int)
    for atom, power in (*a, *b):
        powers[atom] += power
    return frozenset(powers.items())


def _function(type_: str) -> Callable[[Polynomial], Polynomial]:
    return lambda x: Polynomial.of((type_, x))


_OPERATORS: Mapping[str, Callable[..., Polynomial]] = {
    "Add": Polynomial.__add__,
    "Sub": Polynomial.__sub__,
    "Mul": Polynomial.__mul__,
    "Square": lambda x: x * x,
    "Neg": lambda x: x * Polynomial.number(-1.0),
    "Identity": lambda x: x,
    "Reshape": lambda x: x,
    "Sigmoid": _function("Sigmoid"),
    "Tanh": _function("Tanh"),
}


class Formulas:
    """A builder that computes polynomials of operators, for definitions written against a graph builder.

    >>> x = Polynomial.of("x")
    >>> Formulas().op("Sub", 1.0, Formulas().op("Square", x)) == Polynomial.number(1) - x * x
    True
    """

    def op(self, type_: str, *inputs: Polynomial | float) -> Polynomial:
        """The polynomial of an operator."""
        return _OPERATORS[type_](*(v if isinstance(v, Polynomial) else Polynomial.number(v) for v in inputs))


class _Values(dict[ir.Value, Polynomial]):
    """Values and their polynomials; an unknown value is an atom."""

    def __missing__(self, value: ir.Value) -> Polynomial:
        number = scalar(value) if desc_of(value).dtype in FLOATS else None
        found = self[value] = Polynomial.of(value) if number is None else Polynomial.number(number)
        return found


def formulas(graph: ir.Graph, known: Mapping[ir.Value, Polynomial]) -> Mapping[ir.Value, Polynomial]:
    """The values of a graph as polynomials in the known values, in numbers, and in results of other operators."""
    found = _Values(known)
    for node in graph:
        if node.op_type not in _OPERATORS or node.outputs[0] in found or not _is_plain(node):
            continue
        operands = [found[v] for v in node.inputs if v is not None]
        sizes = [len(x.terms) for x in operands]
        if max(sizes) ** 2 <= _MAX_TERMS or min(sizes) <= 1:
            found[node.outputs[0]] = _OPERATORS[node.op_type](*operands)
    return found


def _is_plain(node: ir.Node) -> bool:
    """True if a node is float arithmetic in which only values broadcast against each other (numbers have no shape
    here), and reshapes only add or remove leading axes of one element.
    """
    values = [v for v in node.inputs if v is not None and scalar(v) is None]
    shapes = [_without_front(desc_of(v).shape) for v in values]
    made = desc_of(node.outputs[0])
    if made.dtype not in FLOATS:
        return False
    among = _without_front(made.shape) in shapes
    return among or (node.op_type != "Reshape" and len(values) == len(node.inputs))


def _without_front(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(itertools.dropwhile(lambda size: size == 1, shape))
