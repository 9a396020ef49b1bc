"""Strided windows over pictures of few channels become windows over squares of pixels, on GPUs."""

from __future__ import annotations

import pytest

from tests.model.test_cuda_training import check, random
from tests.support.costs import set_costs


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    set_costs(monkeypatch, folded_places=1)


def step(size, strides, low, high):
    """A convolution with a computed weight, and the gradient of that."""

    def make(b, x, w, dy):
        image, weight = b.op("Add", x, x), b.op("Add", w, w)
        window = {"strides": strides, "pads_begin": low, "pads_end": high}
        return b.op("Conv", image, weight, **window), b.op(
            "ConvGradWeight", image, dy, kernel=[size] * 2, **window
        )

    return make


def windows_of(model) -> list[tuple]:
    return [
        (t.inputs[0].shape[1], *t.attrs["strides"])
        for t in model.plan.tasks
        if t.kind in ("conv", "conv_grad_weights")
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("size", "strides", "low", "high", "sides"),
    [
        (7, [2, 2], [3, 3], [3, 3], (12, 12)),
        (3, [2, 2], [0, 0], [1, 1], (8, 10)),
        (3, [2, 2], [1, 1], [1, 1], (9, 7)),
        (4, [2, 2], [1, 0], [0, 0], (10, 9)),
        (3, [2, 2], [0, 0], [0, 0], (8, 8)),  # the last row and column are in no window
    ],
)
def test_windows_over_three_channels(dtype, size, strides, low, high, sides) -> None:
    places = [(n + a + b - size) // s + 1 for n, a, b, s in zip(sides, low, high, strides, strict=True)]
    feeds = random(2, 3, *sides), random(8, 3, size, size), random(2, 8, *places, seed=1)
    model = check(step(size, strides, low, high), dtype, *feeds)
    assert windows_of(model) == [(16, 1, 1)] * 2
    images = [t.inputs[0] for t in model.plan.tasks if t.kind in ("conv", "conv_grad_weights")]
    assert images[0].buffer == images[1].buffer, "the squares are in memory once"


@pytest.mark.parametrize(
    ("channels", "size", "strides", "dtype"),
    [
        (3, 3, [1, 1], "bfloat16"),
        (3, 2, [2, 2], "bfloat16"),
        (6, 3, [2, 2], "bfloat16"),
        (3, 3, [2, 2], "float32"),
        (3, 5, [2, 4], "bfloat16"),  # squares of too many pixels
    ],
)
def test_others_stay(channels, size, strides, dtype) -> None:
    places = [(8 - size) // s + 1 for s in strides]
    feeds = random(2, channels, 8, 8), random(8, channels, size, size), random(2, 8, *places, seed=1)
    model = check(step(size, strides, [0, 0], [0, 0]), dtype, *feeds)
    assert {w[1:] for w in windows_of(model)} == {tuple(strides)}
