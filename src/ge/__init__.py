"""The Graph Engine: parse, verify, fuse, place, plan and run models on the NPU.

Names are loaded on first use, so that `import ge` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ge.deferred import defer

if TYPE_CHECKING:
    from ge import opp, ops
    from ge.errors import GeError, OutOfMemoryError, UnsupportedOperatorsError
    from ge.explanation import explain
    from ge.front_door import compile
    from ge.model.model import Model
    from ge.model.om import load, save
    from ge.ops.graph import Graph, Tensor
    from ge.options import CompileOptions, Implementation, PrecisionMode
    from ge.replicas import Replicas, on_device
    from ge.running import describe_operator, run_operator
    from ge.session import Session

__all__ = [
    "CompileOptions",
    "GeError",
    "Graph",
    "Implementation",
    "Model",
    "OutOfMemoryError",
    "PrecisionMode",
    "Replicas",
    "Session",
    "Tensor",
    "UnsupportedOperatorsError",
    "compile",
    "describe_operator",
    "explain",
    "load",
    "on_device",
    "opp",
    "ops",
    "run_operator",
    "save",
]

_MODULES = {
    "CompileOptions": "ge.options",
    "GeError": "ge.errors",
    "Graph": "ge.ops.graph",
    "Implementation": "ge.options",
    "Model": "ge.model.model",
    "OutOfMemoryError": "ge.errors",
    "PrecisionMode": "ge.options",
    "Replicas": "ge.replicas",
    "Session": "ge.session",
    "Tensor": "ge.ops.graph",
    "UnsupportedOperatorsError": "ge.errors",
    "compile": "ge.front_door",
    "describe_operator": "ge.running",
    "explain": "ge.explanation",
    "load": "ge.model.om",
    "on_device": "ge.replicas",
    "run_operator": "ge.running",
    "save": "ge.model.om",
}

defer("onnx_ir", ("sympy", "onnx_ir._symbolic_shapes"))


def __getattr__(name: str) -> Any:
    if name in ("ops", "opp"):
        return importlib.import_module(f"ge.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'ge' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
