"""MindSpore: tuples, functions, ordering of side effects, assignments of parameters."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.plugins import Unsupported
from ge.parsers.mindir.node import MsNode, primitive
from ge.parsers.mindir.values import Closure, Monad, Parameter, Switched


@primitive("MakeTuple MakeList make_tuple make_list")
def _make_tuple(n: MsNode) -> Any:
    return tuple(n.arguments)


@primitive("TupleGetItem ListGetItem tuple_getitem list_getitem RealTupleGetItem RealListGetItem")
def _get_item(n: MsNode) -> Any:
    items, index = n.arguments[:2]
    if not isinstance(items, tuple):
        raise Unsupported("an element of a value that is not a tuple")
    return items[int(n.number(index))]


@primitive("TupleSetItem tuple_setitem ListSetItem")
def _set_item(n: MsNode) -> Any:
    items, index, value = n.arguments[:3]
    found = list(items)
    found[int(n.number(index))] = value
    return tuple(found)


@primitive("sequence_len SequenceLen")
def _length(n: MsNode) -> Any:
    return len(n.arguments[0])


@primitive("Return Depend")
def _first(n: MsNode) -> Any:
    return n.arguments[0]


@primitive("Partial partial")
def _partial(n: MsNode) -> Any:
    function, *bound = n.arguments
    if isinstance(function, Closure):
        return Closure(function.graph, (*function.bound, *bound))
    if isinstance(function, Switched):
        sides = [Closure(s.graph, (*s.bound, *bound)) for s in (function.then, function.otherwise)]
        return Switched(function.condition, *sides)
    raise Unsupported("a partial application of a value that is not a function")


@primitive("Switch switch")
def _switch(n: MsNode) -> Any:
    from ge.parsers.mindir.convert import switched

    condition, then, otherwise = n.arguments[:3]
    condition = n.parser.resolved(condition)
    if not all(isinstance(f, Closure | Switched) for f in (then, otherwise)):
        return _selected(n, condition, then, otherwise)
    return switched(condition, then, otherwise)


def _selected(n: MsNode, condition: Any, then: Any, otherwise: Any) -> Any:
    """A switch of tensors."""
    x, y = n.parser.resolved(then), n.parser.resolved(otherwise)
    if not isinstance(condition, ir.Value):
        return x if condition else y
    shape = desc_of(x).shape
    return n.op("Select", n.spread(condition, shape), x, y)


@primitive("Cond", "x flag=False")
def _condition(n: MsNode) -> Any:
    value = n.arg("x")
    return n.cast(value, "bool") if isinstance(value, ir.Value) else bool(value)


@primitive("SwitchLayer switch_layer")
def _switch_layer(n: MsNode) -> Any:
    index, functions = n.arguments[:2]
    return functions[int(n.number(n.parser.resolved(index)))]


# -- effects -----------------------------------------------------------------------------------------------------


@primitive("UpdateState")
def _update_state(n: MsNode) -> Any:
    return Monad(len(n.parser.writes))


@primitive("Load")
def _load(n: MsNode) -> Any:
    place, monad = n.arguments[:2]
    if not isinstance(place, Parameter):
        return place
    return n.parser.read(place, monad.writes if isinstance(monad, Monad) else None)


@primitive("Print TensorDump ImageSummary ScalarSummary TensorSummary HistogramSummary Assert")
def _printed(n: MsNode) -> Any:
    raise Unsupported("it has an effect outside of the graph", "remove it, or leave this graph to MindSpore")


@primitive("InsertGradientOf HookBackward")
def _hook(n: MsNode) -> Any:
    raise Unsupported("a hook calls Python", "remove the hook, or leave this graph to MindSpore")


@primitive("Assign", "variable value")
def _assign(n: MsNode) -> Any:
    place = n.place(0)
    value = n.cast(n.arg("value"), desc_of(n.parser.read(place)).dtype)
    return n.parser.write(place, value)


@primitive("AssignAdd AssignSub", "variable value")
def _assign_by(n: MsNode) -> Any:
    place = n.place(0)
    old = n.parser.read(place)
    kind = "Add" if n.type == "AssignAdd" else "Sub"
    return n.parser.write(place, n.op(kind, old, n.cast(n.arg("value"), desc_of(old).dtype)))


_INPLACE = {
    "InplaceAddExt": "Add",
    "InplaceAddsExt": "Add",
    "InplaceSubExt": "Sub",
    "InplaceSubScalar": "Sub",
    "InplaceMul": "Mul",
    "InplaceMuls": "Mul",
    "InplaceDiv": "Div",
    "InplaceDivs": "Div",
}


@primitive(" ".join(_INPLACE), "input other alpha=1")
def _inplace(n: MsNode) -> Any:
    place = n.place(0)
    old = n.parser.read(place)
    other = n.cast(n.arg("other"), desc_of(old).dtype)
    alpha = n.setting("alpha", 1)
    if _INPLACE[n.type] in ("Add", "Sub") and alpha != 1:
        other = n.op("Mul", other, n.cast(alpha, desc_of(old).dtype))
    return n.parser.write(place, n.op(_INPLACE[n.type], old, other))


@primitive("InplaceCopy", "input value")
def _inplace_copy(n: MsNode) -> Any:
    place = n.place(0)
    old = desc_of(n.parser.read(place))
    return n.parser.write(place, n.spread(n.cast(n.arg("value"), old.dtype), old.shape))


@primitive("InplaceZero", "input")
def _inplace_zero(n: MsNode) -> Any:
    place = n.place(0)
    return n.parser.write(place, n.filled(0, desc_of(n.parser.read(place))))
