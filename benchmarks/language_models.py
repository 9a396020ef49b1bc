"""Decoding of a Llama-like model in float32, bfloat16 and with weights of 8 and 4 bits: tokens a second.

A token reads every weight once, so the time of a token is bounded by the bandwidth of memory: the last column is the
share of it that the weights of a token take, against a plain sum over an array larger than the caches, measured in the
same run. The model has the layers of one with 1.1 billion parameters (width 2048), four of them instead of 22, to stay
below 3 GiB. Answers are compared with eager mode's. With int8 and int4, PyTorch's contenders call its own kernels.

    python benchmarks/language_models.py --precisions int4 bf16
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import torchair  # noqa: F401  registers the backend "npu"
from benchmarks.llm import Config, Int4Linear, Int8Linear, Llama, TorchInt4Linear, quantise
from benchmarks.measure import console, interleave, milliseconds, new_table, ratio

OURS, PEERS = "npu", ("eager", "inductor")
PRECISIONS = ("fp32", "bf16", "int8", "int4")
LIKE_1B = Config(vocabulary=32000, width=2048, hidden=5632, heads=32, groups=4, layers=4, length=256)
QUICK = Config(256, 128, 256, 4, 2, 2, 64)
_NOT_READ = ("tokens", "cosines", "sines", "keys", "values")  # parts of names
TOLERANCE = {"fp32": 2e-3, "bf16": 8e-2, "int8": 2e-3, "int4": 2e-2}


class Decoder:
    """A model of one contender with its caches, one token a call."""

    def __init__(self, module: Llama, contender: str, config: Config) -> None:
        self.module, self.length, self.place = module, config.length, 0
        options: dict[str, Any] = {"dynamic": False}
        self.run: Callable[..., torch.Tensor] = module
        if contender != "eager":
            self.run = torch.compile(module, backend=contender, **options)

    def __call__(self) -> torch.Tensor:
        """The logits after a token."""
        self.place = (self.place + 1) % self.length
        with torch.no_grad(), torch._inductor.config.patch(freezing=True):
            return self.run(torch.tensor([[self.place % 7]]), torch.tensor([self.place]))


def model_of(precision: str, contender: str, plain: Llama) -> Llama:
    """The model of a contender: the same weights in its own form."""
    module: Any = copy.deepcopy(plain)
    if precision == "bf16":
        return module.to(torch.bfloat16)
    if precision == "int8":
        return quantise(module, Int8Linear)  # type: ignore[return-value]
    if precision == "int4":
        return quantise(module, Int4Linear if contender == OURS else TorchInt4Linear)  # type: ignore[return-value]
    return module


def bytes_of(module: torch.nn.Module) -> int:
    """What a token reads: all weights but the table of tokens, of which it reads a row."""
    held = [*module.named_parameters(), *module.named_buffers()]
    return sum(t.nbytes for name, t in held if not set(_NOT_READ) & set(name.split(".")))


def bandwidth(quick: bool) -> float:
    """Bytes a second of a sum over a large array, the best of several."""
    array = torch.ones(1 << (20 if quick else 26))
    times = interleave({"read": array.sum}, 2 if quick else 8, 0.05)["read"]
    return array.nbytes / min(times)


def row_of(precision: str, options: argparse.Namespace) -> list[str]:
    """One line of the table."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = QUICK if options.quick else LIKE_1B
    plain = Llama(config).eval().requires_grad_(False)
    names = (OURS, *options.peers)
    calls = {name: Decoder(model_of(precision, name, plain), name, config) for name in names}
    expected = Decoder(model_of(precision, OURS, plain), "eager", config)().float()
    for name, call in calls.items():
        error = float((call().float() - expected).abs().max() / expected.abs().max())
        if not error <= TOLERANCE[precision]:
            raise SystemExit(f"{name} in {precision}: the answer differs from eager mode's by {error:.2e}")
    times = {n: statistics.median(t) for n, t in interleave(calls, options.rounds, options.burst).items()}
    read = bytes_of(calls[OURS].module)
    best = min((times[n] for n in options.peers), default=float("nan"))
    shown = [f"{milliseconds(times[n])} ms, {1 / times[n]:.1f}/s" for n in names]
    share = read / times[OURS] / bandwidth(options.quick)
    return [precision, f"{read / 2**20:.0f} MiB", *shown, ratio(best / times[OURS]), f"{share:.2f}"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--peers", nargs="*", default=PEERS, choices=PEERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--burst", type=float, default=0.5, help="seconds of a contender in a round")
    parser.add_argument("--quick", action="store_true", help="a tiny model, for checking the script")
    options = parser.parse_args()
    table = new_table(
        "A token of a Llama-like model",
        ["precision", "weights", OURS, *options.peers, "over the best", "of memory"],
    )
    for precision in options.precisions:
        table.add_row(*row_of(precision, options))
    console.print(table)


if __name__ == "__main__":
    main()
