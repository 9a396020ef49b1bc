"""The kernels of the kernel benchmark: each written once over a small set of functions that every contender has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["CASES", "Case", "NumpyFunctions", "TbeFunctions", "TorchFunctions", "arrays_of"]


class TbeFunctions:
    """The functions as tensor expressions."""

    def __init__(self) -> None:
        import tbe

        self.tbe = tbe

    def unary(self, name: str, x: Any) -> Any:
        return self.tbe.unary(name, x)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.tbe.binary("max", a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self.tbe.binary("min", a, b)

    def where(self, c: Any, a: Any, b: Any) -> Any:
        return self.tbe.select(c, a, b)

    def cast(self, x: Any, dtype: str) -> Any:
        return self.tbe.cast(x, dtype)

    def reduce(self, name: str, x: Any, axes: Sequence[int], keepdims: bool = True) -> Any:
        if name == "mean":
            count = math.prod(x.shape[a] for a in axes)
            return self.tbe.reduce("sum", x, axes, keepdims) * (1.0 / count)
        return self.tbe.reduce(name, x, axes, keepdims)

    def transpose(self, x: Any, perm: Sequence[int]) -> Any:
        return self.tbe.transpose(x, perm)


class TorchFunctions:
    """The functions of PyTorch."""

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def unary(self, name: str, x: Any) -> Any:
        return getattr(self.torch, name)(x)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.torch.clamp_min(a, b) if isinstance(b, (int, float)) else self.torch.maximum(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self.torch.clamp_max(a, b) if isinstance(b, (int, float)) else self.torch.minimum(a, b)

    def where(self, c: Any, a: Any, b: Any) -> Any:
        return self.torch.where(c, a, b)

    def cast(self, x: Any, dtype: str) -> Any:
        return x.to(getattr(self.torch, dtype))

    def reduce(self, name: str, x: Any, axes: Sequence[int], keepdims: bool = True) -> Any:
        function = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}[name]
        return getattr(self.torch, function)(x, dim=tuple(axes), keepdim=keepdims)

    def transpose(self, x: Any, perm: Sequence[int]) -> Any:
        return x.permute(*perm)


class NumpyFunctions:
    """The functions of NumPy."""

    def unary(self, name: str, x: Any) -> Any:
        return getattr(self, f"_{name}", getattr(np, name, None))(x)

    @staticmethod
    def _sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    @staticmethod
    def _rsqrt(x: Any) -> Any:
        return 1 / np.sqrt(x)

    @staticmethod
    def _erf(x: Any) -> Any:
        import torch  # NumPy has none

        return torch.erf(torch.from_numpy(x)).numpy()

    def maximum(self, a: Any, b: Any) -> Any:
        return np.maximum(a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return np.minimum(a, b)

    def where(self, c: Any, a: Any, b: Any) -> Any:
        return np.where(c, a, b)

    def cast(self, x: Any, dtype: str) -> Any:
        import ml_dtypes

        return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def reduce(self, name: str, x: Any, axes: Sequence[int], keepdims: bool = True) -> Any:
        return getattr(np, name)(x, axis=tuple(axes), keepdims=keepdims)

    def transpose(self, x: Any, perm: Sequence[int]) -> Any:
        return np.ascontiguousarray(x.transpose(perm))


@dataclass(frozen=True)
class Case:
    """A kernel: shapes and types of its inputs, what it computes, and the same by oneDNN's primitives if they can."""

    name: str
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    body: Callable[..., Any]
    onednn: Callable[..., Any] | None = None
    bound: bool = False  # by memory: large tensors and little arithmetic

    def results(self, functions: Any, values: Sequence[Any]) -> tuple[Any, ...]:
        """What the kernel gives."""
        found = self.body(functions, *values)
        return found if isinstance(found, tuple) else (found,)


def arrays_of(case: Case) -> list[np.ndarray]:
    """Repeatable inputs."""
    import ml_dtypes

    rng = np.random.default_rng(7)
    made = []
    for shape, dtype in case.inputs:
        if dtype == "uint8":
            made.append(rng.integers(0, 256, shape, np.uint8))
        else:
            kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
            made.append(rng.uniform(0.05, 2.0, shape).astype(kind) * rng.choice([-1, 1], shape).astype(kind))
    return made


def _gelu_erf(f: Any, x: Any) -> Any:
    return x * 0.5 * (f.unary("erf", x * math.sqrt(0.5)) + 1.0)


def _gelu_tanh(f: Any, x: Any) -> Any:
    return x * 0.5 * (f.unary("tanh", (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)


def _softmax(f: Any, x: Any) -> Any:
    e = f.unary("exp", x - f.reduce("max", x, [1]))
    return e / f.reduce("sum", e, [1])


def _log_softmax(f: Any, x: Any) -> Any:
    less = x - f.reduce("max", x, [1])
    return less - f.unary("log", f.reduce("sum", f.unary("exp", less), [1]))


def _masked_softmax(f: Any, x: Any, mask: Any) -> Any:
    return _softmax(f, x * 0.125 + mask)


def _layer_norm(f: Any, x: Any, scale: Any, bias: Any) -> Any:
    less = x - f.reduce("mean", x, [1])
    return less * f.unary("rsqrt", f.reduce("mean", less * less, [1]) + 1e-5) * scale + bias


def _add_layer_norm(f: Any, x: Any, y: Any, scale: Any, bias: Any) -> Any:
    return _layer_norm(f, x + y, scale, bias)


def _rms_norm(f: Any, x: Any, scale: Any) -> Any:
    return x * f.unary("rsqrt", f.reduce("mean", x * x, [1]) + 1e-6) * scale


def _adam(f: Any, p: Any, g: Any, m: Any, v: Any) -> Any:
    v = v * v  # second moments are not negative
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - m / (f.unary("sqrt", v) + 1e-8) * 1e-3, m, v


def _hard_swish(f: Any, x: Any) -> Any:
    return x * f.maximum(f.minimum(x + 3.0, 6.0), 0.0) * (1 / 6)


BIG = (8192, 4096)  # 128 MiB of float32: much larger than the caches
TOKENS = (1024, 3072)
HIDDEN = (1024, 768)


def _of(*shapes: tuple[int, ...], dtype: str = "float32") -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((shape, dtype) for shape in shapes)


CASES = (
    Case(
        "add, relu",
        _of(BIG, BIG),
        lambda f, x, y: f.maximum(x + y, 0.0),
        lambda f, x, y: (x + y).relu(),
        True,
    ),
    Case("a*x + y", _of(BIG, BIG), lambda f, x, y: x * 2.5 + y, bound=True),
    Case("bias, hard swish", _of(BIG, BIG[1:]), lambda f, x, b: _hard_swish(f, x + b), bound=True),
    Case("gelu (erf)", _of(TOKENS), _gelu_erf, lambda f, x: f.nn.functional.gelu(x)),
    Case("bias, gelu (tanh)", _of(TOKENS, TOKENS[1:]), lambda f, x, b: _gelu_tanh(f, x + b)),
    Case("silu * gate", _of(TOKENS, TOKENS), lambda f, x, g: x * f.unary("sigmoid", x) * g),
    Case("softmax over 128", _of((12288, 128)), _softmax, lambda f, x: f.softmax(x, 1)),
    Case("softmax over 1000", _of((1024, 1000)), _softmax, lambda f, x: f.softmax(x, 1)),
    Case("scale, mask, softmax", _of((12288, 128), (1, 128)), _masked_softmax),
    Case("log softmax", _of((512, 4096)), _log_softmax),
    Case("layer norm", _of(HIDDEN, HIDDEN[1:], HIDDEN[1:]), _layer_norm),
    Case("add, layer norm", _of(HIDDEN, HIDDEN, HIDDEN[1:], HIDDEN[1:]), _add_layer_norm),
    Case("rms norm", _of((1024, 2048), (2048,)), _rms_norm),
    Case("sum of rows", _of(BIG), lambda f, x: f.reduce("sum", x, [1], False), bound=True),
    Case("sum of columns", _of(BIG), lambda f, x: f.reduce("sum", x, [0], False), bound=True),
    Case("mean of squares", _of(BIG), lambda f, x: f.reduce("mean", x * x, [0, 1], False), bound=True),
    Case("Adam step", _of(*((1024, 1024),) * 4), _adam),
    Case("tanh", _of(TOKENS), lambda f, x: f.unary("tanh", x), lambda f, x: x.tanh()),
    Case(
        "bytes to normalised floats",
        (((32, 224, 224, 3), "uint8"), ((3,), "float32"), ((3,), "float32")),
        lambda f, x, m, s: (f.cast(x, "float32") - m) * s,
    ),
    Case("transpose, add", _of((2048, 2048), (2048, 2048)), lambda f, x, y: f.transpose(x, (1, 0)) + y),
    Case(
        "bf16: gelu (tanh) in float32",
        _of(TOKENS, dtype="bfloat16"),
        lambda f, x: f.cast(_gelu_tanh(f, f.cast(x, "float32")), "bfloat16"),
    ),
    Case(
        "bf16: softmax in float32",
        _of((12288, 128), dtype="bfloat16"),
        lambda f, x: f.cast(_softmax(f, f.cast(x, "float32")), "bfloat16"),
    ),
)
