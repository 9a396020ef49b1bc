"""Samples the elements of inputs: ordinary numbers and edge cases."""

from __future__ import annotations

import base64
import random
from typing import Any

import ml_dtypes
import numpy as np

from ge.conformance.programs.record import Input, Program, numpy_dtype

__all__ = ["FILLS", "OTHER_SIZES", "feeds", "is_float", "sample"]

# Weights of the fills.
FILLS = {
    "ordinary": 50,
    "integers": 14,
    "positive": 8,
    "special": 12,
    "extreme": 5,
    "zeros": 5,
    "ones": 3,
    "tiny": 3,
}
OTHER_SIZES = (1, 2, 4, 6, 9, 0)


def is_float(dtype: np.dtype[Any]) -> bool:
    """True for real floating types, those of ml_dtypes included."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def sample(name: str, shape: tuple[int, ...], fill: str, seed: int) -> np.ndarray:
    """Deterministic array for the arguments."""
    return np.asarray(_sample(name, shape, fill, seed))


def _sample(name: str, shape: tuple[int, ...], fill: str, seed: int) -> np.ndarray:
    dtype, rng = numpy_dtype(name), np.random.default_rng([seed, len(shape)])
    if fill in ("zeros", "ones"):
        return np.full(shape, fill == "ones", dtype)
    if dtype.kind == "b":
        return rng.random(shape) < rng.choice([0.5, 0.5, 0.1, 1.0, 0.0])
    if dtype.kind in "iu":
        return _integers(dtype, shape, fill, rng)
    if dtype.kind == "c":
        return (_floats("float64", shape, fill, rng) + 1j * _floats("float64", shape, fill, rng)).astype(
            dtype
        )
    return _floats(name, shape, fill, rng)


def _integers(
    dtype: np.dtype[Any], shape: tuple[int, ...], fill: str, rng: np.random.Generator
) -> np.ndarray:
    info = np.iinfo(dtype)
    kind, _, bound = fill.partition(":")
    if bound:  # indices
        return rng.integers(-int(bound) if kind == "around" else 0, int(bound), shape).astype(dtype)
    if fill == "extreme":
        return rng.choice(np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype), shape)
    low = 1 if fill == "positive" else max(-6, info.min)
    return rng.integers(low, 7, shape).astype(dtype)


def _floats(name: str, shape: tuple[int, ...], fill: str, rng: np.random.Generator) -> np.ndarray:
    dtype = numpy_dtype(name)
    info = ml_dtypes.finfo(dtype)
    plain = rng.standard_normal(shape) * rng.choice([0.5, 1.0, 3.0])
    with np.errstate(all="ignore"):
        if fill == "integers":
            return (rng.integers(-6, 7, shape) / 2).astype(dtype)
        if fill == "positive":
            return (np.abs(plain) + 0.1).astype(dtype)
        if fill == "tiny":
            return (plain * float(info.tiny)).astype(dtype)
        if fill == "extreme":
            return (plain * float(info.max) ** rng.choice([0.5, 0.9])).astype(dtype)
        if fill == "special":
            odd = [
                np.nan,
                np.inf,
                -np.inf,
                -0.0,
                0.0,
                float(info.tiny),
                float(info.max),
                -float(info.max),
                0.5,
            ]
            odd += [float(info.smallest_subnormal)]
            return np.where(rng.random(shape) < 0.3, rng.choice(odd, shape), plain).astype(dtype)
        return plain.astype(dtype)


def feeds(program: Program, seed: int = 0) -> list[list[np.ndarray]]:
    """Input arrays of each run: the same twice, new elements, new elements with another leading size."""
    size = random.Random(len(program.statements) * 1009 + seed).choice(OTHER_SIZES)
    sizes = {i.value.shape[0] for i in program.inputs if i.open}
    runs = [0, 0, 1] + ([2] if sizes - {size} else [])
    return [[_array(i, run, size if run == 2 else None) for i in program.inputs] for run in runs]


def _array(given: Input, run: int, size: int | None) -> np.ndarray:
    value = given.value
    if given.role != "fed":
        run, size = 0, None
    if given.fill == "given":
        array = np.frombuffer(base64.b64decode(given.data), numpy_dtype(value.dtype)).reshape(value.shape)
        return np.roll(array, run) if run else array
    shape = value.shape if size is None or not given.open else (size, *value.shape[1:])
    return sample(value.dtype, shape, given.fill, given.seed + run)
