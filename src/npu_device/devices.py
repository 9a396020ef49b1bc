"""Opens devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

import npu_runtime
import tf_adapter
from ge.options.table import tell_once
from hccl.manage.api import get_rank_id, get_rank_size
from tf_adapter.options import options

__all__ = ["NpuDevice", "npu_run_context", "open", "set_npu_loop_size"]


class NpuDevice:
    """One opened device.

    >>> with open(0).scope():
    ...     tf.constant(1.0).device[-5:]
    'NPU:0'
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self._entered: Any = None

    @property
    def name(self) -> str:
        """The name for tf.device."""
        return f"/device:NPU:{self.index}"

    @property
    def workers_num(self) -> int:
        """Number of processes."""
        return get_rank_size()

    @property
    def worker_id(self) -> int:
        """Rank of this process."""
        return get_rank_id()

    def as_default(self) -> NpuDevice:
        """Make this the default device."""
        if self.index == 0:
            tf_adapter.as_default(True)
        elif self._entered is None:
            self._entered = tf.device(self.name)
            self._entered.__enter__()
        return self

    def scope(self) -> Any:
        """Context manager that makes this the default device."""
        return tf.device(self.name)

    def __repr__(self) -> str:
        return f"NpuDevice({self.name!r})"


def open(device_id: int | None = None) -> NpuDevice:
    """Open a device by number; by default that of ASCEND_DEVICE_ID, else the first.

    >>> open(0)
    NpuDevice('/device:NPU:0')
    """
    count = npu_runtime.device_count()
    if device_id is not None:
        if isinstance(device_id, bool) or not isinstance(device_id, int) or not 0 <= device_id < count:
            raise ValueError(
                f"there is no NPU {device_id!r}: this machine has {count}, numbered from 0; "
                "NPU_DEVICE_COUNT=n makes n of them before the program starts"
            )
        return NpuDevice(device_id)
    text = os.environ.get("ASCEND_DEVICE_ID", "0")
    if not text.isdecimal():
        raise ValueError(f"ASCEND_DEVICE_ID must be a number, not {text!r}")
    if int(text) >= count:
        tell_once(f"ASCEND_DEVICE_ID={text} names a device that this machine lacks: NPU:0 is used")
    return NpuDevice(int(text) if int(text) < count else 0)


def set_npu_loop_size(loop_size: int) -> None:
    """Set the number of training steps per call.

    It becomes the `steps_per_execution` of Keras models compiled from now on, unless `compile()` sets another number.
    Explicit loops in functions (`for _ in tf.range(n)`) are not affected.

    >>> set_npu_loop_size(10)
    >>> options.loop_size
    10
    >>> set_npu_loop_size(1)
    """
    if isinstance(loop_size, bool) or not isinstance(loop_size, int) or loop_size < 1:
        raise ValueError(f"the loop size must be a positive integer, not {loop_size!r}")
    options.loop_size = loop_size


@contextmanager
def npu_run_context(device: NpuDevice | None = None, **values: Any) -> Iterator[NpuDevice]:
    """Context manager: use a device with temporary options.

    >>> with npu_run_context(precision_mode="allow_mix_precision_bf16"):
    ...     options.precision_mode.name
    'MIX_BF16'
    """
    unknown = sorted(set(values) - set(options.settings()))
    if unknown:
        known = ", ".join(sorted(options.settings()))
        raise AttributeError(f"npu_run_context has no option '{unknown[0]}'; there are {known}")
    chosen = device or open()
    with options.override(**values), chosen.scope():
        yield chosen
