"""Reuses the storage of large outputs once their reference count drops to zero.

A training step gives gradients and activations of hundreds of megabytes, which the next step frees and asks for anew:
fresh pages for all of them cost a tenth of the step.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["Recycler"]

LARGE_BYTES = 1 << 20

_OWN_REFERENCES = 2  # to an element of a list: the list's and that of the one who counts

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
        """A tensor with undefined contents."""
        try:
            taken = [self._kept.pop()]
        except IndexError:
            return self._fresh()
        # Counted here, through the list: what a call adds depends on the interpreter and on whether Dynamo is in it.
        if _uses(taken[0]._cdata) != 1 or sys.getrefcount(taken[0]) != _OWN_REFERENCES:
            return self._fresh()
        found = torch.empty(0, dtype=self.dtype).set_(taken[0], 0, *self.form)
        self._kept[:] = taken
        return found

    def _fresh(self) -> torch.Tensor:
        made: torch.Tensor = _make_strided(*self.form, self.dtype)
        self._kept[:] = [made.untyped_storage()]
        return made
