"""TensorFlow on the NPU against tf.function and jit_compile=True on the CPU, interleaved in one process.

Keras models at their own precision and with bfloat16 allowed, what a call of a function of ten operators costs, and a
loop of a hundred eager operators. Answers are checked; a ratio above 1 means the NPU is faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import limit_threads
from benchmarks.measure import (
    console,
    geometric_mean,
    interleave,
    milliseconds,
    new_table,
    ratio,
    relative_error,
)

PEERS = ("tf.function", "jit_compile")
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2}
MODES = {"fp32": "must_keep_origin_dtype", "bf16": "allow_mix_precision_bf16"}
WARM_UP = 25  # calls after which a function whose variables rest has its final form


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", help="names of models, all without it")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--precisions", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small models, a few rounds")
    arguments = parser.parse_args()
    limit_threads()
    errors: list[bool] = []
    for precision in arguments.precisions:
        errors += _models(arguments, precision)
    errors += _overheads(2 if arguments.quick else arguments.rounds)
    return int(any(errors))


# -- models --------------------------------------------------------------------------------------------------


def _models(arguments: argparse.Namespace, precision: str) -> list[bool]:
    """A table of models at one precision; whether any answer is wrong."""
    import tensorflow as tf

    from benchmarks.keras_models import MODELS
    from tf_adapter.options import options

    unknown = sorted(set(arguments.models or ()) - set(MODELS))
    if unknown:
        raise SystemExit(f"there is no model {unknown[0]}: use {', '.join(MODELS)}")
    rounds = 2 if arguments.quick else arguments.rounds
    title = f"TensorFlow {tf.__version__}, batch {arguments.batch}, NPU {precision} against float32"
    table = new_table(
        title, ["model", "NPU ms", *(f"{p} ms" for p in PEERS), *(f"to {p}" for p in PEERS), "error"]
    )
    ratios: dict[str, list[float]] = {peer: [] for peer in PEERS}
    wrong = []
    with options.override(precision_mode=MODES[precision]):
        for name in arguments.models or MODELS:
            calls = _model_calls(MODELS[name], arguments.batch, arguments.quick)
            medians, error = _measured(calls, rounds)
            wrong.append(error > TOLERANCE[precision])
            _add_row(table, name, medians, error, milliseconds)
            for peer in PEERS:
                ratios[peer].append(medians[peer] / medians["NPU"])
    table.add_section()
    table.add_row("geometric mean", *[""] * 3, *(ratio(geometric_mean(ratios[p])) for p in PEERS), "")
    console.print(table)
    return wrong


def _add_row(
    table: Any, name: str, medians: Mapping[str, float], error: float, told: Callable[[float], str]
) -> None:
    shares = (ratio(medians[p] / medians["NPU"]) if p in medians else "–" for p in PEERS)
    times = (told(medians[n]) if n in medians else "–" for n in ("NPU", *PEERS))
    table.add_row(name, *times, *shares, f"{error:.0e}")


def _model_calls(model: Any, batch: int, quick: bool) -> dict[str, Callable[[], Any]]:
    """One call of the same model by each contender; each has variables on its own device."""
    import tensorflow as tf

    feed = model.feed(batch, quick)
    with tf.device("/CPU:0"):
        tf.keras.utils.set_random_seed(0)
        on_cpu = model.build(quick)
        host = tf.constant(feed)
    with tf.device("/NPU:0"):
        on_npu = model.build(quick)
        on_npu.set_weights(on_cpu.get_weights())
        device = tf.constant(feed)

    def called(network: Any, x: Any, place: str, **settings: Any) -> Callable[[], Any]:
        function = tf.function(lambda v: network(v, training=False), **settings)

        def call() -> Any:
            with tf.device(place):
                return function(x)

        return call

    return {
        "NPU": called(on_npu, device, "/NPU:0"),
        "tf.function": called(on_cpu, host, "/CPU:0"),
        "jit_compile": called(on_cpu, host, "/CPU:0", jit_compile=True),
    }


def _measured(
    calls: Mapping[str, Callable[[], Any]], rounds: int, burst_seconds: float = 0.1
) -> tuple[dict[str, float], float]:
    """Medians, and how far the NPU's answer is from tf.function's."""
    answers = {name: call().numpy() for name, call in calls.items()}
    for _ in range(WARM_UP):
        calls["NPU"]()
    error = max(
        relative_error([calls["NPU"]().numpy()], [answers["tf.function"]]),
        relative_error([answers["NPU"]], [answers["tf.function"]]),
    )
    times = interleave(calls, rounds, burst_seconds)
    return {name: statistics.median(values) for name, values in times.items()}, error


# -- overheads -----------------------------------------------------------------------------------------------


def _overheads(rounds: int) -> list[bool]:
    table = new_table(
        "Overheads", ["what", "NPU µs", *(f"{p} µs" for p in PEERS), *(f"to {p}" for p in PEERS), "error"]
    )
    wrong = []
    for name, make in {
        "a function of 10 operators": _ten_operators,
        "100 eager operators": _eager_loop,
    }.items():
        medians, error = _measured(make(), rounds, 0.02)
        wrong.append(error > TOLERANCE["fp32"])
        _add_row(table, name, medians, error, lambda seconds: f"{seconds * 1e6:.1f}")
    console.print(table)
    return wrong


def _ten_operators() -> dict[str, Callable[[], Any]]:
    import tensorflow as tf

    def body(x: Any, y: Any) -> Any:
        for _ in range(5):
            x = tf.tanh(x) * y
        return x

    return _on_both(
        body, lambda f: tf.function(f), {"jit_compile": lambda f: tf.function(f, jit_compile=True)}
    )


def _eager_loop() -> dict[str, Callable[[], Any]]:
    def body(x: Any, y: Any) -> Any:
        for _ in range(50):
            x = x * y
            x = x + y
        return x

    return _on_both(body, lambda f: f, {})


def _on_both(
    body: Callable[..., Any], wrap: Callable[..., Any], more: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[[], Any]]:
    import tensorflow as tf

    def placed(function: Any, place: str) -> Callable[[], Any]:
        with tf.device(place):
            x, y = tf.fill([8], 0.5), tf.fill([8], 0.25)

        def call() -> Any:
            with tf.device(place):
                return function(x, y)

        return call

    others = {name: placed(make(body), "/CPU:0") for name, make in more.items()}
    return {"NPU": placed(wrap(body), "/NPU:0"), "tf.function": placed(wrap(body), "/CPU:0"), **others}


if __name__ == "__main__":
    sys.exit(main())
