"""Slice sinking in Dynamo's graphs: push slices toward the arguments so that unused rows are never computed.

A classifier that reads only the first token of a transformer needs the other tokens of the last block only as keys and
values; a model that predicts the next token needs only the last. The slice moves up through every call of which it is
the only reader: products, normalisations, activations, residual sums, attention's queries. This happens before PyTorch
differentiates the graph, so that gradients and saved activations shrink too. The dataflow of the engine's operator that
computes the same says which parts of its operands a call needs, as in the engine's own `sink_slices`.
"""

from __future__ import annotations

import functools
import inspect
import operator
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from ge.ir.types import TensorDesc
from ge.ops.base import NodeView, lookup
from ge.ops.builder import GraphBuilder
from ge.ops.dataflow import Aligned, Part, Sliced

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


@dataclass(frozen=True)
class _Same:
    """What the engine calls a call: an operator's type, the tensors that it may slice, its attributes."""

    type: str
    operands: Sequence[fx.Node]
    attrs: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Slice, fx.Node], None] | None = None  # for attributes that change


def _like(read: Callable[[fx.Node], _Same | None]) -> Rule:
    """The rule that the operator's dataflow gives, the same by which the engine sinks slices."""

    def rule(node: fx.Node, part: Slice) -> Call | None:
        same = read(node) if _value(node) is not None else None
        sliced = _sliced(node, same, part) if same is not None else None
        if same is None or sliced is None:
            return None
        axes = {same.operands[index]: found.axis for index, found in sliced.parts.items()}
        for operand, axis in axes.items():
            alike = [
                i for i, found in sliced.parts.items() if same.operands[i] is operand and found.axis == axis
            ]
            if _times_read(node, operand) != len(alike):  # it is needed in full as well
                return None
        change = same.change if sliced.attrs else None
        return Call(axes, None if change is None else functools.partial(change, part))

    return rule


def _sliced(node: fx.Node, same: _Same, part: Slice) -> Sliced | None:
    """How the engine's operator computes a slice of its result, if the same places of operands are enough."""
    shapes = [_numbers(_value(v)) for v in (*same.operands, node)]
    *inputs, output = (shape for shape in shapes if shape is not None)
    if len(inputs) != len(same.operands):
        return None
    values = [GraphBuilder().input("x", shape, "float32") for shape in inputs]
    like, results = lookup(same.type), [TensorDesc(tuple(output), "float32")]
    view = NodeView(same.type, node.name, values, like.complete(same.attrs, node.name), results)
    whole = _part(part, output)
    sliced = (like.dataflow or Aligned()).slice(view, whole)
    if sliced is None:
        return None
    places = {i: (inputs[i][p.axis], whole.start, whole.length) for i, p in sliced.parts.items()}
    moved = any((p.period, p.start, p.length) != places[i] for i, p in sliced.parts.items())
    return None if moved else sliced


def _part(part: Slice, shape: Sequence[int]) -> Part:
    size = shape[part.axis]
    return Part(part.axis, size, part.start % size if size else 0, part.length)


def _times_read(node: fx.Node, value: fx.Node) -> int:
    read: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), read.append)
    return sum(v is value for v in read)


def _numbers(value: Tensor | None) -> list[int] | None:
    """A shape in which open sizes are prime numbers, so that none is taken for another, and no guard is needed."""
    found = [_number(size) for size in value.shape] if value is not None else [None]
    return None if None in found else found  # type: ignore[return-value]


def _number(size: Size) -> int | None:
    if isinstance(size, int):
        return size
    expression = getattr(size.node, "expr", None)
    if expression is None:
        return None
    chosen = expression.xreplace({s: sympy.Integer(_prime(str(s))) for s in expression.free_symbols})
    return int(chosen) if chosen.is_Integer else None


@functools.cache
def _prime(name: str) -> int:
    return int(sympy.nextprime((1 << 40) + (zlib.crc32(name.encode()) << 8)))


def _tensors(operands: Iterable[Any]) -> list[fx.Node] | None:
    """The tensors among operands; None where there is a list, or a value that is none."""
    found: list[Any] = [v for v in operands if isinstance(v, (fx.Node, tuple, list))]
    return found if all(_value(v) is not None for v in found) else None


def _pointwise(node: fx.Node) -> _Same | None:
    operands = _tensors([*node.args, *(v for v in node.kwargs.values() if isinstance(v, fx.Node))])
    return None if operands is None or _writes(node) else _Same("Add", operands)


def _first(node: fx.Node) -> _Same | None:
    """The elements of the first argument."""
    return _Same("Add", _source(node))


def _source(node: fx.Node) -> list[fx.Node]:
    return [node.args[0]]  # type: ignore[list-item]


def _dropout(node: fx.Node) -> _Same | None:
    """Where nothing is drawn."""
    p, training = _argument(node, 1, "p", 0.5), _argument(node, 2, "training", True)
    idle = training is False or (p == 0 and isinstance(p, (int, float)))
    return _first(node) if idle and not _in_place(node) else None


def _linear(node: fx.Node) -> _Same | None:
    return _Same("MatMul", _source(node))


def _normalised(node: fx.Node) -> _Same | None:
    shape = _argument(node, 1, "normalized_shape")
    axes = list(range(-len(shape), 0)) if isinstance(shape, (tuple, list)) else None
    return _Same("LayerNorm", _source(node), {"axes": axes}) if axes else None


def _softmax(node: fx.Node) -> _Same | None:
    axis = _argument(node, 1, "dim")
    return _Same("Softmax", _source(node), {"axes": [axis]}) if type(axis) is int else None


def _reduction(node: fx.Node) -> _Same | None:
    """Over axes that are named."""
    given, keeps = _argument(node, 1, "dim"), _argument(node, 2, "keepdim", False)
    axes = list(given) if isinstance(given, (tuple, list)) else [given]
    if not axes or not all(type(a) is int for a in axes) or not isinstance(keeps, bool):
        return None
    return _Same("ReduceSum", _source(node), {"axes": axes, "keepdims": keeps})


def _product(node: fx.Node) -> _Same | None:
    operands = _tensors(node.args)
    if operands is None or len(operands) != 2 or any(_value(v).dim() < 2 for v in operands):  # type: ignore[union-attr]
        return None
    return _Same("MatMul", operands)


def _attention(node: fx.Node) -> _Same | None:
    """Without dropout; causal ones where the last row sees all keys."""
    mask, causal = _argument(node, 3, "attn_mask"), _argument(node, 5, "is_causal", False)
    operands = _tensors([*node.args[:3], *([] if mask is None else [mask])])
    drawn = _argument(node, 4, "dropout_p", 0.0) != 0
    if operands is None or len(node.args) < 3 or drawn or not isinstance(causal, bool):
        return None
    if causal and mask is not None:
        return None
    return _Same("Attention", operands, {"causal": causal, "scale": 1.0}, _not_causal)


def _not_causal(part: Slice, node: fx.Node) -> None:
    if len(node.args) > 5:
        node.args = (*node.args[:5], False, *node.args[6:])
    else:
        node.kwargs = {**node.kwargs, "is_causal": False}


def _moved(node: fx.Node) -> _Same | None:
    """Two axes that change places."""
    result = _value(node)
    a, b = (_axis(_argument(node, i, f"dim{i - 1}"), result.dim()) for i in (1, 2))  # type: ignore[union-attr]
    if a is None or b is None:
        return None
    perm = [{a: b, b: a}.get(axis, axis) for axis in range(result.dim())]  # type: ignore[union-attr]
    return _Same("Transpose", _source(node), {"perm": perm})


def _permuted(node: fx.Node) -> _Same | None:
    result = _value(node)
    order = node.args[1] if len(node.args) == 2 and not isinstance(node.args[1], int) else node.args[1:]
    if not isinstance(order, (tuple, list)) or len(order) != result.dim():  # type: ignore[union-attr]
        return None
    perm = [_axis(axis, result.dim()) for axis in order]  # type: ignore[union-attr]
    return None if None in perm else _Same("Transpose", _source(node), {"perm": perm})


def _reshaped(node: fx.Node) -> _Same | None:
    """To sizes that are all given, and not as another type."""
    listed = len(node.args) == 2 and isinstance(node.args[1], (tuple, list))
    sizes: Any = node.args[1] if listed else node.args[1:]
    result = _value(node)
    plain = all(isinstance(size, (int, fx.Node)) for size in sizes)
    if node.kwargs or not plain or len(sizes) != result.dim():  # type: ignore[union-attr]
        return None

    def change(part: Slice, call: fx.Node) -> None:
        call.op, call.target = "call_function", torch.reshape  # a slice may have no view of this shape
        shape = [part.length if i == part.axis else size for i, size in enumerate(sizes)]
        call.args = (call.args[0], tuple(shape))

    return _Same("Reshape", _source(node), {"shape": _numbers(result)}, change)


def _regrouped(node: fx.Node) -> _Same | None:
    """`flatten` and `unflatten`, which name only the axes they change."""
    return _Same("Reshape", _source(node), {"shape": _numbers(_value(node))})


def _unflattened(node: fx.Node, part: Slice) -> Call | None:
    """Another axis than that whose sizes are given."""
    call, source = _like(_regrouped)(node, part), _value(node.args[0])
    named = _axis(_argument(node, 1, "dim"), source.dim()) if source is not None else None
    return call if call is not None and named is not None and named not in call.axes.values() else None


def _joined(node: fx.Node) -> _Same | None:
    values, axis = node.args[0], _argument(node, 1, "dim", 0)
    operands = _tensors(values) if isinstance(values, (tuple, list)) else None
    return None if operands is None or type(axis) is not int else _Same("Concat", operands, {"axis": axis})


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
    return Call({node.args[0]: axis}) if index[axis] == slice(None) else None  # type: ignore[dict-item]


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
    **{f: _Kind(_like(_pointwise)) for f in _POINTWISE},
    **{
        f: _Kind(_like(_pointwise), view=True)
        for f in ("float", "double", "half", "bfloat16", "to", "type_as")
    },
    **{f: _Kind(_like(_first), view=True) for f in ("contiguous", "detach", "clone")},
    **{f: _Kind(_like(_dropout), view=True) for f in (F.dropout, torch.dropout)},
    F.linear: _Kind(_like(_linear), heavy=True),
    **{f: _Kind(_like(_normalised)) for f in (F.layer_norm, F.rms_norm)},
    **{f: _Kind(_like(_softmax)) for f in (F.softmax, torch.softmax, "softmax")},
    **{f: _Kind(_like(_reduction)) for f in (torch.mean, torch.sum, "mean", "sum")},
    **{
        f: _Kind(_like(_product), heavy=True)
        for f in (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm")
    },
    F.scaled_dot_product_attention: _Kind(_like(_attention), heavy=True),
    F.multi_head_attention_forward: _Kind(_many_heads, heavy=True),
    **{
        f: _Kind(_like(_moved), view=True) for f in (torch.transpose, "transpose", torch.swapaxes, "swapaxes")
    },
    **{f: _Kind(_like(_permuted), view=True) for f in (torch.permute, "permute")},
    **{f: _Kind(_like(_reshaped), view=True) for f in (torch.reshape, "reshape", "view")},
    **{f: _Kind(_like(_regrouped), view=True) for f in (torch.flatten, "flatten")},
    **{f: _Kind(_unflattened, view=True) for f in (torch.unflatten, "unflatten")},
    **{f: _Kind(_like(_joined)) for f in (torch.cat, torch.concat)},
    operator.getitem: _Kind(_indexed, view=True),
}
