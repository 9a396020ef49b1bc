"""acl is set up and torn down around each test; models are made by hand, sealed with a key of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import acl
from ge.model import om
from tests.model.plans import dense, geared
from tests.support.keys import own_key  # noqa: F401  a fixture


@pytest.fixture
def device() -> Iterator[int]:
    assert acl.init() == acl.ACL_SUCCESS
    assert acl.rt.set_device(0) == acl.ACL_SUCCESS
    yield 0
    acl.rt.reset_device(0)
    acl.finalize()


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    return str(om.write(om.Package([dense()]), tmp_path / "dense"))


@pytest.fixture
def geared_file(tmp_path: Path) -> str:
    return str(om.write(geared(1, 2, 8), tmp_path / "geared"))
