"""Reads ONNX files: protobufs, external data, validity checks."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from ge.errors import GeError
from ge.ops.builder import DOMAIN as GE_DOMAIN
from ge.parsers.onnx import large_tensors

__all__ = [
    "MAX_BYTES",
    "DataFolder",
    "ModelFile",
    "array_of",
    "load",
    "reads_of",
    "sorted_nodes",
    "subgraphs",
]

MAX_BYTES = 1 << 42  # no tensor of a model is larger than 4 TiB
MIN_IR_VERSION = 3
_SHARED_BYTES = 1 << 20  # from this size on, models of the same file share a tensor
# Large tensors of external data still in use, so that the programs of an open model share them.
_shared: WeakValueDictionary[tuple[Any, ...], np.ndarray] = WeakValueDictionary()
_NARROW = {
    onnx.TensorProto.INT4: 4,
    onnx.TensorProto.UINT4: 4,
    onnx.TensorProto.FLOAT4E2M1: 4,
    getattr(onnx.TensorProto, "INT2", -1): 2,
    getattr(onnx.TensorProto, "UINT2", -2): 2,
}


@dataclass(frozen=True)
class DataFolder:
    """Location of a model's external data: beside the model, and inside `bounds` after resolving links."""

    beside: Path
    bounds: Path
    arrays: Sequence[np.ndarray] = ()  # data of the model file itself (`large_tensors`)


@dataclass
class ModelFile:
    """An ONNX model with the context needed to read it."""

    proto: onnx.ModelProto
    name: str
    folder: DataFolder | None = None  # location of external data
    opsets: dict[str, int] = field(default_factory=dict)
    functions: dict[tuple[str, str], onnx.FunctionProto] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def load(source: Any) -> ModelFile:
    """Load a model from a path, bytes, a ModelProto or an onnx_ir.Model."""
    folder: DataFolder | None = None
    name = ""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name = path.name
        source, arrays = _read(path)
        folder = replace(_data_folder(path), arrays=arrays)
    if isinstance(source, ir.Model):
        source = ir.to_proto(source)
    proto = _decode(source, name) if isinstance(source, (bytes, bytearray, memoryview)) else source
    if not isinstance(proto, onnx.ModelProto):
        raise GeError(
            "E10011",
            f"{type(proto).__name__} is not an ONNX model",
            remedy="give a path, bytes or a ModelProto",
        )
    return _checked(ModelFile(proto, name or proto.graph.name or "model", folder))


def _data_folder(path: Path) -> DataFolder:
    """The folder of the model, with links resolved.

    In the cache of the Hugging Face hub, `<root>/snapshots/<revision>/model.onnx` and the data beside it are links to
    files in `<root>/blobs`: there data is beside the link and must stay inside `<root>`.
    """
    real = path.resolve()
    root = real.parent.parent
    while real.parent.name == "blobs" and path.is_symlink():
        folder = path.parent.resolve()
        if root / "snapshots" in folder.parents:
            return DataFolder(folder, root)
        path = folder / path.readlink()
    return DataFolder(real.parent, real.parent)


def _read(path: Path) -> tuple[bytes, list[np.ndarray]]:
    try:
        with path.open("rb") as file:
            return large_tensors.read(file)
    except OSError as error:
        raise GeError(
            "E10021", f"cannot read {path}: {error.strerror}", remedy="check the path of the model"
        ) from error


def _decode(data: bytes | bytearray | memoryview, name: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(bytes(data))
    except (DecodeError, RuntimeError, ValueError) as error:
        raise GeError(
            "E10011", f"{name or 'the data'} is not an ONNX model: {error}", remedy="export it again"
        ) from error
    return proto


def _checked(file: ModelFile) -> ModelFile:
    proto = file.proto
    if not proto.HasField("graph"):
        raise GeError("E10011", f"{file.name} holds no graph", remedy="export it again")
    if proto.ir_version < MIN_IR_VERSION:
        raise GeError(
            "E10012",
            f"{file.name} has IR version {proto.ir_version}, the oldest known is {MIN_IR_VERSION}",
            remedy="convert it with onnx.version_converter",
        )
    if proto.ir_version > onnx.IR_VERSION:
        file.notes.append(
            f"IR version {proto.ir_version} is newer than the known {onnx.IR_VERSION}; read as far as known"
        )
    if any(o.domain == GE_DOMAIN for o in proto.opset_import):
        raise GeError("E10022", f"{file.name} is an AIR graph", remedy="use --framework=1, or name it .air")
    file.opsets = opset_versions(proto.opset_import, file.name)
    for function in proto.functions:
        key = (_domain(function.domain), function.name)
        if key in file.functions and not function.overload:
            raise GeError("E10013", f"function {function.name} is defined twice in {file.name}")
        file.functions[key] = function
    return file


def opset_versions(imports: Iterable[onnx.OperatorSetIdProto], name: str) -> dict[str, int]:
    """The operator set versions by domain; ONNX's own must be known."""
    versions = {_domain(o.domain): int(o.version) for o in imports}
    newest = onnx.defs.onnx_opset_version()
    version = versions.setdefault("", 1 if not versions else versions.get("", newest))
    if version > newest or version < 1:
        raise GeError(
            "E10012",
            f"{name} uses operator set {version}, the newest known is {newest}",
            remedy="export with an older operator set, or install a newer onnx",
        )
    return versions


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


# -- tensors -----------------------------------------------------------------------------------------------


def array_of(tensor: onnx.TensorProto, folder: DataFolder | None, name: str = "") -> np.ndarray:
    """The NumPy value of a tensor."""
    name = name or tensor.name
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise GeError("E10014", f"tensor {name} has a negative dimension: {list(shape)}")
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError) as error:
        raise GeError("E10014", f"tensor {name} has the unknown element type {tensor.data_type}") from error
    if math.prod(shape) * dtype.itemsize > MAX_BYTES:
        raise GeError("E10014", f"tensor {name} of shape {list(shape)} is larger than {MAX_BYTES >> 40} TiB")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external(tensor, folder, name, dtype)
    try:
        return onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise _misfit(tensor, name, error) from error


def _external(tensor: onnx.TensorProto, folder: DataFolder | None, name: str, dtype: np.dtype) -> np.ndarray:
    facts = {entry.key: entry.value for entry in tensor.external_data}
    if folder is not None and (own := large_tensors.data_of(tensor, folder.arrays)) is not None:
        return _of_bytes(tensor, own, name, dtype)
    path = _inside(folder, facts.get("location", ""), name)
    bits = _NARROW.get(tensor.data_type, dtype.itemsize * 8)
    count = math.prod(tensor.dims)
    need = -(-count * bits // 8)
    try:
        offset, length = int(facts.get("offset", 0)), int(facts.get("length", 0) or need)
        size = path.stat().st_size
    except (ValueError, OSError) as error:
        raise GeError("E10015", f"the external data of tensor {name} cannot be read: {error}") from error
    if offset < 0 or length != need or offset + need > size:
        raise GeError(
            "E10015",
            f"tensor {name} needs {need} bytes at {offset} of {path.name}, which has {size}",
            remedy="copy the whole external data file beside the model",
        )
    if not count:
        return np.zeros(tuple(tensor.dims), dtype)
    if tensor.data_type in _NARROW or need < _SHARED_BYTES:
        return _of_bytes(tensor, _bytes_at(path, offset, need, name), name, dtype)
    stat = path.stat()
    key = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, size, offset, dtype, tuple(tensor.dims))
    found = _shared.get(key)
    if found is None:
        found = _bytes_at(path, offset, need, name).view(dtype).reshape(tuple(tensor.dims))
        found.flags.writeable = False
        _shared[key] = found
    return found


def _of_bytes(tensor: onnx.TensorProto, data: np.ndarray, name: str, dtype: np.dtype) -> np.ndarray:
    """Decode a tensor whose data is an array of bytes."""
    if tensor.data_type not in _NARROW:
        try:
            return data.view(dtype).reshape(tuple(tensor.dims))
        except ValueError as error:
            raise _misfit(tensor, name, error) from error
    return array_of(large_tensors.with_data(tensor, data), None, name)


def _misfit(tensor: onnx.TensorProto, name: str, error: Exception) -> GeError:
    return GeError("E10014", f"the data of tensor {name} does not fit its shape {list(tensor.dims)}: {error}")


def _bytes_at(path: Path, offset: int, count: int, name: str) -> np.ndarray:
    """Read a part of a file. Not mapped: changes of the file would change the data or crash the process."""
    try:
        found = np.fromfile(path, np.uint8, count, offset=offset)
    except (OSError, MemoryError) as error:
        raise GeError("E10015", f"the external data of tensor {name} cannot be read: {error}") from error
    if found.size != count:
        raise GeError("E10015", f"{path.name} was cut short while tensor {name} was read")
    return found


def _inside(folder: DataFolder | None, location: str, name: str) -> Path:
    """Path of external data; after resolving links it must be inside the model's folder."""
    if folder is None:
        raise GeError(
            "E10015",
            f"tensor {name} is stored outside the model, which was not read from a file",
            remedy="give the path",
        )
    if not location or Path(location).is_absolute():
        raise GeError(
            "E10015", f"the external data of tensor {name} must be named relative to the model: {location!r}"
        )
    path = (folder.beside / location).resolve()
    if os.path.normpath(location).startswith("..") or folder.bounds not in path.parents:
        raise GeError(
            "E10015",
            f"the external data of tensor {name} is outside the model's folder: {location!r}",
            remedy="keep external data beside the model, without links that lead elsewhere",
        )
    if not path.is_file():
        raise GeError(
            "E10015",
            f"the external data file {location} of tensor {name} is missing",
            remedy="copy it beside the model",
        )
    return path


# -- graphs ------------------------------------------------------------------------------------------------


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def outer_names(graph: onnx.GraphProto) -> set[str]:
    """The names a subgraph reads from outside."""
    inner = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    inner |= {t.values.name for t in graph.sparse_initializer}
    read: set[str] = {v.name for v in graph.output}
    for node in graph.node:
        inner.update(node.output)
        read.update(node.input)
        for nested in subgraphs(node):
            read |= outer_names(nested)
    return read - inner - {""}


def sorted_nodes(nodes: Sequence[onnx.NodeProto], known: set[str], where: str) -> list[onnx.NodeProto]:
    """Sort nodes topologically; files need not be sorted.

    A name produced twice, a name without a producer and a cycle are errors.
    """
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if name and (name in maker or name in known):
                raise GeError(
                    "E10016",
                    f"the name {name} is given twice in {where}",
                    node=node.name,
                    operator=node.op_type,
                )
            if name:
                maker[name] = index
    reads = [reads_of(node) for node in nodes]
    for node, names in zip(nodes, reads, strict=True):
        for name in names:
            if name not in maker and name not in known:
                raise GeError(
                    "E10016",
                    f"input {name} is made by no node of {where}",
                    node=node.name,
                    operator=node.op_type,
                )
    return _ordered(nodes, [{maker[n] for n in names if n in maker} for names in reads], where)


def reads_of(node: onnx.NodeProto) -> list[str]:
    """All names that a node reads, including those read by its subgraphs."""
    inner = (name for graph in subgraphs(node) for name in outer_names(graph))
    return [name for name in (*node.input, *inner) if name]


def _ordered(nodes: Sequence[onnx.NodeProto], needs: list[set[int]], where: str) -> list[onnx.NodeProto]:
    if all(all(n < i for n in need) for i, need in enumerate(needs)):
        return list(nodes)
    waiting = [len(need) for need in needs]
    users: list[list[int]] = [[] for _ in nodes]
    for index, need in enumerate(needs):
        for maker in need:
            users[maker].append(index)
    ready = [i for i, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        index = ready.pop(0)
        order.append(index)
        for user in users[index]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if len(order) < len(nodes):
        stuck = next(nodes[i] for i in range(len(nodes)) if waiting[i])
        raise GeError("E10016", f"the nodes of {where} form a cycle", node=stuck.name, operator=stuck.op_type)
    return [nodes[i] for i in order]
