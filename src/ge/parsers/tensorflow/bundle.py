"""TensorFlow checkpoints (TensorBundle): a sorted table of entries (.index), shards of raw data (.data-*)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ge.errors import GeError
from ge.parsers.tensorflow.crc import crc32c, mask
from ge.parsers.tensorflow.protos import decode, decode_text
from ge.parsers.tensorflow.tensor import MAX_RANK, checked_size, element_type, shape_of, storage_dtype

__all__ = ["Checkpoint", "checkpoint_prefix"]

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5  # compression type, masked checksum
_INDEX_LIMIT = 256 << 20
_STATE_LIMIT = 1 << 20
_MAX_SHARDS = 1 << 16


class _Reader:
    """A cursor over bytes whose every step is checked."""

    def __init__(self, data: bytes | memoryview, where: str) -> None:
        self.data = data
        self.where = where
        self.at = 0

    def varint(self) -> int:
        """The next variable-length integer (at most 64 bits)."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value & 0xFFFFFFFFFFFFFFFF
        raise self.malformed("an integer runs over 64 bits")

    def take(self, count: int) -> bytes | memoryview:
        """The next `count` bytes."""
        if count < 0 or self.at + count > len(self.data):
            raise self.malformed(
                f"{count} bytes are expected at offset {self.at}, {len(self.data)} are there"
            )
        self.at += count
        return self.data[self.at - count : self.at]

    def malformed(self, cause: str) -> GeError:
        return _malformed(self.where, cause)


def _malformed(where: str, cause: str) -> GeError:
    return GeError(
        "E10103", f"the checkpoint is damaged: {cause}", location=where, remedy="copy or save it again"
    )


def _block(data: bytes, offset: int, size: int, where: str) -> memoryview:
    """A block of the table, its trailer checked."""
    end = offset + size
    if end + _TRAILER_BYTES > len(data):
        raise _malformed(where, f"a block of {size} bytes at offset {offset} leaves the file")
    kind = data[end]
    (stored,) = struct.unpack_from("<I", data, end + 1)
    if mask(crc32c(data[offset : end + 1])) != stored:
        raise _malformed(where, f"the checksum of the block at offset {offset} does not match")
    if kind != 0:
        raise GeError(
            "E10103",
            "the checkpoint's index is compressed (snappy), which is not read",
            location=where,
            remedy="save the checkpoint again with TensorFlow 1.3 or later",
        )
    return memoryview(data)[offset:end]


def _entries(block: memoryview, where: str) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; keys share prefixes with their predecessors."""
    if len(block) < 4:
        raise _malformed(where, "a block is empty")
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    limit = len(block) - 4 * (restarts + 1)
    if limit < 0:
        raise _malformed(where, f"a block claims {restarts} restart points")
    reader = _Reader(block[:limit], where)
    key = b""
    while reader.at < limit:
        shared, rest, size = reader.varint(), reader.varint(), reader.varint()
        if shared > len(key):
            raise reader.malformed(f"a key shares {shared} bytes with one of {len(key)}")
        key = key[:shared] + bytes(reader.take(rest))
        yield key, bytes(reader.take(size))


def _handle(reader: _Reader) -> tuple[int, int]:
    return reader.varint(), reader.varint()


def _table(data: bytes, where: str) -> dict[bytes, bytes]:
    """All entries of a LevelDB-style table."""
    if len(data) < _FOOTER_BYTES or struct.unpack_from("<Q", data, len(data) - 8)[0] != _MAGIC:
        raise _malformed(where, "the index has no table footer")
    footer = _Reader(data[len(data) - _FOOTER_BYTES :], where)
    _handle(footer)  # the meta index is empty
    result: dict[bytes, bytes] = {}
    end = 0
    for _, value in _entries(_block(data, *_handle(footer), where), where):
        offset, size = _handle(_Reader(value, where))
        if offset < end:
            raise _malformed(where, "blocks of the table overlap")
        end = offset + size
        result.update(_entries(_block(data, offset, size, where), where))
    return result


@dataclass(frozen=True)
class Entry:
    """The location of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    slices: tuple[Any, ...] = ()


class Checkpoint:
    """A checkpoint's tensors by name, read on demand and checked against their checksums."""

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = Path(prefix)
        index = self.prefix.with_name(self.prefix.name + ".index")
        self.where = str(index)
        self._raw = _table(_read_limited(index, _INDEX_LIMIT), self.where)
        header = decode("BundleHeaderProto", self._raw.pop(b"", b""), self.where)
        if header.endianness != 0:
            raise GeError("E10103", "the checkpoint is big-endian, which is not read", location=self.where)
        if not 0 < header.num_shards <= _MAX_SHARDS:
            raise _malformed(self.where, f"it claims {header.num_shards} shards")
        self.shards = int(header.num_shards)

    def __contains__(self, name: str) -> bool:
        return name.encode() in self._raw

    def names(self) -> list[str]:
        """The names of all tensors (parts of partitioned ones are not listed)."""
        return [key.decode("utf-8", "replace") for key in self._raw if not key.startswith(b"\x00")]

    def entry(self, name: str) -> Entry:
        """The location of a tensor, its fields checked."""
        raw = self._raw.get(name.encode())
        if raw is None:
            near = ", ".join(sorted(self.names())[:8])
            raise GeError(
                "E10104",
                f"the checkpoint has no tensor '{name}'",
                location=self.where,
                remedy=f"it has {near}, …",
            )
        return self._entry(raw, name)

    def read(self, name: str) -> np.ndarray:
        """A tensor's value."""
        entry = self.entry(name)
        return self._assembled(name, entry) if entry.slices else self._stored(entry, name)

    def _entry(self, raw: bytes, name: str) -> Entry:
        proto = decode("BundleEntryProto", raw, f"{self.where}:{name}")
        shape = shape_of(proto.shape)
        if shape is None or any(d < 0 for d in shape):
            raise _malformed(self.where, f"tensor '{name}' has no complete shape")
        if not 0 <= proto.shard_id < self.shards or proto.offset < 0 or proto.size < 0:
            raise _malformed(self.where, f"tensor '{name}' is outside the shards")
        return Entry(
            element_type(proto.dtype),
            shape,
            proto.shard_id,
            proto.offset,
            proto.size,
            proto.crc32c,
            tuple(proto.slices),
        )

    def _stored(self, entry: Entry, name: str) -> np.ndarray:
        where = f"{self.where}:{name}"
        dtype = storage_dtype(entry.dtype)
        count = checked_size(entry.shape, dtype, where)
        data = self._bytes(entry, where)
        if entry.dtype == "string":
            return _strings(data, count, entry, where)
        if len(data) != count * dtype.itemsize:
            raise _malformed(where, f"{len(data)} bytes are stored for {entry.dtype}{list(entry.shape)}")
        if mask(crc32c(data)) != entry.checksum:
            raise _malformed(where, "the tensor's checksum does not match")
        return np.frombuffer(data, dtype).reshape(entry.shape)

    def _bytes(self, entry: Entry, where: str) -> bytes:
        shard = self.prefix.with_name(f"{self.prefix.name}.data-{entry.shard:05d}-of-{self.shards:05d}")
        try:
            if entry.offset + entry.size > shard.stat().st_size:
                raise _malformed(where, f"the tensor leaves the file {shard.name}")
            with shard.open("rb") as file:
                file.seek(entry.offset)
                data = file.read(entry.size)
        except OSError as error:
            raise GeError(
                "E10104", f"the shard {shard.name} cannot be read ({error})", location=where
            ) from error
        if len(data) != entry.size:
            raise _malformed(where, f"the file {shard.name} is shorter than the index says")
        return data

    def _assembled(self, name: str, entry: Entry) -> np.ndarray:
        """A partitioned tensor put together from its slices."""
        dtype = storage_dtype(entry.dtype)
        checked_size(entry.shape, dtype, self.where)
        result = np.zeros(entry.shape, dtype)
        filled = 0
        for piece in entry.slices:
            extents = [(e.start, e.length if e.WhichOneof("has_length") else -1) for e in piece.extent]
            region = _region(extents, entry.shape, f"{self.where}:{name}")
            raw = self._raw.get(_slice_key(name, extents))
            if raw is None:
                raise _malformed(self.where, f"a slice of the partitioned tensor '{name}' is missing")
            part = self._entry(raw, name)
            if part.slices or part.dtype != entry.dtype or part.shape != result[region].shape:
                raise _malformed(self.where, f"a slice of the partitioned tensor '{name}' does not fit")
            result[region] = self._stored(part, name)
            filled += result[region].size
        if filled != result.size:
            raise _malformed(self.where, f"the slices of the partitioned tensor '{name}' do not cover it")
        return result


def _region(extents: list[tuple[int, int]], shape: tuple[int, ...], where: str) -> tuple[slice, ...]:
    if len(extents) != len(shape) or len(shape) > MAX_RANK:
        raise _malformed(where, "a slice has another rank than its tensor")
    result = []
    for (start, length), size in zip(extents, shape, strict=True):
        stop = size if length < 0 else start + length
        if start < 0 or not start <= stop <= size or (length < 0 and start):
            raise _malformed(where, "a slice leaves its tensor")
        result.append(slice(start, stop))
    return tuple(result)


def _slice_key(name: str, extents: list[tuple[int, int]]) -> bytes:
    """The table's key of one slice of a partitioned tensor."""
    parts = [_ordered_number(0), _ordered_string(name.encode()), _ordered_number(len(extents))]
    for start, length in extents:
        parts += [_ordered_signed(start), _ordered_signed(length)]
    return b"".join(parts)


def _ordered_number(value: int) -> bytes:
    """An unsigned integer in the table's order-preserving code: its length, then its bytes."""
    digits = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(digits)]) + digits


def _ordered_string(data: bytes) -> bytes:
    """A string in the table's order-preserving code (names are UTF-8, so no byte 255 needs an escape)."""
    return data.replace(b"\x00", b"\x00\xff") + b"\x00\x01"


def _ordered_signed(value: int) -> bytes:
    """A signed integer (up to 55 bits) in that code: as many leading ones as bytes, then the digits."""
    magnitude = ~value if value < 0 else value
    length = 1
    while magnitude >> (7 * length - 1):
        length += 1
    header = ((1 << length) - 1) << (7 * length)
    code = (magnitude | header).to_bytes(length, "big")
    return bytes(b ^ 255 for b in code) if value < 0 else code


def _strings(data: bytes, count: int, entry: Entry, where: str) -> np.ndarray:
    """The strings of a string tensor: their lengths, a checksum of those, then the bytes."""
    if count > len(data):
        raise _malformed(where, f"{len(data)} bytes are stored for {count} strings")
    reader = _Reader(data, where)
    lengths = [reader.varint() for _ in range(count)]
    packed = b"".join(struct.pack("<I" if n <= 0xFFFFFFFF else "<Q", n) for n in lengths)
    stored = bytes(reader.take(4))
    if mask(crc32c(packed)) != struct.unpack("<I", stored)[0]:
        raise _malformed(where, "the checksum of the string lengths does not match")
    if mask(crc32c(packed + stored + data[reader.at :])) != entry.checksum:
        raise _malformed(where, "the tensor's checksum does not match")
    result = np.empty(count, object)
    for index, length in enumerate(lengths):
        result[index] = bytes(reader.take(length))
    return result.reshape(entry.shape)


def _read_limited(path: Path, limit: int) -> bytes:
    try:
        if path.stat().st_size > limit:
            raise GeError("E10103", f"{path.name} has more than {limit >> 20} MiB", location=str(path))
        return path.read_bytes()
    except OSError as error:
        raise GeError(
            "E10104", f"the file cannot be read ({error.strerror or error})", location=str(path)
        ) from error


def checkpoint_prefix(path: str | Path) -> Path:
    """The prefix of a checkpoint given as such, as an .index file, or as a folder with a state file."""
    path = Path(path)
    if path.name.endswith(".index"):
        return path.with_name(path.name.removesuffix(".index"))
    if not path.is_dir():
        return path
    state_file = path / "checkpoint"
    text = _read_limited(state_file, _STATE_LIMIT).decode("utf-8", "replace")
    named = Path(decode_text("CheckpointState", text, str(state_file)).model_checkpoint_path)
    inside = path / named
    if not inside.resolve().is_relative_to(path.resolve()):
        moved = path / named.name  # the folder was moved since: the state file keeps the old absolute path
        if not named.is_absolute() or not moved.with_name(moved.name + ".index").is_file():
            raise GeError(
                "E10103",
                f"the checkpoint '{named}' is outside its folder",
                location=str(state_file),
                remedy="give the checkpoint's own prefix",
            )
        return moved
    return inside
