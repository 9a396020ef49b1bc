"""Selects the parser of a model file of any framework, and calls it."""

from __future__ import annotations

import enum
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ge.errors import GeError
from ge.hybrid.cuts import Remainder
from ge.ir.facts import OpenShape
from ge.options import CompileOptions
from ge.parsers.paddle.program import is_program
from ge.parsers.tflite.flatbuffer import IDENTIFIER

__all__ = ["NAMES", "Framework", "content_of", "first_stage", "framework_of", "parse_file"]

_log = logging.getLogger(__name__)


class Framework(enum.Enum):
    """Kinds of model files; the numbers are those of atc's --framework, which has one for all of MindSpore's files."""

    AIR = 1
    TENSORFLOW = 3
    ONNX = 5
    PADDLE = 6
    TFLITE = 7


_SUFFIXES = {
    ".onnx": Framework.ONNX,
    ".pb": Framework.TENSORFLOW,
    ".pbtxt": Framework.TENSORFLOW,
    ".meta": Framework.TENSORFLOW,
    ".air": Framework.AIR,
    ".mindir": Framework.AIR,
    ".json": Framework.PADDLE,
    ".pdmodel": Framework.PADDLE,
    ".tflite": Framework.TFLITE,
    ".lite": Framework.TFLITE,
}
# The first field of an ONNX model is a number, of a TensorFlow graph a node; that of a MINDIR model is text.
_FIRST_BYTES = {0x08: Framework.ONNX, 0x0A: Framework.TENSORFLOW}


NAMES = {
    Framework.AIR: "an AIR or MINDIR graph",
    Framework.TENSORFLOW: "a TensorFlow model",
    Framework.ONNX: "an ONNX model",
    Framework.PADDLE: "a PaddlePaddle program",
    Framework.TFLITE: "a TensorFlow Lite model",
}


def content_of(path: Path) -> Framework | None:
    """What a file holds, by its first bytes; None when they do not tell."""
    if path.is_dir():
        return Framework.TENSORFLOW
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError:
        return None
    if head[4:] == IDENTIFIER:
        return Framework.TFLITE
    if head[:1] == b"{" and is_program(path):
        return Framework.PADDLE
    if len(head) < 2 or head[0] not in _FIRST_BYTES:
        return None
    if path.suffix.lower() in (".mindir", ".pdmodel"):  # they begin as TensorFlow's do
        return _SUFFIXES[path.suffix.lower()]
    if head[0] == 0x08 and head[1] < 3:  # the version of a SavedModel, which is below those of ONNX
        return Framework.TENSORFLOW
    return Framework.AIR if head[0] == 0x08 and path.suffix.lower() == ".air" else _FIRST_BYTES[head[0]]


def _check_content(path: Path, framework: Framework) -> None:
    """Refuse a file whose content is another framework's. AIR and ONNX have one form; their parsers tell them apart."""
    found = content_of(path)
    alike = {Framework.AIR, Framework.ONNX}
    if found is None or found is framework or {found, framework} == alike:
        return
    raise GeError(
        "E12003",
        f"{path.name} looks like {NAMES[found]}, not like {NAMES[framework]}",
        remedy=f"use --framework={found.value}, or leave it out",
    )


def framework_of(path: Path) -> Framework:
    """What a file says it is, by its name or its first byte; a folder is a SavedModel."""
    if path.is_dir():
        return Framework.TENSORFLOW
    if not path.is_file():
        raise GeError("E10021", f"there is no file {path}", remedy="check the path of the model")
    if path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    with open(path, "rb") as file:
        first = file.read(8)
    if first[4:] == IDENTIFIER:
        return Framework.TFLITE
    if not first or first[0] not in _FIRST_BYTES:
        raise GeError(
            "E10021",
            f"{path.name} is of no known kind",
            remedy="give a .onnx, .pb, .tflite, .mindir or .air file, a .json or .pdmodel of PaddlePaddle, a "
            "SavedModel folder, or set --framework",
        )
    return _FIRST_BYTES[first[0]]


def _parse_onnx(source: Any, options: CompileOptions) -> ir.Graph:
    from ge.parsers.onnx import parser as onnx

    return onnx.parse(source, options)


def _parse_tensorflow(source: Any, options: CompileOptions) -> ir.Graph:
    from ge.parsers.tensorflow import parser as tensorflow

    return tensorflow.parse(
        source,
        input_shapes=options.input_shapes,
        out_nodes=options.output_nodes,
        signature=options.signature or None,
    )


def _parse_air(source: Any, options: CompileOptions) -> ir.Graph:
    """A .air file is an ONNX file of our own operators, whose first field is a number."""
    from ge.parsers import air
    from ge.parsers.mindir import parser as mindir

    with open(source, "rb") as file:
        is_air = file.read(1) == b"\x08"
    return air.parse(source, options) if is_air else mindir.parse(source, options)


def _parse_paddle(source: Any, options: CompileOptions) -> ir.Graph:
    from ge.parsers.paddle import parser as paddle

    return paddle.parse(source, options)


def _parse_tflite(source: Any, options: CompileOptions) -> ir.Graph:
    from ge.parsers.tflite import parser as tflite

    return tflite.parse(source, options)


PARSERS: dict[Framework, Callable[[Any, CompileOptions], ir.Graph]] = {
    Framework.ONNX: _parse_onnx,
    Framework.TENSORFLOW: _parse_tensorflow,
    Framework.AIR: _parse_air,
    Framework.PADDLE: _parse_paddle,
    Framework.TFLITE: _parse_tflite,
}


def first_stage(
    source: Any, options: CompileOptions
) -> tuple[Remainder, tuple[str, ...], Mapping[str, OpenShape]]:
    """A model to be taken in stages, the names of its outputs, and its inputs with -1 for open sizes."""
    from ge.parsers.onnx import stages as onnx
    from ge.parsers.tensorflow import stages as tensorflow
    from ge.parsers.tflite import parser as tflite

    is_file = isinstance(source, (str, os.PathLike))
    kind = framework_of(Path(source)) if is_file else None
    if kind is Framework.TENSORFLOW or type(source).__name__ in ("GraphDef", "MetaGraphDef", "SavedModel"):
        return tensorflow.first_stage(source, options)
    if kind is Framework.TFLITE:
        return tflite.first_stage(source, options)
    return onnx.first_stage(source, options)


def parse_file(
    path: str | os.PathLike[str], options: CompileOptions, framework: Framework | None = None
) -> ir.Graph:
    """The GE graph of a model file."""
    from ge.ops.custom import search

    search.add_paths(options.opp_path)
    if framework is not None:
        _check_content(Path(path), framework)
    kind = framework or framework_of(Path(path))
    graph = PARSERS[kind](Path(path), options)
    _log.info("%s: read as %s, %d nodes", Path(path).name, kind.name, len(graph))
    return graph
