"""ATen: Bessel functions, signs and angles; polynomials after Abramowitz and Stegun, 9.4 and 9.8, good to float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.plugins import Unsupported

# -- Bessel functions --------------------------------------------------------------------------------------

# Modified ones of the first kind: around 0 in (x / 3.75)², beyond 3.75 in 3.75 / x, scaled by sqrt(x) exp(-x).
_I_NEAR = {
    0: (1, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.0360768, 0.0045813),
    1: (0.5, 0.87890594, 0.51498869, 0.15084934, 0.02658733, 0.00301532, 0.00032411),
}
_I_FAR = {
    0: (0.39894228, 0.01328592, 0.00225319, -0.00157565, 0.00916281, -0.02057706, 0.02635537, -0.01647633,
        0.00392377),
    1: (0.39894228, -0.03988024, -0.00362018, 0.00163801, -0.01031555, 0.02282967, -0.02895312, 0.01787654,
        -0.00420059),
}  # fmt: skip
# Those of the second kind: around 0 in (x / 2)², beside log(x / 2) times the first kind; beyond 2 in 2 / x.
_K_NEAR = {
    0: (-0.57721566, 0.42278420, 0.23069756, 0.03488590, 0.00262698, 0.00010750, 0.00000740),
    1: (1, 0.15443144, -0.67278579, -0.18156897, -0.01919402, -0.00110404, -0.00004686),
}
_K_FAR = {
    0: (1.25331414, -0.07832358, 0.02189568, -0.01062446, 0.00587872, -0.00251540, 0.00053208),
    1: (1.25331414, 0.23498619, -0.03655620, 0.01504268, -0.00780353, 0.00325614, -0.00068245),
}
# The others: around 0 in (x / 3)²; beyond 3 amplitude and phase in 3 / x.
_J_NEAR = {
    0: (1, -2.2499997, 1.2656208, -0.3163866, 0.0444479, -0.0039444, 0.0002100),
    1: (0.5, -0.56249985, 0.21093573, -0.03954289, 0.00443319, -0.00031761, 0.00001109),
}
_Y_NEAR = {
    0: (0.36746691, 0.60559366, -0.74350384, 0.25300117, -0.04261214, 0.00427916, -0.00024846),
    1: (-0.6366198, 0.2212091, 2.1682709, -1.3164827, 0.3123951, -0.0400976, 0.0027873),
}
_AMPLITUDE = {
    0: (0.79788456, -0.00000077, -0.00552740, -0.00009512, 0.00137237, -0.00072805, 0.00014476),
    1: (0.79788456, 0.00000156, 0.01659667, 0.00017105, -0.00249511, 0.00113653, -0.00020033),
}
_PHASE = {
    0: (-0.78539816, -0.04166397, -0.00003954, 0.00262573, -0.00054125, -0.00029333, 0.00013558),
    1: (-2.35619449, 0.12499612, 0.00005650, -0.00637879, 0.00074348, 0.00079824, -0.00029166),
}


def _polynomial(n: AtenNode, x: Any, coefficients: Sequence[float]) -> Any:
    """The sum of coefficients times powers of x, lowest first."""
    total: Any = float(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = n.op("Add", n.op("Mul", x, total), float(coefficient))
    return total


def _operand(n: AtenNode, name: str = "self") -> Any:
    x = n.wide(n.cast(n.arg(name), n.out().dtype))
    if desc_of(x).dtype == "float64":
        raise Unsupported("Bessel functions in double precision")
    return x


def _first_kind(n: AtenNode, x: Any, order: int, scaled: bool) -> Any:
    """I0 or I1 of x, times exp(-|x|) when scaled."""
    size = n.op("Abs", x)
    safe = n.op("Maximum", size, 3.75)
    near = _polynomial(n, n.op("Square", n.op("Div", x, 3.75)), _I_NEAR[order])
    far = n.op("Mul", _polynomial(n, n.op("Div", 3.75, safe), _I_FAR[order]), n.op("Rsqrt", safe))
    if order:
        near = n.op("Mul", near, x)
        far = n.op("Mul", far, n.op("Sign", x))
    growth = n.op("Exp", n.op("Neg", size) if scaled else size)
    near, far = (n.op("Mul", near, growth), far) if scaled else (near, n.op("Mul", far, growth))
    return n.op("Select", n.op("LessEqual", size, 3.75), near, far)


def _second_kind(n: AtenNode, x: Any, order: int, scaled: bool) -> Any:
    """K0 or K1 of x, times exp(x) when scaled; infinite at 0, not defined below."""
    half = n.op("Mul", x, 0.5)
    product = n.op("Mul", n.op("Log", half), _first_kind(n, x, order, False))
    polynomial = _polynomial(n, n.op("Square", half), _K_NEAR[order])
    near = n.op("Add", product, n.op("Div", polynomial, x)) if order else n.op("Sub", polynomial, product)
    safe = n.op("Maximum", x, 2.0)
    far = n.op("Mul", _polynomial(n, n.op("Div", 2.0, safe), _K_FAR[order]), n.op("Rsqrt", safe))
    near, far = (
        (n.op("Mul", near, n.op("Exp", x)), far)
        if scaled
        else (near, n.op("Mul", far, n.op("Exp", n.op("Neg", x))))
    )
    y = n.op("Select", n.op("LessEqual", x, 2.0), near, far)
    y = n.op("Select", n.op("Equal", x, 0.0), math.inf, y)
    return n.op("Select", n.op("Less", x, 0.0), math.nan, y)


def _wave(n: AtenNode, x: Any, order: int, turn: str) -> Any:
    """The oscillating functions beyond 3: cosine for the first kind, sine for the second."""
    t = n.op("Div", 3.0, x)
    amplitude = n.op("Mul", _polynomial(n, t, _AMPLITUDE[order]), n.op("Rsqrt", x))
    return n.op("Mul", amplitude, n.op(turn, n.op("Add", x, _polynomial(n, t, _PHASE[order]))))


def _bessel_j(n: AtenNode, x: Any, order: int) -> Any:
    size = n.op("Abs", x)
    near = _polynomial(n, n.op("Square", n.op("Div", x, 3.0)), _J_NEAR[order])
    far = _wave(n, n.op("Maximum", size, 3.0), order, "Cos")
    if order:
        near, far = n.op("Mul", near, x), n.op("Mul", far, n.op("Sign", x))
    return n.op("Select", n.op("LessEqual", size, 3.0), near, far)


def _bessel_y(n: AtenNode, x: Any, order: int) -> Any:
    polynomial = _polynomial(n, n.op("Square", n.op("Div", x, 3.0)), _Y_NEAR[order])
    log = n.op("Mul", n.op("Log", n.op("Mul", x, 0.5)), _bessel_j(n, x, order))
    near = n.op("Add", n.op("Mul", log, 2 / math.pi), n.op("Div", polynomial, x) if order else polynomial)
    y = n.op("Select", n.op("LessEqual", x, 3.0), near, _wave(n, n.op("Maximum", x, 3.0), order, "Sin"))
    y = n.op("Select", n.op("Equal", x, 0.0), -math.inf, y)
    return n.op("Select", n.op("Less", x, 0.0), math.nan, y)


_BESSEL: dict[str, Callable[[AtenNode, Any], Any]] = {
    "i0": lambda n, x: _first_kind(n, x, 0, False),
    "special_i0e": lambda n, x: _first_kind(n, x, 0, True),
    "special_i1": lambda n, x: _first_kind(n, x, 1, False),
    "special_i1e": lambda n, x: _first_kind(n, x, 1, True),
    "special_modified_bessel_i0": lambda n, x: _first_kind(n, x, 0, False),
    "special_modified_bessel_i1": lambda n, x: _first_kind(n, x, 1, False),
    "special_modified_bessel_k0": lambda n, x: _second_kind(n, x, 0, False),
    "special_modified_bessel_k1": lambda n, x: _second_kind(n, x, 1, False),
    "special_scaled_modified_bessel_k0": lambda n, x: _second_kind(n, x, 0, True),
    "special_scaled_modified_bessel_k1": lambda n, x: _second_kind(n, x, 1, True),
    "special_bessel_j0": lambda n, x: _bessel_j(n, x, 0),
    "special_bessel_j1": lambda n, x: _bessel_j(n, x, 1),
    "special_bessel_y0": lambda n, x: _bessel_y(n, x, 0),
    "special_bessel_y1": lambda n, x: _bessel_y(n, x, 1),
}


def _declare_bessel(name: str, made: Callable[[AtenNode, Any], Any]) -> None:
    @aten(f"{name}.default")
    def mapped_(n: AtenNode) -> Any:
        return n.back(made(n, _operand(n, "x" if "x" in n.attrs else "self")))


for _name, _made in _BESSEL.items():
    _declare_bessel(_name, _made)


@aten("special_spherical_bessel_j0")
def _spherical_j0(n: AtenNode) -> Any:
    """sin(x) / x, by its series around 0; infinite arguments give 0."""
    x = _operand(n, "x")
    square = n.op("Square", x)
    near = _polynomial(n, square, (1, -1 / 6, 1 / 120, -1 / 5040))
    far = n.op("Div", n.op("Sin", x), x)
    y = n.op("Select", n.op("Less", n.op("Abs", x), 0.5), near, far)
    return n.back(n.op("Select", n.op("IsInf", x), 0.0, y))


# -- signs and angles --------------------------------------------------------------------------------------

_BITS = {"float32": "int32", "float64": "int64", "float16": "int16", "bfloat16": "int16"}


def _is_negative(n: AtenNode, x: Any) -> Any:
    """The sign as it is stored: that of zeros and NaN too."""
    dtype = desc_of(x).dtype
    if dtype in FLOATS:
        return n.op("Less", n.op("BitCast", x, to=_BITS[dtype]), 0)
    return n.filled(False, n.out()) if dtype.startswith("u") or dtype == "bool" else n.op("Less", x, 0)


@aten("signbit.default")
def _signbit(n: AtenNode) -> Any:
    return _is_negative(n, n.arg("self"))


@aten("copysign.Tensor")
def _copysign(n: AtenNode) -> Any:
    size = n.op("Abs", n.cast(n.arg("self"), n.out().dtype))
    sign = n.cast(n.arg("other"), n.out().dtype)
    return n.op("Select", _is_negative(n, sign), n.op("Neg", size), size)


@aten("angle.default")
def _angle(n: AtenNode) -> Any:
    """Of real numbers: 0 or π, NaN of NaN."""
    x = n.arg("self")
    dtype = n.out().dtype
    if desc_of(x).dtype == "bool":
        return n.filled(0.0, n.out())
    half = n.op("Select", n.op("Less", x, 0), n.cast(np.pi, dtype), n.cast(0.0, dtype))
    return n.op("Select", n.op("IsNan", x), x, half) if desc_of(x).dtype in FLOATS else half


@aten("ldexp.Tensor")
def _ldexp(n: AtenNode) -> Any:
    dtype = n.out().dtype
    power = n.op("Pow", n.cast(2.0, dtype), n.cast(n.arg("other"), dtype))
    return n.op("Mul", n.cast(n.arg("self"), dtype), power)


@aten("rrelu_with_noise_backward.default")
def _rrelu_backward(n: AtenNode) -> Any:
    """In training the noise holds each element's slope."""
    g, x = n.wide(n.arg("grad_output")), n.wide(n.arg("self"))
    low, high = float(n.arg("lower")), float(n.arg("upper"))
    if n.arg("training") and high - low > 1e-6:
        return n.back(n.op("Mul", g, n.wide(n.arg("noise"))))
    return n.back(n.op("Select", n.op("Greater", x, 0), g, n.op("Mul", g, (low + high) / 2)))
