"""Tensor descriptions and data buffers, the parts of datasets and operator calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from acl import _memory
from acl import constants as c
from acl._conventions import AclError, Handles, plain, returns_code, returns_value

__all__ = [
    "DataBuffer",
    "TensorSpec",
    "buffers",
    "create_data_buffer",
    "create_tensor_desc",
    "data_type_size",
    "destroy_data_buffer",
    "destroy_tensor_desc",
    "get_data_buffer_addr",
    "get_data_buffer_size",
    "get_data_buffer_size_v2",
    "get_tensor_desc_dim",
    "get_tensor_desc_dim_v2",
    "get_tensor_desc_element_count",
    "get_tensor_desc_format",
    "get_tensor_desc_name",
    "get_tensor_desc_num_dims",
    "get_tensor_desc_size",
    "get_tensor_desc_type",
    "set_tensor_const",
    "set_tensor_desc_name",
    "set_tensor_format",
    "set_tensor_shape",
    "specs",
    "update_data_buffer",
]

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "bool": 1}


def item_bytes(dtype: str) -> int:
    """Bytes of one element."""
    return _ITEM_BYTES.get(dtype) or int(dtype.lstrip("uint")) // 8


@dataclass
class DataBuffer:
    """A range of memory."""

    address: int
    nbytes: int


@dataclass
class TensorSpec:
    """Element type, shape and format of a tensor, and its value if it is a constant."""

    dtype: str
    shape: tuple[int, ...]
    format: int = c.ACL_FORMAT_ND
    name: str = ""
    storage_shape: tuple[int, ...] = field(default=())
    const: bytes | None = None

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * item_bytes(self.dtype)


buffers: Handles[DataBuffer] = Handles("data buffer")
specs: Handles[TensorSpec] = Handles("tensor description")

# -- data buffers -----------------------------------------------------------------------------------


@plain(0)
def create_data_buffer(data: int, size: int) -> int:
    """Create a data buffer of `size` bytes at an address; returns its handle, or 0 for an invalid range."""
    if size:
        _memory.check_range(data, size, write=False)
    return buffers.add(DataBuffer(data, size))


@returns_code
def destroy_data_buffer(data_buffer: int) -> None:
    """Destroy a data buffer, not its memory. Returns ret."""
    buffers.remove(data_buffer)


@plain(0)
def get_data_buffer_addr(data_buffer: int) -> int:
    """The address of a data buffer."""
    return buffers.get(data_buffer).address


@plain(0)
def get_data_buffer_size(data_buffer: int) -> int:
    """The bytes of a data buffer."""
    return buffers.get(data_buffer).nbytes


get_data_buffer_size_v2 = get_data_buffer_size


@returns_code
def update_data_buffer(data_buffer: int, data: int, size: int) -> None:
    """Point a data buffer to other memory. Returns ret."""
    _memory.check_range(data, size, write=False)
    item = buffers.get(data_buffer)
    item.address, item.nbytes = data, size


# -- tensor descriptions ----------------------------------------------------------------------------


def element_type(code: int) -> str:
    """Name of an element type code."""
    if code not in c.DTYPES:
        raise AclError(c.ACL_ERROR_UNSUPPORTED_DATA_TYPE, f"element type {code!r} is not supported")
    return c.DTYPES[code]


@plain(0)
def create_tensor_desc(data_type: int, dims: Sequence[int], format: int) -> int:
    """Create a tensor description; returns its handle."""
    return specs.add(TensorSpec(element_type(data_type), _dims(dims), int(format)))


def _dims(dims: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(int(d) for d in dims)
    if len(shape) > 32 or any(d < -2 for d in shape):
        raise ValueError(f"{shape} is not a shape")
    return shape


@returns_code
def destroy_tensor_desc(desc: int) -> None:
    """Destroy a description. Returns ret."""
    specs.remove(desc)


@plain(c.ACL_DT_UNDEFINED)
def get_tensor_desc_type(desc: int) -> int:
    """The element type code."""
    return c.DTYPE_CODES[specs.get(desc).dtype]


@plain(c.ACL_FORMAT_UNDEFINED)
def get_tensor_desc_format(desc: int) -> int:
    """The format code."""
    return specs.get(desc).format


@plain(0)
def get_tensor_desc_size(desc: int) -> int:
    """The bytes of the tensor."""
    return max(specs.get(desc).nbytes, 0)


@plain(0)
def get_tensor_desc_element_count(desc: int) -> int:
    """The number of elements."""
    return max(specs.get(desc).count, 0)


@plain(0)
def get_tensor_desc_num_dims(desc: int) -> int:
    """The number of dimensions."""
    return len(specs.get(desc).shape)


@plain(-1)
def get_tensor_desc_dim(desc: int, index: int) -> int:
    """One dimension."""
    return specs.get(desc).shape[_within(desc, index)]


@returns_value(-1)
def get_tensor_desc_dim_v2(desc: int, index: int) -> int:
    """(dimension, ret)."""
    return specs.get(desc).shape[_within(desc, index)]


def _within(desc: int, index: int) -> int:
    if not 0 <= index < len(specs.get(desc).shape):
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"there is no dimension {index}")
    return index


@plain("")
def get_tensor_desc_name(desc: int) -> str:
    """The tensor's name."""
    return specs.get(desc).name


@plain(None)
def set_tensor_desc_name(desc: int, name: str) -> None:
    """Give the tensor a name."""
    specs.get(desc).name = str(name)


@returns_code
def set_tensor_format(desc: int, format: int) -> None:
    """Set the storage format, which does not change the dense storage. Returns ret."""
    specs.get(desc)


@returns_code
def set_tensor_shape(desc: int, dims: Sequence[int]) -> None:
    """Set the storage shape. Returns ret."""
    specs.get(desc).storage_shape = _dims(dims)


@returns_code
def set_tensor_const(desc: int, data: int, length: int) -> None:
    """Make the tensor a constant with the bytes at an address. Returns ret."""
    from acl.util import ptr_to_bytes

    specs.get(desc).const = ptr_to_bytes(data, length)


@plain(0)
def data_type_size(data_type: int) -> int:
    """Bytes of one element of a type.

    >>> data_type_size(1)
    2
    """
    return item_bytes(element_type(data_type))
