"""The operator library: one module per family; each operator declares prototype, computation and plugins."""

from collections.abc import Callable
from typing import Any

from ge.ir.types import BOOL, FLOATS, INTS, NUMBERS, TENSORS, TensorDesc
from ge.ops import functions
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
from ge.ops.flow import control, scan  # noqa: F401  the families register their operators when they are loaded
from ge.ops.image import resize, vision, warp  # noqa: F401  the families register their operators when they are loaded
from ge.ops.math import (  # noqa: F401  the families register their operators when they are loaded
    activation,
    binary,
    bits,
    checks,
    elementwise,
    linalg,
    philox,
    random,
    reduce,
    signal,
    sparse,
    tensorflow_casts,
)
from ge.ops.microsoft import (  # noqa: F401
    alignment,
    attention_lstm,
    blocked,
    early,
    experts,
    fused,
    generation,
    hashing,
    hyper_connections,
    linear_attention,
    quantised,
)
from ge.ops.microsoft import attention as attention_layers  # noqa: F401  (plugins only, as the next line's)
from ge.ops.microsoft import training as training_graphs  # noqa: F401
from ge.ops.ml import features, linear, trees  # noqa: F401  the families register their operators when they are loaded
from ge.ops.nn import (  # noqa: F401  the families register their operators when they are loaded
    attention,
    convolution,
    convolution_chains,
    layer_norm_gradient,
    lstm_steps,
    matmul,
    normalisation,
    packed,
    pooling,
    quantise,
    recurrent,
    training,
    window_gradients,
)
from ge.ops.plugins import Node, Unsupported, plugin, simple
from ge.ops.tensor import (  # noqa: F401  the families register their operators when they are loaded
    blocks,
    creation,
    diagonals,
    gather_scatter,
    movement,
    segments,
    shapes,
    slices,
    sorting,
    text,
)

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
