"""Products and convolutions with fused epilogues, activations, and movements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.math.checks import indices_of
from ge.ops.microsoft.standard import DOMAIN, Writer, activated, results_of, standard, transposed
from ge.ops.plugins import Node, Results, Unsupported, plugin

# -- products and convolutions -----------------------------------------------------------------------------


@plugin(onnx="FusedConv", domain=DOMAIN)
def _fused_conv(n: Node) -> Results:
    """activation(conv(x, w) + b + z)."""
    y = standard(n, "Conv", *n.inputs[:3], **_window(n))
    y = y if n.input(3) is None else n.op("Add", y, n.inputs[3])
    return activated(n, y, n.attr("activation_params") or ())


@plugin(onnx=["NhwcFusedConv", "NhwcConv"], domain=DOMAIN)
def _nhwc_conv(n: Node) -> Results:
    """The same with channels last; the weight layout is unchanged."""
    x = transposed(n, n.inputs[0], last=False)
    y = transposed(n, standard(n, "Conv", x, *n.inputs[1:3], **_window(n)), last=True)
    y = y if n.input(3) is None else n.op("Add", y, n.inputs[3])
    return activated(n, y, n.attr("activation_params") or ())


def _window(n: Node) -> dict[str, Any]:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return {name: n.attrs[name] for name in names if name in n.attrs}


@plugin(onnx="NhwcMaxPool", domain=DOMAIN)
def _nhwc_max_pool(n: Node) -> Results:
    x = transposed(n, n.inputs[0], last=False)
    return transposed(n, standard(n, "MaxPool", x, **n.attrs), last=True)


@plugin(onnx="FusedGemm", domain=DOMAIN)
def _fused_gemm(n: Node) -> Results:
    attrs = {k: v for k, v in n.attrs.items() if not k.startswith("activation")}
    return activated(n, standard(n, "Gemm", *n.inputs, **attrs), _activation_numbers(n))


def _activation_numbers(n: Node) -> list[float]:
    """alpha, beta and gamma, as far as they are set."""
    given = [n.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return [float(v) for v in given if v is not None]


@plugin(onnx=["FusedMatMul", "TransposeMatMul", "FusedMatMulActivation"], domain=DOMAIN)
def _fused_matmul(n: Node) -> Results:
    """alpha * a' b'; transBatch moves the first axis in front of the last one."""
    a, b = (_operand(n, i, side) for i, side in enumerate("AB"))
    y = standard(n, "MatMul", a, b)
    alpha = float(n.attr("alpha", 1.0))
    y = y if alpha == 1 else n.op("Mul", y, alpha)
    if n.attr("activation") == "Softmax":
        return n.op("Softmax", y, axes=[int(n.attr("activation_axis", -1))])
    return activated(n, y, _activation_numbers(n))


def _operand(n: Node, index: int, side: str) -> Any:
    rank = n.desc(index).rank
    if rank < 2:
        return n.inputs[index]
    perm = list(range(rank))
    if n.attr(f"transBatch{side}", 0):
        perm = [*perm[1:-1], perm[0], perm[-1]]
    if n.attr(f"trans{side}", 0):
        perm = [*perm[:-2], perm[-1], perm[-2]]
    return n.inputs[index] if perm == sorted(perm) else n.op("Transpose", n.inputs[index], perm=perm)


@plugin(onnx="SparseToDenseMatMul", domain=DOMAIN)
def _sparse_matmul(n: Node) -> Results:
    """alpha * a' b' with a sparse a, which the parser has made dense."""
    a, b = (_operand(n, i, side) for i, side in enumerate("AB"))
    alpha, y = float(n.attr("alpha", 1.0)), standard(n, "MatMul", a, b)
    return y if alpha == 1 else n.op("Mul", y, alpha)


@plugin(onnx="GemmFastGelu", domain=DOMAIN)
def _gemm_fast_gelu(n: Node) -> Results:
    y = standard(n, "MatMul", *n.inputs[:2])
    return _gelu(n, y if n.input(2) is None else n.op("Add", y, n.inputs[2]), "tanh")


# -- activations -------------------------------------------------------------------------------------------


def _gelu(n: Node, x: Any, approximate: str = "none") -> Any:
    return n.op("Gelu", x, approximate=approximate)


@plugin(onnx="Gelu", domain=DOMAIN)
def _plain_gelu(n: Node) -> Results:
    return _gelu(n, n.inputs[0])


@plugin(onnx=["BiasGelu", "FastGelu"], domain=DOMAIN)
def _bias_gelu(n: Node) -> Results:
    x = n.inputs[0] if n.input(1) is None else n.op("Add", n.inputs[0], n.inputs[1])
    return _gelu(n, x, "tanh" if n.type == "FastGelu" else "none")


@plugin(onnx="QuickGelu", domain=DOMAIN)
def _quick_gelu(n: Node) -> Results:
    return n.op("Swish", n.inputs[0], beta=float(n.attr("alpha", 1.702)))


@plugin(onnx="BiasAdd", domain=DOMAIN)
def _bias_add(n: Node) -> Results:
    return n.op("Add", n.op("Add", n.inputs[0], n.inputs[1]), n.inputs[2])


@plugin(onnx="BiasSplitGelu", domain=DOMAIN)
def _bias_split_gelu(n: Node) -> Results:
    left, right = _halves(n, n.op("Add", n.inputs[0], n.inputs[1]))
    return n.op("Mul", left, _gelu(n, right))


def _halves(n: Node, value: Any) -> tuple[Any, Any]:
    """Split a value in two along its last axis."""
    desc = desc_of(value)
    left, right = n.builder.ops("Split", [value], axis=desc.rank - 1, sizes=[desc.shape[-1] // 2] * 2)
    return left, right


@plugin(onnx="BiasSoftmax", domain=DOMAIN)
def _bias_softmax(n: Node) -> Results:
    """softmax over the axes from `axis` on; an inner bias lacks axes in the middle, an outer one leading axes."""
    x, bias = n.desc(0), n.desc(1)
    axis = int(n.attr("axis", 1)) % x.rank
    b = n.inputs[1]
    if n.attr("is_inner_broadcast") and bias.rank < x.rank:
        kept = bias.rank - (x.rank - axis)
        shape = [*bias.shape[:kept], *[1] * (x.rank - bias.rank), *bias.shape[kept:]]
        b = n.op("Reshape", b, shape=shape)
    return n.op("Softmax", n.op("Add", n.inputs[0], b), axes=list(range(axis, x.rank)))


@plugin(onnx=["BiasDropout", "BitmaskDropout", "BitmaskBiasDropout"], domain=DOMAIN)
def _bias_dropout(n: Node) -> Results:
    """Inference form: nothing is dropped."""
    biased = "Bias" in n.type
    training = n.maybe_const((5 if biased else 2) - (1 if biased else 0))
    if n.outputs > 1 or (training is not None and bool(training.reshape(()))):
        raise Unsupported(f"{n.type} in training form is not supported", "export the model for inference")
    y: Any = n.inputs[0]
    for extra in n.inputs[1:3] if biased else ():
        y = y if extra is None else n.op("Add", y, extra)
    return y


@plugin(onnx="ScaledSiLU", domain=DOMAIN)
def _scaled_silu(n: Node) -> Results:
    scale = n.input(1)
    z = n.op("Mul", n.inputs[0], float(n.attr("alpha", 1.0)) if scale is None else scale)
    return n.op("Mul", z, n.op("Sigmoid", z))


# -- operators that ONNX has, or had later, under other names ----------------------------------------------


@plugin(onnx=["Trilu", "GatherND", "GridSample"], domain=DOMAIN)
def _same(n: Node) -> Results:
    return standard(n, n.type, *n.inputs, **n.attrs)


@plugin(onnx="SampleOp", domain=DOMAIN)
def _echo(n: Node) -> Results:
    return n.op("Identity", n.inputs[0])


@plugin(onnx="WordConvEmbedding", domain=DOMAIN)
def _word_embedding(n: Node) -> Results:
    """Words as their characters' convolution: the largest tanh of its windows; a word ends before its first 0."""
    w = Writer(n, n.builder)
    filters, _, size, depth = n.desc(1).shape
    if n.desc().rank != 2:
        raise Unsupported(f"words {n.desc()}", "give one word in each row of a matrix")
    words, width = n.desc().shape
    if width < size:
        raise Unsupported(f"words of {width} characters under a window of {size}", "pad the words")
    letters = n.op("Cast", w.op("Greater", n.inputs[0], np.int32(0)), to="int32")
    lengths = n.op("ReduceSum", n.op("CumProd", letters, axis=1), axes=[1], keepdims=True)
    vectors = standard(n, "Gather", n.inputs[3], n.inputs[0], axis=0)
    image = n.op("Reshape", vectors, shape=[words, 1, width, depth])
    y = n.op("Tanh", standard(n, "Conv", image, n.inputs[1], n.inputs[2]))
    count = width - size + 1
    y = n.op("Reshape", y, shape=[words, filters, count])
    start = np.arange(count, dtype=np.int32)[None]
    kept = w.op("LessOrEqual", start, w.op("Max", w.op("Sub", lengths, np.int32(size)), np.int32(0)))
    kept = n.op("Reshape", kept, shape=[words, 1, count])
    best = n.op("ReduceMax", n.op("Select", kept, y, -np.inf), axes=[2])
    return n.op("Select", w.op("Greater", lengths, np.int32(0)), best, 0.0)


@plugin(onnx="Unique", domain=DOMAIN)
def _unique(n: Node) -> Results:
    """Distinct elements in order of appearance, where each element is among them, and how often they occur."""
    y, _, inverse, counts = results_of(n, "Unique", n.inputs[:1], 4, sorted=0)
    return [y, inverse, counts][: n.outputs]


@plugin(onnx="ConvTransposeWithDynamicPads", domain=DOMAIN)
def _transposed_convolution(n: Node) -> Results:
    attrs = dict(n.attrs)
    if n.input(2) is not None:
        attrs["pads"] = n.ints(2, "pads")
    bias = () if n.input(3) is None else (n.input(3),)
    return standard(n, "ConvTranspose", *n.inputs[:2], *bias, **attrs)


@plugin(onnx="CropAndResize", domain=DOMAIN)
def _crop_and_resize(n: Node) -> Results:
    """Channels are second here and last in the operator."""
    height, width = n.ints(3, "crop_size")
    batch = n.desc().shape[0]
    owners = indices_of(n, n.inputs[2], [batch], "batch_indices", from_end=False)
    y = n.op(
        "CropAndResize", transposed(n, n.inputs[0], last=True), n.inputs[1], owners, height=height, width=width,
        method=str(n.attr("mode", "bilinear")), extrapolation_value=float(n.attr("extrapolation_value", 0.0)),
    )  # fmt: skip
    return transposed(n, y, last=False)


@plugin(onnx="Inverse", domain=DOMAIN)
def _inverse(n: Node) -> Results:
    return n.op("Inverse", n.inputs[0])


@plugin(onnx="ExpandDims", domain=DOMAIN)
def _expand_dims(n: Node) -> Results:
    shape = list(n.desc().shape)
    (axis,) = n.ints(1, "axis")
    shape.insert(axis + len(shape) + 1 if axis < 0 else axis, 1)
    return n.op("Reshape", n.inputs[0], shape=shape)


@plugin(onnx="Pad", domain=DOMAIN)
def _pad(n: Node) -> Results:
    """The pads may have a leading axis of 1, the value too."""
    pads = n.builder.constant(np.asarray(n.ints(1, "pads"), np.int64))
    value = n.input(2)
    if value is not None and n.desc(2).rank:
        value = n.op("Reshape", value, shape=[])
    return standard(n, "Pad", n.inputs[0], pads, value, **n.attrs)


@plugin(onnx="Range", domain=DOMAIN)
def _range(n: Node) -> Results:
    start, limit = n.const(0, "start").reshape(()), n.const(1, "limit").reshape(())
    step = start.dtype.type(1) if n.input(2) is None else n.const(2, "delta").reshape(())
    count = max(math.ceil((limit.item() - start.item()) / step.item()), 0)
    return n.builder.constant((start + np.arange(count) * step).astype(start.dtype))


@plugin(onnx="TorchEmbedding", domain=DOMAIN)
def _embedding(n: Node) -> Results:
    return standard(n, "Gather", n.inputs[0], n.inputs[1], axis=0)


@plugin(onnx="UnfoldTensor", domain=DOMAIN)
def _unfold(n: Node) -> Results:
    desc = n.desc()
    axis, size, step = int(n.attr("dim", -1)) % desc.rank, int(n.attr("size")), int(n.attr("step", 1))
    count = (desc.shape[axis] - size) // step + 1
    index = np.arange(count)[:, None] * step + np.arange(size)
    picked = n.op("Gather", n.inputs[0], index.astype(np.int64), axis=axis)
    rank = desc.rank + 1
    return n.op("Transpose", picked, perm=[*range(axis + 1), *range(axis + 2, rank), axis + 1])


@plugin(onnx="IsAllFinite", domain=DOMAIN)
def _is_all_finite(n: Node) -> Results:
    both = not n.attr("isinf_only", 0) and not n.attr("isnan_only", 0)
    found = []
    for x in n.inputs:
        bad = []
        if both or n.attr("isinf_only", 0):
            bad.append(n.op("IsInf", x))
        if both or n.attr("isnan_only", 0):
            bad.append(n.op("IsNan", x))
        one = bad[0] if len(bad) == 1 else n.op("Or", *bad)
        found.append(n.op("ReduceMax", n.op("Cast", one, to="int32")))
    worst = found[0]
    for other in found[1:]:
        worst = n.op("Maximum", worst, other)
    return n.op("Equal", n.op("Reshape", worst, shape=[]), 0)


@plugin(onnx=["ComplexMul", "ComplexMulConj"], domain=DOMAIN)
def _complex_mul(n: Node) -> Results:
    """Products of complex numbers whose real and imaginary parts are the last axis."""
    (a, b), (c, d) = (_parts(n, i) for i in range(2))
    sign = "Add" if n.type.endswith("Conj") else "Sub"
    other = "Sub" if n.type.endswith("Conj") else "Add"
    real = n.op(sign, n.op("Mul", a, c), n.op("Mul", b, d))
    imaginary = n.op(other, n.op("Mul", b, c), n.op("Mul", a, d))
    return n.op("Concat", real, imaginary, axis=desc_of(real).rank - 1)


def _parts(n: Node, index: int) -> tuple[Any, Any]:
    if n.desc(index).shape[-1] != 2:
        raise Unsupported(f"{n.type} takes pairs in the last axis, got {n.desc(index)}")
    return _halves(n, n.inputs[index])


@plugin(onnx="CDist", domain=DOMAIN)
def _cdist(n: Node) -> Results:
    metric = str(n.attr("metric", "sqeuclidean"))
    if metric not in ("euclidean", "sqeuclidean"):
        raise Unsupported(f"CDist with the metric {metric}", "use euclidean or sqeuclidean")
    (rows, depth), columns = n.desc(0).shape, n.desc(1).shape[0]
    a = n.op("Reshape", n.inputs[0], shape=[rows, 1, depth])
    b = n.op("Reshape", n.inputs[1], shape=[1, columns, depth])
    squares = n.op("ReduceSum", n.op("SquaredDifference", a, b), axes=[2])
    return n.op("Sqrt", squares) if metric == "euclidean" else squares


# -- normalisations ----------------------------------------------------------------------------------------


@plugin(onnx=["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"], domain=DOMAIN)
def _skip_norm(n: Node) -> Results:
    """The normalised sum of input, skip and bias, and the sum as the fourth result."""
    simplified = "Simplified" in n.type
    bias = n.input(3) if simplified else n.input(4)
    total = n.op("Add", n.inputs[0], n.inputs[1])
    total = total if bias is None else n.op("Add", total, bias)
    axes, epsilon = [n.desc().rank - 1], float(n.attr("epsilon", 1e-12))
    if simplified:
        y = n.op("RmsNorm", total, n.inputs[2], axes=axes, epsilon=epsilon)
    else:
        y = _layer_norm(n, total, n.inputs[2], n.input(3), axes, epsilon)
    if n.outputs > 1 and n.outputs != 4:
        raise Unsupported(f"the statistics that {n.type} keeps for training", "export for inference")
    return (y, None, None, total)[: max(n.outputs, 1)]


def _layer_norm(n: Node, x: Any, gamma: Any, beta: Any, axes: list[int], epsilon: float) -> Any:
    given = [x, gamma] if beta is None else [x, gamma, beta]
    return n.op("LayerNorm", *given, axes=axes, epsilon=epsilon)


@plugin(onnx="EmbedLayerNormalization", domain=DOMAIN)
def _embed_norm(n: Node) -> Results:
    return embedded(n, [n.input(i) for i in range(2, 7)], n.input(7), n.input(8))


def embedded(n: Node, tables: list[Any], mask: Any, positions: Any) -> Results:
    """Normalised sums of word, position and segment embeddings; the lengths of the sequences; the sums."""
    words, places, segments, gamma, beta = tables
    length = n.desc(0).shape[1]
    total = standard(n, "Gather", words, n.inputs[0], axis=0)
    if positions is None:
        row = n.op("Slice", places, starts=[0, 0], ends=[length, desc_of(places).shape[1]])
    else:
        row = standard(n, "Gather", places, positions, axis=0)
    total = n.op("Add", total, row)
    if n.input(1) is not None and segments is not None:
        total = n.op("Add", total, standard(n, "Gather", segments, n.inputs[1], axis=0))
    axes, epsilon = [desc_of(total).rank - 1], float(n.attr("epsilon", 1e-12))
    y = _layer_norm(n, total, gamma, beta, axes, epsilon)
    if n.outputs < 2:
        return y
    batch = n.desc(0).shape[0]
    if mask is None:
        lengths = n.builder.constant(np.zeros(batch, np.int32))
    else:  # the position of the first 0
        kept = n.op("Cast", n.op("Equal", mask, 1), to="int32")
        lengths = n.op("ReduceSum", n.op("CumProd", kept, axis=1), axes=[1])
    return (y, lengths, total)[: n.outputs]


@plugin(onnx=["GroupNorm", "SkipGroupNorm"], domain=DOMAIN)
def _group_norm(n: Node) -> Results:
    """Group normalisation, channels last unless said, of x or of x + skip + bias, with SiLU where asked."""
    last = bool(n.attr("channels_last", 1))
    x: Any = n.inputs[0]
    if n.type == "SkipGroupNorm":
        skip, desc = n.inputs[3], n.desc(3)
        if desc.rank == 2:
            shape = [desc.shape[0], 1, 1, desc.shape[1]] if last else [*desc.shape, 1, 1]
            skip = n.op("Reshape", skip, shape=shape)
        x = n.op("Add", x, skip)
        if n.input(4) is not None:
            channels = n.desc(4).shape[0]
            x = n.op("Add", x, n.op("Reshape", n.inputs[4], shape=[channels] if last else [channels, 1, 1]))
    total, dtype = x, desc_of(x).dtype
    scale, shift = (
        v if desc_of(v).dtype == dtype else n.op("Cast", v, to=dtype) for v in n.inputs[1:3] if v is not None
    )
    first = transposed(n, x, last=False) if last else x
    y = n.op(
        "GroupNorm", first, scale, shift, groups=int(n.attr("groups")), epsilon=float(n.attr("epsilon", 1e-5))
    )
    y = n.op("Swish", y, beta=1.0) if n.attr("activation", 0) else y
    y = transposed(n, y, last=True) if last else y
    return (y, total)[: max(n.outputs, 1)]
