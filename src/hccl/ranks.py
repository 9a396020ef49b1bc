"""Ranks and groups of processes."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "WORLD",
    "Group",
    "HcclError",
    "attempt",
    "create_group",
    "destroy_group",
    "group_of",
    "local_rank",
    "local_size",
    "master",
    "world_rank",
]

WORLD = "hccl_world_group"

# Environment variables of the launchers, ours first.
_SIZE = ("RANK_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")
_RANK = ("RANK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
_LOCAL_SIZE = ("LOCAL_RANK_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "LOCAL_WORLD_SIZE")
_LOCAL_RANK = ("LOCAL_RANK_ID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK")


_PORT = 29500


class HcclError(RuntimeError):
    """An invalid group or a failed collective."""


@dataclass(frozen=True)
class Group:
    """World ranks that communicate, in group order."""

    name: str
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def rank(self) -> int:
        """This process's position in the group."""
        return self.position(world_rank())

    def position(self, rank: int) -> int:
        """A world rank's position in the group."""
        if rank not in self.ranks:
            raise HcclError(f"rank {rank} is not in group '{self.name}' of ranks {list(self.ranks)}")
        return self.ranks.index(rank)


_groups: dict[str, Group] = {}


def _setting(names: Sequence[str], default: int) -> int:
    for name in names:
        text = os.environ.get(name)
        if text:
            try:
                return int(text)
            except ValueError:
                raise HcclError(f"environment variable {name} must be a number, not '{text}'") from None
    return default


def world_rank() -> int:
    """This process's rank among all.

    >>> world_rank()
    0
    """
    return _setting(_RANK, 0)


def local_rank() -> int:
    """This process's rank among those on the same machine."""
    return _setting(_LOCAL_RANK, world_rank())


def local_size() -> int:
    """Number of processes on this machine."""
    return _setting(_LOCAL_SIZE, group_of(WORLD).size)


@functools.cache
def _read_table(path: str) -> dict[int, str]:
    """Read the servers of all ranks from a rank table."""
    try:
        servers = json.loads(Path(path).read_text())["server_list"]
        ranks = {int(d["rank_id"]): str(s["server_id"]) for s in servers for d in s["device"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HcclError(
            f"the rank table {path} cannot be read ({type(error).__name__}: {error}): it is a JSON file with a "
            "server_list of server_id and device entries, each of which has a rank_id"
        ) from error
    if sorted(ranks) != list(range(sum(len(s["device"]) for s in servers))):
        raise HcclError(f"the rank table {path} must have the ranks 0, 1, … once each, got {sorted(ranks)}")
    return ranks


def _table() -> dict[int, str]:
    path = os.environ.get("RANK_TABLE_FILE", "")
    return _read_table(path) if path else {}


def attempt() -> str:
    """Number of restarts by torchrun; part of the names under which ranks rendezvous.

    Its store outlives the ranks, so names of an earlier attempt refer to dead ranks. The counts of agents on
    different machines may differ.
    """
    alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if alone else "0"


def master() -> tuple[str, int] | None:
    """Rendezvous address: MASTER_ADDR, else the first rank's server in the rank table, else None."""
    address = os.environ.get("MASTER_ADDR") or _table().get(0)
    return (address, _setting(("MASTER_PORT",), _PORT)) if address else None


def group_of(name: str) -> Group:
    """A group by name; the world always exists."""
    if name == WORLD:
        size = _setting(_SIZE, len(_table() or (0,)))
        if _table() and size != len(_table()):
            raise HcclError(
                f"the rank table {os.environ['RANK_TABLE_FILE']} has {len(_table())} ranks, but RANK_SIZE is {size}"
            )
        if not 0 <= world_rank() < size:
            raise HcclError(f"rank {world_rank()} does not fit a world of {size}: set RANK_ID and RANK_SIZE")
        return Group(WORLD, tuple(range(size)))
    if name not in _groups:
        raise HcclError(f"there is no group '{name}': create it with create_group()")
    return _groups[name]


def create_group(name: str, rank_num: int, rank_ids: Sequence[int]) -> Group:
    """Make a group of world ranks.

    >>> create_group("pair", 1, [0]).size
    1
    """
    world = group_of(WORLD)
    if name == WORLD or name in _groups:
        raise HcclError(f"group '{name}' exists already")
    if rank_num != len(rank_ids) or len(set(rank_ids)) != len(rank_ids):
        raise HcclError(
            f"group '{name}' of {rank_num} ranks needs as many different ones, got {list(rank_ids)}"
        )
    outside = [rank for rank in rank_ids if rank not in world.ranks]
    if outside:
        raise HcclError(f"group '{name}': ranks {outside} are not in the world of {world.size}")
    _groups[name] = Group(name, tuple(rank_ids))
    return _groups[name]


def destroy_group(name: str) -> None:
    """Destroy a group."""
    group_of(name)
    _groups.pop(name, None)
