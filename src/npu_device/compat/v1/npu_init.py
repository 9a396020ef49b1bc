"""The names of `from npu_device.compat.v1.npu_init import *`, those of `npu_bridge.npu_init`.

`tf` has TensorFlow's version-1 names first. Unlike `npu_bridge`, this leaves version-2 behaviour on, and sessions run
on the NPU only after `npu_device.compat.enable_v1()`.
"""

from __future__ import annotations

import importlib
from typing import Any

from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from npu_bridge.lazy import estimator_names
from npu_bridge.version1 import tensorflow_v1

_MODULES = (
    "hccl.manage.api",
    "hccl.split.api",
    "npu_bridge.helpers",
    "npu_bridge.estimator.npu.npu_dynamic_rnn",
    "npu_bridge.estimator.npu.npu_hook",
    "npu_bridge.estimator.npu.npu_loss_scale_manager",
    "npu_bridge.estimator.npu.npu_loss_scale_optimizer",
    "npu_bridge.estimator.npu.npu_optimizer",
)
_AS_MODULES = {
    "hccl_ops": "npu_bridge.hccl.hccl_ops",
    "npu_cube_ops": "npu_bridge.estimator.npu_cube_ops",
    "npu_ops": "npu_bridge.estimator.npu_ops",
    "npu_scope": "npu_bridge.estimator.npu.npu_scope",
    "npu_unary_ops": "npu_bridge.estimator.npu_unary_ops",
    "util": "npu_bridge.estimator.npu.util",
}


def _names() -> dict[str, Any]:
    found: dict[str, Any] = {"RewriterConfig": RewriterConfig, "tf": tensorflow_v1()}
    for path in _MODULES:
        module = importlib.import_module(path)
        found.update({name: getattr(module, name) for name in module.__all__})
    found.update({name: importlib.import_module(path) for name, path in _AS_MODULES.items()})
    found.update(estimator_names())
    return found


_supplied = _names()
globals().update(_supplied)
__all__ = sorted(_supplied)
