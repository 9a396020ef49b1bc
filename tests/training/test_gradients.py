"""Gradients of operators and layers, compiled from what TensorFlow's autodiff emits, against TensorFlow's own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tests.support.sampling import one_in  # noqa: E402
from tests.support.tf_training import TrainStep  # noqa: E402

L = tf.keras.layers
RANDOM = np.random.default_rng(5)


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.5, 2.0, shape).astype(np.float32)


def integers(high: int, *shape: int) -> np.ndarray:
    return RANDOM.integers(0, high, shape).astype(np.int32)


def compare(function: Callable[..., Any], arrays: tuple[np.ndarray, ...], variables: Any = ()) -> None:
    """Gradients by the floating point arguments and the variables are TensorFlow's."""

    def gradients(*values: Any) -> Any:
        with tf.GradientTape() as tape:
            wanted = [v for v in values if v.dtype.is_floating]
            tape.watch(wanted)
            results = tf.nest.flatten(function(*values))
            parts = [
                tf.reduce_sum(tf.sin(tf.cast(r, tf.float32) * 0.7)) for r in results if r.dtype.is_floating
            ]
            loss = tf.add_n(parts)
        sources = [*wanted, *(getattr(v, "value", v) if hasattr(v, "path") else v for v in variables)]
        found = tape.gradient(loss, sources, unconnected_gradients="zero")
        return [loss, *(tf.convert_to_tensor(g) for g in found)]

    step = TrainStep(gradients, arrays)
    expected = step.reference(*arrays)
    for turn, (mine, theirs) in enumerate(zip(step(*arrays), expected, strict=True)):
        scale = max(1.0, float(np.abs(theirs.astype(np.float64)).max(initial=0.0)))
        np.testing.assert_allclose(mine, theirs, rtol=5e-4, atol=2e-4 * scale, err_msg=f"result {turn}")


# -- operators -------------------------------------------------------------------------------------------------

OPERATORS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    # convolutions
    "conv2d strided": (lambda x, w: tf.nn.conv2d(x, w, 2, "SAME"), (real(2, 9, 8, 3), real(3, 3, 3, 4))),
    "conv2d explicit pads": (
        lambda x, w: tf.nn.conv2d(x, w, 1, [[0, 0], [2, 1], [0, 2], [0, 0]]),
        (real(2, 9, 8, 3), real(3, 3, 3, 4)),
    ),
    "conv2d groups": (lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), (real(2, 7, 6, 8), real(3, 3, 2, 12))),
    "conv2d dilated": (
        lambda x, w: tf.nn.conv2d(x, w, 1, "VALID", dilations=[2, 3]),
        (real(2, 12, 13, 3), real(3, 3, 3, 4)),
    ),
    "conv2d 1x1 strided": (lambda x, w: tf.nn.conv2d(x, w, 2, "VALID"), (real(2, 7, 8, 4), real(1, 1, 4, 6))),
    "conv1d": (lambda x, w: tf.nn.conv1d(x, w, 2, "SAME"), (real(2, 11, 3), real(5, 3, 4))),
    "conv3d": (
        lambda x, w: tf.nn.conv3d(x, w, [1, 2, 1, 1, 1], "SAME"),
        (real(1, 5, 6, 4, 2), real(2, 3, 3, 2, 3)),
    ),
    "conv2d_transpose": (
        lambda x, w: tf.nn.conv2d_transpose(x, w, [2, 10, 12, 3], 2, "SAME"),
        (real(2, 5, 6, 4), real(3, 3, 3, 4)),
    ),
    "conv3d_transpose": (
        lambda x, w: tf.nn.conv3d_transpose(x, w, [1, 4, 6, 8, 2], 2, "SAME"),
        (real(1, 2, 3, 4, 3), real(3, 3, 3, 2, 3)),
    ),
    "depthwise": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME", dilations=[2, 2]),
        (real(2, 8, 7, 3), real(3, 3, 3, 2)),
    ),
    "depthwise strided": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 2, 2, 1], "SAME"),
        (real(2, 8, 7, 16), real(3, 3, 16, 1)),
    ),
    "separable": (
        lambda x, d, p: tf.nn.separable_conv2d(x, d, p, [1, 1, 1, 1], "SAME"),
        (real(2, 6, 7, 3), real(3, 3, 3, 2), real(1, 1, 6, 5)),
    ),
    "atrous": (lambda x, w: tf.nn.atrous_conv2d(x, w, 2, "SAME"), (real(2, 9, 8, 3), real(3, 3, 3, 4))),
    # pooling
    "max_pool2d": (lambda x: tf.nn.max_pool2d(x, [3, 2], 2, "SAME"), (real(2, 9, 8, 3),)),
    "max_pool2d of equal values": (
        lambda x: tf.nn.max_pool2d(tf.round(x * 0.5) * x, 3, 1, "SAME"),
        (real(2, 9, 8, 3),),
    ),
    "max_pool3d": (lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"), (real(1, 5, 6, 4, 2),)),
    "max_pool1d": (lambda x: tf.nn.max_pool1d(x, 3, 2, "VALID"), (real(2, 9, 3),)),
    "avg_pool2d": (lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), (real(2, 9, 8, 3),)),
    "avg_pool3d": (lambda x: tf.nn.avg_pool3d(x, 2, 2, "SAME"), (real(1, 5, 6, 4, 2),)),
    "max_pool_with_argmax": (lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "VALID")[0], (real(2, 8, 6, 3),)),
    # products
    "matmul": (tf.matmul, (real(4, 3), real(3, 5))),
    "matmul transposed": (
        lambda a, b: tf.matmul(a, b, transpose_a=True, transpose_b=True),
        (real(3, 4), real(5, 3)),
    ),
    "batch matmul broadcast": (tf.matmul, (real(2, 1, 4, 3), real(5, 3, 6))),
    "einsum": (lambda a, b: tf.einsum("abc,cde->abde", a, b), (real(2, 4, 3), real(3, 2, 5))),
    "einsum attention": (
        lambda a, b: tf.einsum("btnh,bsnh->bnts", a, b),
        (real(2, 4, 2, 3), real(2, 5, 2, 3)),
    ),
    "einsum sum": (lambda a, b: tf.einsum("ij,kj->k", a, b), (real(4, 3), real(5, 3))),
    "tensordot": (lambda a, b: tf.tensordot(a, b, [[0, 2], [1, 0]]), (real(4, 2, 3), real(3, 4, 5))),
    "cholesky solve": (
        lambda a, b: tf.linalg.matmul(tf.linalg.matrix_transpose(a), b),
        (real(3, 3), real(3, 2)),
    ),
    # reductions and scans
    "reduce_sum": (lambda x: tf.reduce_sum(x, [0, 2]), (real(3, 4, 5),)),
    "reduce_mean": (lambda x: tf.reduce_mean(x, 1, keepdims=True), (real(3, 4, 5),)),
    "reduce_max": (lambda x: tf.reduce_max(x, 1), (real(3, 4, 5),)),
    "reduce_min": (lambda x: tf.reduce_min(x, [0, 1]), (real(3, 4, 5),)),
    "reduce_prod": (lambda x: tf.reduce_prod(x, 1), (positive(3, 4, 5),)),
    "reduce_logsumexp": (lambda x: tf.reduce_logsumexp(x, -1), (real(3, 4),)),
    "reduce_variance": (lambda x: tf.math.reduce_variance(x, 0), (real(3, 4),)),
    "reduce_std": (lambda x: tf.math.reduce_std(x, 0), (real(3, 4),)),
    "norm": (lambda x: tf.norm(x, axis=-1), (real(3, 4),)),
    "l2_normalize": (lambda x: tf.math.l2_normalize(x, -1), (real(3, 4),)),
    "cumsum": (lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True), (real(3, 4),)),
    "cumprod": (lambda x: tf.math.cumprod(x, 1), (positive(3, 4),)),
    "cumulative_logsumexp": (lambda x: tf.math.cumulative_logsumexp(x, 1), (real(3, 4),)),
    "top_k": (lambda x: tf.math.top_k(x, 3)[0], (real(4, 7),)),
    "sort": (lambda x: tf.sort(x, direction="DESCENDING"), (real(4, 7),)),
    # movement
    "transpose reshape": (lambda x: tf.reshape(tf.transpose(x, [2, 0, 1]), [5, -1]), (real(3, 4, 5),)),
    "concat split": (
        lambda x, y: tf.split(tf.concat([x, y], 1), [2, 3, 1], 1)[1],
        (real(3, 4), real(3, 2)),
    ),
    "stack unstack": (lambda x, y: tf.unstack(tf.stack([x, y], 1), axis=1)[0] * y, (real(3, 4), real(3, 4))),
    "strided slice": (lambda x: x[::-2, 1:, tf.newaxis, ..., 0], (real(5, 4, 3),)),
    "pad": (lambda x: tf.pad(x, [[1, 0], [2, 3]]), (real(3, 4),)),
    "mirror pad": (lambda x: tf.pad(x, [[1, 0], [2, 3]], "SYMMETRIC"), (real(3, 4),)),
    "tile": (lambda x: tf.tile(x, [2, 3]), (real(3, 4),)),
    "repeat": (lambda x: tf.repeat(x, 3, axis=1), (real(3, 4),)),
    "broadcast_to": (lambda x: tf.broadcast_to(x, [5, 3, 4]), (real(3, 1),)),
    "roll": (lambda x: tf.roll(x, [1, -2], [0, 1]), (real(3, 4),)),
    "reverse": (lambda x: tf.reverse(x, [1]), (real(3, 4),)),
    "space_to_depth": (lambda x: tf.nn.space_to_depth(x, 2), (real(2, 4, 6, 3),)),
    "depth_to_space": (lambda x: tf.nn.depth_to_space(x, 2), (real(2, 2, 3, 8),)),
    "space_to_batch": (lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [1, 1]]), (real(2, 4, 4, 3),)),
    "batch_to_space": (lambda x: tf.batch_to_space(x, [2, 2], [[0, 0], [0, 1]]), (real(8, 2, 3, 3),)),
    "squeeze expand": (lambda x: tf.expand_dims(tf.squeeze(x, [1]), 0), (real(3, 1, 4),)),
    "diag": (lambda x: tf.linalg.diag_part(x) + tf.linalg.diag(x)[..., 0, 0, :], (real(2, 3, 3),)),
    "band part": (lambda x: tf.linalg.band_part(x, 1, 0), (real(2, 4, 4),)),
    "set_diag": (lambda x, d: tf.linalg.set_diag(x, d), (real(2, 4, 4), real(2, 4))),
    # gather and scatter
    "gather": (lambda x, i: tf.gather(x, i), (real(6, 3), integers(6, 4, 2))),
    "gather axis": (lambda x, i: tf.gather(x, i, axis=1), (real(3, 6, 2), integers(6, 4))),
    "gather batch": (lambda x, i: tf.gather(x, i, batch_dims=1), (real(3, 6, 2), integers(6, 3, 4))),
    "gather_nd": (lambda x, i: tf.gather_nd(x, i), (real(4, 4, 2), integers(4, 5, 2))),
    "gather_nd batch": (lambda x, i: tf.gather_nd(x, i, batch_dims=1), (real(3, 4, 2), integers(4, 3, 5, 1))),
    "scatter_nd": (lambda u, i: tf.scatter_nd(i, u, [6, 3]), (real(4, 3), integers(6, 4, 1))),
    "tensor_scatter_update": (
        lambda x, u: tf.tensor_scatter_nd_update(x, [[1], [3]], u),
        (real(5, 3), real(2, 3)),
    ),
    "tensor_scatter_add": (
        lambda x, u: tf.tensor_scatter_nd_add(x, [[1], [1], [3]], u),
        (real(5, 3), real(3, 3)),
    ),
    "tensor_scatter_max": (
        lambda x, u: tf.tensor_scatter_nd_max(x, [[1], [3]], u),
        (real(5, 3), real(2, 3)),
    ),
    "segment_sum": (lambda x: tf.math.segment_sum(x, [0, 0, 1, 3]), (real(4, 3),)),
    "segment_mean": (lambda x: tf.math.segment_mean(x, [0, 0, 1, 2]), (real(4, 3),)),
    "segment_max": (lambda x: tf.math.segment_max(x, [0, 0, 1, 2]), (real(4, 3),)),
    "unsorted_segment_sum": (
        lambda x, i: tf.math.unsorted_segment_sum(x, i, 5),
        (real(6, 3), integers(5, 6)),
    ),
    "unsorted_segment_mean": (
        lambda x, i: tf.math.unsorted_segment_mean(x, i, 5),
        (real(6, 3), integers(5, 6)),
    ),
    "unsorted_segment_max": (lambda x: tf.math.unsorted_segment_max(x, [2, 0, 2, 1, 0, 3], 4), (real(6, 3),)),
    "unsorted_segment_prod": (
        lambda x: tf.math.unsorted_segment_prod(x, [2, 0, 2, 1, 0, 3], 4),
        (positive(6, 3),),
    ),
    "where": (lambda x, y: tf.where(x > 0.1, x * y, y - x), (real(3, 4), real(3, 4))),
    "where broadcast": (lambda x, y: tf.where(x[:1] > 0.1, x, y), (real(3, 4), real(4))),
    "boolean weights": (lambda x: tf.cast(x > 0, tf.float32) * x, (real(3, 4),)),
    "one_hot": (lambda x, i: tf.one_hot(i, 5) * x, (real(3, 5), integers(5, 3))),
    "dynamic_stitch": (
        lambda x, y: tf.dynamic_stitch([[0, 2], [1, 3]], [x, y]),
        (real(2, 3), real(2, 3)),
    ),
    "dynamic_partition sums": (lambda x: tf.reduce_sum(x[:2]) * x, (real(4, 3),)),
    # normalisation and losses
    "softmax": (lambda x: tf.nn.softmax(x, 1), (real(3, 4, 2),)),
    "log_softmax": (tf.nn.log_softmax, (real(3, 4),)),
    "softmax cross entropy": (
        lambda x, y: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y), x),
        (real(4, 6), real(4, 6)),
    ),
    "sparse softmax cross entropy": (
        lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x),
        (real(4, 6), integers(6, 4)),
    ),
    "sigmoid cross entropy": (
        lambda x, y: tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(y), x),
        (real(4, 6), real(4, 6)),
    ),
    "weighted cross entropy": (
        lambda x, y: tf.nn.weighted_cross_entropy_with_logits(tf.sigmoid(y), x, 0.3),
        (real(4, 6), real(4, 6)),
    ),
    "fused batch norm": (
        lambda x, s, o: tf.compat.v1.nn.fused_batch_norm(x, s, o, is_training=True)[0],
        (real(4, 5, 6, 8), real(8), real(8)),
    ),
    "fused batch norm with statistics": (
        lambda x, s, o: tf.compat.v1.nn.fused_batch_norm(x, s, o, is_training=True)[:3],
        (real(4, 5, 6, 8), real(8), real(8)),
    ),
    "fused batch norm in inference": (
        lambda x, s, o, m, v: tf.compat.v1.nn.fused_batch_norm(x, s, o, m, v, is_training=False)[0],
        (real(4, 5, 6, 8), real(8), real(8), real(8), positive(8)),
    ),
    "moments": (lambda x: tf.nn.moments(x, [0, 1]), (real(3, 4, 5),)),
    "lrn": (lambda x: tf.nn.lrn(x, 2, 1.0, 0.1, 0.75), (real(2, 3, 4, 7),)),
    "l2_loss": (tf.nn.l2_loss, (real(3, 4),)),
    "ctc loss": (
        lambda x: tf.nn.ctc_loss(
            np.int32([[1, 2], [2, 1]]),
            x,
            np.int32([2, 2]),
            np.int32([6, 6]),
            blank_index=0,
            logits_time_major=False,
        ),
        (real(2, 6, 4),),
    ),
    # images
    "resize bilinear": (lambda x: tf.image.resize(x, [7, 9]), (real(2, 4, 5, 3),)),
    "resize nearest": (lambda x: tf.image.resize(x, [8, 10], "nearest"), (real(2, 4, 5, 3),)),
    "resize bicubic": (lambda x: tf.image.resize(x, [7, 9], "bicubic"), (real(2, 4, 5, 3),)),
    "resize area": (lambda x: tf.reduce_mean(tf.reshape(x, [2, 2, 2, 3, 2, 3]), [2, 4]), (real(2, 4, 6, 3),)),
    "resize half": (lambda x: tf.image.resize(x, [2, 3]), (real(2, 4, 6, 3),)),
    "adjust_contrast": (lambda x: tf.image.per_image_standardization(x), (real(2, 4, 5, 3),)),
    "extract_patches": (
        lambda x: tf.image.extract_patches(x, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "SAME"),
        (real(2, 6, 7, 3),),
    ),
    # control flow
    "cond": (
        lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x), lambda: tf.exp(x) * x),
        (real(3, 4),),
    ),
    "while": (
        lambda x, w: tf.while_loop(
            lambda i, y: i < 5, lambda i, y: (i + 1, tf.tanh(tf.matmul(y, w))), [0, x]
        )[1],
        (real(3, 4), real(4, 4)),
    ),
    "scan": (
        lambda x: tf.scan(lambda a, b: tf.tanh(a * 0.5 + b), x, initializer=tf.zeros([4])),
        (real(6, 4),),
    ),
    "map_fn": (lambda x: tf.map_fn(lambda r: tf.sin(r) * tf.reduce_sum(r), x), (real(6, 4),)),
    "custom gradient": (
        lambda x: tf.custom_gradient(lambda v: (tf.round(v), lambda g: g * 0.5))(x),
        (real(3, 4),),
    ),
    "stop gradient": (lambda x: x * tf.stop_gradient(tf.exp(x)), (real(3, 4),)),
    "second derivative": (
        lambda x: tf.gradients(tf.reduce_sum(tf.sin(x) * x), x)[0],
        (real(3, 4),),
    ),
}


@pytest.mark.parametrize("name", one_in(3, OPERATORS))
def test_gradients_of_operators(name: str) -> None:
    compare(*OPERATORS[name])


UNARY = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "erfcinv",
    "erfinv",
    "exp",
    "expm1",
    "lgamma",
    "log",
    "log1p",
    "ndtri",
    "reciprocal",
    "rsqrt",
    "sigmoid",
    "sin",
    "sinh",
    "softplus",
    "softsign",
    "sqrt",
    "square",
    "tan",
    "tanh",
    "xlogx",
]
_UNIT = {"acos", "asin", "atanh", "erfcinv", "erfinv", "ndtri"}
SPECIAL: dict[str, Callable[[Any], Any]] = {
    "xlogx": lambda x: tf.math.xlogy(x, x) + tf.math.xlog1py(x, x) + tf.math.xdivy(x, x + 1)
}


@pytest.mark.parametrize("name", one_in(6, UNARY))
def test_gradients_of_functions_of_one_argument(name: str) -> None:
    function = SPECIAL.get(name) or getattr(tf.math, name)
    low, high = (0.1, 0.9) if name in _UNIT else (1.1, 2.0)
    compare(function, (RANDOM.uniform(low, high, (3, 5)).astype(np.float32),))


BINARY = (
    "add atan2 divide divide_no_nan floordiv maximum minimum mod multiply pow squared_difference subtract"
)


@pytest.mark.parametrize("name", one_in(4, BINARY.split()))
def test_gradients_of_functions_of_two_arguments(name: str) -> None:
    function = getattr(tf.math, name)
    compare(function, (positive(3, 4), positive(4)))
    compare(function, (positive(1, 4), positive(3, 1)))


ACTIVATIONS = [
    "celu",
    "elu",
    "exponential",
    "gelu",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparsemax",
    "squareplus",
    "tanh",
    "tanh_shrink",
    "threshold",
]


@pytest.mark.parametrize("name", one_in(4, ACTIVATIONS))
def test_gradients_of_activations(name: str) -> None:
    function = getattr(tf.keras.activations, name, None)
    if function is None:
        pytest.skip("this Keras does not have it")
    kwargs = {"threshold": 0.2, "default_value": 0.1} if name == "threshold" else {}
    compare(lambda x: function(x, **kwargs), (real(4, 6) * 2,))


# -- layers ----------------------------------------------------------------------------------------------------

IMAGE, SERIES, VECTOR, VOLUME = (2, 8, 8, 4), (3, 6, 5), (4, 6), (2, 4, 4, 4, 3)

LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "Dense": (lambda: L.Dense(5, activation="gelu"), VECTOR),
    "EinsumDense": (lambda: L.EinsumDense("abc,cd->abd", (6, 7), bias_axes="d"), SERIES),
    "Conv1D causal": (lambda: L.Conv1D(4, 3, padding="causal", dilation_rate=2), SERIES),
    "Conv2D": (lambda: L.Conv2D(6, 3, strides=2, padding="same", activation="relu"), IMAGE),
    "Conv2D groups": (lambda: L.Conv2D(6, 3, groups=2), IMAGE),
    "Conv2D dilated": (lambda: L.Conv2D(6, 3, dilation_rate=2), IMAGE),
    "Conv3D": (lambda: L.Conv3D(4, 2, strides=2), VOLUME),
    "Conv1DTranspose": (lambda: L.Conv1DTranspose(4, 3, strides=2), SERIES),
    "Conv2DTranspose": (lambda: L.Conv2DTranspose(5, 3, strides=2, padding="same"), IMAGE),
    "Conv2DTranspose valid": (lambda: L.Conv2DTranspose(5, 3, strides=3), IMAGE),
    "Conv3DTranspose": (lambda: L.Conv3DTranspose(2, 3, strides=2, padding="same"), VOLUME),
    "DepthwiseConv1D": (lambda: L.DepthwiseConv1D(3, depth_multiplier=2), SERIES),
    "DepthwiseConv2D": (lambda: L.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=2), IMAGE),
    "SeparableConv1D": (lambda: L.SeparableConv1D(4, 3), SERIES),
    "SeparableConv2D": (lambda: L.SeparableConv2D(5, 3, padding="same"), IMAGE),
    "BatchNormalization": (L.BatchNormalization, IMAGE),
    "BatchNormalization of vectors": (L.BatchNormalization, VECTOR),
    "LayerNormalization": (L.LayerNormalization, SERIES),
    "LayerNormalization of two axes": (lambda: L.LayerNormalization(axis=[1, 2]), SERIES),
    "GroupNormalization": (lambda: L.GroupNormalization(2), IMAGE),
    "UnitNormalization": (L.UnitNormalization, SERIES),
    "RMSNormalization": (lambda: L.RMSNormalization(), SERIES),
    "SpectralNormalization": (lambda: L.SpectralNormalization(L.Dense(4)), VECTOR),
    "MaxPooling1D": (lambda: L.MaxPooling1D(2), SERIES),
    "MaxPooling2D": (lambda: L.MaxPooling2D(3, 2, padding="same"), IMAGE),
    "MaxPooling3D": (lambda: L.MaxPooling3D(2), VOLUME),
    "AveragePooling1D": (lambda: L.AveragePooling1D(2), SERIES),
    "AveragePooling2D": (lambda: L.AveragePooling2D(3, 2, padding="same"), IMAGE),
    "AveragePooling3D": (lambda: L.AveragePooling3D(2), VOLUME),
    "GlobalAveragePooling2D": (L.GlobalAveragePooling2D, IMAGE),
    "GlobalMaxPooling2D": (L.GlobalMaxPooling2D, IMAGE),
    "GlobalMaxPooling1D": (L.GlobalMaxPooling1D, SERIES),
    "PReLU": (L.PReLU, SERIES),
    "LeakyReLU": (L.LeakyReLU, SERIES),
    "Softmax": (L.Softmax, SERIES),
    "Dropout": (lambda: L.Dropout(0.4, seed=3), SERIES),
    "SpatialDropout1D": (lambda: L.SpatialDropout1D(0.4, seed=3), SERIES),
    "GaussianNoise": (lambda: L.GaussianNoise(0.4, seed=3), SERIES),
    "GaussianDropout": (lambda: L.GaussianDropout(0.4, seed=3), SERIES),
    "AlphaDropout": (lambda: L.AlphaDropout(0.4, seed=3), SERIES),
    "ActivityRegularization": (lambda: L.ActivityRegularization(0.1, 0.1), VECTOR),
    "LSTM": (lambda: L.LSTM(4), SERIES),
    "LSTM sequences": (lambda: L.LSTM(4, return_sequences=True, go_backwards=True), SERIES),
    "LSTM unrolled": (lambda: L.LSTM(4, unroll=True), SERIES),
    "LSTM with dropout": (lambda: L.LSTM(4, dropout=0.3, recurrent_dropout=0.2, seed=3), SERIES),
    "GRU": (lambda: L.GRU(4), SERIES),
    "GRU before": (lambda: L.GRU(4, reset_after=False, return_sequences=True), SERIES),
    "SimpleRNN": (lambda: L.SimpleRNN(4, return_sequences=True), SERIES),
    "Bidirectional": (lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)), SERIES),
    "ConvLSTM2D": (lambda: L.ConvLSTM2D(2, 3, padding="same"), (2, 3, 5, 5, 2)),
    "StackedRNN": (lambda: L.RNN([L.LSTMCell(3), L.GRUCell(4)]), SERIES),
    "TimeDistributed": (lambda: L.TimeDistributed(L.Dense(3)), SERIES),
    "UpSampling2D": (lambda: L.UpSampling2D(2), IMAGE),
    "UpSampling2D bilinear": (lambda: L.UpSampling2D(2, interpolation="bilinear"), IMAGE),
    "ZeroPadding2D": (lambda: L.ZeroPadding2D(((1, 0), (2, 1))), IMAGE),
    "Cropping2D": (lambda: L.Cropping2D(((1, 0), (2, 1))), IMAGE),
    "Permute": (lambda: L.Permute((2, 1)), SERIES),
    "RepeatVector": (lambda: L.RepeatVector(3), VECTOR),
    "Rescaling": (lambda: L.Rescaling(0.5, 1.0), IMAGE),
}


@pytest.mark.parametrize("name", one_in(3, LAYERS))
def test_gradients_of_layers(name: str) -> None:
    make, shape = LAYERS[name]
    tf.keras.utils.set_random_seed(7)
    try:
        layer = make()
    except (AttributeError, TypeError, ValueError):
        pytest.skip("this Keras does not have it")
    layer(real(*shape))
    for variable in layer.trainable_variables:
        variable.assign(variable + 0.1 * RANDOM.standard_normal(variable.shape))
    compare(lambda x: layer(x, training=True), (real(*shape),), layer.trainable_variables)


def test_gradients_of_attention() -> None:
    layer = L.MultiHeadAttention(2, 3, dropout=0.2, seed=1)
    layer(real(2, 4, 6), real(2, 5, 6))
    compare(
        lambda q, v: layer(q, v, training=True), (real(2, 4, 6), real(2, 5, 6)), layer.trainable_variables
    )


@pytest.mark.parametrize("name", ["Attention", "AdditiveAttention"])
def test_gradients_of_simple_attention(name: str) -> None:
    layer = getattr(L, name)(use_scale=True)
    layer([real(2, 4, 6), real(2, 5, 6)])
    compare(lambda q, v: layer([q, v]), (real(2, 4, 6), real(2, 5, 6)), layer.trainable_variables)


def test_gradients_of_an_embedding() -> None:
    layer = L.Embedding(10, 4)
    indices = integers(10, 3, 5)
    layer(indices)
    compare(lambda i: tf.tanh(layer(i)), (indices,), layer.trainable_variables)


def test_gradients_of_masked_sequences() -> None:
    layer = L.LSTM(4)
    mask = np.array([[True] * 6, [True, True, True, False, False, False], [True] * 4 + [False] * 2])
    layer(real(*SERIES))
    compare(lambda x: layer(x, mask=mask, training=True), (real(*SERIES),), layer.trainable_variables)


LOSSES = [
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalHinge",
    "CosineSimilarity",
    "Dice",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SquaredHinge",
    "Tversky",
]


@pytest.mark.parametrize("name", one_in(4, LOSSES))
def test_gradients_of_losses(name: str) -> None:
    kind = getattr(tf.keras.losses, name, None)
    if kind is None:
        pytest.skip("this Keras does not have it")
    loss = kind()
    target = np.eye(6, dtype=np.float32)[integers(6, 4)] * np.float32(0.7) + np.float32(0.05)
    compare(lambda x: loss(target, tf.nn.softmax(x)), (real(4, 6),))
