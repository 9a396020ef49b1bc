"""Memory of training steps: recomputation takes less of it, and running out says what would fit."""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import tensorflow as tf

import npu_device
import tf_adapter
from tests.tensorflow.comparing import NPU
from tf_adapter import functions

keras = tf.keras
L = keras.layers
RANDOM = np.random.default_rng(0)
ROOM = 24 << 20


@contextmanager
def limited() -> Iterator[None]:
    """A device with so much room beside what earlier tests have left on it."""
    functions.forget()
    gc.collect()
    taken = tf.config.experimental.get_memory_info("NPU:0")["current"]
    with tf_adapter.options.override(memory_limit=taken + ROOM):
        yield


def model(depth: int = 10) -> Any:
    keras.utils.set_random_seed(3)
    x = inputs = keras.Input((16, 16, 3))
    for _ in range(depth):
        x = L.Activation("relu")(L.BatchNormalization()(L.Conv2D(16, 3, padding="same")(x)))
    made = keras.Model(inputs, L.Dense(4)(L.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)
    return made


def batch(size: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    return random.standard_normal((size, 16, 16, 3)).astype(np.float32), random.integers(0, 4, size)


def arena() -> int:
    """The working memory of the largest function compiled so far."""
    plans = [k.report.plan for k in functions._known.values() if k.report is not None]
    return max(p.lowered.model.plan.arena_bytes for p in plans if isinstance(p, functions.NpuRun))


@functools.cache
def trained(way: str) -> tuple[list[float], int]:
    """The losses of three steps, and their working memory."""
    functions.forget()
    with tf.device(NPU), tf_adapter.options.override(recompute=way):
        made, data = model(), batch(8)
        return [float(np.ravel(made.train_on_batch(*data))[0]) for _ in range(3)], arena()


def test_recomputation_takes_less_memory_and_gives_the_same_losses() -> None:
    ways = ("off", "light", "vector", "segments")
    (losses, whole), (light, free), (vector, less), (segments, least) = (trained(w) for w in ways)
    # Keras 2 normalises by one operator, whose gradient reads little besides its input: nothing is left to save.
    assert free <= (0.65 if hasattr(keras, "ops") else 1.0) * whole
    assert less <= free
    assert less < 0.8 * whole
    assert least < 0.65 * whole
    np.testing.assert_allclose(light, losses, rtol=1e-5)
    np.testing.assert_allclose(vector, losses, rtol=1e-5)
    np.testing.assert_allclose(segments, losses, rtol=1e-5)


def test_the_option_has_names_in_ported_scripts() -> None:
    npu_device.global_options().recompute = "vector"
    try:
        assert tf_adapter.options.recompute == "vector"
        with pytest.raises(ValueError, match="'segments'"):
            npu_device.global_options().recompute = "everything"
    finally:
        npu_device.global_options().recompute = "light"


def test_running_out_names_tensors_and_a_batch_that_fits() -> None:
    with tf.device(NPU), limited():
        made = model()
        with pytest.raises(tf.errors.ResourceExhaustedError) as raised:
            made.train_on_batch(*batch(200))
        text = str(raised.value)
        assert re.search(r"largest tensors are .*(conv2d|batch_norm|activation).*float32\[200,.*MiB", text)
        found = re.search(r"A batch of about (\d+) would fit; it is 200", text)
        assert found is not None, text
        size = int(found[1])
        assert 8 <= size < 200
        # It holds: nine tenths of it run, a tenth more does not.
        made.train_on_batch(*batch(int(0.9 * size)))
        with pytest.raises(tf.errors.ResourceExhaustedError):
            made.train_on_batch(*batch(int(1.1 * size)))


def test_recomputation_makes_room_for_a_larger_batch() -> None:
    whole, least = trained("off")[1], trained("segments")[1]
    size = int(8 * ROOM / (whole * least) ** 0.5)  # too much as it is, little enough with recomputation
    with tf.device(NPU), limited():
        off = tf_adapter.options.override(recompute="off")
        with off, pytest.raises(tf.errors.ResourceExhaustedError, match="recompute"):
            model().train_on_batch(*batch(size))
        with tf_adapter.options.override(recompute="segments"):
            model().train_on_batch(*batch(size))


def test_variables_that_nobody_else_refers_to_are_written_where_they_lie() -> None:
    size = 1 << 22
    with tf.device(NPU):
        v = tf.Variable(tf.random.uniform((size,)))

        @tf.function
        def double() -> None:
            v.assign(2.0 * v)

        for _ in range(2):  # a value of its initialiser, then one that the host was shown and has let go of
            before = v.numpy()[:8].copy()
            tf.config.experimental.reset_memory_stats("NPU:0")
            held = tf.config.experimental.get_memory_info("NPU:0")["current"]
            double()
            assert tf.config.experimental.get_memory_info("NPU:0")["peak"] < held + size
            np.testing.assert_array_equal(v.numpy()[:8], 2.0 * before)


def test_variables_move_to_memory_of_their_own_one_by_one() -> None:
    size, count = 1 << 20, 16
    with tf.device(NPU):
        variables = [tf.Variable(tf.random.uniform((size,))) for _ in range(count)]
        given = [v.numpy() for v in variables]  # the host refers to them: they cannot be written in place

        @tf.function
        def double() -> None:
            for v in variables:
                v.assign(2.0 * v)

        tf.config.experimental.reset_memory_stats("NPU:0")
        double()
        peak = tf.config.experimental.get_memory_info("NPU:0")["peak"]
    before = tf.config.experimental.get_memory_info("NPU:0")["current"]
    assert peak < before + count // 2 * 4 * size  # not a second copy of all
    for old, v in zip(given, variables, strict=True):
        np.testing.assert_array_equal(v.numpy(), 2.0 * old)


@pytest.mark.parametrize("offset", [0, 16])
def test_arrays_are_copied_once_on_their_way_to_the_device(offset: int) -> None:
    status, peak = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if sys.platform != "linux" or not os.access(peak, os.W_OK):
        pytest.skip("the system does not tell the peak of a process's memory")

    def held(field: str) -> int:
        return int(
            next(line for line in status.read_text().splitlines() if line.startswith(field)).split()[1]
        )

    size = 64 << 10  # KiB
    room = np.ones(size * 256 + 64, np.float32)
    first = (offset - room.ctypes.data) % 64 // 4
    array = room[first : first + size * 256].reshape(size, 256)
    with tf.device(NPU):
        tf.constant(np.ones((256, 256), np.float32))
        before = held("VmRSS")
        peak.write_text("5")
        tensor = tf.constant(array)
        assert held("VmHWM") - before < size * 1.5  # less where memory that others left is used again
        array[:] = 2.0
        assert float(tf.reduce_max(tensor)) == 1.0


@pytest.mark.parametrize("order", ["rows", "columns"])
def test_variables_that_come_from_arrays_are_written_where_they_lie(order: str) -> None:
    def address(variable: tf.Variable) -> int:
        return int(np.asarray(memoryview(variable.read_value())).ctypes.data)

    size = 1 << 10
    room = np.ones(size * size + 16, np.float32)
    first = -room.ctypes.data % 64 // 4
    array = room[first : first + size * size].reshape(size, size)

    @tf.function
    def raise_by_one(variable: tf.Variable) -> None:
        variable.assign_add(tf.ones_like(variable))

    with tf.device(NPU):
        variable = tf.Variable(tf.zeros([size, size]))
        variable.assign(array if order == "rows" else array.T)
        before = address(variable)
        raise_by_one(variable)
        assert address(variable) == before
    np.testing.assert_array_equal(variable.numpy(), np.full((size, size), 2.0))
    assert array.max() == 1.0


@pytest.mark.parametrize(
    "array",
    [
        RANDOM.standard_normal((300, 500)).T,
        RANDOM.integers(-9, 9, (200, 300, 2))[:, ::-2],
        RANDOM.standard_normal((400, 400)).astype(tf.bfloat16.as_numpy_dtype),
        RANDOM.standard_normal((200, 200)) + 1j,
        RANDOM.integers(0, 2, (300, 300)).astype(bool),
        RANDOM.standard_normal((800, 800)).T,
        RANDOM.standard_normal((1000, 1000)).astype(tf.bfloat16.as_numpy_dtype).T,
        RANDOM.standard_normal((800, 800)).astype(">f4").T,
        RANDOM.integers(0, 9, (1000, 1100)).astype(np.uint16)[:, ::2],
    ],
    ids=lambda a: a.dtype.name,
)
def test_large_arrays_become_the_same_tensors_as_on_the_host(array: np.ndarray) -> None:
    with tf.device("/CPU:0"):
        expected = tf.constant(array)
    with tf.device(NPU):
        found = tf.constant(array)
        asked = tf.constant(array, tf.complex128 if array.dtype.kind == "c" else expected.dtype)
    assert found.dtype == expected.dtype == asked.dtype
    for tensor in (found, asked):
        np.testing.assert_array_equal(tensor.numpy(), expected.numpy())


def test_the_graphs_of_a_compile_do_not_stay() -> None:
    def nodes() -> int:
        return sum(isinstance(found, ir.Node) for found in gc.get_objects())

    gc.collect()
    before = nodes()
    for size in (2, 3, 4):
        with tf.device(NPU):
            model(2).train_on_batch(*batch(size))
    gc.collect()
    assert nodes() < before + 50  # of several hundred a compile
