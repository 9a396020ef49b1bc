"""Sparse row gradients: tf.unique and segment sums, as optimizers use them to sum updates of the same row.

How many distinct rows there are is known only at run time. The sums get a slot for every requested row, of which the
first so many are used; when a table is written, every row asked for is written, equal ones with equal values.
1. Only uses that cannot tell the difference are taken: the distinct rows must be read by gathers, row updates and their
   own number, that number by the segment sums, and the sums by elementwise operators that end in row updates.
2. Any other use leaves tf.unique as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import HANDLERS, Context, Outputs, handler, special
from ge.parsers.tensorflow.graph import Body, GraphNode, Ref
from ge.parsers.tensorflow.optimizers import SPARSE_OPERANDS
from ge.parsers.tensorflow.values import Opaque, Variable

__all__: list[str] = []


@dataclass(frozen=True, eq=False)
class Distinct(Opaque):
    """The distinct ones of some row numbers: all of them, and which slot each belongs to."""

    rows: ir.Value
    slots: ir.Value  # int64
    what = "rows whose number is known only after the run"


_ELEMENTWISE = frozenset(
    [
        *(
            "Identity",
            "Cast",
            "Mul",
            "Add",
            "AddV2",
            "Sub",
            "Neg",
            "Square",
            "Sqrt",
            "Rsqrt",
            "RealDiv",
            "DivNoNan",
        ),
        *("Pow", "Sign", "Abs", "Maximum", "Minimum", "ClipByValue", "Exp", "Log", "Reciprocal"),
    ]
)
_ADDITIONS = {
    "ResourceScatterAdd": "Add",
    "ScatterAdd": "Add",
    "ResourceScatterSub": "Sub",
    "ScatterSub": "Sub",
}
_UPDATES = frozenset({"ResourceScatterUpdate", "ScatterUpdate"})
_GATHERS = frozenset({"GatherV2", "Gather", "ResourceGather"})
_WRITES = frozenset({*_ADDITIONS, *_UPDATES, *SPARSE_OPERANDS})


@handler("Unique")
def _unique(c: Context) -> Outputs:
    if not _sums_rows(c.scope.body, c.node) or desc_of(c.tensor(0)).rank != 1:
        return c.converter.by_plugin(c)
    rows = c.tensor(0)
    _, _, slots, _ = c.builder.op("Unique", rows, sorted=False)
    inverse = c.builder.op("Cast", slots, to=str(c.attr("out_idx", "int32")))
    return [Distinct(rows, slots), inverse]


# -- who may read it ---------------------------------------------------------------------------------------------


def _readers(body: Body, ref: Ref) -> Iterator[tuple[GraphNode, int]]:
    for node in body.nodes.values():
        for index, source in enumerate(node.inputs):
            if source == ref:
                yield node, index


def _sums_rows(body: Body, node: GraphNode) -> bool:
    """Whether all uses of distinct elements are those of an optimizer."""
    if any(name == node.name for name, _ in body.results):
        return False
    sums = list(_readers(body, (node.name, 1)))
    if not sums or any(n.op != "UnsortedSegmentSum" or i != 1 for n, i in sums):
        return False
    distinct = list(_readers(body, (node.name, 0)))
    return all(_harmless(body, n) for n, _ in distinct) and all(
        _ends_in_writes(body, (n.name, 0), set()) for n, _ in sums
    )


def _harmless(body: Body, node: GraphNode) -> bool:
    if node.op in ("Identity", "Cast"):
        return all(_harmless(body, n) for n, _ in _readers(body, (node.name, 0)))
    if node.op == "Shape":
        return all(_only_counts(body, n) for n, _ in _readers(body, (node.name, 0)))
    if node.op in _GATHERS:
        return _ends_in_writes(body, (node.name, 0), set())
    return node.op in _WRITES


def _only_counts(body: Body, node: GraphNode) -> bool:
    if node.op != "StridedSlice":
        return False
    return all(n.op == "UnsortedSegmentSum" and i == 2 for n, i in _readers(body, (node.name, 0)))


def _ends_in_writes(body: Body, ref: Ref, seen: set[Ref]) -> bool:
    """True if the value is used only by row updates, through elementwise operators."""
    if ref in seen:
        return True
    seen.add(ref)
    if ref in body.results:
        return False
    for node, _ in _readers(body, ref):
        if node.op in _WRITES:
            continue
        if node.op not in _ELEMENTWISE or not _ends_in_writes(body, (node.name, 0), seen):
            return False
    return True


# -- what becomes of them ----------------------------------------------------------------------------------------


def _distinct(c: Context) -> tuple[int, Distinct]:
    return next((i, v) for i, v in enumerate(c.inputs) if isinstance(v, Distinct))


def _count(c: Context) -> Outputs:
    _, found = _distinct(c)
    count = desc_of(found.rows).shape
    return [c.builder.constant(np.asarray(count, str(c.attr("out_type", "int32"))))]


def _cast(c: Context) -> Outputs:
    _, found = _distinct(c)
    return [replace(found, rows=c.builder.op("Cast", found.rows, to=str(c.attr("DstT"))))]


def _gather(c: Context) -> Outputs:
    """Rows by slot; slots that are not used hold the first row."""
    place, found = _distinct(c)
    count = desc_of(found.rows).size
    spots = c.builder.op("Reshape", found.slots, shape=(count, 1))
    zeros = c.builder.constant(np.zeros(count, desc_of(found.rows).dtype))
    by_slot = c.builder.op("ScatterNd", zeros, spots, found.rows)
    return _again(c, {place: by_slot})


def _again(c: Context, changed: dict[int, ir.Value]) -> Outputs:
    """The node on other inputs."""
    context = replace(c, inputs=[changed.get(i, v) for i, v in enumerate(c.inputs)])
    known = HANDLERS.get(c.node.op)
    return known(context) if known is not None else c.converter.by_plugin(context)


def _of_rows(c: Context, index: int, found: Distinct) -> ir.Value:
    """What slots hold, for every requested row."""
    return c.builder.op("Gather", c.tensor(index), found.slots, axis=0)


def _write(c: Context) -> Outputs:
    place, found = _distinct(c)
    rows = 2
    if c.node.op in SPARSE_OPERANDS:
        rows = SPARSE_OPERANDS[c.node.op].index("grad")
    return _again(c, {place: found.rows, rows: _of_rows(c, rows, found)})


def _add(c: Context) -> Outputs:
    _, found = _distinct(c)
    variable = c.binding(0)
    if not isinstance(variable, Variable):
        raise Unsupported("rows are added to something other than a variable")
    table = c.converter.read(variable)
    now = c.builder.op("Gather", table, found.rows, axis=0)
    new = c.builder.op(_ADDITIONS[c.node.op], now, _of_rows(c, 2, found))
    spots = c.builder.op("Reshape", found.rows, shape=(desc_of(found.rows).size, 1))
    if desc_of(spots).dtype != "int64":
        spots = c.builder.op("Cast", spots, to="int64")
    c.converter.write(variable, c.builder.op("ScatterNd", table, spots, new))
    return [variable] if variable.is_ref else []


_RULES: dict[str, Callable[[Context], Outputs]] = {
    "Identity": lambda c: list(c.inputs),
    "Cast": _cast,
    "Shape": _count,
    **dict.fromkeys(_GATHERS, _gather),
    **dict.fromkeys(_ADDITIONS, _add),
    **dict.fromkeys(_UPDATES, _write),
    **dict.fromkeys(SPARSE_OPERANDS, _write),
}


@special(Distinct)
def _with_distinct(c: Context) -> Outputs:
    rule = _RULES.get(c.node.op)
    if rule is None:
        raise Unsupported(
            f"it reads {Distinct.what}",
            "make that result an output of the model and go on from there on the host",
        )
    return rule(c)
