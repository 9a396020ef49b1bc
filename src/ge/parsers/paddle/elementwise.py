"""PaddlePaddle: elementwise operators and their gradients."""

from __future__ import annotations

from typing import Any

from ge.ir.types import FLOATS, INTS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.aten import promoted
from ge.ops.math.derivatives import derived
from ge.ops.plugins import Unsupported
from ge.parsers.paddle.node import PaddleNode, paddle

# -- one operand -------------------------------------------------------------------------------------------

# Paddle's name -> ATen's, where both mean the same.
_UNARY = {
    "abs": "abs",
    "acos": "acos",
    "acosh": "acosh",
    "asin": "asin",
    "asinh": "asinh",
    "atan": "atan",
    "atanh": "atanh",
    "bitwise_not": "bitwise_not",
    "ceil": "ceil.default",
    "cos": "cos",
    "cosh": "cosh",
    "digamma": "digamma",
    "erf": "erf",
    "erfinv": "erfinv",
    "exp": "exp",
    "expm1": "expm1",
    "floor": "floor.default",
    "gammaln": "lgamma",
    "hardswish": "hardswish",
    "i0": "i0",
    "i0e": "special_i0e",
    "i1": "special_i1",
    "i1e": "special_i1e",
    "lgamma": "lgamma",
    "log": "log",
    "log10": "log10",
    "log1p": "log1p",
    "log2": "log2",
    "reciprocal": "reciprocal",
    "relu": "relu",
    "rint": "round.default",
    "rsqrt": "rsqrt",
    "sigmoid": "sigmoid",
    "sign": "sign",
    "silu": "silu",
    "sin": "sin",
    "sinh": "sinh",
    "sqrt": "sqrt",
    "square": "square",
    "swish": "silu",
    "tan": "tan",
    "tanh": "tanh",
    "trunc": "trunc.default",
}


def _declare_unary(name: str, target: str) -> None:
    @paddle(name)
    def mapped_(n: PaddleNode) -> Any:
        desc = n.like()
        if (
            desc.dtype not in FLOATS
            and target not in ("abs", "bitwise_not", "sign", "square")
            and "." not in target
        ):
            desc = TensorDesc(desc.shape, "float32")
        return n.aten(target, [desc], self=n.inputs[0])


for _name, _target in _UNARY.items():
    _declare_unary(_name, _target)


@paddle("round")
def _round(n: PaddleNode) -> Any:
    if n.arg("decimals", 0):
        raise Unsupported("rounding to decimals")
    return n.aten("round.default", [n.like()], self=n.inputs[0])


def _declare_test(name: str) -> None:
    @paddle(name)
    def mapped_(n: PaddleNode) -> Any:
        return n.aten(name, [TensorDesc(n.like().shape, "bool")], self=n.inputs[0])


for _name in ("isfinite", "isinf", "isnan"):
    _declare_test(_name)


@paddle("logical_not")
def _logical_not(n: PaddleNode) -> Any:
    return n.op("Not", n.cast(n.inputs[0], "bool"))


@paddle("relu6")
def _relu6(n: PaddleNode) -> Any:
    return n.op("Clip", n.inputs[0], min=0.0, max=6.0)


@paddle("leaky_relu")
def _leaky_relu(n: PaddleNode) -> Any:
    return n.same("leaky_relu", self=n.inputs[0], negative_slope=n.attr("negative_slope"))


@paddle("elu")
def _elu(n: PaddleNode) -> Any:
    return n.same("elu", self=n.inputs[0], alpha=n.attr("alpha"), scale=1, input_scale=1)


@paddle("selu")
def _selu(n: PaddleNode) -> Any:
    return n.same("elu", self=n.inputs[0], alpha=n.attr("alpha"), scale=n.attr("scale"), input_scale=1)


@paddle("celu")
def _celu(n: PaddleNode) -> Any:
    alpha = n.attr("alpha")
    return n.same("elu", self=n.inputs[0], alpha=alpha, scale=1, input_scale=1 / alpha)


@paddle("hardsigmoid")
def _hardsigmoid(n: PaddleNode) -> Any:
    return n.op("HardSigmoid", n.inputs[0], alpha=n.attr("slope"), beta=n.attr("offset"))


@paddle("hardtanh")
def _hardtanh(n: PaddleNode) -> Any:
    return n.op("Clip", n.inputs[0], min=float(n.attr("t_min")), max=float(n.attr("t_max")))


@paddle("mish")
def _mish(n: PaddleNode) -> Any:
    return n.op("Mish", n.inputs[0])


@paddle("softplus")
def _softplus(n: PaddleNode) -> Any:
    return n.same("softplus", self=n.inputs[0], beta=n.attr("beta"), threshold=n.attr("threshold"))


@paddle("softsign")
def _softsign(n: PaddleNode) -> Any:
    return n.op("Softsign", n.inputs[0])


@paddle("logsigmoid")
def _logsigmoid(n: PaddleNode) -> Any:
    return n.op("Neg", n.op("Softplus", n.op("Neg", n.inputs[0])))


@paddle("tanh_shrink")
def _tanh_shrink(n: PaddleNode) -> Any:
    return n.op("Sub", n.inputs[0], n.op("Tanh", n.inputs[0]))


@paddle("gelu")
def _gelu(n: PaddleNode) -> Any:
    return n.same("gelu", self=n.inputs[0], approximate="tanh" if n.attr("approximate") else "none")


@paddle("thresholded_relu")
def _thresholded_relu(n: PaddleNode) -> Any:
    x, dtype = n.inputs[0], n.like().dtype
    above = n.op("Greater", x, n.constant(n.attr("threshold"), dtype))
    return n.op("Select", above, x, n.constant(n.attr("value", 0.0), dtype))


@paddle("prelu")
def _prelu(n: PaddleNode) -> Any:
    x, alpha = n.inputs[0], n.inputs[1]
    desc = n.like()
    if n.attr("mode") == "channel":
        place = 1 if n.attr("data_format") == "NCHW" else desc.rank - 1
        alpha = n.shaped(alpha, [desc.shape[place] if i == place else 1 for i in range(desc.rank)])
    elif n.attr("mode") == "all":
        alpha = n.shaped(alpha, [1] * desc.rank)
    else:
        alpha = n.shaped(alpha, [1, *desc.shape[1:]])
    return n.op("Select", n.op("Greater", x, n.constant(0, desc.dtype)), x, n.op("Mul", x, alpha))


@paddle("scale")
def _scale(n: PaddleNode) -> Any:
    """x * scale + bias, in the type of x; (x + bias) * scale where the bias goes first."""
    x, desc = n.inputs[0], n.like()
    bias = n.attr("bias", 0.0)
    if desc.dtype in INTS:
        dtype = desc.dtype
        factor = n.constant(int(n.number(1)), dtype)
        bias = int(bias)
    else:
        dtype = desc.dtype
        factor = n.cast(n.shaped(n.inputs[1], []), dtype)
    offset = n.constant(bias, dtype)
    if not n.attr("bias_after_scale", True):
        return n.op("Mul", n.op("Add", x, offset) if bias else x, factor)
    scaled = x if n.maybe_const(1) is not None and n.number(1) == 1 else n.op("Mul", x, factor)
    return n.op("Add", scaled, offset) if bias else n.op("Identity", scaled)


@paddle("increment")
def _increment(n: PaddleNode) -> Any:
    return n.op("Add", n.inputs[0], n.constant(n.attr("value", 1.0), n.like().dtype))


@paddle("clip")
def _clip(n: PaddleNode) -> Any:
    x, dtype = n.inputs[0], n.like().dtype
    if dtype in FLOATS and n.maybe_const(1) is not None and n.maybe_const(2) is not None:
        return n.op("Clip", x, min=float(n.number(1)), max=float(n.number(2)))
    low, high = (n.cast(n.shaped(v, []), dtype) for v in n.inputs[1:3])
    return n.op("Minimum", n.op("Maximum", x, low), high)


@paddle("pow")
def _pow(n: PaddleNode) -> Any:
    return n.aten("pow.Tensor_Scalar", [n.like()], self=n.inputs[0], exponent=n.attr("y"))


@paddle("cast")
def _cast(n: PaddleNode) -> Any:
    return n.cast(n.inputs[0], n.attr("dtype"))


# -- two operands ------------------------------------------------------------------------------------------

_BINARY = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "maximum": "Maximum",
    "minimum": "Minimum",
}
_COMPARISONS = {
    "equal": "Equal",
    "not_equal": "NotEqual",
    "less_than": "Less",
    "less_equal": "LessEqual",
    "greater_than": "Greater",
    "greater_equal": "GreaterEqual",
}
_BITS = {"and": ("And", "BitwiseAnd"), "or": ("Or", "BitwiseOr"), "xor": ("Xor", "BitwiseXor")}


def _pair(n: PaddleNode) -> list[Any]:
    dtype = promoted(n.inputs[0], n.inputs[1])
    return [n.cast(v, dtype) for v in n.inputs[:2]]


def _declare_binary(name: str, type_: str) -> None:
    @paddle(name)
    def mapped_(n: PaddleNode) -> Any:
        return n.op(type_, *_pair(n))


for _name, _type in (_BINARY | _COMPARISONS).items():
    _declare_binary(_name, _type)


def _declare_bits(name: str, of_bools: str, of_numbers: str) -> None:
    @paddle(f"logical_{name}")
    def logical(n: PaddleNode) -> Any:
        return n.op(of_bools, *(n.cast(v, "bool") for v in n.inputs[:2]))

    @paddle(f"bitwise_{name}")
    def bitwise(n: PaddleNode) -> Any:
        return n.op(of_bools if n.like().dtype == "bool" else of_numbers, *n.inputs[:2])


for _name, (_first, _second) in _BITS.items():
    _declare_bits(_name, _first, _second)


def _broadcast(n: PaddleNode, dtype: str) -> TensorDesc:
    """What a function of two operands gives."""
    a, b = (list(n.desc(i).shape) for i in (0, 1))
    rank = max(len(a), len(b))
    a, b = [1] * (rank - len(a)) + a, [1] * (rank - len(b)) + b
    return TensorDesc(tuple(q if p == 1 else p for p, q in zip(a, b, strict=True)), dtype)


def _declare_aten(name: str, target: str, **more: Any) -> None:
    @paddle(name)
    def mapped_(n: PaddleNode) -> Any:
        a, b = _pair(n)
        dtype = desc_of(a).dtype
        return n.aten(target, [_broadcast(n, dtype)], self=a, other=b, **more)


for _name, _target in {
    "atan2": "atan2",
    "copysign": "copysign.Tensor",
    "floor_divide": "floor_divide",
    "fmax": "fmax",
    "fmin": "fmin",
    "remainder": "remainder.Tensor",
}.items():
    _declare_aten(_name, _target)


@paddle("divide")
def _divide(n: PaddleNode) -> Any:
    """Whole numbers give whole numbers, rounded towards zero."""
    a, b = _pair(n)
    dtype = desc_of(a).dtype
    if dtype in INTS:
        return n.aten("div.Tensor_mode", [_broadcast(n, dtype)], self=a, other=b, rounding_mode="trunc")
    return n.op("Div", a, b)


@paddle("elementwise_pow")
def _elementwise_pow(n: PaddleNode) -> Any:
    a, b = _pair(n)
    return n.aten("pow.Tensor_Tensor", [_broadcast(n, desc_of(a).dtype)], self=a, exponent=b)


@paddle("add_n")
def _add_n(n: PaddleNode) -> Any:
    first, *rest = n.tensors()
    for value in rest:
        first = n.op("Add", first, value)
    return n.op("Identity", first) if not rest else first


@paddle("where")
def _where(n: PaddleNode) -> Any:
    return n.op("Select", n.inputs[0], n.inputs[1], n.inputs[2])


@paddle("lerp")
def _lerp(n: PaddleNode) -> Any:
    x, y, weight = n.inputs[:3]
    return n.op("Add", x, n.op("Mul", weight, n.op("Sub", y, x)))


@paddle("isclose")
def _isclose(n: PaddleNode) -> Any:
    x, y = _pair(n)
    relative, absolute = n.number(2, 1e-5), n.number(3, 1e-8)
    bound = n.op("Add", n.op("Mul", n.op("Abs", y), relative), absolute)
    near = n.op("LessEqual", n.op("Abs", n.op("Sub", x, y)), bound)
    near = n.op("Or", near, n.op("Equal", x, y))
    if n.attr("equal_nan"):
        near = n.op("Or", near, n.op("And", n.op("IsNan", x), n.op("IsNan", y)))
    return near


# -- gradients ---------------------------------------------------------------------------------------------


def _of_broadcast(n: PaddleNode, gradients: list[Any]) -> list[Any]:
    """Gradients by two operands, each summed to the shape of its operand, if it is requested."""
    return [n.sum_to(g(), n.desc(i)) if n.is_wanted(i) else None for i, g in enumerate(gradients)]


@paddle("add_grad")
def _add_grad(n: PaddleNode) -> Any:
    g = n.inputs[2]
    return _of_broadcast(n, [lambda: g, lambda: g])


@paddle("subtract_grad")
def _subtract_grad(n: PaddleNode) -> Any:
    g = n.inputs[2]
    return _of_broadcast(n, [lambda: g, lambda: n.op("Neg", g)])


@paddle("multiply_grad")
def _multiply_grad(n: PaddleNode) -> Any:
    x, y, g = n.inputs[:3]
    return _of_broadcast(n, [lambda: n.op("Mul", g, y), lambda: n.op("Mul", g, x)])


@paddle("divide_grad")
def _divide_grad(n: PaddleNode) -> Any:
    _, y, out, g = n.inputs[:4]
    by_x = n.op("Div", g, y)
    return _of_broadcast(n, [lambda: by_x, lambda: n.op("Neg", n.op("Mul", by_x, out))])


@paddle("elementwise_pow_grad")
def _elementwise_pow_grad(n: PaddleNode) -> Any:
    x, y, g = n.inputs[:3]
    one = n.constant(1, n.like().dtype)
    return _of_broadcast(
        n,
        [
            lambda: n.op("Mul", g, n.op("Mul", y, n.op("Pow", x, n.op("Sub", y, one)))),
            lambda: n.op("Mul", g, n.op("Mul", n.op("Pow", x, y), n.op("Log", x))),
        ],
    )


def _declare_choice_grad(name: str, takes_first: str) -> None:
    @paddle(name)
    def mapped_(n: PaddleNode) -> Any:
        """The gradient goes to the operand that was taken, at equal ones to the second."""
        x, y, g = n.inputs[:3]
        first, zero = n.op(takes_first, x, y), n.constant(0, n.desc(2).dtype)
        return _of_broadcast(
            n, [lambda: n.op("Select", first, g, zero), lambda: n.op("Select", first, zero, g)]
        )


_declare_choice_grad("maximum_grad", "Greater")
_declare_choice_grad("minimum_grad", "Less")


@paddle("where_grad")
def _where_grad(n: PaddleNode) -> Any:
    condition, g = n.inputs[0], n.inputs[3]
    zero = n.constant(0, n.desc(3).dtype)
    by_x = n.op("Select", condition, g, zero) if n.is_wanted(0) else None
    by_y = n.op("Select", condition, zero, g) if n.is_wanted(1) else None
    return [
        None if by_x is None else n.sum_to(by_x, n.desc(1)),
        None if by_y is None else n.sum_to(by_y, n.desc(2)),
    ]


@paddle("cast_grad")
def _cast_grad(n: PaddleNode) -> Any:
    return n.cast(n.inputs[1], n.like().dtype)


@paddle("scale_grad")
def _scale_grad(n: PaddleNode) -> Any:
    return n.op("Mul", n.inputs[0], n.cast(n.shaped(n.inputs[1], []), n.like().dtype))


@paddle("pow_grad")
def _pow_grad(n: PaddleNode) -> Any:
    x, g, exponent = n.inputs[0], n.inputs[1], n.attr("y")
    lower = n.aten("pow.Tensor_Scalar", [n.like()], self=x, exponent=exponent - 1)
    return n.op("Mul", g, n.op("Mul", lower, n.constant(exponent, n.like().dtype)))


@paddle("clip_grad")
def _clip_grad(n: PaddleNode) -> Any:
    x, g, low, high = n.inputs[:4]
    dtype = n.like().dtype
    low, high = (n.cast(n.shaped(v, []), dtype) for v in (low, high))
    inside = n.op("And", n.op("GreaterEqual", x, low), n.op("LessEqual", x, high))
    return n.op("Select", inside, g, n.constant(0, dtype))


# Gradients that read the result: (result, gradient) -> the gradient by the operand.
@paddle("relu_grad")
def _relu_grad(n: PaddleNode) -> Any:
    return n.same("threshold_backward", grad_output=n.inputs[1], self=n.inputs[0], threshold=0)


@paddle("relu6_grad")
def _relu6_grad(n: PaddleNode) -> Any:
    out, g = n.inputs[:2]
    dtype = n.like().dtype
    inside = n.op("And", n.op("Greater", out, n.constant(0, dtype)), n.op("Less", out, n.constant(6, dtype)))
    return n.op("Select", inside, g, n.constant(0, dtype))


@paddle("sigmoid_grad")
def _sigmoid_grad(n: PaddleNode) -> Any:
    return n.same("sigmoid_backward", grad_output=n.inputs[1], output=n.inputs[0])


@paddle("tanh_grad")
def _tanh_grad(n: PaddleNode) -> Any:
    return n.same("tanh_backward", grad_output=n.inputs[1], output=n.inputs[0])


def _declare_derivative(name: str, type_: str) -> None:
    """The operand or the result, then the gradient."""
    paddle(f"{name}_grad")(lambda n: derived(n.op, type_, n.inputs[1], n.inputs[0]))


for _name in (
    "abs",
    "cos",
    "erf",
    "exp",
    "expm1",
    "log",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sin",
    "sqrt",
    "square",
):
    _declare_derivative(_name, _name.capitalize())
_declare_derivative("hardswish", "HardSwish")


@paddle("gelu_grad")
def _gelu_grad(n: PaddleNode) -> Any:
    approximate = "tanh" if n.attr("approximate") else "none"
    return n.same("gelu_backward", grad_output=n.inputs[1], self=n.inputs[0], approximate=approximate)


@paddle("silu_grad", "swish_grad")
def _silu_grad(n: PaddleNode) -> Any:
    g = n.inputs[2] if n.type == "silu_grad" else n.inputs[1]
    return n.same("silu_backward", grad_output=g, self=n.inputs[0])


@paddle("leaky_relu_grad")
def _leaky_relu_grad(n: PaddleNode) -> Any:
    x, g = n.inputs[:2]
    dtype = n.like().dtype
    falling = n.op("Mul", g, n.constant(n.attr("negative_slope"), dtype))
    return n.op("Select", n.op("Greater", x, n.constant(0, dtype)), g, falling)


@paddle("elu_grad")
def _elu_grad(n: PaddleNode) -> Any:
    x, out, g = n.inputs[:3]
    dtype = n.like().dtype
    alpha = n.attr("alpha")
    if alpha < 0:
        raise Unsupported("the gradient of elu with a negative alpha")
    falling = n.op("Mul", g, n.op("Add", out, n.constant(alpha, dtype)))
    return n.op("Select", n.op("Greater", x, n.constant(0, dtype)), g, falling)


@paddle("hardsigmoid_grad")
def _hardsigmoid_grad(n: PaddleNode) -> Any:
    out, g = n.inputs[:2]
    dtype = n.like().dtype
    inside = n.op("And", n.op("Greater", out, n.constant(0, dtype)), n.op("Less", out, n.constant(1, dtype)))
    return n.op("Select", inside, n.op("Mul", g, n.constant(n.attr("slope"), dtype)), n.constant(0, dtype))


@paddle("softplus_grad")
def _softplus_grad(n: PaddleNode) -> Any:
    x, g = n.inputs[:2]
    dtype = n.like().dtype
    scaled = n.op("Mul", x, n.constant(n.attr("beta"), dtype))
    steep = n.op("Greater", scaled, n.constant(n.attr("threshold"), dtype))
    return n.op("Select", steep, g, n.op("Mul", g, n.op("Sigmoid", scaled)))


@paddle("logsigmoid_grad")
def _logsigmoid_grad(n: PaddleNode) -> Any:
    return n.op("Mul", n.inputs[1], n.op("Sigmoid", n.op("Neg", n.inputs[0])))


@paddle("assign_grad")
def _assign_grad(n: PaddleNode) -> Any:
    return n.op("Identity", n.inputs[0])
