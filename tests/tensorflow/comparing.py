"""Calls functions on the NPU and on the CPU and compares what they return and what they write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter  # noqa: F401  (registers the device)
from ge.target import host
from npu_runtime import tensorflow as native

CPU, NPU = "/CPU:0", "/NPU:0"

needs_bfloat16 = pytest.mark.skipif(
    "bfloat16" not in host().narrow_floats, reason="this processor has no products of bfloat16"
)


@dataclass
class Ran:
    """How a function ran on the NPU: calls there and on the host, by function."""

    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)

    @property
    def on_npu(self) -> int:
        return sum(n for name, (n, _) in self.counts.items() if name.startswith("__"))

    @property
    def on_host(self) -> int:
        return sum(h for name, (_, h) in self.counts.items() if name.startswith("__"))

    @property
    def wholly(self) -> bool:
        """Nothing but compiled functions ran."""
        return self.on_npu > 0 and not self.on_host


def same(
    function: Callable[..., Any],
    *args: Any,
    variables: Sequence[tf.Variable] = (),
    calls: int = 2,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    **options: Any,
) -> Ran:
    """Check that a function gives the same on both devices, call after call; tells how it ran."""
    saved = [v.numpy() for v in variables]
    returned, written = [], []
    for device in (CPU, NPU):
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)
        tf.random.set_seed(7)
        traced = tf.function(function, **options)
        native.take_counts()
        with tf.device(device):
            returned.append([tf.nest.flatten(traced(*args), expand_composites=True) for _ in range(calls)])
        written.append([v.numpy() for v in variables])
    ran = Ran(native.take_counts(), returned[1])
    for wanted, given in zip(*returned, strict=True):
        for one, other in zip(wanted, given, strict=True):
            equal(one, other, rtol, atol)
    for one, other in zip(*written, strict=True):
        equal(one, other, rtol, atol)
    return ran


def equal(wanted: Any, given: Any, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Check that two results are the same: type, shape and contents."""
    one, other = (np.asarray(v) for v in (wanted, given))
    assert one.dtype == other.dtype, (one.dtype, other.dtype)
    assert one.shape == other.shape, (one.shape, other.shape)
    if one.dtype.kind in "fc" or one.dtype.name == "bfloat16":
        np.testing.assert_allclose(
            other.astype(np.complex128), one.astype(np.complex128), rtol=rtol, atol=atol
        )
    else:
        np.testing.assert_array_equal(other, one)
