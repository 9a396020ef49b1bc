"""Memory of large results, used again once nobody holds them.

A training step gives gradients and activations of hundreds of megabytes, which the next step frees and asks for anew:
fresh pages for all of them cost a tenth of the step.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["Recycler"]

LARGE_BYTES = 1 << 20

_uses: Any = torch._C._storage_Use_Count
_make_strided: Any = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]


class Recycler:
    """Makes tensors of one form; keeps the memory of the last one, and uses it again when it is free.

    >>> make = Recycler((1024, 512), (512, 1), torch.float32)
    >>> first = make()
    >>> address = first.data_ptr()
    >>> make().data_ptr() == address
    False
    >>> del first
    """

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> None:
        self.form = shape, strides
        self.dtype = dtype
        self._kept: list[torch.UntypedStorage] = []  # one at most; taken by one thread at a time

    def __call__(self) -> torch.Tensor:
        """A tensor whose contents are whatever lies there."""
        try:
            storage = self._kept.pop()
        except IndexError:
            storage = None
        if storage is None or not _is_free(storage):
            made: torch.Tensor = _make_strided(*self.form, self.dtype)
            self._kept[:] = [made.untyped_storage()]
            return made
        found = torch.empty(0, dtype=self.dtype).set_(storage, 0, *self.form)
        self._kept[:] = [storage]
        return found


def _is_free(storage: torch.UntypedStorage) -> bool:
    """Whether neither a tensor nor anybody in Python holds a storage but the caller."""
    return _uses(storage._cdata) == 1 and sys.getrefcount(storage) == 3  # the caller's, ours, getrefcount's
