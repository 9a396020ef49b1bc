"""PyTorch's graph mode on the NPU: a torch.compile backend, export to offline models, and a cache on disk."""

from __future__ import annotations

from ge.compatibility import warn_of_late_triton as _warn_of_late_triton

try:
    _warn_of_late_triton()
    import torch as _torch
except ImportError as error:
    raise ImportError("torchair needs PyTorch: pip install torch") from error

from torchair import backend as _backend
from torchair import inference, ops, scope
from torchair.backend import get_compiler, get_npu_backend
from torchair.config import CompilerConfig
from torchair.converters import register_fx_node_ge_converter
from torchair.custom_ops import custom_op
from torchair.explain import explain
from torchair.export import dynamo_export

__all__ = [
    "CompilerConfig",
    "custom_op",
    "dynamo_export",
    "explain",
    "get_compiler",
    "get_npu_backend",
    "inference",
    "ops",
    "register_fx_node_ge_converter",
    "scope",
]

del _torch
_backend.register()
