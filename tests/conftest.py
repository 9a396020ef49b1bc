"""Shared set-up of all tests: the order they run in, and that nothing in them is left to chance."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from ge.compatibility import load_triton_before_tensorflow

# Some tests load TensorFlow first and PyTorch later.
load_triton_before_tensorflow()

# Tests care for answers, not for microseconds: threads that wait should leave the cores to others.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# An internal error sends a user's work to the host with a warning; here it fails the test.
os.environ.setdefault("NPU_INTERNAL_ERRORS", "raise")

# Nothing is taken from other runs and nothing left for them; tests of the compile cache name a folder of their own.
os.environ["NPU_CACHE_DIR"] = "off"

# The same examples in every run, however slow the machine; `--hypothesis-profile=default` looks for new ones.
settings.register_profile(
    "fixed",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("fixed")

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


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test draws the same numbers, alone and after others; `TEST_SEED` chooses others."""
    seed = int(os.environ.get("TEST_SEED", "0"))
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
