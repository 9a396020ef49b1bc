"""The NPU among TensorFlow's devices: registration, names, the configuration API, the default device.

TensorFlow has no way to add a device type from Python, so a few of its functions are wrapped here while the program
runs; nothing is changed on disk. Devices are registered when the eager context starts, so that `tf.config` can still
be used after the import.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import device_spec

import npu_runtime
from ge.ops.base import subscribe
from npu_runtime import tensorflow as native

__all__ = ["as_default", "device_name", "is_default", "register"]

TYPE = "NPU"
_PREFIX = f"/job:localhost/replica:0/task:0/device:{TYPE}:"
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")


def device_name(index: int = 0) -> str:
    """TensorFlow's full name of an NPU.

    >>> device_name(1)
    '/job:localhost/replica:0/task:0/device:NPU:1'
    """
    return f"{_PREFIX}{index}"


class _State:
    """Whether the NPU is the default device."""

    default = False


def register() -> None:
    """Make the NPUs known to TensorFlow; done by `import tf_adapter`."""
    if getattr(context, "_npu_registered", False):
        return
    native.load(_library_paths())
    _parse_npu_names()
    _wrap_devices()
    _wrap_threads()
    _set_callbacks()
    context._npu_registered = True
    running = context._context
    if running is not None and running._initialized:
        _add_physical_devices(running)
        _add_devices(running)
    as_default(os.environ.get("NPU_AS_DEFAULT", "1") not in ("0", "false", "False"))


def _set_callbacks() -> None:
    from tf_adapter import eager
    from tf_adapter.callbacks import function_compile
    from tf_adapter.options import options
    from tf_adapter.parts import part_compile

    eager.start()
    native.set_callbacks(eager.classify, eager.compile_op, function_compile, part_compile)
    options.subscribe(native.forget_all)
    subscribe(native.forget_all)  # other operators, other plans


def _library_paths() -> list[str]:
    root = Path(tf.__file__).parent
    return [str(root / name) for name in _LIBRARIES]


def _wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put a function around one of TensorFlow's."""
    original = getattr(owner, name)
    setattr(owner, name, wraps(original)(make(original)))


# -- names --------------------------------------------------------------------------------------------------------


def _parse_npu_names() -> None:
    """Let "/NPU:0" parse as "/GPU:0" does."""
    original = device_spec.DeviceSpecV2._get_valid_device_types
    device_spec.DeviceSpecV2._get_valid_device_types = staticmethod(lambda: original() | {TYPE})


# -- the eager context ----------------------------------------------------------------------------------------------


def _wrap_devices() -> None:
    def physical(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(self: Any, reinitialize: bool = False) -> None:
            original(self, reinitialize)
            _add_physical_devices(self)

        return initialize

    def logical(original: Callable[..., Any]) -> Callable[..., Any]:
        def initialize(self: Any) -> None:
            original(self)
            _add_devices(self)

        return initialize

    _wrap(context.Context, "_initialize_physical_devices", physical)
    _wrap(context.Context, "_initialize_logical_devices", logical)


def _physical(index: int) -> Any:
    return context.PhysicalDevice(name=f"/physical_device:{TYPE}:{index}", device_type=TYPE)


def _add_physical_devices(self: Any) -> None:
    for index in range(npu_runtime.device_count()):
        device = _physical(index)
        if device not in self._physical_devices:
            self._physical_devices.append(device)
            self._visible_device_list.append(device)


def _add_devices(self: Any) -> None:
    """Register with a context that has just started."""
    visible = [d for d in self._visible_device_list if d.device_type == TYPE]
    count = npu_runtime.device_count()
    for index in range(count):
        if _physical(index) not in visible:
            continue
        name = device_name(index)
        if not pywrap_tfe.TFE_Py_IsCustomDevice(self._context_handle, name):
            device, info = native.create_device(index, name, wrap_variables=count == 1)
            pywrap_tfe.TFE_Py_RegisterCustomDevice(self._context_handle, device, name, info)
        logical = context.LogicalDevice(name=f"/device:{TYPE}:{index}", device_type=TYPE)
        if logical not in self._logical_devices:
            self._logical_devices.append(logical)


# -- the default device ---------------------------------------------------------------------------------------------


def is_default() -> bool:
    """Whether operators without a device go to NPU:0."""
    return _State.default


def as_default(on: bool = True) -> None:
    """Make NPU:0 the device of operators that name none, in this thread and in every thread started from now on.

    >>> import tf_adapter
    >>> tf_adapter.as_default(False)
    >>> tf_adapter.is_default()
    False
    >>> tf_adapter.as_default()
    """
    _State.default = on
    _apply_default()


def _apply_default() -> None:
    current = context.context()
    if _State.default and not current.device_name:
        current._set_device(device_name(), device_spec.DeviceSpecV2.from_string(device_name()))
    elif not _State.default and current.device_name == device_name():
        current._set_device("", device_spec.DeviceSpecV2.from_string(""))


def _wrap_threads() -> None:
    def bootstrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: threading.Thread) -> None:
            if _State.default:
                _apply_default()
            original(self)

        return run

    _wrap(threading.Thread, "_bootstrap_inner", bootstrap)
