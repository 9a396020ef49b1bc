"""Operators and their gradients against PaddlePaddle's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("paddle", reason="PaddlePaddle has an environment of its own: make test-paddle")

import paddle
import paddle.nn.functional as F

from tests.paddle.support import check


def _floats(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return np.random.default_rng(sum(shape)).uniform(low, high, shape).astype(np.float32)


def _ints(*shape: int, high: int = 4) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, high, shape)


X, Y, POSITIVE = _floats(3, 4), _floats(3, 4) + 0.05, _floats(3, 4, low=0.2)
UNIT = _floats(3, 4, low=-0.9, high=0.9)
IMAGE = _floats(2, 4, 8, 8)

UNARY: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    **{
        name: (getattr(paddle, name), X)
        for name in [
            "abs",
            "sin",
            "cos",
            "tanh",
            "exp",
            "expm1",
            "square",
            "erf",
            "sign",
            "sinh",
            "cosh",
            "atan",
            "asinh",
            "floor",
            "ceil",
            "round",
            "trunc",
            "isnan",
            "isinf",
            "isfinite",
            "lgamma",
        ]
    },
    **{
        name: (getattr(paddle, name), POSITIVE)
        for name in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "digamma"]
    },
    **{name: (getattr(paddle, name), UNIT) for name in ["asin", "acos", "atanh", "erfinv", "tan"]},
    **{
        name: (getattr(F, name), X)
        for name in [
            "relu",
            "relu6",
            "gelu",
            "silu",
            "sigmoid",
            "elu",
            "selu",
            "celu",
            "leaky_relu",
            "hardswish",
            "hardsigmoid",
            "hardtanh",
            "mish",
            "softplus",
            "softsign",
            "log_sigmoid",
            "tanhshrink",
            "thresholded_relu",
            "swish",
            "softmax",
            "log_softmax",
        ]
    },
}
FORWARD_ONLY = {
    "digamma",
    "lgamma",
    "log2",
    "log10",
    "asin",
    "acos",
    "atanh",
    "erfinv",
    "tan",
    "sinh",
    "cosh",
    "atan",
}
FORWARD_ONLY |= {"asinh", "selu", "celu", "hardtanh", "mish", "softsign", "tanhshrink", "thresholded_relu"}
FORWARD_ONLY |= {"sign", "floor", "ceil", "round", "trunc"}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_element(name: str) -> None:
    function, x = UNARY[name]
    check((lambda t: function(t.detach())) if name in FORWARD_ONLY else (lambda t: function(t)), x)


BINARY = "add subtract multiply divide maximum minimum fmax fmin atan2 pow floor_divide remainder"


@pytest.mark.parametrize("name", BINARY.split())
@pytest.mark.parametrize("shape", [(3, 4), (4,), (3, 1), (2, 3, 4)])
def test_functions_of_two_elements(name: str, shape: tuple[int, ...]) -> None:
    function, other = getattr(paddle, name), np.abs(_floats(*shape)) + 0.3
    if name in ("fmax", "fmin", "atan2", "floor_divide", "remainder"):
        check(lambda a, b: function(a.detach(), b.detach()), POSITIVE, other)
    else:
        check(lambda a, b: function(a, b), POSITIVE, other)


@pytest.mark.parametrize(
    "name",
    [
        "equal",
        "not_equal",
        "less_than",
        "less_equal",
        "greater_than",
        "greater_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
    ],
)
def test_comparisons(name: str) -> None:
    function = getattr(paddle, name)
    check(lambda a, b: function(a, b), _ints(3, 4), _ints(4))


CASES: dict[str, tuple[Callable[..., Any], ...]] = {
    "matmul": (lambda a, b: paddle.matmul(a, b), X, _floats(4, 5)),
    "matmul, turned": (lambda a, b: paddle.matmul(a, b, True, True), X, _floats(5, 3)),
    "matmul, batches": (lambda a, b: paddle.matmul(a, b), _floats(2, 1, 3, 4), _floats(1, 5, 4, 2)),
    "matmul, vector": (lambda a, b: paddle.matmul(a, b), X, _floats(4)),
    "bmm": (lambda a, b: paddle.bmm(a, b), _floats(2, 3, 4), _floats(2, 4, 5)),
    "dot": (lambda a, b: paddle.dot(a.detach(), b.detach()), _floats(4), _floats(4) + 1),
    "addmm": (
        lambda c, a, b: paddle.addmm(c.detach(), a.detach(), b.detach(), 0.5, 2.0),
        _floats(3, 5),
        X,
        _floats(4, 5),
    ),
    "einsum": (lambda a, b: paddle.einsum("ij,kj->ik", a.detach(), b.detach()), X, Y),
    "linear": (lambda x, w, b: F.linear(x, w, b), X, _floats(4, 5), _floats(5)),
    "sum": (lambda x: x.sum(), X),
    "sum, axis": (lambda x: paddle.sum(x, axis=[1], keepdim=True), X),
    "sum, int": (lambda x: x.sum(), _ints(3, 4)),
    "mean": (lambda x: x.mean(), X),
    "mean, axis": (lambda x: x.mean(axis=-1), X),
    "max": (lambda x: x.max(axis=1), X),
    "min": (lambda x: x.min(), X),
    "amax": (lambda x: paddle.amax(x, axis=0), X),
    "prod": (lambda x: x.detach().prod(axis=1), X),
    "any": (lambda x: (x > 1).any(axis=1), X),
    "all": (lambda x: (x > -1).all(), X),
    "logsumexp": (lambda x: paddle.logsumexp(x, axis=1), X),
    "norm": (lambda x: paddle.linalg.vector_norm(x, 2.0, axis=1), X),
    "argmax": (lambda x: (x.argmax(axis=1), x.argmax()), X),
    "argmin": (lambda x: x.argmin(axis=0, keepdim=True), X),
    "cumsum": (lambda x: paddle.cumsum(x, axis=1), X),
    "cumprod": (lambda x: paddle.cumprod(x.detach(), dim=1), X),
    "topk": (lambda x: paddle.topk(x, 2, axis=1), X),
    "argsort": (lambda x: paddle.argsort(x.detach(), axis=1), X),
    "sort": (lambda x: paddle.sort(x.detach(), axis=1), X),
    "reshape": (lambda x: x.reshape([0, 2, -1]), X),
    "flatten": (lambda x: x.flatten(1, 2), IMAGE),
    "squeeze": (lambda x: x.squeeze(1), _floats(3, 1, 4)),
    "unsqueeze": (lambda x: x.unsqueeze([0, -1]), X),
    "transpose": (lambda x: x.transpose([0, 2, 3, 1]), IMAGE),
    "expand": (lambda x: x.expand([2, 3, 4]), X),
    "expand_as": (lambda x, y: x.expand_as(y), _floats(1, 4), X),
    "tile": (lambda x: x.tile([2, 3]), X),
    "concat": (lambda a, b: paddle.concat([a, b], axis=1), X, Y),
    "stack": (lambda a, b: paddle.stack([a, b], axis=-1), X, Y),
    "unbind": (lambda x: paddle.unbind(x, axis=1), X),
    "split": (lambda x: paddle.split(x, [1, -1], axis=1), X),
    "split, even": (lambda x: paddle.split(x, 2, axis=1), X),
    "chunk": (lambda x: paddle.chunk(x, 2, axis=1), X),
    "slice": (lambda x: x[1:, :-1], X),
    "slice, one": (lambda x: x[1], X),
    "slice, steps": (lambda x: x.detach()[::2, ::-1], X),
    "flip": (lambda x: paddle.flip(x.detach(), [0, 1]), X),
    "roll": (lambda x: paddle.roll(x.detach(), [1, 2], [0, 1]), X),
    "pad": (lambda x: F.pad(x, [1, 2, 0, 1]), IMAGE),
    "pad, reflect": (lambda x: F.pad(x.detach(), [1, 2, 0, 1], mode="reflect"), IMAGE),
    "pad, replicate": (lambda x: F.pad(x.detach(), [1, 2, 0, 1], mode="replicate"), IMAGE),
    "tril": (lambda x: paddle.tril(x, 1), X),
    "triu": (lambda x: paddle.triu(x), X),
    "where": (lambda c, a, b: paddle.where(c > 1, a, b), _ints(3, 4), X, Y),
    "clip": (lambda x: paddle.clip(x, -0.5, 0.7), X),
    "scale": (lambda x: x * 3 - 1, X),
    "scale, int": (lambda x: x * 3 - 1, _ints(3, 4)),
    "pow": (lambda x: x**3, X),
    "cast": (lambda x: x.astype("int32").astype("float32"), X),
    "gather": (lambda x, i: paddle.gather(x, i, axis=1), X, _ints(5)),
    "gather_nd": (lambda x, i: paddle.gather_nd(x.detach(), i), X, _ints(5, 2, high=3)),
    "index_select": (lambda x, i: paddle.index_select(x, i, axis=0), X, _ints(5, high=3)),
    "take_along_axis": (lambda x, i: paddle.take_along_axis(x, i, 1), X, _ints(3, 2)),
    "index_sample": (lambda x, i: paddle.index_sample(x.detach(), i), X, _ints(3, 2)),
    "scatter": (
        lambda x, u: paddle.scatter(x.detach(), paddle.to_tensor([2, 0]), u.detach()),
        X,
        _floats(2, 4),
    ),
    "put_along_axis": (
        lambda x: paddle.put_along_axis(x.detach(), paddle.to_tensor([[1], [0], [2]]), 9.0, 1),
        X,
    ),
    "masked_fill": (lambda x: paddle.masked_fill(x.detach(), x > 0, 3.0), X),
    "embedding": (lambda i, w: F.embedding(i, w), _ints(2, 3), _floats(4, 6)),
    "embedding, padding": (lambda i, w: F.embedding(i, w, padding_idx=1), _ints(2, 3), _floats(4, 6)),
    "one_hot": (lambda i: F.one_hot(i, 5), _ints(2, 3)),
    "eye": (lambda x: x + paddle.eye(3, 4), X),
    "arange": (lambda x: x + paddle.arange(4, dtype="float32"), X),
    "linspace": (lambda x: x + paddle.linspace(0, 1, 4), X),
    "meshgrid": (lambda a, b: paddle.meshgrid(a.detach(), b.detach()), _floats(3), _floats(4)),
    "full_like": (lambda x: paddle.full_like(x, 2.5) + paddle.zeros_like(x), X),
    "set a slice": (lambda x: _set(x.detach()), X),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x.detach(), 2), IMAGE),
    "lerp": (lambda a, b: paddle.lerp(a.detach(), b.detach(), 0.3), X, Y),
    "isclose": (lambda a: paddle.isclose(a, a + 1e-9), X),
    "numel": (lambda x: (x.numel(), paddle.shape(x)), X),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), IMAGE, _floats(6, 4, 3, 3), _floats(6)),
    "conv2d, strides": (lambda x, w: F.conv2d(x, w, stride=2, padding=[1, 0]), IMAGE, _floats(6, 4, 3, 3)),
    "conv2d, same": (lambda x, w: F.conv2d(x, w, stride=2, padding="SAME"), IMAGE, _floats(6, 4, 3, 3)),
    "conv2d, uneven": (lambda x, w: F.conv2d(x, w, padding=[1, 2, 0, 1]), IMAGE, _floats(6, 4, 3, 3)),
    "conv2d, groups": (lambda x, w: F.conv2d(x, w, dilation=2, groups=2), IMAGE, _floats(6, 2, 3, 3)),
    "conv2d, depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), IMAGE, _floats(4, 1, 3, 3)),
    "conv2d, channels last": (
        lambda x, w: F.conv2d(x, w, data_format="NHWC"),
        _floats(2, 6, 6, 4),
        _floats(6, 4, 3, 3),
    ),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), _floats(2, 4, 9), _floats(6, 4, 3)),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), _floats(1, 2, 4, 4, 4), _floats(3, 2, 3, 3, 3)),
    "conv2d_transpose": (
        lambda x, w: F.conv2d_transpose(x, w, stride=2, padding=1),
        IMAGE,
        _floats(4, 6, 3, 3),
    ),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool2d, ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), IMAGE),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "avg_pool2d, counted": (lambda x: F.avg_pool2d(x.detach(), 3, 2, 1, exclusive=False), IMAGE),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 2), IMAGE),
    "adaptive_avg_pool2d, one": (lambda x: F.adaptive_avg_pool2d(x, 1), IMAGE),
    "adaptive_avg_pool2d, uneven": (lambda x: F.adaptive_avg_pool2d(x.detach(), 3), IMAGE),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x.detach(), 4), IMAGE),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), IMAGE),
    "bilinear": (lambda x: F.interpolate(x, size=[12, 5], mode="bilinear"), IMAGE),
    "bilinear, corners": (
        lambda x: F.interpolate(x, size=[12, 5], mode="bilinear", align_corners=True),
        IMAGE,
    ),
    "bilinear, mode 1": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_mode=1),
        IMAGE,
    ),
    "bicubic": (lambda x: F.interpolate(x, size=[12, 5], mode="bicubic"), IMAGE),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, 4, w, b), X, _floats(4), _floats(4) + 1),
    "layer_norm, plain": (lambda x: F.layer_norm(x, 4), X),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, weight=w, bias=b), IMAGE, _floats(4), _floats(4) + 1),
    "instance_norm": (lambda x: F.instance_norm(x.detach()), IMAGE),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), X, _ints(3)),
    "cross_entropy, ignored": (lambda x, i: F.cross_entropy(x, i, ignore_index=1), X, np.array([1, 2, 0])),
    "cross_entropy, soft": (lambda x, y: F.cross_entropy(x, F.softmax(y.detach()), soft_label=True), X, Y),
    "cross_entropy, none": (
        lambda x, i: F.cross_entropy(x, i, reduction="none", axis=1),
        IMAGE,
        _ints(2, 8, 8),
    ),
    "binary_cross_entropy": (lambda x, y: F.binary_cross_entropy(F.sigmoid(x), y.detach()), X, np.abs(UNIT)),
    "with logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach()), X, np.abs(UNIT)),
    "mse_loss": (lambda x, y: F.mse_loss(x, y), X, Y),
    "l1_loss": (lambda x, y: F.l1_loss(x, y), X, Y + 1),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y), X, Y + 1),
    "kl_div": (lambda x, y: F.kl_div(F.log_softmax(x.detach()), F.softmax(y.detach())), X, Y),
    "label_smooth": (lambda x: F.label_smooth(x.detach()), np.abs(UNIT)),
    "attention": (lambda q, k, v: F.softmax(q @ k.transpose([0, 2, 1]) * 0.5) @ v, *[_floats(2, 3, 4)] * 3),
    "dropout": (lambda x: F.dropout(x, 0.4), _floats(8, 9)),
    "dropout, downscale": (lambda x: F.dropout(x, 0.4, mode="downscale_in_infer"), _floats(8, 9)),
    "draws": (
        lambda x: (
            x + paddle.randn([3, 4]) + paddle.uniform([3, 4]) * paddle.randint(0, 5, [3, 4]).astype("float32")
        ),
        X,
    ),
    "accuracy": (lambda x, i: paddle.metric.accuracy(x, i), X, _ints(3, 1)),
}


def _set(x: Any) -> Any:
    y = x.clone()
    y[1:, 2] = 5.0
    y[0] = x[1]
    return y


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    function, *arrays = CASES[name]
    check(function, *arrays, tolerance=1e-4 if "conv" in name or "norm" in name else 2e-5)


@pytest.mark.parametrize("steps", [7, 40])
@pytest.mark.parametrize("settings", [{}, {"blank": 2, "reduction": "none"}, {"norm_by_times": True}])
def test_losses_of_sequences_without_alignment(steps: int, settings: dict[str, Any]) -> None:
    """A label that repeats, sequences shorter than the longest, and one too short for its labels."""

    def function(x: Any, labels: Any, times: Any, lengths: Any) -> Any:
        return F.ctc_loss(x, labels, times, lengths, **settings)

    labels = np.array([[1, 4, 4], [3, 1, 0], [4, 0, 0], [1, 1, 1]], np.int32)
    times, lengths = np.array([steps, steps - 1, steps // 2, 4]), np.array([3, 2, 1, 3])
    check(function, _floats(steps, 4, 6), labels, times, lengths)


def test_branches_and_loops_follow_the_values() -> None:
    def function(x: Any) -> Any:
        x = x.detach()
        y = x * 2 if x.sum() > 0 else x - 1
        k = paddle.to_tensor(0)
        while k < 3:
            y = y + x
            k += 1
        return y

    for sign in (1, -1):
        check(function, np.abs(X) * np.float32(sign))
