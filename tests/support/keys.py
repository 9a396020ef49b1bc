"""Tests that seal model files use a key of their own, never the user's: their conftest imports this fixture."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_key(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path_factory.getbasetemp() / "om.key"
    monkeypatch.setenv("NPU_KEY_FILE", str(path))
    return path
