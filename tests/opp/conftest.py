"""The kit: an operator project built once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ge import opp

KIT = Path(__file__).resolve().parent / "kit"


@pytest.fixture(scope="session")
def kit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which the kit is installed."""
    folder = tmp_path_factory.mktemp("opp")
    opp.build(KIT, folder, version="2.1")
    return folder


@pytest.fixture
def kit(kit_folder: Path) -> Iterator[Path]:
    """The kit's operators are there."""
    with opp.searching(kit_folder):
        yield kit_folder / "kit"
