"""Measured choices of library candidates, stored in the plan and cached between processes.

A choice is the library's description of an engine and its settings. It is valid for the same task on the same kind of
GPU with the same library versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import secrets
from pathlib import Path

from ge.plan import Plan, Task
from npu_runtime import cuda, environment

__all__ = ["Tuning", "task_key", "tuning_file"]

_VERSIONS = {"cudnn": "cudnnGetVersion", "cublasLt": "cublasLtGetVersion"}


def task_key(task: Task) -> str:
    """A key for all tasks that do the same work on operands of the same layout.

    >>> from ge.ir.types import TensorDesc
    >>> from ge.plan import View
    >>> rows = View.of(0, TensorDesc((2, 3), "float16"))
    >>> one, other = (Task("matmul", name, [rows], [rows], {"post_ops": []}) for name in "ab")
    >>> task_key(one) == task_key(other)
    True
    """
    views = [(v.dtype, list(v.shape), list(v.strides)) for v in (*task.inputs, *task.outputs)]
    text = json.dumps([task.kind, views, sorted(task.attrs.items())], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def tuning_file() -> Path:
    """The file of choices cached between processes."""
    return environment.cache_folder() / "cuda-tuning.json"


@functools.cache
def _identity(device: int) -> str:
    """The GPU and the libraries that choices are valid for."""
    versions = []
    for name, function in _VERSIONS.items():
        try:
            versions.append(f"{name} {getattr(ctypes.CDLL(cuda.library_path(name)), function)()}")
        except (OSError, AttributeError):  # the library is missing, and nothing of it can be chosen
            continue
    return ", ".join([cuda.describe(device)["name"], *versions])


class Tuning:
    """The choices for a plan on a GPU: from the plan itself, else from the cache folder."""

    def __init__(self, plan: Plan, device: int) -> None:
        self.identity = _identity(device)
        self._sealed = plan.report.setdefault("tuning", {})
        self._kept = _read(tuning_file())

    def choice(self, task: Task) -> str | None:
        """The chosen candidate of a task, as passed to `keep`."""
        key = task_key(task)
        for table in (self._sealed, self._kept):
            found = table.get(self.identity, {}).get(key)
            if isinstance(found, str):
                return found
        return None

    def keep(self, task: Task, text: str) -> None:
        """Record the fastest candidate of a task."""
        for table in (self._sealed, self._kept):
            table.setdefault(self.identity, {})[task_key(task)] = text

    def save(self) -> None:
        """Write the choices to the cache folder, merged with those of other processes."""
        path = tuning_file()
        merged = _read(path)
        for identity, table in self._kept.items():
            merged.setdefault(identity, {}).update(table)
        with contextlib.suppress(OSError):  # an unwritable folder caches nothing
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
            draft.write_text(json.dumps(merged))
            os.replace(draft, path)


def _read(path: Path) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    tables = found.items() if isinstance(found, dict) else ()
    return {name: table for name, table in tables if isinstance(table, dict)}
