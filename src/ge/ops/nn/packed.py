"""Products with 4- or 8-bit weights: a task that unpacks them as it reads, or a product with wide weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.dataflow import Rows
from ge.ops.nn.tasks import decomposes
from ge.ops.plugins import Unsupported
from ge.plan import Task, View

__all__ = ["PackedMatMul", "pack_levels", "packed_product", "unpack_levels"]

_KIND = "packed_matmul"
_ZEROS, _BIAS = 3, 4  # positions among the inputs


def pack_levels(levels: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers of a few bits along the last axis into bytes, lowest bits first.

    >>> pack_levels(np.array([[1, 2, 15]], np.uint8), 4)
    array([[33, 15]], dtype=uint8)
    """
    if bits == 8:
        return np.ascontiguousarray(levels)
    if levels.shape[-1] % 2:
        levels = np.concatenate([levels, np.zeros((*levels.shape[:-1], 1), levels.dtype)], -1)
    levels = levels.astype(np.uint8)
    return (levels[..., ::2] & 15) | (levels[..., 1::2] << 4)


def unpack_levels(packed: np.ndarray, bits: int) -> np.ndarray:
    """Unpack bytes to unsigned numbers.

    >>> unpack_levels(np.array([33, 15], np.uint8), 4)
    array([ 1,  2, 15,  0], dtype=uint8)
    """
    if bits == 8:
        return packed
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(*packed.shape[:-1], packed.shape[-1] * (8 // bits))


def packed_product(
    b: Any, x: Any, weights: Any, scales: Any, zeros: Any = None, bias: Any = None, **attrs: Any
) -> Any:
    """The product along the last axis of x, in any type and shape; types other than the task's compute in float32."""
    desc = desc_of(x)
    scales, zeros = (_cast(b, v, "float32") for v in (scales, zeros))
    dtype = desc.dtype if desc.dtype == "bfloat16" else "float32"
    rows = b.op("Reshape", _cast(b, x, dtype), shape=[math.prod(desc.shape[:-1]), desc.shape[-1]])
    bias = _cast(b, bias, dtype)
    y = b.op("PackedMatMul", rows, weights, scales, zeros, bias, **attrs)
    y = b.op("Reshape", y, shape=[*desc.shape[:-1], desc_of(y).shape[-1]])
    return _cast(b, y, desc.dtype)


def _cast(b: Any, value: Any, dtype: str) -> Any:
    return value if value is None or desc_of(value).dtype == dtype else b.op("Cast", value, to=dtype)


@register
class PackedMatMul(Operator):
    """x times rows of weights of few bits: weight = (level - zero) * scale, one scale and zero for a group of a row.

    Levels of uint8 weights count from their middle, 128 or 8 for two in a byte, unless they are signed. Sums are in
    float32.
    """

    x = Input("T", frozenset({"float32", "bfloat16"}))
    weights = Input("", frozenset({"int8", "uint8"}))
    scales = Input("S", frozenset({"float32"}))
    zeros = Input("S", frozenset({"float32"}), optional=True)
    bias = Input("T", FLOATS, optional=True)
    y = Output("T")
    bits = Attr(int, 4)
    group = Attr(int)
    signed = Attr(bool, False)  # levels are two's complement; those of int8 always are
    dataflow = Rows()
    foldable = False
    algorithm_names = ("MatMulNBits",)
    may_round = True

    @staticmethod
    def verify(op: NodeView) -> None:
        x, w, scales = op.inputs[:3]
        assert x is not None and w is not None and scales is not None
        if op.bits not in (4, 8) or (op.bits == 4 and w.dtype == "int8") or op.group < 1:
            raise fail(op, f"weights of {op.bits} bits in {w.dtype} with groups of {op.group} are not known")
        fits = x.rank == w.rank == 2 and w.shape[1] == -(-x.shape[1] * op.bits // 8)
        groups = -(-x.shape[-1] // op.group)
        if not fits or scales.shape != (w.shape[0], groups):
            raise fail(op, f"cannot multiply {x} by the rows of {w} with scales {scales}")
        zeros, bias = op.input(_ZEROS), op.input(_BIAS)
        if zeros is not None and zeros.shape != scales.shape:
            raise fail(op, f"the zero points {zeros} do not match the scales {scales}")
        if bias is not None and bias.shape != (w.shape[0],):
            raise fail(op, f"the bias {bias} does not match {w.shape[0]} columns")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        x, w = op.inputs[:2]
        assert x is not None and w is not None
        return TensorDesc((x.shape[0], w.shape[0]), x.dtype)

    @staticmethod
    def refuse(op: NodeView) -> str:
        x, w = op.inputs[:2]
        assert x is not None and w is not None
        return "an operand has no elements" if 0 in (*x.shape, *w.shape) else ""

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        if not decomposes(PackedMatMul, op, builder.target):
            return NotImplemented
        x, w, scales, zeros, bias = (*values, None, None)[:5]
        attrs = {"bits": op.bits, "group": op.group, "signed": op.signed}
        if desc_of(x).dtype == "bfloat16":  # for a target that computes in float32
            wide = [_cast(builder, v, "float32") for v in (x, bias)]
            return _cast(
                builder, builder.op("PackedMatMul", wide[0], w, scales, zeros, wide[1], **attrs), "bfloat16"
            )
        depth = desc_of(x).shape[1]
        place = np.arange(depth, dtype=np.int64) // op.group
        level = _levels(builder, w, op, depth)
        if zeros is not None:
            level = builder.op("Sub", level, builder.op("Gather", zeros, place, axis=1))
        weights = builder.op("Mul", level, builder.op("Gather", scales, place, axis=1))
        return builder.op("MatMul", x, weights, bias, transpose_b=True)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        x, w, scales, zeros, bias = (*arrays, None, None)[:5]
        assert x is not None and w is not None and scales is not None
        level = unpack_levels(w.view(np.uint8), op.bits)[:, : x.shape[1]].astype(np.float32)
        middle = 1 << (op.bits - 1)
        level = np.where(level < middle, level, level - 2 * middle) if _is_signed(op) else level - middle
        place = np.arange(x.shape[1]) // op.group
        wide = (level if zeros is None else level - zeros[:, place]) * scales[:, place]
        y = x.astype(np.float32) @ wide.T
        y = y if bias is None else y + bias.astype(np.float32)
        return [y.astype(numpy_dtype(op.inputs[0].dtype))]  # type: ignore[union-attr]

    @staticmethod
    def task(op: NodeView, inputs: list[View | None], outputs: list[View]) -> Task:
        optional = {"has_zeros": _ZEROS, "has_bias": _BIAS}
        given = {name: at < len(inputs) and inputs[at] is not None for name, at in optional.items()}
        attrs = {"bits": op.bits, "group": op.group, "signed": _is_signed(op), **given}
        views = [v for v in inputs if v is not None]
        return Task(_KIND, op.name, views, outputs, attrs, flops=PackedMatMul.flops(op))

    @staticmethod
    def flops(op: NodeView) -> int:
        return 2 * op.inputs[0].size * op.inputs[1].shape[0]  # type: ignore[union-attr]


def _is_signed(op: NodeView) -> bool:
    return op.signed or op.inputs[1].dtype == "int8"  # type: ignore[union-attr]


def _levels(b: Any, weights: Any, op: NodeView, depth: int) -> Any:
    """The levels of weights in float32, centred for unsigned ones."""
    desc = desc_of(weights)
    if desc.dtype == "int8":
        return b.op("Cast", weights, to="float32")
    if op.bits == 4:
        rows, count = desc.shape
        low = b.op("BitwiseAnd", weights, np.uint8(15))
        high = b.op("ShiftRight", weights, np.uint8(4))
        pairs = [b.op("Reshape", v, shape=[rows, count, 1]) for v in (low, high)]
        weights = b.op("Reshape", b.op("Concat", *pairs, axis=2), shape=[rows, 2 * count])
        weights = b.op("Slice", weights, starts=[0, 0], ends=[rows, depth])
    middle = 1 << (op.bits - 1)
    if op.signed:  # with the top bit flipped, levels count from the middle
        weights = b.op("BitwiseXor", weights, np.uint8(middle))
    return b.op("Sub", b.op("Cast", weights, to="float32"), float(middle))


# -- ATen ------------------------------------------------------------------------------------------------


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
        raise Unsupported("4-bit weights that are not parameters", "compile the model for inference")
    if packed.shape[0] * 8 == depth:
        return np.ascontiguousarray(packed.T).view(np.uint8)
    levels = unpack_levels(np.ascontiguousarray(packed).view(np.uint8), 4)
    return pack_levels(np.ascontiguousarray(levels.T), 4)
