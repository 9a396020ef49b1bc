"""Shared set-up of all tests: the order they run in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Tests care for answers, not for microseconds: threads that wait should leave the cores to others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

TESTS = Path(__file__).parent

# What takes long comes last, so that a fault shows early; folders not named here come between.
LAST = ("models", "test_repository.py")


def _rank(item: pytest.Item) -> tuple[bool, int]:
    path = Path(item.path)
    top = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return item.get_closest_marker("slow") is not None, LAST.index(top) + 1 if top in LAST else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first; the order within a folder stays."""
    items.sort(key=_rank)
