"""Transports of collectives: MPI for processes started by mpiexec, else PyTorch's Gloo."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from importlib import metadata
from typing import Any, Protocol

import numpy as np

from hccl.ranks import WORLD, Group, HcclError, attempt, group_of, master, world_rank

__all__ = ["Transport", "transport"]

_MPI_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_CONNECT_SECONDS, _EXECUTE_SECONDS = 120, 1800
_REPORT_SECONDS = 5.0  # wait for other ranks to fail too, to name those that do not
_POLL_SECONDS = 0.05


def version() -> str:
    """The version of TF Adapter, which must be the same on all ranks."""
    try:
        return metadata.version("tf-adapter")
    except metadata.PackageNotFoundError:
        return "not installed"


class Transport(Protocol):
    """Collectives on contiguous arrays of a group of several processes."""

    def all_reduce(self, array: np.ndarray, reduction: str, group: Group) -> np.ndarray:
        """The arrays of all ranks reduced into one."""

    def all_gather(self, array: np.ndarray, group: Group) -> list[np.ndarray]:
        """The arrays of all ranks."""

    def broadcast(self, array: np.ndarray, root: int, group: Group) -> np.ndarray:
        """Broadcast; `root` is a position in the group."""

    def all_to_all(self, arrays: list[np.ndarray], group: Group) -> list[np.ndarray]:
        """Exchange one array with every rank; `arrays` are those to send."""

    def send(self, array: np.ndarray, to: int, tag: int, group: Group) -> None:
        """Send an array to a position in the group."""

    def receive(self, empty: np.ndarray, source: int, tag: int, group: Group) -> np.ndarray:
        """Receive an array from a position in the group; `empty` has its shape and type."""

    def gather_words(self, word: int, group: Group) -> list[int]:
        """Gather a 64-bit number from every rank."""


@cache
def transport() -> Transport:
    """The transport of this process."""
    if any(name in os.environ for name in _MPI_LAUNCHERS) or master() is None:
        return Mpi()
    return Gloo()


class Mpi:
    """Over `mpi4py`."""

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise HcclError(
                "several ranks communicate over MPI: install `mpi4py` and an MPI (`pip install mpi4py mpich`), and "
                "start the script with mpiexec; or install `torch` and start it with "
                "`python -m npu_bridge run --nproc N SCRIPT`, which uses Gloo"
            ) from error
        self._mpi = MPI
        self._communicators: dict[Group, Any] = {}

    def _of(self, group: Group) -> Any:
        world = self._mpi.COMM_WORLD
        if world.Get_size() < max(group.ranks) + 1:
            raise HcclError(
                f"group '{group.name}' has rank {max(group.ranks)}, but MPI started {world.Get_size()} processes: "
                "start the script with mpiexec -n RANK_SIZE"
            )
        if group not in self._communicators:
            members = world.group.Incl(list(group.ranks))
            self._communicators[group] = world if group.name == WORLD else world.Create_group(members)
        return self._communicators[group]

    def all_reduce(self, array: np.ndarray, reduction: str, group: Group) -> np.ndarray:
        result = np.empty_like(array)
        self._of(group).Allreduce(array, result, getattr(self._mpi, reduction.upper()))
        return result

    def all_gather(self, array: np.ndarray, group: Group) -> list[np.ndarray]:
        return list(self._of(group).allgather(array))

    def broadcast(self, array: np.ndarray, root: int, group: Group) -> np.ndarray:
        return np.asarray(self._of(group).bcast(array, root=root))

    def all_to_all(self, arrays: list[np.ndarray], group: Group) -> list[np.ndarray]:
        return list(self._of(group).alltoall(arrays))

    def send(self, array: np.ndarray, to: int, tag: int, group: Group) -> None:
        self._of(group).Send(array, to, tag)

    def receive(self, empty: np.ndarray, source: int, tag: int, group: Group) -> np.ndarray:
        self._of(group).Recv(empty, source, tag)
        return empty

    def gather_words(self, word: int, group: Group) -> list[int]:
        return list(self._of(group).allgather(word))


class Gloo:
    """Over `torch.distributed`; errors name ranks that are gone or late."""

    def __init__(self) -> None:
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise HcclError(
                "several ranks without mpiexec communicate over Gloo: install `torch`, or `mpi4py mpich` and start the "
                "script with mpiexec"
            ) from error
        self._torch, self._dist = torch, dist
        self._groups: dict[Group, Any] = {}
        self._calls: dict[Group, int] = {}  # number of calls per group, to identify the failed call
        world, (address, port) = group_of(WORLD), master() or ("", 0)
        seconds = _seconds("HCCL_CONNECT_TIMEOUT", _CONNECT_SECONDS)
        try:
            # torchrun hosts the store itself, and restarts the ranks after a failure.
            hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            store = dist.TCPStore(
                address,
                port,
                None if hosted else world.size,
                world_rank() == 0 and not hosted,
                timeout=timedelta(seconds=seconds),
            )
            self._store = dist.PrefixStore(f"hccl/{attempt()}", store)
            limit = timedelta(seconds=_seconds("HCCL_EXEC_TIMEOUT", _EXECUTE_SECONDS))
            self._store.set(f"version/{world_rank()}", version())
            dist.init_process_group(
                "gloo", store=self._store, rank=world_rank(), world_size=world.size, timeout=limit
            )
            # Gloo's threads must have ended when C++ destroys its static objects, or the process aborts.
            atexit.register(self._close)
        except (RuntimeError, ValueError) as error:
            if "EADDRINUSE" in str(error):
                raise HcclError(
                    f"rank {world_rank()} of {world.size} cannot listen at {address}:{port}: another process uses the "
                    "port. End it, or choose another MASTER_PORT for all ranks"
                ) from error
            raise HcclError(
                f"rank {world_rank()} of {world.size} did not meet the others at {address}:{port} within {seconds} s: "
                f"{_first_line(error)}. Start all ranks; MASTER_ADDR and MASTER_PORT, or the rank table, say where "
                "they meet; HCCL_CONNECT_TIMEOUT how long they wait"
            ) from error
        self._compare_versions(world)

    def _compare_versions(self, world: Group) -> None:
        """Compare versions; every rank writes its version before the rendezvous."""
        theirs = {rank: self._store.get(f"version/{rank}").decode() for rank in world.ranks}
        if len(set(theirs.values())) > 1:
            raise HcclError(
                "the ranks have different versions of TF Adapter: "
                + ", ".join(f"rank {rank}: {found}" for rank, found in theirs.items())
                + ". Install the same version for all of them"
            )

    def _close(self) -> None:
        self._groups.clear()
        if self._dist.is_initialized():
            self._dist.destroy_process_group()

    def _of(self, group: Group) -> Any:
        if group.name == WORLD:
            return None
        if group not in self._groups:
            self._groups[group] = self._dist.new_group(list(group.ranks), use_local_synchronization=True)
        return self._groups[group]

    def _done(self, what: str, group: Group, call: Callable[[], Any]) -> None:
        number = self._calls.get(group, 0)
        self._calls[group] = number + 1
        try:
            call()
        except RuntimeError as error:
            raise HcclError(
                f"{what} of rank {world_rank()} in group '{group.name}' of ranks {list(group.ranks)} failed: "
                f"{self._absent(group, number)}; another rank ended, made another call or was later than "
                f"{_seconds('HCCL_EXEC_TIMEOUT', _EXECUTE_SECONDS)} s (HCCL_EXEC_TIMEOUT): {_first_line(error)}"
            ) from error

    def _absent(self, group: Group, number: int) -> str:
        """The ranks of a group that did not report a failure of this call: dead or hanging ones."""
        mine = f"{group.name}/{number}"
        try:
            self._store.set(f"{mine}/{world_rank()}", "failed")
            until = time.monotonic() + _REPORT_SECONDS
            absent = list(group.ranks)
            while absent and time.monotonic() < until:
                absent = [rank for rank in absent if not self._store.check([f"{mine}/{rank}"])]
                time.sleep(_POLL_SECONDS)
        except RuntimeError:
            return "rank 0, where ranks report, does not answer"
        if not absent:
            return "all ranks came to it"
        return f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} did not come to it"

    def all_reduce(self, array: np.ndarray, reduction: str, group: Group) -> np.ndarray:
        result = self._torch.from_numpy(np.array(array))
        operation = getattr(self._dist.ReduceOp, {"prod": "PRODUCT"}.get(reduction, reduction.upper()))
        self._done(
            "all_reduce", group, lambda: self._dist.all_reduce(result, operation, group=self._of(group))
        )
        return np.asarray(result.numpy())

    def all_gather(self, array: np.ndarray, group: Group) -> list[np.ndarray]:
        found: list[Any] = [None] * group.size
        self._done(
            "all_gather", group, lambda: self._dist.all_gather_object(found, array, group=self._of(group))
        )
        return found

    def broadcast(self, array: np.ndarray, root: int, group: Group) -> np.ndarray:
        found = [array]
        self._done(
            "broadcast",
            group,
            lambda: self._dist.broadcast_object_list(found, group.ranks[root], group=self._of(group)),
        )
        return found[0]

    def all_to_all(self, arrays: list[np.ndarray], group: Group) -> list[np.ndarray]:
        kind, row = arrays[0].dtype, arrays[0].shape[1:]
        sizes = self._torch.tensor([a.nbytes for a in arrays])
        theirs = self._torch.empty_like(sizes)
        sent = self._torch.from_numpy(np.concatenate([_bytes(a) for a in arrays]))

        def exchange() -> Any:
            own = self._of(group)
            self._dist.all_to_all_single(theirs, sizes, group=own)
            found = sent.new_empty(int(theirs.sum()))
            self._dist.all_to_all_single(found, sent, theirs.tolist(), sizes.tolist(), group=own)
            return found

        results: list[Any] = []
        self._done("all_to_all", group, lambda: results.append(exchange()))
        parts = np.split(results[0].numpy(), np.cumsum(theirs.tolist())[:-1])
        return [part.view(kind).reshape(-1, *row) for part in parts]

    def send(self, array: np.ndarray, to: int, tag: int, group: Group) -> None:
        tensor = self._torch.from_numpy(_bytes(array).copy())
        self._done(
            f"send to rank {group.ranks[to]} with tag {tag}",
            group,
            lambda: self._dist.send(tensor, group.ranks[to], group=self._of(group), tag=tag),
        )

    def receive(self, empty: np.ndarray, source: int, tag: int, group: Group) -> np.ndarray:
        tensor = self._torch.from_numpy(_bytes(empty))
        self._done(
            f"receive from rank {group.ranks[source]} with tag {tag}",
            group,
            lambda: self._dist.recv(tensor, group.ranks[source], group=self._of(group), tag=tag),
        )
        return empty

    def gather_words(self, word: int, group: Group) -> list[int]:
        mine = self._torch.tensor([word])
        words = [self._torch.empty_like(mine) for _ in group.ranks]
        self._done(
            "the comparison before a collective",
            group,
            lambda: self._dist.all_gather(words, mine, group=self._of(group)),
        )
        return [int(found) for found in words]


def _bytes(array: np.ndarray) -> np.ndarray:
    """View an array as bytes, since PyTorch lacks some of NumPy's types."""
    return array.reshape(-1).view(np.uint8)


def _seconds(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    if text and not text.isdecimal():
        raise HcclError(f"environment variable {name} must be a number of seconds, not '{text}'")
    return int(text or otherwise)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
