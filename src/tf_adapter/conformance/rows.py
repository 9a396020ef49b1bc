"""How a case is described: an operator, its arguments by name, and what is varied.

    op("Cumsum", x=V(3, 4), axis=Each(0, -1), exclusive=Each(False, True))

`V` is a tensor of the type that is varied, `F`, `I` and `B` are tensors of a fixed type, everything else is a constant.
`Each` lists what is tried in turn. Every combination is tried with the first type of `TYPES` that fits, the first
combination with all other types the operator is defined for.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "ROWS",
    "TYPES",
    "B",
    "C",
    "Case",
    "Each",
    "F",
    "I",
    "L",
    "Row",
    "Tensor",
    "V",
    "call",
    "cases",
    "op",
]

# In the order of preference: the first that an operator is defined for is tried with all combinations.
TYPES = (
    *("float32", "int32", "bool", "complex64", "float64", "float16", "bfloat16", "int64", "int16", "int8"),
    *("uint8", "uint16", "uint32", "uint64"),
)
SWEPT = "swept"


def numpy_type(name: str) -> np.dtype[Any]:
    """The NumPy type of an element type's name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@dataclass(frozen=True)
class Tensor:
    """A tensor argument: its shape, the range of its values, and its type."""

    shape: tuple[int, ...]
    domain: str
    dtype: str = SWEPT

    def array(self, random: np.random.Generator, swept: str) -> np.ndarray:
        """Values for one case."""
        name = swept if self.dtype == SWEPT else self.dtype
        return _DOMAINS[self.domain](random, self.shape, numpy_type(name))


@dataclass(frozen=True)
class Given:
    """A tensor argument with given values."""

    value: Any
    dtype: str

    def array(self, random: np.random.Generator, swept: str) -> np.ndarray:
        return np.asarray(self.value).astype(numpy_type(swept if self.dtype == SWEPT else self.dtype))


@dataclass(frozen=True)
class Each:
    """What is tried in turn."""

    items: tuple[Any, ...]

    def __init__(self, *items: Any) -> None:
        object.__setattr__(self, "items", items)


@dataclass(frozen=True)
class L:
    """A list of tensors."""

    items: tuple[Any, ...]

    def __init__(self, *items: Any) -> None:
        object.__setattr__(self, "items", items)


def V(*shape: int, d: str = "real") -> Tensor:
    """A tensor of the type that is varied, with values of a domain."""
    return Tensor(shape, d)


def F(*shape: int, d: str = "real", dtype: str = "float32") -> Tensor:
    """A tensor of a fixed type."""
    return Tensor(shape, d, dtype)


def I(value: Any, dtype: str = "int32") -> Given:  # noqa: E743
    """A tensor of given integers."""
    return Given(value, dtype)


def B(value: Any) -> Given:
    """A tensor of given truth values."""
    return Given(value, "bool")


def C(value: Any, dtype: str = "int32") -> np.ndarray:
    """A constant of some integers (or, with another type, other numbers)."""
    return np.asarray(value, dtype)


# -- values --------------------------------------------------------------------------------------------------

Make = Callable[[np.random.Generator, tuple[int, ...], "np.dtype[Any]"], np.ndarray]


def _integers(low: int, high: int, random: np.random.Generator, shape: tuple[int, ...], t: Any) -> np.ndarray:
    low = max(low, 0) if t.kind == "u" else low
    return random.integers(low, high, shape, endpoint=True).astype(t)


def _domain(
    floats: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray], low: int, high: int
) -> Make:
    def make(random: np.random.Generator, shape: tuple[int, ...], t: np.dtype[Any]) -> np.ndarray:
        if t.kind == "b":
            return random.integers(0, 2, shape).astype(bool)
        if t.kind in "iu":
            return _integers(low, high, random, shape, t)
        if t.kind == "c":
            return (floats(random, shape) + 1j * floats(random, shape)).astype(t)
        return floats(random, shape).astype(t)

    return make


_SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    np.inf,
    -np.inf,
    np.nan,
    3.25,
    -7.75,
    40.0,
    -40.0,
)


def _special(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return random.choice(np.array(_SPECIAL), shape)


def _spread(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Distinct values, so that the place of a maximum is certain."""
    count = int(np.prod(shape, dtype=int))
    return (random.permutation(count).reshape(shape) - count // 2) * 0.25


def _probabilities(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    raw = random.uniform(0.1, 1, shape)
    return raw / raw.sum(-1, keepdims=True)


def _definite(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Symmetric and positive definite."""
    a = random.standard_normal(shape)
    return a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1])


def _regular(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Far from singular."""
    return random.standard_normal(shape) + 4 * np.eye(shape[-2], shape[-1])


_DOMAINS: dict[str, Make] = {
    "real": _domain(lambda r, s: r.standard_normal(s) * 2, -9, 9),
    "small": _domain(lambda r, s: r.standard_normal(s) * 0.5, -2, 2),
    "positive": _domain(lambda r, s: r.uniform(0.1, 5, s), 1, 9),
    "above_one": _domain(lambda r, s: r.uniform(1.01, 6, s), 2, 9),
    "unit": _domain(lambda r, s: r.uniform(-0.95, 0.95, s), -1, 1),
    "share": _domain(lambda r, s: r.uniform(0.02, 0.98, s), 0, 1),
    "image": _domain(lambda r, s: r.uniform(0, 1, s), 0, 100),
    "special": _domain(_special, 1, 100),  # integers without zero: only the CPU raises an error for it
    "wide": _domain(lambda r, s: r.standard_normal(s) * 1e3, -120, 120),
    "nonzero": _domain(lambda r, s: r.uniform(0.5, 3, s) * r.choice([-1, 1], s), 1, 9),
    "spread": _domain(_spread, -100, 100),
    "probabilities": _domain(_probabilities, 0, 1),
    "definite": _domain(_definite, 1, 9),
    "regular": _domain(_regular, 1, 9),
    "zero": _domain(lambda r, s: np.zeros(s), 0, 0),
}


# -- rows ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    operator: str
    arguments: Mapping[str, Any]
    dtypes: tuple[str, ...] = ()  # those of the operator's definition when empty
    compare: str = "values"  # or "shapes" for random results
    ulps: float = 32.0
    elementwise: bool = False  # every element is as exact as it is small
    outputs: tuple[int, ...] = ()  # which outputs are compared; all when empty
    function: Callable[..., Any] | None = None  # what is called; the raw operator when None
    index: int = 0


ROWS: list[Row] = []


def op(
    operator: str,
    *,
    _dtypes: Sequence[str] = (),
    _compare: str = "values",
    _ulps: float = 32.0,
    _elementwise: bool = False,
    _outputs: Sequence[int] = (),
    **arguments: Any,
) -> None:
    """Add a line for a raw operator."""
    index = sum(r.operator == operator for r in ROWS)
    ROWS.append(
        Row(operator, arguments, tuple(_dtypes), _compare, _ulps, _elementwise, tuple(_outputs), None, index)
    )


def call(
    name: str,
    function: Callable[..., Any],
    *,
    _dtypes: Sequence[str] = ("float32",),
    _ulps: float = 64.0,
    **given: Any,
) -> None:
    """Add a line for a function of TensorFlow's interface that is made of several operators."""
    index = sum(r.operator == name for r in ROWS)
    ROWS.append(Row(name, given, tuple(_dtypes), "values", _ulps, False, (), function, index))


@dataclass(frozen=True)
class Case:
    """One call: a line of the table with all choices made."""

    row: Row = field(repr=False)
    name: str
    dtype: str
    chosen: Mapping[str, Any] = field(repr=False)
    kind: str = ""  # how it is run: eager, function, graph

    @property
    def operator(self) -> str:
        return self.row.operator

    def arguments(self) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Constants and tensors by name (a tensor is its place in the list), and the tensors' values."""
        random = np.random.default_rng(zlib.crc32(f"{self.name} {self.dtype}".encode()))
        arrays: list[np.ndarray] = []

        def place(item: Any) -> Any:
            if isinstance(item, L):
                return [place(i) for i in item.items]
            if isinstance(item, (Tensor, Given)):
                arrays.append(item.array(random, self.dtype))
                return Slot(len(arrays) - 1)
            return item

        return {name: place(item) for name, item in self.chosen.items()}, arrays


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in a case's list of arrays."""

    index: int


def combinations(row: Row) -> Iterator[dict[str, Any]]:
    """All choices of a line's arguments."""
    names = list(row.arguments)
    options = [v.items if isinstance(v, Each) else (v,) for v in row.arguments.values()]
    for picked in itertools.product(*options):
        yield dict(zip(names, picked, strict=True))


def cases(
    allowed: Callable[[Row], Sequence[str]], quick: bool = False, rows: Sequence[Row] = ROWS
) -> Iterator[Case]:
    """All cases of the table, or of other lines; `allowed` says which types an operator is defined for."""
    for row in rows:
        types = [t for t in TYPES if t in (row.dtypes or allowed(row))]
        for rank, dtype in enumerate(types[:1] if quick else types):
            for number, chosen in enumerate(combinations(row)):
                if number and (rank or quick):
                    break
                yield Case(row, f"{row.operator}/{row.index}.{number}/{dtype}", dtype, chosen)
