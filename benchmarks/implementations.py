"""Every implementation of our own against the next one of its operator's list, interleaved: what each is worth.

A case compiles a small graph with one implementation as the only choice, and again without it. Both run on one thread
and are timed in processor time, so that other programs on the machine matter little. The last lines sum up the cases in
which the compiler chooses the implementation; one that wins less than 5 % in all of them is not worth its code.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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

WORTH = 1.05
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}
LAST = {"data_format": "channels_last"}


@dataclass(frozen=True)
class Case:
    """A graph in which an implementation of a kind of task is one of the choices."""

    kind: str
    name: str
    title: str
    build: Callable[[Any, str], Any]
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


def _constant(shape: Sequence[int], dtype: str) -> np.ndarray:
    from ge.ir.types import numpy_dtype

    scale = 1 / math.sqrt(math.prod(shape[:-1]))
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(numpy_dtype(dtype))


def _window(size: int, stride: int = 1) -> dict[str, Any]:
    return {**LAST, "strides": [stride] * 2, "pads_begin": [size // 2] * 2, "pads_end": [size // 2] * 2}


def _conv(
    kind: str,
    name: str,
    images: tuple[int, int, int],
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    depthwise: bool = False,
    swish: bool = False,
) -> Case:
    """A convolution, or with kind "deconv" its gradient for the source, of `images` (number, size, channels)."""
    count, size, channels = images
    groups = channels if depthwise else 1

    def build(b: Any, dtype: str) -> Any:
        window = {**_window(kernel, stride), "groups": groups, "weight_format": "IO"}
        weights = (kernel, kernel, channels // groups, outputs)
        small = size // stride
        if kind == "deconv":
            dy = b.input("dy", (count, small, small, outputs), dtype)
            w = b.input("w", weights, dtype)
            return b.op("ConvTranspose", dy, w, output_shape=[size, size], **window)
        y = b.op(
            "Conv", b.input("x", (count, size, size, channels), dtype), _constant(weights, dtype), **window
        )
        return b.op("Swish", y) if swish else y

    words = ["depthwise"] * depthwise + [f"{kernel}x{kernel}"] + [f"by {stride}"] * (stride > 1)
    title = f"{' '.join(words)}, {count} of {size}x{size}, {channels} to {outputs}{', swish' * swish}"
    return Case(kind, name, title, build)


def _gradient(
    name: str,
    images: tuple[int, int, int],
    outputs: int,
    kernel: int,
    *,
    stride: int = 1,
    depthwise: bool = False,
) -> Case:
    """The gradient of a convolution's weights."""
    count, size, channels = images

    def build(b: Any, dtype: str) -> Any:
        small = size // stride
        x, dy = (
            b.input("x", (count, size, size, channels), dtype),
            b.input("dy", (count, small, small, outputs), dtype),
        )
        groups = channels if depthwise else 1
        return b.op("ConvGradWeight", x, dy, kernel=[kernel] * 2, groups=groups, **_window(kernel, stride))

    words = ["depthwise"] * depthwise + [f"{kernel}x{kernel}"] + [f"by {stride}"] * (stride > 1)
    return Case(
        "conv_grad_weights",
        name,
        f"{' '.join(words)}, {count} of {size}x{size}, {channels} to {outputs}",
        build,
    )


def _product(name: str, rows: int, depth: int, columns: int, constant: bool, *dtypes: str) -> Case:
    def build(b: Any, dtype: str) -> Any:
        weights = (depth, columns)
        w = _constant(weights, dtype) if constant else b.input("w", weights, dtype)
        return b.op("MatMul", b.input("x", (rows, depth), dtype), w)

    kept = "constant" if constant else "computed"
    title = f"{rows} rows, {depth} to {columns}, {kept} weights"
    return Case("matmul", name, title, build, dtypes or ("float32", "bfloat16"))


def _lstm(batch: int, units: int) -> Case:
    def build(b: Any, dtype: str) -> Any:
        steps = 16
        state = np.zeros((1, batch, units), np.float32)
        w, r = (_constant((1, units, 4, units), dtype) for _ in "wr")
        x = b.input("x", (steps, batch, units), dtype)
        return b.op("LSTM", x, w, r, np.zeros((1, 4, units), np.float32), state, state)[0]

    return Case("rnn", "small_batch", f"LSTM of {units} units, batch {batch}", build, ("float32",))


def _steps(batch: int, units: int) -> Case:
    def build(b: Any, dtype: str) -> Any:
        gates = b.input("gates", (16, batch, 4 * units), "float32")
        states = [b.input(name, (batch, units), dtype) for name in "hc"]
        return list(b.op("LSTMSteps", gates, b.input("r", (4 * units, units), dtype), *states))

    return Case("lstm_steps", "steps", f"LSTM in training, {units} units, batch {batch}", build)


def _steps_back(batch: int, units: int) -> Case:
    def build(b: Any, dtype: str) -> Any:
        r = b.input("r", (4 * units, units), dtype)
        kept, dy = b.input("kept", (16, batch, 5 * units), dtype), b.input("dy", (16, batch, units), dtype)
        return list(b.op("LSTMStepsGrad", kept, r, dy))

    return Case(
        "lstm_steps_grad", "steps", f"LSTM in training, backward, {units} units, batch {batch}", build
    )


def _attention(heads: int, queries: int, width: int) -> Case:
    def build(b: Any, dtype: str) -> Any:
        q, k, v = (b.input(name, (heads, queries, width), dtype) for name in "qkv")
        return b.op("Attention", q, k, v, scale=0.125)[0]

    return Case("attention", "fused", f"{heads} heads of {queries} queries, {width} wide", build)


def _attention_back(heads: int, queries: int, width: int) -> Case:
    def build(b: Any, dtype: str) -> Any:
        q, k, v = (b.input(name, (heads, queries, width), dtype) for name in "qkv")
        y, sums = b.op("Attention", q, k, v, scale=0.125)
        return list(
            b.op(
                "AttentionGrad", b.input("dy", (heads, queries, width), dtype), q, k, v, y, sums, scale=0.125
            )
        )

    return Case(
        "attention_grad", "fused", f"backward, {heads} heads of {queries} queries, {width} wide", build
    )


def _layer_norm(rows: int, columns: int) -> Case:
    def build(b: Any, dtype: str) -> Any:
        dy, x = (b.input(name, (rows, columns), dtype) for name in ("dy", "x"))
        mean, inverse = (b.input(name, (rows, 1), "float32") for name in ("mean", "inverse"))
        return list(b.op("LayerNormGrad", dy, x, mean, inverse))

    return Case("layer_norm_grad", "rows", f"{rows} rows of {columns}", build)


CASES: tuple[Case, ...] = (
    _conv("conv", "winograd", (1, 56, 64), 64, 3),
    _conv("conv", "winograd", (8, 14, 256), 256, 3),
    _conv("conv", "depthwise", (1, 112, 32), 32, 3, depthwise=True, swish=True),
    _conv("conv", "depthwise", (1, 14, 480), 480, 5, depthwise=True, swish=True),
    _conv("conv", "pointwise", (1, 112, 32), 16, 1),
    _conv("conv", "pointwise", (1, 56, 24), 144, 1, swish=True),
    _conv("conv", "pointwise", (1, 14, 80), 480, 1, swish=True),
    _conv("conv", "onednn_swish", (1, 224, 3), 32, 3, stride=2, swish=True),
    _conv("conv", "onednn_swish", (8, 14, 480), 480, 3, stride=2, depthwise=True, swish=True),
    _conv("deconv", "winograd", (8, 28, 128), 128, 3),
    _conv("deconv", "spread", (8, 56, 256), 512, 1, stride=2),
    _conv("deconv", "spread", (8, 14, 1024), 2048, 1, stride=2),
    _conv("deconv", "depthwise_source_gradient", (8, 56, 96), 96, 3, depthwise=True),
    _conv("deconv", "depthwise_source_gradient", (8, 28, 144), 144, 5, stride=2, depthwise=True),
    _gradient("winograd", (8, 28, 128), 128, 3),
    _gradient("weight_gradient", (8, 28, 128), 512, 1),
    _gradient("weight_gradient", (8, 28, 256), 256, 3, stride=2),
    _gradient("depthwise_weight_gradient", (8, 56, 96), 96, 3, depthwise=True),
    _gradient("depthwise_weight_gradient", (8, 28, 144), 144, 5, stride=2, depthwise=True),
    _product("strassen", 1024, 768, 3072, True, "float32"),
    _product("strassen", 1024, 1024, 1024, False, "float32"),
    _product("narrow", 1, 1024, 1024, False),
    _product("narrow", 4, 768, 3072, False),
    _product("narrow", 4096, 4, 1024, False),
    _lstm(1, 256),
    _lstm(4, 256),
    _steps(32, 256),
    _steps(8, 512),
    _steps_back(32, 256),
    _steps_back(8, 512),
    _attention(12, 128, 64),
    _attention(12, 512, 64),
    _attention_back(12, 128, 64),
    _attention_back(12, 512, 64),
    _layer_norm(256, 768),
    _layer_norm(4096, 768),
)


@contextmanager
def _only(kind: str, keep: Callable[[str], bool]) -> Iterator[None]:
    """The choice among some of the candidates for a kind of task."""
    from ge.implementations import CANDIDATES

    every = CANDIDATES[kind]
    CANDIDATES[kind] = tuple(candidate for candidate in every if keep(candidate.name))
    try:
        yield
    finally:
        CANDIDATES[kind] = every


def _compiled(case: Case, dtype: str, keep: Callable[[str], bool]) -> Any:
    from ge.compiler import compile_graph
    from ge.ops.builder import GraphBuilder

    with _only(case.kind, keep):
        b = GraphBuilder("case")
        found = case.build(b, dtype)
        for value in found if isinstance(found, list) else [found]:
            b.output(value)
        return compile_graph(b.graph)


def _names(model: Any, kind: str) -> str:
    """The implementations of a model's tasks of a kind; "decomposed" if it has none."""
    found = [str(task.attrs.get("implementation")) for task in model.plan.tasks if task.kind == kind]
    return ", ".join(dict.fromkeys(found)) or "decomposed"


def _inputs(model: Any) -> list[np.ndarray]:
    from ge.ir.types import numpy_dtype

    random = np.random.default_rng(1)
    return [(random.random(p.desc.shape) + 0.5).astype(numpy_dtype(p.desc.dtype)) for p in model.inputs]


def measured(case: Case, dtype: str, rounds: int, burst: float) -> tuple[str, str, float, float, float]:
    """What is chosen, the next implementation, the seconds of both, and the difference of their answers."""
    ours = _compiled(case, dtype, lambda name: name == case.name)
    others = _compiled(case, dtype, lambda name: name != case.name)
    chosen = _names(_compiled(case, dtype, lambda name: True), case.kind)
    feeds = _inputs(ours)
    answers = [[a.astype(np.float32) for a in model.run(feeds)] for model in (ours, others)]
    calls = {"ours": lambda: ours.run(feeds), "others": lambda: others.run(feeds)}
    times = interleave(calls, rounds, burst, time.process_time)
    own, other = (statistics.median(times[name]) for name in calls)
    return chosen, _names(others, case.kind), own, other, relative_error(*answers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", default=[], help="implementations, such as winograd")
    parser.add_argument("--quick", action="store_true", help="one round")
    given = parser.parse_args(arguments)
    limit_threads(1)

    wrong = False
    table = new_table(
        "Our implementations (ms of processor time, one thread)",
        ["task", "implementation", "case", "type", "chosen", "next", "ours", "next", "/ next", "error"],
    )
    gains: dict[tuple[str, str], list[float]] = {}
    for case in CASES:
        for dtype in case.dtypes if not given.only or case.name in given.only else ():
            try:
                chosen, after, own, other, error = measured(
                    case, dtype, 1 if given.quick else given.rounds, 0.0 if given.quick else 0.05
                )
            except Exception as refusal:  # the target lacks it
                console.print(f"{case.kind} {case.name} {case.title} {dtype}: {refusal}")
                continue
            wrong |= error > TOLERANCE[dtype]
            if chosen == case.name:
                gains.setdefault((case.kind, case.name), []).append(other / own)
            times = [milliseconds(own), milliseconds(other), ratio(other / own), f"{error:.0e}"]
            table.add_row(
                case.kind, case.name, case.title, dtype, "yes" * (chosen == case.name), after, *times
            )
    console.print(table)
    for (kind, name), found in gains.items():
        verdict = "" if max(found) >= WORTH else ": wins less than 5 % everywhere"
        console.print(
            f"{kind} {name}: {geometric_mean(found):.2f} in the mean, {max(found):.2f} at most{verdict}"
        )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
