"""Distances between floating-point numbers in units in the last place."""

from __future__ import annotations

import numpy as np

__all__ = ["ulps"]

_EPSILON = {
    "float16": (2.0**-10, 2.0**-24),
    "bfloat16": (2.0**-7, 2.0**-133),
    "float32": (2.0**-23, 2.0**-149),
}
_EPSILON["float64"] = (2.0**-52, 5e-324)


def ulps(got: np.ndarray, expected: np.ndarray, scale: float = 0.0) -> float:
    """The largest difference between two arrays of one float type, in units in the last place of the expected number.

    Units are never smaller than those of `scale`. Infinite where only one is NaN or they are different infinities.
    """
    assert got.dtype == expected.dtype and got.shape == expected.shape, (got.dtype, expected.dtype, got.shape)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    if not a.size:
        return 0.0
    epsilon, least = _EPSILON[got.dtype.name]
    with np.errstate(all="ignore"):
        magnitude = np.maximum(np.abs(b), scale)
        unit = np.maximum(2.0 ** np.floor(np.log2(np.maximum(magnitude, 1e-300))) * epsilon, least)
        distance = np.abs(a - b) / unit
    distance = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, distance)
    return float(np.where(np.isnan(distance), np.inf, distance).max())
