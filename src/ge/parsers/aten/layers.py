"""ATen: products, convolutions, pools, normalisations, attention and branches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.base import NodeView
from ge.ops.builder import GraphBuilder
from ge.ops.flow.control import branch
from ge.ops.nn.packed import pack_levels, packed_product, unpack_levels
from ge.ops.nn.spatial import Window, array_windows
from ge.ops.plugins import Unsupported
from ge.parsers.aten.parser import AtenNode, aten

# -- products ----------------------------------------------------------------------------------------------


def _product(n: AtenNode, a: Any, b: Any, bias: Any = None) -> Any:
    if desc_of(a).dtype == "bool":
        raise Unsupported("a product of bools")
    if not desc_of(a).shape[-1]:
        raise Unsupported("a product over nothing")
    return n.op("MatMul", a, b, bias)


@aten("mm.default", "bmm.default")
def _mm(n: AtenNode) -> Any:
    return _product(n, n.arg("self"), n.arg("mat2"))


@aten("_weight_int8pack_mm")
def _weight_int8pack_mm(n: AtenNode) -> Any:
    """One factor for each row of the weights."""
    x, scale = n.arg("self"), n.arg("scales")
    scale = n.shaped(scale, [desc_of(scale).size, 1])
    return packed_product(n.builder, x, n.arg("mat2"), scale, bits=8, group=desc_of(x).shape[-1])


@aten("npu.weight_quant_matmul")
def _weight_quant_matmul(n: AtenNode) -> Any:
    """Weights (depth, columns) of int8, or of int32 that hold eight of 4 bits; weight = (level + offset) * scale."""
    x, weight, group = n.arg("x"), n.arg("weight"), int(n.arg("group"))
    depth, columns = desc_of(x).shape[-1], n.out().shape[-1]
    bits = 4 if desc_of(weight).dtype == "int32" else 8
    if bits == 4:
        weight = n.builder.constant(_rows_of_4_bits(weight, depth))
    else:
        weight = n.turned(weight, [1, 0])
    groups = -(-depth // group) if group else 1

    def by_column(factor: Any) -> Any:
        size = desc_of(factor).size
        shape = [size // columns, columns] if size >= columns else [1, 1]
        return n.turned(n.spread(n.shaped(factor, shape), [groups, columns]), [1, 0])

    offset = n.arg("offset")
    zeros = None if offset is None else by_column(n.op("Neg", offset))
    given = x, weight, by_column(n.arg("scale")), zeros, n.arg("bias")
    return packed_product(n.builder, *given, bits=bits, group=group or depth, signed=True)


def _rows_of_4_bits(weight: Any, depth: int) -> np.ndarray:
    """Weights packed along the depth, two in a byte, a row for each column."""
    packed = constant_of(weight)
    if packed is None:
        raise Unsupported("weights of 4 bits that are no parameters", "compile the model for inference")
    if packed.shape[0] * 8 == depth:
        return np.ascontiguousarray(packed.T).view(np.uint8)
    levels = unpack_levels(np.ascontiguousarray(packed).view(np.uint8), 4)
    return pack_levels(np.ascontiguousarray(levels.T), 4)


@aten("mv")
def _mv(n: AtenNode) -> Any:
    vector = n.arg("vec")
    y = _product(n, n.arg("self"), n.shaped(vector, [desc_of(vector).size, 1]))
    return n.shaped(y, n.out().shape)


@aten("dot", "vdot")
def _dot(n: AtenNode) -> Any:
    x, y = n.arg("self"), n.arg("tensor", n.arg("other"))
    size = desc_of(x).size
    return n.shaped(_product(n, n.shaped(x, [1, size]), n.shaped(y, [size, 1])), [])


@aten("addmm.default", "baddbmm.default")
def _addmm(n: AtenNode) -> Any:
    """beta * self + alpha * (a @ b); a vector is the product's bias."""
    a = n.arg("mat1", n.arg("batch1"))
    b = n.arg("mat2", n.arg("batch2"))
    alpha, beta = n.arg("alpha", 1), n.arg("beta", 1)
    extra, desc = n.arg("self"), desc_of(n.arg("self"))
    columns = desc_of(b).shape[-1]
    if (
        alpha == beta == 1
        and math.prod(desc.shape) == columns
        and (not desc.rank or desc.shape[-1] == columns)
    ):
        return _product(n, a, b, n.shaped(extra, [columns]))
    y = _product(n, a, b)
    y = y if alpha == 1 else n.op("Mul", y, n.cast(alpha, n.out().dtype))
    if beta == 0:
        return y
    extra = extra if beta == 1 else n.op("Mul", extra, n.cast(beta, n.out().dtype))
    return n.op("Add", y, extra)


@aten("linear")
def _linear(n: AtenNode) -> Any:
    x, w = n.arg("input"), n.arg("weight")
    if desc_of(w).rank != 2 or not desc_of(x).rank:
        raise Unsupported("linear over vectors")
    lifted = n.shaped(x, [1, *desc_of(x).shape]) if desc_of(x).rank == 1 else x
    y = n.op("MatMul", lifted, w, n.arg("bias"), transpose_b=True)
    return n.shaped(y, n.out().shape)


# -- convolutions ------------------------------------------------------------------------------------------


def _each(value: Any, count: int) -> list[int]:
    found = [int(v) for v in value]
    return found * count if len(found) == 1 else found


FEW_CHANNELS = 4  # of a picture: vectors of channels would be mostly empty


def _patches(n: AtenNode, x: Any, w: TensorDesc, pads: list[int], attrs: dict[str, Any]) -> Any | None:
    """The windows of an image as rows if they do not overlap: the convolution is then a matrix product."""
    batch, channels, *sizes = desc_of(x).shape
    kernel = list(w.shape[2:])
    is_tiled = attrs["strides"] == kernel and not any(s % k for s, k in zip(sizes, kernel, strict=True))
    plain = attrs["groups"] == 1 and set(attrs["dilations"]) == {1} and not any(pads)
    if not (is_tiled and plain) or channels > FEW_CHANNELS or math.prod(kernel) < 16:
        return None
    counts = [s // k for s, k in zip(sizes, kernel, strict=True)]
    pairs = [v for pair in zip(counts, kernel, strict=True) for v in pair]
    places, within = range(2, 2 + len(pairs), 2), range(3, 2 + len(pairs), 2)
    cut = n.op("Transpose", n.shaped(x, [batch, channels, *pairs]), perm=[0, *places, 1, *within])
    return n.shaped(cut, [batch * math.prod(counts), channels * math.prod(kernel)])


@aten("convolution", "_convolution")
def _convolution(n: AtenNode) -> Any:
    x, w, bias = n.arg("input"), n.arg("weight"), n.arg("bias")
    rank = desc_of(x).rank
    if rank != desc_of(w).rank or not desc_of(x).size or not desc_of(w).size:
        raise Unsupported(f"a convolution of {desc_of(x)} with {desc_of(w)}")
    if desc_of(x).dtype not in FLOATS:
        raise Unsupported("a convolution of whole numbers")
    space = rank - 2
    strides, pads, holes = (_each(n.arg(k), space) for k in ("stride", "padding", "dilation"))
    attrs: dict[str, Any] = {"strides": strides, "dilations": holes, "groups": int(n.arg("groups", 1))}
    if not n.arg("transposed"):
        rows = _patches(n, x, desc_of(w), pads, attrs)
        if rows is not None:
            return _of_patches(n, n.op("MatMul", rows, _as_rows(n, w), bias, transpose_b=True))
        return n.op("Conv", x, w, bias, pads_begin=pads, pads_end=pads, **attrs)
    return n.op("ConvTranspose", x, w, bias, pads_begin=pads, output_shape=list(n.out().shape[2:]), **attrs)


def _as_rows(n: AtenNode, w: Any) -> Any:
    first, *rest = desc_of(w).shape
    return n.shaped(w, [first, math.prod(rest)])


def _of_patches(n: AtenNode, y: Any) -> Any:
    """A convolution's result from its rows."""
    batch, channels, *space = n.out().shape
    rank = 2 + len(space)
    return n.op("Transpose", n.shaped(y, [batch, *space, channels]), perm=[0, rank - 1, *range(1, rank - 1)])


@aten("convolution_backward")
def _convolution_backward(n: AtenNode) -> Any:
    """By the input a transposed convolution of the gradient, by the weight a product over all windows."""
    g, x, w = n.arg("grad_output"), n.arg("input"), n.arg("weight")
    space = desc_of(x).rank - 2
    if desc_of(x).rank != desc_of(w).rank or not desc_of(g).size:
        raise Unsupported(f"a convolution of {desc_of(x)}")
    strides, pads, holes = (_each(n.arg(k), space) for k in ("stride", "padding", "dilation"))
    attrs: dict[str, Any] = {"strides": strides, "dilations": holes, "groups": int(n.arg("groups", 1))}
    mask = [bool(m) for m in n.arg("output_mask")]
    transposed = bool(n.arg("transposed"))
    results: list[Any] = [None, None, None]
    if mask[0]:
        results[0] = _by_input(n, g, w, pads, attrs, transposed, desc_of(x))
    if mask[1]:
        # A transposed convolution exchanges what is convolved and what it gives.
        data, gradient = (g, x) if transposed else (x, g)
        rows = None if transposed else _patches(n, data, desc_of(w), pads, attrs)
        if rows is not None:
            results[1] = _by_weight_of_patches(n, rows, gradient, w)
        else:
            ends = _end_borders(desc_of(data), desc_of(gradient), desc_of(w), strides, pads, holes)
            results[1] = _by_weight(n, data, gradient, w, pads, ends, attrs)
    if mask[2]:
        axes = [0, *range(2, desc_of(g).rank)]
        results[2] = n.op("ReduceSum", g, axes=axes, keepdims=False)
    return results


def _by_input(
    n: AtenNode, g: Any, w: Any, pads: list[int], attrs: dict[str, Any], transposed: bool, x: TensorDesc
) -> Any:
    if not transposed:
        return n.op("ConvTranspose", g, w, pads_begin=pads, output_shape=list(x.shape[2:]), **attrs)
    ends = _end_borders(desc_of(g), x, desc_of(w), attrs["strides"], pads, attrs["dilations"])
    return n.op("Conv", g, w, pads_begin=pads, pads_end=ends, **attrs)


def _by_weight(
    n: AtenNode, data: Any, gradient: Any, w: Any, pads: list[int], ends: list[int], attrs: dict[str, Any]
) -> Any:
    """Rows at the end that would make room for further windows are cut off."""
    kernel = list(desc_of(w).shape[2:])
    window = Window(
        tuple(kernel), tuple(attrs["strides"]), tuple(attrs["dilations"]), tuple(pads), tuple(ends)
    )
    space = desc_of(gradient).shape[2:]
    rows = zip(space, window.strides, window.extents, pads, strict=True)
    used = [(out - 1) * stride + extent - low for out, stride, extent, low in rows]
    sizes = list(desc_of(data).shape)
    kept = [*sizes[:2], *(min(u, s) for u, s in zip(used, sizes[2:], strict=True))]
    if window.outputs(sizes[2:]) != tuple(space):
        data = n.op("Slice", data, starts=[0] * len(kept), ends=kept)
    return n.op("ConvGradWeight", data, gradient, kernel=kernel, pads_begin=pads, pads_end=ends, **attrs)


def _by_weight_of_patches(n: AtenNode, rows: Any, gradient: Any, w: Any) -> Any:
    rank, channels = desc_of(gradient).rank, desc_of(w).shape[0]
    last = n.op("Transpose", gradient, perm=[0, *range(2, rank), 1])
    product = n.op("MatMul", n.shaped(last, [desc_of(rows).shape[0], channels]), rows, transpose_a=True)
    return n.shaped(product, list(desc_of(w).shape))


def _end_borders(
    data: TensorDesc,
    result: TensorDesc,
    weight: TensorDesc,
    strides: list[int],
    pads: list[int],
    holes: list[int],
) -> list[int]:
    """The borders at the end with which a convolution of `data` has the sizes of `result`."""
    rows = zip(data.shape[2:], result.shape[2:], weight.shape[2:], strides, pads, holes, strict=True)
    ends = [(out - 1) * s + (k - 1) * h + 1 - size - low for size, out, k, s, low, h in rows]
    return [max(e, 0) for e in ends]


# -- pools -------------------------------------------------------------------------------------------------


def _window(n: AtenNode, x: TensorDesc) -> tuple[Window, Window]:
    """The window as it is written, and with the border that ceil_mode adds."""
    kernel = n.arg("kernel_size")
    space = {"1": 1, "2": 2, "3": 3}[next(c for c in n.type if c.isdigit())]
    kernel = _each(kernel, space)
    strides = _each(n.arg("stride") or kernel, space)
    pads = _each(n.arg("padding", [0]), space)
    holes = _each(n.arg("dilation", [1]), space)
    window = Window(tuple(kernel), tuple(strides), tuple(holes), tuple(pads), tuple(pads))
    return window, window.ceiled(x.shape[-space:]) if n.arg("ceil_mode") else window


def _attrs_of(window: Window) -> dict[str, Any]:
    names = ("kernel", "strides", "dilations", "pads_begin", "pads_end")
    return {name: list(getattr(window, name)) for name in names}


def _batched(n: AtenNode, x: Any, space: int) -> Any:
    """With a batch axis in front."""
    shape = desc_of(x).shape
    return x if len(shape) == space + 2 else n.shaped(x, [1, *shape])


@aten("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(n: AtenNode) -> Any:
    x = n.arg("self")
    if desc_of(x).dtype not in FLOATS:
        raise Unsupported("the maximum of whole numbers in windows")
    _, window = _window(n, desc_of(x))
    x = _batched(n, x, len(window.kernel))
    # The primitive; positions are dead where no gradient reads them.
    y = n.op("MaxPool", x, keeps_nan=True, **_attrs_of(window))
    _, places = n.op("MaxPoolIndices", x, **_attrs_of(window))
    return [n.shaped(y, n.out(0).shape), n.shaped(places, n.out(1).shape)]


@aten("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool_only(n: AtenNode) -> Any:
    x = n.arg("self")
    _, window = _window(n, desc_of(x))
    x = _batched(n, x, len(window.kernel))
    return n.shaped(n.op("MaxPool", x, keeps_nan=True, **_attrs_of(window)), n.out().shape)


@aten("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def _max_pool_backward(n: AtenNode) -> Any:
    """Each gradient goes to where its window's maximum was."""
    g, places, out = n.arg("grad_output"), n.arg("indices"), n.out()
    space = 3 if "3d" in n.type else 2
    planes, area = math.prod(out.shape[:-space]), math.prod(out.shape[-space:])
    taken = math.prod(desc_of(g).shape[-space:])
    wide = n.wide(n.shaped(g, [planes, taken]))
    zeros = n.filled(0, TensorDesc((planes, area), desc_of(wide).dtype))
    spread = n.op("ScatterElements", zeros, n.shaped(places, [planes, taken]), wide, axis=1, reduction="add")
    return n.shaped(n.back(spread), out.shape)


@aten("torchair.max_pool2d_backward")
def _max_pool_backward_of_data(n: AtenNode) -> Any:
    """Each gradient goes to where its window's first maximum is."""
    x = n.arg("self")
    _, window = _window(n, desc_of(x))
    return n.op("MaxPoolGrad", n.arg("grad_output"), x, **_attrs_of(window))


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(n: AtenNode) -> Any:
    """Where the border counts but the part that ceil_mode adds does not, the border becomes real zeros."""
    x = n.arg("self")
    if n.arg("divisor_override") is not None or desc_of(x).dtype not in FLOATS:
        raise Unsupported("an average with a divisor of its own")
    given, window = _window(n, desc_of(x))
    x = _batched(n, x, len(window.kernel))
    include = bool(n.attrs.get("count_include_pad", True))
    if include and window != given:
        x = n.op("Pad", x, low=[0, 0, *given.pads_begin], high=[0, 0, *given.pads_end])
        rest = tuple(max(a - b, 0) for a, b in zip(window.pads_end, given.pads_end, strict=True))
        window = Window(window.kernel, window.strides, window.dilations, (0,) * len(rest), rest)
        include = False
    return n.shaped(n.op("AvgPool", x, count_include_pad=include, **_attrs_of(window)), n.out().shape)


@aten("avg_pool2d_backward", "avg_pool3d_backward")
def _avg_pool_backward(n: AtenNode) -> Any:
    """Each gradient is spread evenly over its window."""
    g, x = n.arg("grad_output"), desc_of(n.arg("self"))
    if n.arg("divisor_override") is not None or n.arg("ceil_mode"):
        raise Unsupported("the gradient of an average with a divisor of its own")
    window, _ = _window(n, x)
    space = len(window.kernel)
    sizes, channels = list(x.shape[-space:]), math.prod(x.shape[:-space])
    ones = np.ones((1, 1, *sizes))
    if n.attrs.get("count_include_pad", True):
        shares: Any = np.asarray(1 / math.prod(window.kernel))
    else:
        shares = 1 / array_windows(ones, window, 0).sum(axis=tuple(range(space + 2, 2 * space + 2)))
    wide = n.wide(n.shaped(g, [1, channels, *desc_of(g).shape[-space:]]))
    dtype = numpy_dtype(desc_of(wide).dtype)
    weighted = n.op("Mul", wide, n.builder.constant(shares.astype(dtype)))
    kernel = n.builder.constant(np.ones((channels, 1, *window.kernel), dtype))
    y = n.op(
        "ConvTranspose",
        weighted,
        kernel,
        strides=list(window.strides),
        pads_begin=list(window.pads_begin),
        output_shape=sizes,
        groups=channels,
    )
    return n.shaped(n.back(y), n.out().shape)


@aten(
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
)
def _adaptive_avg_pool(n: AtenNode) -> Any:
    x = n.arg("self")
    target = [int(d) for d in n.arg("output_size")]
    space, shape = len(target), desc_of(x).shape
    sizes = shape[-space:]
    if set(target) == {1}:
        axes = list(range(len(shape) - space, len(shape)))
        return n.op("ReduceMean", x, axes=axes, keepdims=True)
    if 0 in target or 0 in shape:
        raise Unsupported("windows of nothing")
    if any(s % t for s, t in zip(sizes, target, strict=True)):
        return n.back(_averaged(n, n.wide(x), sizes, target, False))
    kernel = [s // t for s, t in zip(sizes, target, strict=True)]
    return n.shaped(n.op("AvgPool", _batched(n, x, space), kernel=kernel, strides=kernel), n.out().shape)


def _averaged(n: AtenNode, x: Any, sizes: Sequence[int], target: Sequence[int], backward: bool) -> Any:
    """Means over windows of different sizes, one axis after another, as products with constant matrices."""
    for axis, (size, count) in enumerate(zip(sizes, target, strict=True), desc_of(x).rank - len(sizes)):
        means = np.zeros((size, count), np.float32)
        for i in range(count):
            begin, end = i * size // count, -(-(i + 1) * size // count)
            means[begin:end, i] = 1 / (end - begin)
        rank = desc_of(x).rank
        swap = [*(a for a in range(rank) if a != axis), axis]
        moved = n.turned(x, swap)
        matrix = np.ascontiguousarray(means.T if backward else means).astype(numpy_dtype(desc_of(x).dtype))
        made = n.op("MatMul", moved, n.builder.constant(matrix))
        x = n.turned(made, [swap.index(a) for a in range(rank)])
    return x


@aten("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_backward(n: AtenNode) -> Any:
    """Windows of one size: each gradient repeated over its window."""
    g, x = n.wide(n.arg("grad_output")), desc_of(n.arg("self"))
    space = 3 if "3d" in n.type else 2
    target, sizes = desc_of(g).shape[-space:], x.shape[-space:]
    if not desc_of(g).size or not x.size:
        raise Unsupported("windows of nothing")
    if any(s % t for s, t in zip(sizes, target, strict=True)):
        return n.back(_averaged(n, g, sizes, target, True))
    kernel = [s // t for s, t in zip(sizes, target, strict=True)]
    share = n.op("Mul", g, 1 / math.prod(kernel))
    outer = list(x.shape[:-space])
    split = n.shaped(share, [*outer, *(v for t in target for v in (t, 1))])
    wide = n.spread(split, [*outer, *(v for t, k in zip(target, kernel, strict=True) for v in (t, k))])
    return n.back(n.shaped(wide, x.shape))


# -- normalisations ----------------------------------------------------------------------------------------


def _statistics(n: AtenNode, x: Any, axes: list[int], epsilon: float) -> tuple[Any, Any, Any]:
    """x with mean 0 and variance 1 over axes, the mean, and the inverse deviation, axes kept."""
    mean = n.op("ReduceMean", x, axes=axes, keepdims=True)
    centred = n.op("Sub", x, mean)
    variance = n.op("ReduceMean", n.op("Square", centred), axes=axes, keepdims=True)
    inverse = n.op("Rsqrt", n.op("Add", variance, epsilon))
    return n.op("Mul", centred, inverse), mean, inverse


def _affine(n: AtenNode, y: Any, scale: Any, bias: Any, shape: Sequence[int] | None = None) -> Any:
    """Scaled and shifted, the factors brought to a shape that broadcasts."""
    dtype = desc_of(y).dtype
    for type_, factor in (("Mul", scale), ("Add", bias)):
        if factor is not None:
            factor = n.cast(factor, dtype)
            y = n.op(type_, y, factor if shape is None else n.shaped(factor, shape))
    return y


@aten("native_layer_norm")
def _layer_norm(n: AtenNode) -> Any:
    x, axes = n.arg("input"), len(n.arg("normalized_shape"))
    rank = desc_of(x).rank
    over = list(range(rank - axes, rank))
    epsilon = float(n.arg("eps"))
    scale, bias = n.arg("weight"), n.arg("bias")
    if not desc_of(x).size:
        raise Unsupported("a normalisation of nothing")
    if scale is not None and bias is not None:
        y = n.op("LayerNorm", x, scale, bias, axes=over, epsilon=epsilon)
    else:
        y = n.op("LayerNorm", x, axes=over, epsilon=epsilon)
        y = n.back(_affine(n, n.wide(y), scale, bias)) if scale is not None or bias is not None else y
    _, mean, inverse = _statistics(n, n.wide(x), over, epsilon)
    return [y, n.back(n.shaped(mean, n.out(1).shape), 1), n.back(n.shaped(inverse, n.out(2).shape), 2)]


@aten("native_layer_norm_backward")
def _layer_norm_backward(n: AtenNode) -> Any:
    x, axes = n.arg("input"), len(n.arg("normalized_shape"))
    rank, scale = desc_of(x).rank, n.arg("weight")
    wanted = [bool(kept) and n.results[i] is not None for i, kept in enumerate(n.arg("output_mask"))]
    if not desc_of(x).size:
        raise Unsupported("a normalisation of nothing")
    if wanted[1] and scale is None:
        raise Unsupported("the gradient of a scale that is not given")
    if not any(wanted):
        return [None, None, None]
    over = list(range(rank - axes, rank))
    values = [n.cast(n.arg("grad_out"), desc_of(x).dtype), x, n.arg("mean"), n.arg("rstd"), scale]
    found = n.op("LayerNormGrad", *values, axes=over, wanted=[int(w) for w in wanted])
    return [n.back(v, i) if w else None for i, (v, w) in enumerate(zip(found, wanted, strict=True))]


@aten("native_group_norm")
def _group_norm(n: AtenNode) -> Any:
    x, groups, epsilon = n.arg("input"), int(n.arg("group")), float(n.arg("eps"))
    shape, channels = desc_of(x).shape, desc_of(x).shape[1]
    if not desc_of(x).size:
        raise Unsupported("a normalisation of nothing")
    grouped = n.shaped(n.wide(x), [shape[0], groups, math.prod(shape[1:]) // groups])
    flat, mean, inverse = _statistics(n, grouped, [2], epsilon)
    factor_shape = [channels] + [1] * (len(shape) - 2)
    y = _affine(n, n.shaped(flat, shape), n.arg("weight"), n.arg("bias"), factor_shape)
    return [
        n.back(y),
        n.back(n.shaped(mean, n.out(1).shape), 1),
        n.back(n.shaped(inverse, n.out(2).shape), 2),
    ]


@aten("_native_batch_norm_legit_no_training")
def _batch_norm_inference(n: AtenNode) -> Any:
    x = n.arg("input")
    mean, var = n.arg("running_mean"), n.arg("running_var")
    channels = desc_of(x).shape[1]
    dtype = desc_of(mean).dtype
    one = n.builder.constant(np.ones(channels, numpy_dtype(dtype)))
    zero = n.builder.constant(np.zeros(channels, numpy_dtype(dtype)))
    scale, bias = n.arg("weight", one), n.arg("bias", zero)
    scale, bias = n.cast(scale, dtype), n.cast(bias, dtype)
    y = _into_convolution(n, x, scale, bias, mean, var)
    if y is None:
        y = n.op("BatchNorm", x, scale, bias, mean, var, epsilon=float(n.arg("eps")), channel_axis=1)
    empty = [n.filled(0, d) if d is not None else None for d in n.results[1:]]
    return [y, *empty]


def _into_convolution(n: AtenNode, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """A normalisation by constants as part of a 16-bit convolution before it; None where that is not possible.

    Passes fold those of float32. Here sums stay in float32 until after the normalisation, which rounds once where
    the framework rounds twice; the weights are rounded anew.
    """
    node = x.producer()
    if desc_of(x).dtype not in ("bfloat16", "float16") or node is None or node.op_type != "Conv":
        return None
    weight, old = constant_of(node.inputs[1]), np.zeros((), np.float32)
    arrays = [constant_of(v) for v in (scale, bias, mean, var)]
    if weight is None or any(a is None for a in arrays):
        return None
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        given = constant_of(node.inputs[2])
        if given is None:
            return None
        old = given.astype(np.float32)
    scales, shifts, means, variances = (np.asarray(a, np.float32) for a in arrays)
    factor = scales / np.sqrt(variances + float(n.arg("eps")))
    scaled = (weight.astype(np.float32) * factor.reshape(-1, *(1,) * (weight.ndim - 1))).astype(weight.dtype)
    moved = (shifts + (old - means) * factor).astype(np.float32)
    attrs = {k: v for k, v in NodeView.of(node).attrs.items() if v is not None}
    return n.op("Conv", node.inputs[0], scaled, moved, **attrs)


@aten("_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats", "native_batch_norm",
      "_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")  # fmt: skip
def _batch_norm_training(n: AtenNode) -> Any:
    """Statistics of the batch; the functional forms also give the new running ones."""
    x = n.arg("input")
    training = n.attrs.get("training", True)
    if not training:
        return _batch_norm_given(n)
    desc = desc_of(x)
    axes = [0, *range(2, desc.rank)]
    count = math.prod(desc.shape[a] for a in axes)
    if not desc.size:
        raise Unsupported("a normalisation of nothing")
    epsilon, momentum = float(n.arg("eps")), float(n.arg("momentum"))
    wide = n.wide(x)
    _, mean, inverse = _statistics(n, wide, axes, epsilon)
    factor_shape = [1, desc.shape[1]] + [1] * (desc.rank - 2)
    dtype = desc_of(wide).dtype
    scale, bias = (
        None if v is None else n.shaped(n.cast(v, dtype), factor_shape)
        for v in (n.arg("weight"), n.arg("bias"))
    )
    # One factor and one shift a channel, as the framework computes it: statistics are not worked out again.
    factor = inverse if scale is None else n.op("Mul", inverse, scale)
    shift = n.op("Neg", n.op("Mul", mean, factor))
    shift = shift if bias is None else n.op("Add", shift, bias)
    y = n.back(n.op("Add", n.op("Mul", wide, factor), shift))
    results = [y, n.back(n.shaped(mean, n.out(1).shape), 1), n.back(n.shaped(inverse, n.out(2).shape), 2)]
    if len(n.results) == 3:
        if n.arg("running_mean") is not None:
            raise Unsupported("running statistics written in place")
        return results
    centred = n.op("Sub", wide, mean)
    variance = n.op("ReduceMean", n.op("Square", centred), axes=axes, keepdims=True)
    unbiased = n.op("Mul", variance, count / (count - 1)) if count > 1 else variance
    extra = []
    for index, name, new in ((0, "running_mean", mean), (1, "running_var", unbiased)):
        old = n.arg(name)
        position = len(n.results) - 2 + index
        fresh = n.cast(n.shaped(new, desc_of(old).shape), desc_of(old).dtype)
        mixed = n.op("Add", n.op("Mul", fresh, momentum), n.op("Mul", old, 1 - momentum))
        extra.append(n.back(mixed, position))
    reserve = [n.filled(0, n.out(3))] if len(n.results) == 6 else []
    return [*results, *reserve, *extra]


@aten("native_batch_norm_backward")
def _batch_norm_backward(n: AtenNode) -> Any:
    """Two sums a channel; the gradient of the input is then a sum of both tensors with factors a channel."""
    g, x = n.wide(n.arg("grad_out")), n.wide(n.arg("input"))
    desc, dtype = desc_of(x), desc_of(x).dtype
    channels, axes = desc.shape[1], [0, *range(2, desc.rank)]
    shape = [1, channels] + [1] * (desc.rank - 2)
    count = math.prod(desc.shape[a] for a in axes)
    if not desc.size:
        raise Unsupported("a normalisation of nothing")
    training = bool(n.arg("train"))
    mean = n.shaped(n.cast(n.arg("save_mean" if training else "running_mean"), dtype), shape)
    if training:
        inverse = n.shaped(n.cast(n.arg("save_invstd"), dtype), shape)
    else:
        variance = n.shaped(n.cast(n.arg("running_var"), dtype), shape)
        inverse = n.op("Rsqrt", n.op("Add", variance, float(n.arg("eps"))))
    dot = n.op("ReduceSum", n.op("Mul", g, n.op("Sub", x, mean)), axes=axes, keepdims=True)
    total = n.op("ReduceSum", g, axes=axes, keepdims=True)
    weight = n.arg("weight")
    first = inverse if weight is None else n.op("Mul", inverse, n.shaped(n.cast(weight, dtype), shape))
    by_input = n.op("Mul", g, first)
    if training:
        slope = n.op("Mul", n.op("Mul", dot, n.op("Square", inverse)), 1 / count)
        second = n.op("Neg", n.op("Mul", slope, first))
        third = n.op("Mul", n.op("Sub", n.op("Mul", mean, slope), n.op("Mul", total, 1 / count)), first)
        by_input = n.op("Add", n.op("Add", by_input, n.op("Mul", x, second)), third)
    found = [by_input, n.shaped(n.op("Mul", dot, inverse), [channels]), n.shaped(total, [channels])]
    mask = n.arg("output_mask")
    wanted = [bool(kept) and n.results[i] is not None for i, kept in enumerate(mask)]
    return [n.back(v, i) if wanted[i] else None for i, v in enumerate(found)]


def _batch_norm_given(n: AtenNode) -> Any:
    y, *_ = _batch_norm_inference(n)
    rest = [n.filled(0, d) if d is not None else None for d in n.results[1:3]]
    if len(n.results) > 3:
        old = [n.op("Identity", n.arg("running_mean")), n.op("Identity", n.arg("running_var"))]
        reserve = [n.filled(0, n.out(3))] if len(n.results) == 6 else []
        rest = [*rest, *reserve, *old]
    return [y, *rest]


# -- resizing ----------------------------------------------------------------------------------------------


def _resized(n: AtenNode, mode: str, coordinates: str, **attrs: Any) -> Any:
    x = n.arg("self", n.arg("input"))
    desc, out = desc_of(x), n.out()
    space = desc.rank - 2
    if desc.dtype not in FLOATS or not desc.size:
        raise Unsupported(f"{desc} resized")
    scales = [n.arg(k) for k in ("scales_d", "scales_h", "scales_w", "scales")]
    given = [float(s) for s in scales if s is not None] or [float(s) for s in n.arg("scale_factors", [])]
    axes = list(range(2, desc.rank))
    if given and len(given) == space and not n.arg("align_corners"):
        attrs["scales"] = given
    sizes = list(out.shape[2:])
    return n.back(
        n.op("Resize", n.wide(x), axes=axes, sizes=sizes, mode=mode, coordinates=coordinates, **attrs)
    )


@aten("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _nearest(n: AtenNode) -> Any:
    return _resized(n, "nearest", "asymmetric", rounding="floor")


@aten("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def _nearest_exact(n: AtenNode) -> Any:
    return _resized(n, "nearest", "half_pixel", rounding="round_prefer_ceil")


@aten("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _linear_resize(n: AtenNode) -> Any:
    return _resized(n, "linear", "align_corners" if n.arg("align_corners") else "half_pixel")


@aten("upsample_bicubic2d")
def _cubic_resize(n: AtenNode) -> Any:
    return _resized(n, "cubic", "align_corners" if n.arg("align_corners") else "half_pixel")


@aten("grid_sampler_2d", "grid_sampler_3d")
def _grid_sample(n: AtenNode) -> Any:
    x = n.arg("input")
    if desc_of(x).dtype not in ("float32", "float64") or not desc_of(x).size:
        raise Unsupported(f"samples of {desc_of(x)}")
    mode = ("linear", "nearest", "cubic")[int(n.arg("interpolation_mode", 0))]
    padding = ("zeros", "border", "reflection")[int(n.arg("padding_mode", 0))]
    return n.op("GridSample", x, n.arg("grid"), mode=mode, padding_mode=padding,
                align_corners=bool(n.arg("align_corners")))  # fmt: skip


# -- branches ----------------------------------------------------------------------------------------------


@aten("higher_order.cond")
def _cond(n: AtenNode) -> Any:
    """Both branches are functions of a builder and the operands, given by the front door."""
    operands = list(n.arg("operands"))
    then, otherwise = n.arg("true_fn"), n.arg("false_fn")
    predicate = n.shaped(n.cast(n.arg("pred"), "bool"), [])
    return branch(n.builder, predicate, lambda b: then(b, operands), lambda b: otherwise(b, operands))


@aten("higher_order.while_loop")
def _while_loop(n: AtenNode) -> Any:
    """The condition is computed before the loop and at the end of each step."""
    carried, extra = list(n.arg("carried_inputs")), list(n.arg("additional_inputs") or ())
    condition, step = n.arg("cond_fn"), n.arg("body_fn")
    first = n.shaped(condition(n.builder, [*carried, *extra])[0], [])
    body: GraphBuilder = n.builder.subgraph("body")
    body.input("step", (), "int64")
    body.input("going", (), "bool")
    states = [body.input(f"state{i}", desc_of(s).shape, desc_of(s).dtype) for i, s in enumerate(carried)]
    after = step(body, [*states, *extra])
    going = condition(body, [*after, *extra])[0]
    body.output(body.op("Reshape", going, shape=[]) if desc_of(going).rank else going)
    for value in after:
        body.output(value)
    made = n.builder.ops(
        "Loop", [None, first, *carried, *body.captures()], body=body.graph, num_states=len(carried)
    )
    return list(made)


# -- attention ---------------------------------------------------------------------------------------------


@aten("_scaled_dot_product_flash_attention_for_cpu")
def _attention(n: AtenNode) -> Any:
    """softmax(q k' * scale + mask) v, and the logarithm of each row's sum, which only gradients read.

    Where several heads of queries share one of keys and values, those of a single token are the rows of one head, so
    the cache is read once; for more tokens keys and values are repeated.
    """
    q, k, v = _attended(n)
    mask, scores, repeats = _mask(n), _scores(n), _repeats(q, k)
    if repeats > 1 and desc_of(q).shape[-2] == 1 and not scores["causal"]:
        q = n.shaped(q, [*desc_of(k).shape[:-2], repeats, desc_of(q).shape[-1]])
        mask = _mask_of_groups(n, mask, repeats)
    elif repeats > 1:
        k, v = (_repeated(n, t, repeats) for t in (k, v))
    y, sums = n.op("Attention", q, k, v, mask, **scores)
    return [n.shaped(y, n.out(0).shape), n.cast(n.shaped(sums, n.out(1).shape), n.out(1).dtype)]


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(n: AtenNode) -> Any:
    q, k, v = _attended(n)
    repeats = _repeats(q, k)
    if repeats > 1:
        k, v = (_repeated(n, t, repeats) for t in (k, v))
    values = [n.arg("grad_out"), q, k, v, n.arg("out"), n.arg("logsumexp")]
    by_q, by_k, by_v = n.op("AttentionGrad", *values, _mask(n), **_scores(n))
    if repeats == 1:
        return [by_q, by_k, by_v]
    return [by_q, *(n.back(_summed(n, g, repeats), i) for i, g in ((1, by_k), (2, by_v)))]


def _repeats(q: Any, k: Any) -> int:
    """How many heads of queries share a head of keys."""
    heads, groups = desc_of(q).shape, desc_of(k).shape
    if len(heads) != 4 or len(groups) != 4 or heads[1] == groups[1] or not groups[1] or heads[1] % groups[1]:
        return 1
    return heads[1] // groups[1]


def _repeated(n: AtenNode, value: Any, repeats: int) -> Any:
    """Each head several times: (batch, groups, length, size) to (batch, heads, length, size)."""
    batch, groups, length, size = desc_of(value).shape
    wide = n.spread(n.shaped(value, [batch, groups, 1, length, size]), [batch, groups, repeats, length, size])
    return n.shaped(wide, [batch, groups * repeats, length, size])


def _summed(n: AtenNode, gradient: Any, repeats: int) -> Any:
    """The gradient of heads that were repeated."""
    batch, heads, length, size = desc_of(gradient).shape
    apart = n.shaped(n.wide(gradient), [batch, heads // repeats, repeats, length, size])
    return n.op("ReduceSum", apart, axes=[2])


def _mask_of_groups(n: AtenNode, mask: Any, repeats: int) -> Any:
    """The mask of single tokens, with a row for each head of a group where heads differ."""
    if mask is None or desc_of(mask).rank < 3 or desc_of(mask).shape[-3] == 1:
        return mask
    *before, heads, _, keys = desc_of(mask).shape
    return n.shaped(mask, [*before, heads // repeats, repeats, keys])


# What SDPA becomes on CUDA tensors: the same, with sums in shapes of their own and, beside them, the state of random
# numbers that nothing draws without dropout.
@aten("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
      "_scaled_dot_product_cudnn_attention")  # fmt: skip
def _attention_on_cuda(n: AtenNode) -> Any:
    if n.arg("return_debug_mask", False):
        raise Unsupported("attention that gives its weights")
    y, sums = n.op("Attention", *_attended(n), _mask(n), **_scores(n))
    wanted = n.out(1)
    count = math.prod(desc_of(sums).shape)
    if math.prod(wanted.shape) < count:  # nobody reads them
        sums = n.filled(0, wanted)
    elif math.prod(wanted.shape) > count:  # rows to the next multiple of 32
        more = wanted.shape[-1] - desc_of(sums).shape[-1]
        sums = n.op("Pad", sums, low=[0, 0, 0], high=[0, 0, more])
    others = [None if desc is None else n.filled(0, desc) for desc in n.results[2:]]
    return [y, n.shaped(n.cast(sums, wanted.dtype), wanted.shape), *others]


@aten("_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_flash_attention_backward",
      "_scaled_dot_product_cudnn_attention_backward")  # fmt: skip
def _attention_on_cuda_backward(n: AtenNode) -> Any:
    rows = desc_of(n.arg("query")).shape[:-1]
    sums = n.arg("logsumexp")
    if desc_of(sums).shape[2] != rows[2]:
        sums = n.op("Slice", sums, starts=[0, 0, 0], ends=list(rows))
    dy = n.arg("grad_out_") if n.arg("grad_out_") is not None else n.arg("grad_out")
    mask = n.arg("attn_bias")
    if mask is not None and any(n.arg("grad_input_mask", [])[3:]):
        raise Unsupported("the gradient of the numbers that attention adds to its scores")
    values = [dy, *_attended(n), n.arg("out"), n.shaped(sums, rows)]
    return [*n.op("AttentionGrad", *values, _mask(n), **_scores(n)), None][: len(n.results)]


def _attended(n: AtenNode) -> list[Any]:
    if n.arg("dropout_p", 0.0):
        raise Unsupported("attention that drops weights")
    return [n.arg("query"), n.arg("key"), n.arg("value")]


def _mask(n: AtenNode) -> Any:
    """Bools, or numbers that are added to scores without being rounded."""
    mask = n.arg("attn_mask", n.arg("attn_bias"))
    return mask if mask is None or desc_of(mask).dtype == "bool" else n.wide(mask)


def _scores(n: AtenNode) -> dict[str, Any]:
    """How scores are formed; a query whose keys are all hidden gives zeros."""
    size = desc_of(n.arg("query")).shape[-1]
    return {
        "scale": float(n.arg("scale", 1 / math.sqrt(size))),
        "causal": bool(n.arg("is_causal", False)),
        "zeros": n.arg("attn_mask", n.arg("attn_bias")) is not None,
    }
