"""Names of the device's own interface that scripts import beside operators."""

from __future__ import annotations

import threading
from importlib import metadata
from typing import Any

import torch

__all__ = ["get_cann_version", "reset_thread_affinity", "save_async", "set_thread_affinity"]


def get_cann_version(module: str = "CANN") -> str:
    """The version of the runtime."""
    return metadata.version("tf-adapter")


def set_thread_affinity(core_range: Any = None) -> None:
    """Nothing: threads keep to the cores that the process may use (`NPU_NUM_THREADS`, `taskset`)."""


def reset_thread_affinity() -> None:
    """Nothing, as `set_thread_affinity`."""


def save_async(obj: Any, f: Any, *args: Any, **kwargs: Any) -> threading.Thread:
    """`torch.save` in a thread, which is returned; the object must not change meanwhile."""
    thread = threading.Thread(target=torch.save, args=(obj, f, *args), kwargs=kwargs)
    thread.start()
    return thread
