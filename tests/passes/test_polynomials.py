"""Formulas of graphs: equal ones are recognised however they are written, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from ge.ops.builder import GraphBuilder
from ge.passes.recurrence.polynomials import Polynomial, formulas


def _values(build):
    """The polynomials of the values that `build` makes of x and y."""
    b = GraphBuilder()
    x, y = (b.input(name, (2, 3), "float32") for name in "xy")
    made = build(b, x, y)
    known = {x: Polynomial.of("x"), y: Polynomial.of("y")}
    found = formulas(b.graph, known)
    return [found[v] for v in made]


SAME = {
    "squares": lambda b, x, y: (b.op("Square", x), b.op("Mul", x, x)),
    "binomial": lambda b, x, y: (
        b.op("Mul", b.op("Add", x, y), b.op("Sub", x, y)),
        b.op("Sub", b.op("Square", x), b.op("Square", y)),
    ),
    "of functions": lambda b, x, y: (b.op("Tanh", b.op("Add", x, y)), b.op("Tanh", b.op("Add", y, x))),
    "slope": lambda b, x, y: (
        b.op("Mul", b.op("Mul", x, y), b.op("Sub", 1.0, y)),
        b.op("Sub", b.op("Mul", x, y), b.op("Mul", x, b.op("Square", y))),
    ),
    "front": lambda b, x, y: (b.op("Reshape", b.op("Neg", x), shape=[1, 2, 3]), b.op("Mul", x, -1.0)),
    "halves": lambda b, x, y: (b.op("Add", b.op("Mul", x, 0.5), b.op("Mul", x, 0.5)), b.op("Identity", x)),
}
OTHER = {
    "functions": lambda b, x, y: (b.op("Tanh", x), b.op("Sigmoid", x)),
    "factor": lambda b, x, y: (b.op("Mul", x, 0.5), b.op("Identity", x)),
    "turned": lambda b, x, y: (b.op("Reshape", x, shape=[3, 2]), b.op("Identity", x)),
    "choice": lambda b, x, y: (b.op("Select", b.op("Greater", x, y), x, y), b.op("Identity", x)),
    "repeated": lambda b, x, y: (b.op("Add", x, np.zeros((4, 2, 3), np.float32)), b.op("Identity", x)),
    "rounded": lambda b, x, y: (
        b.op("Cast", b.op("Cast", x, to="bfloat16"), to="float32"),
        b.op("Identity", x),
    ),
}


@pytest.mark.parametrize("build", SAME.values(), ids=SAME)
def test_one_formula_in_two_ways(build):
    one, other = _values(build)
    assert one == other


@pytest.mark.parametrize("build", OTHER.values(), ids=OTHER)
def test_two_formulas(build):
    one, other = _values(build)
    assert one != other


def test_a_long_product_is_an_atom():
    b = GraphBuilder()
    total = b.op("Add", b.input("x0", (2,), "float32"), 1.0)
    for index in range(1, 40):
        total = b.op("Mul", total, b.op("Add", b.input(f"x{index}", (2,), "float32"), 1.0))
    assert len(formulas(b.graph, {})[total].terms) <= 512
