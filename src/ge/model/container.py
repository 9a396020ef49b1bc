"""A file of named, checksummed sections: the container format of `.om`, independent of models.

Layout, little-endian:

    header   128 bytes: magic, version, header bytes, file bytes, section count, entry bytes, SHA-256 of the
             table, seal (a keyed digest of all before it, or zeros), zeros
    table    64 bytes a section: name, offset, bytes, SHA-256
    sections each at its own alignment, zeros between them

Magic and version keep their offsets in every version, so that an older reader can say that a file is newer.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ge.errors import GeError

__all__ = [
    "MAGIC",
    "PAGE",
    "VERSION",
    "Contents",
    "Digest",
    "Section",
    "foreign_kind",
    "read_file",
    "read_sections",
    "write_sections",
]

MAGIC = b"\x89GEOM\r\n\x1a"
VERSION = 2  # 1: tasks did not name their implementation
PAGE = 4096
MAX_SECTIONS = 64
NO_SEAL = bytes(32)

_HEADER = struct.Struct("<8sIIQII32s")
_HEADER_BYTES = 128
_SEAL = slice(_HEADER.size, _HEADER.size + 32)
_ENTRY = struct.Struct("<16sQQ32s")

# Magic bytes of other formats, to name them in the error.
_FOREIGN = (
    (b"IMOD", "an offline model for Ascend hardware"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x7fELF", "an executable or a library"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x08", "perhaps an ONNX model"),
    (b"\x0a", "perhaps a TensorFlow graph"),
    (b"{", "a JSON text"),
)
_RECOMPILE = "compile the original model with atc"


Digest = Callable[[memoryview], bytes]  # 32 bytes


def sha256(data: memoryview) -> bytes:
    """The default digest of a section."""
    return hashlib.sha256(data).digest()


@dataclass
class Section:
    """The content of one section, in pieces that are written in sequence.

    A section with its own digest has one piece.
    """

    pieces: Sequence[bytes | memoryview] = field(default_factory=list)
    align: int = 16
    own_digest: Digest | None = None

    @property
    def nbytes(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.pieces)

    def digest(self) -> bytes:
        """SHA-256 of the content, or the section's own digest."""
        if self.own_digest is not None:
            (piece,) = self.pieces
            return self.own_digest(memoryview(piece))
        hasher = hashlib.sha256()
        for piece in self.pieces:
            hasher.update(piece)
        return hasher.digest()


@dataclass(frozen=True)
class Contents:
    """The contents of a file: its sections (views of its memory) and the data that its seal is a digest of."""

    sections: Mapping[str, memoryview]
    signed: bytes
    seal: bytes


def foreign_kind(head: bytes) -> str:
    """The apparent format of a file that is not one of our `.om` files.

    >>> foreign_kind(b"PK\\x03\\x04rest")
    'a zip archive'
    """
    return next((name for magic, name in _FOREIGN if head.startswith(magic)), "something else")


def write_sections(
    path: Path, sections: Mapping[str, Section], sign: Callable[[bytes], bytes] | None = None
) -> None:
    """Write a file atomically: a reader of the old file keeps the old content."""
    offsets, size = _offsets(sections)
    table = b"".join(
        _ENTRY.pack(name.encode(), offset, section.nbytes, section.digest())
        for (name, section), offset in zip(sections.items(), offsets, strict=True)
    )
    digest = hashlib.sha256(table).digest()
    header = _HEADER.pack(MAGIC, VERSION, _HEADER_BYTES, size, len(sections), _ENTRY.size, digest)
    seal = sign(header) if sign is not None else NO_SEAL
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with open(temporary, "xb") as file:
            file.write((header + seal).ljust(_HEADER_BYTES, b"\0"))
            file.write(table)
            for section, offset in zip(sections.values(), offsets, strict=True):
                file.write(bytes(offset - file.tell()))
                for piece in section.pieces:
                    file.write(piece)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _offsets(sections: Mapping[str, Section]) -> tuple[list[int], int]:
    assert len(sections) <= MAX_SECTIONS, f"{len(sections)} sections, at most {MAX_SECTIONS}"
    offsets = []
    end = _HEADER_BYTES + _ENTRY.size * len(sections)
    for section in sections.values():
        start = -(-end // section.align) * section.align
        offsets.append(start)
        end = start + section.nbytes
    return offsets, end


def read_file(path: str | os.PathLike[str]) -> memoryview:
    """Read a file of sections into our own memory: later changes of the file do not affect the model.

    A mapped file would change under the model when it is written to, and crash the process when it is truncated.
    """
    with open(path, "rb", buffering=0, opener=_open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEADER_BYTES)
        _read_header(head, size, os.fspath(path))  # before the memory is allocated
        memory = memoryview(mmap.mmap(-1, size))
        memory[: len(head)] = head
        end = len(head)
        while end < size and (count := file.readinto(memory[end:])):
            end += count
        if end < size:
            raise _truncated(os.fspath(path), end, size)
        return memory.toreadonly()


def _open_regular(path: str, flags: int) -> int:
    """Open without blocking on a writer if the path is a pipe."""
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not os.path.isfile(handle):
        os.close(handle)
        raise OSError(22, "not a regular file")
    return handle


def read_sections(data: memoryview, name: str, digests: Mapping[str, Digest] | None = None) -> Contents:
    """Check a file's format and checksums and return its sections as views of `data`.

    digests: sections with their own digests.
    """
    own = digests or {}
    header = bytes(data[:_HEADER_BYTES])
    count, digest = _read_header(header, data.nbytes, name)
    table = bytes(data[_HEADER_BYTES : _HEADER_BYTES + count * _ENTRY.size])
    if hashlib.sha256(table).digest() != digest:
        raise _corrupted(name, "its section table does not match its checksum")
    sections: dict[str, memoryview] = {}
    end = _HEADER_BYTES + len(table)
    for raw, offset, size, checksum in _ENTRY.iter_unpack(table):
        label = raw.rstrip(b"\0").decode("ascii", "replace")
        if label in sections or offset < end or size > data.nbytes - offset:
            raise _corrupted(name, f"section '{label}' is out of place")
        end = offset + size
        sections[label] = data[offset:end]
        if own.get(label, sha256)(sections[label]) != checksum:
            raise _corrupted(name, f"section '{label}' does not match its checksum")
    return Contents(sections, header[: _HEADER.size], header[_SEAL])


def _read_header(header: bytes, size: int, name: str) -> tuple[int, bytes]:
    if size == 0:
        raise GeError("E11003", f"{name} is empty", remedy=_RECOMPILE)
    if not header.startswith(MAGIC[: min(size, len(MAGIC))]):
        kind = foreign_kind(header)
        raise GeError("E11002", f"{name} is not an .om file of this engine but {kind}", remedy=_RECOMPILE)
    if len(header) < len(MAGIC) + 4:
        raise _truncated(name, size)
    version = int.from_bytes(header[8:12], "little")
    if version > VERSION:
        raise GeError(
            "E11005",
            f"{name} has format version {version}, this engine reads up to {VERSION}",
            remedy="update this package, or compile the model again with this version",
        )
    if len(header) < _HEADER_BYTES:
        raise _truncated(name, size)
    _, version, header_bytes, expected, count, entry_bytes, digest = _HEADER.unpack(header[: _HEADER.size])
    if version < 1 or header_bytes != _HEADER_BYTES or entry_bytes != _ENTRY.size or count > MAX_SECTIONS:
        raise _corrupted(name, "its header is malformed")
    if size < expected:
        raise _truncated(name, size, expected)
    if size > expected or expected < _HEADER_BYTES + count * _ENTRY.size:
        raise _corrupted(name, f"it has {size} bytes where its header says {expected}")
    return count, digest


def _truncated(name: str, size: int, expected: int = 0) -> GeError:
    of = f" of {expected}" if expected else ""
    return GeError(
        "E11003", f"{name} is truncated: {size} bytes{of}", remedy="copy it again, or " + _RECOMPILE
    )


def _corrupted(name: str, cause: str) -> GeError:
    return GeError("E11004", f"{name} is corrupted: {cause}", remedy="copy it again, or " + _RECOMPILE)
