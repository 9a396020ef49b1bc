"""Operators shared by the tables of several doors; `library` is the module's name in the program text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ge.conformance.programs.door import Call, Maker
from ge.conformance.programs.generate import FLOATS, INTEGERS, Draw
from ge.conformance.programs.record import Noise, Value

__all__ = ["COMPLEX", "NUMBERS", "REAL", "concat", "einsum", "elementwise", "factors", "stack", "where"]

COMPLEX = ("complex64", "complex128")
REAL = FLOATS + INTEGERS
NUMBERS = REAL + COMPLEX
Add = Callable[..., None]


def elementwise(
    library: str, operators: dict[str, tuple[float, Maker]], partner: Callable[[Draw, Value, Any], Value]
) -> tuple[Add, Add]:
    """Return functions that add unary and binary operators to a table; `partner` makes the second operand."""

    def unary(names: str, dtypes: Any, noise: Noise = Noise.RESULT, weight: float = 0.4) -> None:
        def make(n: str, d: Draw) -> Call:
            return Call(f"{library}.{n}({{0}})", [d.pick(dtypes)], noise=noise)

        operators.update({name: (weight, partial(make, name)) for name in names.split()})

    def binary(names: str, dtypes: Any, noise: Noise = Noise.RESULT, weight: float = 0.5) -> None:
        def make(n: str, d: Draw) -> Call:
            x = d.pick(dtypes)
            pair = [x, partner(d, x, dtypes)]
            return Call(f"{library}.{n}({{0}}, {{1}})", pair if d.chance(0.5) else pair[::-1], noise=noise)

        operators.update({name: (weight, partial(make, name)) for name in names.split()})

    return unary, binary


def where(library: str, d: Draw) -> Call:
    x = d.pick()
    shape = x.shape if d.chance(0.6) else tuple(1 if d.chance(0.3) else n for n in x.shape)
    operands = [d.of("bool", shape), x, d.broadcast(x)]
    return Call(f"{library}.where({{0}}, {{1}}, {{2}})", operands, noise=Noise.NONE)


def einsum(library: str, d: Draw) -> Call:
    x = d.pick(FLOATS, (2, 3))
    letters = "abc"[: len(x.shape)]
    out = "".join(d.rng.sample(letters[:-1] + "z", d.integer(1, len(letters))))
    other = d.of(x.dtype, (x.shape[-1], d.integer(1, 4)))
    text = f"{library}.einsum('{letters},{letters[-1]}z->{out}', {{0}}, {{1}})"
    return Call(text, [x, other], noise=Noise.ARGUMENTS)


def concat(name: str, d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4))
    axis = d.axis(x)
    shape = list(x.shape)
    shape[axis] = d.choice([shape[axis], 1, 2, 0])
    return Call(
        f"{name}([{{0}}, {{1}}], {axis})", d.rng.sample([x, d.of(x.dtype, shape)], 2), noise=Noise.NONE
    )


def stack(library: str, d: Draw) -> Call:
    x = d.pick(ranks=(0, 1, 2, 3))
    text = f"{library}.stack([{{0}}, {{1}}], {d.integer(0, len(x.shape))})"
    return Call(text, [x, d.like(x)], noise=Noise.NONE)


def factors(d: Draw, x: Value) -> list[int]:
    """Random dimensions with as many elements as the value."""
    left = int(np.prod(x.shape))
    found: list[int] = list(x.shape) if not left else []
    while left > 1:
        factor = d.choice([f for f in range(2, left + 1) if left % f == 0])
        found.append(factor)
        left //= factor
    return found
