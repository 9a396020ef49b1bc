"""Layer normalisation through torch.compile: values and gradients are those of eager mode, whichever way it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_npu  # noqa: F401  (registers the device)
from ge.errors import GeError
from ge.ops.builder import GraphBuilder
from ge.target import host
from tests.support.small_graphs import assert_close, compiled, feeds_of, graph_of, kinds
from torchair.executable import observe

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-10}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd lengths": {"shape": (3, 7, 13), "over": (13,)},
    "one column": {"shape": (5, 1), "over": (1,)},
    "one row": {"shape": (33,), "over": (33,)},
    "several axes": {"shape": (4, 3, 5, 7), "over": (3, 5, 7)},
    "no factors": {"weight": None, "bias": None},
    "no bias": {"bias": None},
    "no scale": {"weight": None},
    "narrow": {"dtype": torch.bfloat16},
    "narrow, odd lengths": {"dtype": torch.bfloat16, "shape": (3, 7, 13), "over": (13,)},
    "narrow, no scale": {"dtype": torch.bfloat16, "weight": None},
    "narrow, wide factors": {"dtype": torch.bfloat16, "weight": torch.float32, "bias": torch.float32},
    "half": {"dtype": torch.float16},
    "double": {"dtype": torch.float64},
}
# Which of input, scale and bias need gradients.
MASKS = [(1, 1, 1), (1, 0, 0), (0, 1, 1), (0, 1, 0), (0, 0, 1), (1, 0, 1)]


def _leaf(shape: tuple[int, ...], dtype: torch.dtype | None, needed: int = 1) -> torch.Tensor | None:
    return None if dtype is None else torch.randn(shape).to(dtype).requires_grad_(bool(needed))


def _compare(leaves: list[torch.Tensor | None], over: tuple[int, ...], tolerance: float) -> None:
    def run(*given: torch.Tensor | None) -> torch.Tensor:
        x, weight, bias = given
        return F.layer_norm(x, over, weight, bias, 1e-3)  # type: ignore[arg-type]

    needed = [t for t in leaves if t is not None and t.requires_grad]
    expected = run(*leaves)
    slope = torch.randn(expected.shape).to(expected.dtype)
    wanted = torch.autograd.grad(expected, needed, slope)
    with observe() as reports:
        found = torch.compile(run, backend="npu", dynamic=False)(*leaves)
        gradients = torch.autograd.grad(found, needed, slope)
    assert [r.failure or r.refusals for r in reports] == [[]] * len(reports)
    for ours, theirs in zip((found, *gradients), (expected, *wanted), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        ours, theirs = ours.detach().double(), theirs.detach().double()
        error = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1.0)
        assert float(error) <= tolerance


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    options = {"shape": (4, 19, 48), "over": (48,), "dtype": torch.float32, **CASES[name]}
    over, dtype = options["over"], options["dtype"]
    torch.manual_seed(0)
    leaves = [_leaf(options["shape"], dtype)]
    leaves += [_leaf(over, options.get(factor, dtype)) for factor in ("weight", "bias")]
    _compare(leaves, over, TOLERANCE[dtype])


@pytest.mark.parametrize("mask", MASKS)
def test_gradients_that_are_needed(mask: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    shapes = ((6, 40), (40,), (40,))
    leaves = [_leaf(s, torch.float32, m) for s, m in zip(shapes, mask, strict=True)]
    _compare(leaves, (40,), TOLERANCE[torch.float32])


def test_an_empty_batch() -> None:
    layer = nn.LayerNorm(8)
    x = torch.randn(0, 8, requires_grad=True)
    y = torch.compile(layer, backend="npu", dynamic=False)(x)
    y.sum().backward()
    assert y.shape == (0, 8) and x.grad is not None and x.grad.shape == (0, 8)
    assert layer.weight.grad is not None and not layer.weight.grad.any()


def _gradient(shape: tuple[int, ...], axes: list[int], dtype: str = "float32", **attrs: Any) -> Any:
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))

    def build(b: GraphBuilder) -> Any:
        dy, x = b.input("dy", shape, dtype), b.input("x", shape, dtype)
        scale = b.input("scale", tuple(shape[a] for a in axes), dtype)
        mean, inverse = b.input("mean", kept, "float32"), b.input("inverse", kept, "float32")
        return b.op("LayerNormGrad", dy, x, mean, inverse, scale, axes=axes, **attrs)

    return build


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_one_task(dtype: str) -> None:
    if ("avx2" if dtype == "float32" else "avx512") not in host().features:
        pytest.skip("this machine has no kernels for it")
    assert kinds(compiled(_gradient((4, 6, 8), [1, 2], dtype))) == ["layer_norm_grad"]


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [
        ((4, 6, 8), [2], "float32"),
        ((4, 6, 8), [1], "float32"),
        ((4, 6, 8), [0, 2], "float32"),
        ((4, 6, 8), [0, 1, 2], "float32"),
        ((4, 6, 8), [2], "float64"),
        ((4, 6, 8), [1, 2], "bfloat16"),
    ],
)
@pytest.mark.parametrize("wanted", [[1, 1, 1], [0, 1, 0], [1, 0, 0]])
def test_task_and_decomposition_are_the_definition(
    shape: tuple[int, ...], axes: list[int], dtype: str, wanted: list[int]
) -> None:
    tolerance = 3e-2 if dtype == "bfloat16" else 2e-5
    graph = graph_of(_gradient(shape, axes, dtype, wanted=wanted))
    feeds = feeds_of(graph)
    got = list(compiled(graph, tolerance=tolerance).run(feeds))
    expected = _defined([f.astype(np.float64) for f in feeds], tuple(axes))
    assert [bool(a.size) for a in got] == [bool(w) for w in wanted]
    for ours, theirs, kept in zip(got, expected, wanted, strict=True):
        assert_close([ours], [theirs.astype(ours.dtype) if kept else ours], tolerance)


def _defined(feeds: list[np.ndarray], axes: tuple[int, ...]) -> list[np.ndarray]:
    """In float64, as the gradient of a sum with respect to what is normalised."""
    dy, x, scale, mean, inverse = feeds
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    normal = (x - mean) * inverse
    g = dy * scale.reshape([1 if i in rest else n for i, n in enumerate(x.shape)])
    level, slope = g.mean(axes, keepdims=True), (g * normal).mean(axes, keepdims=True)
    return [(g - level - normal * slope) * inverse, (dy * normal).sum(rest), dy.sum(rest)]


def test_what_does_not_go_together_is_refused() -> None:
    def build(b: GraphBuilder, **attrs: Any) -> Any:
        x = b.input("x", (4, 8), "float32")
        mean = b.input("mean", attrs.pop("mean", (4, 1)), "float32")
        scale = b.input("scale", attrs.pop("scale", (8,)), "float32")
        return b.op("LayerNormGrad", x, x, mean, mean, scale, **attrs)

    for wrong in ({"mean": (8, 1)}, {"scale": (4,)}, {"axes": [2]}, {"wanted": [0, 0, 0]}, {"wanted": [1]}):
        with pytest.raises(GeError, match="LayerNormGrad"):
            graph_of(lambda b, wrong=wrong: build(b, **wrong))
    assert np.shape(graph_of(build).outputs) == (3,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("factors", [None, "same", torch.float32])
def test_gradients_of_narrow_tensors_of_several_sizes(dtype: torch.dtype, factors: Any) -> None:
    """Once sizes vary, part of the work may be left to the host, whose kernels keep narrow statistics."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    allowed = 0.5 if dtype is torch.bfloat16 else 0.05
    function = torch.compile(lambda *given: F.layer_norm(given[0], [5], *given[1:]), backend="npu")
    for rows in (8, 4, 3):
        x = _leaf((rows, 3, 5), dtype)
        kind = dtype if factors == "same" else factors
        given = [x, *([] if factors is None else [_leaf((5,), kind), _leaf((5,), kind)])]
        slopes = [torch.autograd.grad(F.layer_norm(given[0], [5], *given[1:]).square().sum(), given)]
        moved = [v.detach().to("npu").requires_grad_() for v in given]
        slopes.append(torch.autograd.grad(function(*moved).square().sum(), moved))
        for expected, found in zip(*slopes, strict=True):
            torch.testing.assert_close(found.cpu(), expected, rtol=allowed, atol=allowed)
