"""Transposes moved down through operators that do not care about the order of axes, until they cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.spatial import channels_first_perm
from ge.passes.rewrite import Replacement, RewritePass, Rewriter, Rules, attrs_of, producer

__all__ = ["ELEMENTWISE", "SinkTransposes"]

_SMALL = 4  # an operand this many times smaller than the result may be transposed the other way instead


@dataclass(frozen=True)
class _Order:
    """The order of axes of a transposed value: its axis i is axis perm[i] of the source."""

    perm: tuple[int, ...]

    @property
    def inverse(self) -> tuple[int, ...]:
        return tuple(sorted(range(len(self.perm)), key=lambda i: self.perm[i]))

    def axis(self, axis: int) -> int:
        """Where an axis of the transposed value is in the source."""
        return self.perm[axis % len(self.perm)]

    def entries(self, values: Sequence[Any]) -> list[Any]:
        """Entries an axis, from the transposed order to the source's."""
        return [values[i] for i in self.inverse]

    def reduced(self, axes: Sequence[int]) -> tuple[int, ...]:
        """The order that remains when some axes (of the transposed value) are gone."""
        gone = {a % len(self.perm) for a in axes}
        kept = [p for i, p in enumerate(self.perm) if i not in gone]
        return tuple(sorted(kept).index(p) for p in kept)


def _transposed(value: ir.Value | None) -> tuple[ir.Value, _Order] | None:
    node = producer(value, "Transpose")
    if node is None or node.inputs[0] is None:
        return None
    return node.inputs[0], _Order(tuple(attrs_of(node)["perm"]))


def _order_of(node: ir.Node) -> _Order | None:
    """The order all transposed operands of a node have in common, None when they differ or there is none."""
    orders = {found[1] for found in map(_transposed, node.inputs) if found is not None}
    return orders.pop() if len(orders) == 1 else None


def _operand(r: Rewriter, value: ir.Value | None, order: _Order, size: int) -> ir.Value | None:
    """An operand in the source's order: what a transpose was made of, or a small one transposed the other way."""
    if value is None:
        return None
    found = _transposed(value)
    if found is not None and found[1] == order:
        return found[0]
    desc, rank = desc_of(value), len(order.perm)
    if desc.size == 1 and desc.rank == 0:
        return value
    if constant_of(value) is None and desc.size * _SMALL > size:
        return None
    if desc.rank < rank:
        value = r.op("Reshape", value, shape=[1] * (rank - desc.rank) + list(desc.shape))
    return r.op("Transpose", value, perm=order.inverse)


def _operands(
    r: Rewriter, node: ir.Node, order: _Order, values: Sequence[ir.Value | None]
) -> list[ir.Value | None] | None:
    size = max(desc_of(v).size for v in node.outputs)
    moved = [_operand(r, v, order, size) for v in values]
    if any(m is None and v is not None for m, v in zip(moved, values, strict=True)):
        return None
    return moved


def _back(r: Rewriter, result: Any, perm: Sequence[int]) -> Replacement:
    results = result if isinstance(result, tuple) else (result,)
    moved = [r.op("Transpose", v, perm=perm) for v in results]
    return moved if len(moved) > 1 else moved[0]


# -- how each kind of operator lets a transpose through ---------------------------------------------------------


def _elementwise(r: Rewriter, node: ir.Node) -> Replacement:
    order = _order_of(node)
    if order is None or desc_of(node.outputs[0]).rank != len(order.perm):
        return None
    moved = _operands(r, node, order, node.inputs)
    return None if moved is None else _back(r, r.op_like(node, moved), order.perm)


Change = Callable[[_Order, Any], dict[str, Any]]


def _adjusted(change: Change) -> Callable[[Rewriter, ir.Node], Replacement]:
    """An operator whose attributes follow the order of its inputs."""

    def rule(r: Rewriter, node: ir.Node) -> Replacement:
        order = _order_of(node)
        if order is None:
            return None
        moved = _operands(r, node, order, node.inputs)
        if moved is None:
            return None
        return _back(r, r.op_like(node, moved, **change(order, attrs_of(node))), order.perm)

    return rule


def _normalisation(change: Change) -> Callable[[Rewriter, ir.Node], Replacement]:
    """An operator of which only the first input is transposed."""

    def rule(r: Rewriter, node: ir.Node) -> Replacement:
        found = _transposed(node.inputs[0])
        if found is None or found[1].perm[0] != 0:
            return None
        source, order = found
        result = r.op_like(node, [source, *node.inputs[1:]], **change(order, attrs_of(node)))
        return _back(r, result, order.perm)

    return rule


def _reduction(r: Rewriter, node: ir.Node) -> Replacement:
    found = _transposed(node.inputs[0])
    if found is None:
        return None
    source, order = found
    attrs = attrs_of(node)
    if "axis" in attrs:
        axes: Sequence[int] = [attrs["axis"]]
        moved = r.op_like(node, [source], axis=order.axis(attrs["axis"]))
    else:
        axes = range(len(order.perm)) if attrs["axes"] is None else attrs["axes"]
        moved = r.op_like(node, [source], axes=sorted(order.axis(a) for a in axes))
    perm = order.perm if attrs["keepdims"] else order.reduced(axes)
    return _back(r, moved, perm)


def _gather(r: Rewriter, node: ir.Node) -> Replacement:
    """Rows picked by a vector of indices; the axis they are picked along is renumbered."""
    found, indices = _transposed(node.inputs[0]), node.inputs[1]
    attrs = attrs_of(node)
    if found is None or indices is None or desc_of(indices).rank != 1 or attrs["batch_dims"]:
        return None
    source, order = found
    return _back(r, r.op_like(node, [source, indices], axis=order.axis(attrs["axis"])), order.perm)


def _on_one_grid(r: Rewriter, node: ir.Node) -> Replacement:
    """Quantisation with one scale for the whole tensor."""
    found = _transposed(node.inputs[0])
    if found is None or any(desc_of(v).size != 1 for v in node.inputs[1:] if v is not None):
        return None
    source, order = found
    return _back(r, r.op_like(node, [source, *node.inputs[1:]]), order.perm)


def _spatial(r: Rewriter, node: ir.Node) -> Replacement:
    """A channels-first operator on transposed channels-last data works on that data."""
    found = _transposed(node.inputs[0])
    attrs = attrs_of(node)
    if found is None or attrs["data_format"] != "channels_first":
        return None
    source, order = found
    if order.perm != channels_first_perm(len(order.perm), "channels_last") or attrs.get("post_ops"):
        return None
    return _back(r, r.op_like(node, [source, *node.inputs[1:]], data_format="channels_last"), order.perm)


def _block_move(r: Rewriter, node: ir.Node) -> Replacement:
    found = _transposed(node.inputs[0])
    if found is None or attrs_of(node)["channels_last"]:
        return None
    source, order = found
    if order.perm != channels_first_perm(len(order.perm), "channels_last"):
        return None
    return _back(r, r.op_like(node, [source], channels_last=True), order.perm)


def _reshape(r: Rewriter, node: ir.Node) -> Replacement:
    """A reshape that merges or splits axes which are neighbours in the source as well."""
    found = _transposed(node.inputs[0])
    if found is None or node.inputs[0] is None:
        return None
    source, order = found
    groups = _axis_groups(desc_of(node.inputs[0]).shape, desc_of(node.outputs[0]).shape)
    if groups is None or len(groups) < 2:
        return None
    runs = [[order.perm[i] for i in inner] for inner, _ in groups]
    if any(run != list(range(run[0], run[0] + len(run))) for run in runs if run):
        return None
    if any(not run for run in runs):
        return None
    placed = sorted(range(len(groups)), key=lambda g: runs[g][0])
    shape = [desc_of(node.outputs[0]).shape[i] for g in placed for i in groups[g][1]]
    starts: dict[int, int] = {}
    for g in placed:
        starts[g] = sum(len(groups[other][1]) for other in placed[: placed.index(g)])
    perm = [starts[g] + k for g in range(len(groups)) for k in range(len(groups[g][1]))]
    return _back(r, r.op("Reshape", source, shape=shape), perm)


def _axis_groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """Runs of axes that a reshape turns into runs of axes, as small as possible; None for empty tensors."""
    if 0 in before or 0 in after:
        return None
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        left, right = ([i], [j]) if i < len(before) and j < len(after) else ([], [])
        if not left:
            break
        a, b = before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                a *= before[i]
                left.append(i)
                i += 1
            else:
                b *= after[j]
                right.append(j)
                j += 1
        groups.append((left, right))
    if not groups:
        return None
    groups[-1][0].extend(range(i, len(before)))  # what is left has one element an axis
    groups[-1][1].extend(range(j, len(after)))
    return groups


ELEMENTWISE = frozenset(
    [
        "Abs",
        "Neg",
        "Exp",
        "Exp2",
        "Expm1",
        "Log",
        "Log1p",
        "Log2",
        "Sqrt",
        "Rsqrt",
        "Reciprocal",
        "Square",
        "Sin",
        "Cos",
        "Tan",
        "Asin",
        "Acos",
        "Atan",
        "Sinh",
        "Cosh",
        "Tanh",
        "Asinh",
        "Acosh",
        "Atanh",
        "Erf",
        "Erfc",
        "Sign",
        "Floor",
        "Ceil",
        "Round",
        "Trunc",
        "Not",
        "BitwiseNot",
        "IsNan",
        "IsInf",
        "IsFinite",
        "Sigmoid",
        "Softplus",
        "Softsign",
        "Relu",
        "Lgamma",
        "Digamma",
        "LeakyRelu",
        "Elu",
        "Selu",
        "Celu",
        "Gelu",
        "GeluSlope",
        "HardSigmoid",
        "HardSwish",
        "Mish",
        "Swish",
        "ThresholdedRelu",
        "Shrink",
        "Clip",
        "Cast",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "FloorDiv",
        "Mod",
        "FMod",
        "Pow",
        "Maximum",
        "Minimum",
        "Atan2",
        "SquaredDifference",
        "And",
        "Or",
        "Xor",
        "Equal",
        "NotEqual",
        "Less",
        "LessEqual",
        "Greater",
        "GreaterEqual",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "ShiftLeft",
        "ShiftRight",
        "PRelu",
        "Select",
    ]
)


def _over_axes(order: _Order, attrs: Any) -> dict[str, Any]:
    return {"axes": sorted(order.axis(a) for a in attrs["axes"])}


def _along(order: _Order, attrs: Any) -> dict[str, Any]:
    return {"axis": order.axis(attrs["axis"])}


def _boxes(order: _Order, attrs: Any) -> dict[str, Any]:
    steps = attrs["steps"]
    return {
        "starts": order.entries(attrs["starts"]),
        "ends": order.entries(attrs["ends"]),
        "steps": None if not steps else order.entries(steps),
    }


def _borders(order: _Order, attrs: Any) -> dict[str, Any]:
    return {"low": order.entries(attrs["low"]), "high": order.entries(attrs["high"])}


def _channel(order: _Order, attrs: Any) -> dict[str, Any]:
    return {"channel_axis": order.axis(attrs["channel_axis"])}


class SinkTransposes(RewritePass):
    """Move transposes towards the outputs, so that those of neighbouring operators meet and cancel.

    1. An elementwise operator whose operands are all transposed alike (or constant, or much smaller) works on the
       untransposed operands; its result is transposed instead.
    2. Reductions, Softmax, normalisations, Concat, Split, Slice, Pad, Gather by a vector, Reverse and running sums do
       too, with their axes renumbered; a reduction's result needs a smaller transpose or none.
    3. Channels-first convolutions and poolings on transposed channels-last data work on that data (not once they have
       post-ops); so do DepthToSpace and SpaceToDepth.
    4. A Reshape of a transposed value comes first where the axes it merges are neighbours in the source.
    5. An operator with an operand of full size in another order is left alone.
    """

    name = "sink_transposes"
    rules: ClassVar[Rules] = {
        **dict.fromkeys(ELEMENTWISE, (_elementwise,)),
        **dict.fromkeys(
            [
                "ReduceSum",
                "ReduceMean",
                "ReduceMax",
                "ReduceMin",
                "ReduceProd",
                "ReduceAny",
                "ReduceAll",
                "ArgMax",
                "ArgMin",
            ],
            (_reduction,),
        ),
        "Softmax": (_adjusted(_over_axes),),
        "LogSoftmax": (_adjusted(_over_axes),),
        "Concat": (_adjusted(_along),),
        "Split": (_adjusted(_along),),
        "Slice": (_adjusted(_boxes),),
        "Pad": (_adjusted(_borders),),
        "CumSum": (_adjusted(_along),),
        "Reverse": (_adjusted(_over_axes),),
        **{type_: (_normalisation(_channel),) for type_ in ("BatchNorm", "InstanceNorm", "GroupNorm")},
        **dict.fromkeys(("Conv", "QConv", "ConvTranspose", "MaxPool", "AvgPool", "Lrn"), (_spatial,)),
        "Gather": (_gather,),
        "Quantize": (_on_one_grid,),
        "Dequantize": (_on_one_grid,),
        "DepthToSpace": (_block_move,),
        "SpaceToDepth": (_block_move,),
        "Reshape": (_reshape,),
    }
