"""Algebraic simplification: neutral elements, inverse operations, and cheaper equivalent forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir.types import FLOATS
from ge.ir.values import constant_of, desc_of
from ge.ops.base import lookup
from ge.ops.traits import Sign
from ge.passes.rewrite import RewritePass, Rewriter, Rule, Rules, attrs_of, only_use, producer, scalar

__all__ = ["SimplifyAlgebra"]

_MAX_DEPTH = 6


def _unchanged(node: ir.Node, value: ir.Value | None) -> ir.Value | None:
    """The value, if it has the shape and type of the node's result (no broadcast is lost)."""
    assert value is not None
    return value if desc_of(value) == desc_of(node.outputs[0]) else None


def _constant_last(r: Rewriter, node: ir.Node) -> ir.Value | None:
    a, b = node.inputs
    if constant_of(a) is None or constant_of(b) is not None:
        return None
    return r.op_like(node, [b, a])


def _neutral(number: float) -> Rule:
    def rule(r: Rewriter, node: ir.Node) -> ir.Value | None:
        return _unchanged(node, node.inputs[0]) if scalar(node.inputs[1]) == number else None

    return rule


def _subtract_constant(r: Rewriter, node: ir.Node) -> ir.Value | None:
    constant = constant_of(node.inputs[1])
    if constant is None or desc_of(node.outputs[0]).dtype not in FLOATS:
        return None
    return r.op("Add", node.inputs[0], np.negative(constant))


def _of_negative(type_: str) -> Rule:
    def rule(r: Rewriter, node: ir.Node) -> ir.Value | None:
        inner = producer(node.inputs[1], "Neg")
        if inner is None or not only_use(inner.outputs[0]):
            return None
        r.stands_for(inner)
        return r.op(type_, node.inputs[0], inner.inputs[0])

    return rule


def _divide_by_constant(r: Rewriter, node: ir.Node) -> ir.Value | None:
    constant = constant_of(node.inputs[1])
    if constant is None or desc_of(node.outputs[0]).dtype not in FLOATS or constant.size == 0:
        return None
    wide = constant.astype(np.float64)
    if not np.all(np.isfinite(wide)) or np.any(np.abs(np.frexp(wide)[0]) != 0.5):
        return None
    inverse = (1.0 / wide).astype(constant.dtype)
    if not np.all(np.isfinite(inverse.astype(np.float64))) or np.any(np.abs(wide) > 2.0**100):
        return None
    return r.op("Mul", node.inputs[0], inverse)


def _one_over(r: Rewriter, node: ir.Node) -> ir.Value | None:
    if scalar(node.inputs[0]) != 1 or desc_of(node.outputs[0]).dtype not in FLOATS:
        return None
    return _unchanged(node, r.op("Reciprocal", node.inputs[1]))


def _product_of_constants(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Mul")
    outer = constant_of(node.inputs[1])
    if inner is None or outer is None or not only_use(inner.outputs[0]) or outer.size != 1:
        return None
    constant = constant_of(inner.inputs[1])
    if constant is None or desc_of(node.outputs[0]).dtype not in FLOATS:
        return None
    r.stands_for(inner)
    merged = (constant.astype(np.float64) * outer.astype(np.float64).reshape(())).astype(constant.dtype)
    result = r.op("Mul", inner.inputs[0], merged)
    return _unchanged(node, result)


def _square(r: Rewriter, node: ir.Node) -> ir.Value | None:
    return r.op("Square", node.inputs[0]) if node.inputs[0] is node.inputs[1] else None


def _squared_difference(r: Rewriter, node: ir.Node) -> ir.Value | None:
    return r.op("Square", r.op("Sub", *node.inputs))


def non_negative(value: ir.Value | None, depth: int = _MAX_DEPTH) -> bool:
    """True if a value is known to have no negative elements."""
    if value is None or depth == 0:
        return False
    constant = constant_of(value)
    if constant is not None:
        return bool(np.all(constant >= 0))
    node = value.producer()
    if node is None:
        return False
    sign = lookup(node.op_type).sign
    if sign is Sign.KEPT:
        return all(non_negative(v, depth - 1) for v in node.inputs)
    return sign is Sign.NON_NEGATIVE


def _power(r: Rewriter, node: ir.Node) -> ir.Value | None:
    base, exponent = node.inputs[0], scalar(node.inputs[1])
    if base is None or exponent is None or desc_of(base) != desc_of(node.outputs[0]):
        return None
    if exponent == 1:
        return base
    if exponent == 2:
        return r.op("Square", base)
    if desc_of(base).dtype not in FLOATS:
        return None
    if exponent == 3:
        return r.op("Mul", r.op("Square", base), base)
    if exponent == -1:
        return r.op("Reciprocal", base)
    if exponent in (0.5, -0.5) and non_negative(base):
        return r.op("Sqrt" if exponent > 0 else "Rsqrt", base)
    return None


def _applied_twice(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """Simplify f(f(x)) to f(x) for an idempotent f, and to x for an involution."""
    inner, operator = producer(node.inputs[0], node.op_type), lookup(node.op_type)
    if inner is None or attrs_of(inner) != attrs_of(node):
        return None
    return inner.inputs[0] if operator.involution else node.inputs[0]


def _reciprocal_of_root(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Sqrt")
    if inner is None or not only_use(inner.outputs[0]):
        return None
    r.stands_for(inner)
    return r.op("Rsqrt", inner.inputs[0])


def _bound(type_: str) -> Rule:
    """Maximum or Minimum with a scalar is a Clip."""

    def rule(r: Rewriter, node: ir.Node) -> ir.Value | None:
        number = scalar(node.inputs[1])
        source = node.inputs[0]
        if number is None or source is None or desc_of(source) != desc_of(node.outputs[0]):
            return None
        if desc_of(source).dtype not in FLOATS or math.isnan(number):
            return None
        if type_ == "Maximum":
            return r.op("Relu", source) if number == 0 else r.op("Clip", source, min=number)
        return r.op("Clip", source, max=number)

    return rule


def _clip(r: Rewriter, node: ir.Node) -> ir.Value | None:
    attrs = attrs_of(node)
    low, high = attrs["min"], attrs["max"]
    if low is None and high is None:
        return node.inputs[0]
    if low == 0 and high is None:
        return r.op("Relu", node.inputs[0])
    if low is not None and high is not None and low > high:  # the upper bound wins
        return r.op("Clip", node.inputs[0], min=high, max=high)
    inner = producer(node.inputs[0], "Clip", "Relu")
    if inner is None or not only_use(inner.outputs[0]):
        return None
    within = attrs_of(inner) if inner.op_type == "Clip" else {"min": 0.0, "max": None}
    bounds = _intersection((within["min"], within["max"]), (low, high))
    if bounds is None:
        return None
    r.stands_for(inner)
    return r.op("Clip", inner.inputs[0], min=bounds[0], max=bounds[1])


Bounds = tuple[float | None, float | None]


def _intersection(first: Bounds, second: Bounds) -> Bounds | None:
    """The bounds of two Clips in sequence, None if the intervals are disjoint (the result would be constant)."""
    low = _pick(max, first[0], second[0])
    high = _pick(min, first[1], second[1])
    return None if low is not None and high is not None and low > high else (low, high)


def _pick(choose: Callable[..., float], a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else choose(a, b)


def _relu_of_clip(r: Rewriter, node: ir.Node) -> ir.Value | None:
    inner = producer(node.inputs[0], "Clip", "Relu")
    if inner is None:
        return None
    if inner.op_type == "Relu" or (attrs_of(inner)["min"] or -1.0) >= 0:
        return node.inputs[0]
    return None


def _select_known(r: Rewriter, node: ir.Node) -> ir.Value | None:
    known = scalar(node.inputs[0])
    if known is None:
        return None
    return _unchanged(node, node.inputs[1] if known else node.inputs[2])


class SimplifyAlgebra(RewritePass):
    """Rewrite arithmetic into simpler, equivalent arithmetic.

    1. A constant operand of Add, Mul, Maximum or Minimum comes second; x - c is x + (-c).
    2. x + 0, x - 0, x * 1, x / 1 and x ** 1 are x (where no broadcasting is lost; -0 + 0 counts as -0).
    3. x + (-y) is x - y and x - (-y) is x + y.
    4. Division by powers of two is multiplication (exact); 1 / x is Reciprocal; 1 / sqrt(x) is Rsqrt.
    5. x * x, x ** 2 and squared differences are Square; x ** 3, x ** -1 are products and Reciprocal; x ** ±0.5 is a
       root only if x is known to be non-negative.
    6. (x * c) * k is x * (c * k) for a scalar k.
    7. Two applications of an involution (Neg, Not) go; the second of an idempotent operator (Abs, Floor) goes. So do
       Relu of Relu, and of a Clip that gives no negative numbers.
    8. Maximum and Minimum with a scalar are Relu or Clip; Clips merge if their ranges intersect.
    9. Select by a constant condition is one of its branches.
    10. Integer arithmetic stays; no rewrite changes a NaN or an infinity.
    """

    name = "simplify_algebra"
    rules: ClassVar[Rules] = {
        "Add": (_constant_last, _neutral(0), _of_negative("Sub")),
        "Sub": (_neutral(0), _of_negative("Add"), _subtract_constant),
        "Mul": (_constant_last, _neutral(1), _square, _product_of_constants),
        "Div": (_neutral(1), _divide_by_constant, _one_over),
        "Pow": (_power,),
        "SquaredDifference": (_squared_difference,),
        "Relu": (_relu_of_clip,),
        "Reciprocal": (_reciprocal_of_root,),
        "Maximum": (_constant_last, _bound("Maximum")),
        "Minimum": (_constant_last, _bound("Minimum")),
        "Clip": (_clip,),
        "Select": (_select_known,),
    }

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        operator = lookup(node.op_type)
        twice = (_applied_twice,) if operator.idempotent or operator.involution else ()
        return (*super().rules_of(node), *twice)
