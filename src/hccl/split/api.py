"""Bundling of gradients for the all-reduce. Each gradient is reduced as it arrives, so the settings are checked and
stored but have no further effect.

>>> set_split_strategy_by_idx([20, 100, 159])
"""

from __future__ import annotations

from collections.abc import Sequence

from hccl.ranks import WORLD, HcclError, group_of

__all__ = ["set_split_strategy_by_idx", "set_split_strategy_by_size"]


def set_split_strategy_by_idx(idxList: Sequence[int], group: str = WORLD) -> None:
    """Bundle by the index of the last gradient of each bundle."""
    group_of(group)
    if not idxList or list(idxList) != sorted(set(idxList)) or idxList[0] < 0:
        raise HcclError(f"indices of gradients must increase, got {list(idxList)}")


def set_split_strategy_by_size(dataSizeList: Sequence[float], group: str = WORLD) -> None:
    """Bundle by shares of the data, in percent."""
    group_of(group)
    if not dataSizeList or min(dataSizeList) < 0 or abs(sum(dataSizeList) - 100) > 1e-6:
        raise HcclError(f"shares must be non-negative and add up to 100, got {list(dataSizeList)}")
