"""Cube operators that scripts import from here; none is provided, and using one raises an error."""

from __future__ import annotations

from typing import NoReturn

__all__: list[str] = []


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(
        f"npu_cube_ops.{name} is not provided: write it with TensorFlow's own operators, which run on the NPU"
    )
