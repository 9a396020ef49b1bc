"""On-disk cache of compiled graphs: guards and steps in a sealed container, programs with packed weights beside it.

1. Nothing of a file is used before its seal proves that this user wrote it; anything else counts as not there.
2. A file is used where its guards hold, where the functions, classes and modules that they name are the same
   (identities.py), where the tensors that it took for constants have the same contents, and where the traced source
   code is unchanged.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._dynamo.aot_compile import AOTCompiledFunction
from torch._dynamo.aot_compile_types import SerializableCallable

import npu_runtime
from ge.errors import GeError
from ge.model import keys, packed
from ge.model.container import Section, read_sections, write_sections
from ge.model.folder import CacheFolder
from ge.model.model import Model
from torchair.faults import as_torch_error
from torchair.layouts import array_of
from torchair.plan import FunctionPlan, FunctionPlanData

__all__ = ["Changed", "Digests", "StoredGraph", "Unkept", "load", "save"]

T = TypeVar("T")

FORMAT = 3
SUFFIX = ".graph"


class Unkept(Exception):
    """Why a graph cannot be kept in a file."""


class Changed(Exception):
    """Tensors that a program has taken for constants have changed."""


class StoredGraph(SerializableCallable):
    """A graph from a file: its plan, and the arguments that the programs hold as constants."""

    def __init__(self, form: FunctionPlanData, constants: Sequence[int]) -> None:
        self.form = form
        self.constants = tuple(constants)
        self.bound: list[tuple[int, int, int]] | None = None  # position, address, version
        self.plan: Callable[[list[Any]], Any] | None = None

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        return pickle.dumps((fn.form, fn.constants))

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> StoredGraph:
        return cls(*pickle.loads(data))

    def attach(self, models: Sequence[Model]) -> None:
        """Give the graph its programs."""
        self.plan = FunctionPlan(self.form, models).fastest()

    def __call__(self, *args: Any) -> Any:
        if self.bound is None:
            self.bound = [(i, args[i].data_ptr(), args[i]._version) for i in self.constants]
        for position, address, version in self.bound:
            tensor = args[position]
            if tensor._version != version or tensor.data_ptr() != address:
                raise Changed
        assert self.plan is not None, "attach() comes first"
        try:
            return self.plan(list(args))
        except npu_runtime.TaskError as error:
            raise as_torch_error(error) from error


class Digests:
    """Checksums of tensors' contents by name, each computed once."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._found: dict[str, str] = {}

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """The checksums of some tensors."""
        wanted = list(names)
        self._found.update({n: self._digest(n) for n in wanted if n not in self._found})
        return {name: self._found[name] for name in wanted}

    def _digest(self, name: str) -> str:
        array = array_of(self._tensors[name])
        return npu_runtime.checksum(array.reshape(-1).view("uint8").data).hex()


# -- writing ---------------------------------------------------------------------------------------------------


def save(
    folder: Path,
    compiled: AOTCompiledFunction,
    graph: StoredGraph,
    models: Sequence[Model],
    constants: Mapping[str, str],
    identities: Mapping[str, str],
) -> Path:
    """Write a compiled function.

    `constants` are the digests of the tensors that the programs hold, `identities` the descriptions of the objects that
    guards name.
    """
    stripped = _stripped(compiled, graph)
    try:
        traced = AOTCompiledFunction.serialize(stripped).serialized_data
    except Exception as error:  # whatever pickle cannot take
        raise Unkept(f"{type(error).__name__}: {error}") from error
    deciding = json.dumps([constants, identities], sort_keys=True).encode()
    stem = hashlib.sha256(traced + deciding).hexdigest()[:24]
    programs = [
        packed.write(model, folder / f"{stem}.{index}{packed.SUFFIX}") for index, model in enumerate(models)
    ]
    manifest = {
        "format": FORMAT,
        "constants": dict(constants),
        "identities": dict(identities),
        "sources": _sources(compiled),
        "programs": [[p.name, _head(p)] for p in programs],
    }
    path = folder / f"{stem}{SUFFIX}"
    sections = {"manifest": Section([json.dumps(manifest).encode()]), "dynamo": Section([traced])}
    write_sections(path, sections, keys.sign)
    return path


def _stripped(compiled: AOTCompiledFunction, graph: StoredGraph) -> Any:
    """The function as it is written: with the stored graph in it, without the text of whole source files."""
    from torch._dynamo.package import SourceInfo

    artifacts = copy.copy(compiled._artifacts)
    artifacts.compiled_fn = graph
    artifacts.source_info = SourceInfo(inlined_sources=set())
    twin = copy.copy(compiled)
    twin._artifacts = artifacts
    return twin


def _sources(compiled: AOTCompiledFunction) -> list[list[Any]]:
    """The traced lines of the user's code; PyTorch's own come with its version."""
    found = {
        (s.module, s.firstlineno, s.lastlineno)
        for s in compiled.source_info().inlined_sources
        if s.module.partition(".")[0] != "torch"
    }
    return [[module, first, last, _lines(module, first, last)] for module, first, last in sorted(found)]


def _lines(module: str, first: int, last: int) -> str:
    """The digest of some lines of a module's source, empty when they cannot be read."""
    try:
        lines, _ = inspect.getsourcelines(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return ""
    return hashlib.sha256("".join(lines[first - 1 : last - 1]).encode()).hexdigest()


def _head(path: Path) -> str:
    """What tells a sealed file from every other: its header, with the digest of its contents in it."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read(128)).hexdigest()


# -- reading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    manifest: dict[str, Any]
    traced: bytes


def load(
    folder: Path,
    digests: Digests,
    scope: dict[str, Any],
    entry: Callable[[AOTCompiledFunction, Mapping[str, str]], T | None],
) -> T | None:
    """The entry of the first compiled function of a folder that may be used here, None when there is none."""
    paths = sorted(folder.glob(f"*{SUFFIX}"), key=lambda p: p.stat().st_mtime, reverse=True)
    for path in paths:
        found = _read(path)
        if found is None or not _same(found.manifest, digests):
            continue
        models = [_program(folder / name, head) for name, head in found.manifest["programs"]]
        if None in models:
            continue
        compiled = _function(found.traced, scope)
        made = entry(compiled, found.manifest["identities"])
        if made is not None:
            for used in (path, *(folder / name for name, _ in found.manifest["programs"])):
                CacheFolder.use(used)
            graph: Any = compiled._artifacts.compiled_fn
            graph.attach(models)
            return made
    return None


def _read(path: Path) -> _Found | None:
    try:
        contents = read_sections(memoryview(path.read_bytes()), path.name)
        if not keys.verify(contents.signed, contents.seal):
            return None
        manifest = json.loads(bytes(contents.sections["manifest"]))
        found = _Found(manifest, bytes(contents.sections["dynamo"]))
    except (OSError, GeError, KeyError, ValueError):
        return None
    return found if manifest.get("format") == FORMAT else None


def _same(manifest: dict[str, Any], digests: Digests) -> bool:
    if any(_lines(module, first, last) != digest for module, first, last, digest in manifest["sources"]):
        return False
    constants = manifest["constants"]
    try:
        return digests.of(constants) == constants
    except KeyError:
        return False


def _program(path: Path, head: str) -> Model | None:
    try:
        return packed.read(path) if _head(path) == head else None
    except OSError:
        return None


def _function(traced: bytes, scope: dict[str, Any]) -> AOTCompiledFunction:
    from torch._dynamo.convert_frame import get_compile_id
    from torch._dynamo.utils import get_metrics_context
    from torch._guards import CompileContext, compile_context
    from torch._logging import trace_structured

    with compile_context(CompileContext(get_compile_id({}))), get_metrics_context():
        # A first short entry: without TORCH_TRACE there is no log, but PyTorch notices only at the first entry.
        trace_structured("torchair_kept_graph")
        return AOTCompiledFunction.deserialize(traced, scope)
