"""Whether the input pipeline runs while the device computes: `fit` over a `tf.data` map that keeps a core busy.

The device and the pipeline get one core each. A step should take no longer than the longer of the two alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

__all__ = ["measure"]

STEPS = 24
WARM_UP = 4
SHARE = 0.9  # of the step's own time that the pipeline is to take


def measure(small: bool) -> dict[str, float]:
    """Seconds of a step: the device alone, the pipeline alone, and both."""
    import npu_runtime
    from benchmarks.contenders import start_tensorflow

    tf = start_tensorflow()
    npu_runtime.set_num_threads(1)
    side, batch = (16, 16) if small else (48, 64)
    images, labels = tf.random.normal([batch, side, side, 3]), tf.range(batch) % 10
    with tf.device("/NPU:0"):
        model = _model(tf, side)
        given = tf.data.Dataset.from_tensors((images, labels)).repeat()
        _seconds(model, given)
        compute = min(_seconds(model, given) for _ in range(3))
    passes = _passes(images, labels, SHARE * compute)
    data = _pipeline(images, labels, passes)
    with tf.device("/CPU:0"):
        alone = min(_read(iter(data)) for _ in range(3))
    with tf.device("/NPU:0"):
        both = min(_seconds(model, data) for _ in range(3))
    return {"compute": compute, "input": alone, "together": both}


def _model(tf: Any, side: int) -> Any:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input([side, side, 3]),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    return model


def _pipeline(images: Any, labels: Any, passes: int) -> Any:
    """Batches that take `passes` rounds of arithmetic on one core each."""
    import tensorflow as tf

    def prepared(x: Any, y: Any) -> tuple[Any, Any]:
        x = tf.while_loop(lambda i, _: i < passes, lambda i, v: (i + 1, tf.sin(v) * 1.01), (0, x))[1]
        return x, y

    with tf.device("/CPU:0"):
        data = tf.data.Dataset.from_tensors((images, labels)).repeat().map(prepared, num_parallel_calls=1)
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1
        options.threading.max_intra_op_parallelism = 1
        return data.with_options(options)


def _passes(images: Any, labels: Any, seconds: float) -> int:
    """How many rounds take so long."""
    tried = 20
    taken = min(_read(iter(_pipeline(images, labels, tried))) for _ in range(2))
    return max(1, round(tried * seconds / taken))


def _read(batches: Iterator[Any]) -> float:
    """Seconds of a batch when nobody computes."""
    for _ in range(WARM_UP):
        next(batches)
    start = time.perf_counter()
    for _ in range(STEPS):
        next(batches)
    return (time.perf_counter() - start) / STEPS


def _seconds(model: Any, data: Any) -> float:
    """Seconds of a step of `fit`, without the first ones."""
    import tensorflow as tf

    ends: list[float] = []

    def ended(batch: int, logs: Any) -> None:
        ends.append(time.perf_counter())

    note = tf.keras.callbacks.LambdaCallback(on_train_batch_end=ended)
    model.fit(data, epochs=1, steps_per_epoch=WARM_UP + STEPS, verbose=0, callbacks=[note])
    return (ends[-1] - ends[WARM_UP - 1]) / STEPS
