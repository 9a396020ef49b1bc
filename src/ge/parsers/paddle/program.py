"""PaddlePaddle's programs: `model.json` (PIR, the form since version 3) and the values of `model.pdiparams`."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ge.errors import GeError
from ge.ir.types import numpy_dtype

__all__ = ["STORED", "Block", "Operation", "Port", "Program", "is_program", "read", "read_parameters"]

MAX_DEPTH = 32
_DIALECTS = {"0": "builtin", "1": "pd_op", "2": "cf"}
_DTYPES = {
    "t_f32": "float32",
    "t_f64": "float64",
    "t_f16": "float16",
    "t_bf16": "bfloat16",
    "t_bool": "bool",
    "t_i8": "int8",
    "t_i16": "int16",
    "t_i32": "int32",
    "t_i64": "int64",
    "t_ui8": "uint8",
}
_ATTRIBUTE_DTYPES = {"int": "int32", "uint": "uint32"}
# Element types in files of parameters, by their numbers.
STORED = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
    22: "bfloat16",
}


@dataclass(frozen=True)
class Port:
    """A value of a program: its number, and shape and element type where it is a tensor (-1 is an open size)."""

    number: int
    shape: tuple[int, ...] = ()
    dtype: str = ""


@dataclass(frozen=True)
class Operation:
    """One operation; operands and results are numbers of values, 0 for one that is absent."""

    type: str
    attrs: Mapping[str, Any]
    operands: Sequence[int]
    results: Sequence[Port]
    blocks: Sequence[Block] = ()


@dataclass(frozen=True)
class Block:
    """A straight list of operations with arguments."""

    arguments: Sequence[Port]
    operations: Sequence[Operation]

    def walk(self) -> Iterator[Operation]:
        """All operations, those of nested blocks included."""
        for operation in self.operations:
            yield operation
            for block in operation.blocks:
                yield from block.walk()


@dataclass(frozen=True)
class Program:
    """A program with the values of its parameters (empty where the caller feeds them).

    `arguments` are the named arguments of its block: what a backward program reads of the forward one.
    """

    name: str
    block: Block
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)
    arguments: Mapping[str, Port] = field(default_factory=dict)


def is_program(path: Path) -> bool:
    """Whether a file begins like a program of PaddlePaddle."""
    try:
        with open(path, "rb") as file:
            return b'"magic":"pir"' in file.read(200).replace(b" ", b"")
    except OSError:
        return False


def read(text: str, name: str = "program") -> Program:
    """A program from its JSON text."""
    try:
        content = json.loads(text)
        if content["base_code"]["magic"] != "pir":
            raise KeyError("magic")
        (region,) = content["program"]["regions"]
        return Program(name, _block(region["blocks"][0], 0))
    except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
        raise GeError(
            "E10022",
            f"{name} is not a program of PaddlePaddle 3 ({type(error).__name__}: {str(error)[:200]})",
            remedy="save the model with paddle.jit.save of PaddlePaddle 3 (a .json file)",
        ) from error


def _block(content: Mapping[str, Any], depth: int) -> Block:
    if depth > MAX_DEPTH:
        raise ValueError("its blocks nest too deeply")
    arguments = [_port(a["#"], a["TT"]) for a in content["args"]]
    return Block(arguments, [_operation(o, depth) for o in content["ops"]])


def _operation(content: Mapping[str, Any], depth: int) -> Operation:
    given = content["O"] if isinstance(content["O"], list) else [content["O"]]
    results = [_port(o["%"], o.get("TT")) for o in given]
    if content["#"] == "p":
        attrs = {"name": str(content["A"][3]), "stored": bool(content.get("OA", [1])[0])}
        return Operation("builtin.parameter", attrs, (), results)
    dialect, _, name = str(content["#"]).partition(".")
    attrs = {a["N"]: _attribute(a["AT"]) for a in content["A"]}
    blocks = [_block(b, depth + 1) for region in content.get("regions", ()) for b in region["blocks"]]
    operands = [int(i["%"]) for i in content.get("I", ())]
    return Operation(f"{_DIALECTS.get(dialect, dialect)}.{name}", attrs, operands, results, blocks)


def _port(number: Any, type_: Mapping[str, Any] | None) -> Port:
    if not type_ or type_["#"] != "0.t_dtensor":
        return Port(int(number))
    element, shape = type_["D"][0]["#"], type_["D"][1]
    _, _, code = str(element).partition(".")
    return Port(int(number), tuple(int(d) for d in shape), _DTYPES.get(code, code.removeprefix("t_")))


def _attribute(content: Mapping[str, Any]) -> Any:
    """An attribute as a Python value; element types by our names."""
    value, kind = content.get("D"), str(content["#"])
    if kind == "0.a_array":
        return [_attribute(item) for item in value or ()]
    if kind == "1.a_dtype":
        return _ATTRIBUTE_DTYPES.get(str(value), str(value))
    if kind in ("1.a_scalar", "1.a_intarray") and isinstance(value, dict):
        return _attribute(value)
    if isinstance(value, str) and kind in ("0.a_f32", "0.a_f64"):
        return float(value)  # "inf", "nan"
    return value


def read_parameters(content: bytes, names: Sequence[str], label: str) -> dict[str, np.ndarray]:
    """The arrays of a file of parameters, which is in the order of the sorted names."""
    reader = _Reader(content)
    try:
        found = {name: reader.tensor() for name in sorted(names)}
    except (struct.error, KeyError, ValueError, IndexError) as error:
        raise GeError(
            "E10022",
            f"{label} is malformed: {error}",
            remedy="save the model again; both files belong together",
        ) from error
    if reader.place != len(content):
        raise GeError(
            "E10022",
            f"{label} holds more than the {len(names)} parameters of the program",
            remedy="keep the two files of one paddle.jit.save together",
        )
    return found


class _Reader:
    """Reads one tensor after another: a version, levels of detail, a description, the elements."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def take(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self.content, self.place)
        self.place += struct.calcsize("<" + form)
        return value

    def tensor(self) -> np.ndarray:
        self.take("I")
        for _ in range(self.take("Q")):
            self.place += self.take("Q")
        self.take("I")
        size = self.take("i")
        dtype, shape = _description(self.content[self.place : self.place + size])
        self.place += size
        count = math.prod(shape)
        array = np.frombuffer(self.content, numpy_dtype(dtype), count, self.place).reshape(shape)
        self.place += array.nbytes
        return array


def _description(content: bytes) -> tuple[str, list[int]]:
    """Element type and shape of a tensor: fields 1 and 2 of a protocol buffer."""
    place, code, shape = 0, -1, []
    while place < len(content):
        tag, place = _varint(content, place)
        value, place = _varint(content, place)
        if tag == 0x08:
            code = value
        elif tag == 0x10:
            shape.append(value)
        elif tag == 0x12:  # packed
            end = place + value
            while place < end:
                item, place = _varint(content, place)
                shape.append(item)
    if code not in STORED:
        raise ValueError(f"element type {code} is unknown")
    return STORED[code], shape


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, place
