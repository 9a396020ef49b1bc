"""TIK is refused by name: every attribute raises and says what to use instead."""

from __future__ import annotations

from typing import Any

from tbe.dsl.refused import refuse_tik


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return refuse_tik(name)
