"""Recurrent layers of many kinds on the NPU against tf.function, XLA, and torch.compile: inference and training steps.

Keras' layers plain, with dropout, masks and other activations, cells of one's own, `tf.scan` and `tf.while_loop`; and
PyTorch's layers. A training step is the forward pass, all gradients and an update by SGD. Contenders are interleaved
and start from the same weights; answers (of training the losses of the first steps) are compared with the framework's.
Times are the least of all calls: those of small layers are lost in the noise of a busy machine otherwise. A ratio above
1 means ours is faster than the fastest peer.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import kept
from benchmarks.contenders import THREADS, limit_threads, start_tensorflow
from benchmarks.measure import (
    console,
    geometric_mean,
    interleave,
    milliseconds,
    new_table,
    ratio,
    relative_error,
)

OURS = "ours"
TOLERANCE = 2e-3
CHECKED_CALLS = 3
WARM_UP = 25  # calls after which a function whose variables rest has its final form
RATE = 1e-3

Call = Callable[[], Any]


@dataclass(frozen=True)
class Sizes:
    """Of a case: rows, steps, features of the input, units of a layer."""

    batch: int
    steps: int = 64
    features: int = 64
    units: int = 128


@dataclass
class Row:
    """What was measured of a case: least seconds by contender, the error of our answers."""

    name: str
    batch: int
    kind: str  # "inference" or "training"
    seconds: dict[str, float] = field(default_factory=dict)
    error: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.name} b{self.batch} {self.kind}"

    @property
    def peers(self) -> list[str]:
        return [name for name in self.seconds if name != OURS]

    def ratio_to_best(self) -> float:
        return min(self.seconds[name] for name in self.peers) / self.seconds[OURS]


# -- Keras -----------------------------------------------------------------------------------------------------


def _layer(name: str, **options: Any) -> Callable[[Sizes], list[Any]]:
    def make(sizes: Sizes) -> list[Any]:
        import tensorflow as tf

        return [getattr(tf.keras.layers, name)(sizes.units, **options)]

    return make


def _masked(name: str) -> Callable[[Sizes], list[Any]]:
    def make(sizes: Sizes) -> list[Any]:
        import tensorflow as tf

        return [tf.keras.layers.Masking(), *_layer(name)(sizes)]

    return make


def _stacked(sizes: Sizes) -> list[Any]:
    return [*_layer("LSTM", return_sequences=True)(sizes), *_layer("LSTM")(sizes)]


def _bidirectional(sizes: Sizes) -> list[Any]:
    import tensorflow as tf

    return [tf.keras.layers.Bidirectional(layer) for layer in _layer("LSTM")(sizes)]


def _own_cell(sizes: Sizes) -> list[Any]:
    """A minimal gated unit with a normalised candidate."""
    import tensorflow as tf

    class Cell(tf.keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.state_size = sizes.units

        def build(self, shape: Any) -> None:
            units = sizes.units
            self.w = self.add_weight(shape=(shape[-1], 2 * units), initializer="glorot_uniform")
            self.u = self.add_weight(shape=(units, units), initializer="orthogonal")
            self.v = self.add_weight(shape=(units, units), initializer="orthogonal")
            self.norm = tf.keras.layers.LayerNormalization()
            self.norm.build((None, units))

        def call(self, x: Any, states: Any) -> Any:
            (h,) = states
            a, b = tf.split(tf.matmul(x, self.w), 2, axis=-1)
            forget = tf.sigmoid(a + tf.matmul(h, self.u))
            candidate = tf.tanh(self.norm(b + tf.matmul(forget * h, self.v)))
            h = (1 - forget) * h + forget * candidate
            return h, [h]

    return [tf.keras.layers.RNN(Cell())]


def _by_scan(sizes: Sizes) -> list[Any]:
    return [_cell_layer(sizes, lambda x, h, step: _tf().scan(lambda a, row: step(row, a), x, h)[-1])]


def _by_while(sizes: Sizes) -> list[Any]:
    def loop(x: Any, h: Any, step: Any) -> Any:
        tf = _tf()
        rows = tf.TensorArray(tf.float32, x.shape[0]).unstack(x)
        collected = tf.TensorArray(tf.float32, x.shape[0])

        def body(i: Any, h: Any, collected: Any) -> Any:
            h = step(rows.read(i), h)
            return i + 1, h, collected.write(i, h)

        _, h, collected = tf.while_loop(lambda i, *_: i < x.shape[0], body, (0, h, collected))
        return h + tf.reduce_mean(collected.stack(), 0)

    return [_cell_layer(sizes, loop)]


def _tf() -> Any:
    import tensorflow as tf

    return tf


def _cell_layer(sizes: Sizes, loop: Callable[[Any, Any, Any], Any]) -> Any:
    """A plain recurrent layer whose loop over the steps is written out."""
    tf = _tf()

    class Layer(tf.keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(shape[-1], sizes.units), initializer="glorot_uniform")
            self.u = self.add_weight(shape=(sizes.units, sizes.units), initializer="orthogonal")
            self.b = self.add_weight(shape=(sizes.units,), initializer="zeros")

        def call(self, x: Any) -> Any:
            def step(row: Any, h: Any) -> Any:
                return tf.tanh(tf.matmul(row, self.w) + tf.matmul(h, self.u) + self.b)

            h = tf.zeros((sizes.batch, sizes.units))
            return loop(tf.transpose(x, [1, 0, 2]), h, step)

    return Layer()


KERAS: dict[str, Callable[[Sizes], list[Any]]] = {
    "LSTM": _layer("LSTM"),
    "GRU": _layer("GRU"),
    "SimpleRNN": _layer("SimpleRNN"),
    "LSTM recurrent_dropout": _layer("LSTM", recurrent_dropout=0.2),
    "LSTM dropout": _layer("LSTM", dropout=0.2),
    "LSTM both dropouts": _layer("LSTM", dropout=0.2, recurrent_dropout=0.2),
    "GRU recurrent_dropout": _layer("GRU", recurrent_dropout=0.2),
    "LSTM masked": _masked("LSTM"),
    "GRU masked": _masked("GRU"),
    "LSTM relu": _layer("LSTM", activation="relu"),
    "LSTM hard_sigmoid": _layer("LSTM", recurrent_activation="hard_sigmoid"),
    "GRU reset before": _layer("GRU", reset_after=False),
    "LSTM bidirectional": _bidirectional,
    "LSTM stacked": _stacked,
    "LSTM clipped": _layer("LSTM"),
    "own cell": _own_cell,
    "tf.scan": _by_scan,
    "tf.while_loop": _by_while,
}


def _input(sizes: Sizes) -> np.ndarray:
    """Sequences of different lengths, padded with zeros."""
    random = np.random.default_rng(1)
    x = random.standard_normal((sizes.batch, sizes.steps, sizes.features)).astype(np.float32)
    for row, length in enumerate(np.linspace(sizes.steps // 2, sizes.steps, sizes.batch)):
        x[row, int(length) :] = 0
    return x


def _keras_calls(row: Row, sizes: Sizes) -> dict[str, Callable[[], Call]]:
    """For each contender what makes its call."""
    tf = start_tensorflow()
    import tf_adapter  # noqa: F401  (registers the device)

    x = _input(sizes)

    def network() -> Any:
        tf.keras.utils.set_random_seed(0)
        layers = KERAS[row.name](sizes)
        return tf.keras.Sequential(
            [tf.keras.Input(x.shape[1:], sizes.batch), *layers, tf.keras.layers.Dense(8, dtype="float32")]
        )

    def inference(place: str, **options: Any) -> Call:
        with tf.device(place):
            model, given = network(), tf.constant(x)
            function = tf.function(lambda v: model(v, training=False), **options)

        def call() -> Any:
            with tf.device(place):
                return function(given)

        return call

    def training(place: str, **options: Any) -> Call:
        with tf.device(place):
            model, given = network(), tf.constant(x)
            target = tf.constant(
                np.random.default_rng(2).standard_normal((sizes.batch, 8)).astype(np.float32)
            )
            clip = {"global_clipnorm": 0.5} if row.name == "LSTM clipped" else {}
            optimizer = tf.keras.optimizers.SGD(RATE, **clip)
            optimizer.build(model.trainable_variables)

        @tf.function(**options)
        def step(given: Any, target: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(given, training=True) - target))
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        def call() -> Any:
            with tf.device(place):
                return step(given, target)

        return call

    make = inference if row.kind == "inference" else training
    return {
        "tf.function": lambda: make("/CPU:0"),
        OURS: lambda: make("/NPU:0"),
        "XLA": lambda: make("/CPU:0", jit_compile=True),
    }


# -- PyTorch ---------------------------------------------------------------------------------------------------


def _torch_layer(name: str, **options: Any) -> Callable[[Sizes], Any]:
    def make(sizes: Sizes) -> Any:
        import torch

        return getattr(torch.nn, name)(sizes.features, sizes.units, batch_first=True, **options)

    return make


TORCH: dict[str, Callable[[Sizes], Any]] = {
    "torch LSTM": _torch_layer("LSTM"),
    "torch GRU": _torch_layer("GRU"),
    "torch RNN": _torch_layer("RNN"),
    "torch RNN relu": _torch_layer("RNN", nonlinearity="relu"),
    "torch LSTM bidirectional": _torch_layer("LSTM", bidirectional=True),
    "torch LSTM stacked": _torch_layer("LSTM", num_layers=2),
    "torch LSTM projected": _torch_layer("LSTM", proj_size=32),
}


def _torch_calls(row: Row, sizes: Sizes) -> dict[str, Callable[[], Call]]:
    import torch

    import torchair

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch._dynamo.config.allow_rnn = True
    x = torch.from_numpy(_input(sizes))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = TORCH[row.name](sizes)
            width = self.layer(x)[0].shape[-1]
            self.head = torch.nn.Linear(width, 8)

        def forward(self, x: Any) -> Any:
            return self.head(self.layer(x)[0][:, -1])

    def made(compiled: Callable[[Any], Any]) -> Call:
        module = Network()
        if row.kind == "inference":
            function = compiled(module.eval())

            def infer() -> Any:
                with torch.no_grad():
                    return function(x)

            return infer
        function = compiled(module.train())
        target = torch.from_numpy(
            np.random.default_rng(2).standard_normal((sizes.batch, 8)).astype(np.float32)
        )
        optimizer = torch.optim.SGD(module.parameters(), RATE)

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.mse_loss(function(x), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return {
        "eager": lambda: made(lambda module: module),
        OURS: lambda: made(lambda module: torch.compile(module, backend=torchair.get_npu_backend())),
        "torch.compile": lambda: made(torch.compile),
    }


# -- the command -----------------------------------------------------------------------------------------------


def measure(row: Row, sizes: Sizes, rounds: int, processor_time: bool) -> Row:
    """Check the answers against the framework's, which comes first, then take interleaved times."""
    makers = _torch_calls(row, sizes) if row.name in TORCH else _keras_calls(row, sizes)
    calls: dict[str, Call] = {}
    answers: dict[str, list[np.ndarray]] = {}
    for name, make in makers.items():
        try:
            call = make()
            answers[name] = [np.array(call()) for _ in range(CHECKED_CALLS)]
            calls[name] = call
        except Exception as error:  # a peer that cannot run a case is reported, not fatal
            if name == OURS:
                raise
            row.failures[name] = f"{type(error).__name__}: {error}"[:300]
    for _ in range(WARM_UP):
        calls[OURS]()
    reference = next(iter(answers.values()))
    row.error = relative_error(answers[OURS], reference)
    clock = time.process_time if processor_time else time.perf_counter
    times = interleave(calls, rounds, clock=clock)
    row.seconds = {name: min(taken) for name, taken in times.items()}
    return row


def show(rows: list[Row]) -> None:
    """Print what was measured, by kind."""
    for kind in dict.fromkeys(row.kind for row in rows):
        table = new_table(
            f"Recurrent layers, {kind}, ms", ["case", OURS, "framework", "its compiler", "best peer", "error"]
        )
        chosen = [row for row in rows if row.kind == kind]
        for row in chosen:
            order = [OURS, *(n for n in ("tf.function", "eager") if n in row.seconds)]
            order += [n for n in ("XLA", "torch.compile") if n in row.seconds]
            cells = [milliseconds(row.seconds[n]) for n in order] + ["–"] * (3 - len(order))
            table.add_row(f"{row.name} b{row.batch}", *cells, ratio(row.ratio_to_best()), f"{row.error:.0e}")
        console.print(table)
        best = [row.ratio_to_best() for row in chosen]
        console.print(f"{kind}: geometric mean {ratio(geometric_mean(best))}, least {ratio(min(best))}")
    for row in rows:
        for name, why in row.failures.items():
            console.print(f"{row.key}: {name} did not run: {why}", style="dim", markup=False)


def main() -> int:
    """Measure and print; the exit status says whether our answers are right."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", choices=[*KERAS, *TORCH], default=[*KERAS, *TORCH])
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32])
    parser.add_argument(
        "--kinds", nargs="*", choices=("inference", "training"), default=["inference", "training"]
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--one-thread",
        action="store_true",
        help="one thread each, processor time: figures that hold on a busy machine",
    )
    parser.add_argument("--quick", action="store_true", help="few steps, units and rounds")
    parser.add_argument(
        "--json", type=Path, help="keep the rows there; a later run goes on with those missing"
    )
    given = parser.parse_args()
    limit_threads(1 if given.one_thread else THREADS)
    known = {key: Row(**fields) for key, fields in kept.read(given.json).items()}
    rows = []
    for row in (Row(c, b, k) for c in given.cases for b in given.batches for k in given.kinds):
        if row.key not in known:
            sizes = Sizes(row.batch, 12, 8, 16) if given.quick else Sizes(row.batch)
            rounds = 1 if given.quick else given.rounds
            known[row.key] = measure(row, sizes, rounds, given.one_thread)
            kept.write(given.json, {key: asdict(found) for key, found in known.items()})
        rows.append(known[row.key])
        console.print(f"[dim]{row.key}: {rows[-1].ratio_to_best():.2f}[/]")
    show(rows)
    return 0 if all(row.error <= TOLERANCE for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
