"""Integer and bool operations on vectors, with NumPy's semantics; division by zero gives 0 and nothing traps."""

from __future__ import annotations

from tbe.dtypes import DType
from tbe.ir import Builder, Value

__all__ = ["apply_binary", "apply_unary"]

_LOGIC = {"and": "and", "or": "or", "xor": "xor", "bitand": "and", "bitor": "or", "bitxor": "xor"}
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def apply_unary(b: Builder, op: str, x: Value, dtype: DType) -> Value:
    """A unary operation on integers or bools."""
    zero = b.like(x, 0)
    signed = dtype.kind == "int"
    if op in ("not", "bitwise_not"):
        return b.op("xor", x, b.like(x, -1))
    if op == "neg":
        return b.op("sub", zero, x)
    if op == "square":
        return b.op("mul", x, x)
    if op == "abs":
        return b.intrinsic("abs", x, extra=", i1 false") if signed else x
    if op == "relu":
        return b.intrinsic("smax", x, zero) if signed else x
    if op == "sign":
        positive = b.convert("zext", b.icmp("sgt" if signed else "ne", x, zero), x.elem)
        return (
            b.op("sub", positive, b.convert("zext", b.icmp("slt", x, zero), x.elem)) if signed else positive
        )
    raise AssertionError(f"no integer form of {op}")


def apply_binary(b: Builder, op: str, x: Value, y: Value, dtype: DType) -> Value:
    """A binary operation on integers or bools."""
    signed = dtype.kind == "int"
    if op in ("add", "sub", "mul"):
        return b.op(op, x, y)
    if op in _LOGIC:
        return b.op(_LOGIC[op], x, y)
    if op in ("max", "min"):
        return b.intrinsic(("s" if signed else "u") + op, x, y)
    if op in _COMPARE:
        prefix = "" if op in ("eq", "ne") else "s" if signed else "u"
        return b.icmp(prefix + _COMPARE[op], x, y)
    if op in ("shl", "shr"):
        return _shift(b, op, x, y, signed)
    if op == "pow":
        return b.outlined(
            f"pow.{dtype.kind}", [x, y], x.elem, lambda inner, args: _power(inner, args[0], args[1], signed)
        )
    return _divide(b, op, x, y, signed)


def _shift(b: Builder, op: str, x: Value, y: Value, signed: bool) -> Value:
    """Shifts by the width or more (or by a negative count) give zero or copies of the sign bit."""
    width = int(x.elem[1:])
    inside = b.icmp("ult", y, b.like(x, width))
    if op == "shr" and signed:
        amount = b.select(inside, y, b.like(x, width - 1))
        return b.op("ashr", x, amount)
    amount = b.select(inside, y, b.like(x, 0))
    return b.select(inside, b.op("shl" if op == "shl" else "lshr", x, amount), b.like(x, 0))


def _divide(b: Builder, op: str, x: Value, y: Value, signed: bool) -> Value:
    """div and fmod truncate the quotient, floordiv and mod round it down."""
    zero = b.like(x, 0)
    by_zero = b.icmp("eq", y, zero)
    divisor = b.select(by_zero, b.like(x, 1), y)
    if signed:
        minus = b.icmp("eq", y, b.like(x, -1))  # INT_MIN / -1 overflows: negate instead
        divisor = b.select(minus, b.like(x, 1), divisor)
    quotient = _quotient(b, x, divisor, signed)
    rest = b.op("sub", x, b.op("mul", quotient, divisor))
    if signed:
        quotient = b.select(minus, b.op("sub", zero, x), quotient)
    if op == "div" or (op == "floordiv" and not signed):
        return b.select(by_zero, zero, quotient)
    if op == "fmod" or not signed:
        return b.select(by_zero, zero, rest)
    differs = b.icmp("slt", b.op("xor", rest, y), zero)
    adjust = b.op("and", b.icmp("ne", rest, zero), differs)
    if op == "mod":
        return b.select(by_zero, zero, b.select(adjust, b.op("add", rest, y), rest))
    return b.select(by_zero, zero, b.select(adjust, b.op("sub", quotient, b.like(x, 1)), quotient))


def _quotient(b: Builder, x: Value, y: Value, signed: bool) -> Value:
    """Truncated quotient for a nonzero divisor; small types divide as floats, which is exact."""
    width = int(x.elem[1:])
    if width == 64 or x.lanes == 1:
        return b.op("sdiv" if signed else "udiv", x, y)
    real = "float" if width <= 16 else "double"
    up, down = ("sitofp", "fptosi") if signed else ("uitofp", "fptoui")
    return b.convert(down, b.fdiv(b.convert(up, x, real), b.convert(up, y, real)), x.elem)


def _power(b: Builder, x: Value, y: Value, signed: bool) -> Value:
    """Exponentiation by squaring, wrapping; negative exponents give 0 except for bases 1 and -1."""
    one, zero = b.like(x, 1), b.like(x, 0)
    width = int(x.elem[1:])
    negative = b.icmp("slt", y, zero) if signed else None
    odd = b.icmp("ne", b.op("and", y, one), zero)

    def turn(_: Value, carried: list[Value]) -> list[Value]:
        result, base, rest = carried
        use = b.icmp("ne", b.op("and", rest, one), zero)
        result = b.select(use, b.op("mul", result, base), result)
        return [result, b.op("mul", base, base), b.op("lshr", rest, one)]

    start, stop = b.const("i64", 1, 0), b.const("i64", 1, width)
    result = b.loop(start, stop, 1, [one, x, y], turn)[0]
    if negative is None:
        return result
    minus = b.select(odd, b.like(x, -1), one)
    unit = b.select(b.icmp("eq", x, b.like(x, -1)), minus, zero)
    unit = b.select(b.icmp("eq", x, one), one, unit)
    return b.select(negative, unit, result)
