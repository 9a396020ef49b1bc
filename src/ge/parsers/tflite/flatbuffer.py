"""A TensorFlow Lite file as plain Python values: one schema table, every offset checked against the file.

A flatbuffer's table is a list of optional fields; which number a field has and what it holds is in `_SCHEMA`. Fields
that are not declared here are not looked at.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from ge.errors import GeError

__all__ = ["IDENTIFIER", "TABLES", "Table", "flexible_map", "flexible_strings", "root"]

IDENTIFIER = b"TFL3"  # bytes 4 to 8 of every file

_SCALARS = {
    "bool": "?",
    "byte": "b",
    "ubyte": "B",
    "int": "i",
    "uint": "I",
    "long": "q",
    "ulong": "Q",
    "float": "f",
}
_VECTORS = {"byte": "i1", "ubyte": "u1", "int": "<i4", "uint": "<u4", "long": "<i8", "float": "<f4"}

# "number name type[=default]"; a type is a scalar, `string`, a table of this schema, or one of those with a `*` for a
# vector. `union` is a table whose schema the field before names.
_SCHEMA: dict[str, tuple[str, ...]] = {
    "Model": (
        "0 version uint",
        "1 operator_codes OperatorCode*",
        "2 subgraphs SubGraph*",
        "4 buffers Buffer*",
        "7 signature_defs SignatureDef*",
    ),
    "OperatorCode": ("0 old_code byte", "1 custom_code string", "2 version int=1", "3 builtin_code int"),
    "SubGraph": (
        "0 tensors Tensor*",
        "1 inputs int*",
        "2 outputs int*",
        "3 operators Operator*",
        "4 name string",
    ),
    "Tensor": (
        "0 shape int*",
        "1 type byte",
        "2 buffer uint",
        "3 name string",
        "4 quantization Quantization",
        "5 is_variable bool",
        "6 sparsity Sparsity",
        "7 shape_signature int*",
    ),
    "Sparsity": (),
    "Buffer": ("0 data ubyte*", "1 offset ulong", "2 size ulong"),
    "Quantization": ("2 scale float*", "3 zero_point long*", "6 axis int"),
    "Operator": (
        "0 opcode uint",
        "1 inputs int*",
        "2 outputs int*",
        "4 options union",
        "5 custom_options ubyte*",
    ),
    "SignatureDef": ("0 inputs TensorMap*", "1 outputs TensorMap*", "2 key string", "4 subgraph uint"),
    "TensorMap": ("0 name string", "1 tensor uint"),
    # options of operators
    "Conv2D": (
        "0 padding byte",
        "1 stride_w int",
        "2 stride_h int",
        "3 activation byte",
        "4 dilation_w int=1",
        "5 dilation_h int=1",
    ),
    "Conv3D": (
        "0 padding byte",
        "1 stride_d int",
        "2 stride_w int",
        "3 stride_h int",
        "4 activation byte",
        "5 dilation_d int=1",
        "6 dilation_w int=1",
        "7 dilation_h int=1",
    ),
    "DepthwiseConv2D": (
        "0 padding byte",
        "1 stride_w int",
        "2 stride_h int",
        "3 multiplier int",
        "4 activation byte",
        "5 dilation_w int=1",
        "6 dilation_h int=1",
    ),
    "Pool2D": (
        "0 padding byte",
        "1 stride_w int",
        "2 stride_h int",
        "3 width int",
        "4 height int",
        "5 activation byte",
    ),
    "FullyConnected": ("0 activation byte", "1 weights_format byte", "2 keep_num_dims bool"),
    "TransposeConv": ("0 padding byte", "1 stride_w int", "2 stride_h int", "3 activation byte"),
    "Activation": ("0 activation byte",),
    "Softmax": ("0 beta float",),
    "Concatenation": ("0 axis int", "1 activation byte"),
    "LocalResponse": ("0 radius int", "1 bias float", "2 alpha float", "3 beta float"),
    "SequenceLSTM": (
        "0 activation byte",
        "1 cell_clip float",
        "2 proj_clip float",
        "3 time_major bool",
        "5 diagonal bool",
    ),
    "BidirectionalLSTM": (
        "0 activation byte",
        "1 cell_clip float",
        "2 proj_clip float",
        "3 merge_outputs bool",
        "4 time_major bool=1",
    ),
    "ResizeBilinear": ("2 align_corners bool", "3 half_pixel_centers bool"),
    "ResizeNearest": ("0 align_corners bool", "1 half_pixel_centers bool"),
    "Reshape": ("0 new_shape int*",),
    "Block": ("0 block_size int",),
    "Gather": ("0 axis int", "1 batch_dims int"),
    "Reducer": ("0 keep_dims bool",),
    "Squeeze": ("0 squeeze_dims int*",),
    "Split": ("0 num int",),
    "StridedSlice": (
        "0 begin_mask int",
        "1 end_mask int",
        "2 ellipsis_mask int",
        "3 new_axis_mask int",
        "4 shrink_axis_mask int",
        "5 offset bool",
    ),
    "Type": ("0 type byte",),
    "Unique": ("0 type byte=2",),  # int32
    "FakeQuant": ("0 min float", "1 max float", "2 num_bits int", "3 narrow_range bool"),
    "Pack": ("0 num int", "1 axis int"),
    "Axis": ("0 axis int",),
    "Leaky": ("0 alpha float",),
    "Mirror": ("0 mode byte",),
    "ReverseSequence": ("0 seq_dim int", "1 batch_dim int"),
    "Branches": ("0 first int", "1 second int"),
    "BatchMatMul": ("0 adj_x bool", "1 adj_y bool"),
    "Cumsum": ("0 exclusive bool", "1 reverse bool"),
    "Bucketize": ("0 boundaries float*",),
    "Gelu": ("0 approximate bool",),
    "None": (),
}


def _fields(rows: tuple[str, ...]) -> dict[str, tuple[int, str, Any]]:
    found = {}
    for row in rows:
        number, name, kind = row.split()
        kind, _, default = kind.partition("=")
        found[name] = (int(number), kind, int(default) if default else None)
    return found


TABLES = {name: _fields(rows) for name, rows in _SCHEMA.items()}


def root(data: bytes, where: str) -> Table:
    """The model that a file holds."""
    if data[4:8] != IDENTIFIER:
        raise GeError(
            "E10101", "the file is not a TensorFlow Lite model", location=where, remedy="export it again"
        )
    return Table(data, _at("<I", data, 0), "Model", where)


def _at(form: str, data: bytes, place: int) -> Any:
    if place < 0:
        raise struct.error("an offset before the file")
    return struct.unpack_from(form, data, place)[0]


class Table:
    """One table; its fields are attributes, those that the file leaves out have their defaults.

    Reading outside of the file raises GeError.
    """

    def __init__(self, data: bytes, place: int, kind: str, where: str) -> None:
        self._data, self._place, self._kind, self._where = data, place, kind, where

    def __getattr__(self, name: str) -> Any:
        number, kind, default = TABLES[self._kind][name]
        try:
            value = self._read(number, kind, default)
        except (struct.error, ValueError, UnicodeDecodeError) as error:
            cause = f"the file is damaged: {name} of {self._kind} cannot be read"
            raise GeError("E10101", cause, location=self._where, remedy="export the model again") from error
        setattr(self, name, value)
        return value

    def __contains__(self, name: str) -> bool:
        return bool(self._offset(TABLES[self._kind][name][0]))

    def options(self, kind: str) -> Table:
        """The union of options as the table that the operator's type says it is; empty where there is none."""
        place = self._offset(TABLES["Operator"]["options"][0])
        if not place:
            return Table(b"\0\0\0\0\4\0\0\0\4\0\4\0", 4, kind, self._where)  # a table without fields
        return Table(self._data, self._target(self._place + place), kind, self._where)

    def outside(self, offset: int, size: int) -> np.ndarray:
        """Bytes of the file that follow the flatbuffer."""
        if offset + size > len(self._data):
            raise GeError("E10101", "the file ends before its weights do", location=self._where)
        return np.frombuffer(self._data, np.uint8, size, offset)

    def _offset(self, number: int) -> int:
        """Where a field is, from the start of the table; 0 when it is left out."""
        entries = self._place - _at("<i", self._data, self._place)
        size = _at("<H", self._data, entries)
        return int(_at("<H", self._data, entries + 4 + 2 * number)) if 6 + 2 * number <= size else 0

    def _target(self, place: int) -> int:
        return int(place + _at("<I", self._data, place))

    def _read(self, number: int, kind: str, default: Any) -> Any:
        offset = self._offset(number)
        place = self._place + offset
        if kind in _SCALARS:
            plain = {"bool": bool(default), "float": float(default or 0)}.get(kind, default or 0)
            return _at("<" + _SCALARS[kind], self._data, place) if offset else plain
        if not offset:
            return [] if kind.endswith("*") else ("" if kind == "string" else None)
        start = self._target(place)
        if kind == "string":
            return bytes(self._vector(start, "u1")).decode()
        if not kind.endswith("*"):
            return Table(self._data, start, kind, self._where)
        if kind[:-1] in _VECTORS:
            return self._vector(start, _VECTORS[kind[:-1]])
        return [
            Table(self._data, self._target(start + 4 + 4 * i), kind[:-1], self._where)
            for i in range(len(self._vector(start, "<u4")))
        ]

    def _vector(self, start: int, form: str) -> np.ndarray:
        return np.frombuffer(self._data, form, _at("<I", self._data, start), start + 4)


class _Flexible:
    """A flexbuffer, the form of custom operators' options: a vector at `start` whose numbers have `width` bytes."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where = data, where
        self.width = 1 << (self.number(len(data) - 2, 1) & 3)
        root_width = self.number(len(data) - 1, 1)
        at = len(data) - 2 - root_width
        self.start = at - self.number(at, root_width)
        self.count = self.number(self.start - self.width, self.width)

    def bytes_at(self, place: int, width: int) -> bytes:
        if not 0 <= place <= len(self.data) - width:
            raise GeError(
                "E10101",
                "the file is damaged: the options of a custom operator end early",
                location=self.where,
            )
        return self.data[place : place + width]

    def number(self, place: int, width: int) -> int:
        return int.from_bytes(self.bytes_at(place, width), "little")

    def kind(self, index: int) -> tuple[int, int]:
        """The type of an element, and the width of what it refers to."""
        packed = self.number(self.start + self.count * self.width + index, 1)
        return packed >> 2, 1 << (packed & 3)


def flexible_strings(data: bytes, where: str) -> list[bytes]:
    """The strings of a flexbuffer that is a vector of strings."""
    vector = _Flexible(data, where)
    found = []
    for i in range(vector.count):
        place = vector.start + i * vector.width
        place -= vector.number(place, vector.width)
        _, size = vector.kind(i)
        found.append(vector.bytes_at(place, vector.number(place - size, size)))
    return found


# Types of numbers; those of 6 to 8 are elsewhere in the buffer.
_FLEXIBLE_NUMBERS = {1: "i", 2: "u", 3: "f", 6: "i", 7: "u", 8: "f", 26: "u"}


def flexible_map(data: bytes, where: str) -> dict[str, float]:
    """The numbers of a flexbuffer that is a map, by their names."""
    values = _Flexible(data, where)
    at = values.start - 3 * values.width
    keys, width = at - values.number(at, values.width), values.number(at + values.width, values.width)
    found = {}
    for i in range(values.count):
        key = keys + i * width
        key -= values.number(key, width)
        name = data[key : data.find(b"\0", key)].decode("ascii", "replace")
        kind, size = values.kind(i)
        place = values.start + i * values.width
        if kind not in _FLEXIBLE_NUMBERS:
            continue
        if kind in (6, 7, 8):
            place -= values.number(place, values.width)
        else:
            size = values.width
        form, number = _FLEXIBLE_NUMBERS[kind], values.bytes_at(place, size)
        if form == "f" and size > 1:
            found[name] = struct.unpack({2: "<e", 4: "<f"}.get(size, "<d"), number)[0]
        else:
            found[name] = int.from_bytes(number, "little", signed=form == "i")
    return found
