"""Training-step speed against TensorFlow, TF-XLA and torch.compile.

A step is the forward pass, all gradients and an AdamW update of every variable. Each row (model, batch, precision) runs
in a process of its own with all contenders interleaved on two threads. All start from the same weights; the losses
of the first steps are compared with TensorFlow's in float32. A ratio above 1 means ours is faster.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.contenders import OURS, THREADS, limit_threads, start_tensorflow
from benchmarks.measure import console, geometric_mean, interleave, milliseconds, new_table, ratio

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("tensorflow", "xla", "torch")
CASES = (("resnet50", 16), ("resnet50", 32), ("bert", 8), ("lstm", 16), ("cnn", 32))
PRECISIONS = ("fp32", "bf16")
RATE = 1e-5
CHECKED_STEPS = 3
TOLERANCE = {"fp32": 2e-3, "bf16": 5e-2}  # of losses, relative
ROW_LIMIT_S = 1800

Step = Callable[[], float]  # one training step; its loss


@dataclass
class Row:
    """What was measured of one case."""

    model: str
    batch: int
    precision: str
    medians: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.model} b{self.batch} {self.precision}"

    def ratio_to_best(self) -> float | None:
        """How many times faster ours is than the fastest peer with right losses."""
        limit = TOLERANCE[self.precision]
        right = [m for n, m in self.medians.items() if n != OURS and self.errors[n] <= limit]
        return min(right) / self.medians[OURS] if right and OURS in self.medians else None


# -- contenders ------------------------------------------------------------------------------------------------


@dataclass
class Subject:
    """A network in both frameworks with one set of weights, its input and its target."""

    name: str
    batch: int
    precision: str
    small: bool

    def __post_init__(self) -> None:
        from benchmarks.models.zoo import zoo

        model = CNN if self.name == "cnn" else zoo(self.small)[self.name]
        self.model = model() if model is CNN else model
        self.module = self.model.module()
        self.inputs = self.model.inputs(self.batch)
        shape = tuple(self.module(*map(_tensor, self.inputs)).shape)
        random = np.random.default_rng(3)
        self.classified = len(shape) == 2
        self.target = (
            random.integers(0, shape[1], shape[0])
            if self.classified
            else random.standard_normal(shape).astype(np.float32)
        )


def _tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def CNN() -> Any:
    """A small convolutional network for small images."""
    from torch import nn

    from benchmarks.models.zoo import ZooModel, image

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        )

    def rebuild(port: Any, x: Any) -> Any:
        for place in ("0", "3"):
            x = port.ops.max_pool(port.ops.relu(port.conv(x, place)), 2)
        x = port.ops.mean(port.ops.relu(port.conv(x, "6")), axis=(1, 2))
        return port.dense(x, "10")

    return ZooModel("cnn", "small CNN", make, rebuild, image(32))


def _keras_step(subject: Subject, precision: str) -> tuple[Any, list[np.ndarray]]:
    from benchmarks.models.export import channels_last, keras_model

    tf = start_tensorflow()
    policy = "mixed_bfloat16" if precision == "bf16" else "float32"
    model = keras_model(subject.model, subject.batch, subject.module, policy)
    weights = model.trainable_variables
    optimizer = tf.keras.optimizers.AdamW(RATE)
    optimizer.build(weights)

    def train(*given: Any) -> Any:
        *inputs, target = given
        with tf.GradientTape() as tape:
            y = model(inputs if len(inputs) > 1 else inputs[0], training=True)
            if subject.classified:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(target, y)
            else:
                each = tf.square(y - target)
            loss = tf.reduce_mean(each)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    target = subject.target
    return train, [*channels_last(subject.inputs), target]


def _ours(subject: Subject) -> tuple[Step, int]:
    from ge.options import CompileOptions, PrecisionMode
    from tests.support.tf_training import TrainStep

    train, arrays = _keras_step(subject, "fp32")
    mode = PrecisionMode.MIX_BF16 if subject.precision == "bf16" else PrecisionMode.KEEP
    step = TrainStep(train, arrays, CompileOptions(precision_mode=mode))
    return lambda: float(step(*arrays)[0]), int(step.model.plan.arena_bytes)


def _by_tensorflow(subject: Subject, *, xla: bool) -> tuple[Step, int]:
    tf = start_tensorflow()
    train, arrays = _keras_step(subject, subject.precision)
    function = tf.function(train, jit_compile=xla)
    tensors = [tf.constant(a) for a in arrays]
    return lambda: float(function(*tensors)), 0


def _by_torch(subject: Subject) -> tuple[Step, int]:
    import torch

    torch.set_num_threads(THREADS)
    module = subject.model.module().train().requires_grad_(True)
    if subject.name in ("resnet50", "cnn"):
        module = module.to(memory_format=torch.channels_last)
    # Keras' weight decay and epsilon.
    optimizer = torch.optim.AdamW(module.parameters(), RATE, weight_decay=0.004, eps=1e-7)
    inputs = [_tensor(a) for a in subject.inputs]
    target = _tensor(subject.target)
    compiled = torch.compile(module)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=subject.precision == "bf16"):
            y = compiled(*inputs)
        kind = torch.nn.functional.cross_entropy if subject.classified else torch.nn.functional.mse_loss
        loss = kind(y.float(), target)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step, 0


CONTENDERS: dict[str, Callable[[Subject], tuple[Step, int]]] = {
    OURS: _ours,
    "tensorflow": lambda subject: _by_tensorflow(subject, xla=False),
    "xla": lambda subject: _by_tensorflow(subject, xla=True),
    "torch": _by_torch,
}


# -- rows ------------------------------------------------------------------------------------------------------


def measure(row: Row, contenders: list[str], rounds: int, small: bool) -> None:
    """Fill a row: the first losses of every contender against TensorFlow's, then interleaved times."""
    subject = Subject(row.model, row.batch, row.precision, small)
    reference = _losses(_by_tensorflow(Subject(row.model, row.batch, "fp32", small), xla=False)[0])
    steps: dict[str, Step] = {}
    for name in contenders:
        try:
            step, row.memory[name] = CONTENDERS[name](subject)
            found = _losses(step)
        except Exception as error:  # a peer that cannot run a case is reported, not fatal
            if name == OURS:
                raise
            row.failures[name] = f"{type(error).__name__}: {error}"[:300]
            continue
        steps[name] = step
        row.errors[name] = max(abs(m - t) / abs(t) for m, t in zip(found, reference, strict=True))
    times = interleave(steps, rounds)
    row.medians = {name: statistics.median(taken) for name, taken in times.items()}


def _losses(step: Step) -> list[float]:
    return [step() for _ in range(CHECKED_STEPS)]


def _in_process(row: Row, contenders: list[str], rounds: int, small: bool) -> Row:
    command = [sys.executable, __file__, "--row", json.dumps(asdict(row)), "--rounds", str(rounds)]
    command += ["--contenders", *contenders] + (["--quick"] if small else [])
    done = subprocess.run(command, capture_output=True, text=True, timeout=ROW_LIMIT_S, cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(f"{row.title} failed:\n{done.stderr[-3000:]}")
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def show(rows: list[Row], contenders: list[str]) -> None:
    """Print a table of times and ratios."""
    table = new_table("Training step, ms", ["case", *contenders, "best peer", "loss error"])
    for row in rows:
        cells = [milliseconds(row.medians[n]) if n in row.medians else "–" for n in contenders]
        table.add_row(row.title, *cells, ratio(row.ratio_to_best()), f"{row.errors[OURS]:.1e}")
    console.print(table)
    for precision in dict.fromkeys(r.precision for r in rows):
        found = [r.ratio_to_best() for r in rows if r.precision == precision]
        mean = geometric_mean(v for v in found if v is not None)
        console.print(f"geometric mean over the best peer, {precision}: {ratio(mean)}")
    for row in rows:
        for name, why in row.failures.items():
            console.print(f"{row.title}: {name} did not run: {why}", style="dim")
        wrong = {n: e for n, e in row.errors.items() if not e <= TOLERANCE[row.precision]}
        for name, error in wrong.items():
            console.print(f"{row.title}: losses of {name} are off by {error:.1e}", style="red")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", choices=sorted({m for m, _ in CASES}))
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--contenders", nargs="*", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, help="instead of the usual batches")
    parser.add_argument("--quick", action="store_true", help="small models, batch 2, three rounds")
    parser.add_argument("--json", type=Path, help="also write the rows to a file")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    limit_threads()
    if given.row:
        row = Row(**json.loads(given.row))
        measure(row, given.contenders, given.rounds, given.quick)
        print(json.dumps(asdict(row)))
        return 0
    batch = 2 if given.quick else given.batch
    cases = dict.fromkeys((m, batch or b) for m, b in CASES if not given.models or m in given.models)
    rows = []
    for model, size in cases:
        for precision in given.precisions:
            rounds = 3 if given.quick else given.rounds
            rows.append(_in_process(Row(model, size, precision), given.contenders, rounds, given.quick))
            console.print(f"{rows[-1].title}: {ratio(rows[-1].ratio_to_best())}")
    show(rows, given.contenders)
    if given.json:
        given.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    right = all(r.errors[OURS] <= TOLERANCE[r.precision] and math.isfinite(r.medians[OURS]) for r in rows)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
