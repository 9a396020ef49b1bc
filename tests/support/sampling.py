"""A sample of many similar cases for `make test`; the others are left to `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

__all__ = ["one_in", "slow_except"]


def one_in(share: int, cases: Iterable[Any]) -> list[Any]:
    """Every case; all but one in `share` are marked slow."""
    return [case if number % share == 0 else _slow(case) for number, case in enumerate(cases)]


def slow_except(quick: Collection[str], names: Iterable[str]) -> list[Any]:
    """Every name; those that are not among the quick ones are marked slow."""
    names = list(names)
    assert set(quick) <= set(names), f"there is no {sorted(set(quick) - set(names))}"
    return [name if name in quick else _slow(name) for name in names]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):  # made by pytest.param
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    return pytest.param(case, marks=pytest.mark.slow)
