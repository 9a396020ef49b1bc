"""Keras and whole programs on the device: training, prediction, saving, many threads, interrupts."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import npu_runtime


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(0)
    x = random.rand(64, 8).astype(np.float32)
    return x, (x @ random.rand(8, 2)).astype(np.float32)


def _model() -> Any:
    layers = tf.keras.layers
    init = tf.keras.initializers.RandomUniform(-0.5, 0.5, seed=1)
    model = tf.keras.Sequential(
        [
            layers.Input([8]),
            layers.Dense(16, use_bias=False, kernel_initializer=init),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dense(2, kernel_initializer=init),
        ]
    )
    model.compile(tf.keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def test_fit_predict_and_evaluate_as_on_the_cpu() -> None:
    x, y = _data()
    results = []
    for device in ("/NPU:0", "/CPU:0"):
        with tf.device(device):
            tf.keras.backend.clear_session()
            model = _model()
            history = model.fit(x, y, epochs=3, batch_size=16, shuffle=False, verbose=0).history
            results.append(
                (history, model.predict(x, verbose=0), model.evaluate(x, y, verbose=0), model(x).numpy())
            )
    mine, theirs = results
    for key in theirs[0]:
        np.testing.assert_allclose(mine[0][key], theirs[0][key], rtol=1e-3)
    for got, wanted in zip(mine[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_save_and_load(tmp_path: Path) -> None:
    x, y = _data()
    model = _model()
    model.fit(x, y, epochs=1, verbose=0)
    wanted = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(x, verbose=0), wanted, rtol=1e-5, atol=1e-6)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    got = next(iter(served(tf.constant(x)).values()))
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_training_loop_by_hand() -> None:
    x, y = _data()
    losses = {}
    for device in ("/NPU:0", "/CPU:0"):
        with tf.device(device):
            w = tf.Variable(tf.zeros([8, 2]))
            optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

            @tf.function
            def step(x: Any, y: Any, w: Any = w, optimizer: Any = optimizer) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
                optimizer.apply_gradients([(tape.gradient(loss, w), w)])
                return loss

            losses[device] = [float(step(tf.constant(x), tf.constant(y))) for _ in range(10)]
    np.testing.assert_allclose(losses["/NPU:0"], losses["/CPU:0"], rtol=1e-4)


def test_datasets_feed_functions() -> None:
    x, y = _data()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=1).batch(10).prefetch(2)
    total = tf.function(lambda a, b: tf.reduce_sum(a) + tf.reduce_sum(b))
    assert abs(sum(float(total(a, b)) for a, b in dataset) - x.sum() - y.sum()) < 1e-2


def _five_models() -> list[tuple[Any, Callable[[int], np.ndarray]]]:
    """Models of five kinds, each with inputs of a shape that a number decides."""
    layers, random = tf.keras.layers, np.random.RandomState(0)

    def network(shape: tuple[int | None, ...], *made: Any, dtype: str = "float32") -> Any:
        given = layers.Input(shape, dtype=dtype)
        value = given
        for layer in made:
            value = layer(value)
        return tf.keras.Model(given, value)

    def noise(*shape: int) -> np.ndarray:
        return random.rand(*shape).astype(np.float32)

    words = layers.Embedding(40, 8)
    sequence = layers.Input((None,), dtype="int32")
    h = words(sequence)
    attended = layers.LayerNormalization()(h + layers.MultiHeadAttention(2, 4)(h, h))
    transformer = tf.keras.Model(sequence, layers.GlobalAveragePooling1D()(attended))
    return [
        (network((6,), layers.Dense(16, "tanh"), layers.Dense(3)), lambda n: noise(n, 6)),
        (
            network((None, None, 3), layers.Conv2D(4, 3, activation="relu"), layers.GlobalAveragePooling2D()),
            lambda n: noise(1, 6 + n, 8, 3),
        ),
        (network((None, 5), layers.LSTM(6)), lambda n: noise(2, 2 + n, 5)),
        (transformer, lambda n: random.randint(0, 40, (2, 3 + n)).astype(np.int32)),
        (
            network(
                (8,), layers.Lambda(lambda x: tf.boolean_mask(x, x[:, 0] > 0.5)), layers.Dense(4, "relu")
            ),
            lambda n: noise(4 + n, 8),
        ),
    ]


def test_two_threads_five_models_changing_shapes() -> None:
    """Each thread calls each model many times: the answers are the CPU's, and memory does not grow."""
    with tf.device("/NPU:0"):
        models = _five_models()
    functions = [tf.function(model, reduce_retracing=True) for model, _ in models]
    inputs = [[tf.constant(make(n)) for n in (1, 2, 3, 5, 7)] for _, make in models]
    with tf.device("/CPU:0"):
        hosted = [tf.function(model, reduce_retracing=True) for model, _ in models]
        wanted = [[hosted[k](x).numpy() for x in inputs[k]] for k in range(len(models))]
    wrong: list[Any] = []

    def work(start: int, count: int) -> None:
        try:
            for i in range(count * len(models)):
                k, n = (start + i) % len(models), (start + i // len(models)) % 5
                np.testing.assert_allclose(
                    functions[k](inputs[k][n]).numpy(), wanted[k][n], rtol=1e-4, atol=1e-5
                )
        except Exception as error:
            wrong.append(error)

    def together(count: int) -> None:
        threads = [threading.Thread(target=work, args=(i, count)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    together(30)
    gc.collect()
    before, resident = npu_runtime.memory_info()["current"], _resident()
    together(400)
    gc.collect()
    assert not wrong, wrong[0]
    assert npu_runtime.memory_info()["current"] - before < 1 << 20
    if "asan" not in os.environ.get("LD_PRELOAD", ""):  # which keeps freed memory to find late uses of it
        assert _resident() - resident < 16 << 20


def _resident() -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_interrupt_during_a_compile_is_raised_and_the_next_call_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tf_adapter import functions

    original = functions.plan_function
    interrupt = [True]

    def slow(*args: Any, **named: Any) -> Any:
        if interrupt[0]:
            interrupt[0] = False
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        return original(*args, **named)

    monkeypatch.setattr(functions, "plan_function", slow)
    function = tf.function(lambda x: x * 2.0 + 1.0)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            function(tf.constant([1.0]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert function(tf.constant([1.0])).numpy().tolist() == [3.0]


def test_an_error_in_a_compile_names_its_cause_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from tf_adapter import functions

    def fail(*args: Any, **named: Any) -> Any:
        raise tf.errors.UnimplementedError(None, None, "not today")

    function = tf.function(lambda x: x * 3.0)
    with monkeypatch.context() as patch:
        patch.setattr(functions, "plan_function", fail)
        with pytest.raises(tf.errors.UnimplementedError, match="not today"):
            function(tf.constant([1.0]))
    assert function(tf.constant([1.0])).numpy().tolist() == [3.0]


def test_a_program_that_leaves_everything_alive_ends_well() -> None:
    code = """
        import threading
        import tensorflow as tf, tf_adapter
        v = tf.Variable(tf.ones([64, 64]))
        f = tf.function(lambda x: tf.matmul(x, v) + v.assign_add(x))
        y = f(tf.ones([64, 64]))
        for _ in range(8):
            z = tf.tanh(y)
        t = threading.Thread(target=lambda: [f(y) for _ in range(50)], daemon=True)
        t.start()
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
