"""Gradients and optimizer steps, as defined by ONNX's training operators."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.differentiate import differentiate
from ge.ops.plugins import Node, Results, Unsupported, plugin

DOMAIN = "ai.onnx.preview.training"


@plugin(onnx="Gradient", domain=DOMAIN)
def _gradient(n: Node) -> Results:
    """The gradients of a named value of the graph with respect to others, at their values there."""
    names = [*n.attr("xs"), n.attr("y")]
    values = [n.parser.named(name) for name in names]
    given = [*n.inputs[: len(n.attr("xs"))]]
    wrong = [name for name, value in zip(names, values, strict=True) if not isinstance(value, ir.Value)]
    if wrong:
        raise Unsupported(
            f"the gradient with respect to {wrong[0]}, which is not a tensor",
            "differentiate with respect to tensors",
        )
    *variables, y = values
    if any(a is not b for a, b in zip(given, variables, strict=False)):
        raise Unsupported(
            "a gradient at other values than those of the graph", "pass the tensors listed in xs"
        )
    return differentiate(n.builder, y, variables)


def _groups(n: Node, count: int) -> list[tuple[Any, ...]]:
    """The operands per tensor: its value, its gradient and its states, which ONNX lists by kind."""
    rest = list(n.inputs[2:])
    if not rest or len(rest) % count:
        raise Unsupported(f"{n.type} needs {count} inputs a tensor, got {len(rest)}")
    tensors = len(rest) // count
    return [tuple(rest[kind * tensors + i] for kind in range(count)) for i in range(tensors)]


def _ordered(results: list[tuple[Any, ...]]) -> Results:
    return [value for kind in zip(*results, strict=True) for value in kind]


def _real(n: Node, value: Any, like: Any) -> Any:
    """A scalar in the type of a tensor."""
    dtype = desc_of(like).dtype
    return value if desc_of(value).dtype == dtype else n.op("Cast", value, to=dtype)


def _regularised(n: Node, x: Any, gradient: Any, factor: float) -> Any:
    return gradient if not factor else n.op("Add", n.op("Mul", x, factor), gradient)


@plugin(onnx="Adagrad", domain=DOMAIN)
def _adagrad(n: Node) -> Results:
    rate, count = n.inputs[:2]
    decay, epsilon = float(n.attr("decay_factor", 0.0)), float(n.attr("epsilon", 0.0))
    results = []
    for x, gradient, squares in _groups(n, 3):
        steps = n.op("Cast", count, to=desc_of(x).dtype)
        step = n.op("Div", _real(n, rate, x), n.op("Add", n.op("Mul", steps, decay), 1.0))
        g = _regularised(n, x, gradient, float(n.attr("norm_coefficient", 0.0)))
        squares = n.op("Add", squares, n.op("Square", g))
        adapted = n.op("Add", n.op("Sqrt", squares), epsilon)
        results.append((n.op("Sub", x, n.op("Div", n.op("Mul", step, g), adapted)), squares))
    return _ordered(results)


@plugin(onnx="Adam", domain=DOMAIN)
def _adam(n: Node) -> Results:
    rate, count = n.inputs[:2]
    alpha, beta = float(n.attr("alpha", 0.9)), float(n.attr("beta", 0.999))
    epsilon = float(n.attr("epsilon", 1e-8))
    results = []
    for x, gradient, first, second in _groups(n, 4):
        g = _regularised(n, x, gradient, float(n.attr("norm_coefficient", 0.0)))
        first = n.op("Add", n.op("Mul", first, alpha), n.op("Mul", g, 1 - alpha))
        second = n.op("Add", n.op("Mul", second, beta), n.op("Mul", n.op("Square", g), 1 - beta))
        steps = n.op("Cast", count, to=desc_of(x).dtype)
        one, other = (n.op("Sub", 1.0, n.op("Pow", f, steps)) for f in (alpha, beta))
        corrected = n.op("Div", n.op("Mul", _real(n, rate, x), n.op("Sqrt", other)), one)
        started = n.op("Greater", count, 0)
        step = n.op("Select", started, corrected, _real(n, rate, x))
        x = n.op("Sub", x, n.op("Div", n.op("Mul", step, first), n.op("Add", n.op("Sqrt", second), epsilon)))
        post = float(n.attr("norm_coefficient_post", 0.0))
        results.append((n.op("Mul", x, 1 - post) if post else x, first, second))
    return _ordered(results)


@plugin(onnx="Momentum", domain=DOMAIN)
def _momentum(n: Node) -> Results:
    rate, count = n.inputs[:2]
    alpha, beta = float(n.attr("alpha")), float(n.attr("beta"))
    nesterov = n.attr("mode", "standard") == "nesterov"
    results = []
    for x, gradient, velocity in _groups(n, 3):
        g = _regularised(n, x, gradient, float(n.attr("norm_coefficient", 0.0)))
        first = n.op("Equal", count, 0)
        weight = n.op("Select", first, n.builder.constant(1.0, dtype=desc_of(x).dtype), beta)
        velocity = n.op("Add", n.op("Mul", velocity, alpha), n.op("Mul", g, weight))
        direction = n.op("Add", g, n.op("Mul", velocity, alpha)) if nesterov else velocity
        results.append((n.op("Sub", x, n.op("Mul", _real(n, rate, x), direction)), velocity))
    return _ordered(results)
