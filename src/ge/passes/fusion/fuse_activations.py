"""Recognises activations decomposed into simpler operators by their values at probe points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of, make_value
from ge.ops.base import NodeView, lookup
from ge.ops.builder import GraphBuilder
from ge.ops.traits import Formula
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, only_use, producer, scalar

__all__ = ["FuseActivations"]

Attrs = tuple[tuple[str, Any], ...]

_MAX_NODES = 12
# Largest difference between a region and a function; 16-bit constants and all results are rounded.
_TOLERANCES = {"float32": 3e-6, "float16": 2.0**-12, "bfloat16": 2.0**-9}

# The candidate functions: operator and attributes.
_CANDIDATES: tuple[tuple[str, Attrs], ...] = (
    ("Gelu", (("approximate", "none"),)),
    ("Gelu", (("approximate", "tanh"),)),
    ("Swish", (("beta", 1.0),)),
    ("Swish", (("beta", 1.702),)),
    ("HardSwish", ()),
    ("HardSigmoid", (("alpha", 1 / 6), ("beta", 0.5))),
    ("HardSigmoid", (("alpha", 0.2), ("beta", 0.5))),
    ("Mish", ()),
    ("Sigmoid", ()),
    ("Softplus", ()),
    ("Tanh", ()),
)


@dataclass(frozen=True)
class _Region:
    """Elementwise nodes that compute one function of one value and of scalars."""

    nodes: tuple[ir.Node, ...]
    argument: ir.Value


def _formula(node: ir.Node) -> Formula:
    return lookup(node.op_type).formula


def _regions(root: ir.Node) -> Iterator[_Region]:
    """The nodes above `root` that only `root` needs: growing regions that depend on one value only."""
    inside: dict[ir.Node, None] = {root: None}
    while len(inside) <= _MAX_NODES:
        leaves = {
            v
            for n in inside
            for v in n.inputs
            if v is not None and scalar(v) is None and v.producer() not in inside
        }
        if len(leaves) == 1 and len(inside) > 1 and any(_formula(n) is Formula.CURVE for n in inside):
            yield _Region(tuple(inside), next(iter(leaves)))
        grown = [n for n in (v.producer() for v in leaves) if n is not None and _joins(n, inside, root)]
        hidden = {n for g in grown for n in _above(g)}  # an argument shared by all comes last
        nearest = next((n for n in grown if n not in hidden), None)
        if nearest is None:
            return
        inside[nearest] = None


def _above(node: ir.Node) -> set[ir.Node]:
    """The ancestors of a node, a bounded number of them."""
    found: set[ir.Node] = set()
    stack = [node]
    while stack and len(found) < 2 * _MAX_NODES:
        for value in stack.pop().inputs:
            source = None if value is None else value.producer()
            if source is not None and _formula(source) is not Formula.NONE and source not in found:
                found.add(source)
                stack.append(source)
    return found


def _joins(node: ir.Node, inside: dict[ir.Node, None], root: ir.Node) -> bool:
    if _formula(node) is Formula.NONE or any(v.is_graph_output() for v in node.outputs):
        return False
    same = desc_of(node.outputs[0]) == desc_of(root.outputs[0])
    return same and all(use.node in inside for use in node.outputs[0].uses())


_FAR = (1e4, -1e4, np.inf, -np.inf)


def _probe() -> np.ndarray:
    near = np.concatenate([np.linspace(-9, 9, 73), [0.01, -0.01, 3.0, -3.0, 0.3333, 20.0, -20.0]])
    return np.concatenate([near, _FAR]).astype(np.float32)


@lru_cache(maxsize=64)
def _known(type_: str, attrs: Attrs) -> np.ndarray:
    """A candidate's values at the probe points."""
    b = GraphBuilder()
    return constant_of(b.op(type_, b.constant(_probe()), **dict(attrs)))  # type: ignore[return-value]


def _values(region: _Region, root: ir.Node) -> np.ndarray | None:
    """A region's values at the probe points."""
    known: dict[ir.Value, np.ndarray] = {region.argument: _probe()}
    for node in _sorted(region.nodes):
        arrays = []
        for value in node.inputs:
            assert value is not None
            number = scalar(value)
            arrays.append(np.full((), number, np.float32) if number is not None else known[value])
        given = [make_value("", TensorDesc(a.shape, "float32")) for a in arrays]
        view = NodeView(node.op_type, node.name or "", given, attrs_of(node))
        with np.errstate(all="ignore"):
            result = lookup(node.op_type).evaluate(view, arrays)
        if result is None:
            return None
        known[node.outputs[0]] = result[0]
    return known[root.outputs[0]]


def _sorted(nodes: tuple[ir.Node, ...]) -> list[ir.Node]:
    """Sort nodes topologically."""
    inside, seen = set(nodes), set()
    order: list[ir.Node] = []

    def visit(node: ir.Node) -> None:
        if node in seen:
            return
        seen.add(node)
        for value in node.inputs:
            above = None if value is None else value.producer()
            if above in inside:
                visit(above)
        order.append(node)

    for node in nodes:
        visit(node)
    return order


def _recognise(r: Rewriter, node: ir.Node) -> ir.Value | None:
    tolerance = _TOLERANCES.get(desc_of(node.outputs[0]).dtype)
    if tolerance is None or not _promising(node):
        return None
    for region in _regions(node):
        if desc_of(region.argument) != desc_of(node.outputs[0]):
            continue
        values = _values(region, node)
        match = None if values is None else _match(values, tolerance)
        if match is not None:
            r.stands_for(*region.nodes)
            return r.op(match[0], region.argument, **dict(match[1]))
    return None


def _promising(node: ir.Node) -> bool:
    """True if one of the nearest ancestors is a curve (a transcendental function)."""
    level = [node]
    for _ in range(5):
        level = [p for n in level for p in (v.producer() for v in n.inputs if v is not None) if p is not None]
        if any(_formula(n) is Formula.CURVE for n in level):
            return True
        level = [n for n in level if _formula(n) is not Formula.NONE][:4]
    return False


def _match(values: np.ndarray, tolerance: float) -> tuple[str, Attrs] | None:
    """The closest function within the tolerance."""
    finite = np.abs(_probe()) <= 9  # beyond, a formula may overflow where the operator does not
    errors = {}
    for type_, attrs in _CANDIDATES:
        known = _known(type_, attrs)
        wanted = known[finite]
        error = float(np.max(np.abs(values[finite] - wanted) / np.maximum(1, np.abs(wanted))))
        if error <= tolerance and _alike_at_infinity(values, known):  # false for NaN
            errors[type_, attrs] = error
    return min(errors, key=errors.__getitem__, default=None)


def _alike_at_infinity(values: np.ndarray, known: np.ndarray) -> bool:
    """False if only one is NaN at an infinity, as x + softplus(-x) is; unless a large number already overflows."""
    overflow = ~np.isfinite(values[-4:-2])
    return bool(np.all(overflow | (np.isnan(values[-2:]) == np.isnan(known[-2:]))))


def _swish(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """x * sigmoid(beta * x)."""
    for x, gate in (node.inputs, node.inputs[::-1]):
        inner = producer(gate, "Sigmoid")
        if inner is None or gate is None or not only_use(gate):
            continue
        if inner.inputs[0] is x:
            r.stands_for(inner)
            return r.op("Swish", x, beta=1.0)
        scaled = producer(inner.inputs[0], "Mul")
        if scaled is not None and scaled.inputs[0] is x and scalar(scaled.inputs[1]) is not None:
            r.stands_for(inner, scaled)
            return r.op("Swish", x, beta=scalar(scaled.inputs[1]))
    return None


def _leaky(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """max(x, alpha * x) for 0 < alpha <= 1; not for 0, as 0 * inf is NaN."""
    for x, other in (node.inputs, node.inputs[::-1]):
        inner = producer(other, "Mul")
        if inner is None or inner.inputs[0] is not x:
            continue
        alpha = scalar(inner.inputs[1])
        if alpha is not None and 0 < alpha <= 1 and desc_of(node.outputs[0]).dtype == "float32":
            r.stands_for(inner)
            return r.op("LeakyRelu", x, alpha=alpha)
    return None


_ROOTS: tuple[str, ...] = ("Div", "Add", "Log", "Log1p", "Reciprocal", "Clip")


class FuseActivations(RewritePass):
    """Recognise activations decomposed into simpler operators.

    1. A region of nodes whose operators are parts of formulas (their trait `formula`), that computes one function of
       one value of float32 or a 16-bit float, and that nothing else reads, is replaced by Gelu (either form), Swish,
       HardSwish, HardSigmoid, Mish, Sigmoid, Softplus or Tanh when it has that function's values at probe points:
       within 3e-6, or half a rounding of a 16-bit type, and NaN at the same infinities.
    2. x * sigmoid(b * x) is Swish with that b; max(x, a * x) with 0 < a <= 1 is LeakyRelu.
    3. A region with an outside reader is not fused.
    """

    name = "fuse_activations"
    rules: ClassVar[Rules] = {
        "Mul": (_swish, _recognise),
        "Maximum": (_leaky,),
        **dict.fromkeys(_ROOTS, (_recognise,)),
    }
