"""Kernels kept on disk between processes, in the folder that NPU_CACHE_DIR names; nothing is kept without it.

1. A file is named by what decides the machine code: expression and version of the generator (its fingerprint), target,
   processor, compiler.
2. It is sealed with the user's own key: code from elsewhere, or damaged code, is not run but generated
   again.
3. Files are written aside and moved into place, so that several processes may use one folder.
4. The oldest files go when the folder outgrows its limit.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import struct
from pathlib import Path

import tbe
from ge.model import keys
from npu_runtime import environment

__all__ = ["KernelStore", "open_store"]

LIMIT_BYTES = 256 << 20
_MAGIC = b"npu kernel 1\n"
_LENGTH = struct.Struct("<Q")
_META = ("symbol", "total", "grain", "flops", "bytes_moved", "target", "fingerprint")
_LARGEST_FILE = 64 << 20


def open_store() -> KernelStore | None:
    """The store in the folder that NPU_CACHE_DIR names, None when it names none."""
    folder = environment.text("NPU_CACHE_DIR")
    return KernelStore(Path(folder) / "kernels") if folder else None


class KernelStore:
    """A folder of compiled kernels."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit = limit_bytes

    def get(self, fingerprint: str, target: str) -> tbe.Kernel | None:
        """A kernel that this user stored for this machine; a damaged file counts as a miss."""
        name = _name(fingerprint, target)
        try:
            path = self.folder / name
            if path.stat().st_size > _LARGEST_FILE:
                return None
            data = path.read_bytes()
            kernel = _decode(name, data)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return kernel if kernel.fingerprint == fingerprint else None

    def put(self, target: str, kernel: tbe.Kernel) -> None:
        """Store a kernel; a folder that cannot be written is no error."""
        name = _name(kernel.fingerprint, target)
        data = _encode(name, kernel)
        if data is None:
            return
        temporary = self.folder / f".{name}.{secrets.token_hex(6)}"
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                temporary.replace(self.folder / name)
            finally:
                temporary.unlink(missing_ok=True)
            self._prune()

    def _prune(self) -> None:
        """Drop the files unused for longest until half of the limit is left."""
        files = [(entry.stat(), entry.path) for entry in os.scandir(self.folder) if entry.is_file()]
        total = sum(status.st_size for status, _ in files)
        if total <= self._limit:
            return
        for status, path in sorted(files, key=lambda file: file[0].st_mtime):
            if total <= self._limit // 2:
                break
            os.unlink(path)
            total -= status.st_size


def _name(fingerprint: str, target: str) -> str:
    return hashlib.sha256("\n".join((fingerprint, tbe.code_identity(target))).encode()).hexdigest()


def _encode(name: str, kernel: tbe.Kernel) -> bytes | None:
    """The file of a kernel; None when there is no key to seal it with."""
    meta = {key: getattr(kernel, key) for key in _META} | {"aliases": kernel.aliases}
    parts = [json.dumps(meta).encode(), kernel.ir.encode(), kernel.object]
    content = _MAGIC + b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    seal = keys.sign(name.encode() + content)
    return content + seal if any(seal) else None


def _decode(name: str, data: bytes) -> tbe.Kernel:
    """The kernel in a file; raises ValueError unless the user's key sealed it under this name."""
    content, seal = data[: -keys.KEY_BYTES], data[-keys.KEY_BYTES :]
    if not content.startswith(_MAGIC) or not keys.verify(name.encode() + content, seal):
        raise ValueError("not sealed by this user")
    at, parts = len(_MAGIC), []
    for _ in range(3):
        (length,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        parts.append(content[at : at + length])
        at += length
    meta, ir, code = parts
    fields = json.loads(meta)
    aliases = tuple((int(i), int(o)) for i, o in fields.pop("aliases"))
    return tbe.Kernel(object=code, ir=ir.decode(), aliases=aliases, **fields)
