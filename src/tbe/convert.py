"""Conversions between element types: in registers, and between registers and memory.

In registers, float16 and bfloat16 numbers are float32 numbers that are exactly representable in 16 bits, and a bool is
one bit. In memory they have their own sizes; a bool is one byte.
"""

from __future__ import annotations

from tbe.dtypes import DTYPES
from tbe.ir import Builder, Value

__all__ = ["from_memory", "memory_type", "register_type", "rounded", "to_dtype", "to_memory"]

_REGISTER = {"float64": "double", "float32": "float", "float16": "float", "bfloat16": "float", "bool": "i1"}
_MEMORY = {"float64": "double", "float32": "float", "bfloat16": "i16", "bool": "i8"}


def register_type(dtype: str) -> str:
    """The LLVM element type of a dtype in registers."""
    return _REGISTER.get(dtype) or f"i{DTYPES[dtype].bits}"


def memory_type(b: Builder, dtype: str) -> str:
    """The LLVM element type of a dtype in memory."""
    if dtype == "float16":
        return "half" if b.machine.half else "i16"
    return _MEMORY.get(dtype) or f"i{DTYPES[dtype].bits}"


def from_memory(b: Builder, x: Value, dtype: str) -> Value:
    """Convert a loaded value to its register form."""
    if dtype == "bool":
        return b.icmp("ne", x, b.like(x, 0))
    if dtype == "bfloat16":
        return b.bitcast(b.op("shl", b.convert("zext", x, "i32"), b.const("i32", x.lanes, 16)), "float")
    if dtype == "float16":
        return b.convert("fpext", x, "float") if b.machine.half else _from_half_bits(b, x)
    return x


def to_memory(b: Builder, x: Value, dtype: str) -> Value:
    """Convert a register value to its stored form; 16-bit floats must already be representable."""
    if dtype == "bool":
        return b.convert("zext", x, "i8")
    if dtype == "bfloat16":
        bits = b.bitcast(x, "i32")
        return b.convert("trunc", b.op("lshr", bits, b.const("i32", x.lanes, 16)), "i16")
    if dtype == "float16":
        return b.convert("fptrunc", x, "half") if b.machine.half else _to_half_bits(b, x)
    return x


def rounded(b: Builder, x: Value, dtype: str) -> Value:
    """Round a float32 value to float16 or bfloat16, kept as float32; other types are unchanged."""
    if dtype == "bfloat16":
        return _round_bfloat(b, x)
    if dtype != "float16":
        return x
    if b.machine.half:
        return b.convert("fpext", b.convert("fptrunc", x, "half"), "float")
    return _round_half(b, x)


def _round_bfloat(b: Builder, x: Value) -> Value:
    bits = b.bitcast(x, "i32")

    def number(value: int) -> Value:
        return b.const("i32", x.lanes, value)

    odd = b.op("and", b.op("lshr", bits, number(16)), number(1))
    up = b.op("add", b.op("add", bits, number(0x7FFF)), odd)
    quiet = b.op("or", bits, number(0x400000))
    chosen = b.select(b.fcmp("uno", x, x), quiet, up)
    return b.bitcast(b.op("and", chosen, number(-0x10000)), "float")


def _round_half(b: Builder, x: Value) -> Value:
    """Round to float16 without the instruction: on the bits, or by an addition if the result is subnormal."""

    def number(value: int) -> Value:
        return b.const("i32", x.lanes, value)

    bits = b.bitcast(x, "i32")
    odd = b.op("and", b.op("lshr", bits, number(13)), number(1))
    up = b.op("and", b.op("add", b.op("add", bits, number(0xFFF)), odd), number(-0x2000))
    normal = b.bitcast(up, "float")
    magnitude = b.intrinsic("fabs", x)
    half = b.like(x, 0.5)  # its last bit is that of the smallest float16
    small = b.intrinsic("copysign", b.fsub(b.fadd(magnitude, half), half), x)
    result = b.select(b.fcmp("olt", magnitude, b.like(x, 2.0**-14)), small, normal)
    over = b.fcmp("oge", b.intrinsic("fabs", normal), b.like(x, 65536.0))
    result = b.select(over, b.intrinsic("copysign", b.like(x, float("inf")), x), result)
    quiet = b.bitcast(b.op("and", b.op("or", bits, number(0x400000)), number(-0x2000)), "float")
    return b.select(b.fcmp("uno", x, x), quiet, result)


def _to_half_bits(b: Builder, x: Value) -> Value:
    """The bits of a float32 that is representable as float16."""

    def number(value: int) -> Value:
        return b.const("i32", x.lanes, value)

    bits = b.bitcast(x, "i32")
    magnitude = b.intrinsic("fabs", x)
    rest = b.op("and", bits, number(0x7FFFFFFF))
    normal = b.op("sub", b.op("lshr", rest, number(13)), number(112 << 10))
    scaled = b.fmul(
        b.select(b.fcmp("olt", magnitude, b.like(x, 1.0)), magnitude, b.like(x, 0.0)), b.like(x, 2.0**24)
    )
    subnormal = b.convert("fptosi", scaled, "i32")
    result = b.select(b.fcmp("olt", magnitude, b.like(x, 2.0**-14)), subnormal, normal)
    special = b.op("or", number(0x7C00), b.op("and", b.op("lshr", rest, number(13)), number(0x3FF)))
    result = b.select(b.fcmp("ult", magnitude, b.like(x, float("inf"))), result, special)
    result = b.select(b.fcmp("uno", x, x), special, result)
    sign = b.op("and", b.op("lshr", bits, number(16)), number(0x8000))
    return b.convert("trunc", b.op("or", result, sign), "i16")


def _from_half_bits(b: Builder, x: Value) -> Value:
    def number(value: int) -> Value:
        return b.const("i32", x.lanes, value)

    bits = b.convert("zext", x, "i32")
    rest = b.op("shl", b.op("and", bits, number(0x7FFF)), number(13))
    finite = b.bitcast(b.fmul(b.bitcast(rest, "float"), b.const("float", x.lanes, 2.0**112)), "i32")
    special = b.op("or", rest, number(0x7F800000))
    top = b.op("and", bits, number(0x7C00))
    chosen = b.select(b.icmp("eq", top, number(0x7C00)), special, finite)
    sign = b.op("shl", b.op("and", bits, number(0x8000)), number(16))
    return b.bitcast(b.op("or", chosen, sign), "float")


def to_dtype(b: Builder, x: Value, source: str, target: str) -> Value:
    """Convert a register value from one dtype to another."""
    if source == target:
        return x
    old, new = DTYPES[source], DTYPES[target]
    elem = register_type(target)
    if target == "bool":
        zero = b.like(x, 0.0 if old.is_float else 0)
        return b.fcmp("une", x, zero) if old.is_float else b.icmp("ne", x, zero)
    if old.is_float and new.is_float:
        return _float_to_float(b, x, source, target)
    if old.is_float:
        return _float_to_int(b, x, new.kind, elem)
    if new.is_float:
        opcode = "sitofp" if old.kind == "int" else "uitofp"
        return rounded(b, b.convert(opcode, x, elem), target)
    if new.bits == old.bits:
        return x
    if new.bits < old.bits:
        return b.convert("trunc", x, elem)
    return b.convert("sext" if old.kind == "int" else "zext", x, elem)


def _float_to_float(b: Builder, x: Value, source: str, target: str) -> Value:
    if target == "float64":
        return b.convert("fpext", x, "double")
    if source == "float64":
        x = _narrow_to_odd(b, x) if target == "float16" else b.convert("fptrunc", x, "float")
    return rounded(b, x, target)


def _narrow_to_odd(b: Builder, x: Value) -> Value:
    """Convert float64 to float32 by rounding to odd, so that a second rounding gives the correctly rounded result."""
    near = b.convert("fptrunc", x, "float")
    back = b.convert("fpext", near, "double")
    bits = b.bitcast(near, "i32")
    one = b.const("i32", x.lanes, 1)
    even = b.icmp("eq", b.op("and", bits, one), b.const("i32", x.lanes, 0))
    finite = b.fcmp("olt", b.intrinsic("fabs", back), b.like(x, float("inf")))
    inexact = b.op("and", b.op("and", b.fcmp("one", back, x), even), finite)
    larger = b.fcmp("ogt", b.intrinsic("fabs", back), b.intrinsic("fabs", x))
    moved = b.select(larger, b.op("sub", bits, one), b.op("add", bits, one))
    return b.bitcast(b.select(inexact, moved, bits), "float")


def _float_to_int(b: Builder, x: Value, kind: str, elem: str) -> Value:
    """Truncate; saturate out-of-range values, NaN gives 0."""
    bits = int(elem[1:])
    if x.lanes > 1 and bits < 32:  # LLVM would convert lane by lane
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind == "int" else (0, (1 << bits) - 1)
        if low:
            x = b.select(b.fcmp("uno", x, x), b.like(x, 0.0), x)
        x = b.select(b.fcmp("ogt", x, b.like(x, float(low))), x, b.like(x, float(low)))
        x = b.select(b.fcmp("olt", x, b.like(x, float(high))), x, b.like(x, float(high)))
        return b.convert("trunc", b.convert("fptosi", x, "i32"), elem)
    name = "fptosi" if kind == "int" else "fptoui"
    lanes = "" if x.lanes == 1 else f"v{x.lanes}"
    suffix = f"{lanes}{elem}.{lanes}{'f32' if x.elem == 'float' else 'f64'}"
    return b.intrinsic(f"{name}.sat", x, elem=elem, suffix=suffix)
