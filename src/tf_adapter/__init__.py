"""TensorFlow on the NPU: importing this package registers the devices and makes NPU:0 the default.

    import tensorflow as tf
    import tf_adapter

Set NPU_AS_DEFAULT=0 (or call `tf_adapter.as_default(False)`) to keep TensorFlow's own default device. The compiler is
loaded by the first operator or function that asks for it.
"""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from ge.compatibility import load_triton_before_tensorflow as _load_triton_before_tensorflow

try:
    _load_triton_before_tensorflow()
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"tf_adapter needs TensorFlow, which could not be imported ({error}). Install it with "
        "'pip install tensorflow-cpu>=2.15'"
    ) from error

from tf_adapter.device import as_default, is_default, register
from tf_adapter.options import options, start

if _TYPE_CHECKING:
    from tf_adapter.custom_ops import custom_op
    from tf_adapter.explanation import explain
    from tf_adapter.offline import export

__all__ = ["as_default", "custom_op", "explain", "export", "is_default", "options", "register"]

_MODULES = {
    "custom_op": "tf_adapter.custom_ops",
    "explain": "tf_adapter.explanation",
    "export": "tf_adapter.offline",
}


def __getattr__(name: str) -> _Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'tf_adapter' has no attribute '{name}'")
    value = getattr(_importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
start()
