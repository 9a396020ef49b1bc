"""The operator library: one module a family, each operator with prototype, inference, computation and plugins."""

from ge.ops import (
    activation,
    binary,
    elementwise,
    reduce,
)
from ge.ops.base import lookup, register, registered, unregister

__all__ = ["lookup", "register", "registered", "unregister"]

_FAMILIES = (activation, binary, elementwise, reduce)
