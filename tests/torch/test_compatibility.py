"""The patches of PyTorch: this version has a place for each of them."""

from __future__ import annotations

import pytest
import torch

from ge.compatibility import Patch
from torch_npu import compatibility as device
from torchair import compatibility as compiler

TABLES = (device.PATCHES, compiler.PATCHES)


def test_the_installed_version_was_tried() -> None:
    assert all(torch.__version__.partition("+")[0] in table.tried for table in TABLES)


@pytest.mark.parametrize("patch", [p for t in TABLES for p in t.patches], ids=lambda patch: patch.place)
def test_pytorch_has_what_a_patch_needs(patch: Patch) -> None:
    assert patch.missing() == []
