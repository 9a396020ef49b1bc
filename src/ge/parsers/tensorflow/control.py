"""Structural TensorFlow nodes: constants, placeholders, calls, branches, identities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.types import numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import Context, Outputs, handler
from ge.parsers.tensorflow.graph import Body
from ge.parsers.tensorflow.lists import ListValue
from ge.parsers.tensorflow.tensor import CHECKED, FunctionRef
from ge.parsers.tensorflow.values import DEAD, FAILED, Binding, HostTensor, Missing, Opaque, Variable

__all__ = ["changed_variables", "close_branches", "drop_unused_captures", "rebuild", "tensors_of", "truth"]


# -- leaves and passing nodes --------------------------------------------------------------------------------


@handler("Const")
def _const(c: Context) -> Outputs:
    value = c.attr("value")
    if not isinstance(value, np.ndarray):
        raise GeError("E10105", "the constant has no value", node=c.node.name, operator="Const")
    return [
        c.converter.constant(c.builder, value, str(c.attr("dtype", value.dtype.name)), c.scope.label(c.node))
    ]


@handler("Placeholder", "PlaceholderV2", "_Arg")
def _placeholder(c: Context) -> Outputs:
    raise Unsupported(
        f"the placeholder '{c.node.name}' is inside a function or not among the model's inputs",
        "name it among the inputs",
    )


@handler("PlaceholderWithDefault")
def _placeholder_with_default(c: Context) -> Outputs:
    return [c.binding(0)]


@handler(
    "Identity",
    "StopGradient",
    "PreventGradient",
    "CheckNumerics",
    "CheckNumericsV2",
    "Snapshot",
    "DebugIdentity",
    "DebugIdentityV2",
    "DebugIdentityV3",
    "ReadVariableXlaSplitND",
    "_Retval",
    "_Send",
    "Enter",
    "Exit",
    "RefEnter",
    "RefExit",
    "RefIdentity",
    "LoopCond",
)
def _identity(c: Context) -> Outputs:
    found = c.binding(0)
    if c.node.op == "Identity" and isinstance(found, Variable) and found.is_ref:
        return [c.converter.read(found)]
    return [found]


@handler("EnsureShape")
def _ensure_shape(c: Context) -> Outputs:
    """A check that the shapes at hand pass or fail once and for all."""
    found, wanted = c.binding(0), c.attr("shape")
    if isinstance(found, ir.Value) and isinstance(wanted, tuple):
        shape = desc_of(found).shape
        if len(shape) != len(wanted) or any(w not in (-1, d) for w, d in zip(wanted, shape, strict=True)):
            raise Unsupported(f"a tensor of shape {list(shape)} is not of shape {list(wanted)}")
    return [found]


@handler("IdentityN")
def _identity_n(c: Context) -> Outputs:
    return list(c.inputs)


@handler("NoOp", "ControlTrigger", "PrintV2", "Abort")
def _no_op(c: Context) -> Outputs:
    return []


@handler("Assert")
def _assert(c: Context) -> Outputs:
    """A check is left out, unless it is marked as one that must be made: then it must hold for the shapes at hand."""
    if c.attr(CHECKED) and not _holds(c.binding(0)):
        raise Unsupported("whether the assertion holds is known only when the model runs, or it does not")
    return []


def _holds(condition: Binding) -> bool:
    known = constant_of(condition) if isinstance(condition, ir.Value) else None
    return known is not None and bool(known.all())


@handler("Print")
def _print(c: Context) -> Outputs:
    return [c.binding(0)]


# -- calls ---------------------------------------------------------------------------------------------------


@handler("PartitionedCall", "StatefulPartitionedCall", "RemoteCall")
def _call(c: Context) -> Outputs:
    """A call is converted in place. Names inside are full names already when the call's own says nothing."""
    ref = FunctionRef(c.node.op) if c.node.op in c.converter.library else c.attr("f")
    telling = "PartitionedCall" not in c.node.name
    prefix = f"{c.scope.label(c.node)}/" if telling else c.scope.prefix
    args = c.inputs[1:] if c.node.op == "RemoteCall" else c.inputs
    body = c.converter.function(ref, c.node)
    return c.converter.call(body, args, c.builder, prefix=prefix, depth=c.scope.depth + 1)


# -- optional values, by which a branch hands its intermediates to the gradient of the same branch ---------------


@dataclass(frozen=True, eq=False)
class OptionalValue(Opaque):
    """Values that only one side of a branch has; None on the other, zeros where both are joined."""

    items: tuple[Binding, ...] | None
    what = "an optional value"


@handler("OptionalFromValue")
def _optional(c: Context) -> Outputs:
    return [OptionalValue(tuple(c.inputs))]


@handler("OptionalNone")
def _no_optional(c: Context) -> Outputs:
    return [OptionalValue(None)]


@handler("OptionalGetValue")
def _optional_value(c: Context) -> Outputs:
    found = c.binding(0)
    if not isinstance(found, OptionalValue) or found.items is None:
        raise Unsupported("a value is read that the branch does not have")
    return found.items


# -- bindings that cross a nested graph's border -------------------------------------------------------------


def tensors_of(b: GraphBuilder, binding: Binding) -> list[ir.Value]:
    """The tensors that stand for a binding outside of the builder that made it."""
    if isinstance(binding, ir.Value):
        return [binding]
    if isinstance(binding, ListValue):
        return [binding.buffer(b)]
    if isinstance(binding, OptionalValue):
        return [t for item in binding.items or () for t in tensors_of(b, item)]
    return []


def rebuild(binding: Binding, tensors: Sequence[ir.Value]) -> Binding:
    """A binding like the given one, made of other tensors."""
    if isinstance(binding, ir.Value):
        return tensors[0]
    if isinstance(binding, ListValue):
        return ListValue(
            binding.dtype, binding.element, binding.count, base=tensors[0], gradient=binding.gradient
        )
    if isinstance(binding, OptionalValue) and binding.items is not None:
        left = iter(tensors)
        return OptionalValue(tuple(rebuild(i, [next(left) for _ in range(_width(i))]) for i in binding.items))
    return binding


def truth(b: GraphBuilder, value: Binding) -> ir.Value:
    """A condition as a boolean scalar: numbers are true when not zero, tensors of any rank when not empty."""
    if isinstance(value, HostTensor):
        array = value.array
        return b.constant(np.bool_(array.size > 0 if array.ndim else bool(array.item())))
    if isinstance(value, Opaque):
        raise Unsupported(f"the condition is {value.what}")
    desc = desc_of(value)
    if desc.shape:
        return b.constant(np.bool_(desc.size > 0))
    if desc.dtype == "bool":
        return value
    return b.op("NotEqual", value, np.zeros((), np.dtype(desc.dtype)))


def drop_unused_captures(b: GraphBuilder) -> None:
    """Forget what an abandoned attempt to convert a nested graph captured."""
    for outer, inner in list(b.captured.items()):
        if not inner.uses() and not inner.is_graph_output():
            del b.captured[outer]
            if inner in b.graph.inputs:
                b.graph.inputs.remove(inner)
            elif inner.name in b.graph.initializers:
                del b.graph.initializers[inner.name]  # type: ignore[arg-type]


def close_branches(branches: Sequence[GraphBuilder]) -> list[ir.Value]:
    """Give nested graphs the same inputs: the union of what they capture, in one order."""
    for b in branches:
        drop_unused_captures(b)
    captures = list(dict.fromkeys(v for b in branches for v in b.captures()))
    for b in branches:
        inner = [b._own(v) for v in captures]
        b.graph.inputs.clear()
        b.graph.inputs.extend(inner)
    return captures


# -- branches ------------------------------------------------------------------------------------------------


@handler("If", "StatelessIf")
def _if(c: Context) -> Outputs:
    bodies = [c.function("then_branch"), c.function("else_branch")]
    return _branch(c, truth(c.builder, c.binding(0)), bodies, c.inputs[1:])


@handler("Case", "StatelessCase")
def _case(c: Context) -> Outputs:
    """A choice among many is a chain of choices between two; an index out of range takes the last."""
    refs = c.attr("branches", [])
    bodies = [c.converter.function(r, c.node) for r in refs]
    if not bodies:
        raise GeError("E10105", "has no branches", node=c.node.name, operator=c.node.op)
    index = c.tensor(0)
    known = constant_of(index)
    if known is not None:
        chosen = int(known) if 0 <= int(known) < len(bodies) else len(bodies) - 1
        return _inline(c, bodies[chosen], c.inputs[1:])
    return _chain(c, index, 0, bodies, c.inputs[1:], c.builder)


def _chain(
    c: Context, index: ir.Value, first: int, bodies: Sequence[Body], args: Sequence[Binding], b: GraphBuilder
) -> list[Binding]:
    if len(bodies) == 1:
        return c.converter.call(bodies[0], args, b, prefix=_prefix(c), depth=c.scope.depth + 1)
    cond = b.op("Equal", index, np.asarray(first, np.dtype(desc_of(index).dtype)))

    def taken(inner: GraphBuilder) -> list[Binding]:
        return c.converter.call(bodies[0], args, inner, prefix=_prefix(c), depth=c.scope.depth + 1)

    def rest(inner: GraphBuilder) -> list[Binding]:
        return _chain(c, index, first + 1, bodies[1:], args, inner)

    return _emit_if(c, cond, [taken, rest], b)


def _prefix(c: Context) -> str:
    return f"{c.scope.label(c.node)}/"


def _inline(c: Context, body: Body, args: Sequence[Binding]) -> list[Binding]:
    return c.converter.call(body, args, c.builder, prefix=_prefix(c), depth=c.scope.depth + 1)


def _branch(c: Context, cond: ir.Value, bodies: Sequence[Body], args: Sequence[Binding]) -> list[Binding]:
    known = constant_of(cond)
    if known is not None:
        return _inline(c, bodies[0 if bool(known) else 1], args)

    def converted(body: Body) -> Any:
        return lambda b: c.converter.call(body, args, b, prefix=_prefix(c), depth=c.scope.depth + 1)

    return _emit_if(c, cond, [converted(body) for body in bodies], c.builder)


def _emit_if(c: Context, cond: ir.Value, convert: Sequence[Any], b: GraphBuilder) -> list[Binding]:
    """An If whose branches are converted by functions of their builder; written variables are results too."""
    label = c.scope.label(c.node)
    inner = [b.subgraph(f"{label}.{side}") for side in ("then", "else")]
    results: list[list[Binding]] = []
    states: list[dict[str, ir.Value]] = []
    for builder, function in zip(inner, convert, strict=True):
        with c.converter.branch_state() as state:
            results.append(function(builder))
        states.append(state)
    if any(r is FAILED for side in results for r in side):
        return [FAILED] * len(results[0])
    merged = [_merged(i, *pair) for i, pair in enumerate(zip(*results, strict=True))]
    changed = changed_variables(c.converter.state, states)
    for builder, side, state in zip(inner, results, states, strict=True):
        builder.set_origin(label)
        values = [
            t
            for r, like in zip(side, merged, strict=True)
            for t in tensors_of(builder, _fit(builder, r, like))
        ]
        kept = [state.get(name) or c.converter.read(Variable(name)) for name in changed]
        for value in [*values, *kept]:
            builder.output(value)
    captures = close_branches(inner)
    _check_alike([builder.graph for builder in inner])
    b.set_origin(label)
    made = iter(b.ops("If", (cond, *captures), then_branch=inner[0].graph, else_branch=inner[1].graph))
    outer = [rebuild(like, [next(made) for _ in range(_width(like))]) for like in merged]
    for name in changed:
        c.converter.write(Variable(name), next(made))
    return outer


def _width(binding: Binding) -> int:
    """How many tensors stand for a binding."""
    if isinstance(binding, OptionalValue):
        return sum(_width(item) for item in binding.items or ())
    return 0 if isinstance(binding, Opaque) and not isinstance(binding, ListValue) else 1


def _merged(index: int, first: Binding, second: Binding) -> Binding:
    """What both sides of a branch have in common at one result."""
    if isinstance(first, ir.Value) and isinstance(second, ir.Value):
        if desc_of(first) != desc_of(second):
            cause = f"result {index} is {desc_of(first)} in one branch and {desc_of(second)} in the other"
            raise Unsupported(cause, "make both branches return tensors of one shape")
        return first
    if isinstance(first, ListValue) and isinstance(second, ListValue) and first.count == second.count:
        return first if first.element is not None else second
    if isinstance(first, OptionalValue) and isinstance(second, OptionalValue):
        if first.items is None or second.items is None:
            return second if first.items is None else first
        if len(first.items) == len(second.items):
            pairs = zip(first.items, second.items, strict=True)
            return OptionalValue(tuple(_merged(index, *pair) for pair in pairs))
    if isinstance(first, Missing) or isinstance(second, Missing) or first == second:
        return first
    raise Unsupported(f"result {index} differs between the branches in a way that is not a tensor's")


def _fit(b: GraphBuilder, binding: Binding, like: Binding) -> Binding:
    """One side's result in the form that both sides agreed on."""
    if isinstance(binding, ListValue) and isinstance(like, ListValue):
        return binding.reshaped(like.element)
    if isinstance(binding, OptionalValue) and isinstance(like, OptionalValue):
        if binding.items is None:
            return _zeros(b, like)
        return OptionalValue(
            tuple(_fit(b, *pair) for pair in zip(binding.items, like.items or (), strict=True))
        )
    return binding


def _zeros(b: GraphBuilder, like: Binding) -> Binding:
    if isinstance(like, ir.Value):
        desc = desc_of(like)
        return b.op("BroadcastTo", np.zeros((), numpy_dtype(desc.dtype)), shape=desc.shape)
    if isinstance(like, OptionalValue):  # a branch of a branch
        return OptionalValue(None if like.items is None else tuple(_zeros(b, item) for item in like.items))
    return replace(like, base=None, writes=(), adds=()) if isinstance(like, ListValue) else like


def changed_variables(before: dict[str, ir.Value], states: Sequence[dict[str, ir.Value]]) -> list[str]:
    """The variables that any side wrote."""
    return list(dict.fromkeys(n for state in states for n in state if state[n] is not before.get(n)))


def _check_alike(graphs: Sequence[ir.Graph]) -> None:
    """What else a branch returns, such as the tensors of a list, must have one shape as well."""
    for first, second in zip(*(map(desc_of, g.outputs) for g in graphs), strict=True):
        if first != second:
            cause = f"a list or a variable holds {first} after one branch and {second} after the other"
            raise Unsupported(cause, "give both branches tensors of one shape")


# -- version 1 switches whose predicate is known -------------------------------------------------------------


@handler("Switch", "RefSwitch")
def _switch(c: Context) -> Outputs:
    known = constant_of(truth(c.builder, c.binding(1)))
    if known is None:
        raise Unsupported(
            "the branch it belongs to has no matching Merge nodes, so its structure cannot be seen",
            "export the model with control flow of version 2 (tf.function)",
        )
    data = c.binding(0)
    return [DEAD, data] if bool(known) else [data, DEAD]


@handler("Merge", "RefMerge")
def _merge(c: Context) -> Outputs:
    alive = [(i, v) for i, v in enumerate(c.inputs) if v is not DEAD]
    if len(alive) > 1:
        raise Unsupported(
            "several of its inputs are alive", "export the model with control flow of version 2"
        )
    if not alive:
        return DEAD
    index, value = alive[0]
    return [value, c.builder.constant(np.int32(index))]
