"""Queries on variables of version-1 graphs (reference and resource): readers, writers, sizes."""

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
    """True if an operation only updates variables."""
    return _UPDATE.fullmatch(operation.type) is not None


def changes_rows(operation: Any) -> bool:
    """True if an operation updates rows of a resource variable."""
    return _ROWS.fullmatch(operation.type) is not None


def is_resource(tensor: Any) -> bool:
    """True if a tensor is a resource handle."""
    return bool(tensor.dtype.base_dtype == tf.resource)


def variable_of(tensor: Any) -> Any:
    """The variable behind a reference or handle; None if unknown."""
    while is_resource(tensor) or tensor.dtype._is_ref_dtype:
        if tensor.op.type in (*_REFERENCES, _HANDLE):
            return tensor
        if not (is_update(tensor.op) or _passes(tensor.op)):
            return None
        tensor = tensor.op.inputs[0]
    return None


def _passes(operation: Any) -> bool:
    """True if an operation passes a reference or handle of an initialised variable into a branch or loop."""
    if operation.type not in _PASSING:
        return False
    if operation.type in _SWITCHES:
        predicate = operation.inputs[1].op
        while predicate.type == "Identity":
            predicate = predicate.inputs[0].op
        return predicate.type not in ("VarIsInitializedOp", "IsVariableInitialized")
    return True


def read_variable(operation: Any) -> Any:
    """The reference variable that an operation only reads; None for other operations."""
    if operation.type != "Identity":
        return None
    source = operation.inputs[0]
    return source if source.op.type in _REFERENCES else None


def read_resource(operation: Any) -> Any:
    """The handle of the variable that an operation reads, fully or some rows; None for other operations."""
    return variable_of(operation.inputs[0]) if operation.type in _READS else None


def updated_variables(operation: Any) -> list[Any]:
    """The variables that an operation writes; contains None for unknown ones."""
    if not is_update(operation):
        return []
    return [variable_of(t) for t in operation.inputs if t.dtype._is_ref_dtype or is_resource(t)]


def type_of(tensor: Any) -> Any:
    """The element type of a tensor, or of the variable behind a handle."""
    return tf.as_dtype(tensor.op.get_attr("dtype")) if is_resource(tensor) else tensor.dtype.base_dtype


def sizes_of(tensor: Any) -> tuple[int, ...] | None:
    """The sizes of a tensor, or of the variable behind a handle; None if unknown."""
    shape = tf.TensorShape(tensor.op.get_attr("shape")) if is_resource(tensor) else tensor.shape
    return tuple(map(int, shape.as_list())) if shape.is_fully_defined() else None


def bytes_of(tensor: Any) -> int:
    """The size of a variable in bytes; 0 if unknown."""
    return math.prod(sizes_of(tensor) or (0,)) * int(type_of(tensor).size)
