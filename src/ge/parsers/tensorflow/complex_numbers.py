"""Complex numbers and Fourier transforms: a complex tensor is a pair of real ones inside of a graph.

1. Transforms make or read pairs; arithmetic follows the rules of complex numbers.
2. Operators that only move elements run on both parts.
3. Every other reader, and an input or result of a graph, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import HANDLERS, Context, Outputs, handler, special
from ge.parsers.tensorflow.values import Binding, HostTensor, Opaque

__all__ = ["COMPLEX", "Complex"]

COMPLEX = {"complex64": "float32", "complex128": "float64"}  # the element type of the parts


@dataclass(frozen=True, eq=False)
class Complex(Opaque):
    """A tensor of complex numbers."""

    real: ir.Value
    imag: ir.Value
    what = "a tensor of complex numbers"


def _complex(c: Context, index: int) -> Complex:
    """An input, which may be a constant."""
    given = c.binding(index)
    if isinstance(given, Complex):
        return given
    if isinstance(given, HostTensor) and given.dtype in COMPLEX:
        parts = (given.array.real.copy(), given.array.imag.copy())  # contiguous; a scalar stays one
        return Complex(*(c.builder.constant(part) for part in parts))
    raise Unsupported(f"input {index} is not a tensor of complex numbers")


# -- between real and complex --------------------------------------------------------------------------------


@handler("Complex")
def _combined(c: Context) -> Outputs:
    real, imag = c.tensor(0), c.tensor(1)
    shape = np.broadcast_shapes(desc_of(real).shape, desc_of(imag).shape)
    return [Complex(_spread(c.builder, real, shape), _spread(c.builder, imag, shape))]


def _spread(b: GraphBuilder, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    return x if desc_of(x).shape == shape else b.op("BroadcastTo", x, shape=shape)


@handler("Cast")
def _cast(c: Context) -> Outputs:
    """From real to complex; other casts are the plugin's."""
    kind = COMPLEX.get(str(c.attr("DstT")))
    if kind is None:
        return c.converter.by_plugin(c)
    real = c.builder.cast(c.tensor(0), kind)
    return [Complex(real, c.builder.constant(np.zeros(desc_of(real).shape, kind)))]


@handler("Real")
def _real(c: Context) -> Outputs:
    return [_complex(c, 0).real]


@handler("Imag")
def _imag(c: Context) -> Outputs:
    return [_complex(c, 0).imag]


@handler("ComplexAbs")
def _magnitude(c: Context) -> Outputs:
    """Scaled by the larger part, so that squares do not overflow."""
    b, x = c.builder, _complex(c, 0)
    real, imag = b.op("Abs", x.real), b.op("Abs", x.imag)
    large, small = b.op("Maximum", real, imag), b.op("Minimum", real, imag)
    ratio = b.op("Div", small, large)
    y = b.op("Mul", large, b.op("Sqrt", b.op("Add", b.op("Square", ratio), 1)))
    y = b.op("Select", b.op("Equal", large, 0), large, y)
    infinite = b.op("Or", b.op("IsInf", real), b.op("IsInf", imag))
    return [b.op("Select", infinite, math.inf, y)]


@handler("Angle")
def _angle(c: Context) -> Outputs:
    x = _complex(c, 0)
    return [c.builder.op("Atan2", x.imag, x.real)]


# -- transforms ----------------------------------------------------------------------------------------------


def _joined(b: GraphBuilder, x: Complex) -> ir.Value:
    return b.op("Concat", *(_as_pairs(b, part) for part in (x.real, x.imag)), axis=-1)


def _as_pairs(b: GraphBuilder, x: ir.Value) -> ir.Value:
    """One number each in a last axis of its own."""
    return b.op("Reshape", x, shape=(*desc_of(x).shape, 1))


def _parts(b: GraphBuilder, pairs: ir.Value) -> Complex:
    shape = desc_of(pairs).shape[:-1]
    real, imag = (
        b.op("Reshape", b.op("Gather", pairs, np.array([i]), axis=-1), shape=shape) for i in range(2)
    )
    return Complex(real, imag)


def _lengths(c: Context, axes: int) -> Sequence[int]:
    """The points of a real transform along each of the last axes."""
    found = [int(n) for n in c.const(1, "the length of the transform").reshape(-1)]
    if len(found) != axes:
        raise Unsupported(f"it has {len(found)} lengths for {axes} axes")
    return found


def _declare(dimensions: int) -> None:
    suffix = "" if dimensions == 1 else f"{dimensions}D"
    axes = range(-1 - dimensions, -1)  # of pairs

    @handler(f"RFFT{suffix}")
    def forward(c: Context) -> Outputs:
        b, pairs = c.builder, _as_pairs(c.builder, c.tensor(0))
        for axis, length in reversed([*zip(axes, _lengths(c, dimensions), strict=True)]):
            if axis == -2 or not desc_of(pairs).shape[axis] == length == 1:
                pairs = b.op("Dft", pairs, axis=axis, length=length, onesided=axis == -2)
        return [_parts(b, pairs)]

    @handler(f"IRFFT{suffix}")
    def backward(c: Context) -> Outputs:
        b, pairs = c.builder, _joined(c.builder, _complex(c, 0))
        for axis, length in zip(axes, _lengths(c, dimensions), strict=True):
            pairs = b.op("Dft", pairs, axis=axis, length=length, inverse=True, onesided=axis == -2)
        return [b.op("Reshape", pairs, shape=desc_of(pairs).shape[:-1])]

    @handler(f"FFT{suffix}", f"IFFT{suffix}")
    def whole(c: Context) -> Outputs:
        b, pairs = c.builder, _joined(c.builder, _complex(c, 0))
        for axis in axes:
            length = desc_of(pairs).shape[axis]
            pairs = b.op("Dft", pairs, axis=axis, length=length, inverse=c.node.op.startswith("I"))
        return [_parts(b, pairs)]


for _dimensions in (1, 2, 3):
    _declare(_dimensions)


# -- arithmetic and movement ---------------------------------------------------------------------------------


def _sum(b: GraphBuilder, x: Complex, y: Complex) -> Complex:
    return Complex(b.op("Add", x.real, y.real), b.op("Add", x.imag, y.imag))


def _difference(b: GraphBuilder, x: Complex, y: Complex) -> Complex:
    return Complex(b.op("Sub", x.real, y.real), b.op("Sub", x.imag, y.imag))


def _product(b: GraphBuilder, x: Complex, y: Complex) -> Complex:
    def times(p: ir.Value, q: ir.Value) -> Any:
        return b.op("Mul", p, q)

    return Complex(
        b.op("Sub", times(x.real, y.real), times(x.imag, y.imag)),
        b.op("Add", times(x.real, y.imag), times(x.imag, y.real)),
    )


def _quotient(b: GraphBuilder, x: Complex, y: Complex) -> Complex:
    made = _product(b, x, _conjugate(b, y))
    size = b.op("Add", b.op("Square", y.real), b.op("Square", y.imag))
    return Complex(b.op("Div", made.real, size), b.op("Div", made.imag, size))


def _conjugate(b: GraphBuilder, x: Complex) -> Complex:
    return Complex(x.real, b.op("Neg", x.imag))


def _exponential(b: GraphBuilder, x: Complex) -> Complex:
    size = b.op("Exp", x.real)
    return Complex(b.op("Mul", size, b.op("Cos", x.imag)), b.op("Mul", size, b.op("Sin", x.imag)))


_UNARY: dict[str, Callable[[GraphBuilder, Complex], Complex]] = {
    "Conj": _conjugate,
    "Exp": _exponential,
    "Square": lambda b, x: _product(b, x, x),
}
_BINARY: dict[str, Callable[[GraphBuilder, Complex, Complex], Complex]] = {
    "Add": _sum,
    "AddV2": _sum,
    "Sub": _difference,
    "Mul": _product,
    "RealDiv": _quotient,
    "Div": _quotient,
}
# Operators that move elements, or do the same to both parts.
_BOTH = frozenset(
    {
        "Identity",
        "StopGradient",
        "PreventGradient",
        "Snapshot",
        "Reshape",
        "ExpandDims",
        "Squeeze",
        "Transpose",
    }
    | {
        "ConcatV2",
        "Concat",
        "Pack",
        "Unpack",
        "Split",
        "SplitV",
        "Slice",
        "StridedSlice",
        "Gather",
        "GatherV2",
    }
    | {"GatherNd", "Pad", "Tile", "BroadcastTo", "Reverse", "ReverseV2", "Roll", "Neg", "Sum", "Mean", "AddN"}
    | {"ZerosLike"}
)
_OF_ONE = frozenset({"Shape", "ShapeN", "Size", "Rank"})
_READERS = frozenset({"Real", "Imag", "ComplexAbs", "Angle"} | {n for n in HANDLERS if "FFT" in n})


@special(Complex)
def _with_complex(c: Context) -> Outputs:
    b, op = c.builder, c.node.op
    if op in _READERS:
        return HANDLERS[op](c)
    if op in _BINARY:
        return [_BINARY[op](b, _complex(c, 0), _complex(c, 1))]
    if op in _UNARY:
        return [_UNARY[op](b, _complex(c, 0))]
    if op == "Cast":
        return _of_complex(c)
    if op in _OF_ONE:
        return _of_part(c, "real")
    if op in _BOTH:
        parts = [_of_part(c, name) for name in ("real", "imag")]
        return [Complex(*pair) for pair in zip(*parts, strict=True)]
    raise Unsupported(f"it reads {Complex.what}", "compute with the real and imaginary parts")


def _of_complex(c: Context) -> Outputs:
    """A cast of complex numbers; a real type keeps the real parts."""
    x, target = _complex(c, 0), str(c.attr("DstT"))
    kind = COMPLEX.get(target)
    if kind is None:
        return [c.builder.cast(x.real, target)]
    return [Complex(c.builder.cast(x.real, kind), c.builder.cast(x.imag, kind))]


def _of_part(c: Context, name: str) -> Sequence[Binding]:
    """The node's outputs as if it read one part of each complex input."""
    inputs = [
        getattr(_complex(c, i), name) if isinstance(v, Complex | HostTensor) else v
        for i, v in enumerate(c.inputs)
    ]
    attrs = {k: COMPLEX.get(v, v) if isinstance(v, str) else v for k, v in c.node.attrs.items()}
    made = c.converter.dispatch(replace(c, node=replace(c.node, attrs=attrs), inputs=inputs))
    assert isinstance(made, Sequence)
    return made
