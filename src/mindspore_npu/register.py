"""Registering the back end with MindSpore, once a process."""

from __future__ import annotations

import functools

from mindspore_npu.native import library

__all__ = ["NAME", "register"]

NAME = "npu"


@functools.cache
def register() -> None:
    """Make `mindspore.jit(..., backend="npu")` known; builds the native part the first time."""
    from mindspore import graph

    if not graph.register_custom_backend(NAME, str(library())):
        raise RuntimeError(f"MindSpore refused the back end {library()}")
