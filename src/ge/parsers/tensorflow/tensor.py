"""TensorFlow's tensors, shapes and attribute values in Python terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from ge.errors import GeError
from ge.parsers.tensorflow.protos import dtype_name

__all__ = [
    "CHECKED",
    "MAX_TENSOR_BYTES",
    "FunctionRef",
    "attribute",
    "attributes",
    "checked_size",
    "element_type",
    "shape_of",
    "storage_dtype",
    "tensor_array",
]

MAX_TENSOR_BYTES = 2 << 30  # protobuf itself holds no more in one message
MAX_RANK = 32

_STORED_AS = {"qint8": "int8", "quint8": "uint8", "qint16": "int16", "quint16": "uint16", "qint32": "int32"}
_SPECIAL = {
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "string": object,
}
# element type -> the repeated field that holds values of it
_VALUE_FIELDS = {
    "float32": "float_val",
    "float64": "double_val",
    **dict.fromkeys(("int32", "uint8", "int16", "int8", "uint16"), "int_val"),
    "string": "string_val",
    "complex64": "scomplex_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "complex128": "dcomplex_val",
    "float16": "half_val",
    "bfloat16": "half_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}
_NO_BYTES = frozenset({"string", "resource", "variant"})


@dataclass(frozen=True)
class FunctionRef:
    """A function attribute: the function's name and the attributes it is called with."""

    name: str
    attrs: Any = field(default=None, compare=False)


CHECKED = "_checked"  # of an assertion: it must not be left out


def element_type(number: int) -> str:
    """Our element type name of a DataType number; quantised types are named as their integers."""
    name = dtype_name(number)
    return _STORED_AS.get(name, name)


def storage_dtype(name: str) -> np.dtype:
    """The NumPy dtype that holds a TensorFlow element type; raises GeError when there is none."""
    try:
        return np.dtype(_SPECIAL.get(name, name))
    except TypeError:
        raise GeError(
            "E10102", f"tensors of type {name} cannot be read", remedy="convert the model's tensors"
        ) from None


def shape_of(proto: Any) -> tuple[int, ...] | None:
    """A shape with -1 for unknown dimensions, or None when the rank is unknown."""
    if proto.unknown_rank:
        return None
    dims = tuple(max(int(d.size), -1) for d in proto.dim)
    if len(dims) > MAX_RANK:
        raise GeError("E10102", f"a tensor has {len(dims)} dimensions, the limit is {MAX_RANK}")
    return dims


def checked_size(shape: tuple[int, ...] | None, dtype: np.dtype, where: str) -> int:
    """The number of elements of a static shape; unknown, negative and oversized shapes raise GeError."""
    if shape is None or any(d < 0 for d in shape):
        raise GeError("E10102", f"a stored tensor has the incomplete shape {shape}", location=where)
    size = math.prod(shape)
    if size * max(dtype.itemsize, 1) > MAX_TENSOR_BYTES:
        raise GeError(
            "E10102",
            f"a stored tensor of shape {shape} needs more than {MAX_TENSOR_BYTES >> 20} MiB",
            location=where,
            remedy="check that the file is whole",
        )
    return size


def tensor_array(proto: Any, where: str = "") -> np.ndarray:
    """The NumPy array of a TensorProto; with fewer values than elements, the last one is repeated."""
    name = element_type(proto.dtype)
    dtype = storage_dtype(name)
    shape = shape_of(proto.tensor_shape)
    size = checked_size(shape, dtype, where)
    assert shape is not None
    if proto.tensor_content:
        return _from_bytes(proto.tensor_content, name, dtype, shape, size, where)
    return _from_values(proto, name, dtype, shape, size, where)


def _from_bytes(
    data: bytes, name: str, dtype: np.dtype, shape: tuple[int, ...], size: int, where: str
) -> np.ndarray:
    if name in _NO_BYTES or len(data) != size * dtype.itemsize:
        raise GeError(
            "E10102", f"a {name} tensor of shape {shape} has {len(data)} bytes of content", location=where
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _from_values(
    proto: Any, name: str, dtype: np.dtype, shape: tuple[int, ...], size: int, where: str
) -> np.ndarray:
    if name not in _VALUE_FIELDS:
        raise GeError("E10102", f"tensors of type {name} cannot be read", location=where)
    values = _values(getattr(proto, _VALUE_FIELDS[name]), name, dtype, where)
    if len(values) > size:
        raise GeError("E10102", f"a tensor of shape {shape} has {len(values)} values", location=where)
    if len(values) == size:
        return values.reshape(shape)
    result = np.empty(size, dtype)
    result[: len(values)] = values
    result[len(values) :] = values[-1] if len(values) else (b"" if name == "string" else 0)
    return result.reshape(shape)


def _values(repeated: Any, name: str, dtype: np.dtype, where: str) -> np.ndarray:
    """The values of a repeated field as a flat array."""
    if name in ("float16", "bfloat16"):
        return np.asarray(list(repeated), np.int64).astype(np.uint16).view(dtype)
    if name in ("complex64", "complex128"):
        parts = np.asarray(list(repeated), "float32" if name == "complex64" else "float64")
        if len(parts) % 2:
            raise GeError("E10102", "a complex tensor has an odd number of parts", location=where)
        return parts.view(dtype)
    if name == "string":
        result = np.empty(len(repeated), object)
        result[:] = list(repeated)
        return result
    return np.asarray(
        list(repeated), np.int64 if name in ("int8", "int16", "uint8", "uint16") else dtype
    ).astype(dtype)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _function(value: Any) -> FunctionRef:
    return FunctionRef(value.name, value.attr)


# kind of an AttrValue -> its Python form; the same table serves single values and lists
_CONVERT: dict[str, Any] = {
    "s": _text,
    "i": int,
    "f": float,
    "b": bool,
    "type": element_type,
    "shape": shape_of,
    "tensor": tensor_array,
    "func": _function,
}


def attribute(value: Any) -> Any:
    """The Python form of an AttrValue; None when it is not set or only a placeholder."""
    kind = value.WhichOneof("value")
    if kind == "list":
        for item, convert in _CONVERT.items():
            found = getattr(value.list, item)
            if len(found):
                return [convert(v) for v in found]
        return []
    if kind is None or kind == "placeholder":
        return None
    return _CONVERT[kind](getattr(value, kind))


def attributes(attrs: Any, bound: Any = None) -> dict[str, Any]:
    """All attributes of a node; placeholders of a generic function take the caller's values in `bound`.

    Names that begin with "_" are notes of TensorFlow's own, but for CHECKED.
    """
    result = {}
    for name in attrs:
        if name.startswith("_") and name != CHECKED:
            continue
        value = attrs[name]
        if bound is not None and value.WhichOneof("value") == "placeholder" and value.placeholder in bound:
            value = bound[value.placeholder]
        result[name] = attribute(value)
    return result
