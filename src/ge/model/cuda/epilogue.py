"""Generated kernels for the parts of epilogues that a library call does not support."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tbe

__all__ = ["activated", "epilogue"]


def _gelu_tanh(x: tbe.Tensor) -> tbe.Tensor:
    inner = (x + x * x * x * 0.044715) * 0.7978845608028654
    return x * 0.5 * (tbe.unary("tanh", inner) + 1.0)


_ACTIVATIONS: dict[str, Callable[[tbe.Tensor], tbe.Tensor]] = {
    "": lambda x: x,
    "relu": lambda x: tbe.binary("max", x, 0.0),
    "relu6": lambda x: tbe.binary("min", tbe.binary("max", x, 0.0), 6.0),
    "sigmoid": lambda x: tbe.unary("sigmoid", x),
    "tanh": lambda x: tbe.unary("tanh", x),
    "swish": lambda x: x * tbe.unary("sigmoid", x),
    "gelu_erf": lambda x: x * (tbe.unary("normal_excess", x) + 0.5),
    "gelu_tanh": _gelu_tanh,
}


def activated(x: tbe.Tensor, activation: str) -> tbe.Tensor:
    """Apply an activation by name; "" is the identity."""
    return _ACTIVATIONS[activation](x)


_VANISHING = ("swish", "gelu_erf", "gelu_tanh")  # zero for large negative numbers, NaN for an infinite one
_LARGEST = 65504.0  # number of float16


def epilogue(
    dtype: str, shape: Sequence[int], channel_axis: int, has_bias: bool, has_residual: bool, activation: str
) -> tuple[list[tbe.Tensor], list[tbe.Tensor]]:
    """act(y + bias + residual) in float32, rounded again to the type of y: inputs and output of the kernel.

    >>> inputs, outputs = epilogue("float16", (4, 8), 1, True, False, "relu")
    >>> [t.shape for t in inputs], outputs[0].dtype
    ([(4, 8), (8,)], 'float16')
    """
    inputs: list[tbe.Tensor] = [tbe.placeholder(tuple(shape), dtype)]
    value = tbe.cast(inputs[0], "float32")
    if has_bias:
        inputs.append(tbe.placeholder((shape[channel_axis],), dtype))
        spread = [n if axis == channel_axis else 1 for axis, n in enumerate(shape)]
        value = value + tbe.cast(tbe.reshape(inputs[-1], tuple(spread)), "float32")
    if has_residual:
        inputs.append(tbe.placeholder(tuple(shape), dtype))
        value = value + tbe.cast(inputs[-1], "float32")
    if (
        dtype == "float16" and activation in _VANISHING
    ):  # a sum that overflows the type is still finite in float32
        value = tbe.binary("max", value, -_LARGEST)
    if activation == "gelu_erf" and dtype != "float32":
        return inputs, [tbe.cast(value * tbe.unary("narrow_normal_share", value), dtype)]
    return inputs, [tbe.cast(activated(value, activation), dtype)]
