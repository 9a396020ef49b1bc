"""Index arithmetic: simplified forms have the value of the plain ones everywhere."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from tbe.index import Arithmetic, Atom, Index, const, linear


def value(i: Index, at: dict) -> int:
    return i.const + sum(c * atom_value(atom, at) for atom, c in i.terms)


def atom_value(atom: Atom, at: dict) -> int:
    if atom.kind == "var":
        return at[atom]
    inner = value(atom.data[0], at)
    if atom.kind == "div":
        return inner // atom.data[1]
    if atom.kind == "mod":
        return inner % atom.data[1]
    return min(max(inner, atom.data[1]), atom.data[2])


@st.composite
def expressions(draw):
    arith = Arithmetic()
    variables = [arith.var(draw(st.integers(1, 6)), f"v{n}") for n in range(draw(st.integers(1, 3)))]
    forms = [(Index(((v, 1),), 0), lambda at, v=v: at[v]) for v in variables]
    for _ in range(draw(st.integers(1, 7))):
        x, plain = draw(st.sampled_from(forms))
        y, other = draw(st.sampled_from(forms))
        k = draw(st.integers(1, 12))
        kind = draw(st.sampled_from(["add", "sub", "scale", "shift", "div", "mod", "clamp"]))
        if kind == "add":
            forms.append((x + y, lambda at, p=plain, q=other: p(at) + q(at)))
        elif kind == "sub":
            forms.append((x - y, lambda at, p=plain, q=other: p(at) - q(at)))
        elif kind == "scale":
            forms.append((x * k, lambda at, p=plain, k=k: p(at) * k))
        elif kind == "shift":
            forms.append((x + (k - 6), lambda at, p=plain, k=k: p(at) + k - 6))
        elif kind == "div":
            forms.append((arith.floordiv(x, k), lambda at, p=plain, k=k: p(at) // k))
        elif kind == "mod":
            forms.append((arith.mod(x, k), lambda at, p=plain, k=k: p(at) % k))
        else:
            forms.append((arith.clamp(x, 0, k), lambda at, p=plain, k=k: min(max(p(at), 0), k)))
    return variables, forms


@settings(max_examples=300, deadline=None, derandomize=True)
@given(expressions())
def test_simplified_indices_keep_their_value(case) -> None:
    variables, forms = case
    for point in product(*(range(v.extent) for v in variables)):
        at = dict(zip(variables, point, strict=True))
        for index, plain in forms:
            expected = plain(at)
            assert value(index, at) == expected
            assert index.lo <= expected <= index.hi


def test_matching_reshapes_leave_no_division() -> None:
    arith = Arithmetic()
    a, b, c = (Index(((arith.var(d, "v"), 1),), 0) for d in (4, 6, 8))
    position = linear((a, b, c), (4, 6, 8))
    assert arith.unravel(position, (24, 8)) == (a * 6 + b, c)
    assert arith.unravel(position, (4, 48)) == (a, b * 8 + c)
    quotient = arith.floordiv(c, 2)
    assert quotient * 2 + arith.mod(c, 2) == c
    assert arith.floordiv(const(7), 2) == const(3)
