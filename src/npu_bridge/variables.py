"""Variables of version-1 graphs, by reference or by handle: who reads them, who writes to them, how large they are."""

from __future__ import annotations

import math
import re
from typing import Any

import tensorflow.compat.v1 as tf

__all__ = [
    "ASSIGNS",
    "bytes_of",
    "changes_rows",
    "is_resource",
    "is_update",
    "read_resource",
    "read_variable",
    "sizes_of",
    "type_of",
    "updated_variables",
    "variable_of",
]

_REFERENCES = ("VariableV2", "Variable")
_HANDLE = "VarHandleOp"
_UPDATE = re.compile(
    "(Resource)?(Sparse)?Apply[A-Z].*|(Resource)?Scatter(Add|Sub|Update|Mul|Div|Max|Min)|Assign(Add|Sub)?(VariableOp)?"
)
_ROWS = re.compile("Resource(SparseApply|Scatter).*")
_SWITCHES = ("Switch", "RefSwitch")
_PASSING = (*_SWITCHES, "Enter", "RefEnter", "Identity", "RefIdentity")
_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
ASSIGNS = ("Assign", "AssignVariableOp")


def is_update(operation: Any) -> bool:
    """Whether an operation changes variables and does nothing else."""
    return _UPDATE.fullmatch(operation.type) is not None


def changes_rows(operation: Any) -> bool:
    """Whether an operation changes some rows of a variable that has a handle."""
    return _ROWS.fullmatch(operation.type) is not None


def is_resource(tensor: Any) -> bool:
    """Whether a tensor is a handle."""
    return bool(tensor.dtype.base_dtype == tf.resource)


def variable_of(tensor: Any) -> Any:
    """The tensor of the variable behind a reference or a handle; None where it is not known which one that is."""
    while is_resource(tensor) or tensor.dtype._is_ref_dtype:
        if tensor.op.type in (*_REFERENCES, _HANDLE):
            return tensor
        if not (is_update(tensor.op) or _passes(tensor.op)):
            return None
        tensor = tensor.op.inputs[0]
    return None


def _passes(operation: Any) -> bool:
    """Whether an operation hands on a reference or a handle of a variable that has a value, into a branch or a loop."""
    if operation.type not in _PASSING:
        return False
    if operation.type in _SWITCHES:
        predicate = operation.inputs[1].op
        while predicate.type == "Identity":
            predicate = predicate.inputs[0].op
        return predicate.type not in ("VarIsInitializedOp", "IsVariableInitialized")
    return True


def read_variable(operation: Any) -> Any:
    """The tensor of the variable by reference that an operation does nothing but read; None for all others."""
    if operation.type != "Identity":
        return None
    source = operation.inputs[0]
    return source if source.op.type in _REFERENCES else None


def read_resource(operation: Any) -> Any:
    """The handle of the variable that an operation reads, all of it or some rows; None for all others."""
    return variable_of(operation.inputs[0]) if operation.type in _READS else None


def updated_variables(operation: Any) -> list[Any]:
    """The tensors of the variables that an operation writes to; None among them where it is not known which."""
    if not is_update(operation):
        return []
    return [variable_of(t) for t in operation.inputs if t.dtype._is_ref_dtype or is_resource(t)]


def type_of(tensor: Any) -> Any:
    """The element type of a tensor, or of the variable that it is a handle of."""
    return tf.as_dtype(tensor.op.get_attr("dtype")) if is_resource(tensor) else tensor.dtype.base_dtype


def sizes_of(tensor: Any) -> tuple[int, ...] | None:
    """The sizes of a tensor, or of the variable that it is a handle of; None when they are not known."""
    shape = tf.TensorShape(tensor.op.get_attr("shape")) if is_resource(tensor) else tensor.shape
    return tuple(map(int, shape.as_list())) if shape.is_fully_defined() else None


def bytes_of(tensor: Any) -> int:
    """The bytes of a variable; 0 when its size is not known."""
    return math.prod(sizes_of(tensor) or (0,)) * int(type_of(tensor).size)
