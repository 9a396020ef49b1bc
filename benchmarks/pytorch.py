"""PyTorch models by torch.compile: this backend beside eager mode and inductor, interleaved, answers checked.

The mode decode generates tokens one by one with a small Llama-like model over a static cache of keys and values; int8
keeps the weights of its linear layers in 8 bits. The mode start times the first call of a process with nothing kept on
disk and with the files of another process before it.

Inference freezes the parameters of inductor's graphs too. A training step is forward, loss, backward and plain SGD. The
compile time is that of the first call, with empty caches; Dynamo's tracing, which all backends share, is in it.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

import torchair  # noqa: F401  registers the backend "npu"
from benchmarks.llm import Config, Llama, quantise
from benchmarks.measure import console, geometric_mean, interleave, milliseconds, new_table, ratio
from benchmarks.models import zoo

MODELS = ("resnet50", "mobilenetv2", "efficientnetb0", "bert", "vit", "gpt2", "lstm", "dlrm")
OURS, PEERS = "npu", ("eager", "inductor")
TOLERANCE = {"fp32": 2e-3, "bf16": 8e-2, "int8": 2e-3}
PROMPT = 16  # tokens before those that are generated
Call = Callable[[], torch.Tensor]


def compiled(module: nn.Module, contender: str, dynamic: bool | None = None) -> Callable[..., torch.Tensor]:
    """The module as a contender runs it."""
    if contender == "eager":
        return module
    torch._dynamo.config.allow_rnn = True
    return torch.compile(module, backend=contender, dynamic=dynamic)


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


class Decoding:
    """A model that reads a prompt and then one token a call, each with its own caches."""

    def __init__(self, module: Llama, contender: str) -> None:
        self.module = copy.deepcopy(module)
        self.run = compiled(self.module, contender, dynamic=False)
        self.length = self.module.blocks[0].attention.keys.shape[2]
        self.logits = self.restart()

    def restart(self) -> torch.Tensor:
        """Read the prompt."""
        self.module.clear()
        self.place = PROMPT
        return self._call(torch.arange(PROMPT)[None], torch.arange(PROMPT))

    def __call__(self) -> torch.Tensor:
        """The next token's logits."""
        if self.place == self.length:
            self.logits = self.restart()
        return self.read(self.logits.argmax(-1, keepdim=True))

    def read(self, token: torch.Tensor) -> torch.Tensor:
        """The logits after a token."""
        self.logits = self._call(token, torch.tensor([self.place]))
        self.place += 1
        return self.logits

    def _call(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            return self.run(tokens, places)


def decode(precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of decoding: the time of a token."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = Config(256, 64, 128, 4, 2, 2, 64) if options.quick else Config()
    module: Any = Llama(config).eval().requires_grad_(False)
    module = quantise(module) if precision == "int8" else module
    module = module.to(torch.bfloat16) if precision == "bf16" else module
    eager = Decoding(module, "eager")
    token = eager.logits.argmax(
        -1, keepdim=True
    )  # the same for all: in bf16 two tokens may be as good as each other
    expected = eager.read(token)
    calls, first, errors = {}, {}, {}
    for contender in (OURS, *options.peers):
        begin = time.perf_counter()
        calls[contender] = Decoding(module, contender)
        errors[contender] = error_of(calls[contender].read(token), expected)
        first[contender] = time.perf_counter() - begin
    times = interleave(calls, options.rounds, options.burst)
    return {"first": first, "errors": errors, "times": {c: statistics.median(t) for c, t in times.items()}}


_START = """
import sys, time
import torch
from benchmarks.models import zoo
from torchair.inference import cache_compile
torch.manual_seed(0)
model = zoo(sys.argv[2] == "True")[sys.argv[1]]
module, args = model.module(), [torch.from_numpy(a) for a in model.inputs(1)]
call = cache_compile(module.forward, cache_dir=sys.argv[3])
times = []
for _ in range(4):
    begin = time.perf_counter()
    call(*args)
    times.append(time.perf_counter() - begin)
print(times[0] - min(times), call.loads)
"""


def start(name: str, quick: bool) -> tuple[float, float]:
    """What the first call takes more than later ones: with nothing on disk, and with the files of a process before."""
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        for loads in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-c", _START, name, str(quick), folder],
                check=True,
                capture_output=True,
                text=True,
                cwd=Path(__file__).resolve().parents[1],
                env={**os.environ, "NPU_CACHE_DIR": folder, "NPU_KEY_FILE": f"{folder}/om.key"},
            )
            seconds, found = done.stdout.split()
            if found != loads:
                sys.exit(f"{name}: {found} graphs were loaded from disk, {loads} expected")
            taken.append(float(seconds))
    return taken[0], taken[1]


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


def rows(options: argparse.Namespace) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """What is asked for: model, mode, precision and what was measured."""
    for precision in options.precisions:
        for mode in options.modes:
            if mode == "decode":
                yield "llama", mode, precision, decode(precision, options)
            elif mode != "start" and precision != "int8":
                for name in options.models:
                    yield name, mode, precision, measure(name, precision, mode, options)


def show_starts(options: argparse.Namespace) -> None:
    """A table of first calls."""
    table = new_table("what the first call takes more than later ones, s", ["model", "cold", "warm", "ratio"])
    for name in options.models:
        cold, warm = start(name, options.quick)
        table.add_row(name, f"{cold:.2f}", f"{warm:.2f}", ratio(cold / warm))
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--precisions", nargs="+", default=["fp32"], choices=list(TOLERANCE))
    parser.add_argument(
        "--modes", nargs="+", default=["infer"], choices=["infer", "train", "decode", "start"]
    )
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
    if "start" in options.modes:
        show_starts(options)
    if set(options.modes) != {"start"}:
        show_speeds(options)


def show_speeds(options: argparse.Namespace) -> None:
    """A table of calls; ends the program where answers are wrong."""
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
    for name, mode, precision, row in rows(options):
        best = min(row["times"][p] for p in options.peers)
        ahead.append(best / row["times"][OURS])
        first = " / ".join(f"{row['first'][c]:.1f}" for c in (OURS, *options.peers) if c != "eager")
        if row["errors"][OURS] > TOLERANCE[precision]:
            wrong.append(f"{name} {precision} {mode}: error {row['errors'][OURS]:.2g}")
        shown = [milliseconds(row["times"][c]) for c in (OURS, *options.peers)]
        error = f"{row['errors'][OURS]:.1e}"
        table.add_row(name, f"{mode} {precision}", *shown, ratio(ahead[-1]), f"{first} s", error)
        if mode == "decode":
            speeds = ", ".join(f"{c} {1 / row['times'][c]:.0f}" for c in (OURS, *options.peers))
            console.print(f"decode {precision}, tokens a second: {speeds}")
    console.print(table)
    console.print(
        f"geometric mean over the best of {', '.join(options.peers)}: {ratio(geometric_mean(ahead))}"
    )
    if wrong:
        sys.exit("wrong answers: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
