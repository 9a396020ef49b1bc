"""Attributes of operators that one file describes as classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tbe.dsl.tensor import const

__all__ = ["OpAttr", "get_attr_by_cls"]


@dataclass(frozen=True)
class OpAttr:
    """An attribute: its place, its name, its type in the prototype and its default."""

    attr_index: int
    attr_name: str
    attr_type: str
    default_value: Any = None


def get_attr_by_cls(attr_value: Any, attr_cls: OpAttr, attr_dtype: str) -> Any:
    """The value of an attribute as a typed number; its default where there is none.

    >>> get_attr_by_cls(None, OpAttr(0, "epsilon", "Float", 0.5), "float32")
    0.5
    """
    value = attr_cls.default_value if attr_value is None else attr_value
    if value is None:
        raise RuntimeError(f"attribute '{attr_cls.attr_name}' has no value")
    return (
        [const(v, attr_dtype) for v in value]
        if isinstance(value, (list, tuple))
        else const(value, attr_dtype)
    )
