"""PyTorch models by torch.compile: this backend beside eager mode and inductor, interleaved, answers checked.

The mode decode generates tokens one by one with a small Llama-like model over a static cache of keys and values; int8
keeps the weights of its linear layers in 8 bits. The mode start times the first call of a process with nothing kept on
disk and with the files of another process before it.

Inference freezes the parameters of inductor's graphs too. A training step is zero_grad, the model with its loss as one
module (`losses.py`; compiled whole), backward and plain SGD; loss and gradients are checked.
Without --batch, inference and starts have a batch of 1, training steps one of 4.
With --compile the rows are compile times: what the first call of a process takes more than later ones, with empty
caches, each contender in a process of its own; Dynamo's tracing, which all backends share, is in it.
With --json the rows are kept in a file, and a later run measures those that are missing there.
"""

from __future__ import annotations

import argparse
import copy
import functools
import math
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
from benchmarks import kept
from benchmarks.llm import Config, Llama, quantise
from benchmarks.losses import with_loss
from benchmarks.measure import console, geometric_mean, interleave, milliseconds, new_table, ratio
from benchmarks.models import zoo

MODELS = ("resnet50", "mobilenetv2", "efficientnetb0", "bert", "vit", "gpt2", "lstm", "dlrm")
OURS, PEERS = "npu", ("eager", "inductor")
TOLERANCE = {"fp32": 2e-3, "bf16": 8e-2, "int8": 2e-3}
BATCHES = {"train": 4}  # of the modes where it is not 1
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


class Training:
    """A training step on a copy of a module that returns its loss; gives the loss."""

    def __init__(self, module: nn.Module, args: list[torch.Tensor], contender: str) -> None:
        self.module = copy.deepcopy(module).requires_grad_(True).train()
        self.args = args
        self.run = compiled(self.module, contender)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=1e-4)

    def __call__(self) -> torch.Tensor:
        """One step."""
        self.optimizer.zero_grad()
        loss = self.run(*self.args)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def gradients(self) -> torch.Tensor:
        """All gradients of the last step, in one row."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.module.parameters()]
        return torch.cat([g.flatten().float() for g in found])


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


def llama(precision: str, quick: bool) -> Llama:
    """The model that generates tokens."""
    torch.manual_seed(0)
    config = Config(256, 64, 128, 4, 2, 2, 64) if quick else Config()
    module: Any = Llama(config).eval().requires_grad_(False)
    module = quantise(module) if precision == "int8" else module
    return module.to(torch.bfloat16) if precision == "bf16" else module


def decode(precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row of decoding: the time of a token."""
    torch._dynamo.reset()
    module = llama(precision, options.quick)
    eager = Decoding(module, "eager")
    token = eager.logits.argmax(
        -1, keepdim=True
    )  # the same for all: in bf16 two tokens may be as good as each other
    expected = eager.read(token)
    calls = {contender: Decoding(module, contender) for contender in (OURS, *options.peers)}
    errors = {contender: error_of(call.read(token), expected) for contender, call in calls.items()}
    times = interleave(calls, options.rounds, options.burst)
    return {"errors": errors, "times": {c: statistics.median(t) for c, t in times.items()}}


_START = """
import sys, time
import torch
from benchmarks.models import zoo
from torchair.inference import cache_compile
torch._dynamo.config.allow_rnn = True
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


def start(name: str, quick: bool) -> dict[str, float]:
    """What the first call takes more than later ones: with nothing on disk, and with the files of a process before."""
    taken = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, loads in (("cold", "0"), ("warm", "1")):
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
            taken[kind] = float(seconds)
    return taken


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected magnitude."""
    return float(
        (found.double() - expected.double()).abs().max() / expected.double().abs().max().clamp(min=1e-30)
    )


def answers(call: Call) -> list[torch.Tensor]:
    """What is checked of a call: its result, and the gradients of a training step."""
    result = call().clone()
    return [result, call.gradients()] if isinstance(call, Training) else [result]


def error_of_all(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The larger of the error of the result and that of the gradients, relative to their length."""
    errors = [error_of(found[0], expected[0])]
    errors += [float((f - e).norm() / e.norm()) for f, e in zip(found[1:], expected[1:], strict=True)]
    return max(math.inf if math.isnan(error) else error for error in errors)


def batch_of(mode: str, options: argparse.Namespace) -> int:
    """The batch that is asked for, or the usual one of a mode."""
    return options.batch or BATCHES.get(mode, 1)


def subject(
    name: str, precision: str, mode: str, options: argparse.Namespace
) -> tuple[nn.Module, list[torch.Tensor]]:
    """A model and its arguments."""
    model = zoo(options.quick)[name]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    args = [torch.from_numpy(a) for a in model.inputs(batch_of(mode, options))]
    args = [a.to(dtype) if a.is_floating_point() else a for a in args]
    module = model.module().to(dtype)
    if mode != "train":
        return module, args
    module, args = with_loss(name, module, args)
    return module.to(dtype), args


def measure(name: str, precision: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One row: times and errors of all contenders."""
    torch._dynamo.reset()
    module, args = subject(name, precision, mode, options)
    calls = {c: MAKERS[mode](module, args, c) for c in (OURS, *options.peers)}
    expected = answers(MAKERS[mode](module, args, "eager"))
    errors = {}
    for contender in list(calls):
        try:
            errors[contender] = error_of_all(answers(calls[contender]), expected)
        except Exception as error:
            if contender == OURS:
                raise
            console.print(f"{name} {mode} {precision}: {contender} did not run: {str(error)[:200]!r}")
            del calls[contender]
    times = interleave(calls, options.rounds, options.burst)
    return {"errors": errors, "times": {c: statistics.median(t) for c, t in times.items()}}


def alone(contender: str, options: argparse.Namespace) -> float:
    """What the first call of this process takes more than later ones."""
    mode, precision = options.modes[0], options.precisions[0]
    if mode == "decode":
        module, token = llama(precision, options.quick), torch.tensor([[3]])
        begin = time.perf_counter()
        decoding = Decoding(module, contender)
        decoding.read(token)
        first = time.perf_counter() - begin
        call: Callable[[], Any] = lambda: (decoding.restart(), decoding.read(token))  # noqa: E731
    else:
        call = MAKERS[mode](*subject(options.models[0], precision, mode, options), contender)
        begin = time.perf_counter()
        call()
        first = time.perf_counter() - begin
    return first - min(interleave({contender: call}, 1, 3 * options.burst)[contender])


def compile_times(name: str, mode: str, precision: str, options: argparse.Namespace) -> dict[str, float]:
    """The compile times of one row, by contender; each in a process of its own with empty caches."""
    found = {}
    for contender in (OURS, *(p for p in options.peers if p != "eager")):
        batch = str(batch_of(mode, options))
        row = ["--models", name, "--modes", mode, "--precisions", precision, "--batch", batch]
        quick = ["--quick"] if options.quick else []
        environment = {**os.environ, "NPU_CACHE_DIR": "off"}
        done = subprocess.run(
            [sys.executable, __file__, "--alone", contender, *row, *quick],
            check=contender == OURS,
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode:
            console.print(f"{name} {mode} {precision}: {contender} did not run: {done.stderr[-200:]!r}")
        else:
            found[contender] = float(done.stdout.split()[-1])
    return found


MAKERS: dict[str, Callable[..., Call]] = {"infer": inference, "train": Training}


def asked(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """The rows that are asked for: model, mode and precision."""
    for precision in options.precisions:
        for mode in options.modes:
            if mode == "decode":
                yield "llama", mode, precision
            elif mode != "start" and precision != "int8":
                for name in options.models:
                    yield name, mode, precision


def title(name: str, mode: str, precision: str, options: argparse.Namespace) -> str:
    """What a row is kept under."""
    batch = 1 if mode == "decode" else batch_of(mode, options)
    return f"{name} {mode} {precision} b{batch}"


def remembered(
    name: str, options: argparse.Namespace, measured: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """A row from the file of an earlier run, or measured now and kept there."""
    known = kept.read(options.json)
    if name not in known or options.again:
        known[name] = measured()
        kept.write(options.json, known)
    return known[name]


def rows(options: argparse.Namespace) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """What is asked for, and what was measured."""
    for name, mode, precision in asked(options):
        measured = (
            functools.partial(decode, precision, options)
            if mode == "decode"
            else functools.partial(measure, name, precision, mode, options)
        )
        yield name, mode, precision, remembered(title(name, mode, precision, options), options, measured)


def show_starts(options: argparse.Namespace) -> None:
    """A table of first calls."""
    table = new_table("what the first call takes more than later ones, s", ["model", "cold", "warm", "ratio"])
    for name in options.models:
        found = remembered(f"{name} start", options, functools.partial(start, name, options.quick))
        table.add_row(
            name, f"{found['cold']:.2f}", f"{found['warm']:.2f}", ratio(found["cold"] / found["warm"])
        )
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=(*MODELS, "llama"))
    parser.add_argument("--precisions", nargs="+", default=["fp32"], choices=list(TOLERANCE))
    parser.add_argument(
        "--modes", nargs="+", default=["infer"], choices=["infer", "train", "decode", "start"]
    )
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS)
    parser.add_argument("--batch", type=int, help="instead of 1, and of 4 in training")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--burst", type=float, default=0.2)
    parser.add_argument("--compile", action="store_true", help="compile times instead of calls")
    parser.add_argument(
        "--json", type=Path, help="keep the rows there; a later run goes on with those missing"
    )
    parser.add_argument("--again", action="store_true", help="measure rows that the --json file has, too")
    parser.add_argument("--alone", choices=(OURS, *PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="small models, few rounds")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.burst = 2, 0.02
    if options.alone:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    torch.set_grad_enabled(True)
    if options.alone:
        print(alone(options.alone, options))
        return
    if options.compile:
        show_compiles(options)
        return
    if "start" in options.modes:
        show_starts(options)
    if set(options.modes) != {"start"}:
        show_speeds(options)


def show_compiles(options: argparse.Namespace) -> None:
    """A table of compile times."""
    peers = [p for p in options.peers if p != "eager"]
    table = new_table("compile time, s", ["model", "mode", "batch", OURS, *peers, "the best over ours"])
    for name, mode, precision in asked(options):
        found = remembered(
            f"{title(name, mode, precision, options)} compile",
            options,
            functools.partial(compile_times, name, mode, precision, options),
        )
        shown = [f"{found[c]:.2f}" if c in found else "–" for c in (OURS, *peers)]
        ahead = min((found[p] for p in peers if p in found), default=math.nan) / found[OURS]
        batch = str(batch_of(mode, options))
        table.add_row(name, f"{mode} {precision}", batch, *shown, ratio(ahead))
        console.print(f"{name} {mode} {precision}: {', '.join(shown)} s, {ahead:.2f}")
    console.print(table)


def show_speeds(options: argparse.Namespace) -> None:
    """A table of calls; ends the program where answers are wrong."""
    columns = [
        "model",
        "mode",
        "batch",
        *(f"{c} ms" for c in (OURS, *options.peers)),
        "over the best",
        "error",
    ]
    table = new_table(f"torch.compile, {torch.get_num_threads()} threads", columns)
    ahead, wrong = [], []
    for name, mode, precision, row in rows(options):
        best = min(row["times"][p] for p in options.peers if p in row["times"])
        ahead.append(best / row["times"][OURS])
        if row["errors"][OURS] > TOLERANCE[precision]:
            wrong.append(f"{name} {precision} {mode}: error {row['errors'][OURS]:.2g}")
        shown = [milliseconds(row["times"][c]) if c in row["times"] else "–" for c in (OURS, *options.peers)]
        error = f"{row['errors'][OURS]:.1e}"
        batch = str(batch_of(mode, options))
        table.add_row(name, f"{mode} {precision}", batch, *shown, ratio(ahead[-1]), error)
        console.print(f"[dim]{name} {mode} {precision}: {', '.join(shown)} ms[/]")
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
