"""MindSpore: products, convolutions, pools, normalisations and losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.ops.plugins import Unsupported
from ge.parsers.mindir.node import MsNode, as_aten, primitive
from ge.parsers.mindir.values import Parameter

__all__ = ["channel_axis", "conv_window", "pool_window", "reduced"]

# Numbers of MindSpore's enumerations.
PAD_MODES = {0: "pad", 1: "same", 2: "valid"}
REDUCTIONS = {0: "sum", 1: "mean", 2: "none"}


def plain(n: MsNode, name: str, default: str, numbers: dict[int, str]) -> str:
    """A setting that is a word, or the number of one."""
    value = n.setting(name, default)
    word = numbers[value] if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return word.lower()


def _only_nchw(n: MsNode) -> None:
    value = n.setting("format", n.setting("data_format", "NCHW"))
    if value not in ("NCHW", "NCDHW", "DefaultFormat", 0, 2):
        raise Unsupported(f"the format {value}", "use NCHW")


# -- products ----------------------------------------------------------------------------------------------------


@primitive("MatMul BatchMatMul", "input other transpose_a=False transpose_b=False")
def _matmul(n: MsNode) -> Any:
    a, b = n.tensor("input"), n.tensor("other")
    return n.back(
        n.op(
            "MatMul",
            a,
            b,
            transpose_a=bool(n.setting("transpose_a", False)),
            transpose_b=bool(n.setting("transpose_b", False)),
        )
    )


@primitive("MatMulExt BatchMatMulExt Mm", "input other")
def _matmul_ext(n: MsNode) -> Any:
    """A vector is a row on the left and a column on the right."""
    a, b = n.tensor("input"), n.tensor("other")
    left = n.shaped(a, [1, *desc_of(a).shape]) if desc_of(a).rank == 1 else a
    right = n.shaped(b, [*desc_of(b).shape, 1]) if desc_of(b).rank == 1 else b
    return n.shaped(n.op("MatMul", left, right), n.out().shape)


@primitive("Dense", "input weight bias=None")
def _dense(n: MsNode) -> Any:
    x, bias = n.tensor("input"), n.arg("bias")
    lifted = n.shaped(x, [1, *desc_of(x).shape]) if desc_of(x).rank == 1 else x
    return n.shaped(n.op("MatMul", lifted, n.tensor("weight"), bias, transpose_b=True), n.out().shape)


as_aten(
    {
        "Addmm": ("addmm.default", "self mat1 mat2 beta!=1 alpha!=1"),
        "Baddbmm": ("baddbmm.default", "self batch1 batch2 beta!=1 alpha!=1"),
        "Addbmm": ("addbmm.default", "self batch1 batch2 beta!=1 alpha!=1"),
        "AvgPool1D": (
            "avg_pool1d",
            "self kernel_size! stride! padding!=[0] ceil_mode!=False count_include_pad!=True",
        ),
        "AvgPool2D": (
            "avg_pool2d",
            "self kernel_size! stride! padding!=[0] ceil_mode!=False count_include_pad!=True divisor_override!=None",
        ),
        "AvgPool2DGrad": (
            "avg_pool2d_backward",
            "grad_output self kernel_size! stride! padding!=[0] ceil_mode!=False count_include_pad!=True "
            "divisor_override!=None",
        ),
        "AvgPool3DExt": (
            "avg_pool3d",
            "self kernel_size! stride! padding!=[0] ceil_mode!=False count_include_pad!=True divisor_override!=None",
        ),
        "AdaptiveAvgPool2DExt": ("adaptive_avg_pool2d", "self output_size!"),
        "AdaptiveAvgPool2DGradExt": ("_adaptive_avg_pool2d_backward", "grad_output self"),
        "AdaptiveAvgPool3DExt": ("adaptive_avg_pool3d", "self output_size!"),
        "MaxPoolWithIndices": (
            "max_pool2d_with_indices",
            "self kernel_size! stride!=[] padding!=[0] dilation!=[1] ceil_mode!=False",
        ),
        "UpsampleNearest1D": ("upsample_nearest1d", "self output_size!=None scale_factors!=None"),
        "UpsampleNearest2D": ("upsample_nearest2d", "self output_size!=None scale_factors!=None"),
        "UpsampleNearest3D": ("upsample_nearest3d", "self output_size!=None scale_factors!=None"),
        "UpsampleLinear1D": (
            "upsample_linear1d",
            "self output_size!=None scale_factors!=None align_corners!=False",
        ),
        "UpsampleBilinear2D": (
            "upsample_bilinear2d",
            "self output_size!=None scale_factors!=None align_corners!=False",
        ),
        "UpsampleTrilinear3D": (
            "upsample_trilinear3d",
            "self output_size!=None scale_factors!=None align_corners!=False",
        ),
        "UpsampleBicubic2D": (
            "upsample_bicubic2d",
            "self output_size!=None scale_factors!=None align_corners!=False",
        ),
    }
)


# -- convolutions ------------------------------------------------------------------------------------------------


def _last(values: Any, count: int) -> list[int]:
    """A setting for the axes of the image: given for them, or for all axes."""
    found = [int(v) for v in (values if isinstance(values, tuple | list) else (values,))]
    return found * count if len(found) == 1 else found[-count:]


def _same(size: int, kernel: int, stride: int, hole: int = 1) -> tuple[int, int]:
    total = max((-(-size // stride) - 1) * stride + (kernel - 1) * hole + 1 - size, 0)
    return total // 2, total - total // 2


def conv_window(n: MsNode, image: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    """Strides, dilations, pads and groups of a convolution of an image of some size."""
    _only_nchw(n)
    space = len(kernel)
    strides, holes = _last(n.arg("stride", 1), space), _last(n.arg("dilation", 1), space)
    mode = plain(n, "pad_mode", "valid", PAD_MODES)
    if mode == "same":
        pairs = [_same(*item) for item in zip(image, kernel, strides, holes, strict=True)]
    elif mode == "valid":
        pairs = [(0, 0)] * space
    else:
        given = [int(v) for v in n.integers("pad_list" if n.arg("pad_list") is not None else "pad")]
        pairs = list(zip(given[::2], given[1::2], strict=True))
    return {
        "strides": strides,
        "dilations": holes,
        "pads_begin": [p[0] for p in pairs],
        "pads_end": [p[1] for p in pairs],
        "groups": int(n.setting("group", n.setting("groups", 1))),
    }


@primitive("Conv2D Conv3D", "x w")
def _conv(n: MsNode) -> Any:
    x, w = n.tensor("x"), n.tensor("w")
    return n.op("Conv", x, w, **conv_window(n, desc_of(x).shape[2:], desc_of(w).shape[2:]))


@primitive("Conv2DBackpropInput Conv2DTranspose Conv3DBackpropInput Conv3DTranspose", "dout w input_size")
def _conv_by_input(n: MsNode) -> Any:
    """Attributes are those of the convolution whose gradient this is."""
    g, w = n.tensor("dout"), n.tensor("w")
    if n.type == "Conv3DBackpropInput":
        g, w = w, g
    window = conv_window(n, n.out().shape[2:], desc_of(w).shape[2:])
    return n.op("ConvTranspose", g, w, output_shape=list(n.out().shape[2:]), **window)


@primitive("Conv2DBackpropFilter", "dout x w_size")
def _conv_by_weight(n: MsNode) -> Any:
    g, x = n.tensor("dout"), n.tensor("x")
    kernel = list(n.out().shape[2:])
    window = conv_window(n, desc_of(x).shape[2:], tuple(kernel))
    return n.op("ConvGradWeight", _reached(n, x, g, kernel, window), g, kernel=kernel, **window)


def _reached(n: MsNode, x: Any, g: Any, kernel: list[int], window: dict[str, Any]) -> Any:
    """The image without rows at the end that no window reaches."""
    shape = list(desc_of(x).shape)
    rows = zip(
        desc_of(g).shape[2:],
        kernel,
        window["strides"],
        window["dilations"],
        window["pads_begin"],
        shape[2:],
        strict=True,
    )
    kept = [min((out - 1) * s + (k - 1) * h + 1 - low, size) for out, k, s, h, low, size in rows]
    if kept == shape[2:]:
        return x
    return n.op("Slice", x, starts=[0] * len(shape), ends=[*shape[:2], *kept])


def _ext_window(n: MsNode, space: int) -> dict[str, Any]:
    pads = _last(n.arg("padding", 0), space)
    return {
        "strides": _last(n.arg("stride", 1), space),
        "dilations": _last(n.arg("dilation", 1), space),
        "pads_begin": pads,
        "pads_end": pads,
        "groups": int(n.setting("groups", 1)),
    }


@primitive("Conv1DExt Conv2DExt Conv3DExt", "input weight bias=None stride=1 padding=0 dilation=1 groups=1")
def _conv_ext(n: MsNode) -> Any:
    x, w = n.tensor("input"), n.tensor("weight")
    space = desc_of(w).rank - 2
    lifted = x if desc_of(x).rank == space + 2 else n.shaped(x, [1, *desc_of(x).shape])
    return n.shaped(n.op("Conv", lifted, w, n.arg("bias"), **_ext_window(n, space)), n.out().shape)


@primitive(
    "Convolution",
    "input weight bias=None stride=1 padding=0 dilation=1 transposed=False output_padding=0 groups=1",
)
def _convolution(n: MsNode) -> Any:
    x, w, bias = n.tensor("input"), n.tensor("weight"), n.arg("bias")
    window = _ext_window(n, desc_of(w).rank - 2)
    if not n.setting("transposed"):
        return n.op("Conv", x, w, bias, **window)
    del window["pads_end"]
    return n.op("ConvTranspose", x, w, bias, output_shape=list(n.out().shape[2:]), **window)


@primitive("BiasAdd", "x bias data_format='NCHW'")
def _bias_add(n: MsNode) -> Any:
    x, bias = n.tensor("x"), n.tensor("bias")
    rank = desc_of(x).rank
    if rank == 2:
        return n.op("Add", x, bias)
    return n.op("Add", x, n.shaped(bias, [1, desc_of(bias).size, *([1] * (rank - 2))]))


# -- pools -------------------------------------------------------------------------------------------------------


def pool_window(n: MsNode, image: tuple[int, ...]) -> dict[str, Any]:
    """Kernel, strides and pads of a pool."""
    _only_nchw(n)
    space = len(image)
    kernel, strides = _last(n.arg("kernel_size"), space), _last(n.arg("strides", 1), space)
    mode = plain(n, "pad_mode", "valid", PAD_MODES)
    if mode == "same":
        pairs = [_same(*item) for item in zip(image, kernel, strides, strict=True)]
    elif mode == "valid":
        pairs = [(0, 0)] * space
    else:
        given = n.integers("pad_list")
        pairs = list(zip(given[::2], given[1::2], strict=True))
    return {
        "kernel": kernel,
        "strides": strides,
        "pads_begin": [p[0] for p in pairs],
        "pads_end": [p[1] for p in pairs],
    }


@primitive("MaxPool MaxPool3D", "x")
def _max_pool(n: MsNode) -> Any:
    x = n.tensor("x")
    if n.setting("ceil_mode", 0) not in (None, 0, False):
        raise Unsupported("a pool with ceil_mode")
    return n.op("MaxPool", x, **pool_window(n, desc_of(x).shape[2:]))


@primitive("MaxPoolGrad", "x y dout")
def _max_pool_grad(n: MsNode) -> Any:
    x = n.tensor("x")
    return n.op("MaxPoolGrad", n.tensor("dout"), x, **pool_window(n, desc_of(x).shape[2:]))


_POOL = "x kernel_size=1 strides=1 pad_mode='valid' data_format='NCHW'"


@primitive("AvgPool", _POOL)
def _avg_pool(n: MsNode) -> Any:
    x = n.tensor("x")
    return n.op("AvgPool", x, count_include_pad=False, **pool_window(n, desc_of(x).shape[2:]))


@primitive("AvgPoolGrad", "x y dout kernel_size=1 strides=1 pad_mode='valid' data_format='NCHW'")
def _avg_pool_grad(n: MsNode) -> Any:
    """Each gradient spread evenly over its window, less the border."""
    x, g = desc_of(n.tensor("x")), n.tensor("dout")
    window = pool_window(n, x.shape[2:])
    return n.op("AvgPoolGrad", g, shape=list(x.shape), **window)


@primitive("AdaptiveAvgPool2D", "x output_size")
def _adaptive_pool(n: MsNode) -> Any:
    return n.aten("adaptive_avg_pool2d", self=n.tensor("x"), output_size=list(n.out().shape[-2:]))


# -- normalisations ----------------------------------------------------------------------------------------------


def channel_axis(rank: int) -> tuple[list[int], list[int]]:
    """The axes that a batch normalisation averages over, and the shape of a channel's values as a pattern."""
    return [0, *range(2, rank)], [1, -1, *([1] * (rank - 2))]


@primitive(
    "BatchNorm",
    "x scale bias mean variance is_training=False epsilon=1e-05 momentum=0.1 data_format='NCHW'",
)
def _batch_norm(n: MsNode) -> Any:
    """In training with the batch's statistics, which also move those of the parameters."""
    _only_nchw(n)
    x, scale, bias = n.tensor("x"), n.tensor("scale"), n.tensor("bias")
    mean, var = n.tensor("mean"), n.tensor("variance")
    epsilon = float(n.setting("epsilon", 1e-5))
    if not n.setting("is_training", False):
        y = n.op("BatchNorm", x, scale, bias, mean, var, epsilon=epsilon)
        return [y, *(n.op("Identity", v) for v in (mean, var, mean, var))]
    axes, _ = channel_axis(desc_of(x).rank)
    wide = n.wide(x)
    batch_mean = n.op("ReduceMean", wide, axes=axes, keepdims=False)
    pattern = [1, desc_of(x).shape[1], *([1] * (desc_of(x).rank - 2))]
    centred = n.op("Sub", wide, n.shaped(batch_mean, pattern))
    batch_var = n.op("ReduceMean", n.op("Square", centred), axes=axes, keepdims=False)
    factor = n.op(
        "Mul", scale, n.op("Rsqrt", n.op("Add", batch_var, n.cast(epsilon, desc_of(batch_var).dtype)))
    )
    y = n.op("Add", n.op("Mul", centred, n.shaped(factor, pattern)), n.shaped(bias, pattern))
    moved = _moved_statistics(n, batch_mean, batch_var, math.prod(desc_of(x).shape[a] for a in axes))
    return [n.cast(y, desc_of(x).dtype), *moved, batch_mean, batch_var]


def _moved_statistics(n: MsNode, mean: Any, var: Any, count: int) -> list[Any]:
    """The running statistics after the batch; the variance is the unbiased one."""

    share = float(n.setting("momentum", 0.1))
    unbiased = n.op("Mul", var, n.cast(count / max(count - 1, 1), desc_of(var).dtype))
    found = []
    for index, new in ((3, mean), (4, unbiased)):
        old = n.parser.resolved(n.arguments[index])
        kept, taken = (n.cast(v, desc_of(old).dtype) for v in (1 - share, share))
        moved = n.op("Add", n.op("Mul", old, kept), n.op("Mul", n.cast(new, desc_of(old).dtype), taken))
        if isinstance(n.arguments[index], Parameter):
            n.parser.write(n.arguments[index], moved)
        found.append(moved)
    return found


@primitive("LayerNorm LayerNormV3", "x gamma beta begin_norm_axis=1 begin_params_axis=1 epsilon=1e-07")
def _layer_norm(n: MsNode) -> Any:
    x, scale, bias = n.tensor("x"), n.tensor("gamma"), n.tensor("beta")
    rank = desc_of(x).rank
    first = int(n.setting("begin_norm_axis", 1)) % rank
    axes, epsilon = list(range(first, rank)), float(n.setting("epsilon", 1e-7))
    if int(n.setting("begin_params_axis", 1)) % rank != first:
        raise Unsupported("a layer normalisation whose scale has other axes")
    y = n.op("LayerNorm", x, scale, bias, axes=axes, epsilon=epsilon)
    wide = n.wide(x)
    mean = n.op("ReduceMean", wide, axes=axes, keepdims=True)
    var = n.op("ReduceMean", n.op("Square", n.op("Sub", wide, mean)), axes=axes, keepdims=True)
    if n.type == "LayerNormV3":
        var = n.op("Rsqrt", n.op("Add", var, n.cast(epsilon, desc_of(var).dtype)))
    n.parser.kept[var] = epsilon  # which the gradient does not name
    return [y, mean, var]


@primitive("LayerNormExt", "input normalized_shape weight=None bias=None eps=1e-05")
def _layer_norm_ext(n: MsNode) -> Any:
    return n.aten(
        "native_layer_norm",
        input=n.tensor("input"),
        normalized_shape=n.integers("normalized_shape"),
        weight=n.arg("weight"),
        bias=n.arg("bias"),
        eps=float(n.setting("eps", 1e-5)),
    )


@primitive("RmsNorm", "x gamma epsilon=1e-06")
def _rms_norm(n: MsNode) -> Any:
    x, scale = n.tensor("x"), n.tensor("gamma")
    wide = n.wide(x)
    rank, count = desc_of(x).rank, desc_of(scale).rank
    axes = list(range(rank - count, rank))
    mean = n.op("ReduceMean", n.op("Square", wide), axes=axes, keepdims=True)
    inverse = n.op("Rsqrt", n.op("Add", mean, n.cast(float(n.setting("epsilon", 1e-6)), desc_of(mean).dtype)))
    y = n.op("Mul", n.cast(n.op("Mul", wide, inverse), desc_of(x).dtype), scale)
    return [y, inverse]


@primitive("GroupNorm", "input num_groups weight=None bias=None eps=1e-05")
def _group_norm(n: MsNode) -> Any:
    x, groups = n.tensor("input"), int(n.setting("num_groups"))
    batch, channels, *space = desc_of(x).shape
    wide = n.shaped(n.wide(x), [batch, groups, channels // groups * math.prod(space)])
    mean = n.op("ReduceMean", wide, axes=[2], keepdims=True)
    centred = n.op("Sub", wide, mean)
    var = n.op("ReduceMean", n.op("Square", centred), axes=[2], keepdims=True)
    inverse = n.op("Rsqrt", n.op("Add", var, n.cast(float(n.setting("eps", 1e-5)), desc_of(var).dtype)))
    y = n.shaped(n.op("Mul", centred, inverse), desc_of(x).shape)
    pattern = [1, channels, *([1] * len(space))]
    for name, kind in (("weight", "Mul"), ("bias", "Add")):
        if n.arg(name) is not None:
            y = n.op(kind, y, n.shaped(n.cast(n.arg(name), desc_of(y).dtype), pattern))
    statistics = [n.shaped(v, n.out(i + 1).shape) for i, v in enumerate((mean, inverse))]
    return [n.cast(y, desc_of(x).dtype), *statistics]


@primitive("L2Normalize", "x axis=0 epsilon=1e-10")
def _l2_normalize(n: MsNode) -> Any:
    x = n.tensor("x")
    axes = [a % desc_of(x).rank for a in n.integers("axis", [0])]
    total = n.op("ReduceSum", n.op("Square", x), axes=axes, keepdims=True)
    least = n.op("Maximum", total, n.cast(float(n.setting("epsilon", 1e-10)), desc_of(x).dtype))
    return n.op("Mul", x, n.op("Rsqrt", least))


# -- losses ------------------------------------------------------------------------------------------------------


def reduced(n: MsNode, values: Any, default: str = "mean") -> Any:
    """Values of a loss, reduced as the primitive says."""
    how = plain(n, "reduction", default, REDUCTIONS)
    if how == "none":
        return values
    axes = list(range(desc_of(values).rank))
    type_ = "ReduceMean" if how == "mean" else "ReduceSum"
    return n.op(type_, values, axes=axes, keepdims=False) if axes else values


@primitive("MSELossExt", "input target reduction='mean'")
def _mse(n: MsNode) -> Any:
    return reduced(n, n.op("SquaredDifference", n.tensor("input"), n.tensor("target")))


@primitive("L1LossExt", "input target reduction='mean'")
def _l1(n: MsNode) -> Any:
    return reduced(n, n.op("Abs", n.op("Sub", n.tensor("input"), n.tensor("target"))))


@primitive("SmoothL1Loss", "prediction target beta=1.0 reduction='none'")
def _smooth_l1(n: MsNode) -> Any:
    d = n.op("Abs", n.op("Sub", n.tensor("prediction"), n.tensor("target")))
    dtype, beta = desc_of(d).dtype, float(n.setting("beta", 1.0))
    inner = n.op("Mul", n.op("Square", d), n.cast(0.5 / beta, dtype))
    outer = n.op("Sub", d, n.cast(0.5 * beta, dtype))
    return reduced(n, n.op("Select", n.op("Less", d, n.cast(beta, dtype)), inner, outer), "none")


@primitive("BCEWithLogitsLoss", "input target weight=None posWeight=None reduction='mean'")
def _bce_with_logits(n: MsNode) -> Any:
    """(1 - t) * x + w * (log(1 + exp(-|x|)) + max(-x, 0)), with w = 1 + t * (positive weight - 1)."""
    x, target = n.tensor("input"), n.tensor("target")
    dtype = desc_of(x).dtype
    one = n.cast(1, dtype)
    tail = n.op("Softplus", n.op("Neg", x))
    if n.arg("posWeight") is not None:
        extra = n.op("Mul", target, n.op("Sub", n.tensor("posWeight"), one))
        tail = n.op("Mul", tail, n.op("Add", extra, one))
    loss = n.op("Add", n.op("Mul", n.op("Sub", one, target), x), tail)
    if n.arg("weight") is not None:
        loss = n.op("Mul", loss, n.tensor("weight"))
    return reduced(n, loss)


@primitive("BinaryCrossEntropy", "input target weight=None reduction='mean'")
def _bce(n: MsNode) -> Any:
    x, target = n.tensor("input"), n.tensor("target")
    dtype = desc_of(x).dtype
    one, least = n.cast(1, dtype), n.cast(1e-12, dtype)
    first = n.op("Mul", target, n.op("Log", n.op("Add", x, least)))
    rest = n.op("Sub", one, target)
    second = n.op("Mul", rest, n.op("Log", n.op("Add", n.op("Sub", one, x), least)))
    loss = n.op("Neg", n.op("Add", first, second))
    if n.arg("weight") is not None:
        loss = n.op("Mul", loss, n.tensor("weight"))
    return reduced(n, loss)


@primitive("SigmoidCrossEntropyWithLogits", "logits label")
def _sigmoid_cross_entropy(n: MsNode) -> Any:
    x = n.tensor("logits")
    rest = n.op("Mul", n.op("Sub", n.cast(1, desc_of(x).dtype), n.tensor("label")), x)
    return n.op("Add", rest, n.op("Softplus", n.op("Neg", x)))


def one_hot(n: MsNode, labels: Any, like: Any) -> Any:
    """Rows with a one at each label."""
    rows, classes = desc_of(like).shape
    numbers = np.arange(classes).astype(numpy_dtype(desc_of(labels).dtype))[None]
    return n.cast(
        n.op("Equal", n.shaped(labels, [rows, 1]), n.builder.constant(numbers)), desc_of(like).dtype
    )


def _where_hot(n: MsNode, hot: Any, values: Any) -> Any:
    """The values at the labels and zeros elsewhere, whatever the other values are (-inf of masked classes)."""
    return n.op(
        "Select",
        n.op("NotEqual", hot, n.cast(0, desc_of(hot).dtype)),
        values,
        n.cast(0, desc_of(values).dtype),
    )


@primitive("SparseSoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogitsV2", "logits labels")
def _sparse_cross_entropy(n: MsNode) -> Any:
    x, labels = n.tensor("logits"), n.tensor("labels")
    if desc_of(x).rank != 2 or n.type.endswith("V2"):
        raise Unsupported(f"{n.type} of {desc_of(x)}")
    hot = one_hot(n, labels, x)
    share = n.cast(1 / desc_of(x).shape[0], desc_of(x).dtype)
    if n.setting("is_grad", False):
        return n.op("Mul", n.op("Sub", n.op("Softmax", x, axes=[1]), hot), share)
    picked = n.op(
        "ReduceSum", _where_hot(n, hot, n.op("LogSoftmax", x, axes=[1])), axes=[0, 1], keepdims=False
    )
    return n.op("Mul", n.op("Neg", picked), share)


@primitive("SoftmaxCrossEntropyWithLogits", "logits labels")
def _cross_entropy(n: MsNode) -> Any:
    """The loss of each row and its gradient by the logits."""
    x, labels = n.tensor("logits"), n.tensor("labels")
    logs = n.op("LogSoftmax", x, axes=[1])
    loss = n.op("Neg", n.op("ReduceSum", n.op("Mul", labels, logs), axes=[1], keepdims=False))
    return [loss, n.op("Sub", n.op("Softmax", x, axes=[1]), labels)]


@primitive("NLLLoss", "logits labels weight reduction='mean' ignore_index=-100")
def _nll_loss(n: MsNode) -> Any:
    x, labels = n.tensor("logits"), n.tensor("labels")
    hot = one_hot(n, labels, x)
    weight = n.op("ReduceSum", n.op("Mul", hot, n.tensor("weight")), axes=[1], keepdims=False)
    picked = n.op("ReduceSum", _where_hot(n, hot, x), axes=[1], keepdims=False)
    loss = n.op("Neg", n.op("Mul", picked, weight))
    total = n.op("ReduceSum", weight, axes=[0], keepdims=False)
    how = plain(n, "reduction", "mean", REDUCTIONS)
    if how == "none":
        return [loss, total]
    summed = n.op("ReduceSum", loss, axes=[0], keepdims=False)
    return [n.op("Div", summed, total) if how == "mean" else summed, total]


@primitive("KLDivLoss KLDiv", "input target reduction='mean' log_target=False")
def _kl_div(n: MsNode) -> Any:
    x, target = n.tensor("input"), n.tensor("target")
    zero = n.cast(0, desc_of(x).dtype)
    if n.setting("log_target", False):
        value = n.op("Mul", n.op("Exp", target), n.op("Sub", target, x))
    else:
        value = n.op("Mul", target, n.op("Sub", n.op("Log", target), x))
        value = n.op("Select", n.op("Greater", target, zero), value, n.spread(zero, desc_of(x).shape))
    if plain(n, "reduction", "mean", REDUCTIONS) == "batchmean":
        summed = n.op("ReduceSum", value, axes=list(range(desc_of(x).rank)), keepdims=False)
        return n.op("Div", summed, float(desc_of(x).shape[0]))
    return reduced(n, value)
