"""Collectives on NumPy arrays: exact for one process, over MPI or Gloo for several."""

from __future__ import annotations

import numpy as np

from hccl.ranks import WORLD, HcclError, group_of
from hccl.transports import transport

__all__ = ["REDUCTIONS", "all_gather", "all_reduce", "broadcast", "reduce_scatter"]

REDUCTIONS = ("sum", "max", "min", "prod")


def all_reduce(array: np.ndarray, reduction: str = "sum", group: str = WORLD) -> np.ndarray:
    """The arrays of all ranks reduced into one.

    >>> all_reduce(np.arange(3)).tolist()
    [0, 1, 2]
    """
    members = group_of(group)
    if reduction not in REDUCTIONS:
        raise HcclError(f"reduction '{reduction}' is unknown: use one of {', '.join(REDUCTIONS)}")
    if members.size == 1:
        return np.array(array)
    return transport().all_reduce(_wide(array), reduction, members).astype(array.dtype)


def all_gather(array: np.ndarray, group: str = WORLD) -> np.ndarray:
    """The arrays of all ranks one after the other along the first axis."""
    members = group_of(group)
    if members.size == 1:
        return np.array(array)
    return np.concatenate(transport().all_gather(np.ascontiguousarray(array), members), axis=0)


def broadcast(array: np.ndarray, root: int = 0, group: str = WORLD) -> np.ndarray:
    """The root's array, on every rank."""
    members = group_of(group)
    if not 0 <= root < members.size:
        raise HcclError(f"root {root} is not in group '{group}' of {members.size}")
    if members.size == 1:
        return np.array(array)
    return transport().broadcast(np.ascontiguousarray(array), root, members)


def reduce_scatter(array: np.ndarray, reduction: str = "sum", group: str = WORLD) -> np.ndarray:
    """This rank's share, along the first axis, of the reduced arrays."""
    members = group_of(group)
    if array.shape[0] % members.size:
        raise HcclError(f"{array.shape[0]} rows cannot be shared evenly by {members.size} ranks")
    rows = array.shape[0] // members.size
    first = members.rank * rows
    return all_reduce(array, reduction, group)[first : first + rows]


def _wide(array: np.ndarray) -> np.ndarray:
    """The transports have no 16-bit floats that NumPy shares: they are reduced in float32."""
    narrow = array.dtype.itemsize == 2 and array.dtype.kind not in "iu"
    return np.ascontiguousarray(array, np.float32 if narrow else None)
