"""The patches of TensorFlow: this version has a place for each of them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from ge.compatibility import Patch
from tf_adapter.compatibility import _KERAS_PATCHES, PATCHES


def test_the_installed_version_was_tried() -> None:
    assert tf.__version__ in PATCHES.tried


@pytest.mark.parametrize("patch", PATCHES.patches, ids=lambda patch: patch.place)
def test_tensorflow_has_what_a_patch_needs(patch: Patch) -> None:
    assert patch.missing() == []


def test_python_itself_is_not_patched() -> None:
    places = [p.place for table in (PATCHES, _KERAS_PATCHES) for p in table.patches]
    assert [place for place in places if not place.startswith("tensorflow")] == []
