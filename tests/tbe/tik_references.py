"""What the files under `tik_operators` compute, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["CASES", "Case"]

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """A program, what it is given and what it has to give."""

    family: str
    name: str
    arrays: tuple[Array, ...]
    wanted: tuple[Array, ...]
    ulp: float = 0
    scale: float = 0.0
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: Sequence[Any] | None = None


RNG = np.random.default_rng(7)


def half(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float16)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def _of(
    family: str,
    name: str,
    function: Callable[..., Any],
    *arrays: Array,
    ulp: float = 0,
    scale: float = 0.0,
    **attrs: Any,
) -> Case:
    with np.errstate(all="ignore"):
        wanted = function(*arrays)
    return Case(
        family, name, arrays, tuple(wanted) if isinstance(wanted, tuple) else (wanted,), ulp, scale, attrs
    )


def softmax(x: Array) -> Array:
    grown = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return (grown / grown.sum(1, keepdims=True)).astype(np.float32)


def running_sum(x: Array) -> tuple[Array, Array]:
    total = np.cumsum(x).astype(np.int32)
    even = total % 2 == 0
    small = ~even & (total > 0) & (total < 100)
    counts = [even.sum(), small.sum(), (~even & ~small).sum(), *[0] * 5]
    return total, np.asarray(counts, np.int32)


def every_second(x: Array) -> Array:
    made = np.full(256, -1, np.float16)
    for block in range(0, 16, 2):
        made[block * 16 : block * 16 + 16 : 2] = abs(x[block * 16 : block * 16 + 16 : 2])
    return made


def best_of_rows(x: Array) -> tuple[Array, Array, Array]:
    place = x.argmax(1).astype(np.uint16).view(np.float16)
    sums = x.astype(np.float16)
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return np.stack([x.max(1), place], 1), sums[:, 0], x.reshape(len(x), 8, 16).max(2)


def quantise(x: Array) -> tuple[Array, Array]:
    return np.clip(np.rint(x.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int32), x.astype(np.float16)


def column_sum(x: Array) -> Array:
    made = np.zeros(x.shape[1], np.float32)
    for row in x:
        made = made + row
    return made


def lower(side: int) -> Array:
    return (np.tril(RNG.uniform(-0.2, 0.2, (side, side)), -1) + np.eye(side)).astype(np.float32)


def solution(a: Array, b: Array) -> Array:
    return np.linalg.solve(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)


def shuffled(a: Array, b: Array) -> Array:
    return np.stack([a, b], 1).reshape(-1, a.shape[1])


def fractals(x: Array) -> Array:
    """[columns, rows, 16, 16] of a matrix."""
    rows, columns = x.shape
    return np.ascontiguousarray(x.reshape(rows // 16, 16, columns // 16, 16).transpose(2, 0, 1, 3))


def fractal_product(a: Array, b: Array) -> Array:
    a, b = (v.transpose(1, 2, 0, 3).reshape(v.shape[1] * 16, -1).astype(np.float32) for v in (a, b))
    return fractals((a @ b).astype(np.float16))


def windows_product(stride: int) -> Callable[[Array, Array, Array], Array]:
    def run(x: Array, w: Array, bias: Array) -> Array:
        x = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))[:, ::stride, ::stride]
        rows = windows.transpose(1, 2, 0, 4, 5, 3).reshape(windows.shape[1] * windows.shape[2], -1)
        made = rows @ w.astype(np.float64).transpose(0, 1, 2, 4, 3).reshape(-1, w.shape[3]) + bias
        made = np.maximum(made, 0).astype(np.float32).reshape(len(rows), -1, 16)
        return np.ascontiguousarray(made.transpose(1, 0, 2))

    return run


TABLE, PLACES = real(10, 16), np.asarray([3, 9, 0, 3, 7], np.int32)
NUMBERS = RNG.integers(-1, 9, 256).astype(np.int32)
ROWS = (RNG.permutation(16 * 128) % 2048).reshape(16, 128).astype(np.float16) / np.float16(64)
X, Y = real(192), real(192)
WIDE = np.concatenate([real(60) * 100, np.asarray([0.5, 1.5, 3e9, -3e9], np.float32)])

CASES = (
    _of("element by element", "add_tik", lambda x, y: (x + y).reshape(-1), half(4, 1024), half(4, 1024)),
    *(_of("tails", "vadd_tail", np.add, real(n), real(n)) for n in (1, 7, 64, 65, 200, 1000)),
    *(_of("tails", "clip_any_size", lambda x: np.clip(x, -1, 1), real(n) * 2) for n in (5, 64, 8191, 20000)),
    *(_of("reductions", "row_softmax", softmax, real(5, n), ulp=8) for n in (64, 192)),
    _of("reductions", "best_of_rows", best_of_rows, ROWS),
    _of("reductions", "column_sum", column_sum, real(20, 128)),
    _of("masks and strides", "leaky", lambda x: np.where(x > 0, x, x * np.float16(0.25)), half(512), slope=0.25),
    _of("masks and strides", "every_second", every_second, half(256)),
    _of("element by element", "axpy", lambda x, y: (y + np.float32(0.5) * x) + x * x + np.float32(1), X, Y, a=0.5),
    _of("conversions", "quantise", quantise, WIDE, mode="round"),
    _of("movements", "transpose16", lambda x: np.ascontiguousarray(x.T), half(32, 48)),
    _of("movements", "gather_rows", lambda t, i: t[i], TABLE, PLACES),
    _of("movements", "shuffle_rows", shuffled, real(6, 128), real(6, 128)),
    _of("movements", "lanes_together", lambda x: np.ascontiguousarray(x.transpose(0, 2, 1, 3)), half(3, 4, 70, 16)),
    _of("the cube unit", "tiled_product", lambda a, b: (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16),
        half(30, 64), half(64, 48), ulp=1, scale=16.0),
    _of("the cube unit", "fractal_product", fractal_product, fractals(half(48, 128)), fractals(half(128, 32)), ulp=1,
        scale=16.0),
    *(_of("the cube unit", "windows_product", windows_product(s), half(2, 8, 8, 16), half(2, 3, 3, 32, 16), real(32),
          ulp=8, scale=32.0, stride=s) for s in (1, 2)),
    _of("scalars and control", "running_sum", running_sum, RNG.integers(-20, 30, 64).astype(np.int32)),
    _of("scalars and control", "histogram", lambda x: np.bincount(x[(x >= 0) & (x < 8)], minlength=8).astype(np.int32),
        NUMBERS),
    _of("scalars and control", "eliminate", solution, lower(24), real(24, 64), ulp=16, scale=1.0),
)  # fmt: skip
