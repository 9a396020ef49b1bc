"""Index arithmetic: integer polynomials over loop variables, simplified by the ranges of their parts.

An `Index` is a constant plus a sum of coefficient x atom. An atom is a loop variable, a quotient or a remainder that
does not simplify, a clamped index, or an opaque run-time integer (a loaded one, for example). Affine accesses appear as
sums of loop variables, whose coefficients are the strides of the access.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd
from typing import Any

__all__ = ["UNBOUNDED", "Arithmetic", "Atom", "Index", "LoopVar", "const", "linear", "of_atom"]

UNBOUNDED = 1 << 200


class Atom:
    """A part of an index that is not a sum: quotient, remainder, clamped index or opaque integer."""

    __slots__ = ("data", "hi", "kind", "lo", "uid", "vars")

    def __init__(self, kind: str, uid: int, lo: int, hi: int, variables: int, data: Any) -> None:
        self.kind = kind
        self.uid = uid  # orders atoms within one lowering
        self.lo = lo
        self.hi = hi
        self.vars = variables  # bit mask of the loop variables below
        self.data = data


class LoopVar(Atom):
    """A loop variable with values 0 .. extent-1; merging adjacent variables gives one with the product of extents."""

    __slots__ = ("bit", "extent", "name")

    def __init__(self, number: int, extent: int, name: str) -> None:
        super().__init__("var", number, 0, extent - 1, 1 << number, None)
        self.bit = 1 << number
        self.extent = extent
        self.name = name

    def __repr__(self) -> str:
        return f"{self.name}<{self.extent}"


Terms = tuple[tuple[Atom, int], ...]


class Index:
    """const + sum of coefficient * atom, with terms ordered by atom and the range of the whole."""

    __slots__ = ("_hash", "const", "hi", "lo", "terms", "vars")

    def __init__(self, terms: Terms, constant: int) -> None:
        self.terms = terms
        self.const = constant
        lo = hi = constant
        variables = 0
        for atom, c in terms:
            variables |= atom.vars
            if c > 0:
                lo += c * atom.lo
                hi += c * atom.hi
            else:
                lo += c * atom.hi
                hi += c * atom.lo
        self.lo = lo
        self.hi = hi
        self.vars = variables
        self._hash = hash((constant, tuple((a.uid, c) for a, c in terms)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Index)
            and self._hash == other._hash
            and self.const == other.const
            and len(self.terms) == len(other.terms)
            and all(a is b and c == d for (a, c), (b, d) in zip(self.terms, other.terms, strict=False))
        )

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.const + other) if other else self
        if not other.terms:
            return self + other.const
        if not self.terms:
            return other + self.const
        return _sum((self, other), (1, 1))

    def __sub__(self, other: Index | int) -> Index:
        return self + -other if isinstance(other, int) else _sum((self, other), (1, -1))

    def __mul__(self, k: int) -> Index:
        if k == 1:
            return self
        if k == 0:
            return const(0)
        return Index(tuple((a, c * k) for a, c in self.terms), self.const * k)

    @property
    def is_const(self) -> bool:
        """True if the index is a constant."""
        return not self.terms

    def coefficient(self, var: LoopVar) -> int | None:
        """The coefficient of a loop variable; None if it also occurs inside another atom."""
        found = 0
        for atom, c in self.terms:
            if atom is var:
                found = c
            elif atom.vars & var.bit:
                return None
        return found

    def __repr__(self) -> str:
        parts = [f"{c}*{a if a.kind == 'var' else (a.kind, a.data)}" for a, c in self.terms]
        return " + ".join([*parts, str(self.const)])


_SMALL = {k: Index((), k) for k in range(-1, 17)}


def const(value: int) -> Index:
    """A constant index."""
    return _SMALL.get(value) or Index((), value)


def of_atom(atom: Atom) -> Index:
    """The index consisting of one atom."""
    return Index(((atom, 1),), 0)


def _sum(parts: Iterable[Index], factors: Iterable[int]) -> Index:
    total: dict[Atom, int] = {}
    constant = 0
    for part, factor in zip(parts, factors, strict=False):
        constant += part.const * factor
        for atom, c in part.terms:
            total[atom] = total.get(atom, 0) + c * factor
    return _normal(total, constant)


def _normal(total: dict[Atom, int], constant: int) -> Index:
    total = {a: c for a, c in total.items() if c}
    if any(a.kind == "mod" for a in total):
        _recombine(total)
    return Index(tuple(sorted(total.items(), key=_order)), constant)


def _order(term: tuple[Atom, int]) -> int:
    return term[0].uid


def _recombine(total: dict[Atom, int]) -> None:
    """Replace c*d*(x div d) + c*(x mod d) by c*x where x is a single loop variable."""
    for atom in list(total):
        c = total.get(atom)
        if atom.kind != "mod" or not c:
            continue
        inner, d = atom.data
        if len(inner.terms) != 1 or inner.const or inner.terms[0][1] != 1:
            continue
        for other in list(total):
            if other.kind == "div" and other.data == (inner, d) and total[other] == c * d:
                del total[atom], total[other]
                base = inner.terms[0][0]
                total[base] = total.get(base, 0) + c
                if not total[base]:
                    del total[base]
                break


def linear(indices: Sequence[Index], shape: Sequence[int]) -> Index:
    """The row-major position of `indices` in `shape`."""
    factors = []
    stride = 1
    for extent in reversed(shape):
        factors.append(stride)
        stride *= extent
    return _sum(indices, reversed(factors))


class Arithmetic:
    """Creates the atoms of one lowering: quotients, remainders and clamps, each once (hash-consed)."""

    def __init__(self) -> None:
        self.count = 1 << 20  # atoms are numbered after all loop variables
        self.vars: list[LoopVar] = []
        self._made: dict[tuple[Any, ...], Index] = {}

    def var(self, extent: int, name: str) -> LoopVar:
        """A new loop variable."""
        var = LoopVar(len(self.vars), extent, name)
        self.vars.append(var)
        return var

    def atom(self, kind: str, key: tuple[Any, ...], lo: int, hi: int, variables: int, data: Any) -> Index:
        """The index consisting of one atom, created once per key."""
        made = self._made.get((kind, *key))
        if made is None:
            made = of_atom(Atom(kind, self.count, lo, hi, variables, data))
            self.count += 1
            self._made[(kind, *key)] = made
        return made

    def atoms(self) -> list[Atom]:
        """Every atom created so far, except loop variables."""
        return [i.terms[0][0] for i in self._made.values()]

    def floordiv(self, x: Index, d: int) -> Index:
        """x div d, rounding down; d is positive."""
        if d == 1:
            return x
        if x.lo // d == x.hi // d:
            return const(x.lo // d)
        whole, rest = _split(x, d)
        if rest.lo >= 0 and rest.hi < d:
            return whole
        prefix, _, g = _carry_free(rest, d)
        reduced, d = _divided(prefix, g), d // g
        quotient = self.atom(
            "div", (reduced, d), reduced.lo // d, reduced.hi // d, reduced.vars, (reduced, d)
        )
        return whole + quotient

    def mod(self, x: Index, d: int) -> Index:
        """x mod d in 0 .. d-1; d is positive."""
        if d == 1:
            return const(0)
        if x.lo // d == x.hi // d:
            return x - d * (x.lo // d)
        _, rest = _split(x, d)
        if rest.lo >= 0 and rest.hi < d:
            return rest
        prefix, low, g = _carry_free(rest, d)
        reduced, d = _divided(prefix, g), d // g
        remainder = self.atom("mod", (reduced, d), 0, d - 1, reduced.vars, (reduced, d))
        return remainder * g + low

    def clamp(self, x: Index, lo: int, hi: int) -> Index:
        """x clamped to lo .. hi."""
        if lo <= x.lo and x.hi <= hi:
            return x
        if x.hi <= lo or x.lo >= hi:
            return const(lo if x.hi <= lo else hi)
        return self.atom("clamp", (x, lo, hi), max(lo, x.lo), min(hi, x.hi), x.vars, (x, lo, hi))

    def unravel(self, position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
        """The indices in `shape` of a row-major position."""
        indices = []
        stride = 1
        for axis in range(len(shape) - 1, -1, -1):
            extent = shape[axis]
            quotient = self.floordiv(position, stride)
            indices.append(quotient if axis == 0 else self.mod(quotient, extent))
            stride *= extent
        return tuple(reversed(indices))


def _split(x: Index, d: int) -> tuple[Index, Index]:
    """x as d * whole + rest, where rest keeps the terms whose coefficient d does not divide."""
    whole = tuple((a, c // d) for a, c in x.terms if c % d == 0)
    rest = tuple((a, c) for a, c in x.terms if c % d)
    return Index(whole, x.const // d), Index(rest, x.const % d)


def _divided(x: Index, g: int) -> Index:
    return Index(tuple((a, c // g) for a, c in x.terms), x.const // g) if g != 1 else x


def _carry_free(x: Index, d: int) -> tuple[Index, Index, int]:
    """x as prefix + low, where prefix is a multiple of g, g divides d and 0 <= low < g.

    Then x div d is (prefix/g) div (d/g) and x mod d is g * ((prefix/g) mod (d/g)) + low.
    """
    by_size = sorted(x.terms, key=lambda term: -abs(term[1]))
    for count in range(len(by_size)):
        g = d
        for _, c in by_size[: count + 1]:
            g = gcd(g, c)
        if g == 1:
            continue
        low = Index(tuple(sorted(by_size[count + 1 :], key=_order)), x.const % g)
        if low.lo >= 0 and low.hi < g:
            prefix = Index(tuple(sorted(by_size[: count + 1], key=_order)), x.const - x.const % g)
            return prefix, low, g
    return x, const(0), 1
