"""Values on a TensorFlow graph's edges: tensors, and objects that exist only while parsing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ge.ir.types import TENSORS, TensorDesc

__all__ = [
    "DEAD",
    "FAILED",
    "UNKNOWN",
    "Binding",
    "HostTensor",
    "Missing",
    "Opaque",
    "Variable",
    "VariableSpec",
]


class Opaque:
    """Something other than a tensor: a variable, a list of tensors, text."""

    what = "an opaque value"


@dataclass(frozen=True, eq=False)
class HostTensor(Opaque):
    """A constant that the device has no element type for (text, complex numbers)."""

    array: np.ndarray
    dtype: str

    @property
    def what(self) -> str:  # type: ignore[override]
        return f"a {self.dtype} tensor"


@dataclass(frozen=True)
class Variable(Opaque):
    """A handle of a variable; a reference (version 1 graphs) is read wherever a tensor is expected."""

    name: str
    is_ref: bool = False
    what = "a variable's handle"


@dataclass(frozen=True)
class Missing(Opaque):
    """The output of a node that is not executed, or that could not be converted."""

    what: str = ""


DEAD = Missing("the untaken side of a branch")
FAILED = Missing("the output of a node that could not be converted")
UNKNOWN = Missing("a value that is known only when the host has run")

Binding = ir.Value | Opaque


@dataclass(frozen=True)
class VariableSpec:
    """A variable of a model: its description, and its value when it is to be a constant of the graph.

    A variable without a value becomes an input of the graph.
    """

    name: str
    desc: TensorDesc
    value: np.ndarray | None = None

    def __post_init__(self) -> None:
        assert self.desc.dtype in TENSORS, f"variable {self.name} is {self.desc.dtype}"
