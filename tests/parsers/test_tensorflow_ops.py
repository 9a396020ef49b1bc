"""TensorFlow operators one by one: what the compiled graph gives is what TensorFlow gives."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import ge

tf = pytest.importorskip("tensorflow")

from tests.support.tf_models import concrete, parse_function  # noqa: E402

raw = tf.raw_ops
RANDOM = np.random.default_rng(7)
CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {}


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return np.abs(real(*shape)) + np.float32(0.1)


def inner(*shape: int) -> np.ndarray:
    return np.tanh(real(*shape)) * np.float32(0.9)


def whole(low: int, high: int, *shape: int, dtype: str = "int32") -> np.ndarray:
    return RANDOM.integers(low, high, shape).astype(dtype)


def case(name: str, function: Callable[..., Any], *arrays: Any) -> None:
    assert name not in CASES, name
    CASES[name] = (function, tuple(np.asarray(a) for a in arrays))


def call(name: str, *arguments: str, **fixed: Any) -> Callable[..., Any]:
    """A raw operator as a function of its tensors."""
    operator = getattr(raw, name)
    return lambda *tensors: operator(**dict(zip(arguments, tensors, strict=True)), **fixed)


def unary(names: str, make: Callable[..., np.ndarray], argument: str = "x") -> None:
    for name in names.split():
        case(name, call(name, argument), make(3, 5))


def binary(
    names: str, a: np.ndarray, b: np.ndarray, suffix: str = "", arguments: tuple[str, str] = ("x", "y")
) -> None:
    for name in names.split():
        case(name + suffix, call(name, *arguments), a, b)


# -- elementwise ---------------------------------------------------------------------------------------------

unary("Abs Neg Exp Expm1 Sin Cos Tan Sinh Cosh Tanh Asinh Atan Erf Erfc Sign Floor Ceil Rint Round", real)
unary("Sigmoid Square IsNan IsInf IsFinite Lgamma Digamma Reciprocal Inv", real)
unary("Log Log1p Sqrt Rsqrt", positive)
unary("Asin Acos Atanh Erfinv", inner)
unary("Relu Relu6 Elu Selu Softplus Softsign", lambda *s: real(*s) * 4, "features")
case("Digamma of poles", lambda v: raw.Digamma(x=v), np.float32([0, -0.0, -1, -2, -np.inf, np.inf, np.nan]))
case("Acosh", lambda v: raw.Acosh(x=v), positive(3, 5) + 1)
case("Ndtri", lambda v: raw.Ndtri(x=v), np.abs(inner(3, 5)) + np.float32(0.05))
case("LeakyRelu", lambda v: tf.nn.leaky_relu(v, 0.3), real(3, 4))
case("Invert", lambda v: raw.Invert(x=v), whole(-9, 9, 5))
case("Bitcast", lambda v: tf.bitcast(v, tf.int32), real(3, 4))
case("Cast", lambda v: [tf.cast(v, t) for t in (tf.int32, tf.bool, tf.float16, tf.bfloat16)], real(3, 4) * 5)
case("ClipByValue", lambda v: tf.clip_by_value(v, -0.5, 0.5), real(3, 4))
case("CheckNumerics", lambda v: tf.debugging.check_numerics(v, "no"), real(3))
case("gelu_silu", lambda v: (tf.nn.gelu(v), tf.nn.gelu(v, approximate=True), tf.nn.silu(v)), real(3, 4))

binary("Add AddV2 Sub Mul Div RealDiv FloorDiv FloorMod Mod TruncateMod Maximum Minimum", real(3, 4), real(4))
binary("SquaredDifference Equal NotEqual Less LessEqual Greater GreaterEqual", real(3, 4), real(4))
binary("Atan2", real(3, 4), real(4), arguments=("y", "x"))
binary("DivNoNan MulNoNan", real(3), np.float32([0, 1, -2]))
binary("Xdivy Xlogy Xlog1py", np.float32([0, 1, 2]), np.float32([0, 2, 3]))
binary("Pow", positive(3, 4), real(4))
binary(
    "FloorDiv FloorMod TruncateDiv TruncateMod Maximum", whole(-9, 9, 3, 4), whole(1, 5, 4), " of integers"
)
binary(
    "BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift", whole(0, 9, 3, 4), whole(1, 5, 4), " of integers"
)
case("ApproximateEqual", lambda v: raw.ApproximateEqual(x=v, y=v + 1e-7), real(3))
case(
    "logical",
    lambda a, b: (a & b, a | b, ~a, tf.math.logical_xor(a, b)),
    whole(0, 2, 5) > 0,
    whole(0, 2, 5) > 0,
)
case("AddN", lambda a, b: tf.add_n([a, b, a]), real(3), real(3))
case(
    "Select",
    lambda c, a, b: raw.Select(condition=c, x=a, y=b),
    np.array([True, False, True]),
    real(3, 4),
    real(3, 4),
)
case("SelectV2", lambda a, b: tf.where(a > 0, a, b), real(3, 4), real(4))
case("BiasAdd", lambda a, b: raw.BiasAdd(value=a, bias=b), real(2, 3, 4, 5), real(5))
case("BiasAdd NCHW", lambda a, b: raw.BiasAdd(value=a, bias=b, data_format="NCHW"), real(2, 3, 4, 5), real(3))
case("Cross", lambda a, b: tf.linalg.cross(a, b), real(4, 3), real(4, 3))

for gradient in ("ReluGrad", "Relu6Grad", "SoftplusGrad", "SoftsignGrad", "LeakyReluGrad"):
    case(gradient, call(gradient, "gradients", "features"), real(3, 4), real(3, 4) * 4)
for gradient in ("EluGrad", "SeluGrad"):
    case(gradient, call(gradient, "gradients", "outputs"), real(3, 4), real(3, 4))
for gradient in ("SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad"):
    case(gradient, call(gradient, "y", "dy"), positive(3, 4), real(3, 4))

# -- reductions and normalisations ---------------------------------------------------------------------------

for reduction in (tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_min, tf.reduce_prod):
    case(
        reduction.__name__,
        lambda v, f=reduction: (f(v), f(v, [0, -1]), f(v, 1, keepdims=True), f(v, [])),
        real(2, 3, 4),
    )
case(
    "reductions of integers",
    lambda v: (tf.reduce_sum(v, 1), tf.reduce_mean(v, 1), tf.reduce_max(v)),
    whole(-9, 9, 3, 4),
)
case("any_all", lambda v: (tf.reduce_any(v, 1), tf.reduce_all(v)), whole(0, 2, 3, 4) > 0)
case("logsumexp", lambda v: tf.reduce_logsumexp(v, 1), real(3, 4))
case("EuclideanNorm", lambda v: tf.math.reduce_euclidean_norm(v, 1), real(3, 4))
case("L2Loss", tf.nn.l2_loss, real(3, 4))
case("l2_normalize", lambda v: tf.nn.l2_normalize(v, 1), real(3, 4))
case("moments", lambda v: tf.nn.moments(v, [0, 1]), real(3, 4, 5))
_UNKNOWN = np.float32([[np.nan, 2, 2], [1, np.nan, -np.inf], [np.nan, np.nan, np.nan], [-np.inf, np.nan, 0]])
case(
    "ArgMax ArgMin pass over NaN",
    lambda v: [
        f(tf.cast(v, t), axis)
        for f in (tf.argmax, tf.argmin)
        for axis in (0, 1)
        for t in ("float32", "float16")
    ],
    _UNKNOWN,
)
case("ArgMax ArgMin", lambda v: (tf.argmax(v, 1), tf.argmin(v, 0, output_type=tf.int32)), real(3, 4))
case(
    "cumulative",
    lambda v: (
        tf.cumsum(v, 1),
        tf.cumsum(v, 0, exclusive=True),
        tf.cumsum(v, 1, reverse=True),
        tf.math.cumprod(v, 1, exclusive=True, reverse=True),
        tf.math.cumulative_logsumexp(v, 1),
    ),
    real(3, 4),
)
case("softmax", lambda v: (tf.nn.softmax(v), tf.nn.log_softmax(v), tf.nn.softmax(v, axis=0)), real(3, 4))
for form, shape in (("NHWC", (2, 4, 5, 3)), ("NCHW", (2, 3, 4, 5))):
    case(
        f"FusedBatchNormV3 {form}",
        lambda v, s, o, m, d, form=form: raw.FusedBatchNormV3(
            x=v, scale=s, offset=o, mean=m, variance=d, is_training=False, epsilon=1e-3, data_format=form
        )[0],
        real(*shape),
        *(real(3), real(3), real(3), positive(3)),
    )
case(
    "FusedBatchNormV3 in training",
    lambda v, s, o: raw.FusedBatchNormV3(
        x=v, scale=s, offset=o, mean=tf.zeros([0]), variance=tf.zeros([0]), is_training=True, epsilon=1e-3
    )[:3],
    *(real(2, 4, 5, 3), real(3), real(3)),
)
case(
    "cross entropies",
    lambda v, p, k: (
        *raw.SoftmaxCrossEntropyWithLogits(features=v, labels=tf.nn.softmax(p)),
        *raw.SparseSoftmaxCrossEntropyWithLogits(features=v, labels=k),
        tf.nn.sigmoid_cross_entropy_with_logits(labels=p, logits=v),
    ),
    *(real(3, 4), real(3, 4), whole(0, 4, 3)),
)
case("LRN", lambda v: tf.nn.lrn(v, 2, 1.0, 0.5, 0.75), real(2, 3, 4, 8))

# -- products and convolutions -------------------------------------------------------------------------------

case(
    "MatMul",
    lambda a, b: (tf.matmul(a, b), tf.matmul(a, b, transpose_a=True), tf.matmul(a, b, transpose_b=True)),
    *(real(4, 4), real(4, 4)),
)
case(
    "BatchMatMul",
    lambda a, b: (tf.matmul(a, b, transpose_b=True), tf.matmul(a, b[0], transpose_b=True)),
    *(real(2, 3, 4, 5), real(2, 1, 6, 5)),
)
EIGHT_BITS = np.arange(-120, 120, 10, np.int8).reshape(2, 3, 4)
case(
    "products of 8-bit integers",
    lambda a, b, c: (
        tf.matmul(a, b, transpose_b=True, output_type=tf.int32),
        tf.matmul(a[0], c, transpose_a=True, output_type=tf.int32),
        tf.matmul(a[:, :0], b, transpose_b=True, output_type=tf.int32),
        tf.matmul(tf.constant(EIGHT_BITS), tf.constant(EIGHT_BITS), transpose_b=True, output_type=tf.int32),
    ),
    *(EIGHT_BITS, EIGHT_BITS[1:], np.arange(200, 212, dtype=np.uint8).reshape(3, 4)),
)
case("tensordot", lambda a, b: tf.tensordot(a, b, 1), real(2, 3, 4), real(4, 5))
case(
    "SparseTensorDenseMatMul",
    lambda v, w: tf.sparse.sparse_dense_matmul(tf.SparseTensor([[0, 1], [2, 0], [2, 3]], v, [3, 4]), w),
    *(real(3), real(4, 5)),
)
for equation, shapes in {
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "abc,cde->abde": ((2, 3, 4), (4, 5, 6)),
    "bhqd,bhkd->bhqk": ((1, 2, 3, 4), (1, 2, 5, 4)),
    "aecd,abcd->acbe": ((2, 3, 4, 5), (2, 6, 4, 5)),
    "...ij,jk->...ik": ((2, 3, 4), (4, 5)),
    "ij,ij->": ((3, 4), (3, 4)),
    "i,j->ij": ((3,), (4,)),
    "ii->i": ((3, 3),),
}.items():
    case(f"Einsum {equation}", lambda *a, e=equation: tf.einsum(e, *a), *(real(*s) for s in shapes))
for padding in ("SAME", "VALID"):
    case(
        f"Conv2D {padding}",
        lambda v, w, p=padding: tf.nn.conv2d(v, w, [1, 2, 2, 1], p),
        real(2, 9, 8, 3),
        real(3, 3, 3, 4),
    )
    case(
        f"Conv2D {padding} dilated",
        lambda v, w, p=padding: tf.nn.conv2d(v, w, 1, p, dilations=2),
        *(real(2, 9, 8, 3), real(3, 3, 3, 4)),
    )
    case(f"Conv1D {padding}", lambda v, w, p=padding: tf.nn.conv1d(v, w, 2, p), real(2, 9, 3), real(3, 3, 4))
    case(
        f"Conv3D {padding}",
        lambda v, w, p=padding: tf.nn.conv3d(v, w, [1, 1, 2, 1, 1], p),
        *(real(1, 5, 6, 5, 2), real(3, 3, 3, 2, 4)),
    )
    case(
        f"DepthwiseConv2dNative {padding}",
        lambda v, w, p=padding: tf.nn.depthwise_conv2d(v, w, [1, 2, 2, 1], p),
        *(real(2, 9, 8, 3), real(3, 3, 3, 2)),
    )
    case(
        f"Conv2DBackpropInput {padding}",
        lambda v, w, p=padding: tf.nn.conv2d_transpose(
            v, w, [2, 8, 10, 4] if p == "SAME" else [2, 9, 11, 4], 2, p
        ),
        *(real(2, 4, 5, 3), real(3, 3, 4, 3)),
    )
    case(
        f"Conv3DBackpropInput {padding}",
        lambda v, w, p=padding: tf.nn.conv3d_transpose(v, w, [1, 4, 4, 6, 3], 2, p),
        *(real(1, 2, 2, 3, 2), real(2, 2, 2, 3, 2)),
    )
    case(
        f"pools {padding}",
        lambda v, p=padding: (tf.nn.max_pool2d(v, 3, 2, p), tf.nn.avg_pool2d(v, 3, 2, p)),
        real(2, 9, 8, 3),
    )
    case(
        f"pools of volumes {padding}",
        lambda v, p=padding: (tf.nn.max_pool3d(v, 2, 2, p), tf.nn.avg_pool3d(v, 2, 2, p)),
        real(2, 5, 6, 7, 3),
    )
    case(
        f"MaxPoolWithArgmax {padding}",
        lambda v, p=padding: tf.nn.max_pool_with_argmax(v, 3, 2, p),
        real(2, 9, 8, 3),
    )
    case(
        f"ExtractImagePatches {padding}",
        lambda v, p=padding: tf.image.extract_patches(v, [1, 3, 2, 1], [1, 2, 2, 1], [1, 1, 2, 1], p),
        real(2, 9, 8, 3),
    )
    case(
        f"Dilation2D {padding}",
        lambda v, w, p=padding: tf.nn.dilation2d(v, w, [1, 1, 2, 1], p, "NHWC", [1, 1, 1, 1]),
        *(real(1, 5, 5, 2), real(3, 3, 2)),
    )
case(
    "Conv2D with explicit padding",
    lambda v, w: tf.nn.conv2d(v, w, 1, [[0, 0], [1, 2], [0, 1], [0, 0]]),
    *(real(2, 9, 8, 3), real(3, 3, 3, 4)),
)
case("Conv2D in groups", lambda v, w: tf.nn.conv2d(v, w, 1, "SAME"), real(2, 9, 8, 4), real(3, 3, 2, 6))
case(
    "linear algebra",
    lambda v: (
        tf.linalg.det(v),
        tf.linalg.inv(v),
        tf.linalg.inv(v, adjoint=True),
        tf.linalg.cholesky(v @ tf.transpose(v) + 3 * tf.eye(3)),
        tf.linalg.solve(v, v + 1),
        tf.linalg.triangular_solve(v + 3 * tf.eye(3), v, lower=False),
    ),
    real(3, 3),
)

# -- movement ------------------------------------------------------------------------------------------------

case("Reshape", lambda v: (tf.reshape(v, [-1]), tf.reshape(v, [4, -1, 1])), real(3, 4))
case(
    "Squeeze ExpandDims",
    lambda v: (tf.squeeze(v), tf.squeeze(v, [1]), tf.expand_dims(v, -1), tf.expand_dims(v, 0)),
    real(3, 1, 4, 1),
)
case("Transpose", lambda v: (tf.transpose(v), tf.transpose(v, [1, 0, 2])), real(2, 3, 4))
case(
    "StridedSlice",
    lambda v: (
        v[1],
        v[:, 1:],
        v[..., -1],
        v[::-1],
        v[:, None, 1:5:2, ...],
        v[-1:0:-1, :, tf.newaxis],
        v[1:1],
        v[..., 2:0:-1, 1],
        v[-3:-1, ..., ::2],
    ),
    real(4, 5, 6),
)
case(
    "slices at computed places",
    lambda v, k: (tf.slice(v, [k, 0], [2, 5]), v[k], v[:, k], v[k : k + 2], v[:, k - 1 : k + 2], v[k, 1:3]),
    *(real(4, 5), np.int32(1)),
)
case("Slice", lambda v: tf.slice(v, [1, 0], [2, -1]), real(4, 5))
case(
    "StridedSliceGrad",
    lambda v: tf.gradients(tf.reduce_sum(v[1:4:2, ::-1, 0] ** 2 + v[0, :, 1] ** 3), v),
    real(4, 5, 6),
)
case(
    "TensorStridedSliceUpdate",
    lambda v, u: raw.TensorStridedSliceUpdate(input=v, begin=[1, 0], end=[3, 4], strides=[1, 2], value=u),
    *(real(4, 5), real(2, 2)),
)
case(
    "Concat Pack",
    lambda a, b: (tf.concat([a, b], 0), tf.concat([a, b], -1), tf.stack([a, b]), tf.stack([a, b], -1)),
    *(real(3, 4), real(3, 4)),
)
case(
    "Unpack Split",
    lambda v: (tf.unstack(v), tf.unstack(v, axis=1), tf.split(v, 2, 1), tf.split(v, [1, -1, 1], 1)),
    real(3, 4),
)
case(
    "Pad",
    lambda v: (
        tf.pad(v, [[1, 0], [2, 1]]),
        tf.pad(v, [[1, 1], [0, 2]], constant_values=3.0),
        tf.pad(v, [[1, 2], [2, 1]], "REFLECT"),
        tf.pad(v, [[1, 2], [2, 1]], "SYMMETRIC"),
    ),
    real(3, 4),
)
case("Tile BroadcastTo", lambda v: (tf.tile(v, [2, 3]), tf.broadcast_to(v, [2, 3, 4])), real(3, 4))
case(
    "Reverse Roll",
    lambda v: (tf.reverse(v, [0]), tf.reverse(v, [-1, 0]), tf.roll(v, [1, -2], [0, 1])),
    real(3, 4),
)
case("ReverseSequence", lambda v: tf.reverse_sequence(v, [1, 3, 2], seq_axis=1, batch_axis=0), real(3, 4, 2))
case("Range", lambda v: v + tf.range(0.0, 2.0, 0.5) + tf.cast(tf.range(8, 0, -2), tf.float32), real(4))
case(
    "Fill LinSpace",
    lambda v: (tf.fill([2, 3], v[0]), tf.zeros_like(v), tf.ones_like(v), tf.linspace(v[0], v[1], 5)),
    real(4),
)
case("Shape Size Rank", lambda v: (tf.shape(v), tf.size(v), tf.rank(v), tf.shape(v, tf.int64)), real(3, 4))
case("SpaceToDepth", lambda v: (tf.nn.space_to_depth(v, 2), tf.nn.depth_to_space(v, 2)), real(2, 4, 6, 8))
case(
    "SpaceToBatch",
    lambda v: (
        tf.space_to_batch(v, [2, 2], [[0, 1], [1, 0]]),
        tf.batch_to_space(v, [2, 2], [[0, 1], [1, 0]]),
    ),
    real(4, 3, 5, 2),
)
case(
    "MatrixBandPart",
    lambda v: [tf.linalg.band_part(v, *k) for k in ((1, 0), (-1, 0), (0, -1), (1, 2))],
    real(2, 4, 5),
)
case(
    "diagonals",
    lambda v, m: (
        tf.linalg.diag(v),
        tf.linalg.diag(m, k=(-1, 1)),
        tf.linalg.diag(v, k=1, padding_value=9.0),
        tf.linalg.diag_part(tf.linalg.diag(v)),
        tf.linalg.diag_part(m, k=(-1, 1)),
        tf.linalg.diag_part(m, k=(-1, 2), align="LEFT_RIGHT", padding_value=7.0),
        tf.linalg.set_diag(m, v[0, :3]),
        tf.linalg.tensor_diag(v),
        tf.linalg.tensor_diag_part(tf.linalg.tensor_diag(v)),
        tf.linalg.trace(m),
    ),
    *(real(2, 3), real(3, 4)),
)

# -- gathers, scatters, segments -----------------------------------------------------------------------------

case(
    "Gather",
    lambda v, k: (
        tf.gather(v, k),
        tf.gather(v, k, axis=1),
        tf.gather(v, [[0, 1], [1, 0], [0, 0]], axis=1, batch_dims=1),
    ),
    *(real(3, 4), whole(0, 3, 2, 2)),
)
case(
    "GatherNd",
    lambda v: (
        tf.gather_nd(v, [[0, 1], [2, 3]]),
        tf.gather_nd(v, [[0], [2]]),
        tf.gather_nd(v, [[0], [1], [2]], batch_dims=1),
    ),
    real(3, 4),
)
case("ScatterNd", lambda u: tf.scatter_nd([[0], [2], [0]], u, [4, 5]), real(3, 5))
case(
    "TensorScatter",
    lambda v, u: [
        f(v, [[0], [2]], u)
        for f in (
            tf.tensor_scatter_nd_update,
            tf.tensor_scatter_nd_add,
            tf.tensor_scatter_nd_sub,
            tf.tensor_scatter_nd_max,
            tf.tensor_scatter_nd_min,
        )
    ],
    *(real(4, 5), real(2, 5)),
)
case(
    "OneHot",
    lambda k: (tf.one_hot(k, 5), tf.one_hot(k, 5, axis=0, on_value=2, off_value=-1, dtype=tf.int32)),
    np.int32([0, 4, -1, 7]),
)
case("DynamicStitch", lambda a, b: tf.dynamic_stitch([[0, 2], [1, 3]], [a, b]), real(2, 3), real(2, 3))
case(
    "segments",
    lambda v, k: (
        tf.math.segment_sum(v, [0, 0, 2, 2]),
        tf.math.segment_mean(v, [0, 0, 2, 2]),
        tf.math.segment_max(v, [0, 0, 2, 2]),
        tf.math.segment_min(v, [0, 0, 1, 2]),
        tf.math.segment_prod(v, [0, 0, 1, 2]),
        *(f(v, k, 3) for f in (tf.math.unsorted_segment_sum, tf.math.unsorted_segment_max)),
        *(f(v, k, 3) for f in (tf.math.unsorted_segment_min, tf.math.unsorted_segment_mean)),
        tf.math.unsorted_segment_prod(v, k, 3),
    ),
    *(real(4, 3), np.int32([0, 2, -1, 2])),
)
case(
    "sparse segments",
    lambda v: (
        tf.sparse.segment_sum(v, [0, 2, 1], [0, 0, 1]),
        tf.sparse.segment_mean(v, [0, 2, 1], [0, 0, 2]),
        tf.sparse.segment_sqrt_n(v, [0, 2, 1], [0, 0, 1], num_segments=4),
    ),
    real(4, 3),
)
case(
    "InTopK of rows that are not finite",
    lambda v, k: tf.math.in_top_k(k, v, 2),
    np.where(np.eye(4, 5, 1) > 0, np.float32([[np.inf], [-np.inf], [np.nan], [1]]), real(4, 5)).astype(
        np.float32
    ),
    np.int32([0, 1, 2, 3]),
)
_MASKED = np.float32([[0.3, 1.4, -np.inf, 0.4], [1, 2, 3, 4], [-np.inf, 0, -np.inf, 1]])
case(
    "cross entropy of masked classes",
    lambda v: (
        *raw.SparseSoftmaxCrossEntropyWithLogits(features=v, labels=[1, 0, 3]),
        *raw.SparseSoftmaxCrossEntropyWithLogits(features=v, labels=[2, 0, 3]),
    ),
    _MASKED,
)
case(
    "extremes of segments are infinite",
    lambda v: (
        *(f(w, [0, 0, 1]) for f in (tf.math.segment_max, tf.math.segment_min) for w in (v, -v)),
        *(f(w, [0, 2, 2]) for f in (tf.math.segment_max, tf.math.segment_min) for w in (v, -v)),
        *(
            f(w, [0, 2, 2], 4)
            for f in (tf.math.unsorted_segment_max, tf.math.unsorted_segment_min)
            for w in (v, -v)
        ),
    ),
    _MASKED,
)
case("InTopK", lambda v, k: tf.math.in_top_k(k, v, 2), real(4, 5), np.int32([0, 3, 4, 9]))
case("Bucketize", lambda v: raw.Bucketize(input=v, boundaries=[-1.0, 0.0, 0.5]), real(4, 5))
case(
    "searchsorted",
    lambda v: [tf.searchsorted([[0.0, 1, 2], [0, 0.5, 1]], v, side=s) for s in ("left", "right")],
    np.float32([[0, 1.5, 9], [0.5, -1, 1]]),
)
case("TopK", lambda v: (*tf.math.top_k(v, 3), tf.sort(v), tf.argsort(v, direction="DESCENDING")), real(3, 6))
case("Where", lambda v: tf.where(v > 0), real(3, 4))
case("boolean_mask", lambda v: tf.boolean_mask(v, v[:, 0] > 0), real(5, 4))
case("boolean_mask of elements", lambda v: tf.boolean_mask(v, v > 0), real(5, 4))
case("Unique", lambda v: tf.unique(v), whole(0, 3, 6))

# -- images --------------------------------------------------------------------------------------------------

for method in ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic"):
    case(f"tf.image.resize {method}", lambda v, m=method: tf.image.resize(v, [7, 9], m), real(2, 4, 5, 3))
case(
    "tf.image.resize antialias",
    lambda v: tf.image.resize(v, [3, 4], "bilinear", antialias=True),
    real(2, 9, 7, 3),
)
for resize in ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic"):
    for corners, halves in ((False, False), (True, False), (False, True)):
        case(
            f"{resize} align_corners={corners} half_pixel_centers={halves}",
            call(resize, "images", size=[7, 3], align_corners=corners, half_pixel_centers=halves),
            real(2, 4, 5, 3),
        )
case("ResizeArea", lambda v: raw.ResizeArea(images=v, size=[2, 5]), real(2, 4, 5, 3))
for aligned in (False, True):
    for height, width in ((1, 4), (3, 1), (1, 1)):
        case(
            f"ResizeArea of {height} x {width}{', aligned' if aligned else ''}",
            lambda v, aligned=aligned: raw.ResizeArea(images=v, size=[3, 2], align_corners=aligned),
            real(2, height, width, 3),
        )
case(
    "CropAndResize",
    lambda v: [
        tf.image.crop_and_resize(v, [[0.0, 0, 1, 1], [0.2, 0.1, 0.9, 1.2]], [0, 1], [3, 4], method=m)
        for m in ("bilinear", "nearest")
    ],
    real(2, 6, 7, 3),
)
case(
    "non_max_suppression",
    lambda b, s: (
        tf.image.non_max_suppression(b, s, 4, 0.5),
        *tf.image.non_max_suppression_with_scores(b, s, 4, 0.9, soft_nms_sigma=0.5),
        *raw.NonMaxSuppressionV4(
            boxes=b,
            scores=s,
            max_output_size=5,
            iou_threshold=0.4,
            score_threshold=-0.5,
            pad_to_max_output_size=True,
        ),
    ),
    *(positive(6, 4).cumsum(1), real(6)),
)
case(
    "colours",
    lambda v: (
        tf.image.adjust_contrast(v, 2.0),
        tf.image.rgb_to_hsv(v),
        tf.image.hsv_to_rgb(v),
        tf.image.adjust_saturation(v, 0.5),
        tf.image.adjust_hue(v, 0.1),
        tf.image.rgb_to_grayscale(v),
    ),
    np.abs(inner(2, 4, 5, 3)),
)

# -- complex numbers -----------------------------------------------------------------------------------------


def _spectrum(v: Any) -> Any:
    """Numbers whose parts are of either sign, from real ones."""
    return tf.complex(v, v[::-1] * 2)


def _parts(z: Any) -> Any:
    return tf.math.real(z), tf.math.imag(z)


case("RFFT", lambda v: _parts(tf.signal.rfft(v)), real(3, 20))
case(
    "RFFT of another length",
    lambda v: [*_parts(tf.signal.rfft(v, [9])), *_parts(tf.signal.rfft(v, [32]))],
    real(3, 20),
)
case("RFFT2D", lambda v: _parts(tf.signal.rfft2d(v, [6, 5])), real(2, 5, 7))
case("RFFT3D", lambda v: _parts(tf.signal.rfft3d(v)), real(4, 3, 6))
case("IRFFT", lambda v: (tf.signal.irfft(_spectrum(v)), tf.signal.irfft(_spectrum(v), [7])), real(3, 9))
case("IRFFT2D", lambda v: tf.signal.irfft2d(_spectrum(v), [4, 10]), real(2, 5, 6))
case(
    "FFT",
    lambda v: [*_parts(tf.signal.fft(_spectrum(v))), *_parts(tf.signal.ifft(_spectrum(v)))],
    real(3, 12),
)
case(
    "FFT2D",
    lambda v: [*_parts(tf.signal.fft2d(_spectrum(v))), *_parts(tf.signal.ifft2d(_spectrum(v)))],
    real(4, 6),
)
case("FFT of doubles", lambda v: _parts(tf.signal.fft(_spectrum(v))), real(3, 7).astype(np.float64))
case("ComplexAbs", lambda v: (tf.abs(_spectrum(v)), tf.math.angle(_spectrum(v))), real(4, 5))
case(
    "ComplexAbs of extremes",
    lambda v: tf.abs(_spectrum(v)),
    np.float32([0, -0.0, 1e30, 1e-30, np.inf, -np.inf, np.nan, 1, 3]),
)
case(
    "complex arithmetic",
    lambda v: _parts(tf.math.conj(_spectrum(v)) * (_spectrum(v) + (1 - 2j)) - tf.cast(v, tf.complex64)),
    real(4, 5),
)
case(
    "complex functions",
    lambda v: _parts(tf.exp(_spectrum(v)) / (tf.square(_spectrum(v)) + 9)),
    real(4, 5),
)
case(
    "parts of a complex scalar",
    lambda v: (
        tf.stack([f(tf.constant(3 - 4j)) for f in (tf.math.real, tf.math.imag, tf.abs, tf.math.angle)]) * v
    ),
    np.float64([2]),
)
case("DCT", lambda v: [tf.signal.dct(v, kind) for kind in (1, 2, 3)], real(3, 8))
case(
    "complex movement",
    lambda v: _parts(
        tf.stack(tf.unstack(tf.transpose(tf.concat([_spectrum(v), -_spectrum(v)], 1))[1:, ::2]), 1)
    ),
    real(4, 5),
)
case(
    "complex shape and cast",
    lambda v: (tf.shape(_spectrum(v)), tf.cast(_spectrum(v), tf.float32)),
    real(4, 5),
)
case("stft", lambda v: tf.signal.inverse_stft(tf.signal.stft(v, 16, 8), 16, 8), real(2, 80))


# -- quantisation --------------------------------------------------------------------------------------------

case(
    "FakeQuant",
    lambda v: (
        tf.quantization.fake_quant_with_min_max_args(v, -1, 1),
        tf.quantization.fake_quant_with_min_max_vars(v, -1.0, 2.0, num_bits=4, narrow_range=True),
        tf.quantization.fake_quant_with_min_max_vars_per_channel(v, [-1.0, -2, -1, -1], [1.0, 2, 3, 1]),
    ),
    real(3, 4),
)
case(
    "QuantizeAndDequantize",
    lambda v: (
        tf.quantization.quantize_and_dequantize_v2(v, -1.0, 1.0, range_given=True),
        tf.quantization.quantize_and_dequantize_v2(v, 0.0, 0.0),
    ),
    real(3, 4),
)
for mode in ("MIN_COMBINED", "SCALED"):
    case(
        f"Quantize Dequantize {mode}",
        lambda v, m=mode: tf.quantization.dequantize(
            tf.quantization.quantize(v, -2.0, 2.0, tf.qint8, mode=m)[0], -2.0, 2.0, mode=m
        ),
        real(3, 4),
    )


@pytest.mark.parametrize("name", CASES)
def test_operator_gives_what_tensorflow_gives(name: str) -> None:
    function, arrays = CASES[name]
    traced = concrete(function, arrays)
    expected = [t.numpy() for t in tf.nest.flatten(traced(*(tf.constant(a) for a in arrays)))]
    found = ge.compile(parse_function(traced).graph).run(list(arrays))
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        plain = (lambda a: a) if theirs.dtype.kind in "biu" else (lambda a: a.astype(np.float64))
        np.testing.assert_allclose(plain(mine), plain(theirs), rtol=2e-4, atol=2e-5)
