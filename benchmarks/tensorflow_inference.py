"""TensorFlow on the NPU against tf.function and jit_compile=True on the CPU, interleaved in one process.

Keras models at their own precision and with bfloat16 allowed, what a call of a function of ten operators costs, and a
loop of a hundred eager operators. Answers are checked; a ratio above 1 means the NPU is faster. The summary compares
every row with the faster of the two.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kept
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

OURS = "NPU"
PEERS = ("tf.function", "jit_compile")
OVERHEAD = "overhead"
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2, OVERHEAD: 1e-4}
MODES = {"fp32": "must_keep_origin_dtype", "bf16": "allow_mix_precision_bf16"}
UNITS: dict[str, tuple[str, Callable[[float], str]]] = {
    "fp32": ("ms", milliseconds),
    "bf16": ("ms", milliseconds),
    OVERHEAD: ("µs", lambda seconds: f"{seconds * 1e6:.1f}"),
}
WARM_UP = 25  # calls after which a function whose variables rest has its final form

Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Row:
    """What was measured of a model, or of an overhead."""

    name: str
    batch: int
    kind: str  # "fp32", "bf16" or "overhead"
    medians: dict[str, float]
    error: float

    @property
    def key(self) -> str:
        return f"{self.name} b{self.batch} {self.kind}"

    @property
    def wrong(self) -> bool:
        return not self.error <= TOLERANCE[self.kind]

    def ratio_to(self, peer: str) -> float | None:
        """How many times as fast as a peer the NPU is; None where the peer did not run."""
        return self.medians[peer] / self.medians[OURS] if peer in self.medians else None

    def ratio_to_best(self) -> float:
        return min(value for peer in PEERS if (value := self.ratio_to(peer)) is not None)


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    arguments = _parse_arguments()
    limit_threads()
    known = {key: Row(**fields) for key, fields in kept.read(arguments.json).items()}
    rows = []
    for key, measure in _cases(arguments):
        if key not in known:
            known[key] = measure()
            kept.write(arguments.json, {key: asdict(row) for key, row in known.items()})
        rows.append(known[key])
        times = " ".join(f"{name}={milliseconds(seconds)}" for name, seconds in known[key].medians.items())
        console.print(f"[dim]{key}: {times} ms[/]")
    _report(rows)
    return int(any(row.wrong for row in rows))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", help="names of models, all without it")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--precisions", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--overheads", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--json", type=Path, help="keep the rows there; a later run goes on with those missing"
    )
    parser.add_argument("--quick", action="store_true", help="small models, a few rounds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = 2
    return arguments


def _cases(arguments: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Row]]]:
    """The rows asked for, each with what measures it."""
    from benchmarks.keras_models import MODELS

    unknown = sorted(set(arguments.models or ()) - set(MODELS))
    if unknown:
        raise SystemExit(f"there is no model {unknown[0]}: use {', '.join(MODELS)}")
    names = MODELS if arguments.models is None else arguments.models
    for kind in arguments.precisions:
        for name in names:
            row = Row(name, arguments.batch, kind, {}, 0.0)
            yield row.key, partial(_model, row, MODELS[row.name], arguments)
    for name, make in OVERHEADS.items() if arguments.overheads else ():
        row = Row(name, 1, OVERHEAD, {}, 0.0)
        yield row.key, partial(_overhead, row, make, arguments.rounds)


# -- what is printed -----------------------------------------------------------------------------------------


def _report(rows: list[Row]) -> None:
    import tensorflow as tf

    for kind, (unit, told) in UNITS.items():
        chosen = [row for row in rows if row.kind == kind]
        if not chosen:
            continue
        title = f"TensorFlow {tf.__version__}, {kind}" + (
            " allowed, against float32" if kind == "bf16" else ""
        )
        names = (OURS, *PEERS)
        columns = [*(f"{n} {unit}" for n in names), *(f"to {p}" for p in PEERS), "error"]
        table = new_table(title, ["what", *columns])
        for row in chosen:
            times = (told(row.medians[n]) if n in row.medians else "–" for n in names)
            error = f"[red]{row.error:.0e}[/]" if row.wrong else f"{row.error:.0e}"
            table.add_row(f"{row.name} b{row.batch}", *times, *(ratio(row.ratio_to(p)) for p in PEERS), error)
        console.print(table)
        if kind in MODES:
            best = [row.ratio_to_best() for row in chosen]
            console.print(
                f"{kind}: geometric mean {ratio(geometric_mean(best))} the faster of {' and '.join(PEERS)}, "
                f"least {ratio(min(best))}"
            )


# -- models --------------------------------------------------------------------------------------------------


def _model(row: Row, model: Any, arguments: argparse.Namespace) -> Row:
    import tf_adapter

    with tf_adapter.options.override(precision_mode=MODES[row.kind]):
        return _measured(row, _model_calls(model, row.batch, arguments.quick), arguments.rounds)


def _model_calls(model: Any, batch: int, quick: bool) -> Calls:
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


def _measured(row: Row, calls: Calls, rounds: int, burst_seconds: float = 0.1) -> Row:
    """Medians, and how far the NPU's answer is from tf.function's."""
    answers = {name: call().numpy() for name, call in calls.items()}
    for _ in range(WARM_UP):
        calls[OURS]()
    wanted = [answers["tf.function"]]
    error = max(relative_error([got], wanted) for got in (answers[OURS], calls[OURS]().numpy()))
    times = interleave(calls, rounds, burst_seconds)
    return replace(row, medians={n: statistics.median(v) for n, v in times.items()}, error=error)


# -- overheads -----------------------------------------------------------------------------------------------


def _overhead(row: Row, make: Callable[[], Calls], rounds: int) -> Row:
    import tf_adapter  # noqa: F401  (registers the device)

    return _measured(row, make(), rounds, burst_seconds=0.02)


def _ten_operators() -> Calls:
    import tensorflow as tf

    def body(x: Any, y: Any) -> Any:
        for _ in range(5):
            x = tf.tanh(x) * y
        return x

    return _on_both(
        body, lambda f: tf.function(f), {"jit_compile": lambda f: tf.function(f, jit_compile=True)}
    )


def _eager_loop() -> Calls:
    def body(x: Any, y: Any) -> Any:
        for _ in range(50):
            x = x * y
            x = x + y
        return x

    return _on_both(body, lambda f: f, {})


def _on_both(
    body: Callable[..., Any], wrap: Callable[..., Any], more: Mapping[str, Callable[..., Any]]
) -> Calls:
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


OVERHEADS: dict[str, Callable[[], Calls]] = {
    "function of 10 operators": _ten_operators,
    "100 eager operators": _eager_loop,
}


if __name__ == "__main__":
    sys.exit(main())
