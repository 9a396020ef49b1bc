"""Positions where a condition holds (`tf.where`); their number is data-dependent.

They are an output of the graph, or choose the rows of a tensor (tf.boolean_mask), whose result is one;
whatever else reads them belongs to another stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import Context, Outputs, handler, special
from ge.parsers.tensorflow.values import Opaque

__all__ = ["Positions"]


@dataclass(frozen=True, eq=False)
class Positions(Opaque):
    """Where a condition holds: a row of indices an element, or the indices themselves when `flat`."""

    condition: ir.Value
    flat: bool = False
    dtype: str = "int64"
    what = "a result whose size is known only after the run"

    def tensor(self, b: GraphBuilder) -> ir.Value:
        """As the result of an operator."""
        if not self.flat and self.dtype == "int64":
            return b.op("Where", self.condition)
        shape, count = desc_of(self.condition).shape, desc_of(self.condition).size
        places = np.arange(count, dtype=np.int64)
        rows = places if self.flat else np.stack(np.unravel_index(places, shape), axis=1)
        condition = b.op("Reshape", self.condition, shape=(count,)) if len(shape) != 1 else self.condition
        return b.op("Compress", b.op("Cast", rows, to=self.dtype), condition, axis=0)


def _as_condition(b: GraphBuilder, value: ir.Value) -> ir.Value:
    dtype = desc_of(value).dtype
    return value if dtype == "bool" else b.op("NotEqual", value, np.zeros((), np.dtype(dtype)))


@handler("Where")
def _where(c: Context) -> Outputs:
    condition = c.tensor(0)
    known = constant_of(condition)
    if known is not None:
        return [c.builder.constant(np.argwhere(known).astype(np.int64))]
    return [Positions(_as_condition(c.builder, condition))]


def _positions(c: Context) -> Positions:
    return next(v for v in c.inputs if isinstance(v, Positions))


def _flattened(c: Context, to_a_vector: bool) -> Outputs:
    found = _positions(c)
    if found.flat or desc_of(found.condition).rank != 1 or not to_a_vector:
        raise Unsupported("positions get another shape than that of a vector", _REMEDY, later=True)
    return [replace(found, flat=True)]


def _squeezed(c: Context) -> Outputs:
    """Without axes named, one position would lose both of its axes."""
    return _flattened(c, list(c.attr("squeeze_dims") or ()) in ([1], [-1]))


def _reshaped(c: Context) -> Outputs:
    return _flattened(c, c.const(1, "the shape").tolist() == [-1])


def _cast(c: Context) -> Outputs:
    """Through two types numbers may lose digits: that is another stage's."""
    found = _positions(c)
    if found.dtype != "int64":
        raise Unsupported("positions are cast twice", _REMEDY, later=True)
    return [replace(found, dtype=str(c.attr("DstT")))]


def _chosen_rows(c: Context) -> Outputs:
    """Rows of a tensor at the positions: those for which the condition holds."""
    found = _positions(c)
    axis = int(c.const(2, "the axis").reshape(())) if len(c.inputs) > 2 else 0
    if (
        not found.flat
        or c.binding(1) is not found
        or desc_of(c.tensor(0)).shape[axis] != desc_of(found.condition).size
    ):
        raise Unsupported(f"it reads {found.what}", _REMEDY, later=True)
    return [c.builder.op("Compress", c.tensor(0), found.condition, axis=axis)]


def _chosen_elements(c: Context) -> Outputs:
    """Elements of a tensor at rows of positions: those for which the condition holds."""
    found, x = _positions(c), c.tensor(0)
    condition = desc_of(found.condition)
    if found.flat or desc_of(x).shape[: condition.rank] != condition.shape:
        raise Unsupported(f"it reads {found.what}", _REMEDY, later=True)
    rest = desc_of(x).shape[condition.rank :]
    rows = c.builder.op("Reshape", x, shape=(condition.size, *rest))
    return [
        c.builder.op(
            "Compress", rows, c.builder.op("Reshape", found.condition, shape=(condition.size,)), axis=0
        )
    ]


def _identity(c: Context) -> Outputs:
    return list(c.inputs)


_REMEDY = "run the model with ge.compile, which takes it in stages, or end it with that result"
_RULES: dict[str, Callable[[Context], Outputs]] = {
    "Squeeze": _squeezed,
    "Reshape": _reshaped,
    "Cast": _cast,
    "Identity": _identity,
    "IdentityN": _identity,
    "GatherV2": _chosen_rows,
    "Gather": _chosen_rows,
    "GatherNd": _chosen_elements,
}


@special(Positions)
def _with_positions(c: Context) -> Outputs:
    rule = _RULES.get(c.node.op)
    if rule is None:
        raise Unsupported(f"it reads {Positions.what}", _REMEDY, later=True)
    return rule(c)
