"""What Keras's tests take from the `conftest.py` of its repository, which its wheel leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def skip_if_backend(given_backend: str, reason: str) -> pytest.MarkDecorator:
    """A mark for tests that one backend cannot run."""
    from tensorflow.keras.backend import backend

    return pytest.mark.skipif(backend() == given_backend, reason=reason)


def pytest_configure(config: Any) -> None:
    for mark in ("requires_trainable_backend", "multi_device"):
        config.addinivalue_line("markers", f"{mark}: a mark of Keras")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if "multi_device" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs JAX and several devices"))
