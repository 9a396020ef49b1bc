"""Build settings, accepted as older operator files set them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["build_config", "build_config_update"]

build_config: dict[str, Any] = {}


@contextlib.contextmanager
def _settings(*_: Any, **__: Any) -> Iterator[None]:
    yield


def build_config_update(config: Any, *_: Any, **__: Any) -> Any:
    """Settings with some of them changed: they have no effect here."""
    return _settings()
