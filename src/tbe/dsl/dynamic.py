"""Operators for several shapes: `classify`, its modes, and variables for dimensions.

A kernel is built for known dimensions. With arrays, or descriptions without -1, an operator written for dynamic shapes
is traced for those; an unknown dimension is traced with an example value, to check the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tbe.dsl.building import UNKNOWN
from tbe.dsl.tensor import SymbolicVar

__all__ = ["OpPatternMode", "classify", "example_shapes", "var"]

EXAMPLE = 16


class OpPatternMode:
    """How the outputs of an operator depend on its inputs."""

    ELEWISE = "elewise"
    ELEWISE_WITH_BROADCAST = "broadcast"
    REDUCE = "reduce"
    NORM = "norm"
    GATHER = "gather"
    SLICE = "slice"
    TRANSPOSE = "transpose"
    CONCAT = "concat"
    SPLIT = "split"
    TUPLE_REDUCE = "tuple_reduce"


def classify(ins: Sequence[Any], mode: str, extra_params: Mapping[str, Any] | None = None) -> list[list[Any]]:
    """The cases of shapes an operator is built for: one, of the shapes at hand.

    >>> classify([{"shape": (2, 3), "dtype": "float32"}], OpPatternMode.ELEWISE)[0][0]["shape"]
    (2, 3)
    """
    if mode not in vars(OpPatternMode).values():
        raise ValueError(f"unknown pattern {mode!r}")
    shapes = example_shapes([x.get("shape") if isinstance(x, Mapping) else None for x in ins])
    case: list[Any] = []
    for x, shape in zip(ins, shapes, strict=True):
        case.append({**x, "shape": shape} if shape is not None else x)
    if mode == OpPatternMode.REDUCE:
        case = [_axis(x, case) for x in case]
    return [case]


def _axis(value: Any, case: Sequence[Any]) -> Any:
    """The axes of a reduction as numbers from 0 on."""
    if not isinstance(value, Mapping) or value.get("rel_pos_to_reduce") != "axis":
        return value
    rank = max(len(x["shape"]) for x in case if isinstance(x, Mapping) and x is not value)
    axes = value.get("value")
    axes = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    return {**value, "value": sorted({int(a) % rank for a in axes})}


def example_shapes(shapes: Sequence[Any]) -> list[Any]:
    """Shapes with example values in place of unknown dimensions; the same one where inputs line up.

    >>> example_shapes([(-1, 3), (4, -1)])
    [(4, 3), (4, 3)]
    """
    whole = [None if s is None or not any(d in UNKNOWN for d in s) else s for s in shapes]
    if not any(whole):
        return [None if s is None else tuple(s) for s in shapes]
    rank = max((len(s) for s in shapes if s is not None and -2 not in s), default=2)
    found: list[Any] = []
    for shape in shapes:
        if shape is None:
            found.append(None)
            continue
        dims = [-1] * rank if -2 in shape else list(shape)
        skip = rank - len(dims)
        found.append(tuple(_example(shapes, skip + i, rank) if d == -1 else d for i, d in enumerate(dims)))
    return found


def _example(shapes: Sequence[Any], place: int, rank: int) -> int:
    known = []
    for shape in shapes:
        if shape is None or -2 in shape or place < rank - len(shape):
            continue
        d = shape[place - (rank - len(shape))]
        if d > 1:
            known.append(d)
    return known[0] if known else EXAMPLE


def var(name: str, bound: Any = None, dtype: str = "int32", *_: Any) -> SymbolicVar:
    """A variable for a dimension."""
    return SymbolicVar(name, dtype, bound)
