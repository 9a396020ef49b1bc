"""Reverse-mode differentiation of a graph under construction.

    gradients = differentiate(builder, y, [x, w])      # of the sum of y's elements

1. Nodes on a path from a variable to y are visited once, in reverse order; the gradients from all readers of a value
   are summed.
2. A rule maps the gradient of a node's result to those of its inputs. Composite operators (normalisations, some
   activations) are decomposed and differentiated in that form.
3. Operators with zero derivative (comparisons, rounding, indices) pass no gradient on.
4. An operator without a rule is rejected by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import FLOATS, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.base import NodeView, lookup
from ge.ops.builder import GraphBuilder
from ge.ops.math.derivatives import DERIVATIVES, OF_RESULT, derived, summed_to
from ge.ops.math.reduce import normal_axes
from ge.ops.plugins import Unsupported

__all__ = ["differentiate"]

Gradients = Sequence[ir.Value | None]


def differentiate(builder: GraphBuilder, y: ir.Value, variables: Sequence[ir.Value]) -> list[ir.Value]:
    """The gradients of the sum of y's elements with respect to each variable; zeros if y does not depend on it."""
    if desc_of(y).dtype not in FLOATS:
        raise Unsupported(f"the gradient of {desc_of(y)}", "differentiate a floating-point result")
    ones = _filled(builder, y, 1.0)
    found = _backward(builder, y, ones, variables)
    return [
        gradient if gradient is not None else _filled(builder, x, 0.0)
        for x, gradient in zip(variables, found, strict=True)
    ]


def _filled(builder: GraphBuilder, like: ir.Value, number: float) -> ir.Value:
    desc = desc_of(like)
    return builder.op("BroadcastTo", np.asarray(number, numpy_dtype(desc.dtype)), shape=list(desc.shape))


def _backward(
    builder: GraphBuilder, y: ir.Value, gradient: ir.Value, variables: Sequence[ir.Value]
) -> list[ir.Value | None]:
    totals: dict[ir.Value, ir.Value] = {y: gradient}
    for node in reversed(_between(y, variables)):
        given = [totals.get(v) for v in node.outputs]
        if all(g is None for g in given) or lookup(node.op_type).piecewise_constant:
            continue
        for value, part in zip(node.inputs, _of_inputs(builder, node, given), strict=False):
            if value is None or part is None or desc_of(value).dtype not in FLOATS:
                continue
            known = totals.get(value)
            totals[value] = part if known is None else builder.op("Add", known, part)
    return [totals.get(v) for v in variables]


def _between(y: ir.Value, variables: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes on paths from a variable to y, in topological order."""
    ends = set(variables)
    order: list[ir.Node] = []
    depends: dict[ir.Node, bool] = {}
    todo = [(n, False) for n in [y.producer()] if n is not None and y not in ends]
    while todo:
        node, ready = todo.pop()
        if node in depends:
            continue
        if ready:
            inputs = [v for v in node.inputs if v is not None]
            makers = [v.producer() for v in inputs]
            depends[node] = any(
                v in ends or (m is not None and depends.get(m, False))
                for v, m in zip(inputs, makers, strict=True)
            )
            if depends[node]:
                order.append(node)
            continue
        todo.append((node, True))
        inner = [v.producer() for v in node.inputs if v is not None and v not in ends]
        todo.extend((m, False) for m in inner if m is not None and m not in depends)
    return order


def _of_inputs(builder: GraphBuilder, node: ir.Node, given: Sequence[ir.Value | None]) -> Gradients:
    rules = _Rules(builder, node, given)
    written = _WRITTEN_OUT.get(node.op_type)
    if written is not None:
        y, inputs = written(rules), list(dict.fromkeys(v for v in node.inputs if v is not None))
        found = dict(zip(inputs, _backward(builder, y, rules.g, inputs), strict=True))
        return [
            None if v is None else found.pop(v, None) for v in node.inputs
        ]  # of one given twice, the sum once
    rule = _RULES.get(node.op_type)
    if rule is None or (node.attributes.get("post_ops") and node.attributes["post_ops"].value):
        raise Unsupported(
            f"{node.op_type} has no gradient rule",
            "differentiate up to it, or export the gradients as a graph",
        )
    results = rule(rules)
    return results if isinstance(results, list | tuple) else [results]


class _Rules:
    """A node and the gradients of its results, with the helpers that rules are written in."""

    def __init__(self, builder: GraphBuilder, node: ir.Node, given: Sequence[ir.Value | None]) -> None:
        self.builder, self.node, self.given = builder, node, given
        self.attrs = NodeView.of(node).attrs

    @property
    def g(self) -> ir.Value:
        """The gradient of the first result."""
        found = self.given[0]
        return found if found is not None else _filled(self.builder, self.node.outputs[0], 0.0)

    @property
    def y(self) -> ir.Value:
        return self.node.outputs[0]

    def x(self, index: int = 0) -> ir.Value:
        """An input that is there."""
        value = self.node.inputs[index]
        assert value is not None
        return value

    def has(self, index: int) -> bool:
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def op(self, type_: str, *inputs: Any, **attrs: Any) -> Any:
        return self.builder.op(type_, *inputs, **attrs)

    def mul(self, *values: Any) -> Any:
        product = values[0]
        for value in values[1:]:
            product = self.op("Mul", product, value)
        return product

    def where(self, condition: Any, value: Any, otherwise: Any = None) -> Any:
        return self.op(
            "Select", condition, value, _filled(self.builder, value, 0.0) if otherwise is None else otherwise
        )

    def like(self, gradient: Any, value: ir.Value) -> Any:
        """A gradient summed over the axes along which the value was broadcast."""
        return summed_to(self.op, gradient, desc_of(value).shape)

    def reshape(self, value: Any, shape: Sequence[int]) -> Any:
        return value if desc_of(value).shape == tuple(shape) else self.op("Reshape", value, shape=list(shape))

    def spread(self, value: Any) -> Any:
        """The result of a reduction, broadcast back over the axes of its operand."""
        shape = list(desc_of(self.x()).shape)
        kept = [1 if i in self.axes() else d for i, d in enumerate(shape)]
        return self.op("BroadcastTo", self.reshape(value, kept), shape=shape)

    def axes(self) -> tuple[int, ...]:
        rank = desc_of(self.x()).rank
        given = self.attrs.get("axes")
        return tuple(range(rank)) if given is None else tuple(normal_axes(given, rank))

    def mean(self, value: Any, axes: Sequence[int]) -> Any:
        return self.op("ReduceMean", value, axes=list(axes), keepdims=True)

    def total(self, value: Any, axes: Sequence[int]) -> Any:
        return self.op("ReduceSum", value, axes=list(axes), keepdims=True)

    def scattered(self, gradient: Any, indices: Any, axis: int, size: int) -> Any:
        """Rows of a gradient, scatter-added to zeros by indices along an axis."""
        rank = desc_of(gradient).rank
        perm = [axis, *(i for i in range(rank) if i != axis)]
        front = self.op("Transpose", gradient, perm=perm)
        rows = self.op("ScatterSum", indices, front, rows=size)
        return self.op("Transpose", rows, perm=[perm.index(i) for i in range(rank)])


_RULES: dict[str, Callable[[_Rules], Any]] = {}
_WRITTEN_OUT: dict[str, Callable[[_Rules], Any]] = {}


def _rule(*types: str) -> Callable[[Callable[[_Rules], Any]], Callable[[_Rules], Any]]:
    return lambda made: [_RULES.__setitem__(t, made) for t in types] and made  # type: ignore[func-returns-value, return-value]


def _written_out(*types: str) -> Callable[[Callable[[_Rules], Any]], Callable[[_Rules], Any]]:
    return lambda made: [_WRITTEN_OUT.__setitem__(t, made) for t in types] and made  # type: ignore[func-returns-value, return-value]


# -- element by element ----------------------------------------------------------------------------------------

# The derivative of a function with attributes or bends, from its operand and its result.
_SLOPES: dict[str, Callable[[_Rules, Any, Any], Any]] = {
    "Gelu": lambda r, x, y: r.op("GeluSlope", x, approximate=r.attrs["approximate"]),
    "HardSigmoid": lambda r, x, y: r.mul(_inside(r, y, 0.0, 1.0), float(r.attrs["alpha"])),
    "LeakyRelu": lambda r, x, y: _two(r, x, 1.0, float(r.attrs["alpha"])),
    "Neg": lambda r, x, y: _filled(r.builder, x, -1.0),
    "Relu": lambda r, x, y: _two(r, x, 1.0, 0.0),
    "ThresholdedRelu": lambda r, x, y: _two(r, x, 1.0, 0.0, float(r.attrs["alpha"])),
}  # fmt: skip


def _two(r: _Rules, x: Any, above: float, below: float, bound: float = 0.0) -> Any:
    """One number where x exceeds a bound, another elsewhere."""
    return r.where(r.op("Greater", x, bound), _filled(r.builder, x, above), _filled(r.builder, x, below))


def _inside(r: _Rules, y: Any, low: float | None, high: float | None) -> Any:
    inside = _filled(r.builder, y, 1.0)
    if low is not None:
        inside = r.where(r.op("Greater", y, low), inside)
    return inside if high is None else r.where(r.op("Less", y, high), inside)


for _type, _slope in _SLOPES.items():
    _RULES[_type] = lambda r, slope=_slope: r.mul(r.g, slope(r, r.x(), r.y))  # type: ignore[misc]
for _type in DERIVATIVES:
    _RULES[_type] = lambda r: derived(
        r.op, r.node.op_type, r.g, r.y if r.node.op_type in OF_RESULT else r.x()
    )


@_rule("Elu", "Selu", "Celu")
def _elu(r: _Rules) -> Any:
    alpha, gamma = float(r.attrs["alpha"]), float(r.attrs.get("gamma", 1.0))
    if r.node.op_type == "Celu":
        slope = r.op("Exp", r.op("Div", r.op("Minimum", r.x(), 0.0), alpha))
    else:
        slope = r.mul(r.op("Exp", r.op("Minimum", r.x(), 0.0)), alpha * gamma)
    return r.mul(r.g, r.where(r.op("Greater", r.x(), 0.0), _filled(r.builder, r.x(), gamma), slope))


@_rule("Clip")
def _clip(r: _Rules) -> Any:
    low, high = r.attrs["min"], r.attrs["max"]
    kept = r.g
    if low is not None:
        kept = r.where(r.op("GreaterEqual", r.x(), float(low)), kept)
    return kept if high is None else r.where(r.op("LessEqual", r.x(), float(high)), kept)


_written_out("Swish")(lambda r: r.mul(r.x(), r.op("Sigmoid", r.mul(r.x(), float(r.attrs["beta"])))))
_written_out("SquaredDifference")(lambda r: r.op("Square", r.op("Sub", r.x(), r.x(1))))
_written_out("PRelu")(lambda r: r.op("Add", r.op("Relu", r.x()), r.mul(r.op("Minimum", r.x(), 0.0), r.x(1))))


@_rule("Add", "Sub")
def _add(r: _Rules) -> Any:
    other = r.g if r.node.op_type == "Add" else r.op("Neg", r.g)
    return [r.like(r.g, r.x()), r.like(other, r.x(1))]


@_rule("Mul")
def _mul(r: _Rules) -> Any:
    return [r.like(r.mul(r.g, r.x(1)), r.x()), r.like(r.mul(r.g, r.x()), r.x(1))]


@_rule("Div")
def _div(r: _Rules) -> Any:
    share = r.op("Div", r.g, r.x(1))
    return [r.like(share, r.x()), r.like(r.op("Neg", r.mul(share, r.y)), r.x(1))]


@_rule("Pow")
def _pow(r: _Rules) -> Any:
    a, b = r.x(), r.x(1)
    if desc_of(b).dtype != desc_of(a).dtype:
        b = r.op("Cast", b, to=desc_of(a).dtype)
    by_base = r.mul(r.g, b, r.op("Pow", a, r.op("Sub", b, 1.0)))
    positive = r.op("Greater", a, 0.0)
    logarithm = r.op("Log", r.where(positive, a, _filled(r.builder, a, 1.0)))
    return [r.like(by_base, a), r.like(r.mul(r.g, r.y, logarithm), b)]


@_rule("Maximum", "Minimum")
def _extremum(r: _Rules) -> Any:
    """Ties share the gradient."""
    test = "Greater" if r.node.op_type == "Maximum" else "Less"
    half = r.where(r.op("Equal", r.x(), r.x(1)), r.mul(r.g, 0.5))
    return [
        r.like(r.op("Add", r.where(r.op(test, a, b), r.g), half), a)
        for a, b in ((r.x(), r.x(1)), (r.x(1), r.x()))
    ]


@_rule("Select")
def _select(r: _Rules) -> Any:
    zeros = _filled(r.builder, r.g, 0.0)
    condition = r.x()
    first, second = r.op("Select", condition, r.g, zeros), r.op("Select", condition, zeros, r.g)
    return [None, r.like(first, r.x(1)), r.like(second, r.x(2))]


# -- movements -------------------------------------------------------------------------------------------------


@_rule("Identity", "Checked")
def _identity(r: _Rules) -> Any:
    return r.g


@_rule("Cast")
def _cast(r: _Rules) -> Any:
    source = desc_of(r.x()).dtype
    return r.op("Cast", r.g, to=source) if source in FLOATS else None


@_rule("Reshape")
def _reshape(r: _Rules) -> Any:
    return r.reshape(r.g, desc_of(r.x()).shape)


@_rule("BroadcastTo")
def _broadcast(r: _Rules) -> Any:
    return r.like(r.g, r.x())


@_rule("Transpose")
def _transpose(r: _Rules) -> Any:
    perm = list(r.attrs["perm"])
    return r.op("Transpose", r.g, perm=[perm.index(i) for i in range(len(perm))])


@_rule("Reverse")
def _reverse(r: _Rules) -> Any:
    return r.op("Reverse", r.g, axes=list(r.attrs["axes"]))


@_rule("Tile")
def _tile(r: _Rules) -> Any:
    shape, repeats = desc_of(r.x()).shape, list(r.attrs["repeats"])
    parts = [v for pair in zip(repeats, shape, strict=True) for v in pair]
    return r.op("ReduceSum", r.reshape(r.g, parts), axes=list(range(0, len(parts), 2)), keepdims=False)


@_rule("Concat")
def _concat(r: _Rules) -> Any:
    axis = r.attrs["axis"] % desc_of(r.g).rank
    values = [v for v in r.node.inputs if v is not None]
    sizes = [desc_of(v).shape[axis] for v in values]
    return list(r.builder.ops("Split", [r.g], axis=axis, sizes=sizes))


@_rule("Split")
def _split(r: _Rules) -> Any:
    parts = [
        g if g is not None else _filled(r.builder, v, 0.0)
        for g, v in zip(r.given, r.node.outputs, strict=True)
    ]
    return r.op("Concat", *parts, axis=r.attrs["axis"])


@_rule("Slice")
def _slice(r: _Rules) -> Any:
    g = r.g
    shape = desc_of(r.x()).shape
    steps = r.attrs["steps"] or [1] * len(shape)
    for axis, (start, end, step, size) in enumerate(
        zip(r.attrs["starts"], r.attrs["ends"], steps, shape, strict=True)
    ):
        rows = np.arange(size)[slice(start, None if step < 0 and end < 0 else end, step)]
        if len(rows) != desc_of(g).shape[axis]:
            raise Unsupported(f"the gradient of a slice [{start}:{end}:{step}] of {size}")
        if len(rows) == size and step == 1:
            continue
        if step == 1:
            low, high = [0] * len(shape), [0] * len(shape)
            low[axis], high[axis] = (
                int(rows[0]) if len(rows) else 0,
                size - len(rows) - (int(rows[0]) if len(rows) else 0),
            )
            g = r.op("Pad", g, low=low, high=high)
        else:
            g = r.scattered(g, rows.astype(np.int64), axis, size)
    return g


@_rule("Pad")
def _pad(r: _Rules) -> Any:
    if r.attrs["mode"] != "constant" or any(v < 0 for v in (*r.attrs["low"], *r.attrs["high"])):
        raise Unsupported(f"the gradient of a border of mode {r.attrs['mode']}", "pad with a constant")
    shape = desc_of(r.x()).shape
    ends = [low + size for low, size in zip(r.attrs["low"], shape, strict=True)]
    return r.op("Slice", r.g, starts=list(r.attrs["low"]), ends=ends)


@_rule("Gather")
def _gather(r: _Rules) -> Any:
    if r.attrs["batch_dims"]:
        raise Unsupported("the gradient of a Gather with batch axes")
    shape, indices = desc_of(r.x()).shape, r.x(1)
    axis = r.attrs["axis"] % len(shape)
    count = desc_of(indices).size
    flat = r.reshape(indices, [count])
    zero = np.asarray(0, numpy_dtype(desc_of(indices).dtype))
    flat = r.op("Select", r.op("Less", flat, zero), r.op("Add", flat, shape[axis]), flat)
    g = r.reshape(r.g, [*shape[:axis], count, *shape[axis + 1 :]])
    return [r.scattered(g, flat, axis, shape[axis]), None]


@_rule("GatherElements")
def _gather_elements(r: _Rules) -> Any:
    zeros = _filled(r.builder, r.x(), 0.0)
    return [r.op("ScatterElements", zeros, r.x(1), r.g, axis=r.attrs["axis"], reduction="add"), None]


# -- reductions ------------------------------------------------------------------------------------------------


@_rule("ReduceSum")
def _reduce_sum(r: _Rules) -> Any:
    return r.spread(r.g)


@_rule("ReduceMean")
def _reduce_mean(r: _Rules) -> Any:
    count = math.prod(desc_of(r.x()).shape[i] for i in r.axes())
    return r.spread(r.mul(r.g, 1.0 / max(count, 1)))


@_rule("ReduceMax", "ReduceMin")
def _reduce_extremum(r: _Rules) -> Any:
    """Ties share the gradient."""
    hits = r.op("Cast", r.op("Equal", r.x(), r.spread(r.y)), to=desc_of(r.x()).dtype)
    return r.mul(r.spread(r.g), r.op("Div", hits, r.total(hits, r.axes())))


@_rule("ReduceProd")
def _reduce_prod(r: _Rules) -> Any:
    return r.op("Div", r.mul(r.spread(r.g), r.spread(r.y)), r.x())


@_rule("Softmax")
def _softmax(r: _Rules) -> Any:
    weighted = r.mul(r.g, r.y)
    return r.op("Sub", weighted, r.mul(r.y, r.total(weighted, r.axes())))


@_rule("LogSoftmax")
def _log_softmax(r: _Rules) -> Any:
    return r.op("Sub", r.g, r.mul(r.op("Exp", r.y), r.total(r.g, r.axes())))


@_rule("CumSum")
def _cumulative_sum(r: _Rules) -> Any:
    return r.op("CumSum", r.g, **{**r.attrs, "reverse": not r.attrs["reverse"]})


# -- normalisations, written out ----------------------------------------------------------------------------------


def _standardised(r: _Rules, x: Any, axes: Sequence[int]) -> Any:
    centred = r.op("Sub", x, r.mean(x, axes))
    variance = r.mean(r.op("Square", centred), axes)
    return r.mul(centred, r.op("Rsqrt", r.op("Add", variance, float(r.attrs["epsilon"]))))


def _scaled(r: _Rules, y: Any, shape: Sequence[int] | None = None) -> Any:
    """Apply scale and bias, reshaped to `shape`."""
    for index, type_ in ((1, "Mul"), (2, "Add")):
        if r.has(index):
            operand = r.x(index) if shape is None else r.reshape(r.x(index), shape)
            y = r.op(type_, y, operand)
    return y


def _channel_shape(r: _Rules) -> list[int]:
    shape = desc_of(r.x()).shape
    axis = r.attrs["channel_axis"] % len(shape)
    return [d if i == axis else 1 for i, d in enumerate(shape)]


_written_out("LayerNorm")(lambda r: _scaled(r, _standardised(r, r.x(), r.axes())))


@_written_out("RmsNorm")
def _rms_norm(r: _Rules) -> Any:
    square = r.mean(r.op("Square", r.x()), r.axes())
    return _scaled(r, r.mul(r.x(), r.op("Rsqrt", r.op("Add", square, float(r.attrs["epsilon"])))))


@_written_out("InstanceNorm")
def _instance_norm(r: _Rules) -> Any:
    shape = _channel_shape(r)
    axes = [i for i in range(1, len(shape)) if i != r.attrs["channel_axis"] % len(shape)]
    return _scaled(r, _standardised(r, r.x(), axes), shape)


@_written_out("GroupNorm")
def _group_norm(r: _Rules) -> Any:
    shape = desc_of(r.x()).shape
    if r.attrs["channel_axis"] % len(shape) != 1:
        raise Unsupported("the gradient of a GroupNorm with channels last")
    grouped = r.reshape(
        r.x(),
        [
            shape[0],
            int(r.attrs["groups"]),
            -1 if not shape[0] else math.prod(shape[1:]) // int(r.attrs["groups"]),
        ],
    )
    return _scaled(r, r.reshape(_standardised(r, grouped, [2]), shape), _channel_shape(r))


@_written_out("BatchNorm")
def _batch_norm(r: _Rules) -> Any:
    shape = _channel_shape(r)
    scale, bias, mean, variance = (r.reshape(r.x(i), shape) for i in (1, 2, 3, 4))
    factor = r.mul(scale, r.op("Rsqrt", r.op("Add", variance, float(r.attrs["epsilon"]))))
    return r.op("Add", r.mul(r.op("Sub", r.x(), mean), factor), bias)


# -- products and windows -----------------------------------------------------------------------------------------


@_rule("MatMul")
def _matmul(r: _Rules) -> Any:
    a, b, ta, tb = r.x(), r.x(1), bool(r.attrs["transpose_a"]), bool(r.attrs["transpose_b"])
    if ta:
        da = r.op("MatMul", b, r.g, transpose_a=tb, transpose_b=True)
    else:
        da = r.op("MatMul", r.g, b, transpose_b=not tb)
    if tb:
        db = r.op("MatMul", r.g, a, transpose_a=True, transpose_b=ta)
    else:
        db = r.op("MatMul", a, r.g, transpose_a=not ta)
    rank = desc_of(r.g).rank
    bias = r.op("ReduceSum", r.g, axes=list(range(rank - 1)), keepdims=False) if r.has(2) else None
    return [r.like(da, a), r.like(db, b), bias]


_WINDOW = ("strides", "dilations", "pads_begin", "pads_end", "data_format")


def _chosen(r: _Rules, *names: str) -> dict[str, Any]:
    return {name: r.attrs[name] for name in names if r.attrs[name] is not None}


@_rule("Conv")
def _conv(r: _Rules) -> Any:
    x, w = desc_of(r.x()), desc_of(r.x(1))
    if r.attrs["data_format"] != "channels_first" or r.attrs["weight_format"] != "OI":
        raise Unsupported("the gradient of a convolution with channels last")
    shared = _chosen(r, "strides", "dilations", "pads_begin", "groups", "data_format", "weight_format")
    dx = r.op("ConvTranspose", r.g, r.x(1), output_shape=list(x.shape[2:]), **shared)
    window = _chosen(r, *_WINDOW, "groups", "weight_format")
    dw = r.op("ConvGradWeight", r.x(), r.g, kernel=list(w.shape[2:]), **window)
    axes = [0, *range(2, x.rank)]
    bias = r.op("ReduceSum", r.g, axes=axes, keepdims=False) if r.has(2) else None
    return [dx, dw, bias]


@_rule("MaxPool", "MaxPoolIndices")
def _max_pool(r: _Rules) -> Any:
    return r.op("MaxPoolGrad", r.g, r.x(), kernel=list(r.attrs["kernel"]), **_chosen(r, *_WINDOW))


@_rule("AvgPool")
def _average_pool(r: _Rules) -> Any:
    if r.attrs["count_include_pad"] and any((*(r.attrs["pads_begin"] or ()), *(r.attrs["pads_end"] or ()))):
        raise Unsupported("the gradient of an average that counts its border", "use count_include_pad=0")
    shape = list(desc_of(r.x()).shape)
    return r.op("AvgPoolGrad", r.g, kernel=list(r.attrs["kernel"]), shape=shape, **_chosen(r, *_WINDOW))
