"""Registers the back end with MindSpore, once per process."""

from __future__ import annotations

import functools

from mindspore_npu.native import library

__all__ = ["NAME", "register"]

NAME = "npu"


@functools.cache
def register() -> None:
    """Register `mindspore.jit(..., backend="npu")`; builds the native part on first use."""
    from mindspore import graph

    if not graph.register_custom_backend(NAME, str(library())):
        raise RuntimeError(f"MindSpore refused the back end {library()}")
