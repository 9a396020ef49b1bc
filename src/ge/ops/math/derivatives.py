"""Derivatives of functions of one number and of broadcasting: shared by differentiation and the front doors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ge.ir.values import desc_of

__all__ = ["DERIVATIVES", "OF_RESULT", "derived", "summed_to"]

Emit = Callable[..., Any]  # emits an operator: its type, inputs, attributes
OF_RESULT = frozenset({"Exp", "Expm1", "Reciprocal", "Rsqrt", "Sigmoid", "Sqrt", "Tan", "Tanh"})
_ROOT_PI = 2 / math.sqrt(math.pi)


def _hard_swish(op: Emit, g: Any, x: Any) -> Any:
    slope = op("Mul", g, op("Add", op("Mul", x, 1 / 3), 0.5))
    return op("Select", op("LessEqual", x, -3.0), 0.0, op("Select", op("Less", x, 3.0), slope, g))


def _mish(op: Emit, g: Any, x: Any) -> Any:
    """tanh(softplus(x)) + x * sigmoid(x) * (1 - tanh(softplus(x))²)."""
    t = op("Tanh", op("Softplus", x))
    rest = op("Mul", op("Mul", x, op("Sigmoid", x)), op("Sub", 1.0, op("Square", t)))
    return op("Mul", g, op("Add", t, rest))


# The gradient of the operand from that of the result and the value that the formula reads: the operand, or the result
# of the functions OF_RESULT.
DERIVATIVES: dict[str, Callable[[Emit, Any, Any], Any]] = {
    "Abs": lambda op, g, x: op("Mul", g, op("Sign", x)),
    "Acos": lambda op, g, x: op("Neg", op("Mul", g, op("Rsqrt", op("Sub", 1.0, op("Square", x))))),
    "Acosh": lambda op, g, x: op("Mul", g, op("Rsqrt", op("Sub", op("Square", x), 1.0))),
    "Asin": lambda op, g, x: op("Mul", g, op("Rsqrt", op("Sub", 1.0, op("Square", x)))),
    "Asinh": lambda op, g, x: op("Mul", g, op("Rsqrt", op("Add", op("Square", x), 1.0))),
    "Atan": lambda op, g, x: op("Div", g, op("Add", op("Square", x), 1.0)),
    "Atanh": lambda op, g, x: op("Div", g, op("Sub", 1.0, op("Square", x))),
    "Cos": lambda op, g, x: op("Neg", op("Mul", g, op("Sin", x))),
    "Cosh": lambda op, g, x: op("Mul", g, op("Sinh", x)),
    "Erf": lambda op, g, x: op("Mul", g, op("Mul", op("Exp", op("Neg", op("Square", x))), _ROOT_PI)),
    "Exp": lambda op, g, y: op("Mul", g, y),
    "Expm1": lambda op, g, y: op("Mul", g, op("Add", y, 1.0)),
    "HardSwish": _hard_swish,
    "Log": lambda op, g, x: op("Div", g, x),
    "Log1p": lambda op, g, x: op("Div", g, op("Add", x, 1.0)),
    "Mish": _mish,
    "Reciprocal": lambda op, g, y: op("Neg", op("Mul", g, op("Square", y))),
    "Rsqrt": lambda op, g, y: op("Mul", op("Mul", g, -0.5), op("Mul", op("Square", y), y)),
    "Sigmoid": lambda op, g, y: op("Mul", op("Mul", g, y), op("Sub", 1.0, y)),
    "Sin": lambda op, g, x: op("Mul", g, op("Cos", x)),
    "Sinh": lambda op, g, x: op("Mul", g, op("Cosh", x)),
    "Softplus": lambda op, g, x: op("Mul", g, op("Sigmoid", x)),
    "Softsign": lambda op, g, x: op("Div", g, op("Square", op("Add", op("Abs", x), 1.0))),
    "Sqrt": lambda op, g, y: op("Div", op("Mul", g, 0.5), y),
    "Square": lambda op, g, x: op("Mul", op("Mul", g, 2.0), x),
    "Tan": lambda op, g, y: op("Mul", g, op("Add", op("Square", y), 1.0)),
    "Tanh": lambda op, g, y: op("Mul", g, op("Sub", 1.0, op("Square", y))),
}


def derived(op: Emit, type_: str, gradient: Any, value: Any) -> Any:
    """The gradient of a function's operand; `value` is the operand, or the result of the functions OF_RESULT.

    >>> show = lambda type_, *operands: f"{type_}({', '.join(map(str, operands))})"
    >>> derived(show, "Sqrt", "g", "y")
    'Div(Mul(g, 0.5), y)'
    """
    return DERIVATIVES[type_](op, gradient, value)


def summed_to(op: Emit, gradient: Any, shape: Sequence[int]) -> Any:
    """A gradient summed over the axes along which an operand of this shape was broadcast."""
    wide = desc_of(gradient).shape
    lead = len(wide) - len(shape)
    axes = [*range(lead), *(i + lead for i, d in enumerate(shape) if d == 1 and wide[i + lead] != 1)]
    if axes:
        gradient = op("ReduceSum", gradient, axes=axes, keepdims=False)
    return gradient if desc_of(gradient).shape == tuple(shape) else op("Reshape", gradient, shape=list(shape))
