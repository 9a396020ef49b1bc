"""Whether the runtime has a task for given operands, and in what implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ge.ir.types import TensorDesc
from ge.plan import View

__all__ = ["has_task", "implementation"]


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

    def views(descs: Sequence[TensorDesc | None]) -> list[View]:
        return [View.of(0, d) for d in descs if d is not None]

    return implementation(kind, views(inputs), views(outputs), attrs or {}) is not None


def implementation(
    kind: str, inputs: Sequence[View], outputs: Sequence[View], attrs: Mapping[str, Any]
) -> str | None:
    """What the runtime would run a task with on this machine; None when it does not have it.

    >>> dense = View.of(0, TensorDesc((2, 3), "float32"))
    >>> implementation("copy", [dense], [dense], {})
    'memcpy'
    """
    import npu_runtime

    def packed(views: Sequence[View]) -> list[Any]:
        return [(v.buffer, v.dtype, v.shape, v.strides, v.offset) for v in views]

    found: str | None = npu_runtime.query(kind, packed(inputs), packed(outputs), dict(attrs))
    return found
