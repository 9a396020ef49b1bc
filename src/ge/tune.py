"""Measures the costs of the current machine: `python -m ge.tune` times implementations against each other.

Each entry of a cost table is a crossover: the size from which, or up to which, one implementation is faster than those
after it in its operator's list, or all threads are faster than one. A small graph is compiled at several sizes, once
with the choice forced on and once forced off; the crossover is the size that would have lost the least time.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

import tbe
from ge.compiler import compile_graph
from ge.implementations import SETTINGS
from ge.implementations.product import predicted_gain
from ge.ir.types import numpy_dtype
from ge.model.model import Model
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.plan import Plan
from ge.target import CostTable, Target, costs_file, host
from tbe.processor import Processor
from tbe.schedule import schedule

__all__ = ["SWEEPS", "Sweep", "choices", "crossover", "main", "measure"]

_NEVER, _ALWAYS = (1 << 40) - 1, 1  # bounds that no size meets, and that every size meets
_LAST = "channels_last"
_CHOSEN = ("implementation", "grain", *sorted(SETTINGS))
_ROUNDS = 7
_SECONDS = 0.02  # of one timing


@dataclass(frozen=True)
class Sweep:
    """The measurement of one entry of the table: graphs of growing size, and the quantity that the entry bounds."""

    entry: str
    sizes: Sequence[int]
    build: Callable[[GraphBuilder, int], ir.Value]
    quantity: Callable[[int, Target], float] = lambda size, target: size
    at_most: bool = False  # the implementation is faster up to the crossover

    def forced(self, costs: CostTable, on: bool) -> CostTable:
        """The table with which the implementation is always, or never, chosen."""
        low = on is not self.at_most
        values: dict[str, Any] = {self.entry: _ALWAYS if low else _NEVER}
        return replace(costs, **values)


# -- graphs ------------------------------------------------------------------------------------------------------


def _weights(*shape: int, dtype: str = "float32") -> np.ndarray:
    scale = math.sqrt(math.prod(shape[1:]) or 1)
    return (np.random.default_rng(0).standard_normal(shape) / scale).astype(numpy_dtype(dtype))


def _product(b: GraphBuilder, rows: int, depth: int, columns: int, constant: bool) -> ir.Value:
    x = b.input("x", (rows, depth), "float32")
    w = b.constant(_weights(depth, columns)) if constant else b.input("w", (depth, columns), "float32")
    return b.op("MatMul", x, w)


def _conv(
    b: GraphBuilder,
    shape: tuple[int, int, int, int],
    outputs: int,
    kernel: int = 3,
    dtype: str = "float32",
    constant: bool = True,
    swish: bool = False,
) -> ir.Value:
    """A convolution of channels-last images (N, H, W, C)."""
    x = b.input("x", shape, dtype)
    size = (kernel, kernel, shape[3], outputs)
    w = b.constant(_weights(*size, dtype=dtype)) if constant else b.input("w", size, dtype)
    pads: dict[str, Any] = {"pads_begin": [kernel // 2] * 2, "pads_end": [kernel // 2] * 2}
    y = b.op("Conv", x, w, data_format="channels_last", weight_format="IO", **pads)
    return b.op("Swish", y) if swish else y


def _gradient(
    b: GraphBuilder, shape: tuple[int, int, int, int], outputs: int, kernel: int, groups: int = 1
) -> ir.Value:
    x, dy = b.input("x", shape, "float32"), b.input("dy", (*shape[:3], outputs), "float32")
    pads: dict[str, Any] = {"pads_begin": [kernel // 2] * 2, "pads_end": [kernel // 2] * 2}
    return b.op(
        "ConvGradWeight", x, dy, kernel=[kernel] * 2, groups=groups, data_format="channels_last", **pads
    )


def _lstm(b: GraphBuilder, batch: int) -> ir.Value:
    units, steps = 256, 16
    x, state = b.input("x", (steps, batch, units), "float32"), np.zeros((1, batch, units), np.float32)
    w, r = _weights(1, units, 4, units), _weights(1, units, 4, units)
    return b.op("LSTM", x, w, r, np.zeros((1, 4, units), np.float32), state, state)[0]


def _attention(b: GraphBuilder, queries: int) -> ir.Value:
    q, k, v = (b.input(n, (8, s, 64), "float32") for n, s in (("q", queries), ("k", 128), ("v", 128)))
    return b.op("Attention", q, k, v, scale=0.125)[0]


def _exponentials(units: int) -> int:
    """Elements of this many units of parallel work on a named target."""
    return units * Processor().chunk


def _share_ns(units: int, target: Target) -> float:
    """The estimated time of a core's share of the exponentials."""
    x = tbe.placeholder((_exponentials(units),), "float32")
    return schedule([x], [tbe.unary("exp", x)], target.processor).nanoseconds / target.cores


def _tiles(count: int) -> tuple[int, int]:
    """Height and width of one image with this many 4x4 tiles."""
    return 4, 4 * count


SWEEPS: tuple[Sweep, ...] = (
    Sweep(
        "wake_ns",
        (2, 4, 6, 8, 12, 16, 24, 32, 48, 64),
        lambda b, n: b.op("Exp", b.input("x", (_exponentials(n),), "float32")),
        _share_ns,
    ),
    Sweep(
        "library_flops",
        (8, 16, 24, 32, 48, 64, 88),
        lambda b, n: _product(b, n, 64, 64, True),
        lambda n, target: 2 * n * 64 * 64,
    ),
    Sweep(
        "library_bytes",
        (8, 12, 16, 24, 32),
        lambda b, n: b.op(
            "MaxPool", b.input("x", (1, n, n, 64), "float32"), kernel=[1, 1], data_format=_LAST
        ),
        lambda n, target: 2 * 4 * n * n * 64,
    ),
    Sweep("strassen_depth", (128, 256, 512, 1024), lambda b, n: _product(b, 1024, n, 1024, False)),
    Sweep(
        "strassen_gain",
        (256, 384, 512, 768, 1024),
        lambda b, n: _product(b, n, 768, n, False),
        lambda n, target: predicted_gain(n, n, target),
    ),
    Sweep(
        "strassen_gain_packed",
        (256, 384, 512, 768, 1024),
        lambda b, n: _product(b, n, 768, n, True),
        lambda n, target: predicted_gain(n, n, target),
    ),
    Sweep(
        "narrow_elements",
        (32, 64, 128, 256, 512),
        lambda b, n: _product(b, 4, n, n, False),
        lambda n, target: n * n,
    ),
    Sweep(
        "outer_bytes",
        (512, 1024, 2048, 4096),
        lambda b, n: _product(b, n, 4, 1024, False),
        lambda n, target: 4 * n * 1024,
    ),
    Sweep("winograd_tiles", (4, 8, 12, 16, 32), lambda b, n: _conv(b, (1, *_tiles(n), 256), 256)),
    Sweep(
        "winograd_tiles_variable",
        (8, 16, 32, 64, 128),
        lambda b, n: _conv(b, (1, *_tiles(n), 128), 128, constant=False),
    ),
    Sweep(
        "winograd_tiles_bf16",
        (12, 24, 40, 64, 128),
        lambda b, n: _conv(b, (1, *_tiles(n), 256), 256, dtype="bfloat16"),
    ),
    Sweep("winograd_channels", (16, 32, 48, 64), lambda b, n: _conv(b, (1, 56, 56, n), n)),
    Sweep(
        "winograd_gradient_tiles", (12, 24, 48, 96), lambda b, n: _gradient(b, (1, *_tiles(n), 128), 128, 3)
    ),
    Sweep(
        "pointwise_depth", (16, 32, 48, 64, 128), lambda b, n: _conv(b, (1, 56, 56, n), 96, 1), at_most=True
    ),
    Sweep("pointwise_rows", (4, 8, 16, 32, 64), lambda b, n: _conv(b, (1, 1, n, 96), 96, 1, swish=True)),
    Sweep(
        "swish_elements",
        (16, 32, 64, 128),
        lambda b, n: _conv(b, (1, n, n, 16), 16, 5, swish=True),
        lambda n, target: n * n * 16,
    ),
    Sweep(
        "pointwise_rows_per_core",
        (32, 64, 128, 256, 512),
        lambda b, n: _conv(b, (1, 1, n, 96), 96, 1, swish=True),
        lambda n, target: n // target.cores,
    ),
    Sweep("weight_gradient_channels", (32, 48, 64, 96), lambda b, n: _gradient(b, (4, 14, 14, n), n, 1)),
    Sweep(
        "weight_gradient_pixels",
        (14, 20, 28, 40, 56),
        lambda b, n: _gradient(b, (1, n, n, 128), 128, 1),
        lambda n, target: n * n // 128,
    ),
    Sweep(
        "gradient_flops",
        (32, 64, 96, 128, 160),
        lambda b, n: _gradient(b, (1, n, n, 3), 24, 5),
        lambda n, target: 2 * n * n * 24 * 3 * 5 * 5,
    ),
    Sweep(
        "depthwise_gradient_bytes",
        (1, 2, 4, 8, 16),
        lambda b, n: _gradient(b, (n, 56, 56, 96), 96, 3, groups=96),
        lambda n, target: 2 * 4 * n * 56 * 56 * 96,
    ),
    Sweep("lstm_batch", (1, 2, 3, 4), _lstm, at_most=True),
    Sweep("attention_queries", (4, 8, 16, 32), _attention),
)


# -- timing ------------------------------------------------------------------------------------------------------


def _compiled(sweep: Sweep, size: int, target: Target, on: bool) -> Model:
    b = GraphBuilder(sweep.entry)
    b.output(sweep.build(b, size))
    assert target.costs is not None
    return compile_graph(
        b.graph, CompileOptions(target=replace(target, costs=sweep.forced(target.costs, on)))
    )


def _speedup(models: Sequence[Model], rounds: int) -> float:
    """The second model's time divided by the first one's: medians of interleaved runs."""
    feeds = [np.ones(p.desc.shape, numpy_dtype(p.desc.dtype)) for p in models[0].inputs]
    results = [[np.empty(p.desc.shape, numpy_dtype(p.desc.dtype)) for p in m.outputs] for m in models]
    runs = max(1, int(_SECONDS / max(_timed(models[0], feeds, results[0], 2), 1e-7)))
    times = [[_timed(m, feeds, r, runs) for m, r in zip(models, results, strict=True)] for _ in range(rounds)]
    own, other = np.median(times, axis=0)
    return float(other / own)


def _timed(model: Model, feeds: list[np.ndarray], into: list[np.ndarray], runs: int) -> float:
    start = time.perf_counter()
    for _ in range(runs):
        model.run(feeds, into)
    return (time.perf_counter() - start) / runs


def crossover(quantities: Sequence[float], speedups: Sequence[float], at_most: bool = False) -> float:
    """The bound with the least loss: sizes that meet it use the implementation, the others do not.

    >>> crossover([8, 16, 32], [0.5, 0.9, 2.0])
    32
    >>> crossover([1, 2, 4], [1.5, 1.1, 0.7], at_most=True)
    2
    """
    points = sorted(zip(quantities, speedups, strict=True), reverse=at_most)

    def lost(bound: float) -> float:
        taken = [q <= bound if at_most else q >= bound for q, _ in points]
        logs = [math.log(s) for _, s in points]
        return sum(max(0.0, -log if take else log) for take, log in zip(taken, logs, strict=True))

    beyond = points[-1][0] / 2 if at_most else points[-1][0] * 2
    return min([*(q for q, _ in points), beyond], key=lost)


def choices(plan: Plan) -> list[tuple[Any, ...]]:
    """The cost-dependent choices of each task: its implementation with its settings, and the grain of parallel work."""
    return [tuple(task.attrs.get(name) for name in _CHOSEN) for task in plan.tasks]


def measure(sweep: Sweep, target: Target, rounds: int = _ROUNDS) -> float | None:
    """The crossover of one entry; None if the target never has the implementation."""
    quantities, speedups = [], []
    for size in sweep.sizes:
        models = [_compiled(sweep, size, target, on) for on in (True, False)]
        if choices(models[0].plan) == choices(models[1].plan):
            continue
        quantities.append(sweep.quantity(size, target))
        speedups.append(_speedup(models, rounds))
    return crossover(quantities, speedups, sweep.at_most) if quantities else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and store the table for later plans."""
    parser = argparse.ArgumentParser(prog="python -m ge.tune", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="entries to measure, separated by commas")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="timings of each size")
    given = parser.parse_args(arguments)
    wanted = {name for name in given.only.split(",") if name}
    unknown = wanted - {sweep.entry for sweep in SWEEPS}
    if unknown:
        parser.error(
            f"there is no entry {', '.join(sorted(unknown))}; there are {', '.join(s.entry for s in SWEEPS)}"
        )
    target = host()
    costs = target.costs or CostTable()
    target = replace(target, costs=costs)
    for sweep in SWEEPS:
        if wanted and sweep.entry not in wanted:
            continue
        found = measure(sweep, target, given.rounds)
        before = getattr(costs, sweep.entry)
        if found is None:
            print(f"{sweep.entry:26} {before:>10}  not measured: no such implementation on {target.isa}")
            continue
        costs = CostTable.of({**asdict(costs), sweep.entry: found})
        print(f"{sweep.entry:26} {before:>10} -> {getattr(costs, sweep.entry)}", flush=True)
    path = costs_file(target.isa)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(costs), indent=1) + "\n")
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
