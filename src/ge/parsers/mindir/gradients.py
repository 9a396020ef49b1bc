"""MindSpore: gradients of element-wise operators, normalisations and losses."""

from __future__ import annotations

from typing import Any

from ge.ir.values import desc_of
from ge.ops.image.resize import resize_gradient
from ge.ops.math.derivatives import derived, summed_to
from ge.ops.plugins import Unsupported
from ge.parsers.mindir.layers import REDUCTIONS, one_hot, plain
from ge.parsers.mindir.node import MsNode, as_aten, primitive


def _number(n: MsNode, value: float, like: Any) -> Any:
    return n.cast(value, desc_of(like).dtype)


def _where(n: MsNode, condition: Any, value: Any) -> Any:
    zeros = n.spread(_number(n, 0, value), desc_of(value).shape)
    return n.op("Select", condition, value, zeros)


as_aten(
    {
        "SigmoidGrad": ("sigmoid_backward", "output grad_output"),
        "TanhGrad": ("tanh_backward", "output grad_output"),
        "SiLUGrad": ("silu_backward", "grad_output self"),
    }
)


@primitive("ReluGrad ReluGradV2", "dy x")
def _relu_grad(n: MsNode) -> Any:
    x = n.tensor("x")
    return _where(n, n.op("Greater", x, _number(n, 0, x)), n.tensor("dy"))


@primitive("ReLU6Grad", "dy x")
def _relu6_grad(n: MsNode) -> Any:
    x = n.tensor("x")
    inside = n.op("And", n.op("Greater", x, _number(n, 0, x)), n.op("Less", x, _number(n, 6, x)))
    return _where(n, inside, n.tensor("dy"))


@primitive("HardtanhGrad", "dy x min_val=-1 max_val=1")
def _hardtanh_grad(n: MsNode) -> Any:
    x = n.tensor("x")
    low, high = (_number(n, float(n.setting(k)), x) for k in ("min_val", "max_val"))
    return _where(n, n.op("And", n.op("Greater", x, low), n.op("Less", x, high)), n.tensor("dy"))


@primitive("ThresholdGrad", "dy x threshold")
def _threshold_grad(n: MsNode) -> Any:
    x = n.tensor("x")
    return _where(n, n.op("Greater", x, n.tensor("threshold", x)), n.tensor("dy"))


@primitive("LeakyReLUGradExt LeakyReluGrad", "dy x negative_slope=0.01 is_result=False")
def _leaky_relu_grad(n: MsNode) -> Any:
    dy, x = n.tensor("dy"), n.tensor("x")
    scaled = n.op("Mul", dy, _number(n, float(n.setting("negative_slope", 0.01)), dy))
    return n.op("Select", n.op("Greater", x, _number(n, 0, x)), dy, scaled)


@primitive("EluGrad", "dy y")
def _elu_grad(n: MsNode) -> Any:
    """alpha is 1: where y is negative, the slope is y + 1."""
    dy, y = n.tensor("dy"), n.tensor("y")
    return n.op("Mul", dy, n.op("Add", n.op("Minimum", y, _number(n, 0, y)), _number(n, 1, y)))


@primitive("EluGradExt", "dy x alpha=1.0 is_result=False")
def _elu_grad_ext(n: MsNode) -> Any:
    dy, x, alpha = n.tensor("dy"), n.tensor("x"), float(n.setting("alpha", 1.0))
    if n.setting("is_result", False):
        slope = n.op("Add", x, _number(n, alpha, x))
    else:
        slope = n.op("Mul", n.op("Exp", n.op("Minimum", x, _number(n, 0, x))), _number(n, alpha, x))
    one = n.spread(_number(n, 1, x), desc_of(x).shape)
    return n.op("Mul", dy, n.op("Select", n.op("Greater", x, _number(n, 0, x)), one, slope))


@primitive("SeluGrad", "dy y")
def _selu_grad(n: MsNode) -> Any:
    dy, y = n.tensor("dy"), n.tensor("y")
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    slope = n.op("Add", n.op("Minimum", y, _number(n, 0, y)), _number(n, scale * alpha, y))
    steep = n.spread(_number(n, scale, y), desc_of(y).shape)
    return n.op("Mul", dy, n.op("Select", n.op("Greater", y, _number(n, 0, y)), steep, slope))


@primitive("GeLUGrad", "dy x y")
def _gelu_grad(n: MsNode) -> Any:
    return n.op("Mul", n.tensor("dy"), n.op("GeluSlope", n.tensor("x"), approximate="tanh"))


@primitive("FastGeLUGrad", "dy x")
def _fast_gelu_grad(n: MsNode) -> Any:
    x = n.tensor("x")
    s = n.op("Sigmoid", n.op("Mul", x, _number(n, 1.702, x)))
    inner = n.op("Mul", n.op("Mul", x, _number(n, 1.702, x)), n.op("Sub", _number(n, 1, x), s))
    return n.op("Mul", n.tensor("dy"), n.op("Mul", s, n.op("Add", inner, _number(n, 1, x))))


@primitive("SoftplusGrad SoftplusGradExt", "dy x beta=1 threshold=20")
def _softplus_grad(n: MsNode) -> Any:
    x, beta = n.tensor("x"), float(n.setting("beta", 1))
    scaled = x if beta == 1 else n.op("Mul", x, _number(n, beta, x))
    return n.op("Mul", n.tensor("dy"), n.op("Sigmoid", scaled))


@primitive("HSigmoidGrad", "dy x")
def _hsigmoid_grad(n: MsNode) -> Any:
    dy, x = n.tensor("dy"), n.tensor("x")
    inside = n.op("And", n.op("Greater", x, _number(n, -3, x)), n.op("Less", x, _number(n, 3, x)))
    return _where(n, inside, n.op("Mul", dy, _number(n, 1 / 6, dy)))


@primitive("HShrinkGrad SoftShrinkGrad", "dy x lambd=0.5")
def _shrink_grad(n: MsNode) -> Any:
    x, edge = n.tensor("x"), float(n.setting("lambd", 0.5))
    return _where(n, n.op("Greater", n.op("Abs", x), _number(n, edge, x)), n.tensor("dy"))


@primitive("LogSigmoidGrad", "dy x buffer")
def _log_sigmoid_grad(n: MsNode) -> Any:
    return n.op("Mul", n.tensor("dy"), n.op("Sigmoid", n.op("Neg", n.tensor("x"))))


def _declare_derivative(names: str, signature: str, type_: str) -> None:
    primitive(names, signature)(lambda n: derived(n.op, type_, n.tensor("dy"), n.tensor("value")))


for _names, _type in (
    ("AbsGrad", "Abs"),
    ("ACosGrad", "Acos"),
    ("AsinGrad", "Asin"),
    ("AtanGrad", "Atan"),
    ("ReciprocalGrad InvGrad", "Reciprocal"),
    ("RsqrtGrad", "Rsqrt"),
    ("SqrtGrad", "Sqrt"),
):
    _declare_derivative(_names, "value dy", _type)
for _names, _type in (("HSwishGrad", "HardSwish"), ("MishGradExt", "Mish")):
    _declare_derivative(_names, "dy value", _type)


@primitive("AsinhGrad", "y dy")
def _asinh_grad(n: MsNode) -> Any:
    return n.op("Div", n.tensor("dy"), n.op("Cosh", n.tensor("y")))


@primitive("AcoshGrad", "y dy")
def _acosh_grad(n: MsNode) -> Any:
    return n.op("Div", n.tensor("dy"), n.op("Sinh", n.tensor("y")))


@primitive("SoftmaxBackward SoftmaxGrad", "dy y dim=-1")
def _softmax_grad(n: MsNode) -> Any:
    axis = int(n.setting("dim", -1))
    return n.aten("_softmax_backward_data", grad_output=n.tensor("dy"), output=n.tensor("y"), dim=axis)


@primitive("LogSoftmaxGrad", "y dy axis=-1")
def _log_softmax_grad(n: MsNode) -> Any:
    axis = int(n.setting("axis", -1))
    return n.aten("_log_softmax_backward_data", grad_output=n.tensor("dy"), output=n.tensor("y"), dim=axis)


@primitive("MaximumGrad MinimumGrad", "x y dout grad_x=True grad_y=True")
def _extreme_grad(n: MsNode) -> Any:
    """To the operand that was taken; to the first of two equal ones."""
    x, y, dy = n.tensor("x"), n.tensor("y"), n.tensor("dout")
    shape = desc_of(dy).shape
    first = n.op("GreaterEqual" if n.type == "MaximumGrad" else "LessEqual", x, y)
    first = n.spread(first, shape)
    parts = (_where(n, first, dy), _where(n, n.op("Not", first), dy))
    return [summed_to(n.op, p, desc_of(v).shape) for p, v in zip(parts, (x, y), strict=True)]


@primitive("BiasAddGrad", "dout data_format='NCHW'")
def _bias_grad(n: MsNode) -> Any:
    g = n.tensor("dout")
    axes = [a for a in range(desc_of(g).rank) if a != 1]
    return n.op("ReduceSum", g, axes=axes, keepdims=False)


@primitive("PReLUGrad", "dy x weight")
def _prelu_grad(n: MsNode) -> Any:
    dy, x, slope = n.tensor("dy"), n.tensor("x"), n.tensor("weight")
    rank = desc_of(x).rank
    size = desc_of(slope).size
    shape = [1, size, *([1] * (rank - 2))] if rank > 1 else [size]
    above = n.op("Greater", x, _number(n, 0, x))
    by_x = n.op("Select", above, dy, n.op("Mul", dy, n.shaped(slope, shape)))
    below = _where(n, n.op("Not", above), n.op("Mul", dy, x))
    kept = [1] if rank > 1 and size > 1 else []
    axes = [a for a in range(rank) if a not in kept]
    return [by_x, n.shaped(n.op("ReduceSum", below, axes=axes, keepdims=False), desc_of(slope).shape)]


# -- normalisations ----------------------------------------------------------------------------------------------


@primitive(
    "BatchNormGrad",
    "dy x scale mean variance reserve is_training=False epsilon=1e-05 data_format='NCHW'",
)
def _batch_norm_grad(n: MsNode) -> Any:
    mean, variance, epsilon = n.tensor("mean"), n.tensor("variance"), float(n.setting("epsilon", 1e-5))
    return n.aten(
        "native_batch_norm_backward",
        grad_out=n.tensor("dy"),
        input=n.tensor("x"),
        weight=n.tensor("scale"),
        running_mean=mean,
        running_var=variance,
        save_mean=mean,
        save_invstd=n.op("Rsqrt", n.op("Add", variance, epsilon)),
        train=bool(n.setting("is_training", False)),
        eps=epsilon,
        output_mask=[True, True, True],
    )


@primitive("LayerNormGrad LayerNormGradV3", "x dy variance mean gamma begin_norm_axis=1 begin_params_axis=1")
def _layer_norm_grad(n: MsNode) -> Any:
    x, dy, scale = n.tensor("x"), n.tensor("dy"), n.tensor("gamma")
    rank = desc_of(x).rank
    axes = list(range(int(n.setting("begin_norm_axis", 1)) % rank, rank))
    spread = n.tensor("variance")
    if n.type == "LayerNormGrad":
        if spread not in n.parser.kept:
            raise Unsupported("the gradient of a layer normalisation that is not in the graph")
        spread = n.op("Rsqrt", n.op("Add", spread, _number(n, n.parser.kept[spread], spread)))
    found = n.op("LayerNormGrad", dy, x, n.tensor("mean"), spread, scale, axes=axes)
    return [n.back(v, i) for i, v in enumerate(found)]


@primitive("LayerNormGradExt", "dy x normalized_shape mean rstd gamma beta output_mask=(1,1,1)")
def _layer_norm_grad_ext(n: MsNode) -> Any:
    x = n.tensor("x")
    rank, count = desc_of(x).rank, len(n.integers("normalized_shape"))
    axes = list(range(rank - count, rank))
    values = [n.tensor(k) for k in ("dy", "x", "mean", "rstd", "gamma")]
    found = n.op("LayerNormGrad", *values, axes=axes)
    return [n.back(v, i) for i, v in enumerate(found)]


@primitive("RmsNormGrad", "dy x rstd gamma")
def _rms_norm_grad(n: MsNode) -> Any:
    dy, x, inverse = n.wide(n.tensor("dy")), n.wide(n.tensor("x")), n.tensor("rstd")
    scale = n.tensor("gamma")
    rank, count = desc_of(x).rank, desc_of(scale).rank
    axes = list(range(rank - count, rank))
    normal = n.op("Mul", x, inverse)
    g = n.op("Mul", dy, n.cast(scale, desc_of(dy).dtype))
    mean = n.op("ReduceMean", n.op("Mul", g, normal), axes=axes, keepdims=True)
    by_x = n.op("Mul", n.op("Sub", g, n.op("Mul", normal, mean)), inverse)
    by_scale = n.op("ReduceSum", n.op("Mul", dy, normal), axes=list(range(rank - count)), keepdims=False)
    return [n.back(by_x, 0), n.back(by_scale, 1)]


# -- losses ------------------------------------------------------------------------------------------------------


def _loss_slope(n: MsNode, dy: Any, like: Any, default: str) -> Any:
    """The gradient of a reduced loss as that of each element."""
    how = plain(n, "reduction", default, REDUCTIONS)
    if how == "none":
        return dy
    dy = n.op("Mul", dy, _number(n, 1 / desc_of(like).size, dy)) if how == "mean" else dy
    return n.spread(dy, desc_of(like).shape)


@primitive("MSELossGradExt", "dout x target reduction='mean'")
def _mse_grad(n: MsNode) -> Any:
    x = n.tensor("x")
    d = n.op("Sub", x, n.tensor("target"))
    return n.op("Mul", n.op("Mul", d, _number(n, 2, d)), _loss_slope(n, n.tensor("dout"), x, "mean"))


@primitive("L1LossBackwardExt", "dout x target reduction='mean'")
def _l1_grad(n: MsNode) -> Any:
    x = n.tensor("x")
    return n.op(
        "Mul", n.op("Sign", n.op("Sub", x, n.tensor("target"))), _loss_slope(n, n.tensor("dout"), x, "mean")
    )


@primitive("SmoothL1LossGrad", "x target dout beta=1.0 reduction='none'")
def _smooth_l1_grad(n: MsNode) -> Any:
    x, beta = n.tensor("x"), float(n.setting("beta", 1.0))
    d = n.op("Mul", n.op("Sub", x, n.tensor("target")), _number(n, 1 / beta, x))
    slope = n.op("Clip", d, min=-1.0, max=1.0)
    return n.op("Mul", slope, _loss_slope(n, n.tensor("dout"), x, "none"))


@primitive(
    "BinaryCrossEntropyWithLogitsBackward", "dout x target weight=None posWeight=None reduction='mean'"
)
def _bce_with_logits_grad(n: MsNode) -> Any:
    x, target = n.tensor("x"), n.tensor("target")
    s = n.op("Sigmoid", x)
    if n.arg("posWeight") is None:
        slope = n.op("Sub", s, target)
    else:
        t = n.op("Mul", n.tensor("posWeight"), target)
        both = n.op("Sub", n.op("Add", t, _number(n, 1, x)), target)
        slope = n.op("Sub", n.op("Mul", both, s), t)
    if n.arg("weight") is not None:
        slope = n.op("Mul", slope, n.tensor("weight"))
    return n.op("Mul", slope, _loss_slope(n, n.tensor("dout"), x, "mean"))


@primitive("BinaryCrossEntropyGrad", "x target dout weight=None reduction='mean'")
def _bce_grad(n: MsNode) -> Any:
    x, target = n.tensor("x"), n.tensor("target")
    rest = n.op("Mul", x, n.op("Sub", _number(n, 1, x), x))
    slope = n.op("Div", n.op("Sub", x, target), n.op("Maximum", rest, _number(n, 1e-12, x)))
    if n.arg("weight") is not None:
        slope = n.op("Mul", slope, n.tensor("weight"))
    return n.op("Mul", slope, _loss_slope(n, n.tensor("dout"), x, "mean"))


@primitive("SigmoidCrossEntropyWithLogitsGrad", "x label dout")
def _sigmoid_cross_entropy_grad(n: MsNode) -> Any:
    return n.op("Mul", n.op("Sub", n.op("Sigmoid", n.tensor("x")), n.tensor("label")), n.tensor("dout"))


@primitive("NLLLossGrad", "x dout labels weight total reduction='mean' ignore_index=-100")
def _nll_grad(n: MsNode) -> Any:
    x, dy = n.tensor("x"), n.tensor("dout")
    hot = n.op("Mul", one_hot(n, n.tensor("labels"), x), n.tensor("weight"))
    how = plain(n, "reduction", "mean", REDUCTIONS)
    if how == "none":
        dy = n.shaped(dy, [desc_of(x).shape[0], 1])
    elif how == "mean":
        dy = n.op("Div", dy, n.tensor("total"))
    return n.op("Neg", n.op("Mul", hot, dy))


@primitive("KLDivLossGrad KLDivGrad", "dout x target reduction='mean' log_target=False")
def _kl_div_grad(n: MsNode) -> Any:
    if n.setting("log_target", False):
        raise Unsupported("a divergence of logarithms")
    target = n.tensor("target")
    kept = _where(n, n.op("Greater", target, _number(n, 0, target)), n.op("Neg", target))
    return n.op("Mul", kept, _loss_slope(n, n.tensor("dout"), target, "mean"))


@primitive("DropoutGrad", "dy mask keep_prob=0.5")
def _dropout_grad(n: MsNode) -> Any:
    keep = float(n.setting("keep_prob", 0.5))
    kept = n.op("Mul", n.tensor("dy"), n.cast(n.tensor("mask"), desc_of(n.tensor("dy")).dtype))
    return n.op("Div", kept, keep) if keep not in (0.0, 1.0) else kept


# -- convolutions and resizing -----------------------------------------------------------------------------------


@primitive(
    "ConvolutionGrad",
    "dout input weight bias=None stride=1 padding=0 dilation=1 transposed=False output_padding=0 groups=1 "
    "output_mask=(1,1,1)",
)
def _convolution_grad(n: MsNode) -> Any:
    return n.aten(
        "convolution_backward",
        grad_output=n.tensor("dout"),
        input=n.tensor("input"),
        weight=n.tensor("weight"),
        **{k: n.integers(k) for k in ("stride", "padding", "dilation")},
        transposed=bool(n.setting("transposed", False)),
        groups=int(n.setting("groups", 1)),
        output_mask=[bool(v) for v in n.integers("output_mask")],
    )


@primitive("UpsampleNearest2DGrad", "dy input_size output_size=None scales=None")
def _nearest_grad(n: MsNode) -> Any:
    """Whole factors: the sum over each block."""
    g, out = n.tensor("dy"), n.out()
    batch, channels, height, width = desc_of(g).shape
    rows, columns = out.shape[2:]
    if height % rows or width % columns:
        raise Unsupported("the gradient of resizing by a factor that is not whole")
    split = n.shaped(g, [batch, channels, rows, height // rows, columns, width // columns])
    return n.op("ReduceSum", split, axes=[3, 5], keepdims=False)


@primitive("ResizeBilinearGrad", "dy image align_corners=False half_pixel_centers=False")
def _bilinear_grad(n: MsNode) -> Any:
    corners, half = (bool(n.setting(k, False)) for k in ("align_corners", "half_pixel_centers"))
    coordinates = "align_corners" if corners else "half_pixel" if half else "asymmetric"
    sizes = {2: n.out().shape[2], 3: n.out().shape[3]}
    return resize_gradient(n.builder, n.tensor("dy"), sizes, mode="linear", coordinates=coordinates)
