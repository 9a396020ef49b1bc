"""The operator library: a module a family, an operator with its prototype, computation and plugins."""

from collections.abc import Callable
from typing import Any

from ge.ir.types import BOOL, FLOATS, INTS, NUMBERS, TENSORS, TensorDesc
from ge.ops import (  # noqa: F401  the families register their operators when they are loaded
    activation,
    attention,
    binary,
    bits,
    checks,
    control,
    convolution,
    diagonals,
    elementwise,
    functions,
    gather_scatter,
    layer_norm_gradient,
    linalg,
    lstm_steps,
    matmul,
    movement,
    normalisation,
    philox,
    pooling,
    quantise,
    random,
    recurrent,
    reduce,
    resize,
    segments,
    shapes,
    signal,
    slices,
    sorting,
    sparse,
    tensorflow_casts,
    text,
    training,
    vision,
    warp,
    window_gradients,
)
from ge.ops.base import (
    REQUIRED,
    Attr,
    Engine,
    Input,
    NodeView,
    Operator,
    Output,
    Pattern,
    fail,
    fingerprint,
    lookup,
    register,
    registered,
    unregister,
)
from ge.ops.plugins import Node, Unsupported, plugin, simple

__all__ = [
    "BOOL",
    "FLOATS",
    "INTS",
    "NUMBERS",
    "REQUIRED",
    "TENSORS",
    "Attr",
    "Engine",
    "Input",
    "Node",
    "NodeView",
    "Operator",
    "Output",
    "Pattern",
    "TensorDesc",
    "Unsupported",
    "fail",
    "fingerprint",
    "lookup",
    "plugin",
    "register",
    "registered",
    "simple",
    "unregister",
]


def __getattr__(name: str) -> Callable[..., Any]:
    return functions.find(name)  # of an operator registered after this module was loaded


# The graph API's functions (ge.ops.relu, …). One that has a family's name takes the name over.
globals().update(functions.functions())
