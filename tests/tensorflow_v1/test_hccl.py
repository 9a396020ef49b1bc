"""Ranks, groups and collectives."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from hccl import collectives, ranks
from hccl.manage import api
from hccl.split.api import set_split_strategy_by_idx, set_split_strategy_by_size


def test_one_process_is_the_world() -> None:
    assert (api.get_rank_size(), api.get_rank_id(), api.get_local_rank_id()) == (1, 0, 0)
    array = np.arange(6.0).reshape(2, 3)
    for call in (
        collectives.all_reduce,
        collectives.all_gather,
        collectives.broadcast,
        collectives.reduce_scatter,
    ):
        np.testing.assert_array_equal(call(array), array)


def test_the_environment_says_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_SIZE", "4")
    monkeypatch.setenv("RANK_ID", "2")
    api.create_group("upper", 2, [2, 3])
    try:
        assert (api.get_rank_size(), api.get_rank_id()) == (4, 2)
        assert (api.get_rank_size("upper"), api.get_rank_id("upper")) == (2, 0)
        assert api.get_world_rank_from_group_rank("upper", 1) == 3
        assert api.get_group_rank_from_world_rank(3, "upper") == 1
        with pytest.raises(ranks.HcclError, match="exists already"):
            api.create_group("upper", 1, [0])
    finally:
        api.destroy_group("upper")
    with pytest.raises(ranks.HcclError, match="there is no group 'upper'"):
        api.get_rank_size("upper")


@pytest.mark.parametrize(
    ("size", "rank", "message"), [("2", "2", "does not fit a world of 2"), ("two", "0", "must be a number")]
)
def test_nonsense_in_the_environment_is_named(
    size: str, rank: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK_SIZE", size)
    monkeypatch.setenv("RANK_ID", rank)
    with pytest.raises(ranks.HcclError, match=message):
        api.get_rank_size()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ranks.HcclError, match="reduction 'mean' is unknown"):
        collectives.all_reduce(np.zeros(2), "mean")
    with pytest.raises(ranks.HcclError, match="root 1 is not in group"):
        collectives.broadcast(np.zeros(2), 1)
    with pytest.raises(ranks.HcclError, match="are not in the world"):
        api.create_group("far", 1, [7])
    with pytest.raises(ranks.HcclError, match="must increase"):
        set_split_strategy_by_idx([3, 1])
    with pytest.raises(ranks.HcclError, match="add up to 100"):
        set_split_strategy_by_size([60, 60])


def test_several_ranks_without_mpi_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ranks.HcclError, match="pip install mpi4py"):
        collectives.all_reduce(np.zeros(2))
