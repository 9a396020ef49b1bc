"""Rows of large 16-bit products on GPUs begin at multiples of 16 bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.model.test_cuda_training import check, kinds, random
from tests.support.costs import set_costs


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    set_costs(monkeypatch, aligned_side=8, aligned_work=1, aligned_windows=1)


def pitches(model) -> set[int]:
    """The distances of rows in memory of all operands and results of products, in elements."""
    views = [v for t in model.plan.tasks if t.kind == "matmul" for v in (*t.inputs[:2], *t.outputs)]
    return {max(v.strides[-2:]) for v in views}


def test_a_step_of_classification_has_aligned_rows() -> None:
    """Sides that are no multiple of 8, as a vocabulary's; so are those of the bias's gradient."""

    def make(b, x, w, bias, dy):
        y = b.op("MatMul", x, b.op("Transpose", w, perm=[1, 0]), bias)
        slope = b.op("Mul", b.op("Tanh", y), dy)
        dx = b.op("MatMul", slope, w)
        dw = b.op("MatMul", b.op("Transpose", slope, perm=[1, 0]), x)
        return y, dx, dw, b.op("ReduceSum", slope, axes=[0], keepdims=False)

    feeds = random(16, 8), random(13, 8) / 3, random(13), random(16, 13, seed=1)
    model = check(make, "bfloat16", *feeds)
    assert pitches(model) == {8, 16}
    assert "copy" not in kinds(model)


@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True)])
def test_transposed_operands_are_padded_as_they_are_in_memory(transposed) -> None:
    a, b = ((11, 9), (9, 13))
    feeds = [random(*(s[::-1] if t else s)) for s, t in zip((a, b), transposed, strict=True)]

    def make(builder, x, y):
        return builder.op("MatMul", x, y, transpose_a=transposed[0], transpose_b=transposed[1])

    assert pitches(check(make, "float16", *feeds)) == {16}


def test_stacks_of_rows_and_activations() -> None:
    def make(b, x, w):
        return b.op("Relu", b.op("MatMul", x, w))

    assert pitches(check(make, "float16", random(2, 8, 16), random(16, 9))) == {16}


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 13), ("bfloat16", 16)])
def test_others_stay(dtype, columns) -> None:
    """float32, whose fast kernels take any rows, and what is aligned."""

    def make(b, x, w):
        return b.op("MatMul", x, w)

    model = check(make, dtype, random(16, 8), random(8, columns))
    assert [v.shape for t in model.plan.tasks for v in t.outputs] == [(16, columns)]
    assert kinds(model) == ["matmul"]


def test_small_products_stay(monkeypatch) -> None:
    """A copy of their operands would take longer than they do."""
    set_costs(monkeypatch, aligned_work=1 << 31, aligned_windows=1 << 31)

    def make(b, x, w):
        return b.op("MatMul", x, w)

    model = check(make, "bfloat16", random(16, 8), random(8, 13))
    assert kinds(model) == ["matmul"] and np.shape(model.plan.tasks[0].outputs[0].shape) == (2,)


@pytest.mark.parametrize("size", [1, 3])
def test_few_channels_of_a_first_convolution_are_padded(size) -> None:
    """Images and weights that the step computes, and the gradient of the weights, from the same padded images."""

    def make(b, x, w, dy):
        image, weight = b.op("Add", x, x), b.op("Add", w, w)
        y = b.op("Conv", image, weight, pads_begin=[size // 2] * 2, pads_end=[size // 2] * 2)
        window = {"kernel": [size] * 2, "pads_begin": [size // 2] * 2, "pads_end": [size // 2] * 2}
        return y, b.op("ConvGradWeight", image, dy, **window)

    model = check(make, "bfloat16", random(2, 3, 6, 6), random(8, 3, size, size), random(2, 8, 6, 6, seed=1))
    images = [t.inputs[0] for t in model.plan.tasks if t.kind in ("conv", "conv_grad_weights")]
    assert [v.shape[1] for v in images] == [8, 8] and images[0].buffer == images[1].buffer
