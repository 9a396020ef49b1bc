"""PaddlePaddle: products, convolutions, pools, normalisations, losses, attention, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import TensorDesc
from ge.ir.values import desc_of
from ge.ops.image.resize import resize_gradient
from ge.ops.nn.spatial import Window
from ge.ops.plugins import Unsupported
from ge.parsers.paddle.node import PaddleNode, axis_of, paddle

# -- products ----------------------------------------------------------------------------------------------


def _product(n: PaddleNode, a: Any, b: Any, turn_a: bool = False, turn_b: bool = False) -> Any:
    return n.op("MatMul", a, b, transpose_a=turn_a, transpose_b=turn_b)


@paddle("matmul")
def _matmul(n: PaddleNode) -> Any:
    """Vectors are rows on the left and columns on the right."""
    a, b = n.inputs[:2]
    turn_a, turn_b = bool(n.attr("transpose_x")), bool(n.attr("transpose_y"))
    left, right = desc_of(a).rank == 1, desc_of(b).rank == 1
    a = n.shaped(a, [1, desc_of(a).size]) if left else a
    b = n.shaped(b, [desc_of(b).size, 1]) if right else b
    y = _product(n, a, b, turn_a and not left, turn_b and not right)
    shape = list(desc_of(y).shape)
    shape = shape[:-2] + ([] if left else shape[-2:-1]) + ([] if right else shape[-1:])
    return n.shaped(y, shape)


@paddle("matmul_grad")
def _matmul_grad(n: PaddleNode) -> Any:
    x, y, g = n.inputs[:3]
    if 1 in (desc_of(x).rank, desc_of(y).rank):
        return _vector_grad(n, x, y, g)
    turn_x, turn_y = bool(n.attr("transpose_x")), bool(n.attr("transpose_y"))
    by_x = by_y = None
    if n.is_wanted(0):
        by_x = _product(n, y, g, turn_y, True) if turn_x else _product(n, g, y, False, not turn_y)
        by_x = n.sum_to(by_x, desc_of(x))
    if n.is_wanted(1):
        by_y = _product(n, g, x, True, turn_x) if turn_y else _product(n, x, g, not turn_x, False)
        by_y = n.sum_to(by_y, desc_of(y))
    return [by_x, by_y]


def _vector_grad(n: PaddleNode, x: Any, y: Any, g: Any) -> Any:
    if (desc_of(x).rank, desc_of(y).rank) == (1, 1):
        return [n.op("Mul", y, g), n.op("Mul", x, g)]
    if n.attr("transpose_x") or n.attr("transpose_y") or desc_of(y).rank != 1:
        raise Unsupported("the gradient of a product with a vector on the left")
    column = n.shaped(g, [*desc_of(g).shape, 1])
    by_y = n.op("ReduceSum", n.op("Mul", x, column), axes=list(range(desc_of(x).rank - 1)), keepdims=False)
    return [n.op("Mul", column, y), by_y]


@paddle("bmm")
def _bmm(n: PaddleNode) -> Any:
    return _product(n, n.inputs[0], n.inputs[1])


@paddle("bmm_grad")
def _bmm_grad(n: PaddleNode) -> Any:
    x, y, g = n.inputs[:3]
    return [_product(n, g, y, False, True), _product(n, x, g, True, False)]


@paddle("mv")
def _mv(n: PaddleNode) -> Any:
    x, vector = n.inputs[:2]
    return n.shaped(_product(n, x, n.shaped(vector, [desc_of(vector).size, 1])), desc_of(x).shape[:1])


@paddle("dot")
def _dot(n: PaddleNode) -> Any:
    product = n.op("Mul", n.inputs[0], n.inputs[1])
    return n.op("ReduceSum", product, axes=[n.like().rank - 1], keepdims=False)


@paddle("addmm")
def _addmm(n: PaddleNode) -> Any:
    extra, x, y = n.inputs[:3]
    dtype = n.like().dtype
    product = n.op("Mul", _product(n, x, y), n.constant(n.attr("alpha", 1.0), dtype))
    return n.op("Add", n.op("Mul", extra, n.constant(n.attr("beta", 1.0), dtype)), product)


@paddle("linear_v2")
def _linear(n: PaddleNode) -> Any:
    return n.op("Add", _product(n, n.inputs[0], n.inputs[1]), n.inputs[2])


@paddle("einsum")
def _einsum(n: PaddleNode) -> Any:
    equation = str(n.attr("equation")).replace(" ", "")
    return [n.builder.ops("Einsum", n.tensors(), equation=equation)[0], None, None]


# -- convolutions and pools --------------------------------------------------------------------------------


def _borders(
    n: PaddleNode, space: Sequence[int], kernel: Sequence[int], strides: Sequence[int], holes: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Borders before and after, from the attributes."""
    rank, algorithm = len(space), n.attr("padding_algorithm", "EXPLICIT")
    given = [int(p) for p in n.attr("paddings")]
    if algorithm == "VALID":
        return [0] * rank, [0] * rank
    if algorithm == "SAME":
        total = [
            max((-(-d // s) - 1) * s + (k - 1) * h + 1 - d, 0)
            for d, k, s, h in zip(space, kernel, strides, holes, strict=True)
        ]
        return [t // 2 for t in total], [t - t // 2 for t in total]
    if len(given) == rank:
        return given, given
    return given[::2], given[1::2]


def _window(n: PaddleNode, space: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    rank = len(space)
    strides = [int(s) for s in n.attr("strides")]
    holes = [int(d) for d in n.attr("dilations", [1] * rank)]
    if n.attr("padding_algorithm") == "SAME":
        holes = [1] * rank
    low, high = _borders(n, space, kernel, strides, holes)
    return {"strides": strides, "dilations": holes, "pads_begin": low, "pads_end": high}


def _first(n: PaddleNode, x: Any) -> Any:
    """Channels first."""
    rank = desc_of(x).rank
    return n.turned(x, [0, rank - 1, *range(1, rank - 1)]) if _is_last(n) else x


def _last(n: PaddleNode, y: Any) -> Any:
    """Channels where the attribute has them."""
    rank = desc_of(y).rank
    return n.turned(y, [0, *range(2, rank), 1]) if _is_last(n) else y


def _is_last(n: PaddleNode) -> bool:
    return str(n.attr("data_format", "NCHW")).endswith("C")


@paddle("conv2d", "depthwise_conv2d", "conv3d")
def _conv(n: PaddleNode) -> Any:
    x, w = _first(n, n.inputs[0]), n.inputs[1]
    attrs = _window(n, desc_of(x).shape[2:], desc_of(w).shape[2:])
    return _last(n, n.op("Conv", x, w, groups=n.attr("groups"), **attrs))


@paddle("conv2d_grad", "depthwise_conv2d_grad", "conv3d_grad")
def _conv_grad(n: PaddleNode) -> Any:
    x, w, g = _first(n, n.inputs[0]), n.inputs[1], _first(n, n.inputs[2])
    attrs = _window(n, desc_of(x).shape[2:], desc_of(w).shape[2:])
    low, high = attrs.pop("pads_begin"), attrs.pop("pads_end")
    if low != high:
        shape = [d + a + b for d, a, b in zip(desc_of(x).shape[2:], low, high, strict=True)]
        wide = n.op("Pad", x, low=[0, 0, *low], high=[0, 0, *high])
    else:
        shape, wide = list(desc_of(x).shape[2:]), x
    pads = low if low == high else [0] * len(low)
    result = TensorDesc((*desc_of(x).shape[:2], *shape), desc_of(x).dtype)
    found = n.aten(
        "convolution_backward",
        [result, desc_of(w), None],
        grad_output=g,
        input=wide,
        weight=w,
        bias_sizes=None,
        stride=attrs["strides"],
        padding=pads,
        dilation=attrs["dilations"],
        transposed=False,
        output_padding=[0] * len(pads),
        groups=n.attr("groups"),
        output_mask=[n.is_wanted(0), n.is_wanted(1), False],
    )
    by_x = found[0]
    if by_x is not None and low != high:
        ends = [a + d for a, d in zip(low, desc_of(x).shape[2:], strict=True)]
        by_x = n.op("Slice", by_x, starts=[0, 0, *low], ends=[*desc_of(x).shape[:2], *ends])
    return [None if by_x is None else _last(n, by_x), found[1]]


@paddle("conv2d_transpose", "depthwise_conv2d_transpose", "conv3d_transpose")
def _conv_transpose(n: PaddleNode) -> Any:
    x, w = _first(n, n.inputs[0]), n.inputs[1]
    attrs = _window(n, desc_of(x).shape[2:], desc_of(w).shape[2:])
    high = attrs.pop("pads_end")
    kernel = desc_of(w).shape[2:]
    extra = [int(v) for v in n.attr("output_padding") or [0] * len(kernel)]
    rows = zip(
        desc_of(x).shape[2:], kernel, attrs["strides"], attrs["dilations"], attrs["pads_begin"], high, extra,
        strict=True,
    )  # fmt: skip
    sizes = [(d - 1) * s + (k - 1) * h + 1 - a - b + e for d, k, s, h, a, b, e in rows]
    if len(n.inputs) > 2 and n.inputs[2] is not None and n.ints(2):
        sizes = n.ints(2)
    y = n.op("ConvTranspose", x, w, groups=n.attr("groups"), output_shape=sizes, **attrs)
    return _last(n, y)


@paddle("conv2d_transpose_grad", "depthwise_conv2d_transpose_grad")
def _conv_transpose_grad(n: PaddleNode) -> Any:
    x, w, g = _first(n, n.inputs[0]), n.inputs[1], _first(n, n.inputs[2])
    attrs = _window(n, desc_of(x).shape[2:], desc_of(w).shape[2:])
    if attrs["pads_begin"] != attrs["pads_end"]:
        raise Unsupported("the gradient of a transposed convolution with uneven borders")
    found = n.aten(
        "convolution_backward",
        [desc_of(x), desc_of(w), None],
        grad_output=g,
        input=x,
        weight=w,
        bias_sizes=None,
        stride=attrs["strides"],
        padding=attrs["pads_begin"],
        dilation=attrs["dilations"],
        transposed=True,
        output_padding=[0] * len(attrs["strides"]),
        groups=n.attr("groups"),
        output_mask=[n.is_wanted(0), n.is_wanted(1), False],
    )
    return [None if found[0] is None else _last(n, found[0]), found[1]]


def _pool_attrs(n: PaddleNode, space: Sequence[int], kernel: list[int]) -> dict[str, Any]:
    """The window of a pool; ceil_mode widens the border at the end."""
    attrs = _window(n, space, kernel)
    window = Window(
        tuple(kernel),
        tuple(attrs["strides"]),
        (1,) * len(space),
        tuple(attrs["pads_begin"]),
        tuple(attrs["pads_end"]),
    )
    if n.attr("ceil_mode"):
        window = window.ceiled(space)
    names = ("kernel", "strides", "dilations", "pads_begin", "pads_end")
    return {name: list(getattr(window, name)) for name in names}


def _even(n: PaddleNode, space: Sequence[int], sizes: Sequence[int]) -> dict[str, Any]:
    """The window of a pool whose result has given sizes."""
    if any(d % s for d, s in zip(space, sizes, strict=True)):
        raise Unsupported(f"an adaptive pool of {list(space)} into {list(sizes)}")
    kernel = [d // s for d, s in zip(space, sizes, strict=True)]
    zeros = [0] * len(kernel)
    ones = [1] * len(kernel)
    return {"kernel": kernel, "strides": kernel, "dilations": ones, "pads_begin": zeros, "pads_end": zeros}


def _pool_window(n: PaddleNode, x: Any, kernel: list[int]) -> dict[str, Any]:
    space = desc_of(x).shape[2:]
    if n.attr("global_pooling"):
        return _even(n, space, [1] * len(space))
    return _even(n, space, kernel) if n.attr("adaptive") else _pool_attrs(n, space, kernel)


def _counted(n: PaddleNode) -> dict[str, Any]:
    """Borders count where they are not exclusive."""
    return {} if n.attr("exclusive", True) or n.attr("adaptive") else {"count_include_pad": True}


@paddle("pool2d", "pool3d")
def _pool(n: PaddleNode) -> Any:
    x = _first(n, n.inputs[0])
    kernel = n.ints(1) if len(n.inputs) > 1 else [int(k) for k in n.attr("kernel_size")]
    if n.attr("adaptive") and n.attr("pooling_type") == "avg" and not n.attr("global_pooling"):
        space = desc_of(x).shape[2:]
        if any(d % s for d, s in zip(space, kernel, strict=True)) and len(space) == 2:
            desc = TensorDesc((*desc_of(x).shape[:2], *kernel), desc_of(x).dtype)
            return _last(n, n.aten("_adaptive_avg_pool2d", [desc], self=x, output_size=kernel))
    attrs = _pool_window(n, x, kernel)
    if n.attr("pooling_type") == "max":
        return _last(n, n.op("MaxPool", x, **attrs))
    if n.attr("ceil_mode") and _counted(n):
        raise Unsupported("a mean over windows in ceil_mode that counts borders")
    return _last(n, n.op("AvgPool", x, **attrs, **_counted(n)))


@paddle("pool2d_grad", "pool3d_grad")
def _pool_grad(n: PaddleNode) -> Any:
    x, g = _first(n, n.inputs[0]), _first(n, n.inputs[2])
    kernel = n.ints(3) if len(n.inputs) > 3 else [int(k) for k in n.attr("kernel_size")]
    attrs = _pool_window(n, x, kernel)
    if n.attr("pooling_type") == "max":
        return _last(n, n.op("MaxPoolGrad", g, x, **attrs))
    if _counted(n):
        raise Unsupported("the gradient of a mean over windows that counts borders")
    return _last(n, n.op("AvgPoolGrad", g, shape=list(desc_of(x).shape), **attrs))


@paddle("max_pool2d_with_index")
def _max_pool_with_index(n: PaddleNode) -> Any:
    x = n.inputs[0]
    attrs = _pool_window(n, x, [int(k) for k in n.attr("kernel_size")])
    _, places = n.op("MaxPoolIndices", x, **attrs)
    return [n.op("MaxPool", x, **attrs), n.cast(places, n.operation.results[1].dtype)]


_MODES = {
    "nearest_interp": "nearest",
    "bilinear_interp": "linear",
    "linear_interp": "linear",
    "bicubic_interp": "cubic",
    "trilinear_interp": "linear",
}


@paddle(*_MODES)
def _interpolate(n: PaddleNode) -> Any:
    if n.inputs[1] is not None or (len(n.inputs) > 3 and n.inputs[3] is not None):
        known = n.maybe_const(1)
        if known is None:
            raise Unsupported("sizes that are computed at run time", "give scale_factor or constant sizes")
    x = _first(n, n.inputs[0])
    space = desc_of(x).shape[2:]
    if n.maybe_const(1) is not None:
        sizes = n.ints(1)
    else:
        sizes = [int(v) for v in (n.attr("out_d"), n.attr("out_h"), n.attr("out_w"))][3 - len(space) :]
    scale = [float(v) for v in n.attr("scale") or []]
    if any(v <= 0 for v in sizes):
        scale = scale * len(space) if len(scale) == 1 else scale
        sizes = [int(d * s) for d, s in zip(space, scale, strict=True)]
    axes = list(range(2, 2 + len(space)))
    return _last(n, n.op("Resize", x, axes=axes, sizes=sizes, **_interpolation(n, n.type)))


def _interpolation(n: PaddleNode, type_: str) -> dict[str, Any]:
    """The attributes of Resize. `align_mode` 1 takes corners of pixels for their places, 0 their centres."""
    align, mode = bool(n.attr("align_corners")), _MODES[type_]
    if mode == "nearest":
        if align:
            raise Unsupported("nearest_interp with align_corners")
        return {"mode": mode, "coordinates": "asymmetric", "rounding": "floor"}
    centred = n.attr("align_mode", 1) == 0 or mode == "cubic"
    coordinates = "align_corners" if align else "half_pixel" if centred else "asymmetric"
    return {"mode": mode, "coordinates": coordinates}


@paddle(*(f"{name}_grad" for name in _MODES))
def _interpolate_grad(n: PaddleNode) -> Any:
    x, g = _first(n, n.inputs[0]), _first(n, n.inputs[-1])
    sizes = dict(enumerate(desc_of(x).shape[2:], 2))
    resize = _interpolation(n, n.type.removesuffix("_grad"))
    wide = n.cast(g, "float32") if desc_of(g).dtype in ("float16", "bfloat16") else g
    made = resize_gradient(n.builder, wide, sizes, **resize)
    return _last(n, n.cast(made, desc_of(x).dtype))


# -- normalisations ----------------------------------------------------------------------------------------


@paddle("batch_norm")
def _batch_norm(n: PaddleNode) -> Any:
    """y, running mean and variance, mean and inverse deviation of the batch, and a reserve that is never read."""
    x, mean, variance, scale, bias = n.inputs[:5]
    desc, axis = n.like(), n.like().rank - 1 if _is_last(n) else 1
    epsilon, channels = float(n.attr("epsilon")), desc.shape[axis]
    scale = scale if scale is not None else n.filled(1, desc_of(mean))
    bias = bias if bias is not None else n.filled(0, desc_of(mean))
    if (n.attr("is_test") and not n.attr("trainable_statistics")) or n.attr("use_global_stats"):
        y = n.op("BatchNorm", x, scale, bias, mean, variance, epsilon=epsilon, channel_axis=axis)
        return [y, mean, variance, mean, variance, None]
    axes = [i for i in range(desc.rank) if i != axis]
    shape = [channels if i == axis else 1 for i in range(desc.rank)]
    wide = n.wide(x)
    found_mean = n.op("ReduceMean", wide, axes=axes, keepdims=False)
    centred = n.op("Sub", wide, n.shaped(found_mean, shape))
    found_variance = n.op("ReduceMean", n.op("Square", centred), axes=axes, keepdims=False)
    inverse = n.op("Rsqrt", n.op("Add", found_variance, n.constant(epsilon, desc_of(wide).dtype)))
    factor = n.op("Mul", n.shaped(scale, shape), n.shaped(inverse, shape))
    y = n.op("Add", n.op("Mul", centred, factor), n.shaped(bias, shape))
    keep = float(n.attr("momentum"))
    dtype = desc_of(mean).dtype
    running = [
        n.op("Add", n.op("Mul", old, n.constant(keep, dtype)), n.op("Mul", new, n.constant(1 - keep, dtype)))
        for old, new in ((mean, found_mean), (variance, found_variance))
    ]
    return [n.cast(y, desc.dtype), *running, found_mean, inverse, None]


@paddle("batch_norm_grad")
def _batch_norm_grad(n: PaddleNode) -> Any:
    x, scale, _, mean, variance, saved_mean, saved_inverse, _, g = n.inputs[:9]
    training = not (n.attr("is_test") or n.attr("use_global_stats"))
    first, gradient = _first(n, x), _first(n, g)
    descs = [desc_of(first), desc_of(scale), desc_of(scale)]
    found = n.aten(
        "native_batch_norm_backward",
        descs,
        grad_out=gradient,
        input=first,
        weight=scale,
        running_mean=mean,
        running_var=variance,
        save_mean=saved_mean,
        save_invstd=saved_inverse,
        train=training,
        eps=float(n.attr("epsilon")),
        output_mask=[n.is_wanted(i) for i in range(3)],
    )
    return [None if found[0] is None else _last(n, found[0]), *found[1:]]


@paddle("layer_norm")
def _layer_norm(n: PaddleNode) -> Any:
    """y, and the mean and the variance of each row."""
    x, scale, bias = n.inputs[:3]
    desc, first = n.like(), int(n.attr("begin_norm_axis"))
    axes, inner = list(range(first, desc.rank)), list(desc.shape[first:])
    epsilon = float(n.attr("epsilon"))
    wide = n.wide(x)
    scale = None if scale is None else n.cast(n.shaped(scale, inner), desc_of(wide).dtype)
    bias = None if bias is None else n.cast(n.shaped(bias, inner), desc_of(wide).dtype)
    if scale is not None and bias is not None:
        y = n.op("LayerNorm", wide, scale, bias, axes=axes, epsilon=epsilon)
    else:
        y = n.op("LayerNorm", wide, axes=axes, epsilon=epsilon)
        y = y if scale is None else n.op("Mul", y, scale)
        y = y if bias is None else n.op("Add", y, bias)
    mean = n.op("ReduceMean", wide, axes=axes, keepdims=True)
    variance = n.op("ReduceMean", n.op("Square", n.op("Sub", wide, mean)), axes=axes, keepdims=True)
    rows = [_rows_like(n, i, first) for i in (1, 2)]
    return [n.cast(y, desc.dtype), n.shaped(mean, rows[0]), n.shaped(variance, rows[1])]


def _rows_like(n: PaddleNode, result: int, first: int) -> list[int]:
    """The shape of a row's statistics: the axes before the normalised ones, flat in some versions."""
    shape, lead = n.operation.results[result].shape, list(n.like().shape[:first])
    return lead if len(shape) == first else [math.prod(lead)]


@paddle("layer_norm_grad")
def _layer_norm_grad(n: PaddleNode) -> Any:
    x, scale, bias, mean, variance, g = n.inputs[:6]
    desc, first = n.like(), int(n.attr("begin_norm_axis"))
    inner = desc.shape[first:]
    kept = [*desc.shape[:first], *(1 for _ in inner)]
    wide = desc_of(n.wide(x)).dtype
    inverse = n.op("Rsqrt", n.op("Add", n.shaped(variance, kept), n.constant(float(n.attr("epsilon")), wide)))
    row = TensorDesc(tuple(inner), desc.dtype)
    wanted = [n.is_wanted(0), n.is_wanted(1), n.is_wanted(2)]
    found = n.aten(
        "native_layer_norm_backward",
        [desc, row if scale is not None else None, row if bias is not None else None],
        grad_out=g,
        input=x,
        normalized_shape=list(inner),
        mean=n.shaped(mean, kept),
        rstd=inverse,
        weight=None if scale is None else n.cast(n.shaped(scale, inner), desc.dtype),
        bias=bias,
        output_mask=[wanted[0], wanted[1] and scale is not None, wanted[2] and bias is not None],
    )
    flat = [
        None if v is None or p is None else n.cast(n.shaped(v, desc_of(p).shape), desc_of(p).dtype)
        for v, p in zip(found[1:], (scale, bias), strict=True)
    ]
    return [found[0], *flat]


@paddle("group_norm")
def _group_norm(n: PaddleNode) -> Any:
    """y, and the mean and the variance of each group."""
    x, scale, bias = _first(n, n.inputs[0]), *n.inputs[1:3]
    shape, groups = desc_of(x).shape, int(n.attr("groups"))
    wide = n.wide(x)
    grouped = n.shaped(wide, [shape[0], groups, math.prod(shape[1:]) // groups])
    y, mean, variance = _standardised(n, grouped, [2], float(n.attr("epsilon")))
    y = _affine(n, n.shaped(y, shape), scale, bias)
    rows = [shape[0], groups]
    return [_last(n, n.cast(y, n.like().dtype)), n.shaped(mean, rows), n.shaped(variance, rows)]


def _standardised(n: PaddleNode, x: Any, axes: list[int], epsilon: float) -> tuple[Any, Any, Any]:
    """Mean 0 and variance 1 along axes; the mean and the variance that were there."""
    mean = n.op("ReduceMean", x, axes=axes, keepdims=True)
    centred = n.op("Sub", x, mean)
    variance = n.op("ReduceMean", n.op("Square", centred), axes=axes, keepdims=True)
    inverse = n.op("Rsqrt", n.op("Add", variance, n.constant(epsilon, desc_of(x).dtype)))
    return n.op("Mul", centred, inverse), mean, variance


def _affine(n: PaddleNode, y: Any, scale: Any, bias: Any) -> Any:
    """Scaled and shifted a channel, channels first."""
    desc = desc_of(y)
    shape = [1, desc.shape[1], *(1 for _ in desc.shape[2:])]
    for type_, factor in (("Mul", scale), ("Add", bias)):
        if factor is not None:
            y = n.op(type_, y, n.cast(n.shaped(factor, shape), desc.dtype))
    return y


@paddle("group_norm_grad")
def _group_norm_grad(n: PaddleNode) -> Any:
    """By the operands of y = standardised(x) * scale + bias, group by group."""
    x, scale, _, _, mean, variance, g = n.inputs[:7]
    first, gradient = n.wide(_first(n, x)), n.wide(_first(n, g))
    desc, groups = desc_of(first), int(n.attr("groups"))
    grouped = [desc.shape[0], groups, desc.size // (desc.shape[0] * groups)]
    kept = [desc.shape[0], groups, 1]
    inverse = n.op(
        "Rsqrt", n.op("Add", n.shaped(variance, kept), n.constant(float(n.attr("epsilon")), desc.dtype))
    )
    centred = n.op("Mul", n.op("Sub", n.shaped(first, grouped), n.shaped(mean, kept)), inverse)
    scaled = n.shaped(_affine(n, gradient, scale, None), grouped)
    inner = n.op("ReduceMean", scaled, axes=[2], keepdims=True)
    along = n.op("ReduceMean", n.op("Mul", scaled, centred), axes=[2], keepdims=True)
    by_x = n.op("Mul", n.op("Sub", n.op("Sub", scaled, inner), n.op("Mul", centred, along)), inverse)
    axes = [0, *range(2, desc.rank)]
    product = n.op("Mul", gradient, n.shaped(centred, desc.shape))
    by_scale = n.op("ReduceSum", product, axes=axes, keepdims=False) if n.is_wanted(1) else None
    by_bias = n.op("ReduceSum", gradient, axes=axes, keepdims=False) if n.is_wanted(2) else None
    return [_last(n, n.cast(n.shaped(by_x, desc.shape), n.like().dtype)), by_scale, by_bias]


@paddle("instance_norm")
def _instance_norm(n: PaddleNode) -> Any:
    x, scale, bias = n.inputs[:3]
    desc = n.like()
    wide = n.wide(x)
    y, mean, variance = _standardised(n, wide, list(range(2, desc.rank)), float(n.attr("epsilon")))
    inverse = n.op("Rsqrt", n.op("Add", variance, n.constant(float(n.attr("epsilon")), desc_of(wide).dtype)))
    rows = [desc.shape[0] * desc.shape[1]]
    y = n.cast(_affine(n, y, scale, bias), desc.dtype)
    return [y, n.shaped(mean, rows), n.shaped(inverse, rows)]


@paddle("softmax", "log_softmax")
def _softmax(n: PaddleNode) -> Any:
    type_ = "Softmax" if n.type == "softmax" else "LogSoftmax"
    return n.op(type_, n.inputs[0], axes=[axis_of(n.attr("axis"), n.like().rank)])


@paddle("softmax_grad", "log_softmax_grad")
def _softmax_grad(n: PaddleNode) -> Any:
    out, g = n.inputs[:2]
    axis = axis_of(n.attr("axis"), n.like().rank)
    name = f"_{n.type.removesuffix('_grad')}_backward_data"
    return n.same(name, grad_output=g, output=out, dim=axis, input_dtype=n.like().dtype)


# -- losses ------------------------------------------------------------------------------------------------


@paddle("cross_entropy_with_softmax")
def _cross_entropy(n: PaddleNode) -> Any:
    """The softmax, and -log of the probability of the label (0 where the label is to be ignored)."""
    x, label = n.inputs[:2]
    axis, dtype = axis_of(n.attr("axis"), n.like().rank), n.like().dtype
    if not n.attr("use_softmax", True):
        raise Unsupported("cross entropy of probabilities")
    wide = n.wide(x)
    logs = n.op("LogSoftmax", wide, axes=[axis])
    probabilities = n.cast(n.op("Softmax", wide, axes=[axis]), dtype)
    if n.attr("soft_label"):
        terms = n.op("Mul", logs, n.cast(label, desc_of(wide).dtype))
        return [
            probabilities,
            n.cast(n.op("Neg", n.op("ReduceSum", terms, axes=[axis], keepdims=True)), dtype),
        ]
    ignored, places, _ = _labels(n, label, axis)
    picked = n.op("Neg", n.op("GatherElements", logs, places, axis=axis))
    return [
        probabilities,
        n.cast(n.op("Select", ignored, n.constant(0, desc_of(picked).dtype), picked), dtype),
    ]


def _labels(n: PaddleNode, label: Any, axis: int) -> tuple[Any, Any, list[int]]:
    """Labels with the class axis of size 1: which are to be ignored, and the rest with 0 in their place."""
    shape = [1 if i == axis else d for i, d in enumerate(n.like().shape)]
    lifted = n.shaped(label, shape)
    dtype = desc_of(lifted).dtype
    ignored = n.op("Equal", lifted, n.constant(n.attr("ignore_index", -100), dtype))
    return ignored, n.op("Select", ignored, n.constant(0, dtype), lifted), shape


@paddle("cross_entropy_with_softmax_grad")
def _cross_entropy_grad(n: PaddleNode) -> Any:
    label, softmax, g = n.inputs[:3]
    desc = desc_of(softmax)
    axis = axis_of(n.attr("axis"), desc.rank)
    if not n.attr("use_softmax", True):
        raise Unsupported("cross entropy of probabilities")
    if n.attr("soft_label"):
        total = n.op("ReduceSum", label, axes=[axis], keepdims=True)
        return n.op("Mul", g, n.op("Sub", n.op("Mul", softmax, total), label))
    shape = [1 if i == axis else d for i, d in enumerate(desc.shape)]
    lifted = n.shaped(label, shape)
    dtype = desc_of(lifted).dtype
    ignored = n.op("Equal", lifted, n.constant(n.attr("ignore_index", -100), dtype))
    hit = n.cast(n.op("Equal", lifted, _classes(n, desc, axis, dtype)), desc.dtype)
    by_x = n.op("Mul", g, n.op("Sub", softmax, hit))
    return n.op("Select", ignored, n.constant(0, desc.dtype), by_x)


def _classes(n: PaddleNode, desc: TensorDesc, axis: int, dtype: str) -> Any:
    """The numbers of the classes along an axis."""
    count = desc.shape[axis]
    return n.constant(np.arange(count).reshape([count if i == axis else 1 for i in range(desc.rank)]), dtype)


@paddle("bce_loss")
def _bce_loss(n: PaddleNode) -> Any:
    """Logarithms are not below -100."""
    x, label = n.inputs[:2]
    one, low = (n.constant(v, n.like().dtype) for v in (1, -100))
    first = n.op("Maximum", n.op("Log", x), low)
    second = n.op("Maximum", n.op("Log", n.op("Sub", one, x)), low)
    return n.op("Neg", n.op("Add", n.op("Mul", label, first), n.op("Mul", n.op("Sub", one, label), second)))


@paddle("bce_loss_grad")
def _bce_loss_grad(n: PaddleNode) -> Any:
    x, label, g = n.inputs[:3]
    one = n.constant(1, n.like().dtype)
    below = n.op("Maximum", n.op("Mul", n.op("Sub", one, x), x), n.constant(1e-12, n.like().dtype))
    return n.op("Mul", g, n.op("Div", n.op("Sub", x, label), below))


@paddle("sigmoid_cross_entropy_with_logits")
def _sigmoid_cross_entropy(n: PaddleNode) -> Any:
    x, label, weight = n.inputs[0], n.inputs[1], n.input(2)
    if n.attr("normalize") or weight is not None:
        raise Unsupported("sigmoid_cross_entropy_with_logits with weights")
    dtype = n.like().dtype
    tail = n.op("Log1p", n.op("Exp", n.op("Neg", n.op("Abs", x))))
    loss = n.op("Add", n.op("Sub", n.op("Relu", x), n.op("Mul", x, label)), tail)
    ignored = n.op("Equal", label, n.constant(n.attr("ignore_index", -100), dtype))
    return n.op("Select", ignored, n.constant(0, dtype), loss)


@paddle("sigmoid_cross_entropy_with_logits_grad")
def _sigmoid_cross_entropy_grad(n: PaddleNode) -> Any:
    x, label, weight, g = n.inputs[:4]
    if n.attr("normalize") or weight is not None:
        raise Unsupported("sigmoid_cross_entropy_with_logits with weights")
    dtype = n.like().dtype
    by_x = n.op("Mul", g, n.op("Sub", n.op("Sigmoid", x), label))
    ignored = n.op("Equal", label, n.constant(n.attr("ignore_index", -100), dtype))
    return n.op("Select", ignored, n.constant(0, dtype), by_x)


@paddle("huber_loss")
def _huber_loss(n: PaddleNode) -> Any:
    """The loss, and the residual."""
    x, label = n.inputs[:2]
    dtype, delta = n.like().dtype, n.attr("delta")
    residual = n.op("Sub", label, x)
    size = n.op("Abs", residual)
    near = n.op("Mul", n.op("Square", residual), n.constant(0.5, dtype))
    far = n.op("Mul", n.op("Sub", size, n.constant(0.5 * delta, dtype)), n.constant(delta, dtype))
    return [n.op("Select", n.op("LessEqual", size, n.constant(delta, dtype)), near, far), residual]


@paddle("huber_loss_grad")
def _huber_loss_grad(n: PaddleNode) -> Any:
    residual, g = n.inputs[:2]
    delta = float(n.attr("delta"))
    slope = n.op("Clip", residual, min=-delta, max=delta)
    by_label = n.op("Mul", g, slope)
    return [n.op("Neg", by_label) if n.is_wanted(0) else None, by_label if n.is_wanted(1) else None]


@paddle("kldiv_loss")
def _kldiv_loss(n: PaddleNode) -> Any:
    x, label = n.inputs[:2]
    if n.attr("log_target"):
        terms = n.op("Mul", n.op("Exp", label), n.op("Sub", label, x))
    else:
        zero = n.constant(0, n.like().dtype)
        known = n.op("Mul", label, n.op("Sub", n.op("Log", label), x))
        terms = n.op("Select", n.op("Greater", label, zero), known, zero)
    return _averaged(n, terms, str(n.attr("reduction")))


def _averaged(n: PaddleNode, terms: Any, reduction: str) -> Any:
    axes = list(range(desc_of(terms).rank))
    if reduction == "none":
        return terms
    if reduction == "mean":
        return n.op("ReduceMean", terms, axes=axes, keepdims=False)
    total = n.op("ReduceSum", terms, axes=axes, keepdims=False)
    if reduction == "batchmean":
        return n.op("Div", total, n.constant(desc_of(terms).shape[0], desc_of(terms).dtype))
    return total


@paddle("label_smooth")
def _label_smooth(n: PaddleNode) -> Any:
    label, prior = n.inputs[0], n.input(1)
    desc, epsilon = n.like(), float(n.attr("epsilon"))
    scaled = n.op("Mul", label, n.constant(1 - epsilon, desc.dtype))
    if prior is None:
        return n.op("Add", scaled, n.constant(epsilon / desc.shape[-1], desc.dtype))
    return n.op("Add", scaled, n.op("Mul", prior, n.constant(epsilon, desc.dtype)))


@paddle("accuracy")
def _accuracy(n: PaddleNode) -> Any:
    """The share of rows whose label is among the places given, and both counts."""
    _, places, label = n.inputs[:3]
    hits = n.op(
        "ReduceAny", n.op("Equal", places, n.cast(label, desc_of(places).dtype)), axes=[1], keepdims=False
    )
    correct = n.op("ReduceSum", n.cast(hits, "float32"), axes=[0], keepdims=False)
    rows = desc_of(label).shape[0]
    found = [n.op("Div", correct, n.constant(rows, "float32")), correct, n.constant(rows, "float32")]
    return [n.cast(n.shaped(v, p.shape), p.dtype) for v, p in zip(found, n.operation.results, strict=True)]


# -- random numbers, which PaddlePaddle draws itself -------------------------------------------------------


@paddle("dropout")
def _dropout(n: PaddleNode) -> Any:
    """x * mask; the mask is drawn by PaddlePaddle before the run."""
    x, desc = n.inputs[0], n.like()
    probability, upscale = float(n.number(2)), n.attr("mode") == "upscale_in_train"
    keep = n.constant(1 - probability, desc.dtype)
    if n.attr("is_test"):
        return [n.op("Identity", x) if upscale else n.op("Mul", x, keep), None]
    mask = n.parser.draw(n, TensorDesc(desc.shape, "uint8"))
    kept = n.op("NotEqual", mask, n.constant(0, "uint8"))
    scaled = n.op("Div", x, keep) if upscale else x
    return [n.op("Select", kept, scaled, n.constant(0, desc.dtype)), mask]


@paddle("dropout_grad")
def _dropout_grad(n: PaddleNode) -> Any:
    mask, g = n.inputs[:2]
    dtype, probability = n.desc(1).dtype, float(n.number(2))
    if n.attr("is_test"):
        raise Unsupported("the gradient of dropout in evaluation")
    scaled = g
    if n.attr("mode") == "upscale_in_train":
        scaled = n.op("Div", g, n.constant(1 - probability, dtype))
    kept = n.op("NotEqual", mask, n.constant(0, desc_of(mask).dtype))
    return n.op("Select", kept, scaled, n.constant(0, dtype))


@paddle("uniform", "gaussian", "randint", "randperm")
def _random(n: PaddleNode) -> Any:
    if any(v is not None and n.maybe_const(i) is None for i, v in enumerate(n.inputs)):
        raise Unsupported("random numbers whose parameters are computed")
    return n.parser.draw(n, n.out())
