"""The ranks of a group make the same calls: a rank whose call differs from another's raises before data are exchanged.

Gloo compares nothing: it ends a process that receives more than it expects, and reduces one rank's sum with another's
maximum. Here the first rank to make its n-th call leaves a description of it in the group's store, and the others
compare theirs. No rank waits for another, so asynchronous calls stay asynchronous. Places in the store are used in
turn; a rank that is more than a round behind is not compared.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from hccl.ranks import HcclError

__all__ = ["Calls"]

_PLACES = 64  # in the store, for the calls that a rank may be ahead of another
_REDUCTIONS = (
    "sum",
    "average",
    "product",
    "min",
    "max",
    "and",
    "or",
    "xor",
)  # the values of PyTorch's enumeration
_CALLS_AGREE = "all ranks must make the same calls in the same order, with tensors of the same type and size"
_MESSAGES_AGREE = "receive into a tensor of the type, and of at least the size, of what is sent"


class Calls:
    """The collectives of one group, as seen by one rank."""

    def __init__(self, store: Any, backend: Any) -> None:
        self._store, self._backend = store, backend
        self._lock = threading.RLock()
        self._made: Counter[str] = Counter()
        self._last: dict[str, deque[str]] = {}
        self._ours = 0  # how far the calls compared here have moved the backend's count

    @contextlib.contextmanager
    def compared(self, name: str, args: tuple[Any, ...]) -> Iterator[None]:
        """Compare a call with the other ranks', then make it within the context."""
        with self._lock:
            before = self._count()
            call = _point_to_point(name, args, self._backend.rank()) or ("", _described(name, args))
            # Calls on CPU tensors do not pass here. Ranks that made different numbers of them are not compared.
            if self._store is not None and call[1]:
                self._compare(call[0], call[1], before - self._ours)
            try:
                yield
            finally:
                self._ours += self._count() - before

    def _count(self) -> int:
        return self._backend._get_sequence_number_for_group()

    def _compare(self, line: str, call: str, others: int) -> None:
        """Leave this rank's next call of a line of calls in the store, or compare it with what another rank left."""
        number = self._made[line]
        self._made[line] += 1
        last = self._last.setdefault(line, deque([""] * _PLACES, _PLACES))
        ours = f"{number}|{others}|{call}|{dist.get_rank()}"
        try:
            found = self._store.compare_set(f"call/{line}{number % _PLACES}", last[0], ours).decode()
        except RuntimeError:  # the process that keeps the store has ended, or the store cannot compare
            self._store = None
            return
        last.append(found)
        theirs = found.split("|")
        if theirs[:2] != [str(number), str(others)] or _fits(call, theirs[2]):
            return
        raise HcclError(
            f"rank {dist.get_rank()} calls {call}, but rank {theirs[3]} calls {theirs[2]} as call {number + 1} "
            f"of their {'messages' if line else 'group'} on the NPU: {_MESSAGES_AGREE if line else _CALLS_AGREE}"
        )


def _described(name: str, args: tuple[Any, ...]) -> str:
    """What all ranks must have in common: the operator, its reduction or root, types and sizes."""
    at = next(n for n, value in enumerate(args) if isinstance(value, torch.ScriptObject))
    tensors, rest = args[:at], args[at + 1 :]
    text = _CALLS[name](*tensors, *rest)
    return f"{name.strip('_')}{text}"


def _point_to_point(name: str, args: tuple[Any, ...], rank: int) -> tuple[str, str] | None:
    """The line of messages between two ranks that a call belongs to, and what it sends or expects."""
    if name == "recv_any_source_":
        return name, ""
    if name not in ("send", "recv_"):
        return None
    (tensor,), _, other, tag = args
    pair = (rank, other) if name == "send" else (other, rank)
    return f"{pair[0]}-{pair[1]}/{tag}/", f"{name.strip('_')} of {_sizes([tensor])}"


def _fits(call: str, other: str) -> bool:
    """Whether two calls belong together; a message may be shorter than the memory that receives it."""
    if {call.split()[0], other.split()[0]} != {"send", "recv"}:
        return call == other
    sent, taken = (call, other) if call.startswith("send") else (other, call)
    kinds, counts = zip(*(c.split(" of ")[1].rstrip("]").split("[") for c in (sent, taken)), strict=True)
    return kinds[0] == kinds[1] and int(counts[0]) <= int(counts[1])


def _sizes(tensors: Any) -> str:
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')}[{t.numel()}]" for t in tensors)


def _types(tensors: Any) -> str:
    return ", ".join(str(t.dtype).removeprefix("torch.") for t in tensors)


def _reduction(op: Any) -> str:
    value = int(op.op())
    return f" ({_REDUCTIONS[value]})" if value < len(_REDUCTIONS) else ""


def _nothing(*_: Any) -> str:
    return ""


# What is compared of each collective: its tensors, then its further arguments.
_CALLS: dict[str, Callable[..., str]] = {
    "_allgather_base_": lambda out, given, *_: f" of {_sizes([given])}",
    "_reduce_scatter_base_": lambda out, given, op, *_: f"{_reduction(op)} of {_sizes([given])}",
    "allgather_": lambda outs, given, *_: " of " + "; ".join(_sizes(o) for o in outs),
    "allgather_coalesced_": lambda outs, given, *_: f" of {_sizes(given)}",
    "allgather_into_tensor_coalesced_": lambda outs, given, *_: f" of {_sizes(given)}",
    "allreduce_": lambda given, op, *_: f"{_reduction(op)} of {_sizes(given)}",
    "allreduce_coalesced_": lambda given, op, *_: f"{_reduction(op)} of {_sizes(given)}",
    "alltoall_": lambda outs, given, *_: f" of {_types(given[:1])}",
    "alltoall_base_": lambda out, given, *_: f" of {_types([given])}",
    "barrier": _nothing,
    "broadcast_": lambda given, root, *_: f" from {root} of {_sizes(given)}",
    "gather_": lambda outs, given, root, *_: f" to {root} of {_sizes(given)}",
    "monitored_barrier_": _nothing,
    "reduce_": lambda given, op, root, *_: f"{_reduction(op)} to {root} of {_sizes(given)}",
    "reduce_scatter_": lambda outs, given, op, *_: f"{_reduction(op)} of {_sizes(outs)}",
    "reduce_scatter_tensor_coalesced_": lambda outs, given, op, *_: f"{_reduction(op)} of {_sizes(given)}",
    "scatter_": lambda outs, given, root, *_: f" from {root} of {_sizes(outs)}",
}
