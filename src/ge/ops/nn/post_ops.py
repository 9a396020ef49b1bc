"""Post-ops in NumPy: the reference for products with post-ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import tbe

__all__ = ["apply_post_ops"]


def _elementwise(name: str) -> Callable[..., np.ndarray]:
    def function(y: np.ndarray, *_: float) -> np.ndarray:
        place = tbe.placeholder(y.shape, "float32")
        return tbe.evaluate([tbe.unary(name, place)], {place: y})[0]

    return function


def _gelu_tanh(y: np.ndarray, *_: float) -> np.ndarray:
    return y * 0.5 * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (y + np.float32(0.044715) * y * y * y)))


_sigmoid = _elementwise("sigmoid")
_UNARY: dict[str, Callable[..., np.ndarray]] = {
    "relu": lambda y: np.maximum(y, 0),
    "leaky": lambda y, a=0.01: np.where(y > 0, y, y * np.float32(a)),
    "elu": lambda y, a=1.0: np.where(y > 0, y, np.expm1(y) * np.float32(a)),
    "gelu_erf": lambda y: y * 0.5 * (1 + _elementwise("erf")(y * np.float32(np.sqrt(0.5)))),
    "gelu_tanh": _gelu_tanh,
    "swish": lambda y, a=1.0: y * _sigmoid(y * np.float32(a)),
    "tanh": lambda y: np.tanh(y),
    "sigmoid": lambda y: _sigmoid(y),
    "clip": lambda y, low=0.0, high=6.0: np.clip(y, np.float32(low), np.float32(high)),
    "hardswish": lambda y: y * np.clip(y * np.float32(1 / 6) + np.float32(0.5), 0, 1),
    "hardsigmoid": lambda y, a=1 / 6, b=0.5: np.clip(y * np.float32(a) + np.float32(b), 0, 1),
    "mish": lambda y: y * np.tanh(_elementwise("softplus")(y)),
    "softplus": _elementwise("softplus"),
    "abs": np.abs,
    "sqrt": np.sqrt,
    "square": np.square,
    "exp": np.exp,
    "linear": lambda y, a=1.0, b=0.0: y * np.float32(a) + np.float32(b),
}
_BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


def apply_post_ops(
    y: np.ndarray, post_ops: Sequence[str], operands: Sequence[np.ndarray | None]
) -> np.ndarray:
    """The result of a product after its post-ops; binary ones take the operands in order."""
    rest = iter([o for o in operands if o is not None])
    for text in post_ops:
        kind, *numbers = text.split(",")
        if kind in _BINARY:
            y = _BINARY[kind](y, next(rest).astype(y.dtype))
        else:
            y = np.asarray(_UNARY[kind](y, *map(float, numbers)), y.dtype)
    return y
