"""Operators on quantised tensors: integer products, weights of few bits, and functions of dequantised values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir import facts
from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.ops.microsoft.fused import embedded
from ge.ops.microsoft.standard import DOMAIN, results_of, standard, transposed
from ge.ops.nn.packed import pack_levels, packed_product, unpack_levels
from ge.ops.nn.quantise import integer_matmul
from ge.ops.plugins import Node, Results, Unsupported, plugin


def _dequantised(n: Node, value: Any, scale: Any, zero: Any) -> Any:
    """(value - zero) * scale."""
    given = [value, scale] + ([] if zero is None else [zero])
    return n.op("Dequantize", *given, axis=0, dtype=desc_of(scale).dtype)


def _real(n: Node, first: int) -> Any:
    """The real values of an input that is followed by its scale and zero point."""
    return _dequantised(n, *(n.input(i) for i in range(first, first + 3)))


def _stored(n: Node, value: Any, scale: Any, zero: Any, dtype: str) -> Any:
    given = [value, scale] + ([] if zero is None else [zero])
    return n.op("Quantize", *given, axis=0, dtype=dtype)


@plugin(onnx=["QuantizeLinear", "DequantizeLinear"], domain=DOMAIN)
def _same(n: Node) -> Results:
    return standard(n, n.type, *n.inputs, version=13, **n.attrs)


# -- functions of dequantised values -----------------------------------------------------------------------


@plugin(onnx=["QLinearAdd", "QLinearMul"], domain=DOMAIN)
def _binary(n: Node) -> Results:
    a, b = _real(n, 0), _real(n, 3)
    y = n.op("Add" if n.type == "QLinearAdd" else "Mul", a, b)
    return _stored(n, y, n.inputs[6], n.input(7), n.desc().dtype)


@plugin(onnx=["QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean"], domain=DOMAIN)
def _unary(n: Node) -> Results:
    x = _real(n, 0)
    rank = n.desc().rank
    if n.type == "QLinearSigmoid":
        y = n.op("Sigmoid", x)
    elif n.type == "QLinearLeakyRelu":
        y = n.op("LeakyRelu", x, alpha=float(n.attr("alpha", 0.01)))
    elif n.type == "QLinearSoftmax":
        axis = int(n.attr("axis", -1)) % rank
        y = n.op("Softmax", x, axes=[axis] if int(n.attr("opset")) >= 13 else list(range(axis, rank)))
    else:
        axes = [int(a) for a in n.attr("axes") or range(rank)]
        y = n.op("ReduceMean", x, axes=axes, keepdims=bool(n.attr("keepdims", 1)))
    return _stored(n, y, n.inputs[3], n.input(4), n.desc().dtype)


@plugin(onnx=["QLinearAveragePool", "QLinearGlobalAveragePool"], domain=DOMAIN)
def _average(n: Node) -> Results:
    last = bool(n.attr("channels_last", 0))
    x = _real(n, 0)
    x = transposed(n, x, last=False) if last else x
    attrs = {k: v for k, v in n.attrs.items() if k != "channels_last"}
    y = standard(n, n.type.removeprefix("QLinear"), x, **attrs)
    y = transposed(n, y, last=True) if last else y
    return _stored(n, y, n.inputs[3], n.input(4), n.desc().dtype)


@plugin(onnx="QLinearConcat", domain=DOMAIN)
def _concat(n: Node) -> Results:
    """Tensors of different scales, brought to one and joined."""
    scale, zero = n.inputs[0], n.input(1)
    parts = [_real(n, first) for first in range(2, len(n.inputs), 3)]
    axis = int(n.attr("axis")) % desc_of(parts[0]).rank
    return _stored(n, n.op("Concat", *parts, axis=axis), scale, zero, n.desc(2).dtype)


@plugin(onnx="QLinearWhere", domain=DOMAIN)
def _where(n: Node) -> Results:
    a, b = _real(n, 1), _real(n, 4)
    return _stored(n, n.op("Select", n.inputs[0], a, b), n.inputs[7], n.input(8), n.desc(1).dtype)


@plugin(onnx="QLinearConv", domain=DOMAIN)
def _conv(n: Node) -> Results:
    attrs = {k: v for k, v in n.attrs.items() if k != "channels_last"}
    if not n.attr("channels_last", 0):
        return standard(n, "QLinearConv", *n.inputs, **attrs)
    x = transposed(n, n.inputs[0], last=False)
    return transposed(n, standard(n, "QLinearConv", x, *n.inputs[1:], **attrs), last=True)


# -- integer products --------------------------------------------------------------------------------------


@plugin(onnx="MatMulIntegerToFloat", domain=DOMAIN)
def _matmul_to_float(n: Node) -> Results:
    a, b, a_scale, b_scale = n.inputs[:4]
    total = integer_matmul(n, a, b, n.input(4), n.input(5))
    return _scaled(n, total, a_scale, b_scale, n.input(6))


def _scaled(n: Node, total: Any, a_scale: Any, b_scale: Any, bias: Any) -> Any:
    """Sums of integers as real numbers, with a bias."""
    scales = [n.op("Reshape", s, shape=[]) if desc_of(s).size == 1 else s for s in (a_scale, b_scale)]
    scale = n.op("Mul", *scales)
    y = n.op("Mul", n.op("Cast", total, to=desc_of(scale).dtype), scale)
    return y if bias is None else n.op("Add", y, bias)


@plugin(onnx="DynamicQuantizeMatMul", domain=DOMAIN)
def _dynamic_matmul(n: Node) -> Results:
    """The left operand is quantised by its own range, then as MatMulIntegerToFloat."""
    a, b, b_scale = n.inputs[:3]
    levels, scale, zero = results_of(n, "DynamicQuantizeLinear", [a], 3)
    total = integer_matmul(n, levels, b, zero, n.input(3))
    return _scaled(n, total, scale, b_scale, n.input(4))


@plugin(onnx="QGemm", domain=DOMAIN)
def _gemm(n: Node) -> Results:
    """alpha * a' b' + c with c in units of the product; quantised again where a scale is given."""
    a, a_scale, a_zero, b, b_scale, b_zero = n.inputs[:6]
    if n.attr("transA", 0):
        a = n.op("Transpose", a, perm=[1, 0])
    if n.attr("transB", 0):
        b = n.op("Transpose", b, perm=[1, 0])
    total = integer_matmul(n, a, b, a_zero, b_zero)
    if n.input(6) is not None:
        total = n.op("Add", total, n.inputs[6])
    y = _scaled(n, total, a_scale, b_scale, None)
    alpha = float(n.attr("alpha", 1.0))
    y = y if alpha == 1 else n.op("Mul", y, alpha)
    if n.input(7) is None:
        return y
    zero = n.input(8)
    return _stored(n, y, n.inputs[7], zero, n.desc(0).dtype if zero is None else desc_of(zero).dtype)


@plugin(onnx="MatMulInteger16", domain=DOMAIN)
def _matmul_16(n: Node) -> Results:
    return standard(n, "MatMul", *(n.op("Cast", v, to="int32") for v in n.inputs[:2]))


@plugin(onnx="MulInteger", domain=DOMAIN)
def _mul_integer(n: Node) -> Results:
    def centred(value: Any, zero: Any) -> Any:
        wide = n.op("Cast", value, to="int32")
        return wide if zero is None else n.op("Sub", wide, n.op("Cast", zero, to="int32"))

    return n.op("Mul", centred(n.inputs[0], n.input(1)), centred(n.inputs[2], n.input(3)))


@plugin(onnx="ReduceSumInteger", domain=DOMAIN)
def _sum_integer(n: Node) -> Results:
    wide = "uint32" if n.desc().dtype.startswith("u") else "int32"
    axes = [int(a) for a in n.attr("axes")]
    return n.op(
        "ReduceSum", n.op("Cast", n.inputs[0], to=wide), axes=axes, keepdims=bool(n.attr("keepdims", 1))
    )


# -- weights of few bits -----------------------------------------------------------------------------------


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned numbers of a few bits, packed along the last axis, the lowest bits of a byte first."""
    if 8 % bits:
        raise Unsupported(f"weights of {bits} bits", "quantise to 2, 4 or 8 bits")
    return unpack_levels(packed, bits)


@plugin(onnx="MatMulNBits", domain=DOMAIN)
def _matmul_n_bits(n: Node) -> Results:
    """a times weights that are stored in few bits, a scale and a zero point for each block of a row.

    Weights of 4 and 8 bits stay packed; those of 2 bits are dequantised when the model is compiled.
    """
    if n.attr("weight_prepacked", 0):
        raise Unsupported("weights that were packed for one device", "export the model without prepacking")
    depth, columns = int(n.attr("K")), int(n.attr("N"))
    block, bits = int(n.attr("block_size")), int(n.attr("bits", 4))
    blocks = -(-depth // block)
    packed = n.const(1, "the weight").reshape(columns, -1)
    scales = n.const(2, "the scales").astype(np.float32).reshape(columns, blocks)
    zeros = _zero_points(n, columns, blocks, bits)
    x: Any = n.inputs[0]
    if n.input(4) is not None and (order := _order_of_groups(n, depth, block)) is not None:
        packed = pack_levels(unpacked(packed, bits)[:, order], bits)
        x = n.op("Gather", x, n.builder.constant(order), axis=desc_of(x).rank - 1)
    if bits in (4, 8):
        packed = np.ascontiguousarray(packed[:, : -(-depth * bits // 8)])
        weights, steps = (n.builder.constant(v) for v in (packed, scales))
        middles = None if zeros is None else n.builder.constant(zeros)
        return packed_product(n.builder, x, weights, steps, middles, n.input(5), bits=bits, group=block)
    middle = 0.0 if zeros is None else zeros[..., None]
    levels = unpacked(packed, bits).reshape(columns, blocks, -1).astype(np.float32) - float(1 << (bits - 1))
    weight = ((levels - middle) * scales[..., None]).reshape(columns, -1)[:, :depth]
    turned = np.ascontiguousarray(weight.T).astype(numpy_dtype(n.desc().dtype))
    y = standard(n, "MatMul", x, n.builder.constant(turned))
    return y if n.input(5) is None else n.op("Add", y, n.inputs[5])


def _zero_points(n: Node, columns: int, blocks: int, bits: int) -> np.ndarray | None:
    """The zero points of blocks from the middle of the levels on; None where they are in the middle."""
    if n.input(3) is None:
        return None
    given = n.const(3, "the zero points")
    if given.dtype == np.uint8:
        given = unpacked(given.reshape(columns, -1), bits)[:, :blocks]
    return given.astype(np.float32).reshape(columns, blocks) - np.float32(1 << (bits - 1))


def _order_of_groups(n: Node, depth: int, block: int) -> np.ndarray | None:
    """The order in which columns of a come group by group (g_idx); None where they do as they are."""
    groups, even = n.const(4, "g_idx"), np.arange(depth) // block
    if (groups == even).all():
        return None
    order = np.argsort(groups, kind="stable")
    if (groups[order] != even).any() or n.attr("bits", 4) not in (4, 8):
        raise Unsupported("MatMulNBits with such an order of groups (g_idx)", "quantise without act_order")
    return order


# The values of FP4 and NF4 codes, as bitsandbytes defines them.
_FP4 = [0, 5.208333333e-03, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25]
_NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
]


@plugin(onnx="MatMulBnb4", domain=DOMAIN)
def _matmul_bnb4(n: Node) -> Results:
    depth, columns, block = int(n.attr("K")), int(n.attr("N")), int(n.attr("block_size"))
    table = np.asarray(_NF4 if int(n.attr("quant_type")) else [*_FP4, *(-v for v in _FP4)], np.float32)
    packed = n.const(1, "the weight").reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: depth * columns]
    scales = np.repeat(n.const(2, "absmax").astype(np.float32).reshape(-1), block)[: depth * columns]
    weight = (table[codes] * scales).reshape(columns, depth).astype(numpy_dtype(n.desc().dtype))
    weight = weight.T if n.attr("transB", 1) else weight
    return standard(n, "MatMul", n.inputs[0], n.builder.constant(np.ascontiguousarray(weight)))


@plugin(onnx="GatherBlockQuantized", domain=DOMAIN)
def _gather_quantised(n: Node) -> Results:
    """Rows of a table that is stored in few bits; the table is dequantised when the model is compiled."""
    data, scales = n.const(0, "data"), n.const(2, "the scales")
    bits, block = int(n.attr("bits", 4)), int(n.attr("block_size", 128))
    narrow = facts.narrow(n.inputs[0])  # int4 or uint4; levels of plain bytes are packed
    if data.dtype != np.uint8 and narrow != "int4":
        raise Unsupported(f"GatherBlockQuantized of {data.dtype}", "use int4, uint4 or uint8 data")

    def levels_of(stored: np.ndarray) -> np.ndarray:
        return np.asarray(stored if narrow else unpacked(stored, bits), np.float32)

    levels = levels_of(data)
    axis = int(n.attr("quantize_axis", 1)) % levels.ndim
    zero: Any = np.float32(0 if narrow else 1 << (bits - 1))
    if n.input(3) is not None:
        zero = np.repeat(levels_of(n.const(3, "the zero points")), block, axis=axis)
        zero = zero.take(range(levels.shape[axis]), axis=axis)
    step = np.repeat(scales.astype(np.float32), block, axis=axis).take(range(levels.shape[axis]), axis=axis)
    table = ((levels - zero) * step).astype(scales.dtype)
    gather_axis = int(n.attr("gather_axis", 0))
    return standard(n, "Gather", n.builder.constant(table), n.inputs[1], axis=gather_axis)


@plugin(onnx="QEmbedLayerNormalization", domain=DOMAIN)
def _embed_norm(n: Node) -> Results:
    tables = [
        None if n.input(2 + i) is None else _dequantised(n, n.input(2 + i), n.input(8 + i), n.input(13 + i))
        for i in range(5)
    ]
    return embedded(n, tables, n.input(7), None)


@plugin(onnx="DynamicQuantizeLSTM", domain=DOMAIN)
def _dynamic_lstm(n: Node) -> Results:
    """An LSTM whose weights are stored in 8 bits; they are dequantised when the model is compiled, x stays as it is."""

    def weight(value: int, scale: int) -> Any:
        real = n.const(value, "a weight").astype(np.float32)  # (directions, inputs, gates)
        step, zero = n.const(scale, "its scale"), n.const(scale + 1, "its zero point")
        shape = (real.shape[0], 1, -1) if step.ndim > 1 else (-1, 1, 1)
        real = (real - zero.astype(np.float32).reshape(shape)) * step.astype(np.float32).reshape(shape)
        return n.builder.constant(np.ascontiguousarray(real.transpose(0, 2, 1)))

    inputs = [n.inputs[0], weight(1, 8), weight(2, 10), *(n.input(i) for i in range(3, 8))]
    return results_of(n, "LSTM", inputs, n.outputs, 14, **n.attrs)
