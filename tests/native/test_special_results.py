"""Epilogues give of infinities, NaN and the largest numbers what the operators alone give, in every implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import npu_runtime as rt
from ge.ops.nn.post_ops import apply_post_ops
from npu_runtime import _native
from tests.native.native_support import (
    HAS_BF16_VECTORS,
    Array,
    Operand,
    constant,
    needs_own_kernels,
    needs_wide_vectors,
    run_single,
    view,
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
# The library doubles before it halves.
_LIBRARY_DIFFERS = {"gelu_erf": lambda x: x == _MAX}
# In the library these replace NaN by a bound; the runtime puts it back.
_BOUNDED = ("relu", "clip,-0.5,0.75", "hardsigmoid,0.2,0.5")
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


def _values(count: int, dtype: Any = np.float32) -> Array:
    return np.resize(np.array(_LARGE), count).astype(dtype)


def _applied(y: Array, post_ops: list[str], operands: list[Array]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(apply_post_ops(y.astype(np.float32), post_ops, operands))


@pytest.mark.parametrize("bounded", [*_BOUNDED, "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_nan_before_and_after_a_bound(bounded: str, dtype: Any) -> None:
    """NaN of the product, and NaN that another epilogue brings, between two bounds."""
    if dtype != np.float32 and not HAS_BF16_VECTORS:
        pytest.skip("needs bfloat16 products")
    bias, other, limit = _values(32, dtype), np.roll(_values(32, dtype), 5), np.full(32, 0.25, dtype)
    with_limit = bounded in ("max", "min")
    post_ops = [bounded, "add", "relu", "linear,2.0,-0.0"]
    operands = [*([limit] if with_limit else []), other]
    a, b, y = np.zeros((4, 8), dtype), np.zeros((8, 32), dtype), np.zeros((4, 32), dtype)
    inputs = [a, constant(b), bias.astype(np.float32), *(o.reshape(1, 32) for o in operands)]
    run_single("matmul", inputs, [y], {"has_bias": True, "post_ops": post_ops})
    expected = _applied(bias, post_ops, operands).astype(dtype)
    np.testing.assert_allclose(
        y.astype(np.float32), np.broadcast_to(expected.astype(np.float32), y.shape), 1e-2
    )
    np.testing.assert_array_equal(np.isnan(y[0]), np.isnan(expected))


@pytest.mark.parametrize("bounded", _BOUNDED)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_bounds_after_a_sum(bounded: str, dtype: Any) -> None:
    if dtype != np.float32 and not HAS_BF16_VECTORS:
        pytest.skip("needs bfloat16 products")
    held = np.tile(_values(32, dtype), (4, 1))
    y, bias = held.copy(), np.roll(_values(32), 3)
    a, b = np.zeros((4, 8), dtype), np.zeros((8, 32), dtype)
    settings = {"has_bias": True, "post_ops": ["sum", bounded], "implementation": "onednn"}
    run_single("matmul", [a, constant(b), bias], [y], settings)
    with np.errstate(all="ignore"):
        expected = _applied(held.astype(np.float32) + bias, [bounded], []).astype(dtype)
    error = 1e-6 if dtype == np.float32 else 1e-2
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), error, 1e-7)


@pytest.mark.parametrize("threads", [1, 2])
def test_nan_that_one_thread_meets(threads: int) -> None:
    """One element of a product that several threads share, in every place."""
    before = rt.num_threads()
    rt.set_num_threads(threads)
    try:
        x = np.ones((64, 256), np.float32)
        w = constant(np.full((256, 64), 0.5, np.float32))
        for row in (0, 17, 40, 63):
            x[row, 3] = np.nan
            y = np.zeros((64, 64), np.float32)
            run_single("matmul", [x, w], [y], {"post_ops": ["relu"], "implementation": "onednn"})
            expected = np.full((64, 64), 128.0, np.float32)
            expected[row] = np.nan
            np.testing.assert_array_equal(y, expected)
            x[row, 3] = 1
    finally:
        rt.set_num_threads(before)


def test_what_lies_between_the_rows_of_a_view_is_not_touched() -> None:
    whole, bias = np.full((8, 48), 7, np.float32), _values(32)
    a, b = np.zeros((8, 8), np.float32), np.zeros((8, 32), np.float32)
    program = rt.Program("rows of a wider matrix")
    inputs = [view(program.constant(array), array) for array in (a, b, bias)]
    target = view(program.output(0, whole.nbytes), whole[:, :32])
    program.task("matmul", "product", inputs, [target], {"has_bias": True, "post_ops": ["relu"]})
    program.finalize(0)
    program.run([], [whole])
    np.testing.assert_array_equal(whole[:, 32:], 7)
    np.testing.assert_array_equal(whole[:, :32], np.tile(np.maximum(bias, 0), (8, 1)))


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize(("channels", "groups"), [(1, 1), (2, 1), (4, 4)])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_infinity_stays_in_its_pixel(rank: int, channels: int, groups: int, dtype: Any) -> None:
    """1x1 convolutions of few channels: what pads a pair of 16-bit channels is not the next pixel."""
    sizes = (5, 4, 3)[:rank]
    x = np.ones((2, channels, *sizes), dtype)
    x[0, 0].flat[3] = np.inf
    x[1, -1].flat[7 % x[1, -1].size] = np.nan
    w = np.full((4, channels // groups, *[1] * rank), 0.5, dtype)
    y = np.zeros((2, 4, *sizes), dtype)
    none, one = [0] * rank, [1] * rank
    settings = {"pads_begin": none, "pads_end": none, "strides": one, "groups": groups}
    run_single("conv", [x, constant(w)], [y], settings)
    halves = 0.5 * x.astype(np.float32)
    wanted = halves if groups > 1 else np.stack([halves.sum(1)] * 4, 1)
    np.testing.assert_array_equal(y.astype(np.float32), wanted)


@pytest.mark.parametrize("post_op", _BOUNDED)
def test_transposed_convolutions(post_op: str) -> None:
    bias = _values(16)
    x, w = np.zeros((1, 6, 6, 16), np.float32), np.zeros((3, 3, 16, 16), np.float32)
    y = np.zeros((1, 6, 6, 16), np.float32)
    settings = {"pads_begin": [1, 1], "pads_end": [1, 1], "strides": [1, 1], "has_bias": True, "groups": 1}
    inputs = [Operand(x, (0, 3, 1, 2)), constant(w, (3, 2, 0, 1)), constant(bias)]
    more = {"post_ops": [post_op], "implementation": "onednn"}
    run_single("deconv", inputs, [Operand(y, (0, 3, 1, 2))], settings | more)
    np.testing.assert_allclose(y, np.broadcast_to(_applied(bias, [post_op], []), y.shape), 1e-5, 1e-7)


def test_products_of_numbers_run_once() -> None:
    rng = np.random.default_rng(0)
    before = _native.nan_repairs()
    for rows, depth, columns in ((1, 7, 5), (33, 65, 17), (64, 128, 96)):
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((rows, depth), (depth, columns)))
        y = np.zeros((rows, columns), np.float32)
        for post_op in _BOUNDED:
            run_single("matmul", [a, constant(b)], [y], {"post_ops": [post_op], "implementation": "onednn"})
    for channels, size in ((3, 9), (16, 12), (20, 7)):
        x = rng.standard_normal((2, channels, size, size)).astype(np.float32)
        w = rng.standard_normal((24, channels, 3, 3)).astype(np.float32)
        y = np.zeros((2, 24, size, size), np.float32)
        settings = {"pads_begin": [1, 1], "pads_end": [1, 1], "strides": [1, 1], "groups": 1}
        more = {"post_ops": ["relu"], "implementation": "onednn"}
        run_single("conv", [x, constant(w)], [y], settings | more)
    assert _native.nan_repairs() == before


@needs_wide_vectors
@pytest.mark.parametrize("post_op", _OWN_PRODUCTS)
def test_own_products(post_op: str) -> None:
    _check(lambda bias, **attrs: _product(bias, 512, 512, **attrs), "strassen", post_op, np.float32, 512)


@needs_own_kernels
def test_own_products_of_few_rows() -> None:
    _check(lambda bias, **attrs: _product(bias, 4, 512, **attrs), "narrow", "relu", np.float32, 512)


@needs_own_kernels
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


@needs_own_kernels
@pytest.mark.parametrize("post_op", ["relu", "clip,0.0,6.0"])
def test_winograd(post_op: str) -> None:
    _check(lambda bias, **attrs: _convolution(bias, 3, **attrs), "winograd", post_op, np.float32, 64)
