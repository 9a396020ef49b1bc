"""Whether the runtime has a task for given operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ge.ir.types import TensorDesc
from ge.model.plan import View

__all__ = ["has_task"]


def has_task(
    kind: str,
    inputs: Sequence[TensorDesc | None],
    outputs: Sequence[TensorDesc],
    attrs: Mapping[str, Any] | None = None,
) -> bool:
    """Whether the runtime has the task on this machine, for dense operands; absent ones are left out.

    >>> has_task("copy", [TensorDesc((2, 3), "float32")], [TensorDesc((2, 3), "float32")])
    True
    """
    import npu_runtime

    def views(descs: Sequence[TensorDesc | None]) -> list[Any]:
        found = [View.of(0, d) for d in descs if d is not None]
        return [(v.buffer, v.dtype, v.shape, v.strides, v.offset) for v in found]

    return npu_runtime.query(kind, views(inputs), views(outputs), dict(attrs or {})) is not None
