"""Working through a large batch in cache-sized steps.

Contract of `split_batch`:
1. It applies only when every output's rows depend on the same rows of the batch-carrying inputs alone; each node must
   prove it by a rule below. One node without a rule leaves the graph as it is.
2. The graph then holds one step of the batch; the plan repeats it over the batch in one native call.
3. The step is the divisor of the batch with the least traffic to main memory: weights are read once a step
   (once in all when they fit the cache), what a node reads and writes goes to memory only when it does not fit.
4. Results are the same: every row is computed by the same operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import onnx_ir as ir

from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of, set_desc
from ge.ops.base import Engine, NodeView, Pattern, is_custom, lookup
from ge.options import CompileOptions
from ge.target import Target

__all__ = ["split_batch"]

NAME = "split_batch"
WORTHWHILE = 0.85  # of the whole batch's traffic


def split_batch(graph: ir.Graph, options: CompileOptions) -> int:
    """Shrink the graph to one step of its batch; the number of steps, 1 when it stays whole."""
    if NAME in options.disabled_passes:
        return 1
    batch = max((desc_of(v).shape[0] for v in graph.inputs if desc_of(v).rank), default=1)
    carried = _carried(graph, batch) if batch > 1 else None
    if carried is None:
        return 1
    steps = _best_steps(graph, carried, batch, options.target)
    if steps > 1:
        _shrink(graph, carried, steps)
    return steps


# -- what depends on which rows ----------------------------------------------------------------------------------

Rows = dict[ir.Value, int]  # batch-carrying values: rows along axis 0 for one element of the batch


def _carried(graph: ir.Graph, batch: int) -> Rows | None:
    rows: Rows = {v: 1 for v in graph.inputs if desc_of(v).rank and desc_of(v).shape[0] == batch}
    for node in graph:
        inputs = [v for v in node.inputs if v is not None and v in rows]
        if not inputs:
            if _effects(node):
                return None
            continue
        operator = lookup(node.op_type)
        if is_custom(operator):  # its code decides what a smaller batch means
            return None
        rule = _RULES.get(node.op_type) or _PATTERN_RULES.get(operator.pattern)
        factor = rule(node, rows, batch) if rule is not None else None
        if factor is None:
            return None
        for value in node.outputs:
            if not desc_of(value).rank or desc_of(value).shape[0] != factor * batch:
                return None
            rows[value] = factor
    return rows if all(v in rows for v in graph.outputs) else None


def _effects(node: ir.Node) -> bool:
    operator = lookup(node.op_type)
    return not operator.foldable or operator.dynamic_outputs or operator.engine is Engine.CONTROL


def _one_factor(values: Iterable[ir.Value | None], rows: Rows) -> int | None:
    """The rows an element has in all batch-carrying values, None when they differ."""
    factors = {rows[v] for v in values if v is not None and v in rows}
    return factors.pop() if len(factors) == 1 else None


def _broadcast(node: ir.Node, rows: Rows, batch: int) -> int | None:
    rank = desc_of(node.outputs[0]).rank
    for value in node.inputs:
        if value is None:
            continue
        desc = desc_of(value)
        aligned = desc.rank == rank
        if value in rows and not aligned:
            return None
        if value not in rows and aligned and desc.shape[0] != 1:
            return None
    return _one_factor(node.inputs, rows)


def _first_only(node: ir.Node, rows: Rows, batch: int) -> int | None:
    """Only the first input carries the batch, on an axis the operator does not touch."""
    others = [v for v in node.inputs[1:] if v is not None and v in rows]
    return rows.get(node.inputs[0]) if not others else None  # type: ignore[arg-type]


def _reduce(node: ir.Node, rows: Rows, batch: int) -> int | None:
    view = NodeView.of(node)
    rank = view.inputs[0].rank  # type: ignore[union-attr]
    axes = view.attrs.get("axes", view.attrs.get("axis"))
    axes = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
    touched = {a % rank for a in axes} if "axes" in view.attrs or "axis" in view.attrs else set()
    if 0 in touched or view.attrs.get("channel_axis", 1) % rank == 0:
        return None
    return _first_only(node, rows, batch)


def _cube(node: ir.Node, rows: Rows, batch: int) -> int | None:
    """Convolutions and pools: the data carries, weights and bias do not, post-op operands are broadcast."""
    if any(v is not None and v in rows for v in node.inputs[1:3]):
        return None
    return _with_operands(node, rows, 3)


def _matmul(node: ir.Node, rows: Rows, batch: int) -> int | None:
    view = NodeView.of(node)
    a, b = view.inputs[0], view.inputs[1]
    assert a is not None and b is not None
    both = node.inputs[1] in rows
    batched = a.rank >= 3 and b.rank == a.rank
    if node.inputs[0] not in rows or (both and not batched) or (a.rank == 2 and view.transpose_a):
        return None
    if not both and b.rank >= a.rank and a.rank >= 3 and b.shape[0] != 1:
        return None
    if len(node.inputs) > 2 and node.inputs[2] in rows:
        return None
    return _with_operands(node, rows, 3)


def _attention(node: ir.Node, rows: Rows, batch: int) -> int | None:
    """Queries, keys and values carry the batch as their first axis; the mask may."""
    if desc_of(node.outputs[0]).rank < 3 or any(v not in rows for v in node.inputs[:3]):
        return None
    return _with_operands(node, rows, 3)


def _with_operands(node: ir.Node, rows: Rows, first: int) -> int | None:
    rank = desc_of(node.outputs[0]).rank
    for value in node.inputs[first:]:
        if (
            value is not None
            and value not in rows
            and desc_of(value).rank == rank
            and desc_of(value).shape[0] != 1
        ):
            return None
        if value is not None and value in rows and desc_of(value).rank != rank:
            return None
    return _one_factor(node.inputs, rows)


def _reshape(node: ir.Node, rows: Rows, batch: int) -> int | None:
    shape = desc_of(node.outputs[0]).shape
    return shape[0] // batch if shape and shape[0] and shape[0] % batch == 0 else None


def _transpose(node: ir.Node, rows: Rows, batch: int) -> int | None:
    return rows[node.inputs[0]] if NodeView.of(node).perm[0] == 0 else None  # type: ignore[index]


def _slice(node: ir.Node, rows: Rows, batch: int) -> int | None:
    view = NodeView.of(node)
    extent = view.inputs[0].shape[0]  # type: ignore[union-attr]
    whole = view.starts[0] == 0 and view.ends[0] >= extent and (view.steps is None or view.steps[0] == 1)
    return rows[node.inputs[0]] if whole else None  # type: ignore[index]


def _joined(node: ir.Node, rows: Rows, batch: int) -> int | None:
    view = NodeView.of(node)
    if view.axis % view.inputs[0].rank == 0 or any(v not in rows for v in node.inputs):  # type: ignore[union-attr]
        return None
    return _one_factor(node.inputs, rows)


def _pad(node: ir.Node, rows: Rows, batch: int) -> int | None:
    view = NodeView.of(node)
    return rows[node.inputs[0]] if view.low[0] == view.high[0] == 0 else None  # type: ignore[index]


def _gather(node: ir.Node, rows: Rows, batch: int) -> int | None:
    view = NodeView.of(node)
    data, indices = node.inputs[0], node.inputs[1]
    assert data is not None and indices is not None
    axis = view.axis % desc_of(data).rank
    if view.batch_dims == 0 and data not in rows and axis == 0:
        return rows.get(indices)
    if view.batch_dims == 0 and indices not in rows and axis != 0:
        return rows.get(data)
    return None


_Rule = Callable[[ir.Node, Rows, int], int | None]
_PATTERN_RULES: dict[Pattern, _Rule] = {
    Pattern.ELEMENTWISE: _broadcast,
    Pattern.BROADCAST: _broadcast,
    Pattern.REDUCE: _reduce,
}
_RULES: dict[str, _Rule] = {
    "BatchNorm": _first_only,
    "Checked": _first_only,
    "BroadcastTo": lambda node, rows, batch: None,
    "OneHot": lambda node, rows, batch: None,
    "MaxPoolIndices": lambda node, rows, batch: None,
    "Conv": _cube,
    "ConvTranspose": _cube,
    "MaxPool": _first_only,
    "AvgPool": _first_only,
    "Lrn": _first_only,
    "Attention": _attention,
    "MatMul": _matmul,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Slice": _slice,
    "Concat": _joined,
    "Split": _joined,
    "Pad": _pad,
    "Gather": _gather,
    "DepthToSpace": _first_only,
    "SpaceToDepth": _first_only,
}


# -- how many steps ----------------------------------------------------------------------------------------------


def _best_steps(graph: ir.Graph, rows: Rows, batch: int, target: Target) -> int:
    cache = target.cache_bytes // 2  # what a node's tensors may take and still be there for the next node
    weights = sum(_stored(v) for v in graph.initializers.values())
    moved = [
        sum(_stored(v) for v in (*node.inputs, *node.outputs) if v is not None and v in rows)
        for node in graph
    ]

    def traffic(steps: int) -> int:
        read = weights * steps if weights > cache else weights
        return read + sum(n for n in moved if n > cache * steps)

    small = [n for n in range(1, math.isqrt(batch) + 1) if batch % n == 0]
    best = min(sorted({*small, *(batch // n for n in small)}), key=traffic)
    return best if traffic(best) < WORTHWHILE * traffic(1) else 1


def _stored(value: ir.Value) -> int:
    desc = desc_of(value)
    return TensorDesc(desc.shape, facts.storage_dtype(value)).nbytes


# -- one step of the batch ---------------------------------------------------------------------------------------

_SIZED = {"Reshape": "shape", "Slice": "ends"}  # attributes whose first entry counts rows


def _shrink(graph: ir.Graph, rows: Rows, steps: int) -> None:
    for node in graph:
        attribute = _SIZED.get(node.op_type)
        if attribute and node.outputs[0] in rows:
            first, *rest = node.attributes[attribute].value
            extent = desc_of(node.outputs[0]).shape[0]
            node.attributes[attribute] = ir.AttrInt64s(attribute, [min(first, extent) // steps, *rest])
    for value in rows:
        desc = desc_of(value)
        assert constant_of(value) is None and desc.shape[0] % steps == 0
        set_desc(value, TensorDesc((desc.shape[0] // steps, *desc.shape[1:]), desc.dtype))
