"""Operators of MindSpore and their gradients: the engine's values are those of MindSpore's own kernels."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore", reason="MindSpore has an environment of its own: make test-mindspore")

from mindspore import Tensor, mint, ops  # noqa: E402

import mindspore_npu  # noqa: E402, F401  registers the back end
from ge.ops.interpret import interpret  # noqa: E402
from ge.parsers.mindir.parser import parse_model  # noqa: E402
from ge.parsers.mindir.values import leaves  # noqa: E402
from mindspore_npu import backend  # noqa: E402

RANDOM = np.random.default_rng(3)
# A function of MindSpore, or the source of one as "arguments: expression".
CASES: dict[str, tuple[Callable[..., Any] | str, tuple[np.ndarray, ...], bool]] = {}


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return np.abs(real(*shape)) + np.float32(0.3)


def inner(*shape: int) -> np.ndarray:
    return np.tanh(real(*shape)) * np.float32(0.8)


def case(name: str, function: Callable[..., Any] | str, *arrays: np.ndarray, gradient: bool = True) -> None:
    CASES[name] = (function, arrays, gradient)


def each(names: str, make: Callable[..., np.ndarray], home: Any = ops, gradient: bool = True) -> None:
    for name in names.split():
        case(name, getattr(home, name), make(3, 5), gradient=gradient)


each("abs exp sin cos tan tanh sigmoid square sinh cosh asinh atan erf erfc expm1 neg silu", real)
each("log log2 log10 log1p sqrt rsqrt reciprocal", positive)
each("asin acos atanh", inner)
each("floor ceil round sign trunc isfinite isinf isnan", real, gradient=False)
each(
    "relu relu6 gelu elu selu softsign leaky_relu hardswish hardsigmoid mish softplus logsigmoid hardshrink",
    real,
)
each("softshrink hardtanh", real)
each("sum mean prod", real, mint)
for _name in ["add", "sub", "mul", "maximum", "minimum"]:
    case(_name, getattr(ops, _name), real(3, 5), real(5))
for _name in ["div", "pow", "atan2", "xlogy"]:
    case(_name, getattr(ops, _name), positive(3, 5), positive(3, 5))
for _name in ["floor_divide", "floor_mod", "fmod", "remainder"]:
    case(_name, getattr(ops, _name), real(3, 5), positive(3, 5), gradient=False)
for _name in ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]:
    case(_name, getattr(ops, _name), np.round(real(3, 5)), np.round(real(3, 5)), gradient=False)
for _name in ["logical_and", "logical_or", "logical_xor"]:
    case(_name, getattr(ops, _name), real(6) > 0, real(6) > 0, gradient=False)
for _name in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
    case(_name, getattr(ops, _name), RANDOM.integers(0, 9, 6), RANDOM.integers(0, 9, 6), gradient=False)
case("logical_not", ops.logical_not, real(6) > 0, gradient=False)
case("lerp", "a, b: ops.lerp(a, b, 0.3)", real(4), real(4))
case("addcmul", "a, b, c: ops.addcmul(a, b, c, 0.5)", real(4), real(4), real(4))
case("clamp", "x: ops.clamp(x, -0.5, 0.5)", real(3, 5))
case("where", "x, y: ops.where(x > 0, x, y)", real(3, 5), real(3, 5))
case("masked_fill", "x: ops.masked_fill(x, x > 0, 2.0)", real(3, 5))
case("reduce_sum", "x: ops.ReduceSum(keep_dims=True)(x, 1)", real(3, 5))
case("reduce_max", "x: ops.ReduceMax()(x, 1)", real(3, 5))
case("reduce_min", "x: ops.ReduceMin()(x, 0)", real(3, 5))
case("reduce_mean", "x: ops.ReduceMean()(x, (0, 1))", real(3, 5))
case("reduce_all", "x: ops.ReduceAll()(x > -1, 1)", real(3, 5), gradient=False)
case("reduce_any", "x: ops.ReduceAny()(x > 1, 1)", real(3, 5), gradient=False)
case("argmax", "x: ops.argmax(x, 1)", real(3, 5), gradient=False)
case("argmin", "x: ops.argmin(x, 1)", real(3, 5), gradient=False)
case("logsumexp", "x: ops.logsumexp(x, 1)", real(3, 5))
case("max_with_index", "x: ops.max(x, 1)[0]", real(3, 5), gradient=False)
case("cumsum", "x: ops.cumsum(x, 1)", real(3, 5))
case("cumprod", "x: ops.cumprod(x, 1)", real(3, 5), gradient=False)
case("topk", "x: ops.topk(x, 2)[0]", real(3, 5), gradient=False)
case("sort", "x: ops.sort(x, 1)[0]", real(3, 5), gradient=False)
case("softmax", "x: ops.softmax(x, 1)", real(3, 5))
case("log_softmax", "x: ops.log_softmax(x, 1)", real(3, 5))
case("matmul", ops.matmul, real(2, 3, 4), real(2, 4, 5))
case("mint_matmul", mint.matmul, real(3, 4), real(4))
case("bmm", ops.bmm, real(2, 3, 4), real(2, 4, 5))
case("dense", ops.dense, real(3, 4), real(5, 4), real(5))
case("mint_linear", mint.nn.functional.linear, real(3, 4), real(5, 4), real(5))
case("reshape", "x: ops.reshape(x, (5, 3))", real(3, 5))
case("transpose", "x: ops.transpose(x, (1, 0))", real(3, 5))
case("tile", "x: ops.tile(x, (2, 2))", real(3, 5))
case("broadcast_to", "x: ops.broadcast_to(x, (4, 3, 5))", real(3, 5))
case("concat", "x, y: ops.cat((x, y), 1)", real(3, 5), real(3, 2))
case("stack", "x, y: ops.stack((x, y), 1)", real(3, 5), real(3, 5))
case("unstack", "x: ops.unstack(x, 1)[1]", real(3, 5))
case("split", "x: ops.split(x, 2, 1)[1]", real(3, 4))
case("chunk", "x: ops.chunk(x, 2, 1)[1]", real(3, 5))
case("slice", "x: x[1:, ::2]", real(3, 5))
case("index_row", "x: x[1]", real(3, 5))
case("negative_index", "x: x[:, -1]", real(3, 5))
case("flip", "x: ops.flip(x, (1,))", real(3, 5))
case("pad", "x: ops.pad(x, (1, 2))", real(3, 5))
case("gather", "x: ops.gather(x, Tensor([2, 0], ms.int32), 0)", real(3, 5))
case("gather_elements", "x: ops.gather_elements(x, 1, Tensor([[1], [0], [4]], ms.int32))", real(3, 5))
case("gather_nd", "x: ops.gather_nd(x, Tensor([[0, 1], [2, 3]], ms.int32))", real(3, 5))
case("scatter_nd", "x: ops.scatter_nd(Tensor([[0], [2]], ms.int32), x, (4, 5))", real(2, 5))
case("one_hot", "x: ops.one_hot(Tensor([1, 0], ms.int32), 3, x[0], x[1])", real(2), gradient=False)
case("cast", "x: x.astype(ms.int32)", real(3, 5) * 4, gradient=False)
case("nn_layer_norm", "x, g, b: ops.LayerNorm(-1, -1, 1e-05)(x, g, b)[0]", real(3, 5), real(5), real(5))
case("group_norm", "x: ops.group_norm(x, 2)", real(2, 4, 3), gradient=False)
case("max_pool", "x: ops.MaxPool(2, 2, 'valid')(x)", real(1, 2, 6, 6))
case("max_pool_same", "x: ops.MaxPool(3, 2, 'same')(x)", real(1, 2, 7, 7))
case("avg_pool", "x: ops.AvgPool(2, 2, 'valid')(x)", real(1, 2, 6, 6))
case("avg_pool_same", "x: ops.AvgPool(3, 2, 'same')(x)", real(1, 2, 7, 7))
case("adaptive_avg_pool2d", "x: ops.adaptive_avg_pool2d(x, 2)", real(1, 2, 6, 6), gradient=False)
case("conv2d", "x, w: ops.conv2d(x, w, pad_mode='same')", real(1, 2, 6, 6), real(3, 2, 3, 3))
case("conv2d_stride", "x, w: ops.conv2d(x, w, stride=2)", real(1, 2, 8, 8), real(3, 2, 3, 3))
case("conv2d_group", "x, w: ops.conv2d(x, w, groups=2)", real(1, 4, 6, 6), real(4, 2, 3, 3))
case(
    "interpolate_corners",
    "x: ops.interpolate(x, size=(7, 5), mode='bilinear', align_corners=True)",
    real(1, 2, 3, 4),
)
case("interpolate", "x: ops.interpolate(x, size=(6, 6), mode='bilinear')", real(1, 2, 3, 3))
case("mse_loss", ops.mse_loss, real(3, 5), real(3, 5))
case("l1_loss", ops.l1_loss, real(3, 5), real(3, 5))
case("smooth_l1_loss", "x, y: ops.smooth_l1_loss(x, y)", real(3, 5), real(3, 5))
case("bce_with_logits", mint.nn.functional.binary_cross_entropy_with_logits, real(3, 5), positive(3, 5) / 5)
case("binary_cross_entropy", "x, y: ops.binary_cross_entropy(x, y)", positive(3, 5) / 5, positive(3, 5) / 5)
case("cross_entropy", "x: ops.cross_entropy(x, Tensor([1, 0, 2], ms.int32))", real(3, 5))
case("nll_loss", "x: ops.nll_loss(x, Tensor([1, 0, 2], ms.int32))", real(3, 5))
case("kl_div", "x, y: ops.kl_div(x, y)", real(3, 5), positive(3, 5))
case(
    "sparse_softmax",
    "x: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction='mean')(x, Tensor([1, 0, 2], ms.int32))",
    real(3, 5),
)
case("prelu", ops.prelu, real(2, 3, 4), real(3))
case("meshgrid", "x, y: ops.meshgrid(x, y)[0]", real(3), real(2))


_SOURCE = """
import mindspore as ms
from mindspore import Tensor, mint, nn, ops


def called({arguments}):
    return {expression}


def total({arguments}):
    made = called({arguments})
    return (made * ops.cos(ops.arange(made.size).astype(ms.float32)).reshape(made.shape)).sum()
"""


def functions(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with the function of a case, and its weighted sum, so that every element has a gradient of its own.

    MindSpore reads the sources of functions from files.
    """
    function, arrays, _ = CASES[name]
    if isinstance(function, str):
        arguments, _, expression = function.partition(": ")
    else:
        arguments = ", ".join(f"x{i}" for i in range(len(arrays)))
        expression = f"function({arguments})"
    path = folder / f"case_{name}.py"
    path.write_text(_SOURCE.format(arguments=arguments, expression=expression))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["function"] = function
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def answers(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What MindSpore's own back end gives for a case, and what the graph that it was given means to the engine."""
    _, arrays, gradient = CASES[name]
    tensors, module = [Tensor(a) for a in arrays], functions(name, folder, monkeypatch)
    seen: list[tuple[bytes, list[str]]] = []
    monkeypatch.setattr(backend, "build", lambda data, names, sources: seen.append((data, list(names))))
    whole = ms.value_and_grad(module.total, tuple(range(len(tensors)))) if gradient else module.called
    value = ms.jit(whole, backend="npu")(*tensors)
    wanted = [part.asnumpy() for part in leaves(value)]
    (data, names) = seen[-1]
    parsed = parse_model(data, state=True)
    assert not parsed.parameters
    feeds = [arrays[names.index(n)] for n in parsed.inputs]
    return wanted, interpret(parsed.graph, feeds)


@pytest.mark.parametrize("name", list(CASES))
def test_values_and_gradients_are_those_of_mindspore(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, found = answers(name, tmp_path, monkeypatch)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
