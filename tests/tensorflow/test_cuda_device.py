"""TensorFlow with NPU_DEVICE=cuda on the simulated driver: variables and results stay in the GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from npu_runtime import cuda
from npu_runtime import tensorflow as native
from tf_adapter import gpu


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    monkeypatch.setenv("NPU_DEVICE", "cuda")
    yield
    native.forget_all()


def copied(call: Callable[[], Any]) -> tuple[int, int]:
    """How often a call copies to the GPU and from there."""
    before = gpu.copies()
    call()
    after = gpu.copies()
    return after["uploads"] - before["uploads"], after["downloads"] - before["downloads"]


def stepping() -> tuple[Any, tf.Variable, tf.Variable]:
    total, state = tf.Variable(np.zeros(30, np.float32)), tf.Variable(np.ones(20, np.float32))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        total.assign_add(x)
        state.assign(state * 2.0 + tf.reduce_sum(x))
        return tf.reduce_sum(total)

    return step, total, state


def test_variables_stay_on_the_gpu_until_somebody_reads_them() -> None:
    step, total, state = stepping()
    x = tf.constant(np.ones(30, np.float32))
    assert copied(lambda: step(x)) == (3, 0)
    for _ in range(3):
        assert copied(lambda: step(x)) == (0, 0)
    assert copied(total.numpy) == (0, 1)
    np.testing.assert_array_equal(total.numpy(), 4.0)
    np.testing.assert_array_equal(state.numpy(), 466.0)
    assert float(step(x)) == 150.0


def test_what_the_host_writes_is_seen_by_the_gpu(tmp_path: Path) -> None:
    step, total, state = stepping()
    x = tf.constant(np.ones(30, np.float32))
    step(x)
    total.assign(np.full(30, 7.0, np.float32))
    assert float(step(x)) == 240.0
    total.assign_add(np.full(30, 2.0, np.float32))  # an operator of the host, in place
    assert float(step(x)) == 330.0
    saved = tf.train.Checkpoint(total=total, state=state).save(str(tmp_path / "state"))
    step(x)
    tf.train.Checkpoint(total=total, state=state).restore(saved)
    np.testing.assert_array_equal(total.numpy(), 11.0)
    assert float(step(x)) == 360.0


def test_an_older_value_keeps_its_contents() -> None:
    step, total, _ = stepping()
    x = tf.constant(np.ones(30, np.float32))
    step(x)
    before = total.read_value()
    step(x)
    np.testing.assert_array_equal(before.numpy(), 1.0)
    np.testing.assert_array_equal(total.numpy(), 2.0)


def test_host_kernels_copy_and_are_counted() -> None:
    @tf.function
    def mixed(x: tf.Tensor) -> tf.Tensor:
        y = tf.matmul(x, x)
        sorted_by_host = tf.numpy_function(np.sort, [y], tf.float32)
        return tf.matmul(y, tf.ensure_shape(sorted_by_host, (64, 64)))

    x = tf.constant(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
    mixed(x)
    assert copied(lambda: mixed(x)) == (1, 1)  # x is there, y comes, what the host made goes
    y = x.numpy() @ x.numpy()
    np.testing.assert_allclose(mixed(x).numpy(), y @ np.sort(y), rtol=1e-4, atol=1e-3)


def trained() -> list[float]:
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((6, 6, 2)),
            layers.Conv2D(3, 3, padding="same", use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(4),
        ]
    )
    model.compile(
        tf.keras.optimizers.SGD(0.05, momentum=0.9),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 6, 6, 2)).astype(np.float32), rng.integers(0, 4, 8)
    history = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
    return [*history, *model.predict(x[:4], verbose=0).reshape(-1)]


def test_a_network_trains_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = trained()
    assert gpu.copies()["uploads"] > 0
    native.forget_all()
    monkeypatch.setenv("NPU_DEVICE", "cpu")
    np.testing.assert_allclose(ours, trained(), rtol=2e-4, atol=2e-5)


def test_failures_are_tensorflows_errors() -> None:
    table = tf.constant(np.arange(6, dtype=np.float32))
    found = tf.function(lambda i: tf.gather(table, i) * 2.0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        found(tf.constant([1, 9]))
    np.testing.assert_array_equal(found(tf.constant([1, 5])).numpy(), [2.0, 10.0])
    grow = tf.function(lambda x: tf.exp(tf.broadcast_to(x, (1 << 16, 1 << 4))) * 2.0)
    cuda.set_memory_limit(0, cuda.memory_info(0)["current"] + (1 << 20))
    try:
        with pytest.raises(tf.errors.ResourceExhaustedError, match="asks for"):
            grow(tf.constant(1.0))
    finally:
        cuda.set_memory_limit(0, 0)


def test_operators_without_a_kernel_for_gpus_are_counted() -> None:
    x = tf.constant(np.array([3.0, 1.0, 2.0], np.float32))
    before = gpu.hosted().get("topk", 0)
    np.testing.assert_array_equal(tf.function(lambda x: tf.math.top_k(x * 2.0, 2))(x).values, [6.0, 4.0])
    assert gpu.hosted()["topk"] == before + 1
