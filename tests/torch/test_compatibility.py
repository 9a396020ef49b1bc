"""The patches of PyTorch: this version has a place for each of them."""

from __future__ import annotations

import pytest
import torch

from ge.compatibility import Patch
from torch_npu.compatibility import PATCHES


def test_the_installed_version_was_tried() -> None:
    assert torch.__version__.partition("+")[0] in PATCHES.tried


@pytest.mark.parametrize("patch", PATCHES.patches, ids=lambda patch: patch.place)
def test_pytorch_has_what_a_patch_needs(patch: Patch) -> None:
    assert patch.missing() == []
