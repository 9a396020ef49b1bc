"""Ranks and groups, under the names that scripts import.

>>> get_rank_size(), get_rank_id()
(1, 0)
"""

from __future__ import annotations

from collections.abc import Sequence

from hccl import ranks
from hccl.ranks import WORLD

__all__ = [
    "create_group",
    "destroy_group",
    "get_group_rank_from_world_rank",
    "get_local_rank_id",
    "get_local_rank_size",
    "get_rank_id",
    "get_rank_size",
    "get_world_rank_from_group_rank",
]


def create_group(group: str, rank_num: int, rank_ids: Sequence[int]) -> None:
    """Make a group of world ranks."""
    ranks.create_group(group, rank_num, rank_ids)


def destroy_group(group: str) -> None:
    """Destroy a group."""
    ranks.destroy_group(group)


def get_rank_size(group: str = WORLD) -> int:
    """Number of ranks of a group."""
    return ranks.group_of(group).size


def get_rank_id(group: str = WORLD) -> int:
    """This process's rank in a group."""
    return ranks.group_of(group).rank


def get_local_rank_id(group: str = WORLD) -> int:
    """This process's rank among those of the group on its machine."""
    ranks.group_of(group)
    return ranks.local_rank()


def get_local_rank_size(group: str = WORLD) -> int:
    """Number of the group's ranks on this machine."""
    return min(ranks.local_size(), ranks.group_of(group).size)


def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
    """The world rank at a position of a group."""
    return ranks.group_of(group).ranks[group_rank_id]


def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
    """The position of a world rank in a group."""
    return ranks.group_of(group).position(world_rank_id)
