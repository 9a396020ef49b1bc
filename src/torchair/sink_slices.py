"""Slice sinking in Dynamo's graphs: push slices toward the arguments so that unused rows are never computed.

A classifier that reads only the first token of a transformer needs the other tokens of the last block only as keys and
values; a model that predicts the next token needs only the last. The slice moves up through every call of which it is
the only reader: products, normalisations, activations, residual sums, attention's queries. This happens before PyTorch
differentiates the graph, so that gradients and saved activations shrink too.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

__all__ = ["NAME", "sink_slices"]

NAME = "sink_slices"
Size = Any  # int or torch.SymInt


@dataclass(frozen=True)
class Slice:
    """`length` places from `start` on, counted from the end where it is negative, along an axis."""

    axis: int
    start: int
    length: int

    def index(self) -> tuple[slice, ...]:
        end = self.start + self.length
        return (*(slice(None),) * self.axis, slice(self.start, None if end == 0 else end))


@dataclass
class Call:
    """How a call computes a slice of its result: the axes at which operands are sliced, and what else changes."""

    axes: dict[fx.Node, int]
    change: Callable[[fx.Node], None] | None = None


Rule = Callable[[fx.Node, Slice], Call | None]


@dataclass(frozen=True)
class _Kind:
    """What is known of a function: its rule, whether it is worth a change of the graph, whether it may give a view."""

    rule: Rule
    heavy: bool = False
    view: bool = False


def sink_slices(module: fx.GraphModule) -> bool:
    """Move slices up where a product or an attention becomes smaller by it; whether there was one.

    >>> def classify(x, w, v):
    ...     return torch.relu(x @ w)[:, 0] @ v
    >>> graph = fx.symbolic_trace(classify)
    >>> x, w, v = torch.ones(2, 8, 4), torch.ones(4, 4), torch.ones(4, 3)
    >>> for node, value in zip(graph.graph.nodes, [x, w, v, x, x, x[:, 0]]):
    ...     node.meta["example_value"] = value
    >>> sink_slices(graph)
    True
    >>> print(graph.code.strip())
    def forward(self, x, w, v):
        getitem_1 = x[(slice(None, None, None), slice(0, 1, None))];  x = None
        matmul = getitem_1 @ w;  getitem_1 = w = None
        relu = torch.relu(matmul);  matmul = None
        getitem = relu[(slice(None, None, None), 0)];  relu = None
        matmul_1 = getitem @ v;  getitem = v = None
        return matmul_1
    """
    sinking = _Sinking(module.graph)
    if not any(_KINDS[_function(node)].heavy for node in sinking.sliced):
        return False
    sinking.rewrite()
    module.recompile()
    return True


@dataclass
class _Sinking:
    """What is read of each value, from the results to the arguments."""

    graph: fx.Graph
    sliced: dict[fx.Node, tuple[Slice, Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        writes = any(_writes(node) for node in self.graph.nodes)
        for node in reversed(self.graph.nodes):
            kind = _KINDS.get(_function(node))
            if (
                kind is None or not node.args or (kind.view and (writes or _is_argument(node)))
            ):  # a slice's view may be a copy
                continue
            read = {self._read(node, user) for user in node.users}
            if len(read) != 1 or (part := read.pop()) is None:
                continue
            call = kind.rule(node, part)
            if call is not None and (call.axes or call.change is not None):
                self.sliced[node] = part, call

    def _read(self, node: fx.Node, user: fx.Node) -> Slice | None:
        """The slice of a value that one of its users reads, None for all of it."""
        if user in self.sliced:
            part, call = self.sliced[user]
            return Slice(call.axes[node], part.start, part.length) if node in call.axes else None
        return _selected(user) if user.args[:1] == (node,) else None

    def rewrite(self) -> None:
        """Let the calls compute their slices; indices that read them count within them."""
        for node in list(self.graph.nodes):
            if node in self.sliced:
                self._narrow(node, *self.sliced[node])
            elif node.args and node.args[0] in self.sliced and (part := _selected(node)) is not None:
                _count_within(node, part)
        for node in self.sliced:
            del node.meta["example_value"]

    def _narrow(self, node: fx.Node, part: Slice, call: Call) -> None:
        for operand, axis in call.axes.items():
            if operand in self.sliced:
                continue
            with self.graph.inserting_before(node):
                index = Slice(axis, part.start, part.length).index()
                node.replace_input_with(operand, self.graph.call_function(operator.getitem, (operand, index)))
        if call.change is not None:
            call.change(node)


def _function(node: fx.Node) -> Any:
    """The function of a call, the name of a method; None for other nodes."""
    return node.target if node.op in ("call_function", "call_method") else None


def _value(node: Any) -> Tensor | None:
    found = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return found if isinstance(found, Tensor) else None


def _is_argument(node: fx.Node) -> bool:
    """Whether a value may be an argument's memory."""
    while (kind := _KINDS.get(_function(node))) is not None and kind.view and node.args:
        node = node.args[0]  # type: ignore[assignment]
    return node.op in ("placeholder", "get_attr")


def _writes(node: fx.Node) -> bool:
    """Whether a call may write to values that others see as well."""
    if "out" in node.kwargs or _in_place(node):
        return True
    if node.op == "call_method":
        return str(node.target).endswith("_")
    if node.op != "call_function" or node.target in _KINDS:
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    module, name = getattr(node.target, "__module__", None), getattr(node.target, "__name__", "")
    known = module is None or module.split(".")[0] in (
        "torch",
        "_operator",
    )  # torch's built-in ones have no module
    return (
        not known
        or isinstance(node.target, torch._ops.HigherOrderOperator)
        or name in _WRITING
        or name[-1:] == "_"
    )


def _in_place(node: fx.Node) -> bool:
    """Whether a function is asked to write to its argument, by position or by name."""
    place = _place_of_inplace(node.target) if node.op == "call_function" else None
    return place is not None and bool(_argument(node, place, "inplace", False))


@functools.cache
def _place_of_inplace(function: Callable[..., Any]) -> int | None:
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # PyTorch's built-in ones tell none, and have no such parameter
        return None
    return names.index("inplace") if "inplace" in names else None


def _same(a: Size, b: Size) -> bool:
    """Whether two sizes are the same, as far as can be told without a guard."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    expressions = [getattr(s.node, "expr", None) if isinstance(s, torch.SymInt) else None for s in (a, b)]
    return expressions[0] is not None and expressions[0] == expressions[1]


def _argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _axis(axis: Any, rank: int) -> int | None:
    """An axis counted from the front; None for what is not one number."""
    return axis % rank if type(axis) is int and rank else None


def _selected(node: fx.Node) -> Slice | None:
    """The slice that a call of `getitem` or `select` reads of its first argument."""
    value = _value(node.args[0]) if node.args else None
    if value is None:
        return None
    function = _function(node)
    if function is operator.getitem:
        index = _indices(node.args[1], value.dim())
    elif function in (torch.select, "select") and len(node.args) == 3:
        axis = _axis(node.args[1], value.dim())
        known = axis is not None and type(node.args[2]) is int
        index = [slice(None)] * axis + [node.args[2]] if known else None  # type: ignore[operator]
    else:
        return None
    found = (_range(axis, chosen, value.shape[axis]) for axis, chosen in enumerate(index or []))
    return next((part for part in found if part is not None), None)


def _indices(index: Any, rank: int) -> list[Any] | None:
    """An index for each axis it names; None where it has more than numbers, slices and an ellipsis."""
    given = list(index) if isinstance(index, tuple) else [index]
    if not all(type(i) is int or i is Ellipsis or _is_plain(i) for i in given) or given.count(Ellipsis) > 1:
        return None
    if Ellipsis in given:
        place = given.index(Ellipsis)
        given[place : place + 1] = [slice(None)] * (rank - len(given) + 1)
    return given


def _is_plain(index: Any) -> bool:
    bounds = (index.start, index.stop, index.step) if isinstance(index, slice) else (index,)
    return isinstance(index, slice) and all(b is None or type(b) is int for b in bounds)


def _range(axis: int, chosen: Any, size: Size) -> Slice | None:
    """What an index reads of an axis, where it is at most half of it."""
    if type(chosen) is int:
        if not isinstance(size, int):
            return Slice(axis, chosen, 1)
        return Slice(axis, chosen % size, 1) if size > 1 else None
    if not isinstance(size, int) or chosen == slice(None):
        return None
    places = range(*chosen.indices(size))
    return (
        Slice(axis, places.start, len(places)) if places.step == 1 and 0 < 2 * len(places) <= size else None
    )


def _count_within(node: fx.Node, part: Slice) -> None:
    """Let an index into a value be one into the slice of it that is left."""
    if _function(node) is not operator.getitem:
        node.args = (*node.args[:2], 0)
        return
    value = node.args[0]
    rank = value.meta["example_value"].dim()  # type: ignore[union-attr]
    index = _indices(node.args[1], rank)
    assert index is not None
    index[part.axis] = 0 if type(index[part.axis]) is int else slice(None)
    node.args = (value, tuple(index))


def _broadcast(node: fx.Node, operands: Iterable[Any], part: Slice) -> Call | None:
    """Operands that are aligned with the result at their last axes."""
    result = _value(node)
    axes: dict[fx.Node, int] = {}
    for operand in operands:
        value = _value(operand)
        if value is None:
            if isinstance(operand, (fx.Node, tuple, list)):
                return None
            continue
        axis = part.axis - (result.dim() - value.dim())  # type: ignore[union-attr]
        if axis < 0 or _same(value.shape[axis], 1):
            continue
        if not _same(value.shape[axis], result.shape[part.axis]) or axes.get(operand, axis) != axis:  # type: ignore[union-attr]
            return None
        axes[operand] = axis
    return Call(axes)


def _pointwise(node: fx.Node, part: Slice) -> Call | None:
    if _value(node) is None or _writes(node):
        return None
    values = [v for v in node.kwargs.values() if isinstance(v, fx.Node)]
    return _broadcast(node, [*node.args, *values], part)


def _first(node: fx.Node, part: Slice, axis: int | None = None) -> Call | None:
    """The first argument is sliced, at the same axis where no other is said."""
    first, *others = *node.args, *node.kwargs.values()
    if not isinstance(first, fx.Node) or first in others or _value(first) is None or _value(node) is None:
        return None
    return Call({first: part.axis if axis is None else axis})


def _dropout(node: fx.Node, part: Slice) -> Call | None:
    """Where nothing is drawn."""
    p, training = _argument(node, 1, "p", 0.5), _argument(node, 2, "training", True)
    idle = training is False or (p == 0 and isinstance(p, (int, float)))
    return _first(node, part) if idle and not _in_place(node) else None


def _linear(node: fx.Node, part: Slice) -> Call | None:
    result = _value(node)
    return _first(node, part) if result is not None and part.axis < result.dim() - 1 else None


def _normalised(node: fx.Node, part: Slice) -> Call | None:
    result, shape = _value(node), _argument(node, 1, "normalized_shape")
    if result is None or not isinstance(shape, (tuple, list)) or part.axis >= result.dim() - len(shape):
        return None
    return _first(node, part)


def _softmax(node: fx.Node, part: Slice) -> Call | None:
    result = _value(node)
    axis = _axis(_argument(node, 1, "dim"), result.dim()) if result is not None else None
    return _first(node, part) if axis is not None and axis != part.axis else None


def _reduction(node: fx.Node, part: Slice) -> Call | None:
    """Over axes that are named, and are not the slice's."""
    value, given = _value(node.args[0]), _argument(node, 1, "dim")
    if value is None or _value(node) is None:
        return None
    named = [_axis(a, value.dim()) for a in (given if isinstance(given, (tuple, list)) else [given])]
    if not named or None in named or not isinstance(_argument(node, 2, "keepdim", False), bool):
        return None
    kept = [a for a in range(value.dim()) if a not in named]
    axis = part.axis if _argument(node, 2, "keepdim", False) else kept[part.axis]
    return _first(node, part, axis) if axis not in named else None


def _product(node: fx.Node, part: Slice) -> Call | None:
    """Rows of a product are those of its first operand."""
    values = [_value(a) for a in node.args]
    result = _value(node)
    if result is None or len(values) != 2 or any(v is None or v.dim() < 2 for v in values):
        return None
    a, b = node.args
    if part.axis != result.dim() - 2 or a is b:
        return None
    return Call({a: values[0].dim() - 2})  # type: ignore[dict-item,union-attr]


def _attention(node: fx.Node, part: Slice) -> Call | None:
    """Rows of attention are those of its queries and of the mask; causal ones where the last row sees all keys."""
    if len(node.args) < 3 or len(set(node.args[:3])) < 3:
        return None
    query, key, _ = (_value(a) for a in node.args[:3])
    mask, causal = _argument(node, 3, "attn_mask"), _argument(node, 5, "is_causal", False)
    if (
        query is None
        or key is None
        or part.axis != query.dim() - 2
        or _argument(node, 4, "dropout_p", 0.0) != 0
    ):
        return None
    rows = query.shape[-2]
    axes = {node.args[0]: part.axis}
    if mask is not None:
        value = _value(mask)
        if value is None or value.dim() < 2 or mask in node.args[:3] or causal:
            return None
        if not _same(value.shape[-2], 1):
            axes[mask] = value.dim() - 2
            if not _same(value.shape[-2], rows):
                return None
    if not causal:
        return Call(axes)  # type: ignore[arg-type]
    sees_all = part.length == 1 and _is_last(part, rows) and _same(rows, key.shape[-2])
    return Call(axes, _not_causal) if causal is True and sees_all else None  # type: ignore[arg-type]


def _is_last(part: Slice, size: Size) -> bool:
    return part.start == -1 or (isinstance(size, int) and part.start == size - 1)


def _not_causal(node: fx.Node) -> None:
    if len(node.args) > 5:
        node.args = (*node.args[:5], False, *node.args[6:])
    else:
        node.kwargs = {**node.kwargs, "is_causal": False}


def _many_heads(node: fx.Node, part: Slice) -> Call | None:
    """The function of `nn.MultiheadAttention`, whose queries are often its keys as well."""
    plain = {"need_weights": False, "attn_mask": None, "is_causal": False}
    drawn = node.args[10] != 0 and node.kwargs.get("training") is not False if len(node.args) == 13 else True
    if drawn or part.axis != 0 or any(node.kwargs.get(k, True) != v for k, v in plain.items()):
        return None

    def change(call: fx.Node) -> None:
        with call.graph.inserting_before(call):
            rows = call.graph.call_function(operator.getitem, (call.args[0], part.index()))
        call.args = (rows, *call.args[1:])

    return Call({}, change)


def _moved(node: fx.Node, part: Slice) -> Call | None:
    """Two axes that change places."""
    result = _value(node)
    if result is None:
        return None
    a, b = (_axis(_argument(node, i, f"dim{i - 1}"), result.dim()) for i in (1, 2))
    if a is None or b is None:
        return None
    return _first(node, part, {a: b, b: a}.get(part.axis, part.axis))


def _permuted(node: fx.Node, part: Slice) -> Call | None:
    result = _value(node)
    order = node.args[1] if len(node.args) == 2 and not isinstance(node.args[1], int) else node.args[1:]
    if result is None or not isinstance(order, (tuple, list)) or len(order) != result.dim():
        return None
    axis = _axis(order[part.axis], result.dim())
    return _first(node, part, axis) if axis is not None else None


def _reshaped(node: fx.Node, part: Slice) -> Call | None:
    """An axis that is the same before and after, with as much in front of it and behind it."""
    axis = _same_axis(_value(node.args[0]), _value(node), part.axis)
    if axis is None:
        return None
    sizes = (
        node.args[1:] if len(node.args) != 2 or not isinstance(node.args[1], (tuple, list)) else node.args[1]
    )
    result = _value(node)
    if node.kwargs or not isinstance(sizes, (tuple, list)) or len(sizes) != result.dim():  # type: ignore[union-attr]
        return None
    if not all(isinstance(size, (int, fx.Node)) for size in sizes):  # a view as another type
        return None
    shape = [part.length if i == part.axis else size for i, size in enumerate(sizes)]

    def change(call: fx.Node) -> None:
        call.op, call.target = "call_function", torch.reshape  # a slice may have no view of this shape
        call.args = (call.args[0], tuple(shape))

    return Call({node.args[0]: axis}, change)  # type: ignore[dict-item]


def _regrouped(node: fx.Node, part: Slice) -> Call | None:
    """`flatten` and `unflatten`, which name only the axes they change."""
    axis = _same_axis(_value(node.args[0]), _value(node), part.axis)
    if axis is None:
        return None
    if _function(node) in ("unflatten", torch.unflatten):
        named = _axis(_argument(node, 1, "dim"), _value(node.args[0]).dim())  # type: ignore[union-attr]
        if named is None or named == axis:
            return None
    return _first(node, part, axis)


def _same_axis(before: Tensor | None, after: Tensor | None, axis: int) -> int | None:
    if before is None or after is None:
        return None
    for candidate, size in enumerate(before.shape):
        if (
            _same(size, after.shape[axis])
            and _as_much(before.shape[:candidate], after.shape[:axis])
            and _as_much(before.shape[candidate + 1 :], after.shape[axis + 1 :])
        ):
            return candidate
    return None


def _as_much(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Whether two shapes hold the same number of elements: the same open sizes in order, and as much beside them."""
    opens = [[s for s in shape if not isinstance(s, int)] for shape in (a, b)]
    known = [torch.Size([s for s in shape if isinstance(s, int)]).numel() for shape in (a, b)]
    return (
        known[0] == known[1]
        and len(opens[0]) == len(opens[1])
        and all(_same(x, y) for x, y in zip(*opens, strict=True))
    )


def _indexed(node: fx.Node, part: Slice) -> Call | None:
    """Parts of other axes; the first result of many-headed attention."""
    if _function(node.args[0]) is F.multi_head_attention_forward and node.args[1] == 0:  # type: ignore[arg-type]
        return Call({node.args[0]: part.axis})  # type: ignore[dict-item]
    value = _value(node.args[0])
    index = _indices(node.args[1], value.dim()) if value is not None and _value(node) is not None else None
    if index is None:
        return None
    index += [slice(None)] * (value.dim() - len(index))  # type: ignore[union-attr]
    kept = [axis for axis, chosen in enumerate(index) if type(chosen) is not int]
    axis = kept[part.axis]
    return _first(node, part, axis) if index[axis] == slice(None) else None


def _joined(node: fx.Node, part: Slice) -> Call | None:
    """Values side by side along another axis."""
    values, result = node.args[0], _value(node)
    if result is None or not isinstance(values, (tuple, list)):
        return None
    axis = _axis(_argument(node, 1, "dim", 0), result.dim())
    if axis is None or axis == part.axis or any(_value(v) is None for v in values):
        return None
    return Call(dict.fromkeys(values, part.axis))  # type: ignore[arg-type]


_ONE = (
    "neg",
    "exp",
    "tanh",
    "sigmoid",
    "relu",
    "rsqrt",
    "sqrt",
    "square",
    "clamp",
    "abs",
    "erf",
    "sin",
    "cos",
)
_TWO = ("add", "sub", "mul", "div", "pow")
_ACTIVATIONS = (
    "gelu",
    "relu",
    "silu",
    "elu",
    "leaky_relu",
    "mish",
    "hardswish",
    "softplus",
    "sigmoid",
    "tanh",
)
_POINTWISE: tuple[Any, ...] = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.neg, torch.where),
    *(getattr(torch, name) for name in (*_ONE, *_TWO)),
    *(getattr(F, name) for name in _ACTIVATIONS),
    *(*_ONE, *_TWO),
)
_WRITING = {
    "setitem",
    "delitem",
    *(n for n in dir(operator) if n[0] == "i" and hasattr(operator, f"__{n}__")),
}
_KINDS: dict[Any, _Kind] = {
    **{f: _Kind(_pointwise) for f in _POINTWISE},
    **{f: _Kind(_pointwise, view=True) for f in ("float", "double", "half", "bfloat16", "to", "type_as")},
    **{f: _Kind(_first, view=True) for f in ("contiguous", "detach", "clone")},
    **{f: _Kind(_dropout, view=True) for f in (F.dropout, torch.dropout)},
    F.linear: _Kind(_linear, heavy=True),
    **{f: _Kind(_normalised) for f in (F.layer_norm, F.rms_norm)},
    **{f: _Kind(_softmax) for f in (F.softmax, torch.softmax, "softmax")},
    **{f: _Kind(_reduction) for f in (torch.mean, torch.sum, "mean", "sum")},
    **{f: _Kind(_product, heavy=True) for f in (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm")},
    F.scaled_dot_product_attention: _Kind(_attention, heavy=True),
    F.multi_head_attention_forward: _Kind(_many_heads, heavy=True),
    **{f: _Kind(_moved, view=True) for f in (torch.transpose, "transpose", torch.swapaxes, "swapaxes")},
    **{f: _Kind(_permuted, view=True) for f in (torch.permute, "permute")},
    **{f: _Kind(_reshaped, view=True) for f in (torch.reshape, "reshape", "view")},
    **{f: _Kind(_regrouped, view=True) for f in (torch.flatten, "flatten", torch.unflatten, "unflatten")},
    **{f: _Kind(_joined) for f in (torch.cat, torch.concat)},
    operator.getitem: _Kind(_indexed, view=True),
}
