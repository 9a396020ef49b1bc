"""Values of a MINDIR graph during conversion, including the file's constants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.types import TENSORS, TensorDesc, numpy_dtype
from ge.ops.plugins import Unsupported
from ge.parsers.mindir.protos import ATTRIBUTE_KINDS, DTYPE_NAMES, TYPE_IDS, malformed

__all__ = [
    "RANDOM",
    "Array",
    "Binding",
    "Closure",
    "Form",
    "Monad",
    "Parameter",
    "Switched",
    "array_of",
    "attribute_value",
    "form_of",
    "leaves",
    "rebuilt",
    "tensor_desc",
]


@dataclass(frozen=True)
class Parameter:
    """A parameter of the model: a place that nodes read and write."""

    name: str


# The state of random numbers (key and counter), which the front door keeps beside the model's own parameters.
RANDOM = Parameter("random state")


@dataclass(frozen=True)
class Monad:
    """The order of effects: how many writes a reader sees."""

    writes: int


@dataclass(frozen=True)
class Closure:
    """A graph of the model with its first arguments bound."""

    graph: str
    bound: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Switched:
    """One of two functions, by a condition of the run."""

    condition: ir.Value
    then: Any
    otherwise: Any


@dataclass(frozen=True, eq=False)
class Array:
    """A constant tensor of the file, not yet part of a graph."""

    value: np.ndarray


# A tensor, a Python number, text, None, a tuple of these, or one of the classes above.
Binding = Any

# The form of a value: a description for a tensor, None for what is not a tensor, a tuple of forms.
Form = Any


def tensor_desc(tensor: Any) -> TensorDesc:
    """What a tensor message describes."""
    dtype = DTYPE_NAMES.get(tensor.data_type, f"data type {tensor.data_type}")
    if dtype not in TENSORS:
        raise Unsupported(f"no engine accepts {dtype}")
    shape = tuple(int(d) for d in tensor.dims)
    if any(d < 0 for d in shape):
        raise Unsupported(f"the shape {list(shape)} is open", "give static shapes")
    return TensorDesc(shape, dtype)


def array_of(tensor: Any, folder: Path | None = None, source: str = "") -> np.ndarray | None:
    """The elements of a tensor message; None for one without data."""
    desc = tensor_desc(tensor)
    dtype = numpy_dtype(desc.dtype)
    if tensor.compression_type:
        raise Unsupported("a compressed tensor", "export without compression")
    data = bytes(tensor.raw_data)
    if not data and tensor.HasField("external_data"):
        data = _external(tensor.external_data, folder, source)
    if not data:
        for field in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
            if len(getattr(tensor, field)):
                return _shaped(np.asarray(getattr(tensor, field)).astype(dtype), desc, source)
        return np.zeros(desc.shape, dtype) if not desc.size else None
    if len(data) % dtype.itemsize:
        raise malformed(source, f"tensor {tensor.name} has {len(data)} bytes")
    return _shaped(np.frombuffer(data, dtype), desc, source)


def _shaped(array: np.ndarray, desc: TensorDesc, source: str) -> np.ndarray:
    if array.size != desc.size:
        raise malformed(source, f"a tensor of shape {list(desc.shape)} has {array.size} elements")
    return array.reshape(desc.shape)


def _external(place: Any, folder: Path | None, source: str) -> bytes:
    """The bytes of a tensor in a file beside the model."""
    name = place.location.replace("\\", "/")
    if folder is None or name.startswith("/") or ".." in name.split("/"):
        raise malformed(source, f"its data is in '{name}', outside of the model's folder")
    try:
        with open(folder / name, "rb") as file:
            file.seek(place.offset)
            return file.read(place.length) if place.length > 0 else file.read()
    except OSError as error:
        raise GeError(
            "E10021", f"the weights {folder / name} cannot be read: {error.strerror}", location=source
        ) from error


# MindSpore's numbers of element types, by the number of TensorProto.DataType.
_ELEMENT_TYPES = {
    number: next((key for key, known in TYPE_IDS.items() if known == name), None)
    for number, name in DTYPE_NAMES.items()
}
_INTEGERS = ("uint8", "int8", "uint16", "int16", "int32", "int64", "uint32", "uint64")


def attribute_value(attribute: Any, source: str = "") -> Binding:
    """The value that an attribute holds."""
    kind = ATTRIBUTE_KINDS.get(attribute.type, "undefined")
    if kind in ("tuple", "list"):
        return tuple(attribute_value(v, source) for v in attribute.values)
    if kind == "float":
        return float(attribute.floats[0] if len(attribute.floats) else attribute.f)
    if kind == "double":
        return float(attribute.doubles[0] if len(attribute.doubles) else attribute.d)
    if kind in ("bool", *_INTEGERS):
        number = int(attribute.ints[0] if len(attribute.ints) else attribute.i)
        return bool(number) if kind == "bool" else number
    if kind == "string":
        raw = attribute.strings[0] if len(attribute.strings) else attribute.s
        return bytes(raw).decode("utf-8", "replace")
    if kind in ("tensors", "tensor"):
        return _tensors(attribute, source)
    if kind in ("umonad", "iomonad"):
        return Monad(0)
    if kind in ("none", "type_null"):
        return None
    raise Unsupported(f"a constant of kind {kind}")


def _tensors(attribute: Any, source: str) -> Binding:
    messages = list(attribute.tensors) or [attribute.t]
    if len(messages) == 1 and {field.name for field, _ in messages[0].ListFields()} <= {"data_type", "name"}:
        return _ELEMENT_TYPES.get(messages[0].data_type)  # without data it stands for an element type
    arrays = [array_of(m, None, source) for m in messages]
    if any(a is None for a in arrays):
        raise malformed(source, "a constant tensor has no data")
    found = [Array(a) for a in arrays if a is not None]
    return found[0] if len(found) == 1 else tuple(found)


def form_of(attribute: Any) -> Form:
    """The form of a node's result, from the attribute that declares it."""
    kind = ATTRIBUTE_KINDS.get(attribute.type, "undefined")
    if kind in ("tuple", "list"):
        return tuple(form_of(v) for v in attribute.values)
    if kind in ("tensors", "tensor") and len(attribute.tensors):
        forms = tuple(tensor_desc(t) for t in attribute.tensors)
        return forms[0] if len(forms) == 1 else forms
    return None


def leaves(value: Any) -> list[Any]:
    """The parts of nested tuples, in order."""
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def rebuilt(pattern: Any, parts: list[Any]) -> Any:
    """Nested tuples like a pattern, with other parts, which are taken off the front of a list."""
    if isinstance(pattern, tuple):
        return tuple(rebuilt(p, parts) for p in pattern)
    return parts.pop(0)
