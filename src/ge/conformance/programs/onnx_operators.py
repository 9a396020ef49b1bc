"""Makers of the ONNX operators in random models: choose arguments and attributes.

Choices may be invalid: the reference implementation and the parser reject those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx

from ge.conformance.programs.door import Call, Maker, adder
from ge.conformance.programs.generate import FLOATS, INTEGERS, Draw
from ge.conformance.programs.record import Noise, Value

__all__ = ["NOISE", "OPERATORS"]

OPERATORS: dict[str, tuple[float, Maker]] = {}
_add = adder(OPERATORS)
NOISE: dict[str, Noise] = {}
_NAMES = {"float": "float32", "double": "float64"}

EXACT = (
    "Abs Neg Relu Sign Ceil Floor Round Identity Not And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual Max Min "
    "Clip IsNaN IsInf Where Cast CastLike Shape Size Reshape Flatten Squeeze Unsqueeze Transpose Concat Split Slice "
    "Gather GatherElements GatherND ScatterND ScatterElements Expand Tile Pad DepthToSpace SpaceToDepth Trilu EyeLike "
    "OneHot Range Constant ConstantOfShape NonZero Compress Unique TopK ReverseSequence GlobalMaxPool "
    "ReduceMax ReduceMin BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift If Loop Scan ThresholdedRelu "
    "DequantizeLinear"
)
SUMS = (
    "MatMul Gemm ReduceSum ReduceMean ReduceL1 ReduceSumSquare ReduceL2 ReduceLogSum Einsum CumSum "
    "AveragePool GlobalAveragePool LpPool Mean Sum LayerNormalization RMSNormalization GroupNormalization "
    "InstanceNormalization BatchNormalization LpNormalization ArgMax ArgMin TopK Hardmax Det Resize LSTM GRU RNN "
    "QuantizeLinear Softmax CumProd ReduceProd LRN GridSample DFT Mod Sin Cos Tan"
)
UNIT = "LogSoftmax ReduceLogSumExp Softplus Mish Acosh Atanh Asinh Log Erf Gelu HardSwish HardSigmoid Celu Elu Selu"
NOISE |= dict.fromkeys(EXACT.split(), Noise.NONE) | dict.fromkeys(SUMS.split(), Noise.ARGUMENTS)
NOISE |= dict.fromkeys(UNIT.split(), Noise.UNIT) | dict.fromkeys(("Conv", "ConvTranspose"), Noise.WINDOW)
NOISE["MaxPool"] = Noise.WINDOW  # implementations disagree on the maximum of NaNs or infinities only
# The reference implementation is wrong or inexact in other types, and there is no second one.
_TYPES = {
    **dict.fromkeys(("Erf", "HardSwish", "LpPool", "AveragePool", "GlobalMaxPool"), ("float32",)),
    **dict.fromkeys(("MaxPool",), ("float32", "float64", "int8", "uint8")),
    **dict.fromkeys(("LpNormalization", "LayerNormalization"), ("float32", "float64")),
    **dict.fromkeys(("ReduceSum", "ReduceProd", "ReduceL1", "ReduceSumSquare"), (*FLOATS, "int64", "uint64")),
}


@lru_cache
def _allowed(operator: str, index: int) -> tuple[str, ...]:
    """Element types that an operator's schema allows for an input and the reference supports."""
    if operator in _TYPES:
        return _TYPES[operator]
    schema = onnx.defs.get_schema(operator, 21)
    port = schema.inputs[min(index, len(schema.inputs) - 1)]
    found = [t[len("tensor(") : -1] for t in port.types if t.startswith("tensor(")]
    return tuple(_NAMES.get(t, t) for t in found)


def _attributes(**given: object) -> str:
    def text(value: object) -> str:
        if isinstance(value, str):
            return f'"{value}"'
        if isinstance(value, bool):
            return str(int(value))
        return str(value)

    def typed(name: str, value: object) -> str:
        return f"{name}: ints" if value == [] else name

    items = [f"{typed(k, v)} = {text(v)}" for k, v in given.items() if v is not None]
    return f" <{', '.join(items)}>" if items else ""


def _call(
    operator: str,
    *arguments: Value,
    results: int = 1,
    attributes: Mapping[str, Any] | None = None,
    **more: object,
) -> Call:
    places = ", ".join(f"{{{i}}}" for i in range(len(arguments)))
    text = f"{operator}{_attributes(**{**(attributes or {}), **more})} ({places})"
    return Call(text, arguments, results=results, noise=NOISE.get(operator, Noise.RESULT))


def _ints(d: Draw, values: Sequence[int]) -> Value:
    return d.emit("Constant", Call(f"Constant{_attributes(value_ints=list(values))} ()", noise=Noise.NONE))[0]


def _scalar(d: Draw, value: int) -> Value:
    return d.emit("Constant", Call(f"Constant <value_int = {value}> ()", noise=Noise.NONE))[0]


# -- elementwise ---------------------------------------------------------------------------------------------


@_add(
    "Abs Neg Relu Sign Ceil Floor Round Exp Log Sqrt Reciprocal Sigmoid Tanh Softplus Softsign Erf Sin Cos Tan Asin "
    "Acos Atan Sinh Cosh Asinh Acosh Atanh Not IsNaN IsInf Identity BitwiseNot HardSwish Mish",
    0.6,
)
def _unary(n: str, d: Draw) -> Call:
    return _call(n, d.pick(_allowed(n, 0)))


def _binary(n: str, d: Draw) -> Call:
    x = d.pick(_allowed(n, 0))
    pair = [x, d.broadcast(x)]
    return _call(n, *(pair if d.chance(0.5) else pair[::-1]))


_add("Add Sub Mul", 1.5)(_binary)
_add("Max Min And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual BitwiseAnd BitwiseOr BitwiseXor", 0.6)(
    _binary
)


def _nonzero(d: Draw, value: Value) -> Value:
    """Replace zeros and values whose reciprocal overflows."""
    positive = d.emit("Abs", _call("Abs", value))[0] if not value.dtype.startswith("u") else value
    one = d.input(value.dtype, (), "ones", "constant")
    return d.emit("Max", _call("Max", positive, one))[0]


@_add("Div")
def _div(d: Draw) -> Call:
    x = d.pick(_allowed("Div", 0))
    y = d.broadcast(x)
    return _call("Div", x, y if x.dtype in FLOATS else _nonzero(d, y))


@_add("Mod", 0.5)
def _mod(d: Draw) -> Call:
    x = d.pick(_allowed("Mod", 0))
    return _call("Mod", x, _nonzero(d, d.broadcast(x)), fmod=int(x.dtype in FLOATS or d.chance(0.3)))


@_add("Pow", 0.6)
def _pow(d: Draw) -> Call:
    x = d.pick(FLOATS)
    return _call("Pow", x, d.broadcast(x))


@_add("BitShift", 0.3)
def _shift(d: Draw) -> Call:
    x = d.pick(("uint8", "uint16", "uint32", "uint64"))
    return _call("BitShift", x, d.input(x.dtype, x.shape, "below:7"), direction=d.choice(["LEFT", "RIGHT"]))


@_add("Where", 1.5)
def _where(d: Draw) -> Call:
    x = d.pick()
    y = d.broadcast(x)
    shape = x.shape if d.chance(0.6) else tuple(1 if d.chance(0.3) else n for n in x.shape)
    return _call("Where", d.of("bool", shape), x, y)


@_add("Clip", 0.6)
def _clip(d: Draw) -> Call:
    x = d.pick(_allowed("Clip", 0))
    return _call("Clip", x, d.of(x.dtype, ()), d.of(x.dtype, ()))


@_add("Cast", 1.5)
def _cast(d: Draw) -> Call:
    """Clip first where ONNX leaves out-of-range conversion undefined."""
    x = d.pick()
    to = d.dtype()
    if x.dtype in FLOATS and to in INTEGERS:
        bound = d.emit("Constant", Call("Constant <value_float = 100.0> ()", noise=Noise.NONE))[0]
        low = d.emit(
            "Constant",
            Call(f"Constant <value_float = {'0.0' if to[0] == 'u' else '-100.0'}> ()", noise=Noise.NONE),
        )[0]
        known = d.emit("IsNaN", _call("IsNaN", x))[0]
        ends = [d.emit("CastLike", _call("CastLike", v, x))[0] for v in (low, bound)]
        x = d.emit("Clip", _call("Clip", d.emit("Where", _call("Where", known, ends[0], x))[0], *ends))[0]
    return _call("Cast", x, to=_type_number(to))


def _type_number(name: str) -> int:
    plain = {"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper())
    return int(getattr(onnx.TensorProto, plain))


_SLOPES = {
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "Selu": (),
    "Celu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "ThresholdedRelu": ("alpha",),
    "Shrink": ("bias", "lambd"),
}


@_add(" ".join(_SLOPES), 0.3)
def _sloped(n: str, d: Draw) -> Call:
    given = {k: d.choice([0.25, 0.5, 1.5]) for k in _SLOPES[n] if d.chance(0.7)}
    return _call(n, d.pick(_allowed(n, 0)), attributes=given)


@_add("Gelu", 0.4)
def _gelu(d: Draw) -> Call:
    return _call("Gelu", d.pick(("float32", "float16", "bfloat16")), approximate=d.choice(["none", "tanh"]))


@_add("PRelu", 0.3)
def _prelu(d: Draw) -> Call:
    x = d.pick(_allowed("PRelu", 0))
    return _call("PRelu", x, d.of(x.dtype, x.shape[-1:]))


@_add("Sum Mean", 0.3)
def _several(n: str, d: Draw) -> Call:
    x = d.pick(_allowed(n, 0))
    return _call(n, x, *(d.broadcast(x) for _ in range(d.integer(0, 2))))


# -- reductions and products ---------------------------------------------------------------------------------


@_add(
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp "
    "ReduceLogSum",
    0.5,
)
def _reduce(n: str, d: Draw) -> Call:
    # Integer means depend on the implementation's division.
    x = d.pick(FLOATS if n == "ReduceMean" else _allowed(n, 0))
    keep = d.integer(0, 1)
    if d.chance(0.2):
        return _call(n, x, keepdims=keep)
    axes = [a - len(x.shape) if d.chance(0.3) else a for a in d.axes(x)]
    return _call(n, x, _ints(d, axes), keepdims=keep, noop_with_empty_axes=d.integer(0, 1))


@_add("Softmax LogSoftmax Hardmax", 0.5)
def _softmax(n: str, d: Draw) -> Call:
    x = d.pick(_allowed(n, 0), (1, 2, 3, 4))
    return _call(n, x, axis=d.axis(x))


@_add("ArgMax ArgMin", 0.5)
def _arg(n: str, d: Draw) -> Call:
    x = d.pick(_allowed(n, 0), (1, 2, 3, 4))
    return _call(n, x, axis=d.axis(x), keepdims=d.integer(0, 1), select_last_index=d.integer(0, 1))


@_add("CumSum", 0.4)
def _cumsum(d: Draw) -> Call:
    x = d.pick(_allowed("CumSum", 0), (1, 2, 3))
    return _call("CumSum", x, _scalar(d, d.axis(x)), exclusive=d.integer(0, 1), reverse=d.integer(0, 1))


@_add("MatMul", 2.0)
def _matmul(d: Draw) -> Call:
    x = d.pick(_allowed("MatMul", 0), (1, 2, 3, 4))
    n = d.choice([1, 2, 3, 5, 8, 16])
    k = x.shape[-1]
    shape = d.choice([(k,), (k, n), (*x.shape[:-2], k, n), (*(1 for _ in x.shape[:-2]), k, n)])
    return _call("MatMul", x, d.of(x.dtype, shape))


@_add("Gemm", 0.7)
def _gemm(d: Draw) -> Call:
    x = d.pick(FLOATS, (2,))  # alpha and beta are floats: the reference rounds integers
    a, b, n = d.integer(0, 1), d.integer(0, 1), d.choice([1, 3, 4, 8])
    k, m = (x.shape[0], x.shape[1]) if a else (x.shape[1], x.shape[0])
    w = d.of(x.dtype, (n, k) if b else (k, n))
    c = [d.of(x.dtype, d.choice([(m, n), (n,), (), (1, n), (m, 1)]))] if d.chance(0.6) else []
    return _call(
        "Gemm", x, w, *c, transA=a, transB=b, alpha=d.choice([1.0, 0.5, 0.0]), beta=d.choice([1.0, 2.0, 0.0])
    )


# -- windows -------------------------------------------------------------------------------------------------


def _pads(d: Draw, kernel: Sequence[int]) -> dict[str, Any]:
    """Pads and strides; with auto_pad, none that would be negative."""
    if d.chance(0.4):
        strides = [d.integer(1, min(2, k)) for k in kernel]
        return {"auto_pad": d.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]), "strides": strides}
    strides = [d.integer(1, 2) for _ in kernel]
    return {"pads": [d.integer(0, 1) for _ in range(2 * len(kernel))], "strides": strides}


def _image(d: Draw, operator: str) -> Value:
    return d.pick(_allowed(operator, 0), (3, 4), lambda v: min(v.shape[1:]) > 0)


@_add("Conv", 1.2)
def _conv(d: Draw) -> Call:
    x = _image(d, "Conv")
    channels = x.shape[1]
    group = d.choice([g for g in (1, 1, channels, 2) if channels % g == 0])
    out = group * d.choice([1, 2, 4])
    kernel = [d.integer(1, min(3, n)) for n in x.shape[2:]]
    w = d.of(x.dtype, (out, channels // group, *kernel))
    bias = [d.of(x.dtype, (out,))] if d.chance(0.5) else []
    pads = _pads(d, kernel)
    dilations = [d.integer(1, 2) for _ in kernel] if "pads" in pads and d.chance(0.3) else None
    return _call("Conv", x, w, *bias, group=group, dilations=dilations, attributes=pads)


@_add("ConvTranspose", 0.4)
def _conv_transpose(d: Draw) -> Call:
    x = _image(d, "ConvTranspose")
    group = d.choice([g for g in (1, 1, x.shape[1]) if x.shape[1] % g == 0])
    kernel = [d.integer(1, 3) for _ in x.shape[2:]]
    w = d.of(x.dtype, (x.shape[1], d.choice([1, 2, 3]), *kernel))
    return _call("ConvTranspose", x, w, group=group, strides=[d.integer(1, 2) for _ in kernel])


@_add("MaxPool AveragePool LpPool", 0.5)
def _pool(n: str, d: Draw) -> Call:
    x = _image(d, n)
    kernel = [d.integer(1, min(3, s)) for s in x.shape[2:]]
    more = _pads(d, kernel)
    if "auto_pad" in more:  # the reference is wrong here and the second implementation does not accept NaN
        x = d.input(x.dtype, x.shape, "ordinary")
    else:
        more["pads"] = [min(p, k - 1) for p, k in zip(more["pads"], kernel * 2, strict=True)]
        more["ceil_mode"] = d.integer(0, 1)
    if n == "AveragePool":
        more["count_include_pad"] = d.integer(0, 1)
    return _call(n, x, kernel_shape=kernel, attributes=more)


@_add("GlobalAveragePool GlobalMaxPool", 0.3)
def _global_pool(n: str, d: Draw) -> Call:
    ranks = (4,) if n == "GlobalMaxPool" else (3, 4)  # the reference returns wrong shapes for other ranks
    return _call(n, d.pick(_allowed(n, 0), ranks, lambda v: min(v.shape[1:]) > 0))


# -- normalisation -------------------------------------------------------------------------------------------


@_add("LayerNormalization", 0.5)
def _layer_norm(d: Draw) -> Call:
    x = d.pick(_allowed("LayerNormalization", 0), (1, 2, 3, 4), lambda v: v.shape[-1] > 1)
    axis = d.axis(x)
    size = x.shape[axis:]
    more = [d.of(x.dtype, size)] if d.chance(0.5) else []
    return _call(
        "LayerNormalization", x, d.of(x.dtype, size), *more, axis=axis, epsilon=d.choice([1e-5, 1e-2])
    )


@_add("BatchNormalization", 0.4)
def _batch_norm(d: Draw) -> Call:
    x = d.pick(FLOATS, (2, 3, 4))
    c = (x.shape[1],)
    return _call(
        "BatchNormalization",
        x,
        *(d.of(x.dtype, c) for _ in range(3)),
        d.input(x.dtype, c, "positive"),
        epsilon=d.choice([1e-5, 0.1]),
    )


@_add("InstanceNormalization", 0.3)
def _instance_norm(d: Draw) -> Call:
    x = d.pick(FLOATS, (3, 4))
    return _call("InstanceNormalization", x, *(d.of(x.dtype, (x.shape[1],)) for _ in range(2)), epsilon=0.01)


@_add("LpNormalization", 0.2)
def _lp_norm(d: Draw) -> Call:
    x = d.pick(_allowed("LpNormalization", 0), (1, 2, 3))
    return _call("LpNormalization", x, axis=d.axis(x), p=d.choice([1, 2]))


# -- movement ------------------------------------------------------------------------------------------------


@_add("Reshape", 1.2)
def _reshape(d: Draw) -> Call:
    x = d.pick()
    size = int(np.prod(x.shape))
    if d.chance(0.4) and x.shape:
        target = [0, -1] if len(x.shape) > 1 and size else [-1]
    else:
        target = []
        left = size
        while left > 1:
            factor = d.choice([f for f in range(2, left + 1) if left % f == 0])
            target.append(factor)
            left //= factor
        target = target if size else list(x.shape)
        if d.chance(0.3):
            target.insert(d.integer(0, len(target)), 1)
    return _call("Reshape", x, _ints(d, target), allowzero=1 if 0 in x.shape and 0 in target else None)


@_add("Transpose", 1.2)
def _transpose(d: Draw) -> Call:
    x = d.pick()
    perm = d.rng.sample(range(len(x.shape)), len(x.shape))
    return _call("Transpose", x, perm=perm if x.shape else None)


@_add("Flatten", 0.3)
def _flatten(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4))
    return _call("Flatten", x, axis=d.integer(0, len(x.shape)))


@_add("Unsqueeze", 0.6)
def _unsqueeze(d: Draw) -> Call:
    x = d.pick(ranks=(0, 1, 2, 3))
    return _call("Unsqueeze", x, _ints(d, [d.integer(-len(x.shape) - 1, len(x.shape))]))


@_add("Squeeze", 0.6)
def _squeeze(d: Draw) -> Call:
    x = d.pick(fits=lambda v: 1 in v.shape)
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    return _call(
        "Squeeze", x, *([_ints(d, d.rng.sample(ones, d.integer(1, len(ones))))] if d.chance(0.8) else [])
    )


@_add("Concat", 1.0)
def _concat(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4))
    axis = d.axis(x)
    parts = [x]
    for _ in range(d.integer(1, 2)):
        shape = list(x.shape)
        shape[axis] = d.choice([shape[axis], 1, 2, 0])
        parts.append(d.of(x.dtype, shape))
    return _call("Concat", *d.rng.sample(parts, len(parts)), axis=axis)


@_add("Split", 0.6)
def _split(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4))
    axis = d.axis(x)
    first = d.integer(0, x.shape[axis])
    if d.chance(0.5):
        return _call("Split", x, axis=axis, num_outputs=2, results=2)
    return _call("Split", x, _ints(d, [first, x.shape[axis] - first]), axis=axis, results=2)


@_add("Slice", 1.5)
def _slice(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4))
    axes = d.axes(x) or [0]
    starts = [d.integer(-x.shape[a] - 1, x.shape[a] + 1) for a in axes]
    ends = [d.choice([d.integer(-x.shape[a] - 1, x.shape[a] + 1), 2**31, -(2**31)]) for a in axes]
    steps = [d.choice([1, 1, 2, -1, -2]) for _ in axes]
    return _call("Slice", x, *(_ints(d, v) for v in (starts, ends, axes, steps)))


@_add("Gather", 1.0)
def _gather(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4), fits=lambda v: 0 not in v.shape)
    axis = d.axis(x)
    fill = f"{d.choice(['around', 'below'])}:{x.shape[axis]}"
    return _call(
        "Gather",
        x,
        d.input(d.choice(["int64", "int32"]), d.choice([(), (2,), (3, 2), (0,)]), fill),
        axis=axis,
    )


@_add("GatherElements", 0.4)
def _gather_elements(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    axis = d.axis(x)
    shape = list(x.shape)
    shape[axis] = d.integer(1, 4)
    return _call("GatherElements", x, d.input("int64", tuple(shape), f"around:{x.shape[axis]}"), axis=axis)


@_add("GatherND", 0.3)
def _gather_nd(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    depth = d.integer(1, len(x.shape))
    return _call("GatherND", x, d.input("int64", (d.integer(1, 3), depth), f"below:{min(x.shape[:depth])}"))


def _scattering(d: Draw, x: Value) -> str | None:
    """Reduction of several values for one element; the order of NaN is undefined."""
    return d.choice(["add", None] if x.dtype in FLOATS else ["add", "max", "min", None])


@_add("ScatterElements", 0.4)
def _scatter_elements(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    axis = d.axis(x)
    shape = list(x.shape)
    how = _scattering(d, x)
    shape[axis] = d.integer(1, x.shape[axis]) if how else 1  # the order of writes to one element is undefined
    places = d.input("int64", tuple(shape), f"below:{x.shape[axis]}")
    return _call("ScatterElements", x, places, d.of(x.dtype, shape), axis=axis, reduction=how)


@_add("ScatterND", 0.4)
def _scatter_nd(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3), fits=lambda v: 0 not in v.shape)
    how = _scattering(d, x)
    count = d.integer(1, 3) if how else 1
    places = d.input("int64", (count, 1), f"below:{x.shape[0]}")
    return _call("ScatterND", x, places, d.of(x.dtype, (count, *x.shape[1:])), reduction=how)


@_add("Expand", 0.6)
def _expand(d: Draw) -> Call:
    x = d.pick(ranks=(0, 1, 2, 3))
    shape = [d.integer(1, 3) if n == 1 and d.chance(0.7) else n for n in x.shape]
    return _call("Expand", x, _ints(d, [d.integer(1, 3)] + shape if d.chance(0.4) else shape))


@_add("Tile", 0.4)
def _tile(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3))
    return _call("Tile", x, _ints(d, [d.choice([1, 2, 3, 0]) for _ in x.shape]))


@_add("Pad", 0.7)
def _pad(d: Draw) -> Call:
    x = d.pick(ranks=(1, 2, 3, 4))
    mode = d.choice(["constant", "constant", "reflect", "edge", "wrap"])
    low = -1 if mode == "constant" else 0
    pads = [d.integer(low, min(2, n - 1) if mode != "constant" else 2) for n in x.shape * 2]
    more = [d.of(x.dtype, ())] if mode == "constant" and d.chance(0.6) else []
    return _call("Pad", x, _ints(d, pads), *more, mode=mode)


@_add("Trilu", 0.3)
def _trilu(d: Draw) -> Call:
    x = d.pick(ranks=(2, 3))
    return _call(
        "Trilu", x, *([_scalar(d, d.integer(-3, 3))] if d.chance(0.6) else []), upper=d.integer(0, 1)
    )


@_add("DepthToSpace SpaceToDepth", 0.15)
def _space(n: str, d: Draw) -> Call:
    return _call(n, d.pick(ranks=(4,)), blocksize=2)


@_add("TopK", 0.4)
def _top_k(d: Draw) -> Call:
    x = d.pick(_allowed("TopK", 0), (1, 2, 3), lambda v: 0 not in v.shape)
    axis = d.axis(x)
    k = _ints(d, [d.integer(1, x.shape[axis])])
    return _call("TopK", x, k, axis=axis, largest=d.integer(0, 1), results=2)


@_add("OneHot", 0.3)
def _one_hot(d: Draw) -> Call:
    depth = d.integer(1, 5)
    places = d.input("int64", d.shape((1, 2)), f"around:{depth}")
    return _call("OneHot", places, _scalar(d, depth), d.of(d.dtype(), (2,)), axis=d.choice([-1, 0, None]))


@_add("Shape", 0.4)
def _shape(d: Draw) -> Call:
    return _call("Shape", d.pick(), start=d.choice([None, 0, 1]))


@_add("ConstantOfShape", 0.3)
def _constant_of_shape(d: Draw) -> Call:
    shape = d.emit("Shape", _call("Shape", d.pick()))[0]
    return _call("ConstantOfShape", shape)


@_add("Einsum", 0.4)
def _einsum(d: Draw) -> Call:
    x = d.pick(_allowed("Einsum", 0), (2, 3))
    letters = "abc"[: len(x.shape)]
    if d.chance(0.3):
        return _call(
            "Einsum", x, equation=f"{letters}->{''.join(d.rng.sample(letters, d.integer(0, len(letters))))}"
        )
    other = d.of(x.dtype, (x.shape[-1], d.integer(1, 4)))
    out = d.rng.sample(letters[:-1] + "z", d.integer(1, len(letters)))
    return _call("Einsum", x, other, equation=f"{letters},{letters[-1]}z->{''.join(out)}")


@_add("ReverseSequence", 0.2)
def _reverse_sequence(d: Draw) -> Call:
    x = d.pick(ranks=(2, 3), fits=lambda v: 0 not in v.shape)
    lengths = d.emit(
        "Add", _call("Add", d.input("int64", (x.shape[1],), f"below:{x.shape[0]}"), _scalar(d, 1))
    )[0]
    return _call("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)


# -- control flow --------------------------------------------------------------------------------------------


def _flag(d: Draw) -> Value:
    """A condition: an existing boolean, or one computed from a value."""
    x = d.pick(fresh=0.0) if d.values else d.pick()
    if x.dtype == "bool" and x.shape == ():
        return x
    if x.dtype not in FLOATS + INTEGERS or d.chance(0.4):
        return d.of("bool", ())
    total = d.emit("ReduceMax", _call("ReduceMax", x, keepdims=0))[0]
    return d.emit("Greater", _call("Greater", total, d.of(x.dtype, ())))[0]


@_add("If", 0.8)
def _if(d: Draw) -> Call:
    flag = _flag(d)
    then = d.block([])
    other = d.block([], list(then.results))
    return Call("If ({0}) <then_branch = {b0}, else_branch = {b1}>", [flag], [then, other], noise=Noise.NONE)


@_add("Loop", 1.0)
def _loop(d: Draw) -> Call:
    """A loop with one or two states, sometimes with a result per iteration."""
    states = [d.pick(fits=lambda v: v.dtype != "bool") for _ in range(d.integer(1, 2))]
    steps = _scalar(d, d.choice([0, 1, 2, 3])) if d.chance(0.6) else d.input("int64", (), "below:4", "fed")
    step = (Value(d.name("p"), "int64", ()), np.array(0))
    going = (Value(d.name("p"), "bool", ()), np.array(True))
    carried = [d.parameter(s) for s in states]
    go_on = going[0]
    scanned = list(states[:1]) if d.chance(0.4) else []
    body = d.block([step, going, *carried], states + scanned, must=[go_on])
    names = ", ".join(f"{{{i}}}" for i in range(2, len(states) + 2))
    always = d.input("bool", (), "ones", "constant")
    return Call(
        f"Loop ({{0}}, {{1}}, {names}) <body = {{b0}}>",
        [steps, always, *states],
        [body],
        results=len(states) + len(scanned),
        noise=Noise.NONE,
    )


@_add("Scan", 0.6)
def _scan(d: Draw) -> Call:
    """A scan over a sequence with one state; returns the result of each step."""
    sequence = d.pick(ranks=(1, 2, 3), fits=lambda v: v.shape[0] > 0)
    state = d.pick()
    element = (Value(d.name("p"), sequence.dtype, sequence.shape[1:]), d.tensors[sequence.name][0])
    body = d.block([d.parameter(state), element], [state, element[0]])
    return Call(
        "Scan ({0}, {1}) <body = {b0}, num_scan_inputs = 1>",
        [state, sequence],
        [body],
        results=2,
        noise=Noise.NONE,
    )
