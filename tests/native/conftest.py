"""What the tests of the runtime share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import npu_runtime as rt


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Programs made in a test run on two threads, whatever the machine has."""
    before = rt.num_threads()
    rt.set_num_threads(2)
    yield
    rt.set_num_threads(before)
