"""ONNX's narrow element types (8-bit and 4-bit floats, 4-bit and 2-bit integers), kept in bytes.

A value of such a type is stored as int8 (signed integers) or uint8 (unsigned integers, codes of floats) and
remembers its type (`facts.narrow`). Only conversions, quantisation, movements and tables of levels take such values.

A value of type "string" holds the 64-bit identifiers of strings (`ge.interface.strings`), which are moved, compared and
looked up like any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from ge.interface.strings import identify
from ge.ir import facts
from ge.ir.types import dtype_from_ir, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Node, Results, Unsupported, find, plugin

__all__ = [
    "MOVES",
    "NARROW",
    "TAKES_NARROW",
    "TAKES_TEXT",
    "TEXT",
    "TEXT_MOVES",
    "narrow_name",
    "store",
    "stored_array",
]

TEXT = "string"


@dataclass(frozen=True)
class Narrow:
    """A narrow type: its NumPy type, how it is stored, and what it holds."""

    name: str
    numpy: Any
    storage: str
    bits: int
    is_float: bool


_LABELS = {
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    "float8e8m0": "float8_e8m0fnu",
    "float4e2m1": "float4_e2m1fn",
}


def _narrow(name: str, storage: str, bits: int) -> Narrow:
    numpy = np.dtype(getattr(ml_dtypes, _LABELS.get(name, name)))
    return Narrow(name, numpy, storage, bits, name.startswith("float"))


NARROW = {
    n.name: n
    for n in (
        _narrow("float8e4m3fn", "uint8", 8),
        _narrow("float8e4m3fnuz", "uint8", 8),
        _narrow("float8e5m2", "uint8", 8),
        _narrow("float8e5m2fnuz", "uint8", 8),
        _narrow("float8e8m0", "uint8", 8),
        _narrow("float4e2m1", "uint8", 4),
        _narrow("int4", "int8", 4),
        _narrow("uint4", "uint8", 4),
        _narrow("int2", "int8", 2),
        _narrow("uint2", "uint8", 2),
    )
}
_BY_NUMPY = {n.numpy: n for n in NARROW.values()}

# Operators that only move data: the result has the type of the first input.
MOVES = frozenset(
    {
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
TAKES_NARROW = MOVES | {
    "Cast",
    "CastLike",
    "DequantizeLinear",
    "GatherBlockQuantized",
    "QuantizeLinear",
    "Shape",
    "Size",
}

# The same for strings, with the input whose type the result has.
TEXT_MOVES = {
    **dict.fromkeys(MOVES, 0),
    **dict.fromkeys(
        ("ArrayFeatureExtractor", "GatherElements", "GatherND", "ScatterElements", "ScatterND"), 0
    ),
    "Where": 1,
}
TAKES_TEXT = frozenset(TEXT_MOVES) | {
    *("CategoryMapper", "Equal", "LabelEncoder", "OneHotEncoder", "Shape", "Size", "ZipMap"),
    *("ConcatFromSequence", "SplitToSequence"),
}


def narrow_name(code: int) -> str:
    """The name of a narrow type by its ONNX number, "" for others (and for strings)."""
    if code not in onnx.TensorProto.DataType.values():
        return ""
    name = onnx.TensorProto.DataType.Name(code).lower()
    return name if name in NARROW else ""


def stored_array(array: np.ndarray) -> tuple[np.ndarray, str]:
    """Storage form of an array of a narrow type, and the type's name; other arrays unchanged."""
    if array.dtype.kind in "OSU":
        return identify(array), TEXT
    kind = _BY_NUMPY.get(array.dtype)
    if kind is None:
        return array, ""
    if not kind.is_float:
        return array.astype(numpy_dtype(kind.storage)), kind.name
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape), kind.name


def store(builder: GraphBuilder, array: np.ndarray, name: str) -> ir.Value:
    """A constant, of a narrow type or not."""
    plain, kind = stored_array(array)
    value = builder.constant(plain, name)
    if kind:
        facts.set_narrow(value, kind)
    return value


# -- conversions -------------------------------------------------------------------------------------------


@cache
def _decoded(name: str) -> np.ndarray:
    """The number behind each code."""
    codes = np.arange(1 << NARROW[name].bits, dtype=np.uint8)
    return codes.view(NARROW[name].numpy).astype(np.float32)


def decode(builder: GraphBuilder, value: Any) -> Any:
    """Convert a narrow value to float32 (integers keep their storage type)."""
    kind = NARROW[facts.narrow(value)]
    if not kind.is_float:
        return value
    return builder.op("Gather", _decoded(kind.name), builder.op("Cast", value, to="int32"), axis=0)


@cache
def _ladder(name: str, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes of the numbers from 0 upward, and the rounding threshold between each two.

    The last code is for values beyond the largest number.
    """
    values = _decoded(name)
    codes = np.flatnonzero(np.isfinite(values) & ~np.signbit(values))
    codes = codes[np.argsort(values[codes], kind="stable")]
    rungs = values[codes].astype(np.float64)
    top = rungs[-1] + (rungs[-1] - rungs[-2] if mode == "nearest" else rungs[-1])
    low, high = rungs, np.append(rungs[1:], top)
    if mode == "up":
        limits = low
    elif mode == "down":
        limits = np.nextafter(high.astype(np.float32), np.float32(-np.inf)).astype(np.float64)
    else:
        limits = (low + high) / 2
        even_above = (np.append(codes[1:], codes[-1] + 1) % 2) == 0
        below = np.nextafter(limits.astype(np.float32), np.float32(-np.inf)).astype(np.float64)
        limits = np.where(even_above, below, limits)
    return codes, limits.astype(np.float32)


def encode(builder: GraphBuilder, x: Any, name: str, saturate: bool = True, mode: str = "nearest") -> Any:
    """Encode float32 numbers by a search among the type's numbers."""
    kind = NARROW[name]
    codes, limits = _ladder(name, mode if name == "float8e8m0" else "nearest")
    size = builder.op("Abs", x)
    rung = builder.op("Mul", builder.op("Cast", x, to="int32"), 0)
    step = 1 << (len(limits) - 1).bit_length()
    padded = np.append(limits, np.full(2 * step, np.inf, np.float32))
    while step:
        probe = builder.op("Add", rung, step - 1)
        above = builder.op("Greater", size, builder.op("Gather", padded, probe, axis=0))
        rung = builder.op("Select", above, builder.op("Add", rung, step), rung)
        step //= 2
    infinite, invalid, negative = _special_codes(kind)
    beyond = codes[-1] if saturate else infinite
    table = np.append(codes, beyond).astype(np.int32)
    code = builder.op("Gather", table, builder.op("Minimum", rung, len(codes)), axis=0)
    if negative:
        zero = builder.op("Equal", code, 0) if "fnuz" in name else None
        signed = builder.op("BitwiseOr", code, negative)
        below = builder.op("Less", x, 0.0) if zero is not None else _is_negative(builder, x)
        code = builder.op("Select", below, signed, code)
        code = code if zero is None else builder.op("Select", zero, 0, code)
    code = builder.op("Select", builder.op("IsNan", x), invalid, code)
    value = builder.op("Cast", code, to=kind.storage)
    facts.set_narrow(value, name)
    return value


def _is_negative(builder: GraphBuilder, x: Any) -> Any:
    """True if the sign bit is set, also for -0."""
    return builder.op("Less", builder.op("BitCast", x, to="int32"), 0)


def _special_codes(kind: Narrow) -> tuple[int, int, int]:
    """The codes of infinity (NaN if there is none) and of NaN, and the sign bit."""
    values = _decoded(kind.name)
    nans = np.flatnonzero(np.isnan(values))
    invalid = int(nans[0]) if len(nans) else 0
    infinities = np.flatnonzero(np.isposinf(values))
    sign = 0 if kind.name == "float8e8m0" else 1 << (kind.bits - 1)
    return (int(infinities[0]) if len(infinities) else invalid), invalid, sign


def _wrapped(builder: GraphBuilder, x: Any, kind: Narrow) -> Any:
    """Wrap integers to their lowest bits."""
    whole = builder.op("Cast", x, to="int32")
    low = builder.op("BitwiseAnd", whole, (1 << kind.bits) - 1)
    if kind.storage == "int8":
        half = 1 << (kind.bits - 1)
        low = builder.op("Sub", builder.op("BitwiseXor", low, half), half)
    value = builder.op("Cast", low, to=kind.storage)
    facts.set_narrow(value, kind.name)
    return value


def converted(n: Node, value: Any, to: str) -> Any:
    """Convert a value between types, narrow or not."""
    plain = decode(n.builder, value) if facts.narrow(value) else value
    kind = NARROW.get(to)
    if kind is None:
        return n.op("Identity", plain) if desc_of(plain).dtype == to else n.op("Cast", plain, to=to)
    if not kind.is_float:
        return _wrapped(n.builder, plain, kind)
    real = plain if desc_of(plain).dtype == "float32" else n.op("Cast", plain, to="float32")
    saturate = bool(n.attr("saturate", 1))
    return encode(n.builder, real, to, saturate, n.attr("round_mode", "up"))


# -- plugins -----------------------------------------------------------------------------------------------


def _usual(n: Node) -> Results:
    """Apply the operator's own plugin."""
    found = find("onnx", n.type, 0)
    assert found is not None
    return found.function(n)


def _type_of(value: ir.Value | None) -> str:
    assert value is not None
    return facts.narrow(value) or desc_of(value).dtype


@plugin(onnx="Cast", since=19)
def _cast(n: Node) -> Results:
    to = narrow_name(int(n.attr("to", 0)))
    if not to and not facts.narrow(n.inputs[0]):
        return _usual(n)
    return converted(n, n.inputs[0], to or n.element_type("to"))


@plugin(onnx="CastLike", since=19)
def _cast_like(n: Node) -> Results:
    return converted(n, n.inputs[0], _type_of(n.inputs[1]))


@plugin(onnx="QuantizeLinear", since=19)
def _quantize(n: Node) -> Results:
    to = narrow_name(int(n.attr("output_dtype", 0) or 0))
    to = to or (facts.narrow(n.inputs[2]) if n.input(2) is not None else "")
    if not to:
        return _usual(n)
    kind = NARROW[to]
    axis, block = (0 if n.desc(1).size == 1 else int(n.attr("axis", 1))), int(n.attr("block_size", 0))
    if kind.is_float:
        scaled = n.op("Div", _real(n, n.inputs[0]), _spread(n, n.inputs[1], axis, block))
        return encode(n.builder, scaled, to, bool(n.attr("saturate", 1)))
    level = n.op("Quantize", *n.inputs[:3], axis=axis, block_size=block, dtype=kind.storage)
    half = 1 << (kind.bits - 1)
    low, high = (-half, half - 1) if kind.storage == "int8" else (0, 2 * half - 1)
    value = n.op("Clip", level, min=float(low), max=float(high))
    facts.set_narrow(value, to)
    return value


@plugin(onnx="DequantizeLinear", since=19)
def _dequantize(n: Node) -> Results:
    kind = NARROW.get(facts.narrow(n.inputs[0]))
    if kind is None or not kind.is_float:
        return _usual(n)
    if n.input(2) is not None and (known := n.maybe_const(2)) is not None and known.any():
        raise Unsupported(f"a zero point of {kind.name} other than 0 has no meaning")
    axis, block = (0 if n.desc(1).size == 1 else int(n.attr("axis", 1))), int(n.attr("block_size", 0))
    scaled = n.op("Mul", decode(n.builder, n.inputs[0]), _spread(n, n.inputs[1], axis, block))
    to = n.element_type("output_dtype") or n.desc(1).dtype
    return scaled if to == "float32" else n.op("Cast", scaled, to=to)


def _real(n: Node, value: Any) -> Any:
    return value if desc_of(value).dtype == "float32" else n.op("Cast", value, to="float32")


def _spread(n: Node, scale: Any, axis: int, block: int) -> Any:
    """A scale (one number, or one per element or block of an axis), to broadcast with the first input."""
    scale, shape = _real(n, scale), n.desc().shape
    given, rank = desc_of(scale).shape, len(shape)
    if desc_of(scale).size == 1:
        return n.op("Reshape", scale, shape=[])
    axis = axis % rank
    if len(given) == 1:
        return n.op("Reshape", scale, shape=[given[0] if i == axis else 1 for i in range(rank)])
    block = block or -(-shape[axis] // given[axis])
    apart = n.op("Reshape", scale, shape=[*given[: axis + 1], 1, *given[axis + 1 :]])
    wide = n.op("BroadcastTo", apart, shape=[*given[: axis + 1], block, *given[axis + 1 :]])
    flat = n.op("Reshape", wide, shape=[*given[:axis], given[axis] * block, *given[axis + 1 :]])
    return n.op("Slice", flat, starts=[0] * rank, ends=list(shape))


def plain_dtype(code: int) -> tuple[str, str]:
    """Storage type of an ONNX element type, and its name if narrow; KeyError for unsupported types."""
    if code == onnx.TensorProto.STRING:
        return "int64", TEXT
    name = narrow_name(code)
    return (NARROW[name].storage, name) if name else (dtype_from_ir(ir.DataType(code)), "")
