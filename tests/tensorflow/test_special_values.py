"""NaN, infinities and poles through functions on the NPU are what TensorFlow makes of them on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter  # noqa: F401  (registers the NPU)

_SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0, -2.0, 7.0] * 3, np.float32)


def _both(function: Callable[..., Any], *arrays: Any) -> tuple[Any, Any]:
    """The results of TensorFlow on the CPU, and of a function on the NPU."""
    with tf.device("/CPU:0"):
        expected = [np.asarray(t) for t in tf.nest.flatten(function(*map(tf.constant, arrays)))]
    with tf.device("/NPU:0"):
        traced = tf.function(function, autograph=False)
        found = [np.asarray(t) for t in tf.nest.flatten(traced(*map(tf.constant, arrays)))]
    return expected, found


@pytest.mark.parametrize(
    "name", ["SqrtGrad", "RsqrtGrad", "InvGrad", "ReciprocalGrad", "TanhGrad", "SigmoidGrad"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_at_poles(name: str, dtype: Any) -> None:
    y, dy = (a.astype(dtype).ravel() for a in np.meshgrid(_SPECIAL[:8], _SPECIAL[:8]))
    if name in ("TanhGrad", "SigmoidGrad"):  # its kernels take zeros of either sign in different orders
        dy = np.abs(dy)
    expected, found = _both(lambda y, dy: getattr(tf.raw_ops, name)(y=y, dy=dy), y, dy)
    np.testing.assert_allclose(found[0], expected[0], 1e-6)


@pytest.mark.parametrize("name", ["ReluGrad", "Relu6Grad", "LeakyReluGrad", "EluGrad", "SeluGrad"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_gradients_that_are_not_finite_through_activations(name: str, dtype: str) -> None:
    """TensorFlow multiplies by the slope, which may be zero."""
    x, dy = (a.ravel() for a in np.meshgrid(_SPECIAL[:8], _SPECIAL[:8]))
    second = "outputs" if name in ("EluGrad", "SeluGrad") else "features"

    def slopes(x: Any, dy: Any) -> Any:
        arguments = {"gradients": tf.cast(dy, dtype), second: tf.cast(x, dtype)}
        return tf.cast(getattr(tf.raw_ops, name)(**arguments), tf.float64)

    expected, found = _both(slopes, x, dy)
    np.testing.assert_allclose(found[0], expected[0], {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6))


_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "clip": lambda x: tf.clip_by_value(x, -0.5, 0.75),
    "hard_sigmoid": lambda x: tf.clip_by_value(x * 0.2 + 0.5, 0.0, 1.0),
    "maximum": lambda x: tf.maximum(x, 0.25),
    "minimum": lambda x: tf.minimum(x, 0.25),
    "leaky_relu": tf.nn.leaky_relu,
}


@pytest.mark.parametrize("name", _ACTIVATIONS)
@pytest.mark.parametrize("added", [False, True])
def test_activations_after_products(name: str, added: bool) -> None:
    """As the epilogue of a product, alone and after the sum with another product."""
    activation = _ACTIVATIONS[name]
    x = np.zeros((6, 24), np.float32)
    x[2], x[4] = _SPECIAL, _SPECIAL[::-1]
    w = np.eye(24, dtype=np.float32)[:, ::-1].copy()
    w[w == 0] = 1e-3

    def function(x: Any, w: Any) -> Any:
        y = tf.matmul(x[:, :24], w)
        return activation(y + tf.matmul(tf.reverse(x, [0]), w)) if added else activation(y)

    expected, found = _both(function, x, w)
    np.testing.assert_allclose(found[0], expected[0], 1e-4, 1e-5)
    assert np.isnan(expected[0]).any() and not np.isnan(expected[0]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("known", [False, True])
def test_each_nan_is_unique(dtype: Any, known: bool) -> None:
    values = np.array([1, np.nan, 1, 0.0, np.nan, 0.0, np.inf, np.inf], dtype)

    def function(x: Any) -> Any:
        x = tf.constant(values) if known else x
        return tf.unique(x), tf.unique_with_counts(x, tf.int64)

    expected, found = _both(function, values)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


_RAW = tf.raw_ops
_FAR = np.array([[0, -300, 5, 300], [np.inf, 1, -np.inf, 2], [-np.inf, -np.inf, 80, -80]], np.float32)
_AWAY: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "cumulative_logsumexp": (lambda x: tf.math.cumulative_logsumexp(x, 1), [_FAR]),
    "cumulative_logsumexp_exclusive": (lambda x: tf.math.cumulative_logsumexp(x, 0, exclusive=True), [_FAR]),
    "cumulative_logsumexp_reverse": (lambda x: tf.math.cumulative_logsumexp(x, 1, reverse=True), [_FAR]),
    "cumulative_logsumexp_of_one": (
        lambda x: tf.math.cumulative_logsumexp(x, 1, exclusive=True),
        [_FAR[:, :1]],
    ),
    "diag": (lambda x: tf.linalg.tensor_diag(x), [_SPECIAL[:5]]),
    "lin_space": (lambda a, b: tf.linspace(a, b, 4), [np.float32(1.5), np.float32(np.inf)]),
    "lin_space_of_two": (lambda a, b: tf.linspace(a, b, 2), [np.float32(1.5), np.float32(np.inf)]),
    "weighted_counts": (
        lambda x, w: tf.math.bincount(x, w, minlength=5, maxlength=5),
        [np.array([0, 1, 3, 3, 9], np.int32), np.array([np.nan, 1, np.inf, 2, np.nan], np.float32)],
    ),
    "sparse_product": (
        lambda x: tf.sparse.sparse_dense_matmul(tf.SparseTensor([[0, 1], [2, 0]], [2.0, 0.0], [3, 3]), x),
        [np.array([[np.inf, 1], [2, 3], [np.nan, 4]], np.float32)],
    ),
    "sparse_product_of_adjoints": (
        lambda x: tf.sparse.sparse_dense_matmul(
            tf.SparseTensor([[0, 1], [2, 0]], [2.0, 3.0], [3, 2]), x, adjoint_a=True, adjoint_b=True
        ),
        [np.array([[np.inf, 1, 2], [3, np.nan, 4]], np.float32)],
    ),
    "buckets": (lambda x: _RAW.Bucketize(input=x, boundaries=[-1.0, 0.0, 2.0]), [_SPECIAL]),
    "bounds_in_the_wrong_order": (lambda x: tf.clip_by_value(x, 3.0, 1.0), [_SPECIAL]),
    "bounds_that_are_not_numbers": (
        lambda x, a, b: tf.clip_by_value(x, a, b),
        [_SPECIAL, np.float32(np.nan), np.float32(1)],
    ),
    "upper_bound_that_is_not_a_number": (
        lambda x, a, b: tf.clip_by_value(x, a, b),
        [_SPECIAL, np.float32(0), np.float32(np.nan)],
    ),
    "fake_quantised": (
        lambda x, a, b: tf.quantization.fake_quant_with_min_max_vars(x, a, b),
        [_SPECIAL, np.float32(-1), np.float32(1)],
    ),
    "fake_quantised_to_nothing": (
        lambda x, a, b: tf.quantization.fake_quant_with_min_max_vars(x, a, b),
        [_SPECIAL, np.float32(0), np.float32(0)],
    ),
    "gradient_of_fake_quantised": (
        lambda g, x: tf.quantization.fake_quant_with_min_max_args_gradient(g, x),
        [np.tile(_SPECIAL[:3], 8), _SPECIAL],
    ),
    "gradients_of_a_fake_range": (
        lambda g, x: _RAW.FakeQuantWithMinMaxVarsGradient(gradients=g, inputs=x, min=0.0, max=0.0),
        [np.abs(_SPECIAL), _SPECIAL],
    ),
}


@pytest.mark.parametrize("name", _AWAY)
def test_numbers_that_are_not_finite_stay_where_they_are(name: str) -> None:
    """What an operator does not read does not reach its result."""
    function, arrays = _AWAY[name]
    expected, found = _both(function, *arrays)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-6)


def test_a_quantised_zero_is_zero() -> None:
    x = np.zeros(4, np.float32)
    for low, high in ((-1.0, 1.0), (-0.3, 2.7), (-6.0, 0.1)):
        _, found = _both(lambda x, a, b: tf.quantization.fake_quant_with_min_max_vars(x, a, b), x, low, high)
        np.testing.assert_array_equal(found[0], 0)


_METHODS = ["bilinear", "nearest", "area", "bicubic", "lanczos3", "mitchellcubic"]


def _image(size: int) -> np.ndarray:
    image = np.random.default_rng(0).standard_normal((1, size, size, 2)).astype(np.float32)
    image[0, 2, 1, 0], image[0, 0, 2, 1], image[0, 3, 3, 0] = np.nan, np.inf, -np.inf
    return image


@pytest.mark.parametrize("method", _METHODS)
@pytest.mark.parametrize(("size", "out"), [(4, 7), (16, 3), (24, 8)])
def test_pixels_that_are_not_numbers_stay_near_their_places(method: str, size: int, out: int) -> None:
    """What is finite in TensorFlow is; resampling reads no pixel of weight zero, which TensorFlow does at times."""
    for antialias in (False, True):
        expected, found = _both(
            lambda x, a=antialias: tf.image.resize(x, [out, out], method=method, antialias=a), _image(size)
        )
        there = np.isfinite(expected[0])
        np.testing.assert_allclose(found[0][there], expected[0][there], 1e-4, 1e-5)
        if method in ("bilinear", "nearest") and not antialias:
            np.testing.assert_allclose(found[0], expected[0], 1e-5, 1e-5)


@pytest.mark.parametrize("name", ["ResizeNearestNeighborGrad", "ResizeBilinearGrad"])
@pytest.mark.parametrize(("size", "out"), [(16, 3), (4, 7), (12, 2)])
def test_gradients_of_resized_images_stay_near_their_places(name: str, size: int, out: int) -> None:
    def gradient(g: Any) -> Any:
        if name == "ResizeNearestNeighborGrad":
            return _RAW.ResizeNearestNeighborGrad(grads=g, size=[out, out])
        return _RAW.ResizeBilinearGrad(grads=g, original_image=tf.zeros([1, out, out, 2]))

    expected, found = _both(gradient, _image(size))
    there = np.isfinite(expected[0])
    np.testing.assert_allclose(found[0][there], expected[0][there], 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint8, np.float16, np.float64])
def test_gradients_of_nearest_neighbours_are_sums_in_their_own_type(dtype: Any) -> None:
    limits = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else np.finfo(np.float16)
    g = np.random.default_rng(0).uniform(float(limits.min), float(limits.max), (1, 4, 6, 2)).astype(dtype)
    g = g if np.issubdtype(dtype, np.integer) else (g / 1e4).round().astype(dtype)
    expected, found = _both(lambda g: _RAW.ResizeNearestNeighborGrad(grads=g, size=[2, 3]), g)
    np.testing.assert_array_equal(found[0], expected[0])


def test_a_matrix_that_is_not_positive_definite_has_a_factor_of_nan() -> None:
    x = np.array([[[1, 2], [2, 1]], [[4, 0], [0, 1]]], np.float32)
    expected, found = _both(lambda x: (tf.linalg.logdet(x), tf.linalg.diag_part(tf.linalg.cholesky(x))), x)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-6)
    known = tf.function(lambda: tf.linalg.logdet(tf.constant(x)))()
    np.testing.assert_allclose(known, expected[0], 1e-6)


_PLACES = np.array([[0, 1], [2, -1]], np.int64)
_SIZES = np.array([3, 3], np.int64)
_REFUSED: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "InvertPermutation": (lambda x: tf.math.invert_permutation(x), [np.array([0, -1, 2], np.int32)]),
    "InvertPermutation twice": (lambda x: tf.math.invert_permutation(x), [np.array([0, 1, 1], np.int32)]),
    "Bincount": (lambda x: tf.math.bincount(x, maxlength=4, minlength=4), [np.array([0, -1, 2], np.int32)]),
    "DenseBincount": (
        lambda x: _RAW.DenseBincount(input=x, size=4, weights=[]),
        [np.array([0, -1, 2], np.int32)],
    ),
    "HistogramFixedWidth": (lambda x: tf.histogram_fixed_width(x, [0.0, 1.0], 4), [_SPECIAL]),
    "SparseToDense": (
        lambda p: _RAW.SparseToDense(
            sparse_indices=p, output_shape=[3, 3], sparse_values=[1.0, 2.0], default_value=0.0
        ),
        [_PLACES],
    ),
    "SparseTensorDenseAdd": (
        lambda p: _RAW.SparseTensorDenseAdd(
            a_indices=p, a_values=[1.0, 2.0], a_shape=_SIZES, b=tf.ones([3, 3])
        ),
        [_PLACES],
    ),
    "SparseDenseCwiseMul": (
        lambda p: _RAW.SparseDenseCwiseMul(
            sp_indices=p, sp_values=[1.0, 2.0], sp_shape=_SIZES, dense=tf.ones([3, 3])
        ),
        [_PLACES],
    ),
    "SparseTensorDenseMatMul": (
        lambda p: _RAW.SparseTensorDenseMatMul(
            a_indices=p, a_values=[1.0, 2.0], a_shape=_SIZES, b=tf.ones([3, 3])
        ),
        [_PLACES],
    ),
    "CropAndResize": (
        lambda b: tf.image.crop_and_resize(tf.ones([1, 4, 4, 1]), b, [0], [2, 2]),
        [np.array([[0, 0, np.nan, 1]], np.float32)],
    ),
    "SparseSegmentSumGrad": (
        lambda i: _RAW.SparseSegmentSumGrad(
            grad=tf.ones([2, 3]), indices=i, segment_ids=[0, 1], output_dim0=3
        ),
        [np.array([0, -1], np.int32)],
    ),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_tensorflow_refuses_is_an_error(name: str) -> None:
    function, arrays = _REFUSED[name]
    for device in ("/CPU:0", "/NPU:0"):
        with tf.device(device), pytest.raises(tf.errors.InvalidArgumentError):
            tf.nest.map_structure(
                np.asarray, tf.function(function, autograph=False)(*map(tf.constant, arrays))
            )
