"""The table's operators of neural networks."""

from __future__ import annotations

from typing import Any

from tf_adapter.conformance.rows import Each, F, I, L, V, op

PADDINGS = Each("SAME", "VALID")

op("MatMul", a=V(4, 4), b=V(4, 4), transpose_a=Each(False, True), transpose_b=Each(False, True))
op("MatMul", a=Each(V(3, 4), V(1, 4), V(0, 4)), b=V(4, 5))
op("MatMul", a=V(3, 0), b=V(0, 5))
for _name in ["BatchMatMul", "BatchMatMulV2"]:
    op(_name, x=V(2, 3, 4), y=V(2, 4, 5))
op("BatchMatMulV2", x=V(2, 1, 3, 4), y=V(3, 4, 5))
op("BatchMatMulV2", x=V(2, 4, 4), y=V(2, 4, 4), adj_x=Each(False, True), adj_y=Each(False, True))
op("BatchMatMulV3", x=V(2, 3, 4), y=V(4, 5), Tout="float32", _dtypes=["float32"])
op("Einsum", inputs=L(V(2, 3, 4), V(2, 4, 5)), equation=Each("bij,bjk->bik", "bij,bjk->bki", "bij,bjk->ik"))
op("Einsum", inputs=L(V(3, 3)), equation=Each("ii->i", "ij->ji", "ij->"))

_CONV: dict[str, Any] = {"input": V(2, 7, 8, 4), "filter": V(3, 3, 4, 6)}
op("Conv2D", **_CONV, strides=Each([1, 1, 1, 1], [1, 2, 2, 1]), padding=PADDINGS)
op("Conv2D", **_CONV, strides=[1, 1, 1, 1], padding="SAME", dilations=[1, 2, 2, 1])
op("Conv2D", **_CONV, strides=[1, 1, 1, 1], padding="EXPLICIT", explicit_paddings=[0, 0, 1, 2, 0, 1, 0, 0])
op("Conv2D", input=V(2, 7, 8, 4), filter=V(1, 1, 2, 6), strides=[1, 1, 1, 1], padding="SAME")
_STRIDED: dict[str, Any] = {"out_backprop": V(2, 4, 4, 6), "strides": [1, 2, 2, 1], "padding": "SAME"}
_VALID: dict[str, Any] = {"out_backprop": V(2, 5, 6, 6), "strides": [1, 1, 1, 1], "padding": "VALID"}
op("Conv2DBackpropInput", input_sizes=[2, 7, 8, 4], filter=V(3, 3, 4, 6), **_STRIDED)
op("Conv2DBackpropInput", input_sizes=[2, 7, 8, 4], filter=V(3, 3, 4, 6), **_VALID)
op("Conv2DBackpropFilter", input=V(2, 7, 8, 4), filter_sizes=[3, 3, 4, 6], **_STRIDED)
op("Conv", input=V(2, 7, 8, 4), filter=V(3, 3, 4, 6), strides=[1, 1, 1, 1], padding=PADDINGS)
op(
    "DepthwiseConv2dNative",
    input=V(2, 7, 8, 3),
    filter=V(3, 3, 3, 2),
    strides=Each([1, 1, 1, 1], [1, 2, 2, 1]),
    padding=PADDINGS,
)
_SAME: dict[str, Any] = {"out_backprop": V(2, 7, 8, 6), "strides": [1, 1, 1, 1], "padding": "SAME"}
op("DepthwiseConv2dNativeBackpropInput", input_sizes=[2, 7, 8, 3], filter=V(3, 3, 3, 2), **_SAME)
op("DepthwiseConv2dNativeBackpropFilter", input=V(2, 7, 8, 3), filter_sizes=[3, 3, 3, 2], **_SAME)
op("Conv3D", input=V(1, 4, 5, 6, 2), filter=V(2, 3, 3, 2, 4), strides=[1, 1, 2, 1, 1], padding=PADDINGS)
op(
    "Conv3DBackpropInputV2",
    input_sizes=[1, 4, 5, 6, 2],
    filter=V(2, 3, 3, 2, 4),
    out_backprop=V(1, 4, 5, 6, 4),
    strides=[1, 1, 1, 1, 1],
    padding="SAME",
)
op(
    "Conv3DBackpropFilterV2",
    input=V(1, 4, 5, 6, 2),
    filter_sizes=[2, 3, 3, 2, 4],
    out_backprop=V(1, 4, 5, 6, 4),
    strides=[1, 1, 1, 1, 1],
    padding="SAME",
)
op(
    "Dilation2D",
    input=V(1, 6, 6, 2),
    filter=V(3, 3, 2),
    strides=[1, 1, 2, 1],
    rates=[1, 1, 1, 1],
    padding=PADDINGS,
)
op(
    "Dilation2DBackpropInput",
    input=V(1, 6, 6, 2, d="spread"),
    filter=V(3, 3, 2),
    out_backprop=V(1, 6, 6, 2),
    strides=[1, 1, 1, 1],
    rates=[1, 1, 1, 1],
    padding="SAME",
)
op(
    "Dilation2DBackpropFilter",
    input=V(1, 6, 6, 2, d="spread"),
    filter=V(3, 3, 2),
    out_backprop=V(1, 6, 6, 2),
    strides=[1, 1, 1, 1],
    rates=[1, 1, 1, 1],
    padding="SAME",
)
op(
    "FusedPadConv2D",
    input=V(1, 5, 5, 2),
    paddings=[[0, 0], [1, 1], [1, 1], [0, 0]],
    filter=V(3, 3, 2, 3),
    mode="REFLECT",
    strides=[1, 1, 1, 1],
    padding="VALID",
)
op(
    "FusedResizeAndPadConv2D",
    input=V(1, 5, 5, 2),
    size=[7, 6],
    paddings=[[0, 0], [1, 1], [1, 1], [0, 0]],
    filter=V(3, 3, 2, 3),
    mode="REFLECT",
    strides=[1, 1, 1, 1],
    padding="VALID",
    resize_align_corners=Each(False, True),
)

_POOL: dict[str, Any] = {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1]}
op("MaxPool", input=V(2, 7, 8, 3), **_POOL, padding=PADDINGS)
op("MaxPoolV2", input=V(2, 7, 8, 3), **_POOL, padding=PADDINGS)
op("AvgPool", value=V(2, 7, 8, 3), **_POOL, padding=PADDINGS)
op(
    "MaxPoolWithArgmax",
    input=V(2, 7, 8, 3, d="spread"),
    **_POOL,
    padding=PADDINGS,
    include_batch_in_index=Each(False, True),
)
# in float64 TensorFlow divides by a float32
op(
    "AvgPoolGrad",
    _dtypes=["float32", "float16", "bfloat16"],
    orig_input_shape=[2, 7, 8, 3],
    grad=V(2, 4, 4, 3),
    **_POOL,
    padding="SAME",
)
_VOLUME: dict[str, Any] = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1]}
op("MaxPool3D", input=V(1, 4, 5, 6, 2), **_VOLUME, padding=PADDINGS)
op("AvgPool3D", input=V(1, 4, 5, 6, 2), **_VOLUME, padding=PADDINGS)
op("AvgPool3DGrad", orig_input_shape=[1, 4, 5, 6, 2], grad=V(1, 2, 3, 3, 2), **_VOLUME, padding="SAME")
op(
    "FractionalMaxPool",
    value=V(1, 6, 6, 2),
    pooling_ratio=[1.0, 1.5, 1.5, 1.0],
    deterministic=True,
    seed=3,
    seed2=4,
)
op(
    "FractionalAvgPool",
    value=V(1, 6, 6, 2),
    pooling_ratio=[1.0, 1.5, 1.5, 1.0],
    deterministic=True,
    seed=3,
    seed2=4,
)
op("LRN", input=V(2, 3, 4, 8), depth_radius=Each(2, 1), bias=1.0, alpha=0.5, beta=0.75)
op("Softmax", logits=Each(V(3, 5), V(7), V(2, 3, 4)))
op("LogSoftmax", logits=Each(V(3, 5), V(7), V(2, 3, 4)))
op("SoftmaxCrossEntropyWithLogits", features=V(3, 5), labels=V(3, 5, d="probabilities"))
op("SparseSoftmaxCrossEntropyWithLogits", features=V(3, 5), labels=I([0, 4, 2]))

_NORM: dict[str, Any] = {"scale": F(3), "offset": F(3), "mean": F(3), "variance": F(3, d="positive")}
_EMPTY: dict[str, Any] = {"scale": F(3), "offset": F(3), "mean": F(0), "variance": F(0)}
op(
    "FusedBatchNorm",
    x=F(2, 4, 5, 3),
    **_NORM,
    is_training=False,
    epsilon=1e-3,
    _dtypes=["float32"],
    _outputs=[0],
)
for _name in ["FusedBatchNormV2", "FusedBatchNormV3"]:
    op(_name, x=V(2, 4, 5, 3), **_NORM, is_training=False, epsilon=1e-3, _outputs=[0])
    op(_name, x=V(2, 4, 5, 3), **_EMPTY, is_training=True, epsilon=1e-3, _outputs=[0, 1, 2], _ulps=256)
op(
    "FusedBatchNorm",
    x=F(2, 4, 5, 3),
    **_EMPTY,
    is_training=True,
    epsilon=1e-3,
    _dtypes=["float32"],
    _outputs=[0, 1, 2],
    _ulps=256,
)
op("DataFormatDimMap", x=I([[0, 3], [-1, 1]]), src_format="NHWC", dst_format="NCHW")
op(
    "DataFormatVecPermute",
    x=Each(I([7, 4, 9, 3]), I([[7, 4], [9, 3], [4, 5], [5, 1]])),
    src_format="NHWC",
    dst_format="NCHW",
)
op("IsotonicRegression", input=V(3, 6), output_dtype="float32", _dtypes=["float32"])
op(
    "QuantizeV2",
    input=F(3, 4),
    min_range=-4.0,
    max_range=4.0,
    T=Each("quint8", "qint8"),
    _dtypes=["float32"],
    _compare="none",
)


def _grads() -> None:
    """Gradients of poolings and normalisations: their inputs are the results of the forward operators."""
    import tensorflow as tf

    from tf_adapter.conformance.rows import call

    raw = tf.raw_ops

    def max_pool_grad(x: tf.Tensor, padding: str) -> tf.Tensor:
        y = raw.MaxPool(input=x, padding=padding, **_POOL)
        return raw.MaxPoolGrad(orig_input=x, orig_output=y, grad=y * 2, padding=padding, **_POOL)

    def max_pool_grad_grad(x: tf.Tensor, padding: str) -> tf.Tensor:
        y = raw.MaxPool(input=x, padding=padding, **_POOL)
        return raw.MaxPoolGradGrad(orig_input=x, orig_output=y, grad=x * 2, padding=padding, **_POOL)

    def max_pool_grad_with_argmax(x: tf.Tensor, padding: str) -> tf.Tensor:
        y, where = raw.MaxPoolWithArgmax(input=x, padding=padding, **_POOL)
        return raw.MaxPoolGradWithArgmax(input=x, grad=y * 2, argmax=where, padding=padding, **_POOL)

    def max_pool_3d_grad(x: tf.Tensor, padding: str) -> tf.Tensor:
        y = raw.MaxPool3D(input=x, padding=padding, **_VOLUME)
        return raw.MaxPool3DGrad(orig_input=x, orig_output=y, grad=y * 2, padding=padding, **_VOLUME)

    def lrn_grad(x: tf.Tensor) -> tf.Tensor:
        return raw.LRNGrad(input_grads=x * 2, input_image=x, output_image=raw.LRN(input=x))

    def batch_norm_grad(x: tf.Tensor, scale: tf.Tensor, training: bool) -> tuple[tf.Tensor, ...]:
        empty, ones = tf.zeros([0]), tf.ones([3])
        statistics = (empty, empty) if training else (ones * 0.3, ones * 2)
        _, _, _, r1, r2, r3 = raw.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=scale,
            mean=statistics[0],
            variance=statistics[1],
            is_training=training,
            epsilon=1e-3,
        )
        if not training:
            r1, r2 = statistics
        g = raw.FusedBatchNormGradV3(
            y_backprop=x * x,
            x=x,
            scale=scale,
            reserve_space_1=r1,
            reserve_space_2=r2,
            reserve_space_3=r3,
            is_training=training,
            epsilon=1e-3,
        )
        return tuple(g[:3])

    call("MaxPoolGrad", max_pool_grad, x=V(2, 7, 8, 3, d="spread"), padding=PADDINGS)
    call("MaxPoolGradGrad", max_pool_grad_grad, x=V(2, 7, 8, 3, d="spread"), padding=PADDINGS)
    call("MaxPoolGradWithArgmax", max_pool_grad_with_argmax, x=V(2, 7, 8, 3, d="spread"), padding=PADDINGS)
    call("MaxPool3DGrad", max_pool_3d_grad, x=V(1, 4, 5, 6, 2, d="spread"), padding=PADDINGS)
    call("LRNGrad", lrn_grad, x=V(2, 3, 4, 8), _ulps=256)
    call(
        "FusedBatchNormGradV3",
        batch_norm_grad,
        x=V(2, 4, 5, 3),
        scale=V(3),
        training=Each(True, False),
        _ulps=2048,
    )


_grads()
