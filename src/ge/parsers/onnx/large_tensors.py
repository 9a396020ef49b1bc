"""Reads an ONNX file whose large tensors do not pass through protobuf.

Protobuf copies a tensor when it parses the file and again when the tensor is read. This module walks the fields of the
file (model, graph, initializers), reads the raw data of large initializers into arrays, and returns the rest of the
file for protobuf. An initializer without its data names the number of its array among its external data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import onnx

__all__ = ["data_of", "read", "restored", "with_data"]

_KEY = "array"
LARGE = 1 << 16  # bytes; from here on two copies cost more than the scan
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto
_PLAIN = {1, 2, 8, _RAW_DATA, 12, 16}  # dims, data_type, name, raw_data, doc_string, metadata_props
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST = 10  # maximum bytes of a varint
_WINDOW = 4096


class _Malformed(Exception):
    """The file has an unexpected form; protobuf reports the error."""


@dataclass(frozen=True)
class _Field:
    number: int
    kind: int
    tag: int  # start of the field, of its contents, and end
    begin: int
    end: int


class _File:
    """Random access to the bytes of a file; buffers small reads."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        self._start, self._window = 0, b""

    def bytes(self, begin: int, end: int) -> bytes:
        return os.pread(self.file.fileno(), end - begin, begin)

    def array(self, begin: int, end: int) -> np.ndarray:
        self.file.seek(begin)
        found = np.fromfile(self.file, np.uint8, end - begin)
        if found.size != end - begin:
            raise _Malformed
        found.flags.writeable = False
        return found

    def number(self, at: int, end: int) -> tuple[int, int]:
        """Read a varint; returns its value and end."""
        if not self._start <= at <= at + _LONGEST <= self._start + len(self._window):
            self._start, self._window = at, self.bytes(at, at + _WINDOW)
        value = 0
        for i, byte in enumerate(self._window[at - self._start : at - self._start + min(_LONGEST, end - at)]):
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value, at + i + 1
        raise _Malformed

    def fields(self, at: int, end: int) -> Iterator[_Field]:
        while at < end:
            tag = at
            key, at = self.number(at, end)
            kind = key & 7
            begin = at
            if kind == _VARINT:
                _, at = self.number(at, end)
            elif kind == _LENGTH:
                length, begin = self.number(at, end)
                at = begin + length
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                raise _Malformed
            if at > end:
                raise _Malformed
            yield _Field(key >> 3, kind, tag, begin, at)


def read(file: BinaryIO) -> tuple[bytes, list[np.ndarray]]:
    """Read a file: the model without the data of large initializers, and that data."""
    source = _File(file)
    try:
        return _read(source)
    except _Malformed:
        return source.bytes(0, source.size), []


def data_of(tensor: onnx.TensorProto, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """The array that an initializer refers to; None if it does not refer to one."""
    entries = tensor.external_data
    if len(entries) != 1 or entries[0].key != _KEY or not entries[0].value.isdecimal():
        return None
    number = int(entries[0].value)
    return arrays[number] if number < len(arrays) else None


def restored(tensor: onnx.TensorProto, arrays: Sequence[np.ndarray]) -> onnx.TensorProto:
    """An initializer with its data, for other readers of ONNX."""
    data = data_of(tensor, arrays)
    return tensor if data is None else with_data(tensor, data)


def with_data(tensor: onnx.TensorProto, data: np.ndarray) -> onnx.TensorProto:
    """A tensor with external data replaced by these bytes."""
    whole = onnx.TensorProto()
    whole.CopyFrom(tensor)
    whole.ClearField("external_data")
    whole.ClearField("data_location")
    whole.raw_data = data.tobytes()
    return whole


def _read(source: _File) -> tuple[bytes, list[np.ndarray]]:
    graphs = [f for f in source.fields(0, source.size) if f.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].kind != _LENGTH:
        raise _Malformed
    (graph,) = graphs
    pieces: list[bytes] = []
    arrays: list[np.ndarray] = []
    kept = graph.begin  # everything before is in `pieces`
    for field in source.fields(graph.begin, graph.end):
        if field.number != _INITIALIZER or field.kind != _LENGTH or field.end - field.begin < LARGE:
            continue
        tensor = _without_data(source, field, arrays)
        if tensor is not None:
            pieces += [source.bytes(kept, field.tag), _message(_INITIALIZER, tensor.SerializeToString())]
            kept = field.end
    if not arrays:
        raise _Malformed
    body = b"".join([*pieces, source.bytes(kept, graph.end)])
    whole = source.bytes(0, graph.tag), _message(_GRAPH, body), source.bytes(graph.end, source.size)
    return b"".join(whole), arrays


def _without_data(source: _File, field: _Field, arrays: list[np.ndarray]) -> onnx.TensorProto | None:
    """Replace the data of an initializer by a reference and append it to the arrays; None if it has another form."""
    parts = list(source.fields(field.begin, field.end))
    data = [p for p in parts if p.number == _RAW_DATA]
    if len(data) != 1 or data[0].kind != _LENGTH or not {p.number for p in parts} <= _PLAIN:
        return None
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(b"".join(source.bytes(p.tag, p.end) for p in parts if p.number != _RAW_DATA))
    except Exception as error:
        raise _Malformed from error
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key=_KEY, value=str(len(arrays)))
    arrays.append(source.array(data[0].begin, data[0].end))
    return tensor


def _message(number: int, body: bytes) -> bytes:
    return _number(number << 3 | _LENGTH) + _number(len(body)) + body


def _number(value: int) -> bytes:
    """
    >>> _number(300).hex()
    'ac02'
    """
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
