"""The patches of PaddlePaddle: this version has a place for each of them."""

from __future__ import annotations

import pytest

paddle = pytest.importorskip("paddle")

from ge.compatibility import Patch  # noqa: E402
from paddle_npu.compatibility import PATCHES  # noqa: E402


def test_the_installed_version_was_tried() -> None:
    assert paddle.__version__ in PATCHES.tried


@pytest.mark.parametrize("patch", PATCHES.patches, ids=lambda patch: patch.place)
def test_paddle_has_what_a_patch_needs(patch: Patch) -> None:
    assert patch.missing() == []
