"""Attention through torch.compile: values and gradients are those of eager mode, whichever way it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ge.ops.builder import GraphBuilder
from tests.support.small_graphs import compiled, kinds
from torchair.executable import observe

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float64: 1e-10}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.5},
    "few queries": {"queries": 3},
    "hidden keys": {"attn_mask": torch.rand(40, 40).add(torch.eye(40)) > 0.4},
    "added mask": {"attn_mask": torch.randn(2, 1, 1, 40)},
    "double": {"dtype": torch.float64},
    "narrow": {"dtype": torch.bfloat16},
    "narrow causal": {"dtype": torch.bfloat16, "is_causal": True},
    "odd depth": {"dtype": torch.bfloat16, "depth": 15},
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    """The heads of a token lie side by side, as linear layers leave them."""
    options = dict(CASES[name])
    dtype, depth = options.pop("dtype", torch.float32), options.pop("depth", 16)
    torch.manual_seed(0)
    queries = options.pop("queries", 40)
    leaves = [torch.randn(2, n, 3 * depth, dtype=dtype, requires_grad=True) for n in (queries, 40, 40)]
    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        options["attn_mask"] = mask.to(dtype)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = [t.unflatten(-1, (3, depth)).transpose(1, 2) for t in (q, k, v)]
        return F.scaled_dot_product_attention(*heads, **options).transpose(1, 2).flatten(2)

    expected = attend(*leaves)
    weights = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, weights)
    with observe() as reports:
        found = torch.compile(attend, backend="npu", dynamic=False)(*leaves)
        gradients = torch.autograd.grad(found, leaves, weights)
    assert [r.failure or r.refusals for r in reports] == [[]] * len(reports)
    for ours, theirs in zip((found, *gradients), (expected, *wanted), strict=True):
        ours, theirs = ours.detach().double(), theirs.detach().double()
        error = (ours - theirs).abs().max() / theirs.abs().max()
        assert float(error) <= TOLERANCE[dtype]


@pytest.mark.parametrize("kind", ["boolean", "boolean by sample", "added", "added with far rows"])
@pytest.mark.parametrize("queries", [3, 40], ids=["few queries", "many queries"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_queries_that_see_no_key_give_zeros(kind: str, queries: int, dtype: torch.dtype) -> None:
    """And have no gradients, also beside queries whose scores are far from zero."""
    torch.manual_seed(0)
    kept = torch.rand(queries, 20) > 0.3
    kept[1:3] = False
    mask: torch.Tensor = kept
    if kind == "boolean by sample":
        mask = torch.ones(2, 1, 1, 20, dtype=torch.bool)
        mask[1] = False
    elif kind != "boolean":
        mask = torch.zeros(queries, 20).masked_fill(~kept, -torch.inf).to(dtype)
        if kind == "added with far rows":
            mask[0] = -3e4
    leaves = [torch.randn(2, 3, n, 16, dtype=dtype, requires_grad=True) for n in (queries, 20, 20)]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)

    expected = attend(*leaves)
    weights = torch.randn_like(expected)
    weights[:, :, 0] = 0  # PyTorch's own gradients are wrong there
    wanted = torch.autograd.grad(expected, leaves, weights)
    found = torch.compile(attend, backend="npu", dynamic=False)(*leaves)
    gradients = torch.autograd.grad(found, leaves, weights)
    assert (found[1] if kind == "boolean by sample" else found[:, :, 1:3]).eq(0).all()
    for ours, theirs in zip((found[:, :, 1:], *gradients), (expected[:, :, 1:], *wanted), strict=True):
        tolerance = {torch.float32: 1e-4, torch.float64: 1e-9}.get(dtype, 4e-2)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["heads", "grouped heads"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_keys_below_the_smallest_number_share_gradients(heads: tuple[int, int], dtype: torch.dtype) -> None:
    """Language models add the smallest number to hidden keys; a row of only such keys attends to each equally.

    PyTorch's fused CPU kernel multiplies the gradients of such a row by the number of keys; its decomposition does not.
    """
    torch.manual_seed(0)
    shapes = ((2, heads[0], 3, 8), (2, heads[1], 7, 8), (2, heads[1], 7, 8))
    leaves = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    hidden = torch.rand(3, 7) < 0.4
    hidden[0] = True
    mask = torch.zeros(3, 7, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*qkv, attn_mask=mask, enable_gqa=heads[0] != heads[1])

    with sdpa_kernel(SDPBackend.MATH):
        expected = attend(*leaves)
        wanted = torch.autograd.grad(expected.square().sum(), leaves)
    found = torch.compile(attend, backend="npu", dynamic=False)(*leaves)
    gradients = torch.autograd.grad(found.square().sum(), leaves)
    torch.testing.assert_close((found, *gradients), (expected, *wanted), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", [False, True], ids=["fused", "with weights"])
def test_padding_of_multihead_attention(weights: bool) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 20, 16, requires_grad=True)
    padding = torch.zeros(2, 20, dtype=torch.bool)
    padding[0, :7], padding[1] = True, True

    def attend(x: torch.Tensor) -> torch.Tensor:
        return layer(x, x, x, key_padding_mask=padding, need_weights=weights)[0]

    expected, found = attend(x), torch.compile(attend, backend="npu", dynamic=False)(x)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x), equal_nan=True, rtol=1e-4,
        atol=1e-5,
    )  # fmt: skip


@pytest.mark.parametrize("hides", [False, True], ids=["added", "boolean"])
def test_masks_of_grouped_heads_on_the_device(hides: bool) -> None:
    import torch_npu  # noqa: F401  names the device

    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    mask = torch.rand(5, 7) > 0.5 if hides else torch.randn(5, 7)
    wanted = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    moved: list[Any] = [t.to("npu") for t in (q, k, v, mask)]
    found = F.scaled_dot_product_attention(*moved, enable_gqa=True)
    torch.testing.assert_close(found.cpu(), wanted)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("kind", ["none", "causal", "boolean", "added", "of heads"])
def test_grouped_heads_are_compiled(tokens: int, kind: str) -> None:
    """Heads of queries that share keys: those of single tokens, of several, with and without masks, with gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, tokens, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
    masks = {
        "boolean": torch.rand(2, 1, tokens, 7) > 0.3,
        "added": torch.randn(tokens, 7),
        "of heads": torch.randn(2, 6, tokens, 7),
    }

    def attend(q: Any, k: Any, v: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, masks.get(kind), is_causal=kind == "causal", enable_gqa=True
        )

    with observe() as reports, torch.no_grad():
        found = torch.compile(attend, backend="npu", dynamic=False)(q, k, v)
    assert [r.refusals for r in reports] == [[]]
    torch.testing.assert_close(found, attend(q, k, v), rtol=1e-4, atol=1e-5)
    given = [t.requires_grad_() for t in (q, k, v)]
    compiled = torch.compile(attend, backend="npu", dynamic=False)(*given)
    for mine, theirs in zip(
        torch.autograd.grad(compiled.square().sum(), given),
        torch.autograd.grad(attend(*given).square().sum(), given),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_attention_is_one_task() -> None:
    """Also between products, whose results it reads and writes as they lie."""

    def build(b: GraphBuilder) -> Any:
        heads = [
            b.op("Transpose", b.op("Reshape", b.input(n, (2, 32, 64), "float32"), shape=[2, 32, 4, 16]),
                 perm=[0, 2, 1, 3])
            for n in "qkv"
        ]  # fmt: skip
        y, _ = b.op("Attention", *heads, scale=0.25)
        return b.op("Transpose", y, perm=[0, 2, 1, 3])

    assert kinds(compiled(build)) == ["attention"]


@pytest.mark.parametrize("precision", ["default", "allow_mix_precision_bf16"])
def test_layers_in_training(precision: str) -> None:
    """A layer with attention in float32, also where the NPU lowers its products."""
    import torchair

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
    x = torch.randn(2, 24, 32)
    layer(x).square().mean().backward()
    wanted = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    layer.zero_grad()
    config = torchair.CompilerConfig()
    if precision != "default":
        config.ge_config.precision_mode = precision
    torch.compile(layer, backend=torchair.get_npu_backend(compiler_config=config))(
        x
    ).square().mean().backward()
    found = [p.grad for p in layer.parameters() if p.grad is not None]
    tolerance = 1e-5 if precision == "default" else 3e-2
    assert len(found) == len(wanted) > 0
    for ours, theirs in zip(found, wanted, strict=True):
        assert float((ours - theirs).abs().max()) <= tolerance * max(1.0, float(theirs.abs().max()))
