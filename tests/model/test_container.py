"""The outer form of `.om`: sections come back as written; anything damaged, foreign or newer is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ge.errors import GeError
from ge.model.container import MAGIC, PAGE, VERSION, Section, read_sections, write_sections


def _write(path: Path) -> bytes:
    sections = {
        "a": Section([b"hello", b" world"]),
        "empty": Section([]),
        "w": Section([bytes(range(256))], align=PAGE),
    }
    write_sections(path, sections, lambda content: b"s" * 32)
    return path.read_bytes()


def _code(data: bytes) -> str:
    with pytest.raises(GeError) as caught:
        read_sections(memoryview(data), "file.om")
    return caught.value.code


def test_sections_come_back(tmp_path: Path) -> None:
    contents = read_sections(memoryview(_write(tmp_path / "f.om")), "f.om")
    assert bytes(contents.sections["a"]) == b"hello world"
    assert bytes(contents.sections["empty"]) == b""
    assert bytes(contents.sections["w"]) == bytes(range(256))
    assert contents.seal == b"s" * 32


def test_sections_are_aligned(tmp_path: Path) -> None:
    data = _write(tmp_path / "f.om")
    assert data.index(bytes(range(256))) % PAGE == 0


def test_no_temporary_file_is_left(tmp_path: Path) -> None:
    _write(tmp_path / "f.om")
    assert [p.name for p in tmp_path.iterdir()] == ["f.om"]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 11, 12, 100, 127, 128, 200, 4000, -1])
def test_truncated_is_refused(tmp_path: Path, size: int) -> None:
    data = _write(tmp_path / "f.om")
    assert _code(data[:size]) == "E11003"


def test_every_flipped_byte_that_matters_is_refused(tmp_path: Path) -> None:
    data = _write(tmp_path / "f.om")
    for place in [*range(0, 64, 3), *range(128, 330, 5), len(data) - 1]:
        damaged = bytearray(data)
        damaged[place] ^= 0x41
        assert _code(bytes(damaged)) in {"E11002", "E11003", "E11004", "E11005"}, place


def test_appended_bytes_are_refused(tmp_path: Path) -> None:
    assert _code(_write(tmp_path / "f.om") + b"x") == "E11004"


def test_newer_is_refused_by_its_version_alone() -> None:
    assert _code(MAGIC + (VERSION + 1).to_bytes(4, "little") + b"whatever comes") == "E11005"


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"IMOD" + bytes(300), "Ascend hardware"),
        (b"PK\x03\x04" + bytes(300), "zip"),
        (b"\x08\x07\x12\x07pytorch", "ONNX"),
        (b"garbage", "something else"),
    ],
)
def test_foreign_is_named(head: bytes, words: str) -> None:
    with pytest.raises(GeError, match=words) as caught:
        read_sections(memoryview(head), "file.om")
    assert caught.value.code == "E11002"
