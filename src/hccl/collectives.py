"""Collectives on NumPy arrays: exact for one process, over MPI for several."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from hccl.ranks import WORLD, Group, HcclError, group_of

__all__ = ["REDUCTIONS", "all_gather", "all_reduce", "broadcast", "reduce_scatter"]

REDUCTIONS = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PROD"}


def all_reduce(array: np.ndarray, reduction: str = "sum", group: str = WORLD) -> np.ndarray:
    """The arrays of all ranks reduced into one.

    >>> all_reduce(np.arange(3)).tolist()
    [0, 1, 2]
    """
    members = group_of(group)
    operation = _operation(reduction)
    if members.size == 1:
        return np.array(array)
    wide = _wide(array)
    result = np.empty_like(wide)
    _communicator(members).Allreduce(wide, result, getattr(_mpi(), operation))
    return result.astype(array.dtype)


def all_gather(array: np.ndarray, group: str = WORLD) -> np.ndarray:
    """The arrays of all ranks one after the other along the first axis."""
    members = group_of(group)
    if members.size == 1:
        return np.array(array)
    return np.concatenate(_communicator(members).allgather(np.ascontiguousarray(array)), axis=0)


def broadcast(array: np.ndarray, root: int = 0, group: str = WORLD) -> np.ndarray:
    """The root's array, on every rank."""
    members = group_of(group)
    if not 0 <= root < members.size:
        raise HcclError(f"root {root} is not in group '{group}' of {members.size}")
    if members.size == 1:
        return np.array(array)
    return _communicator(members).bcast(np.ascontiguousarray(array), root=root)


def reduce_scatter(array: np.ndarray, reduction: str = "sum", group: str = WORLD) -> np.ndarray:
    """This rank's share, along the first axis, of the reduced arrays."""
    members = group_of(group)
    if array.shape[0] % members.size:
        raise HcclError(f"{array.shape[0]} rows cannot be shared evenly by {members.size} ranks")
    rows = array.shape[0] // members.size
    first = members.rank * rows
    return all_reduce(array, reduction, group)[first : first + rows]


def _operation(reduction: str) -> str:
    if reduction not in REDUCTIONS:
        raise HcclError(f"reduction '{reduction}' is unknown: use one of {', '.join(REDUCTIONS)}")
    return REDUCTIONS[reduction]


def _wide(array: np.ndarray) -> np.ndarray:
    """MPI has no 16-bit floats: they are reduced in float32."""
    narrow = array.dtype.itemsize == 2 and array.dtype.kind not in "iu"
    return np.ascontiguousarray(array, np.float32 if narrow else None)


def _mpi() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise HcclError(
            "several ranks communicate over MPI: install `mpi4py` and an MPI (`pip install mpi4py mpich`), "
            "and start the script with mpiexec"
        ) from error
    return MPI


@cache
def _communicator(group: Group) -> Any:
    mpi = _mpi()
    world = mpi.COMM_WORLD
    if world.Get_size() < max(group.ranks) + 1:
        raise HcclError(
            f"group '{group.name}' has rank {max(group.ranks)}, but MPI started {world.Get_size()} processes: "
            "start the script with mpiexec -n RANK_SIZE"
        )
    return world if group.name == WORLD else world.Create_group(world.group.Incl(list(group.ranks)))
