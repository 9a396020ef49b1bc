"""Epilogues give of infinities, NaN and the largest numbers what the operators alone give, in every implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ge.ops.nn.post_ops import apply_post_ops
from tests.native.native_support import (
    HAS_BF16_VECTORS,
    Array,
    Operand,
    constant,
    needs_bf16_vectors,
    needs_wide_vectors,
    run_single,
)

_MAX = float(np.finfo(np.float32).max)
_LARGE = [
    np.inf,
    -np.inf,
    1e38,
    -1e38,
    1e20,
    -1e20,
    200.0,
    -200.0,
    0.0,
    -0.0,
    1.0,
    -1.0,
    -_MAX,
    _MAX,
    np.nan,
    3.0,
]
_POST_OPS = (
    "relu", "leaky,0.1", "elu,0.5", "gelu_erf", "gelu_tanh", "swish,1.0", "swish,1.5", "tanh", "sigmoid",
    "clip,-0.5,0.75", "hardswish", "hardsigmoid,0.2,0.5", "mish", "abs", "square", "linear,2.0,-1.0",
)  # fmt: skip
# The library takes maxima and minima such that the bound replaces NaN, and doubles before it halves.
_LIBRARY_DIFFERS = {
    "relu": np.isnan,
    "clip": np.isnan,
    "hardsigmoid": np.isnan,
    "gelu_erf": lambda x: x == _MAX,
}
_OWN_PRODUCTS = ("relu", "gelu_erf", "gelu_tanh", "clip,-0.5,0.75")
_OWN_CONVOLUTIONS = ("relu", "swish,1.0", "swish,1.5", "clip,-0.5,0.75", "hardswish")


def _product(bias: Array, rows: int, depth: int, **attrs: Any) -> tuple[Array, str]:
    """Zero products, so that the bias is what the epilogue gets."""
    a, b = np.zeros((rows, depth), bias.dtype), np.zeros((depth, bias.size), bias.dtype)
    y = np.zeros((rows, bias.size), bias.dtype)
    weight = b if attrs.get("implementation") == "narrow" else constant(b)
    name = run_single("matmul", [a, weight, bias.astype(np.float32)], [y], {"has_bias": True, **attrs})
    return y, name


def _convolution(bias: Array, kernel: int, groups: int = 1, **attrs: Any) -> tuple[Array, str]:
    channels = bias.size
    x = np.zeros((1, 24, 24, channels), bias.dtype)
    w = np.zeros((kernel, kernel, channels // groups, channels), bias.dtype)
    y = np.zeros((1, 24, 24, channels), bias.dtype)
    pads = [kernel // 2] * 2
    settings = {"pads_begin": pads, "pads_end": pads, "strides": [1, 1], "groups": groups, "has_bias": True}
    inputs = [Operand(x, (0, 3, 1, 2)), constant(w, (3, 2, 0, 1)), constant(bias.astype(np.float32))]
    name = run_single("conv", inputs, [Operand(y, (0, 3, 1, 2))], settings | attrs)
    return y.reshape(-1, channels), name


def _check(run: Callable[..., tuple[Array, str]], name: str, post_op: str, dtype: Any, channels: int) -> None:
    with np.errstate(all="ignore"):
        bias = np.resize(np.array(_LARGE), channels).astype(dtype)
        got, chosen = run(bias, post_ops=[post_op], implementation=name)
        expected = apply_post_ops(bias.astype(np.float32), [post_op], []).astype(dtype).astype(np.float32)
    assert name == "onednn" or chosen.startswith(name) or name == "onednn_swish"
    if name == "onednn":
        differs = _LIBRARY_DIFFERS.get(post_op.partition(",")[0], np.zeros_like)(bias.astype(np.float32))
        expected = np.where(differs, got[0].astype(np.float32), expected)
    error = 1e-5 if dtype == np.float32 else 1e-2
    np.testing.assert_allclose(
        got.astype(np.float32),
        np.broadcast_to(expected, got.shape),
        error,
        1e-7 if dtype == np.float32 else 1e-5,
    )


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("post_op", _POST_OPS)
def test_the_library(post_op: str, dtype: Any) -> None:
    if dtype != np.float32 and not HAS_BF16_VECTORS:
        pytest.skip("needs bfloat16 products")
    _check(lambda bias, **attrs: _product(bias, 4, 8, **attrs), "onednn", post_op, dtype, 32)
    _check(lambda bias, **attrs: _convolution(bias, 3, **attrs), "onednn", post_op, dtype, 32)


@needs_wide_vectors
@pytest.mark.parametrize("post_op", _OWN_PRODUCTS)
def test_own_products(post_op: str) -> None:
    _check(lambda bias, **attrs: _product(bias, 512, 512, **attrs), "strassen", post_op, np.float32, 512)


@needs_wide_vectors
def test_own_products_of_few_rows() -> None:
    _check(lambda bias, **attrs: _product(bias, 4, 512, **attrs), "narrow", "relu", np.float32, 512)


@needs_bf16_vectors
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("post_op", _OWN_CONVOLUTIONS)
def test_own_convolutions(post_op: str, dtype: Any) -> None:
    names = [("depthwise", 3, 32), ("pointwise", 1, 1)]
    names += [("onednn_swish", 3, 1)] if post_op.startswith("swish") else []
    for name, kernel, groups in names:
        _check(
            lambda bias, kernel=kernel, groups=groups, **attrs: _convolution(bias, kernel, groups, **attrs),
            name,
            post_op,
            dtype,
            32,
        )


@needs_wide_vectors
@pytest.mark.parametrize("post_op", ["relu", "clip,0.0,6.0"])
def test_winograd(post_op: str) -> None:
    _check(lambda bias, **attrs: _convolution(bias, 3, **attrs), "winograd", post_op, np.float32, 64)
