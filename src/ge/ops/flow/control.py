"""Branches and loops over closed subgraphs.

A subgraph reads only its own inputs: outer values are captured as inputs (see GraphBuilder).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir import facts
from ge.ir.types import BOOL, TENSORS, TensorDesc, dtype_from_ir, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import (
    Attr,
    Engine,
    Input,
    NodeView,
    Operator,
    Output,
    fail,
    has_dynamic_size,
    is_whole_view,
    register,
)
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Node, Results, Sequence_, Unsupported, plugin

__all__ = ["If", "Loop", "branch", "repeat", "shared_captures"]

UNROLL_LIMIT = 8


@register
class If(Operator):
    """The outputs of then_branch where the condition holds, else of else_branch; both read the captures."""

    condition = Input("", BOOL)
    captures = Input("", TENSORS, variadic=True)
    results = Output(variadic=True)
    then_branch = Attr(ir.Graph)
    else_branch = Attr(ir.Graph)
    engine = Engine.CONTROL
    foldable = False

    @staticmethod
    def verify(op: NodeView) -> None:
        if op.inputs[0].size != 1:  # type: ignore[union-attr]
            raise fail(op, f"the condition is {op.inputs[0]} where one bool is expected")
        _check_ports(op, op.then_branch, op.inputs[1:], "then_branch")
        _check_ports(op, op.else_branch, op.inputs[1:], "else_branch")
        found, other = ([str(desc_of(v)) for v in g.outputs] for g in (op.then_branch, op.else_branch))
        if found != other:
            raise fail(
                op,
                f"the branches return {found} and {other}",
                "return the same shapes and types from both branches",
            )

        for graph in (op.then_branch, op.else_branch):
            dynamic = [v for v in graph.outputs if has_dynamic_size(v)]
            if len(set(dynamic)) != len(dynamic):
                raise fail(op, f"branch {graph.name} returns the same value of data-dependent size twice")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        return [desc_of(v) for v in op.then_branch.outputs]

    @classmethod
    def is_dynamic(cls, node: ir.Node, output: int) -> bool:
        branches = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
        return any(has_dynamic_size(graph.outputs[output]) for graph in branches)

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


@register
class Loop(Operator):
    """The body repeated while the counter is below `trip` (if given) and the condition (if given) holds.

    Inputs are trip, condition, num_states states and the captures; the body's inputs are the counter, the
    condition, the states and the captures; its outputs the condition, the states and values that are stacked
    over the steps. `max_trip` is the most steps, needed where values are stacked.
    """

    trip = Input("", frozenset({"int64"}), optional=True)
    condition = Input("", BOOL, optional=True)
    states_and_captures = Input("", TENSORS, variadic=True)
    results = Output(variadic=True)
    body = Attr(ir.Graph)
    num_states = Attr(int)
    max_trip = Attr(int, None)
    engine = Engine.CONTROL
    foldable = False

    @staticmethod
    def verify(op: NodeView) -> None:
        states = op.inputs[2 : 2 + op.num_states]
        expected = [TensorDesc((), "int64"), TensorDesc((), "bool"), *op.inputs[2:]]
        _check_ports(op, op.body, expected, "body")
        given = [desc_of(v) for v in op.body.outputs]
        if not given or given[0] != TensorDesc((), "bool"):
            raise fail(op, "the first output of the body must be a bool scalar, the condition")
        for index, (before, after) in enumerate(zip(states, given[1:], strict=False)):
            if before != after:
                raise fail(
                    op,
                    f"state {index} is {before} before and {after} after a step",
                    "keep the shapes of loop states constant",
                )
        if len(given) < 1 + op.num_states:
            raise fail(op, f"the body returns {len(given) - 1} states, expected {op.num_states}")
        if len(given) > 1 + op.num_states and op.max_trip is None:
            raise fail(
                op,
                "values are stacked over an unknown number of steps",
                "give the loop a constant trip count",
            )
        if any(has_dynamic_size(v) for v in op.body.outputs):
            raise fail(op, "the size of a value that an iteration returns depends on data")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        given = [desc_of(v) for v in op.body.outputs][1:]
        states, stacked = given[: op.num_states], given[op.num_states :]
        return [*states, *(TensorDesc((op.max_trip, *d.shape), d.dtype) for d in stacked)]

    @classmethod
    def is_dynamic(cls, node: ir.Node, output: int) -> bool:
        """Stacked values are as long as the actual number of steps."""
        return output >= node.attributes["num_states"].as_int() and not _has_fixed_steps(node)

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


def _has_fixed_steps(node: ir.Node) -> bool:
    """True if a loop always runs `max_trip` steps."""
    trip, condition = constant_of(node.inputs[0]), node.inputs[1] if len(node.inputs) > 1 else None
    if trip is None or int(trip.reshape(-1)[0]) != node.attributes["max_trip"].as_int():
        return False
    body = node.attributes["body"].as_graph()
    going = body.outputs[0]
    while (maker := going.producer()) is not None and is_whole_view(maker):
        going = maker.inputs[0]  # type: ignore[assignment]
    return (condition is None or _is_true(condition)) and (going is body.inputs[1] or _is_true(going))


def _is_true(value: ir.Value) -> bool:
    known = constant_of(value)
    return known is not None and bool(known.reshape(-1)[0])


def _check_ports(op: NodeView, graph: ir.Graph, expected: Sequence[TensorDesc | None], what: str) -> None:
    found = [desc_of(v) for v in graph.inputs]
    if found != list(expected):
        raise fail(
            op, f"the inputs of {what} are {list(map(str, found))} where {list(map(str, expected))} are given"
        )


# -- building ----------------------------------------------------------------------------------------------

Step = Callable[[GraphBuilder, Any, list[Any]], tuple[Sequence[Any], Sequence[Any]]]


def branch(
    builder: GraphBuilder,
    condition: ir.Value,
    then: Callable[[GraphBuilder], Sequence[Any]],
    otherwise: Callable[[GraphBuilder], Sequence[Any]],
) -> tuple[ir.Value, ...]:
    """An If node whose branches two functions build; a constant condition builds only one, inline."""
    known = constant_of(condition)
    if known is not None:
        return tuple((then if bool(known.reshape(-1)[0]) else otherwise)(builder))
    inner = [builder.subgraph("then_branch"), builder.subgraph("else_branch")]
    for part, function in zip(inner, (then, otherwise), strict=True):
        for value in function(part):
            part.output(value)
    captures = shared_captures(inner)
    return builder.ops("If", [condition, *captures], then_branch=inner[0].graph, else_branch=inner[1].graph)


def shared_captures(parts: Sequence[GraphBuilder]) -> list[ir.Value]:
    """Give all parts the same capture inputs, in one order; returns the outer values."""
    captures = list(dict.fromkeys(v for part in parts for v in part.captures()))
    for part in parts:
        inner = [part._own(v) for v in captures]
        part.graph.inputs[:] = inner
    return captures


def repeat(
    builder: GraphBuilder, trip: int, states: Sequence[Any], step: Step
) -> tuple[list[Any], list[Any]]:
    """Run `step(builder, counter, states) -> (states, stacked)` `trip` times; few steps are unrolled.

    Returns the final states and the stacked values.
    """
    if trip <= UNROLL_LIMIT:
        return unroll(builder, trip, states, step)
    body = builder.subgraph("body")
    counter = body.input("step", (), "int64")
    going = body.input("going", (), "bool")
    inner = [body.input(f"state{i}", desc_of(s).shape, desc_of(s).dtype) for i, s in enumerate(states)]
    results, stacked = step(body, counter, list(inner))
    for value in (going, *results, *stacked):
        body.output(value)
    made = builder.ops(
        "Loop",
        [builder.constant(trip, dtype="int64"), None, *states, *body.captures()],
        body=body.graph,
        num_states=len(states),
        max_trip=trip,
    )
    return list(made[: len(states)]), list(made[len(states) :])


def unroll(
    builder: GraphBuilder, trip: int, states: Sequence[Any], step: Step
) -> tuple[list[Any], list[Any]]:
    """As `repeat`, but every step is part of the graph, so that the states' shapes may change."""
    states = list(states)
    rows: list[list[Any]] = []
    for index in range(trip):
        results, stacked = step(builder, builder.constant(index, dtype="int64"), states)
        states = list(results)
        rows.append([builder.op("Reshape", v, shape=[1, *desc_of(v).shape]) for v in stacked])
    columns = list(zip(*rows, strict=True))
    return states, [c[0] if len(c) == 1 else builder.op("Concat", *c, axis=0) for c in columns]


# -- ONNX --------------------------------------------------------------------------------------------------

MAX_UNROLLED = 1024


@plugin(onnx="If")
def _if(n: Node) -> Results:
    """A constant condition inlines one branch; sequences of one form are passed as their elements."""
    graphs, condition = [n.attr("then_branch"), n.attr("else_branch")], n.inputs[0]
    known = constant_of(condition)
    if known is not None:
        return tuple(n.parser.body(graphs[0 if known.reshape(-1)[0] else 1], n.builder, []))
    forms: list[list[Any]] = []

    def emitted(graph: Any) -> Callable[[GraphBuilder], Sequence[Any]]:
        def emit(builder: GraphBuilder) -> Sequence[Any]:
            results = n.parser.body(graph, builder, [])
            forms.append([_form(r) for r in results])
            return [value for r in results for value in _elements(r)]

        return emit

    try:
        flat = branch(n.builder, condition, *map(emitted, graphs))  # type: ignore[arg-type]
    except GeError as error:
        raise Unsupported(error.cause, error.remedy, condition) from error
    if forms[0] != forms[1]:
        raise Unsupported(
            "its branches return sequences or optionals of different structure", "use tensors", condition
        )
    values = iter(flat)
    return [_rebuilt(form, values) for form in forms[0]]


def _elements(value: Any) -> list[Any]:
    """The tensors of a value that may be a sequence."""
    if isinstance(value, Sequence_):
        return [tensor for item in value.items for tensor in _elements(item)]
    return [value] if isinstance(value, ir.Value) else []


def _form(value: Any) -> Any:
    """The structure of a value: the narrow type of each tensor, lists of them, None if it has no value."""
    if isinstance(value, Sequence_):
        return (value.optional, tuple(_form(item) for item in value.items))
    if not isinstance(value, ir.Value | None):
        raise Unsupported("a branch or loop returns dictionaries", "use tensors")
    return None if value is None else facts.narrow(value)


def _rebuilt(form: Any, values: Iterator[ir.Value]) -> Any:
    if form is None:
        return None
    if isinstance(form, tuple):
        return Sequence_(tuple(_rebuilt(item, values) for item in form[1]), form[0])
    value = next(values)
    if form:
        facts.set_narrow(value, form)
    return value


def _tensors(values: Sequence[Any]) -> Sequence[Any]:
    if not all(isinstance(v, ir.Value) and not facts.narrow(v) for v in values):
        raise Unsupported(
            "a loop returns strings, a sequence, an optional or a narrow type", "use tensors of numbers"
        )
    return values


@plugin(onnx="Loop")
def _loop(n: Node) -> Results:
    """With fixed shapes it stays a loop; if shapes change or sequences are carried, it is unrolled.

    An unrolled loop has a known count, or a condition that is constant in every step (a counter against a size).
    """
    trip, condition = constant_of(n.input(0)), constant_of(n.input(1))
    count = None if trip is None else int(trip.reshape(-1)[0])
    if condition is not None and not condition.reshape(-1)[0]:
        count = 0
    if count == 0:
        return _no_steps(n)
    unknown = next((n.input(i) for i, known in enumerate((trip, condition)) if known is None), None)
    if unknown is None:
        found = n.parser.attempt(lambda: _rolled_loop(n, count))
        if found is None and count is not None and count <= MAX_UNROLLED:
            return _unrolled_loop(n, count)
        found = n.parser.attempt(lambda: _unrolled_loop(n, count)) if found is None else found
        if found is not None:
            return found
    try:
        return _rolled_loop(n, count)
    except Unsupported as error:
        raise Unsupported(error.reason, error.remedy, error.needs or unknown) from error


def _bound(value: Any, port: Any, builder: GraphBuilder) -> Any:
    """A scalar in the form that the body declares: rank 0, or one axis of one element."""
    declared = port.type.tensor_type
    if declared.HasField("shape") and len(declared.shape.dim) == 1:
        return builder.op("Reshape", value, shape=[1])
    return value


def _scalar(builder: GraphBuilder, value: Any) -> Any:
    return value if not desc_of(value).rank else builder.op("Reshape", value, shape=[])


def _one_step(n: Node, states: Sequence[Any]) -> tuple[GraphBuilder, Any, list[Any]]:
    """The body as a graph of its own, whether it was going on, and the results."""
    graph, body = n.attr("body"), n.builder.subgraph("body")
    counter, going = body.input("step", (), "int64"), body.input("going", (), "bool")
    inner = [body.input(f"state{i}", desc_of(s).shape, desc_of(s).dtype) for i, s in enumerate(states)]
    before = _bound(going, graph.input[1], body)
    results = n.parser.body(graph, body, [_bound(counter, graph.input[0], body), before, *inner])
    return body, before, list(_tensors(results))


def _rolled_loop(n: Node, count: int | None) -> Results:
    states = [_tensors([s])[0] for s in n.inputs[2:]]
    body, before, results = _one_step(n, states)
    known = constant_of(results[0])
    endless = results[0] is before or (known is not None and bool(known.reshape(-1)[0]))
    condition = n.input(1)
    first = constant_of(condition)
    if endless and (condition is None or first is not None):
        condition = None
    stacked = len(results) - 1 - len(states)
    if stacked and (count is None or not (endless and condition is None)):
        raise Unsupported(
            "values are stacked over a number of steps that is known only at run time",
            "give the loop a constant trip count and no condition of its own",
            n.input(0) if count is None else n.input(1),
        )
    for value in (_scalar(body, results[0]), *results[1:]):
        body.output(value)
    trip = None if n.input(0) is None else _scalar(n.builder, n.inputs[0])
    start = None if condition is None else _scalar(n.builder, condition)
    if start is None and not endless:
        start = n.builder.constant(True)
    operands = [trip, start, *states, *body.captures()]
    try:
        return n.builder.ops("Loop", operands, body=body.graph, num_states=len(states), max_trip=count)
    except GeError as error:
        raise Unsupported(error.cause, error.remedy) from error


def _unrolled_loop(n: Node, count: int | None) -> Results:
    graph, states = n.attr("body"), list(n.inputs[2:])
    rows: list[list[Any]] = []
    going: Any = n.builder.constant(True)
    for step in range(min(count or MAX_UNROLLED, MAX_UNROLLED)):
        counter = n.builder.constant(step, dtype="int64")
        args = [_bound(counter, graph.input[0], n.builder), _bound(going, graph.input[1], n.builder), *states]
        results = n.parser.body(graph, n.builder, args)
        known = constant_of(results[0])
        if known is None:
            raise Unsupported(
                "a loop whose shapes change ends at a time known only at run time", "", results[0]
            )
        states = list(results[1 : 1 + len(states)])
        rows.append([n.op("Reshape", v, shape=[1, *desc_of(v).shape]) for v in results[1 + len(states) :]])
        going = results[0]
        if not known.reshape(-1)[0]:
            break
    else:
        if count is None or count > MAX_UNROLLED:
            raise Unsupported(f"a loop whose shapes change takes more than {MAX_UNROLLED} steps")
    columns = list(zip(*rows, strict=True))
    return [*states, *(c[0] if len(c) == 1 else n.op("Concat", *c, axis=0) for c in columns)]


def _no_steps(n: Node) -> Results:
    """The initial states; stacked values have no elements, in the shapes that the body gives, else declares."""
    states = list(n.inputs[2:])
    descs = n.parser.attempt(lambda: _stacked(n, states))
    if descs is None:
        ports = [port.type.tensor_type for port in n.attr("body").output[1 + len(states) :]]
        sizes = [tuple(int(d.dim_value) for d in p.shape.dim) for p in ports]
        dtypes = [dtype_from_ir(ir.DataType(p.elem_type)) for p in ports]
        descs = [TensorDesc(size, dtype) for size, dtype in zip(sizes, dtypes, strict=True)]
    return [*states, *(n.builder.constant(np.zeros((0, *d.shape), numpy_dtype(d.dtype))) for d in descs)]


def _stacked(n: Node, states: Sequence[Any]) -> list[TensorDesc]:
    """What a step would add to each stacked value."""
    try:
        _, _, results = _one_step(n, _tensors(states))
    except GeError as error:
        raise Unsupported(error.cause, error.remedy) from error
    return [desc_of(v) for v in results[1 + len(states) :]]


@plugin(onnx="Scan")
def _scan_batched(n: Node) -> Results:
    """Version 8: everything has a leading batch axis, each entry is scanned separately."""
    if n.input(0) is not None:
        raise Unsupported(
            "Scan of version 8 with sequence_lens is not supported", "export with operator set 9 or newer"
        )
    count = int(n.attr("num_scan_inputs"))
    operands = list(n.inputs[1:])
    backwards = list(n.attr("directions") or [0] * count)
    rows = []
    if n.desc(1).shape[0] > MAX_UNROLLED:
        raise Unsupported(
            f"Scan of version 8 takes at most {MAX_UNROLLED} sequences", "use operator set 9 or newer"
        )
    for index in range(n.desc(1).shape[0]):
        parts = [n.op("Gather", v, np.asarray(index), axis=0) for v in operands]
        states, scanned = parts[: len(parts) - count], parts[len(parts) - count :]
        final, stacked = _scanned(n, states, scanned, [0] * count, backwards)
        rows.append([n.op("Reshape", v, shape=[1, *desc_of(v).shape]) for v in (*final, *stacked)])
    return [c[0] if len(c) == 1 else n.op("Concat", *c, axis=0) for c in zip(*rows, strict=True)]


@plugin(onnx="Scan", since=9)
def _scan(n: Node) -> Results:
    count = int(n.attr("num_scan_inputs"))
    states, scanned = list(n.inputs[: len(n.inputs) - count]), list(n.inputs[len(n.inputs) - count :])
    axes = list(n.attr("scan_input_axes") or [0] * count)
    backwards = list(n.attr("scan_input_directions") or [0] * count)
    final, stacked = _scanned(n, states, scanned, axes, backwards)
    turned = list(n.attr("scan_output_directions") or [0] * len(stacked))
    targets = list(n.attr("scan_output_axes") or [0] * len(stacked))
    results = []
    for value, reverse, axis in zip(stacked, turned, targets, strict=True):
        value = n.op("Reverse", value, axes=[0]) if reverse else value
        rank = desc_of(value).rank
        axis = axis % rank
        perm = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
        results.append(value if axis == 0 else n.op("Transpose", value, perm=perm))
    return [*final, *results]


def _scanned(
    n: Node, states: list[Any], scanned: list[Any], axes: Sequence[int], backwards: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """The body over all steps; returns the last states and the values stacked along axis 0."""
    shapes = [desc_of(v).shape for v in scanned]
    axes = [a % len(s) for a, s in zip(axes, shapes, strict=True)]
    lengths = {s[a] for s, a in zip(shapes, axes, strict=True)}
    if len(lengths) != 1:
        raise Unsupported(f"the inputs of Scan have different lengths: {sorted(lengths)}")
    (steps,) = lengths

    def step(builder: GraphBuilder, counter: Any, before: list[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        mirrored = builder.op("Sub", builder.constant(steps - 1, dtype="int64"), counter)
        slices = [
            builder.op("Gather", v, mirrored if back else counter, axis=a)
            for v, a, back in zip(scanned, axes, backwards, strict=True)
        ]
        results = _tensors(n.parser.body(n.attr("body"), builder, [*before, *slices]))
        return results[: len(before)], results[len(before) :]

    try:
        return repeat(n.builder, steps, states, step)
    except GeError as error:
        raise Unsupported(error.cause, error.remedy) from error


# -- ATen ------------------------------------------------------------------------------------------------


@aten("higher_order.cond")
def _cond(n: AtenNode) -> Any:
    """Both branches are functions of a builder and the operands, given by the front door."""
    operands = list(n.arg("operands"))
    then, otherwise = n.arg("true_fn"), n.arg("false_fn")
    predicate = n.shaped(n.cast(n.arg("pred"), "bool"), [])
    return branch(n.builder, predicate, lambda b: then(b, operands), lambda b: otherwise(b, operands))


@aten("higher_order.while_loop")
def _while_loop(n: AtenNode) -> Any:
    """The condition is computed before the loop and at the end of each step."""
    carried, extra = list(n.arg("carried_inputs")), list(n.arg("additional_inputs") or ())
    condition, step = n.arg("cond_fn"), n.arg("body_fn")
    first = n.shaped(condition(n.builder, [*carried, *extra])[0], [])
    body: GraphBuilder = n.builder.subgraph("body")
    body.input("step", (), "int64")
    body.input("going", (), "bool")
    states = [body.input(f"state{i}", desc_of(s).shape, desc_of(s).dtype) for i, s in enumerate(carried)]
    after = step(body, [*states, *extra])
    going = condition(body, [*after, *extra])[0]
    body.output(body.op("Reshape", going, shape=[]) if desc_of(going).rank else going)
    for value in after:
        body.output(value)
    made = n.builder.ops(
        "Loop", [None, first, *carried, *body.captures()], body=body.graph, num_states=len(carried)
    )
    return list(made)
