"""Eager operators: right on the NPU and on the host kernels, and moved from one to the other when it pays."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import npu_runtime
from npu_runtime import tensorflow as native
from tests.tensorflow.comparing import needs_bfloat16
from tf_adapter import device
from tf_adapter.options import options

CALLS = 6  # more than it takes until an operator is compiled


@pytest.fixture
def everything() -> Iterator[None]:
    device.everything_on_npu()
    yield
    device.everything_on_npu(False)


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).uniform(-2, 2, shape).astype(np.float32)


def _both(
    function: Callable[..., Any], *arrays: np.ndarray, calls: int = CALLS
) -> dict[str, tuple[int, int]]:
    """Compares the last of several calls with the CPU's; tells where the operators ran."""
    with tf.device("/CPU:0"):
        wanted = tf.nest.flatten(function(*[tf.constant(a) for a in arrays]))
    tensors = [tf.constant(a) for a in arrays]
    native.take_counts()
    for _ in range(calls):
        got = tf.nest.flatten(function(*tensors))
    counts = native.take_counts()
    for mine, theirs in zip(got, wanted, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-5)
    return counts


OPERATORS: dict[str, Callable[..., Any]] = {
    "AddV2": lambda x: x + x,
    "Mul": lambda x: x * 3.0,
    "MatMul": lambda x: tf.matmul(x, x, transpose_b=True),
    "Tanh": tf.tanh,
    "Sum": lambda x: tf.reduce_sum(x, axis=1),
    "Max": lambda x: tf.reduce_max(x, axis=[0, 1], keepdims=True),
    "ArgMax": lambda x: tf.argmax(x, axis=0),
    "Softmax": tf.nn.softmax,
    "Transpose": tf.transpose,
    "ConcatV2": lambda x: tf.concat([x, x], axis=1),
    "Pack": lambda x: tf.stack([x, x], axis=1),
    "Cast": lambda x: tf.cast(x, tf.int32),
    "Pad": lambda x: tf.pad(x, [[1, 0], [0, 2]]),
    "Tile": lambda x: tf.tile(x, [2, 1]),
    "TopKV2": lambda x: tf.math.top_k(x, 2),
    "SelectV2": lambda x: tf.where(x > 0, x, -x),
    "Conv2D": lambda x: tf.nn.conv2d(
        tf.reshape(x, [1, 8, 8, 1]), tf.reshape(x[:3, :3], [3, 3, 1, 1]), 1, "SAME"
    ),
    "OneHot": lambda x: tf.one_hot(tf.argmax(x, 1), 8),
}


@pytest.mark.parametrize("op", OPERATORS)
def test_an_operator_that_comes_back_runs_on_the_npu(op: str) -> None:
    counts = _both(OPERATORS[op], _random(8, 8))
    on_npu, on_host = counts[op]
    first = options.eager_threshold
    assert on_npu >= CALLS - first - (op in {"Sum", "Max", "Pad", "Tile"}) * first - 1
    assert on_host <= CALLS


@pytest.mark.parametrize("op", sorted(OPERATORS))
def test_from_the_first_call_where_asked_for(everything: None, op: str) -> None:
    counts = _both(OPERATORS[op], _random(8, 8), calls=2)
    assert counts[op][0] >= 2 and counts[op][1] == 0


def test_views_share_memory() -> None:
    x = tf.constant(_random(64, 64)) + 0
    y = tf.reshape(x, [4096])
    assert np.shares_memory(np.asarray(x), np.asarray(y))


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), min_size=0, max_size=4),
    broadcast=st.booleans(),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64", "float16"]),
    op=st.sampled_from(["add", "subtract", "multiply", "maximum", "less", "squared_difference"]),
)
def test_binary_operators_on_any_shape(shape: list[int], broadcast: bool, dtype: str, op: str) -> None:
    left = np.random.RandomState(1).randint(-5, 6, shape).astype(dtype)
    right = np.random.RandomState(2).randint(-5, 6, shape[1:] if broadcast and shape else shape).astype(dtype)
    _both(getattr(tf.math, op), left, right)


def test_inputs_whose_value_matters_have_models_of_their_own() -> None:
    x = tf.constant(_random(6, 5))
    for _ in range(3 * CALLS):
        for axis in (0, 1, -1):
            np.testing.assert_allclose(tf.reduce_sum(x, axis).numpy(), x.numpy().sum(axis), rtol=1e-5)


def test_operators_that_cannot_be_compiled_stay_on_the_host() -> None:
    x = tf.complex(_random(4, 4), _random(4, 4, seed=1))
    native.take_counts()
    for _ in range(CALLS):
        y = tf.matmul(x, x)
    assert native.take_counts()["MatMul"] == (0, CALLS)
    np.testing.assert_allclose(y.numpy(), x.numpy() @ x.numpy(), rtol=1e-5)


def test_wrong_arguments_raise_the_same_once_compiled() -> None:
    x = tf.constant(_random(4, 4))
    for _ in range(CALLS):
        tf.gather(x, [0, 3])
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.gather(x, [0, 4])
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.constant([1, 2]) // tf.constant([1, 0])


@needs_bfloat16
def test_a_changed_option_compiles_anew() -> None:
    x = tf.constant(_random(16, 16))
    with options.override(precision_mode="allow_mix_precision_bf16"):
        for _ in range(CALLS):
            lowered = tf.matmul(x, x)
    for _ in range(CALLS):
        whole = tf.matmul(x, x)
    exact = x.numpy().astype(np.float64) @ x.numpy().astype(np.float64)
    assert np.abs(whole.numpy() - exact).max() < 1e-4 < np.abs(lowered.numpy() - exact).max()


def test_gradients_of_eager_code() -> None:
    def loss(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.nn.relu(tf.matmul(x, x)) * tf.sigmoid(x))

    def gradient(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x)
        return tape.gradient(value, x)

    _both(gradient, _random(6, 6))


def test_many_shapes_keep_memory_flat() -> None:
    def work() -> None:
        for n in range(1, 40):
            tf.tanh(tf.ones([n, 3]) * 2.0)

    work()
    gc.collect()
    before = npu_runtime.memory_info()["current"]
    for _ in range(10):
        work()
    gc.collect()
    assert npu_runtime.memory_info()["current"] - before < 1 << 20


def test_threads_run_operators_side_by_side() -> None:
    arrays = [_random(5 + i, 5 + i, seed=i) for i in range(4)]
    wanted = [np.tanh(a @ a) for a in arrays]
    wrong: list[int] = []

    def work(start: int) -> None:
        for i in range(200):
            k = (start + i) % len(arrays)
            x = tf.constant(arrays[k])
            if not np.allclose(tf.tanh(tf.matmul(x, x)).numpy(), wanted[k], rtol=1e-4, atol=1e-5):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("dtype", [tf.float16, tf.float64], ids=str)
@pytest.mark.parametrize(
    ("first", "last"),
    [
        (
            lambda x: tf.nn.depthwise_conv2d(
                x, tf.ones((2, 2, 4, 1), x.dtype), [1] * 4, "SAME", data_format="NCHW"
            ),
            lambda x: tf.nn.depthwise_conv2d(x, tf.ones((2, 2, 4, 1), x.dtype), [1] * 4, "SAME"),
        ),
        (
            lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME", data_format="NCHW"),
            lambda x: tf.nn.max_pool2d(x, 2, 2, "SAME"),
        ),
        (
            lambda x: tf.nn.space_to_depth(x, 2, data_format="NCHW"),
            lambda x: tf.nn.space_to_depth(x, 2),
        ),
    ],
    ids=["depthwise convolution", "pool", "space to depth"],
)
def test_the_first_call_runs_on_the_npu_where_the_host_has_no_kernel(
    first: Callable[..., Any], last: Callable[..., Any], dtype: tf.DType
) -> None:
    native.forget_all()
    x = tf.cast(_random(1, 4, 6, 6), dtype)
    got = tf.transpose(first(x), (0, 2, 3, 1))
    np.testing.assert_allclose(got, last(tf.transpose(x, (0, 2, 3, 1))), rtol=1e-2, atol=1e-2)


def test_where_neither_has_a_kernel_the_host_says_so() -> None:
    with pytest.raises(tf.errors.NotFoundError, match="Could not find device"):
        tf.raw_ops.Svd(input=tf.eye(2, dtype=tf.float16))
