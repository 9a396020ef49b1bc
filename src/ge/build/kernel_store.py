"""The kernel cache on disk: in the user's cache folder or NPU_CACHE_DIR; `off` disables it.

A file is named after everything that determines the machine code: expression (its fingerprint), generator sources,
target, processor with its caches, compiler.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import tbe
from ge.identity import sources
from ge.model.folder import CacheFolder
from npu_runtime import environment

__all__ = ["KernelStore", "open_store"]

LIMIT_BYTES = 256 << 20
_META = ("symbol", "total", "grain", "flops", "bytes_moved", "target", "fingerprint")
_LARGEST_FILE = 64 << 20


def open_store() -> KernelStore | None:
    """The store in the folder of the compile cache, None when NPU_CACHE_DIR is "off"."""
    folder = environment.compile_cache()
    return None if folder is None else KernelStore(folder / "kernels")


class KernelStore:
    """A folder of compiled kernels."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._files = CacheFolder(folder, limit_bytes, "*")

    def get(self, fingerprint: str, target: str, processor: tbe.Processor | None = None) -> tbe.Kernel | None:
        """A kernel that this user stored for this machine; a damaged file counts as a miss."""
        found = self._files.read(_name(fingerprint, target, processor), _LARGEST_FILE)
        try:
            kernel = None if found is None else _decode(found)
        except (ValueError, KeyError, TypeError):
            return None
        return kernel if kernel is not None and kernel.fingerprint == fingerprint else None

    def put(self, target: str, kernel: tbe.Kernel, processor: tbe.Processor | None = None) -> None:
        """Store a kernel; an unwritable folder is not an error."""
        meta = {key: getattr(kernel, key) for key in _META} | {"aliases": kernel.aliases}
        sections = {"meta": json.dumps(meta).encode(), "ir": kernel.ir.encode(), "object": kernel.object}
        self._files.write(_name(kernel.fingerprint, target, processor), sections)


def _name(fingerprint: str, target: str, processor: tbe.Processor | None) -> str:
    deciding = (fingerprint, sources("tbe"), tbe.code_identity(target), repr(processor or tbe.Processor()))
    return hashlib.sha256("\n".join(deciding).encode()).hexdigest()


def _decode(sections: dict[str, bytes]) -> tbe.Kernel:
    fields = json.loads(sections["meta"])
    aliases = tuple((int(i), int(o)) for i, o in fields.pop("aliases"))
    return tbe.Kernel(object=sections["object"], ir=sections["ir"].decode(), aliases=aliases, **fields)
