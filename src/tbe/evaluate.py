"""The NumPy interpreter of tensor expressions: constant folding, and the oracle for generated kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tbe import expr as e
from tbe.dtypes import DTYPES, numpy_dtype
from tbe.substitute import inputs_first

__all__ = ["evaluate"]

Array = np.ndarray
_ULP_LIBRARY = frozenset(
    [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "gelu_slope",
        "narrow_gelu_slope",
        "narrow_normal_share",
        "narrow_tanh_gelu_slope",
        "normal_excess",
        "tanh_gelu_slope",
        "tanh_normal_excess",
        "sigmoid",
        "softplus",
        "lgamma",
        "digamma",
    ]
)


_LARGE_MATRIX = 1 << 18  # bytes; smaller ones stay in the cache while they are copied
_STRIP = 32  # columns


def evaluate(outputs: Sequence[e.Tensor], values: Mapping[e.Tensor, Array]) -> list[Array]:
    """Evaluate `outputs`, given the values of their placeholders."""
    known: dict[int, Array] = {}
    for tensor, value in values.items():
        value = np.asarray(value)
        if value.shape != tensor.shape or value.dtype != numpy_dtype(tensor.dtype):
            raise ValueError(f"{tensor!r} given an array {value.dtype}{list(value.shape)}")
        known[id(tensor)] = value
    with np.errstate(all="ignore"):
        for tensor in inputs_first(outputs, known):
            known[id(tensor)] = _evaluate(tensor, known)
    return [_contiguous(known[id(t)]).reshape(t.shape) for t in outputs]


def _contiguous(array: Array) -> Array:
    """A row-major array. Transposed matrices are copied in strips, three times as fast as NumPy does it."""
    if array.ndim != 2 or not array.flags.f_contiguous or array.nbytes < _LARGE_MATRIX:
        return np.ascontiguousarray(array)
    result = np.empty(array.shape, array.dtype)
    for start in range(0, array.shape[1], _STRIP):
        result[:, start : start + _STRIP] = array[:, start : start + _STRIP]
    return result


def _evaluate(t: e.Tensor, known: Mapping[int, Array]) -> Array:
    if isinstance(t, e.Placeholder):
        raise ValueError(f"no value given for placeholder {t.name!r} {t!r}")
    rule = _RULES[type(t)]
    return rule(t, *(known[id(x)] for x in t.inputs))


# ---------------------------------------------------------------------------------------------------------
# Elementwise arithmetic, shared by tensors and scalars
# ---------------------------------------------------------------------------------------------------------


def _unary(op: str, x: Array, dtype: str) -> Array:
    if op in _ULP_LIBRARY and dtype != "float64":
        return _UNARY[op](x.astype(np.float64)).astype(x.dtype)
    if dtype in ("float16", "bfloat16"):
        y = _UNARY[op](x.astype(np.float32))
        return y if y.dtype == np.bool_ else y.astype(x.dtype)
    if DTYPES[dtype].is_int and op in ("floor", "ceil", "round", "trunc"):
        return x
    return _UNARY[op](x)


def _binary(op: str, a: Array, b: Array, dtype: str) -> Array:
    if DTYPES[dtype].is_int and op in _INTEGER:
        return _INTEGER[op](a, b)
    if op in ("pow", "atan2") and dtype != "float64":
        return _BINARY[op](a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)
    if dtype in ("float16", "bfloat16"):
        y = _BINARY[op](a.astype(np.float32), b.astype(np.float32))
        return y if y.dtype == np.bool_ else y.astype(a.dtype)
    return _BINARY[op](a, b)


def _cast(x: Array, source: str, target: str) -> Array:
    to = numpy_dtype(target)
    if target == "bool":
        return x != 0
    if DTYPES[source].is_float and DTYPES[target].is_int:
        return _saturate(x.astype(np.float64), DTYPES[target])
    if DTYPES[source].is_int and target in ("float16", "bfloat16"):
        return x.astype(np.float32).astype(to)
    return x.astype(to)


def _saturate(x: Array, to: Any) -> Array:
    inside = (x > float(to.min) - 1) & (x < 2.0 ** math.ceil(math.log2(float(to.max) + 1)))
    y = np.where(inside, x, 0.0).astype(to.numpy)
    y = np.where(x >= float(to.max), to.numpy.type(to.max), y)
    return np.where(x <= float(to.min), to.numpy.type(to.min), y)


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _sigmoid(x: Array) -> Array:
    tail = np.exp(-np.abs(x))  # NaN for NaN
    return np.where(x >= 0, 1.0, tail) / (1.0 + tail)


def _per_element(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(function, otypes=[np.float64])


def _normal_excess(x: float) -> float:
    """The normal distribution function of x minus 1/2, its value at zero."""
    return 0.5 * math.erf(x * math.sqrt(0.5))


def _gelu_slope(x: float) -> float:
    """The derivative of x times the normal distribution function of x, minus 1/2, its value at zero."""
    if math.isinf(x):
        return math.copysign(0.5, x)
    return _normal_excess(x) + x * math.exp(-0.5 * min(x * x, 2000)) / math.sqrt(2 * math.pi)


def _tanh_normal_excess(x: float) -> float:
    """An approximation of normal_excess by a tanh."""
    return 0.5 * math.tanh(_near_erf(x))


def _near_erf(x: float) -> float:
    return math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)


def _tanh_gelu_slope(x: float) -> float:
    """The corresponding approximation of gelu_slope."""
    if abs(x) > 40:
        return math.copysign(0.5, x)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return _tanh_normal_excess(x) + 0.5 * x * slope / math.cosh(min(abs(_near_erf(x)), 350)) ** 2


def _lgamma(x: float) -> float:
    if abs(x) > 2e305 or (x <= 0 and x == math.floor(x)):
        return math.inf
    return math.lgamma(x)


def _digamma(x: float) -> float:
    if math.isnan(x) or x == -math.inf:
        return math.nan
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        fraction = math.fmod(x, 1.0)
        return math.nan if fraction == 0 else _digamma(1 - x) - math.pi / math.tan(math.pi * fraction)
    shift = 0.0
    while x < 10:
        shift -= 1 / x
        x += 1
    s = 1 / (x * x) if x < 1e150 else 0.0
    series = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
    total = 0.0
    for c in reversed(series):
        total = (total + c) * s
    return shift + math.log(x) - 0.5 / x - total


_UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "neg": np.negative,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": lambda x: x.dtype.type(1) / x,
    "square": np.square,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _per_element(math.erf),
    "erfc": _per_element(math.erfc),
    "gelu_slope": _per_element(_gelu_slope),
    "narrow_gelu_slope": _per_element(lambda x: 0.5 + _gelu_slope(x)),
    "narrow_tanh_gelu_slope": _per_element(lambda x: 0.5 + _tanh_gelu_slope(x)),
    "narrow_normal_share": _per_element(lambda x: 0.5 * math.erfc(-x * math.sqrt(0.5))),
    "normal_excess": _per_element(_normal_excess),
    "tanh_gelu_slope": _per_element(_tanh_gelu_slope),
    "tanh_normal_excess": _per_element(_tanh_normal_excess),
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "not": np.logical_not,
    "bitwise_not": np.invert,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "sigmoid": _sigmoid,
    "softplus": _softplus,
    "lgamma": _per_element(_lgamma),
    "digamma": _per_element(_digamma),
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
}

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": lambda a, b: np.floor(a / b),
    "mod": lambda a, b: _floor_mod(a, b),
    "fmod": np.fmod,
    "pow": np.power,
    "max": np.maximum,
    "min": np.minimum,
    "atan2": np.arctan2,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _floor_mod(a: Array, b: Array) -> Array:
    """Remainder with the sign of the divisor; unlike NumPy's, also exact for an infinite divisor."""
    r = np.fmod(a, b)
    return np.where((r != 0) & ((r < 0) != (b < 0)), r + b, np.where(r == 0, np.copysign(r, b), r))


def _int_floordiv(a: Array, b: Array) -> Array:
    return np.floor_divide(a, b)  # NumPy: x // 0 = 0, INT_MIN // -1 = INT_MIN


def _int_mod(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, np.remainder(a, b)).astype(a.dtype)


def _int_fmod(a: Array, b: Array) -> Array:
    return np.where(b == 0, 0, np.fmod(a, b)).astype(a.dtype)


def _int_div(a: Array, b: Array) -> Array:
    quotient = np.floor_divide(a, b)
    inexact = (b != 0) & (quotient * b != a)
    negative = (a < 0) != (b < 0)
    return np.where(inexact & negative, quotient + 1, quotient).astype(a.dtype)


def _int_pow(a: Array, b: Array) -> Array:
    """Wrapping powers; a negative exponent gives 0 except for bases 1 and -1."""
    exponent = np.maximum(b, 0)
    result = np.power(a, exponent)
    odd = (b & b.dtype.type(1)) != 0
    unit = np.where(a == 1, 1, np.where(a.astype(np.int64) == -1, np.where(odd, -1, 1), 0)).astype(a.dtype)
    return np.where(b < 0, unit, result).astype(a.dtype)


def _shift(function: Callable[..., Array], right: bool) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        outside = (b < 0) | (b >= bits)
        amount = np.where(outside, 0, b).astype(a.dtype)
        overflow = np.where(a < 0, -1, 0).astype(a.dtype) if right else np.zeros_like(a)
        return np.where(outside, overflow, function(a, amount)).astype(a.dtype)

    return shift


_INTEGER: dict[str, Callable[[Array, Array], Array]] = {
    "div": _int_div,
    "floordiv": _int_floordiv,
    "mod": _int_mod,
    "fmod": _int_fmod,
    "pow": _int_pow,
    "shl": _shift(np.left_shift, right=False),
    "shr": _shift(np.right_shift, right=True),
}


# ---------------------------------------------------------------------------------------------------------
# Structured nodes
# ---------------------------------------------------------------------------------------------------------


def _slice(t: e.Slice, x: Array) -> Array:
    if not t.size:
        return np.empty(t.shape, x.dtype)
    index: list[Any] = []
    for start, step, extent in zip(t.starts, t.steps, t.shape, strict=False):
        if step == 0:
            index.append(np.full(extent, start))
            continue
        stop = start + extent * step
        index.append(slice(start, None if stop < 0 else stop, step))
    for axis, i in enumerate(index):
        x = x[(slice(None),) * axis + (i,)]
    return x


def _pad(t: e.Pad, x: Array) -> Array:
    out = np.full(t.shape, t.value, x.dtype)
    out[tuple(slice(low, low + d) for low, d in zip(t.low, x.shape, strict=False))] = x
    return out


def _iota(t: e.Iota) -> Array:
    extent = t.shape[t.axis]
    line = _cast(np.arange(extent), "int64", t.dtype)
    return np.broadcast_to(line.reshape([extent if i == t.axis else 1 for i in range(len(t.shape))]), t.shape)


def _take(t: e.Take, x: Array, indices: Array) -> Array:
    if not t.size:
        return np.empty(t.shape, x.dtype)
    extent, batch = x.shape[t.axis], t.batch_dims
    index = indices.astype(np.int64)
    index = np.clip(np.where(index < 0, index + extent, index), 0, extent - 1)
    if not batch:
        return np.take(x, index, axis=t.axis)
    lead = math.prod(x.shape[:batch])
    flat = x.reshape((lead, *x.shape[batch:]))
    rows = index.reshape((lead, *indices.shape[batch:]))
    return np.stack([np.take(flat[i], rows[i], axis=t.axis - batch) for i in range(lead)]).reshape(t.shape)


_NEUTRAL: dict[str, Callable[[Any], Any]] = {
    "sum": lambda d: 0,
    "prod": lambda d: 1,
    "max": lambda d: d.min,
    "min": lambda d: d.max,
}
_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": np.add.reduce,
    "prod": np.multiply.reduce,
    "max": np.maximum.reduce,
    "min": np.minimum.reduce,
}
_SCAN = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _wide(x: Array, op: str) -> Array:
    """The array in its accumulation type."""
    if op in ("sum", "prod") and x.dtype.name in ("float16", "bfloat16", "float32"):
        return x.astype(np.float64)
    return x.astype(np.float32) if x.dtype.name == "bfloat16" else x


def _reduce(t: e.Reduce, x: Array) -> Array:
    if t.op in ("any", "all"):
        return (np.any if t.op == "any" else np.all)(x, axis=t.axes).reshape(t.shape)
    if t.op in ("argmax", "argmin"):
        return _arg_reduce(t, x)
    initial = _NEUTRAL[t.op](DTYPES[t.dtype])
    wide = _wide(x, t.op)
    return (
        _REDUCE[t.op](wide, axis=t.axes, initial=wide.dtype.type(initial), dtype=wide.dtype)
        .astype(x.dtype)
        .reshape(t.shape)
    )


def _arg_reduce(t: e.Reduce, x: Array) -> Array:
    kept = [i for i in range(x.ndim) if i not in t.axes]
    rows = x.transpose([*kept, *t.axes]).reshape(
        [x.shape[i] for i in kept] + [math.prod(x.shape[i] for i in t.axes)]
    )
    rows = rows.astype(np.float32) if rows.dtype.name == "bfloat16" else rows
    pick = np.argmax if t.op == "argmax" else np.argmin
    if t.last:
        return (rows.shape[-1] - 1 - pick(rows[..., ::-1], axis=-1)).astype(np.int64).reshape(t.shape)
    return pick(rows, axis=-1).astype(np.int64).reshape(t.shape)


def _scan(t: e.Scan, x: Array) -> Array:
    line = np.moveaxis(_wide(x, t.op), t.axis, 0)
    line = line[::-1] if t.reverse else line
    out = _SCAN[t.op].accumulate(line, axis=0, dtype=line.dtype) if line.shape[0] else line
    if t.exclusive and line.shape[0]:
        first = np.full_like(line[:1], _NEUTRAL[t.op](DTYPES[t.dtype]))
        out = np.concatenate([first, out[:-1]])
    out = out[::-1] if t.reverse else out
    return np.moveaxis(out, 0, t.axis).astype(x.dtype)


def _compute(t: e.Compute, *values: Array) -> Array:
    known: dict[int, Array] = {}
    rank = len(t.shape)
    for axis, var in enumerate(t.vars):
        shape = [var.extent if i == axis else 1 for i in range(rank)]
        known[id(var)] = np.arange(var.extent, dtype=np.int64).reshape(shape)
    if not t.size:
        return np.empty(t.shape, numpy_dtype(t.dtype))
    tensors = {id(x): v for x, v in zip(t.inputs, values, strict=False)}
    return np.broadcast_to(_scalar(t.body, known, tensors), t.shape)


def _scalar(s: e.Scalar, known: dict[int, Array], tensors: Mapping[int, Array]) -> Array:
    value = known.get(id(s))
    if value is not None:
        return value
    args = [_scalar(a, known, tensors) for a in s.args]
    if isinstance(s, e.Const):
        value = np.array(s.value, numpy_dtype(s.dtype))
    elif isinstance(s, e.Load):
        x = tensors[id(s.tensor)]
        value = x[tuple(np.clip(i, 0, d - 1) for i, d in zip(args, x.shape, strict=False))] if x.ndim else x
    else:
        assert isinstance(s, e.ScalarOp)
        value = np.asarray(_scalar_op(s, args))
    known[id(s)] = value
    return value


def _scalar_op(s: e.ScalarOp, args: list[Array]) -> Array:
    if s.op == "select":
        return np.where(*args)
    if s.op == "cast":
        return _cast(args[0], s.args[0].dtype, s.dtype)
    if len(args) == 1:
        return _unary(s.op, args[0], s.args[0].dtype)
    return _binary(s.op, args[0], args[1], s.args[0].dtype)


_RULES: dict[type, Callable[..., Array]] = {
    e.Constant: lambda t: np.array(t.value, numpy_dtype(t.dtype)),
    e.Unary: lambda t, x: np.asarray(_unary(t.op, x, t.inputs[0].dtype)),
    e.Binary: lambda t, a, b: np.asarray(_binary(t.op, a, b, t.inputs[0].dtype)),
    e.Select: lambda t, c, a, b: np.broadcast_to(np.where(c, a, b), t.shape),
    e.Cast: lambda t, x: _cast(x, t.inputs[0].dtype, t.dtype),
    e.Broadcast: lambda t, x: np.broadcast_to(x, t.shape),
    e.Reshape: lambda t, x: x.reshape(t.shape),
    e.Transpose: lambda t, x: x.transpose(t.perm),
    e.Slice: _slice,
    e.Pad: _pad,
    e.Concat: lambda t, *parts: np.concatenate(parts, axis=t.axis),
    e.Iota: _iota,
    e.Take: _take,
    e.Compute: _compute,
    e.Reduce: _reduce,
    e.Scan: _scan,
}
