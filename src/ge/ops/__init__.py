"""The operator library: one module a family, each operator with prototype, inference, computation and plugins."""

from ge.ops import (
    activation,
    binary,
    convolution,
    elementwise,
    gather_scatter,
    matmul,
    movement,
    normalisation,
    pooling,
    reduce,
)
from ge.ops.base import lookup, register, registered, unregister

__all__ = ["lookup", "register", "registered", "unregister"]

_FAMILIES = (
    activation,
    binary,
    convolution,
    elementwise,
    gather_scatter,
    matmul,
    movement,
    normalisation,
    pooling,
    reduce,
)
