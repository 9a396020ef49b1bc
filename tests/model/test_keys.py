"""The user's key: made once, private, and the only one that verifies its seals."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ge.model import keys


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "om.key"
    monkeypatch.setenv("NPU_KEY_FILE", str(path))
    return path


def test_the_key_is_made_private_on_first_use(key_file: Path) -> None:
    assert not keys.verify(b"content", bytes(32))
    assert not key_file.exists()
    seal = keys.sign(b"content")
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert keys.verify(b"content", seal)
    assert not keys.verify(b"other content", seal)


def test_another_key_does_not_verify(key_file: Path) -> None:
    seal = keys.sign(b"content")
    key_file.unlink()
    keys.sign(b"content")
    assert not keys.verify(b"content", seal)


def test_a_key_that_others_can_read_is_not_used(key_file: Path) -> None:
    seal = keys.sign(b"content")
    key_file.chmod(0o644)
    assert not keys.verify(b"content", seal)


def test_without_a_usable_key_the_seal_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_KEY_FILE", str(tmp_path / "file" / "om.key"))
    (tmp_path / "file").write_text("not a directory")
    with pytest.warns(UserWarning, match="regenerated"):
        assert keys.sign(b"content") == bytes(32)
    assert not keys.verify(b"content", bytes(32))


def test_the_default_place_is_the_configuration_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NPU_KEY_FILE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert keys.key_path() == tmp_path / "tf_adapter" / "om.key"
