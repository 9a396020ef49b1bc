"""TensorFlow on the NPU: importing this package registers the devices and makes NPU:0 the default.

    import tensorflow as tf
    import tf_adapter

Set NPU_AS_DEFAULT=0 (or call `tf_adapter.as_default(False)`) to keep TensorFlow's own default device.
"""

from __future__ import annotations

import gc as _gc

try:
    import tensorflow  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"tf_adapter needs TensorFlow, which could not be imported ({error}). Install it with "
        "'pip install tensorflow-cpu>=2.15'"
    ) from error

# A full collection in between would walk all objects of TensorFlow, which takes as long as these imports.
_collects = _gc.isenabled()
_gc.disable()
try:
    from tf_adapter.custom_ops import custom_op
    from tf_adapter.device import as_default, is_default, register
    from tf_adapter.explain import explain
    from tf_adapter.export import export
    from tf_adapter.options import options, start
finally:
    if _collects:
        _gc.enable()

__all__ = ["as_default", "custom_op", "explain", "export", "is_default", "options", "register"]

register()
start()
