"""The engine's own front door, `ge.compile`: a cached file starts without the compiler."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import npu_runtime
from ge import compile_cache, opp_paths
from ge.errors import typed
from ge.identity import compile_identity
from ge.model import om, store
from ge.options import CompileOptions
from ge.options.table import raw_environment

if TYPE_CHECKING:
    from ge.model.model import Model

__all__ = ["compile"]

_EXTERNAL = b"location"  # the key under which an ONNX file names external weight files
_PIECE = 32 << 20  # bytes that one thread digests at a time
_READERS = 4  # more wait for memory


@typed
def compile(source: Any, options: CompileOptions | None = None, name: str = "") -> Model:
    """Compile a model: a path (.onnx, .pb, .air, a SavedModel folder, .om), an ONNX ModelProto, or a graph.

    >>> model = ge.compile("resnet50.onnx")      # doctest: +SKIP
    """
    options = options if options is not None else CompileOptions.from_environment()
    key = None
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix == ".om":
            return om.load(path)  # type: ignore[return-value]
        key = _file_key(path, options, name)
    found = None if key is None else compile_cache.find(key)
    if found is not None:
        return found
    from ge.compiler import compile_source

    return compile_source(source, options, name, key)


def _file_key(path: Path, options: CompileOptions, name: str) -> str | None:
    """The key of an ONNX file: of its bytes, not of its graph, which only the compiler parses.

    None if more than the file determines the model (external weights, custom operators), or if it is not cached.
    """
    if path.suffix != ".onnx" or not compile_cache.keeps(options) or options.opp_path:
        return None
    if any(opp_paths.entries(root) for root in opp_paths.roots()):
        return None
    settings = (compile_identity(options), npu_runtime.num_threads(), raw_environment(), name or path.stem)
    hasher = hashlib.sha256(repr(("file", settings)).encode())
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if len(content) > store.LARGEST_MODEL or content.find(_EXTERNAL) >= 0:
                return None
            hasher.update(_digests(content))
    except (OSError, ValueError):  # the parser reports what is wrong with the file
        return None
    return hasher.hexdigest()[:48]


def _digests(content: mmap.mmap) -> bytes:
    """The digests of the pieces of a file."""
    with memoryview(content) as view:
        if len(view) <= _PIECE:
            return hashlib.sha256(view).digest()
        from concurrent.futures import ThreadPoolExecutor

        def of_piece(start: int) -> bytes:
            with view[start : start + _PIECE] as piece:
                return hashlib.sha256(piece).digest()

        with ThreadPoolExecutor(_READERS) as readers:
            return b"".join(readers.map(of_piece, range(0, len(view), _PIECE)))
