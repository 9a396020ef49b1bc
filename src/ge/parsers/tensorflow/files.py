"""Reading TensorFlow model files: GraphDef, MetaGraphDef, SavedModel, their signatures and variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ge.errors import GeError
from ge.parsers.tensorflow.bundle import Checkpoint, checkpoint_prefix
from ge.parsers.tensorflow.protos import decode, decode_text
from ge.parsers.tensorflow.tensor import element_type, shape_of

__all__ = ["ModelFile", "Signature", "TensorSpec", "load_model"]

_FILE_LIMIT = 2 << 30
_TEXT_SUFFIXES = (".pbtxt", ".prototxt", ".textproto", ".txt")
_SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
_PREFERRED_TAGS = ("serve",)
_SAVED_MODEL_FIRST_BYTE = 0x08  # its first field is a number; a GraphDef's first field is a message


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a signature names: where it is in the graph and what is known of its shape and type."""

    tensor: str
    shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True)
class Signature:
    """A named set of inputs and outputs."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]


@dataclass(frozen=True)
class ModelFile:
    """A model as its files have it."""

    name: str
    graph: Any
    signatures: Mapping[str, Signature] = field(default_factory=dict)
    restore_node: str = ""  # the node that assigns the variables from the checkpoint
    checkpoint: Checkpoint | None = None
    assets: Mapping[str, Path] = field(default_factory=dict)  # files by the tensors that name them


def load_model(
    model: Any, *, tags: Sequence[str] | None = None, checkpoint: str | Path | None = None
) -> ModelFile:
    """Read a model given as a path, as bytes, or as a message of TensorFlow's own or of ours."""
    restored = Checkpoint(checkpoint_prefix(checkpoint)) if checkpoint is not None else None
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _from_data(bytes(model), "model", tags, restored)
    if hasattr(model, "SerializeToString"):
        return _from_message(model, tags, restored)
    path = Path(model)
    return _saved_model(path, tags, restored) if path.is_dir() else _from_file(path, tags, restored)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size >= _FILE_LIMIT:
            raise GeError(
                "E10101", "the file has 2 GiB or more, which no protobuf message has", location=str(path)
            )
        return path.read_bytes()
    except OSError as error:
        raise GeError(
            "E10100",
            f"the file cannot be read ({error.strerror or error})",
            location=str(path),
            remedy="check the path",
        ) from error


def _decode_any(kind: str, data: bytes, text: bool, where: str) -> Any:
    """A message in binary or text form; a file of unclear form is tried as binary first."""
    if text:
        return decode_text(kind, _as_text(data, where), where)
    try:
        return decode(kind, data, where)
    except GeError:
        head = data[:64].lstrip()
        if not head[:1].isalpha() or not head.isascii():
            raise
        return decode_text(kind, _as_text(data, where), where)


def _as_text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise GeError("E10101", "the file is not text", location=where) from error


def _from_file(path: Path, tags: Sequence[str] | None, checkpoint: Checkpoint | None) -> ModelFile:
    data = _read(path)
    text = path.suffix in _TEXT_SUFFIXES
    if path.name in _SAVED_MODEL_FILES:
        return _saved_model(path.parent, tags, checkpoint)
    if path.suffix == ".meta":
        beside = path.with_suffix("")
        if checkpoint is None and beside.with_name(beside.name + ".index").is_file():
            checkpoint = Checkpoint(beside)
        return _meta_graph(_decode_any("MetaGraphDef", data, text, str(path)), path.stem, checkpoint)
    if text:
        return _graph(decode_text("GraphDef", _as_text(data, str(path)), str(path)), path.stem, checkpoint)
    return _from_data(data, path.stem, tags, checkpoint, str(path))


def _from_data(
    data: bytes, name: str, tags: Sequence[str] | None, checkpoint: Checkpoint | None, where: str = ""
) -> ModelFile:
    if data[:1] == bytes([_SAVED_MODEL_FIRST_BYTE]):
        return _meta_graph(_choose(decode("SavedModel", data, where), tags, where or name), name, checkpoint)
    return _graph(_decode_any("GraphDef", data, False, where), name, checkpoint)


def _from_message(message: Any, tags: Sequence[str] | None, checkpoint: Checkpoint | None) -> ModelFile:
    kind = message.DESCRIPTOR.name
    if kind not in ("GraphDef", "MetaGraphDef", "SavedModel"):
        raise GeError(
            "E10100", f"a {kind} message is not a model", remedy="pass a GraphDef, MetaGraphDef or SavedModel"
        )
    own = decode(kind, message.SerializeToString(), kind)
    if kind == "GraphDef":
        return _graph(own, "model", checkpoint)
    return _meta_graph(own if kind == "MetaGraphDef" else _choose(own, tags, kind), "model", checkpoint)


def _graph(graph: Any, name: str, checkpoint: Checkpoint | None) -> ModelFile:
    if not graph.node:
        raise GeError(
            "E10101", "the graph has no nodes", location=name, remedy="check that the file is a GraphDef"
        )
    return ModelFile(name, graph, checkpoint=checkpoint)


def _saved_model(folder: Path, tags: Sequence[str] | None, checkpoint: Checkpoint | None) -> ModelFile:
    folder = _newest_version(folder)
    found = next((folder / f for f in _SAVED_MODEL_FILES if (folder / f).is_file()), None)
    if found is None:
        cause = "the folder has no saved_model.pb"
        if (folder / "saved_model.cpb").is_file():
            cause = "the SavedModel is split into chunks (saved_model.cpb), which is not read"
        raise GeError(
            "E10100", cause, location=str(folder), remedy="give a SavedModel folder or a graph file"
        )
    model = _decode_any("SavedModel", _read(found), found.suffix in _TEXT_SUFFIXES, str(found))
    variables = folder / "variables" / "variables"
    if checkpoint is None and variables.with_name("variables.index").is_file():
        checkpoint = Checkpoint(variables)
    meta = _choose(model, tags, str(folder))
    return replace(_meta_graph(meta, folder.name, checkpoint), assets=_assets(meta, folder))


def _assets(meta: Any, folder: Path) -> dict[str, Path]:
    """The files of a model's assets; names that lead out of their folder are refused."""
    found = {}
    for asset in meta.asset_file_def:
        path = (folder / "assets" / asset.filename).resolve()
        if not path.is_relative_to((folder / "assets").resolve()):
            raise GeError(
                "E10101", f"the asset {asset.filename} is outside of the model", location=str(folder)
            )
        found[asset.tensor_info.name.partition(":")[0]] = path
    return found


def _newest_version(folder: Path) -> Path:
    """The folder itself, or of folders with a number for each version the highest one that holds a model."""
    if any((folder / f).is_file() for f in _SAVED_MODEL_FILES):
        return folder
    versions = [
        p for p in folder.iterdir() if p.name.isdigit() and any((p / f).is_file() for f in _SAVED_MODEL_FILES)
    ]
    return max(versions, key=lambda p: int(p.name), default=folder)


def _choose(model: Any, tags: Sequence[str] | None, where: str) -> Any:
    """The meta graph of a tag set; without one, the one for serving, the only one, or (TensorFlow Hub) the untagged."""
    if not model.meta_graphs:
        raise GeError("E10101", "the SavedModel has no graphs", location=where)
    wanted = set(_PREFERRED_TAGS if tags is None else tags)
    for meta in model.meta_graphs:
        if set(meta.meta_info_def.tags) == wanted:
            return meta
    untagged = [m for m in model.meta_graphs if not m.meta_info_def.tags]
    for found in (model.meta_graphs, untagged) if tags is None else ():
        if len(found) == 1:
            return found[0]
    there = "; ".join(",".join(m.meta_info_def.tags) or "no tags" for m in model.meta_graphs)
    raise GeError(
        "E10107", f"no graph has the tags {sorted(wanted)}", location=where, remedy=f"use one of: {there}"
    )


def _meta_graph(meta: Any, name: str, checkpoint: Checkpoint | None) -> ModelFile:
    signatures = {key: _signature(meta.signature_def[key]) for key in sorted(meta.signature_def)}
    if not meta.graph_def.node:
        raise GeError("E10101", "the graph has no nodes", location=name)
    return ModelFile(name, meta.graph_def, signatures, meta.saver_def.restore_op_name, checkpoint)


def _signature(proto: Any) -> Signature:
    return Signature(_specs(proto.inputs), _specs(proto.outputs))


def _specs(infos: Any) -> dict[str, TensorSpec]:
    """The tensors of a signature, by key; those of a sparse or composite one by names of their own."""
    result = {}
    for key in sorted(infos):
        info = infos[key]
        if info.WhichOneof("encoding") == "coo_sparse":
            for part, dtype in (
                ("indices", "int64"),
                ("values", element_type(info.dtype)),
                ("dense_shape", "int64"),
            ):
                name = getattr(info.coo_sparse, f"{part}_tensor_name")
                result[f"{key}/{part}"] = TensorSpec(name, None, dtype)
        elif info.WhichOneof("encoding") == "composite_tensor":
            for number, part in enumerate(info.composite_tensor.components):
                result[f"{key}/{number}"] = TensorSpec(
                    part.name, shape_of(part.tensor_shape), element_type(part.dtype)
                )
        elif info.name:
            result[key] = TensorSpec(info.name, shape_of(info.tensor_shape), element_type(info.dtype))
    return result
