"""Collectives on NumPy arrays over MPI or Gloo; the identity for one process.

Before each collective the ranks compare its name, kind, type and shape. A mismatch is an error on all ranks, before any
data are exchanged. `name` distinguishes otherwise identical calls. A label precedes what is sent to one rank, which
raises an error if it expects another type or shape.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from hccl.ranks import WORLD, Group, HcclError, group_of, world_rank
from hccl.transports import transport

__all__ = [
    "REDUCTIONS",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "receive",
    "reduce_scatter",
    "send",
]

REDUCTIONS = ("sum", "max", "min", "prod")
_LABEL_BYTES = 256


def all_reduce(
    array: np.ndarray, reduction: str = "sum", group: str = WORLD, *, name: str = ""
) -> np.ndarray:
    """Reduce the arrays of all ranks.

    >>> all_reduce(np.arange(3)).tolist()
    [0, 1, 2]
    """
    members = group_of(group)
    if reduction not in REDUCTIONS:
        raise HcclError(f"reduction '{reduction}' is unknown: use one of {', '.join(REDUCTIONS)}")
    if members.size == 1:
        return np.array(array)
    _compare(f"all_reduce ({reduction}) of {_text(array)}", name, members)
    return transport().all_reduce(_wide(array), reduction, members).astype(array.dtype)


def all_gather(array: np.ndarray, group: str = WORLD, *, name: str = "") -> np.ndarray:
    """Concatenate the arrays of all ranks along the first axis, whose lengths may differ."""
    members = group_of(group)
    if members.size == 1:
        return np.array(array)
    _compare(f"all_gather of {array.dtype}[…{_dims(array.shape[1:])}]", name, members)
    return np.concatenate(transport().all_gather(np.asarray(array, order="C"), members), axis=0)


def broadcast(array: np.ndarray, root: int = 0, group: str = WORLD, *, name: str = "") -> np.ndarray:
    """Broadcast the root's array."""
    members = group_of(group)
    _check_place(root, members, "root")
    if members.size == 1:
        return np.array(array)
    _compare(f"broadcast from {root} of {_text(array)}", name, members)
    return transport().broadcast(np.asarray(array, order="C"), root, members)


def reduce_scatter(
    array: np.ndarray, reduction: str = "sum", group: str = WORLD, *, name: str = ""
) -> np.ndarray:
    """Reduce the arrays of all ranks and return this rank's share along the first axis."""
    members = group_of(group)
    if array.shape[0] % members.size:
        raise HcclError(f"{array.shape[0]} rows cannot be shared evenly by {members.size} ranks")
    rows = array.shape[0] // members.size
    first = members.rank * rows
    return all_reduce(array, reduction, group, name=name)[first : first + rows]


def all_to_all(arrays: Sequence[np.ndarray], group: str = WORLD, *, name: str = "") -> list[np.ndarray]:
    """Exchange one array with every rank; lengths of the first axis may differ.

    >>> all_to_all([np.arange(2)])[0].tolist()
    [0, 1]
    """
    members = group_of(group)
    if len(arrays) != members.size:
        raise HcclError(f"{len(arrays)} arrays cannot be sent to {members.size} ranks, one to each")
    if len({(a.dtype, a.shape[1:]) for a in arrays}) > 1:
        raise HcclError(f"all_to_all needs arrays of one type and row, got {', '.join(map(_text, arrays))}")
    if members.size == 1:
        return [np.array(arrays[0])]
    _compare(f"all_to_all of {arrays[0].dtype}[…{_dims(arrays[0].shape[1:])}]", name, members)
    return transport().all_to_all(list(arrays), members)


def send(array: np.ndarray, to: int, tag: int = 0, group: str = WORLD) -> None:
    """Send an array to a rank of the group."""
    members = group_of(group)
    _check_place(to, members, "rank", but=members.rank)
    array = np.asarray(array, order="C")
    transport().send(_label(array), to, tag, members)
    transport().send(array, to, tag, members)


def receive(
    shape: Sequence[int], dtype: np.dtype | type, source: int, tag: int = 0, group: str = WORLD
) -> np.ndarray:
    """Receive an array from a rank of the group."""
    members = group_of(group)
    _check_place(source, members, "rank", but=members.rank)
    wanted = np.empty(tuple(shape), dtype)
    label = transport().receive(np.empty(_LABEL_BYTES, np.uint8), source, tag, members)
    if np.array_equal(label, _label(wanted)):
        return transport().receive(wanted, source, tag, members)
    count, _, sent = label.tobytes().rstrip(b"\0").decode().partition(" ")
    transport().receive(np.empty(int(count), np.uint8), source, tag, members)  # so that the sender can go on
    raise HcclError(
        f"rank {members.ranks[source]} sent {sent}, but rank {world_rank()} receives {_text(wanted)}: give receive() "
        "the shape and type that are sent"
    )


def _label(array: np.ndarray) -> np.ndarray:
    """What is sent ahead of an array: its size, type and shape."""
    text = f"{array.nbytes} {_text(array)}".encode()
    return np.frombuffer(text.ljust(_LABEL_BYTES, b"\0")[:_LABEL_BYTES], np.uint8).copy()


def _check_place(place: int, members: Group, what: str, but: int | None = None) -> None:
    if not 0 <= place < members.size:
        raise HcclError(f"{what} {place} is not in group '{members.name}' of {members.size}")
    if place == but:
        raise HcclError(
            f"rank {place} of group '{members.name}' cannot send to itself or receive from itself"
        )


def _compare(call: str, name: str, members: Group) -> None:
    """Raise on every rank if their calls differ."""
    text = f"{name}: {call}" if name else call
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    words = transport().gather_words(int.from_bytes(digest, "little", signed=True), members)
    if len(set(words)) == 1:
        return
    letters = np.frombuffer(text.encode(), np.uint8)
    calls = [found.tobytes().decode() for found in transport().all_gather(letters, members)]
    listed = "; ".join(f"rank {rank}: {what}" for rank, what in zip(members.ranks, calls, strict=True))
    raise HcclError(
        f"the ranks of group '{members.name}' make different calls: {listed}. Every rank must make the same calls "
        "in the same order, with arrays of the same shape"
    )


def _dims(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def _text(array: np.ndarray) -> str:
    return f"{array.dtype}[{_dims(array.shape)}]"


def _wide(array: np.ndarray) -> np.ndarray:
    """Widen 16-bit floats to float32 for the reduction, since transports lack NumPy's 16-bit types."""
    narrow = array.dtype.itemsize == 2 and array.dtype.kind not in "iu"
    return np.asarray(array, np.float32 if narrow else None, order="C")
