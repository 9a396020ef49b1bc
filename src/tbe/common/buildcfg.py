"""Build settings, accepted as older operator files set them."""

from __future__ import annotations

from typing import Any

__all__ = ["build_config", "build_config_update"]


class _Settings(dict[str, Any]):
    """Settings of a build, which files enter as a context."""

    def __enter__(self) -> _Settings:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was changed."""


build_config = _Settings()


def build_config_update(config: Any, *_: Any, **__: Any) -> Any:
    """Settings with some of them changed: they have no effect here."""
    return _Settings(config)
