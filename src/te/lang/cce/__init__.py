"""The vector DSL under its older name."""

from tbe import dsl as _dsl
from tbe.dsl import *  # noqa: F403
from te.lang.cce import te_compute, util

globals().update({name: getattr(_dsl, name) for name in _dsl.refused.CUBE})


def split_schedule_com(data, output_shape_list, split_dim=0, size_splits=None):  # type: ignore[no-untyped-def]
    """The schedule of a split, and the tensors to list in its build: the input, then the parts."""
    parts = output_shape_list
    return _dsl.auto_schedule(list(parts)), [data, *parts]


__all__ = [*_dsl.__all__, "split_schedule_com", "te_compute", "util"]
