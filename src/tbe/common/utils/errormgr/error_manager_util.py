"""Formats the error dictionaries of operator files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["get_error_message", "raise_runtime_error", "raise_runtime_error_cube"]


def get_error_message(args_dict: Mapping[str, Any]) -> str:
    """The message of an error dictionary: its code and everything it says.

    >>> get_error_message({"errCode": "E80000", "op_name": "add", "param_name": "x"})
    'E80000: op_name=add, param_name=x'
    """
    rest = ", ".join(f"{k}={v}" for k, v in args_dict.items() if k != "errCode")
    return f"{args_dict.get('errCode', 'error')}: {rest}"


def raise_runtime_error(args_dict: Mapping[str, Any]) -> None:
    """Raise an error dictionary as RuntimeError."""
    raise RuntimeError(args_dict, get_error_message(args_dict))


raise_runtime_error_cube = raise_runtime_error
