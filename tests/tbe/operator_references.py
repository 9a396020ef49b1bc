"""What the operator files under `operators` compute, in NumPy: inputs, attributes and reference of each.

References work step by step in the operator's own type, so that plain arithmetic agrees to the last bit; functions
like exp are taken in double precision and rounded. `ulp` is the distance allowed in units in the last place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

__all__ = ["REFERENCES", "Reference", "array"]

Array = np.ndarray
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    """How an operator is tested."""

    function: Callable[..., Any]
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    ulp: float = 0
    attrs: dict[str, Any] = field(default_factory=dict)
    scale: float = 0.0  # units in the last place are at least those of this number
    low: float = -3.0
    high: float = 3.0
    kinds: tuple[str | None, ...] = ()  # types of inputs that are not of the operator's type
    outputs: Callable[..., Any] | None = None  # (shape, dtype) of the outputs, where the file has to be told


def numpy_type(name: str) -> np.dtype:
    """NumPy's type of a name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def array(shape: Shape, dtype: str, low: float, high: float, seed: int = 0) -> Array:
    """Repeatable inputs."""
    rng = np.random.default_rng(seed + 17 * len(shape))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        return rng.integers(0 if dtype.startswith("uint") else int(low), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(numpy_type(dtype))


def wide(function: Callable[..., Array], *values: Array, dtype: Any = None) -> Array:
    """A function in double precision, rounded to the type of its operand."""
    with np.errstate(all="ignore"):
        return function(*(v.astype(np.float64) for v in values)).astype(dtype or values[0].dtype)


def k(value: float, like: Array) -> Any:
    """A number in the type of an array."""
    return like.dtype.type(value)


def fma(a: Any, b: Any, c: Array) -> Array:
    """a * b + c: a float32 product that is added at once is rounded once; other types round twice."""
    if c.dtype != np.float32:
        return a * b + c
    return (np.float64(a) * np.float64(b) + c.astype(np.float64)).astype(np.float32)


def single(x: Array) -> Array:
    return x.astype(np.float32)


FLOATS = ("float16", "float32")
WIDE = ("float16", "float32", "bfloat16")
NUMBERS = ("float16", "float32", "int32")
ONE: tuple[Shape, ...] = ((17, 33),)
TWO: tuple[Shape, ...] = ((17, 33), (17, 33))
THREE: tuple[Shape, ...] = ((17, 33),) * 3
SPREAD: tuple[Shape, ...] = ((4, 1, 9), (7, 9))


def exp(x: Array) -> Array:
    return wide(np.exp, x)


def log(x: Array) -> Array:
    return wide(np.log, x)


def total(x: Array, axes: Sequence[int], keepdims: bool = False) -> Array:
    kind = np.float64 if x.dtype.kind not in "iub" else x.dtype
    return x.astype(kind).sum(tuple(axes), keepdims=keepdims).astype(x.dtype)


def gelu(x: Array) -> Array:
    w = single(x)
    inner = (w + w * w * w * np.float32(0.044715)) * np.float32(-1.5957691216057308)
    return (w / (exp(inner) + np.float32(1))).astype(x.dtype)


def tanh(x: Array) -> Array:
    w = single(x)
    twice = exp(np.abs(w) * np.float32(-2))
    size = (twice * np.float32(-1) + np.float32(1)) / (twice + np.float32(1))
    return np.where(w < 0, -size, size).astype(x.dtype)


def softmax(x: Array, axis: Sequence[int]) -> Array:
    grown = exp(single(x - x.max(tuple(axis), keepdims=True)))
    return (grown / total(grown, axis, True)).astype(x.dtype)


def log_softmax(x: Array, axis: Sequence[int]) -> Array:
    less = (x - x.max(tuple(axis), keepdims=True)).astype(np.float64)
    return (less - np.log(np.exp(less).sum(tuple(axis), keepdims=True))).astype(x.dtype)


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> list[Array]:
    w = x.astype(np.float64)
    mean = w.mean(-1, keepdims=True)
    variance = ((w - mean) ** 2).mean(-1, keepdims=True)
    y = (w - mean) / np.sqrt(variance + epsilon) * gamma + beta
    return [v.astype(x.dtype) for v in (y, mean, variance)]


def rms_norm(x: Array, gamma: Array, epsilon: float) -> Array:
    w = x.astype(np.float64)
    return (w / np.sqrt((w * w).mean(-1, keepdims=True) + epsilon) * gamma.astype(np.float64)).astype(x.dtype)


def batch_norm(x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float) -> Array:
    return ((x.astype(np.float64) - mean) / np.sqrt(variance + epsilon) * scale + bias).astype(x.dtype)


def instance_norm(x: Array, epsilon: float) -> Array:
    w = x.astype(np.float64)
    less = w - w.mean((2, 3), keepdims=True)
    return (less / np.sqrt((less * less).mean((2, 3), keepdims=True) + epsilon)).astype(x.dtype)


def momentum(
    var: Array, accum: Array, grad: Array, lr: float, momentum: float, use_nesterov: bool = False
) -> list[Array]:
    accum = fma(accum, k(momentum, accum), grad)
    if not use_nesterov:
        return [var - accum * k(lr, accum), accum]
    return [var - fma(grad, k(lr, grad), accum * k(momentum * lr, accum)), accum]


def adam(var: Array, m: Array, v: Array, grad: Array, lr: float) -> list[Array]:
    m = fma(m, k(0.9, m), grad * k(1 - 0.9, m))
    v = fma(v, k(0.999, v), grad * grad * k(1 - 0.999, v))
    return [var - m * k(lr, m) / (np.sqrt(v) + k(1e-8, v)), m, v]


def adagrad(var: Array, accum: Array, grad: Array, lr: float) -> list[Array]:
    accum = fma(grad, grad, accum)
    return [var - grad * k(lr, grad) / np.sqrt(accum), accum]


def rms_prop(var: Array, ms: Array, mom: Array, grad: Array, lr: float, momentum: float) -> list[Array]:
    ms = fma(grad * grad - ms, k(1 - 0.9, ms), ms)
    mom = fma(mom, k(momentum, mom), grad * k(lr, grad) / np.sqrt(ms + k(1e-7, ms)))
    return [var - mom, ms, mom]


def lion(var: Array, m: Array, grad: Array, lr: float) -> list[Array]:
    mixed = fma(m, k(0.9, m), grad * k(1 - 0.9, m))
    return [var - np.sign(mixed) * k(lr, var), fma(m, k(0.99, m), grad * k(1 - 0.99, m))]


def soft_shrink(x: Array, lambd: float) -> Array:
    zero = k(0, x)
    return np.maximum(x + k(-lambd, x), zero) + np.minimum(x + k(lambd, x), zero)


def segment_sum(x: Array, ids: Array, num_segments: int) -> Array:
    out = np.zeros((num_segments, *x.shape[1:]), np.float64 if x.dtype.kind == "f" else x.dtype)
    np.add.at(out, ids, x)
    return out.astype(x.dtype)


def inplace_add(x: Array, v: Array, indices: Sequence[int]) -> Array:
    out = x.copy()
    for row, value in zip(indices, v, strict=True):
        out[row] += value
    return out


def smooth_l1(a: Array, b: Array, sigma: float) -> Array:
    d = np.abs(a - b)
    return np.where(d < k(sigma, d), d * d * k(0.5 / sigma, d), d + k(-0.5 * sigma, d))


def cross_entropy(x: Array, t: Array) -> Array:
    tail = log(exp(-np.abs(x)) + k(1, x))
    return np.maximum(x, k(0, x)) - x * t + tail


def quantize(x: Array, scale: float, offset: float) -> Array:
    moved = x * k(1 / scale, x) + k(offset, x)
    return np.clip(np.floor(moved.astype(np.float64) + 0.5), -128, 127).astype(np.int8)


def cast(x: Array, dst_type: str) -> Array:
    return x.astype(numpy_type(dst_type))


def space_average(x: Array) -> Array:
    return (x[:, ::2] + x[:, 1::2]) * k(0.5, x)


def mish(x: Array) -> Array:
    grown = exp(np.minimum(x, k(20, x)))
    top = grown * (grown + k(2, x))
    return x * (top / (top + k(2, x)))


def elu(x: Array, alpha: float) -> Array:
    below = (exp(np.minimum(x, k(0, x))) + k(-1, x)) * k(alpha, x)
    return below + np.maximum(x, k(0, x))


def selu(x: Array) -> Array:
    below = (exp(np.minimum(x, k(0, x))) + k(-1, x)) * k(1.67326324235 * 1.05070098736, x)
    return below + np.maximum(x, k(0, x)) * k(1.05070098736, x)


def lse(x: Array, axis: Sequence[int]) -> Array:
    return wide(lambda v: np.log(np.exp(v).sum(tuple(axis), keepdims=True)), x)


def round_to_steps(x: Array, step: Array, channel_axis: int) -> Array:
    step = step.reshape([-1 if axis == channel_axis else 1 for axis in range(x.ndim)])
    return np.floor(x / step + k(0.5, x)) * step


def min_max_update(x: Array, low: Array, high: Array, decay: float) -> list[Array]:
    mixed = [old * k(decay, x) + new * k(1 - decay, x) for old, new in ((low, x.min()), (high, x.max()))]
    return [np.minimum(mixed[0], k(0, x)), np.maximum(mixed[1], k(0, x))]


def _r(
    function: Callable[..., Any],
    shapes: tuple[Shape, ...],
    dtypes: Sequence[str],
    ulp: float = 0,
    **more: Any,
) -> Reference:
    return Reference(function, shapes, tuple(dtypes), ulp, **more)


AXES = {"axis": (0, 2), "keep_dims": True}
LAST = {"axis": (1,)}
CUBE: tuple[Shape, ...] = ((5, 6, 7),)
POSITIVE = {"low": 0.25, "high": 4.0}

REFERENCES: dict[str, Reference] = {
    "add": _r(np.add, SPREAD, NUMBERS),
    "sub": _r(np.subtract, TWO, NUMBERS),
    "mul": _r(np.multiply, SPREAD, (*NUMBERS, "bfloat16")),
    "real_div": _r(np.divide, SPREAD, FLOATS, **POSITIVE),
    "maximum": _r(np.maximum, SPREAD, (*NUMBERS, "bfloat16")),
    "minimum": _r(np.minimum, TWO, NUMBERS),
    "squared_difference": _r(lambda a, b: (a - b) * (a - b), SPREAD, NUMBERS),
    "floor_mod": _r(np.mod, SPREAD, ("float32", "int32"), low=1, high=9),
    "greater": _r(np.greater, TWO, NUMBERS),
    "equal": _r(np.equal, SPREAD, (*NUMBERS, "int8")),
    "less_equal": _r(lambda a, b: (a <= b).astype(np.int8), SPREAD, NUMBERS),
    "bitwise_and": _r(np.bitwise_and, SPREAD, ("int16", "uint16", "int32"), high=200),
    "logical_and": _r(np.logical_and, SPREAD, ("bool",)),
    "logical_or": _r(np.logical_or, TWO, ("bool",)),
    "floor_div": _r(lambda a, b: np.floor(a / b), TWO, ("float32",), **POSITIVE),
    "xdivy": _r(lambda a, b: np.where(a == 0, k(0, a), a / b), SPREAD, FLOATS, **POSITIVE),
    "neg": _r(np.negative, ONE, NUMBERS),
    "absolute": _r(np.abs, ONE, NUMBERS),
    "square": _r(lambda x: x * x, ONE, (*NUMBERS, "bfloat16")),
    "sqrt": _r(np.sqrt, ONE, FLOATS, **POSITIVE),
    "rsqrt": _r(lambda x: k(1, x) / np.sqrt(x), ONE, ("float32",), **POSITIVE),
    "reciprocal": _r(lambda x: k(1, x) / x, ONE, FLOATS, **POSITIVE),
    "exp": _r(exp, ONE, FLOATS, 1),
    "log": _r(log, ONE, WIDE, 2, **POSITIVE),
    "log1p": _r(lambda x: log(x + k(1, x)), ONE, ("float32",), 2, **POSITIVE),
    "expm1": _r(lambda x: exp(x) + k(-1, x), ONE, ("float32",), 2, low=1.0),
    "relu": _r(lambda x: np.maximum(x, k(0, x)), ONE, NUMBERS),
    "relu6": _r(lambda x: np.clip(x, k(0, x), k(6, x)), ONE, NUMBERS, high=9),
    "leaky_relu": _r(
        lambda x, negative_slope: np.where(x > 0, x, x * k(negative_slope, x)),
        ONE,
        FLOATS,
        attrs={"negative_slope": 0.2},
    ),
    "elu": _r(elu, ONE, ("float32",), 2, attrs={"alpha": 0.7}, low=-3, high=-0.5),
    "selu": _r(selu, ONE, ("float32",), 2, low=0.5),
    "softplus": _r(
        lambda x: np.maximum(x, k(0, x)) + log(exp(-np.abs(x)) + k(1, x)), ONE, ("float32",), 3, scale=1.0
    ),
    "softsign": _r(lambda x: x / (np.abs(x) + k(1, x)), ONE, FLOATS),
    "sigmoid": _r(lambda x: wide(lambda v: 1 / (1 + np.exp(-v)), x), ONE, FLOATS, 4),
    "tanh": _r(tanh, ONE, WIDE, 2, scale=1.0),
    "gelu": _r(gelu, ONE, WIDE, 4, scale=1.0),
    "swish": _r(
        lambda x, scale: x / (exp(x * k(-scale, x)) + k(1, x)), ONE, ("float32",), 2, attrs={"scale": 1.5}
    ),
    "hard_sigmoid": _r(
        lambda x: np.minimum(np.maximum(x * k(0.25, x) + k(0.5, x), k(0, x)), k(1, x)), ONE, FLOATS
    ),
    "hard_swish": _r(
        lambda x: x * np.minimum(np.maximum(x + k(3, x), k(0, x)), k(6, x)) * k(1 / 6, x), ONE, FLOATS
    ),
    "mish": _r(mish, ONE, ("float32",), 4),
    "hard_shrink": _r(
        lambda x, lambd: np.where(np.abs(x) > k(lambd, x), x, k(0, x)), ONE, WIDE, attrs={"lambd": 0.7}
    ),
    "soft_shrink": _r(soft_shrink, ONE, FLOATS, attrs={"lambd": 0.7}),
    "thresholded_relu": _r(
        lambda x, alpha: np.where(x > k(alpha, x), x, k(0, x)), ONE, FLOATS, attrs={"alpha": 0.3}
    ),
    "floor": _r(np.floor, ONE, FLOATS),
    "ceil": _r(lambda x: np.ceil(x) + k(0, x), ONE, FLOATS),
    "round_to_even": _r(lambda x: np.rint(x) + k(0, x), ONE, FLOATS),
    "trunc": _r(lambda x: np.trunc(x) + k(0, x), ONE, WIDE),
    "sign": _r(np.sign, ONE, NUMBERS),
    "logical_not": _r(np.logical_not, ONE, ("bool",)),
    "invert": _r(np.invert, ONE, ("int16", "uint16"), high=200),
    "cast": _r(
        cast,
        ONE,
        ("float16", "float32", "bfloat16", "int32", "uint8", "int8", "bool"),
        attrs={"dst_type": "int32"},
    ),
    "clip_by_value": _r(
        lambda x, low, high: np.clip(x, k(low, x), k(high, x)), ONE, FLOATS, attrs={"low": -0.5, "high": 1.25}
    ),
    "dropout_scale": _r(lambda x, rate: x * k(1 / (1 - rate), x), ONE, FLOATS, attrs={"rate": 0.25}),
    "quantize": _r(quantize, ONE, ("float32",), attrs={"scale": 0.02, "offset": 3.0}),
    "triu": _r(lambda x, diagonal: np.triu(x, diagonal), ((3, 9, 8),), NUMBERS, attrs={"diagonal": 1}),
    "transpose_matrix": _r(lambda x: x.T, ONE, NUMBERS),
    "diagonal_matrix": _r(np.diag, ((37,),), ("float32", "int32")),
    "space_average": _r(space_average, ((9, 34),), ("float32",)),
    "addcmul": _r(lambda x, a, b, value: fma(a * b, k(value, x), x), THREE, FLOATS, attrs={"value": 0.5}),
    "addcdiv": _r(
        lambda x, a, b, value: x + a / b * k(value, x), THREE, ("float32",), attrs={"value": 0.5}, **POSITIVE
    ),
    "lerp": _r(lambda a, b, w: fma(w, b - a, a), THREE, WIDE),
    "axpy": _r(lambda x, y, alpha: fma(x, k(alpha, x), y), TWO, FLOATS, attrs={"alpha": 1.7}),
    "fused_mul_add": _r(fma, THREE, NUMBERS),
    "fused_mul_add_relu": _r(lambda x, a, b: np.maximum(fma(x, b, a), k(0, x)), THREE, FLOATS),
    "select": _r(np.where, THREE, NUMBERS, kinds=("bool", None, None)),
    "bias_add": _r(np.add, ((6, 33), (33,)), (*NUMBERS, "bfloat16")),
    "prelu": _r(lambda x, w: np.where(x > 0, x, x * w), ((6, 33), (33,)), FLOATS),
    "scale": _r(fma, ((6, 33), (33,), (33,)), FLOATS, ulp=1, scale=16.0),
    "relu_grad": _r(lambda g, f: np.where(f > 0, g, k(0, g)), TWO, NUMBERS),
    "sigmoid_grad": _r(lambda y, d: d * (y * (y * k(-1, y) + k(1, y))), TWO, FLOATS),
    "tanh_grad": _r(lambda y, d: d * fma(y * y, k(-1, y), np.full_like(y, 1)), TWO, WIDE),
    "sqrt_grad": _r(lambda y, d: d * k(0.5, d) / y, TWO, FLOATS, **POSITIVE),
    "smooth_l1_loss": _r(smooth_l1, TWO, ("float32",), attrs={"sigma": 1.3}),
    "sigmoid_cross_entropy": _r(cross_entropy, TWO, ("float32",), 2, low=-3, high=-0.1, scale=1.0),
    "mse_loss": _r(
        lambda a, b: wide(lambda u, v: ((u - v) ** 2).mean(), a, b),
        TWO,
        ("float32",),
        2,
        outputs=lambda a, b: [((1,), a.dtype.name)],
    ),
    "kl_div": _r(
        lambda x, t: wide(lambda u, v: (v * (np.log(v) - u)).sum(-1), x, t),
        TWO,
        ("float32",),
        4,
        low=0.1,
        high=0.2,
    ),
    "reduce_sum": _r(
        lambda x, axis, keep_dims: total(x, axis, keep_dims), CUBE, NUMBERS, 1, attrs=AXES, low=0.5
    ),
    "reduce_max": _r(
        lambda x, axis, keep_dims: x.max(tuple(axis), keepdims=keep_dims), CUBE, NUMBERS, attrs=AXES
    ),
    "reduce_min": _r(
        lambda x, axis, keep_dims: x.min(tuple(axis), keepdims=keep_dims),
        CUBE,
        (*NUMBERS, "bfloat16"),
        attrs=AXES,
    ),
    "reduce_prod": _r(
        lambda x, axis, keep_dims: x.astype(np.float64).prod(tuple(axis), keepdims=keep_dims).astype(x.dtype),
        ((4, 3, 4),),
        ("float32", "int32"),
        4,
        attrs=AXES,
        low=1.0,
        high=2.0,
    ),
    "reduce_mean": _r(
        lambda x, axis, keep_dims: x.astype(np.float64).mean(tuple(axis), keepdims=keep_dims).astype(x.dtype),
        CUBE,
        FLOATS,
        4,
        attrs=AXES,
        low=0.5,
    ),
    "reduce_all": _r(
        lambda x, axis, keep_dims: x.all(tuple(axis), keepdims=keep_dims), ((2, 9, 2),), ("bool",), attrs=AXES
    ),
    "reduce_any": _r(
        lambda x, axis, keep_dims: x.any(tuple(axis), keepdims=keep_dims), ((2, 9, 1),), ("bool",), attrs=AXES
    ),
    "log_sum_exp": _r(lse, ONE, ("float32",), 4, attrs=LAST),
    "euclidean_norm": _r(
        lambda x, axis, keep_dims: wide(lambda v: np.sqrt((v * v).sum(tuple(axis), keepdims=keep_dims)), x),
        CUBE,
        ("float32",),
        3,
        attrs=AXES,
    ),
    "softmax": _r(softmax, ONE, FLOATS, 6, attrs=LAST),
    "log_softmax": _r(log_softmax, ONE, ("float32",), 2, attrs=LAST, low=0.0),
    "l2_normalize": _r(
        lambda x, axis: wide(lambda v: v / np.sqrt((v * v).sum(tuple(axis), keepdims=True)), x),
        ONE,
        ("float32",),
        5,
        attrs=LAST,
    ),
    "layer_norm": _r(
        layer_norm, ((6, 40), (40,), (40,)), ("float32",), 8, attrs={"epsilon": 1e-5}, low=0.5, scale=1.0
    ),
    "rms_norm": _r(rms_norm, ((6, 40), (40,)), ("float32", "bfloat16"), 6, attrs={"epsilon": 1e-6}),
    "batch_norm_infer": _r(
        batch_norm, ((6, 40), *((40,),) * 4), ("float32",), 4, attrs={"epsilon": 1e-4}, **POSITIVE, scale=1.0
    ),
    "bn_training_reduce": _r(
        lambda x: [total(x, (0, 1)), total(x.astype(np.float64) ** 2, (0, 1)).astype(x.dtype)],
        CUBE,
        ("float32",),
        3,
        low=0.5,
    ),
    "instance_norm": _r(instance_norm, ((2, 3, 5, 6),), ("float32",), 4, attrs={"epsilon": 1e-5}, scale=1.0),
    "apply_gradient_descent": _r(lambda v, d, alpha: v - d * k(alpha, d), TWO, FLOATS, attrs={"alpha": 0.1}),
    "apply_momentum": _r(
        momentum, THREE, FLOATS, attrs={"lr": 0.1, "momentum": 0.9, "use_nesterov": True}, ulp=1, scale=16.0
    ),
    "apply_adam": _r(adam, ((17, 33),) * 4, ("float32",), attrs={"lr": 0.01}, **POSITIVE),
    "apply_adagrad": _r(adagrad, THREE, ("float32",), attrs={"lr": 0.1}, **POSITIVE),
    "apply_rms_prop": _r(
        rms_prop,
        ((17, 33),) * 4,
        ("float32",),
        attrs={"lr": 0.1, "momentum": 0.5},
        **POSITIVE,
    ),
    "apply_lion": _r(lion, THREE, ("float32",), attrs={"lr": 0.1}),
    "unsorted_segment_sum": _r(
        segment_sum,
        ((12, 5), (12,)),
        ("float32", "int32"),
        2,
        attrs={"num_segments": 5},
        kinds=(None, "int32"),
        low=0,
        high=4,
    ),
    "inplace_add": _r(inplace_add, ((6, 5), (3, 5)), ("float32", "int32"), attrs={"indices": [4, 0, 4]}),
    "gather_rows": _r(
        lambda x, i: x[i], ((6, 5), (9,)), ("float32", "int32"), kinds=(None, "int32"), low=0, high=5
    ),
    "glu": _r(lambda x: x[:, :16] / (exp(-x[:, 16:]) + k(1, x)), ((7, 32),), ("float32",), 3),
    "add_dynamic": _r(np.add, SPREAD, NUMBERS),
    "round_to_steps": _r(
        round_to_steps, ((5, 6, 7), (7,)), ("float32",), 4, attrs={"channel_axis": 2}, **POSITIVE
    ),
    "reduce_sum_d": _r(
        lambda x, axes, keep_dims: total(x, axes, keep_dims),
        CUBE,
        NUMBERS,
        2,
        attrs={"axes": [0, 2], "keep_dims": True},
        low=0.5,
        high=3.0,
    ),
    "scale_by_element": _r(lambda x, f: fma(x, f[0], np.full_like(x, f[1])), ((17, 33), (2,)), FLOATS, 1),
    "scale_by_tensor": _r(lambda x, f: x * f[0], ((17, 33), (1,)), FLOATS),
    "epsilon_norm": _r(
        lambda x, epsilon: wide(lambda v: v / np.sqrt((v * v).mean(-1, keepdims=True) + epsilon), x),
        ONE,
        ("float32",),
        4,
        attrs={"epsilon": 0.25},
    ),
    "old_relu": _r(lambda x: np.maximum(x, k(0, x)), ONE, NUMBERS),
    "square_either": _r(lambda x: x * x, ONE, NUMBERS),
    "masked_scale": _r(
        lambda x, mask, value: x * mask.astype(x.dtype) * k(value, x),
        TWO,
        FLOATS,
        attrs={"value": 1.5},
        kinds=(None, "int8"),
    ),
    "min_max_update": _r(min_max_update, ((17, 33), (1,), (1,)), ("float32",), 1, attrs={"decay": 0.75}),
}
