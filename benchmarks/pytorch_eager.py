"""Eager operators of PyTorch on the device `npu` beside the same on CPU tensors, interleaved, answers checked.

Single operators of 64 elements show what a call costs on top; a residual block, a transformer layer and a training step
of them show what that comes to at sizes of models. Freed memory stays with the process: whether the C library gives
blocks of a few MB back, to fault them in again, is luck, and can double the time of either side.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

import torch_npu  # noqa: F401  makes the device known
from benchmarks.measure import console, interleave, new_table
from benchmarks.models.resnet import Bottleneck
from benchmarks.models.transformer import Block

DEVICES = ("cpu", "npu")
TOLERANCE = 1e-5  # of the largest element
REPEATS = 100  # of a single operator in one call
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of mallopt
Call = Callable[[], torch.Tensor]


def repeated(function: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> Callable[[str], Call]:
    """A function of small tensors, many times over."""
    given = [torch.rand(shape) for shape in shapes]

    def on(device: str) -> Call:
        tensors = [g.to(device, copy=True) for g in given]

        def call() -> torch.Tensor:
            for _ in range(REPEATS):
                found = function(*tensors)
            return found

        return call

    return on


def inference(module: nn.Module, *shape: int) -> Callable[[str], Call]:
    """A call of a module without gradients."""
    given = torch.randn(shape)

    def on(device: str) -> Call:
        twin, x = copy.deepcopy(module).eval().to(device), given.to(device, copy=True)
        return torch.no_grad()(lambda: twin(x))

    return on


def training(module: nn.Module, *shape: int) -> Callable[[str], Call]:
    """Forward, backward and plain SGD; gives the loss."""
    given = torch.randn(shape)

    def on(device: str) -> Call:
        twin, x = copy.deepcopy(module).train().to(device), given.to(device, copy=True)
        optimizer = torch.optim.SGD(twin.parameters(), lr=1e-4)

        def call() -> torch.Tensor:
            optimizer.zero_grad()
            loss = twin(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return call

    return on


def cases(quick: bool) -> dict[str, tuple[int, Callable[[str], Call]]]:
    """What is measured, and how many times a call does it."""
    torch.manual_seed(0)
    image, tokens = (8, 32) if quick else (56, 128)
    residual, layer = Bottleneck(256, 64, 256, 1), Block(768, 12, pre_norm=False)
    return {
        "x + y, 64 elements": (REPEATS, repeated(torch.add, (64,), (64,))),
        "x.relu_(), 64 elements": (REPEATS, repeated(lambda x: x.relu_(), (64,))),
        "x.sum(), 64 elements": (REPEATS, repeated(lambda x: x.sum(), (64,))),
        "x.view(8, 8)": (REPEATS, repeated(lambda x: x.view(8, 8), (64,))),
        f"residual block, {image}×{image}": (1, inference(residual, 1, 256, image, image)),
        f"transformer layer, {tokens} tokens": (1, inference(layer, 1, tokens, 768)),
        "training step of the residual block": (1, training(residual, 1, 256, image, image)),
        "training step of the transformer layer": (1, training(layer, 1, tokens, 768)),
    }


def keep_memory() -> None:
    """Have the C library keep what is freed."""
    mallopt = ctypes.CDLL(None).mallopt
    for option, value in ((M_TRIM_THRESHOLD, 1 << 30), (M_MMAP_THRESHOLD, 1 << 25)):
        if not mallopt(option, value):
            raise OSError(f"mallopt({option}, {value}) failed")


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest expected magnitude."""
    largest = expected.abs().max().clamp(min=1e-30)
    return float((found.cpu() - expected).abs().max() / largest)


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds")
    given = parser.parse_args()
    torch.set_num_threads(2)
    keep_memory()
    table = new_table("Eager PyTorch, µs", ["", *DEVICES, "npu over cpu", "error"])
    worst = 0.0
    for name, (count, make) in cases(given.quick).items():
        calls = {device: make(device) for device in DEVICES}
        error = error_of(calls["npu"](), calls["cpu"]())
        times = interleave(calls, 2 if given.quick else given.rounds, 0.02 if given.quick else 0.1)
        cpu, npu = (statistics.median(times[device]) / count for device in DEVICES)
        table.add_row(name, f"{cpu * 1e6:.1f}", f"{npu * 1e6:.1f}", f"{npu / cpu:.2f}", f"{error:.0e}")
        worst = max(worst, error)
    console.print(table)
    return int(not worst <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
