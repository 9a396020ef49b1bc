"""Runs a function through `to_static`, with and without the NPU, and compares results and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle

import paddle_npu

# PaddlePaddle 3.3 crashes now and then when programs of `to_static` are freed while others are made: all are kept.
_kept: list[Any] = []


def _program(function: Callable[..., Any]) -> Any:
    """A function as one program; lambdas have no source that PaddlePaddle could rewrite, so theirs is not."""
    if function.__name__ != "<lambda>":
        _kept.append(paddle.jit.to_static(function, full_graph=True))
        return _kept[-1]
    plain = paddle.jit.not_to_static(function)

    def program(tensors: Any) -> Any:
        return plain(*tensors)

    compiled = paddle.jit.to_static(program, full_graph=True)
    _kept.append(compiled)
    return lambda *tensors: compiled(list(tensors))


def results(function: Callable[..., Any], arrays: Sequence[np.ndarray], npu: bool) -> list[np.ndarray]:
    """What a function gives, and the gradients of a weighted sum of its floating results by its floating arguments."""
    if npu:
        paddle_npu.enable(strict=True)
    else:
        paddle_npu.disable()
    paddle.seed(7)
    tensors = [paddle.to_tensor(a, stop_gradient=a.dtype.kind != "f") for a in arrays]
    made = _program(function)(*tensors)
    outputs = [t for t in paddle.utils.flatten(made) if isinstance(t, paddle.Tensor)]
    smooth = [t for t in outputs if not t.stop_gradient and t.is_floating_point()]
    found = [t.numpy() for t in outputs]
    if smooth:
        weights = np.random.default_rng(3)
        total = sum(
            (t * paddle.to_tensor(weights.random(t.shape).astype(t.numpy().dtype))).sum() for t in smooth
        )
        total.backward()
        given = [t for t in tensors if not t.stop_gradient]
        found += [np.zeros(t.shape, "float32") if t.grad is None else t.grad.numpy() for t in given]
    return found


def check(function: Callable[..., Any], *arrays: np.ndarray, tolerance: float = 2e-5) -> None:
    """Compare both; the NPU must have run the program."""
    paddle_npu.reset_counts()
    ours = results(function, arrays, npu=True)
    counted = paddle_npu.counts()
    assert counted.npu == 1 and not counted.paddle, counted
    theirs = results(function, arrays, npu=False)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)
