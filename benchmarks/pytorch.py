"""PyTorch models by torch.compile: this backend beside eager mode and inductor, interleaved, answers checked.

Inference freezes the parameters of inductor's graphs too. A training step is forward, loss, backward and plain SGD. The
compile time is that of the first call, with empty caches; Dynamo's tracing, which all backends share, is in it.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

import torchair  # noqa: F401  registers the backend "npu"
from benchmarks.measure import console, geometric_mean, interleave, milliseconds, new_table, ratio
from benchmarks.models import zoo

MODELS = ("resnet50", "mobilenetv2", "efficientnetb0", "bert", "vit", "gpt2", "lstm", "dlrm")
OURS, PEERS = "npu", ("eager", "inductor")
TOLERANCE = {"fp32": 2e-3, "bf16": 8e-2}
Call = Callable[[], torch.Tensor]


def compiled(module: nn.Module, contender: str) -> Callable[..., torch.Tensor]:
    """The module as a contender runs it."""
    if contender == "eager":
        return module
    torch._dynamo.config.allow_rnn = True
    return torch.compile(module, backend=contender)


def inference(module: nn.Module, args: list[torch.Tensor], contender: str) -> Call:
    """A call without gradients."""
    run = compiled(module, contender)

    def call() -> torch.Tensor:
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            return run(*args)

    return call


def training(module: nn.Module, args: list[torch.Tensor], contender: str) -> Call:
    """A training step on a copy of the module; gives its loss."""
    twin = copy.deepcopy(module).requires_grad_(True).train()
    run = compiled(twin, contender)
    optimizer = torch.optim.SGD(twin.parameters(), lr=1e-4)

    def call() -> torch.Tensor:
        optimizer.zero_grad()
        loss = run(*args).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected magnitude."""
    return float(
        (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)
    )


def measure(name: str, precision: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: times, first calls and errors of all contenders."""
    torch._dynamo.reset()
    model = zoo(options.quick)[name]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    module = model.module().to(dtype)
    args = [torch.from_numpy(a) for a in model.inputs(options.batch)]
    args = [a.to(dtype) if a.is_floating_point() else a for a in args]
    make = training if mode == "train" else inference
    calls = {c: make(module, args, c) for c in (OURS, *options.peers)}
    expected = make(module, args, "eager")().clone()
    first, errors = {}, {}
    for contender, call in calls.items():
        begin = time.perf_counter()
        errors[contender] = error_of(call(), expected)
        first[contender] = time.perf_counter() - begin
    times = interleave(calls, options.rounds, options.burst)
    return {"first": first, "errors": errors, "times": {c: statistics.median(t) for c, t in times.items()}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--precisions", nargs="+", default=["fp32"], choices=list(TOLERANCE))
    parser.add_argument("--modes", nargs="+", default=["infer"], choices=["infer", "train"])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--burst", type=float, default=0.2)
    parser.add_argument("--quick", action="store_true", help="small models, few rounds")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.burst = 2, 0.02
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    torch.set_grad_enabled(True)
    columns = [
        "model",
        "mode",
        *(f"{c} ms" for c in (OURS, *options.peers)),
        "over the best",
        "first call",
        "error",
    ]
    table = new_table(f"torch.compile, batch {options.batch}, {torch.get_num_threads()} threads", columns)
    ahead, wrong = [], []
    for precision in options.precisions:
        for mode in options.modes:
            for name in options.models:
                row = measure(name, precision, mode, options)
                best = min(row["times"][p] for p in options.peers)
                ahead.append(best / row["times"][OURS])
                first = " / ".join(f"{row['first'][c]:.1f}" for c in (OURS, *options.peers) if c != "eager")
                if row["errors"][OURS] > TOLERANCE[precision]:
                    wrong.append(f"{name} {precision} {mode}: error {row['errors'][OURS]:.2g}")
                shown = [milliseconds(row["times"][c]) for c in (OURS, *options.peers)]
                table.add_row(
                    name,
                    f"{mode} {precision}",
                    *shown,
                    ratio(ahead[-1]),
                    f"{first} s",
                    f"{row['errors'][OURS]:.1e}",
                )
    console.print(table)
    console.print(
        f"geometric mean over the best of {', '.join(options.peers)}: {ratio(geometric_mean(ahead))}"
    )
    if wrong:
        sys.exit("wrong answers: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
