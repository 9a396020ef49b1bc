"""Numbers that must lie in a range: indices, class numbers, divisors. A run fails where one does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import INTS, TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, register

__all__ = ["in_range", "nonzero"]


@register
class Checked(Operator):
    """x as it is; fails unless least <= x < limits, one for all or one for each place of the last axis.

    Without limits, elements must not be zero.
    """

    x = Input("T", INTS)
    y = Output("T")
    limits = Attr(list, ())
    least = Attr(int, 0)
    what = Attr(str, "indices")
    aicpu = "checked"

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        desc = op.input(0)
        assert desc is not None
        return desc

    @staticmethod
    def flops(op: NodeView) -> int:
        return 0


def in_range(builder: Any, value: Any, limits: Sequence[int], what: str = "indices", least: int = 0) -> Any:
    """Indices that make the run fail where one is outside; constants that are right stay as they are."""
    known = constant_of(value)
    if desc_of(value).dtype not in INTS or not limits:
        return value
    if known is not None and bool(np.all((known >= least) & (known < np.asarray(limits)))):
        return value
    return builder.op("Checked", value, limits=[int(limit) for limit in limits], least=least, what=what)


def nonzero(builder: Any, value: Any) -> Any:
    """Divisors that make the run fail where one is zero; floats may be."""
    known = constant_of(value)
    if desc_of(value).dtype not in INTS or (known is not None and bool(np.all(known))):
        return value
    return builder.op("Checked", value, what="divisor")
