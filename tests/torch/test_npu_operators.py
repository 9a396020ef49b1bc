"""Operators of torch_npu's interface against plain formulas in float64: on npu tensors, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import torch_npu
from torchair.executable import observe

Formula = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, seen: Any = None
) -> torch.Tensor:
    """Attention in (batch, head, token, feature), keys repeated for groups of heads."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = scale * q @ k.transpose(-1, -2)
    return (scores if seen is None else scores.masked_fill(~seen, -torch.inf)).softmax(-1) @ v


def by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def routed(x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Tokens scaled by 1 + the number of each of their experts, weighted and summed."""
    return sum(((1 + experts[:, j]) * weights[:, j])[:, None] * x for j in range(experts.shape[1]))  # type: ignore[return-value]


def through_experts(x: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    tokens, places = torch_npu.npu_moe_token_permute(x, indices)
    factor = 1 + indices.flatten().sort(stable=True).values
    return torch_npu.npu_moe_token_unpermute(tokens * factor[:, None], places, weights)


def by_routing(x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    weights, experts, rows = torch_npu.npu_moe_gating_top_k_softmax(scores, k=2)
    tokens, places, order = torch_npu.npu_moe_init_routing(x, rows, experts, x.shape[0])
    made = tokens * (1 + order)[:, None]
    return torch_npu.npu_moe_finalize_routing(made, None, None, None, weights, places, experts)


def grouped(x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    ends = torch.tensor([2, 2, 5], device=x.device)
    return torch_npu.npu_grouped_matmul([x], [weights], bias=[bias], group_list=ends, split_item=3)[0]


def filtered(logits: torch.Tensor, p: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    rows = []
    for row, share, count in zip(logits, p, k, strict=True):
        kept = torch.full_like(row, -torch.inf)
        best = row.topk(int(count))
        chances = best.values.softmax(0)
        for value, place, before in zip(best.values, best.indices, chances.cumsum(0) - chances, strict=True):
            if before < share:
                kept[place] = value
        rows.append(kept)
    return torch.stack(rows)


INDICES = torch.tensor([[1, 2], [0, 1], [0, 2], [2, 0], [1, 0]])
LENGTHS = torch.tensor([3, 6]).view(2, 1, 1, 1)

# The operator, its formula and its floating-point arguments; all are differentiated.
CASES: dict[str, tuple[Formula, Formula, list[tuple[int, ...]]]] = {
    "gelu_mul": (torch_npu.npu_gelu_mul, lambda x: F.gelu(x[..., :4]) * x[..., 4:], [(2, 8)]),
    "clipped_swiglu": (
        torch_npu.npu_clipped_swiglu,
        lambda x: x[..., ::2] * torch.sigmoid(1.702 * x[..., ::2]) * (x[..., 1::2] + 1),
        [(2, 8)],
    ),
    "gemma_rms_norm": (
        lambda x, g: torch_npu.npu_gemma_rms_norm(x, g)[0],
        lambda x, g: F.rms_norm(x, (8,), 1 + g, 1e-6),
        [(3, 8), (8,)],
    ),
    "add_rms_norm_cast": (
        lambda x, y, g: torch_npu.npu_add_rms_norm_cast(x, y, g)[0],
        lambda x, y, g: F.rms_norm(x + y, (8,), g, 1e-6),
        [(3, 8), (3, 8), (8,)],
    ),
    "group_norm_swish": (
        lambda x, w, b: torch_npu.npu_group_norm_swish(x, 2, w, b)[0],
        lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)),
        [(2, 4, 3), (4,), (4,)],
    ),
    "layer_norm_eval": (
        lambda x, w, b: torch_npu.npu_layer_norm_eval(x, [8], w, b),
        lambda x, w, b: F.layer_norm(x, (8,), w, b),
        [(3, 8), (8,), (8,)],
    ),
    "cross_entropy_loss": (
        lambda x: torch_npu.npu_cross_entropy_loss(x, INDICES[:, 0].to(x.device))[0],
        lambda x: F.cross_entropy(x, INDICES[:, 0]),
        [(5, 3)],
    ),
    "softmax_cross_entropy": (
        torch_npu.npu_softmax_cross_entropy_with_logits,
        lambda x, y: -(y * x.log_softmax(-1)).sum(-1),
        [(5, 3), (5, 3)],
    ),
    "bmmV2": (torch_npu.npu_bmmV2, torch.matmul, [(2, 3, 4), (2, 4, 5)]),
    "transpose_batchmatmul": (
        lambda x, w: torch_npu.npu_transpose_batchmatmul(x, w, perm_x1=[1, 0, 2], perm_y=[1, 0, 2]),
        lambda x, w: torch.einsum("mbk,bkn->mbn", x, w),
        [(3, 2, 4), (2, 4, 5)],
    ),
    "pad": (lambda x: torch_npu.npu_pad(x, [1, 0, 0, 2]), lambda x: F.pad(x, (0, 2, 1, 0)), [(2, 3)]),
    "slice": (lambda x: torch_npu.npu_slice(x, [1, 0], [-1, 2]), lambda x: x[1:, :2], [(3, 4)]),
    "masked_fill_range": (
        lambda x: torch_npu.npu_masked_fill_range(
            x, torch.tensor([[0, 1, 2]]), torch.tensor([[1, 2, 4]]), torch.tensor([1.0])
        ),
        lambda x: torch.where(torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0] * 4]).bool(), 1.0, x),
        [(4, 4)],
    ),
    "prompt_flash_attention": (
        lambda q, k, v: torch_npu.npu_prompt_flash_attention(
            q, k, v, num_heads=4, num_key_value_heads=2, scale_value=0.3, actual_seq_lengths_kv=[3, 6]
        ),
        lambda q, k, v: attended(by_head(q, 4), by_head(k, 2), by_head(v, 2), 0.3, torch.arange(7) < LENGTHS)
        .transpose(1, 2)
        .flatten(2),
        [(2, 5, 32), (2, 7, 16), (2, 7, 16)],
    ),
    "incre_flash_attention": (
        lambda q, k, v: torch_npu.npu_incre_flash_attention(
            q, k, v, num_heads=4, num_key_value_heads=2, scale_value=0.3, input_layout="BNSD",
            actual_seq_lengths=[3, 6],
        ),
        lambda q, k, v: attended(q, k, v, 0.3, torch.arange(7) < LENGTHS),
        [(2, 4, 1, 8), (2, 2, 7, 8), (2, 2, 7, 8)],
    ),
    "fused_infer_attention_score": (
        lambda q, k, v: torch_npu.npu_fused_infer_attention_score(
            q, k, v, num_heads=4, num_key_value_heads=2, scale=0.3, input_layout="BNSD_BSND"
        )[0],
        lambda q, k, v: attended(q, k, v, 0.3).transpose(1, 2),
        [(2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8)],
    ),
    "grouped_matmul": (
        grouped,
        lambda x, w, b: torch.cat((x[:2] @ w[0] + b[0], x[2:] @ w[2] + b[2])),
        [(5, 4), (3, 4, 6), (3, 6)],
    ),
    "moe_token_permute": (
        lambda x, w: through_experts(x, INDICES.to(x.device), w),
        lambda x, w: routed(x, INDICES, w),
        [(5, 4), (5, 2)],
    ),
    "ffn": (
        lambda x, a, b: torch_npu.npu_ffn(x, a, b, "silu", expert_tokens=[2, 0, 3]),
        lambda x, a, b: torch.cat((F.silu(x[:2] @ a[0]) @ b[0], F.silu(x[2:] @ a[2]) @ b[2])),
        [(5, 4), (3, 4, 6), (3, 6, 4)],
    ),
    "convolution": (
        lambda x, w, b: torch_npu.npu_convolution(x, w, b, [2, 1], [1, 0], [1, 2], 2),
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0), (1, 2), 2),
        [(1, 4, 6, 7), (6, 2, 3, 3), (6,)],
    ),
    "conv3d": (
        lambda x, w: torch_npu.npu_conv3d(x, w, None, [1] * 3, [1] * 3, [1] * 3, 1),
        lambda x, w: F.conv3d(x, w, padding=1),
        [(1, 2, 3, 4, 4), (3, 2, 3, 3, 3)],
    ),
    "convolution_transpose": (
        lambda x, w, b: torch_npu.npu_conv_transpose2d(x, w, b, [1, 1], [1, 0], [2, 2], [1, 1], 1),
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, (1, 0)),
        [(1, 3, 4, 5), (3, 2, 3, 3), (2,)],
    ),
    "indexing": (
        lambda x: torch_npu.npu_indexing(x, [1, 0, 0, 2], [3, 0, 0, 0], [1] * 4, 0, 4, 2, 4, 8),
        lambda x: x[1:3, ..., None, 2],
        [(4, 2, 5)],
    ),
    "attention_update": (
        lambda a, b, x, y: torch_npu.npu_attention_update([a, b], [x, y], 0)[0],
        lambda a, b, x, y: torch.stack([a, b]).softmax(0)[0, :, None] * x
        + torch.stack([a, b]).softmax(0)[1, :, None] * y,
        [(3,), (3,), (3, 4), (3, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operator_is_its_formula_on_the_device_and_compiled(name: str) -> None:
    function, formula, shapes = CASES[name]
    wide = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    wanted = formula(*wide)
    weights = torch.randn(wanted.shape, dtype=torch.float64)
    gradients = torch.autograd.grad((wanted * weights).sum(), wide)
    compiled = torch.compile(function, backend="npu")
    for run, device in ((function, "npu"), (compiled, "cpu")):
        given = [w.detach().float().to(device).requires_grad_() for w in wide]
        with torch.device(device):  # tensors that a case makes itself
            made = run(*given)
        assert made.device.type == device
        torch.testing.assert_close(made.cpu().double(), wanted, rtol=1e-4, atol=1e-5)
        total = (made.cpu() * weights.float()).sum()
        for found, expected in zip(torch.autograd.grad(total, given), gradients, strict=True):
            torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-3, atol=1e-4)


# -- without gradients -------------------------------------------------------------------------------------------


def test_routing_by_a_softmax_visits_the_chosen_experts() -> None:
    x, scores = torch.randn(5, 4), torch.randn(5, 3)
    weights, experts = scores.double().softmax(-1).topk(2)
    expected = routed(x.double(), experts, weights)
    for run in (by_routing, torch.compile(by_routing, backend="npu")):
        torch.testing.assert_close(run(x, scores).double(), expected, rtol=1e-4, atol=1e-5)
    _, _, rows = torch_npu.npu_moe_gating_top_k_softmax(scores, k=2)
    assert rows.tolist() == [[i, i + 5] for i in range(5)]
    ends = torch_npu.npu_moe_compute_expert_tokens(torch.tensor([0, 0, 0, 1, 1, 2]), 4)
    assert ends.tolist() == [3, 5, 6, 6]


def test_gating_by_groups_chooses_in_the_best_groups_and_weighs_by_scores() -> None:
    x, bias = torch.randn(6, 8), torch.randn(8)
    weights, experts, scores = torch_npu.npu_moe_gating_top_k(
        x, 2, bias=bias, k_group=2, group_count=4, group_select_mode=1, norm_type=1, out_flag=True,
        routed_scaling_factor=2.5,
    )  # fmt: skip
    wanted = torch.sigmoid(x.double())
    torch.testing.assert_close(scores.double(), wanted, rtol=1e-5, atol=1e-6)
    for row in range(6):
        choice = wanted[row] + bias
        groups = choice.view(4, 2).sum(1).topk(2).indices
        allowed = [int(e) for g in groups for e in (2 * g, 2 * g + 1)]
        best = sorted(allowed, key=lambda e: -float(choice[e]))[:2]
        assert experts[row].tolist() == best
        chosen = wanted[row][best]
        torch.testing.assert_close(weights[row].double(), 2.5 * chosen / chosen.sum(), rtol=1e-5, atol=1e-6)


def test_sampling_filter_keeps_the_largest() -> None:
    logits, p, k = torch.randn(4, 16), torch.tensor([0.3, 0.6, 0.9, 0.99]), torch.tensor([1, 5, 9, 16])
    for run in (torch_npu.npu_top_k_top_p, torch.compile(torch_npu.npu_top_k_top_p, backend="npu")):
        torch.testing.assert_close(run(logits, p, k), filtered(logits, p, k))


def test_quantised_numbers_round_and_saturate() -> None:
    x = torch.tensor([[-1000.0, -0.5, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0]])
    levels = torch_npu.npu_quantize(x, torch.tensor([0.5]), torch.tensor([1.0]), torch.qint8, -1, True)
    assert levels.tolist() == [[-128, 0, 2, 4], [1, 1, 1, 1]] and levels.dtype is torch.int8
    levels, scale = torch_npu.npu_dynamic_quant(x)
    assert levels[1].tolist() == [0] * 4 and float(scale[1]) == 0
    torch.testing.assert_close(levels.float() * scale[:, None], x, rtol=0, atol=float(scale[0]) / 2 + 1e-6)
    levels, scale, offset = torch_npu.npu_dynamic_quant_asymmetric(x[:1])
    restored = (levels.float() - offset[:, None]) * scale[:, None]
    torch.testing.assert_close(restored, x[:1], rtol=0, atol=float(scale[0]) * 0.51)
    smooth = torch.tensor([[1.0, 1, 1, 1], [2.0, 2, 2, 2]])
    levels, scale = torch_npu.npu_dynamic_quant(
        torch.ones(3, 4), smooth_scales=smooth, group_index=torch.tensor([1, 3])
    )
    torch.testing.assert_close(scale, torch.tensor([1.0, 2.0, 2.0]) / 127)
    packed = torch_npu.npu_quantize(
        torch.arange(-8.0, 8.0).view(1, 16), torch.ones(1), None, torch.quint4x2, -1, False
    )
    numbers = torch_npu.npu_anti_quant(
        packed, torch.tensor([0.5]), offset=torch.tensor([1.0]), dst_dtype=torch.float32
    )
    assert packed.shape == (1, 2) and torch.equal(numbers, (torch.arange(-8.0, 8.0).view(1, 16) + 1) / 2)


def test_product_of_quantised_operands() -> None:
    a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((3, 16), (16, 8)))
    scale, token = torch.rand(8), torch.rand(3)
    bias = torch.randint(-100, 100, (8,), dtype=torch.int32)
    exact = a.long() @ b.long() + bias
    wanted = exact.double() * scale * token[:, None]
    packed = torch_npu.npu_trans_quant_param(scale)

    def call(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_quant_matmul(
            a, b, scale, pertoken_scale=token, bias=bias, output_dtype=torch.bfloat16
        )

    for run, factors in ((call, scale), (call, packed), (torch.compile(call, backend="npu"), scale)):
        torch.testing.assert_close(run(a, b, factors).double(), wanted, rtol=1e-2, atol=1e-2)
    whole = torch_npu.npu_quant_matmul(a, b, scale, bias=bias, output_dtype=torch.int32)
    assert torch.equal(whole.long(), exact)
    small = torch_npu.npu_quant_matmul(a, b, scale / 1000)
    assert torch.equal(small, ((exact - bias) * (scale / 1000)).round().clamp(-128, 127).to(torch.int8))


@pytest.mark.parametrize("mode", [0, 1], ids=["given scales", "by row"])
def test_quantised_activation(mode: int) -> None:
    x, smooth = torch.randn(3, 8), torch.rand(4) + 10
    made = F.silu(x[:, 4:].double()) * x[:, :4] * smooth
    levels, scale = torch_npu.npu_swiglu_quant(x, smooth_scales=smooth, quant_mode=mode)
    factor = scale[:, None].double() if mode else 1.0
    torch.testing.assert_close(
        levels.double() * factor, made, rtol=0, atol=0.51 * float(scale.max() if mode else 1)
    )


def test_quantised_norms() -> None:
    x, y, gamma = torch.randn(3, 8), torch.randn(3, 8), torch.rand(8) + 0.5
    normed = F.rms_norm((x + y).double(), (8,), gamma.double(), 1e-6)
    first, second, total = torch_npu.npu_add_rms_norm_quant(x, y, gamma, torch.full((8,), 0.1), None)
    assert torch.equal(total, x + y) and not second.any()
    torch.testing.assert_close(first.double() / 10, normed, rtol=0, atol=0.051)
    levels = torch_npu.npu_rms_norm_quant(
        x + y, gamma, torch.zeros(8), torch.tensor([10.0]), torch.tensor([1.0])
    )
    torch.testing.assert_close((levels.double() - 1) / 10, normed, rtol=0, atol=0.051)


# -- caches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_writes_into_caches(device: str) -> None:
    with torch.device(device):
        cache, new = torch.zeros(2, 6, 3), torch.ones(2, 2, 3)
        torch_npu.scatter_update_(cache, torch.tensor([1, 4]), new, 1)
        assert cache.sum((2,)).cpu().tolist() == [[0, 3, 3, 0, 0, 0], [0, 0, 0, 0, 3, 3]]
        torch_npu.scatter_update_(cache, torch.tensor([[1, 0]]), new[:1], -2)
        assert cache.sum((2,)).cpu().tolist()[1] == [3, 3, 0, 0, 3, 3]
        assert torch_npu.npu_scatter(torch.zeros(2, 3), torch.tensor([0, 2]), torch.ones(2), 1).tolist() == [
            [1, 0, 0],
            [0, 0, 1],
        ]
        table = torch.zeros(2, 3)
        torch_npu.npu_scatter_nd_update_(table, torch.tensor([[1, 2], [0, 0]]), torch.tensor([5.0, 6.0]))
        assert table.tolist() == [[6, 0, 0], [0, 0, 5]]


def test_paged_caches_are_written_and_read() -> None:
    blocks, size, heads, width = 5, 4, 2, 8
    keys, values = torch.randn(2, 7, heads, width), torch.randn(2, 7, heads, width)
    tables = torch.tensor([[3, 0], [1, 4]], dtype=torch.int32)
    pages = [torch.zeros(blocks, size, heads, width) for _ in range(2)]
    for sample in range(2):
        place = torch.arange(7)
        slots = tables[sample].long()[place // size] * size + place % size
        torch_npu._npu_reshape_and_cache(keys[sample], values[sample], *pages, slots)
        torch_npu.npu_scatter_pa_kv_cache(keys[sample, :1], values[sample, :1], *pages, torch.tensor([-1]))
    query = torch.randn(2, 1, 4 * width)
    made, sums = torch_npu.npu_fused_infer_attention_score(
        query, pages[0].flatten(2), pages[1].flatten(2), num_heads=4, num_key_value_heads=heads, scale=0.3,
        block_table=tables, block_size=size, actual_seq_lengths_kv=[7, 5], softmax_lse_flag=True,
    )  # fmt: skip
    seen = torch.arange(7) < torch.tensor([7, 5]).view(2, 1, 1, 1)
    q, k, v = by_head(query, 4), keys.transpose(1, 2), values.transpose(1, 2)
    torch.testing.assert_close(by_head(made, 4), attended(q, k, v, 0.3, seen), rtol=1e-4, atol=1e-5)
    scores = (0.3 * q @ k.repeat_interleave(2, 1).transpose(-1, -2)).masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(sums.squeeze(-1), scores.logsumexp(-1), rtol=1e-4, atol=1e-5)


# -- packed weights ----------------------------------------------------------------------------------------------


def weights_of(bits: int, depth: int, columns: int, turned: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels, and the same as the operator takes them."""
    high = 1 << (bits - 1)
    levels = torch.randint(-high, high, (columns, depth), dtype=torch.int32)
    if bits == 8:
        return levels.t(), levels.to(torch.int8).t() if turned else levels.to(torch.int8).t().contiguous()
    if turned:
        return levels.t(), torch_npu.npu_convert_weight_to_int4pack(levels).t()
    return levels.t(), torch_npu.npu_convert_weight_to_int4pack(levels.t().contiguous())


@pytest.mark.parametrize("turned", [False, True], ids=["by depth", "by column"])
@pytest.mark.parametrize("rows", [1, pytest.param(5, marks=pytest.mark.slow), 70])
@pytest.mark.parametrize(
    ("bits", "group"),
    [
        pytest.param(8, 0, marks=pytest.mark.slow),
        (8, 32),
        pytest.param(4, 0, marks=pytest.mark.slow),
        (4, 32),
    ],
)
def test_products_with_packed_weights(bits: int, group: int, rows: int, turned: bool) -> None:
    depth, columns = 96, 24
    levels, weight = weights_of(bits, depth, columns, turned)
    groups = -(-depth // group) if group else 1
    scale, offset = torch.rand(groups, columns) + 0.1, torch.randn(groups, columns)
    x, bias = torch.randn(rows, depth), torch.randn(columns)
    spread = [t.repeat_interleave(group or depth, 0)[:depth].double() for t in (scale, offset)]
    wanted = x.double() @ ((levels.double() + spread[1]) * spread[0]) + bias

    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in (("weight", weight), ("scale", scale), ("offset", offset), ("bias", bias)):
                self.register_buffer(name, value)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch_npu.npu_weight_quant_batchmatmul(
                x, self.weight, self.scale, self.offset, bias=self.bias, antiquant_group_size=group
            )

    network = Product()
    with torch.no_grad(), observe() as reports:
        compiled = torch.compile(network, backend="npu", dynamic=False)(x)
    size = float(wanted.abs().max())
    for found in (network(x), network.npu()(x.npu()).cpu(), compiled):
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5 * size)
    assert [r.refusals for r in reports] == [[]]


def test_gradients_pass_packed_weights() -> None:
    levels, weight = weights_of(4, 64, 8, True)
    scale, x = torch.rand(8), torch.randn(3, 64, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_weight_quant_batchmatmul(x, weight, scale).square().sum()

    wide = x.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad((wide @ (levels.double() * scale)).square().sum(), wide)
    for run in (loss, torch.compile(loss, backend="npu")):
        (found,) = torch.autograd.grad(run(x), x)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-3)


def test_attention_over_two_groups_of_keys_joins_to_attention_over_all() -> None:
    q, k, v = torch.randn(3, 2, 3, 8, 4).unbind(0)  # batch, head, token, feature

    def part(keys: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores = q @ k[:, :, keys].mT
        largest = scores.amax(-1, keepdim=True)
        total = (scores - largest).exp().sum(-1, keepdim=True)
        out = scores.softmax(-1) @ v[:, :, keys]
        return out.permute(2, 0, 1, 3).flatten(2), largest.expand(-1, -1, -1, 8), total.expand(-1, -1, -1, 8)

    given = [t.npu() for keys in (slice(0, 5), slice(5, 8)) for t in part(keys)]
    for found, wanted in zip(torch_npu.npu_ring_attention_update(*given), part(slice(0, 8)), strict=True):
        torch.testing.assert_close(found.cpu(), wanted)
    with pytest.raises(NotImplementedError, match="layout 'TND'; give SBH"):
        torch_npu.npu_ring_attention_update(*given, input_layout="TND")


def test_boxes_and_their_deltas() -> None:
    regions = torch.tensor([[1.0, 2, 3, 4], [3, 4, 5, 6]]).npu()
    deltas = torch.tensor([[5.0, 6, 7, 8], [7, 8, 9, 6]]).npu()
    found = torch_npu.npu_bounding_box_decode(regions, deltas, 0, 0, 0, 0, 1, 1, 1, 1, (10, 10), 0.1)
    torch.testing.assert_close(found.cpu(), torch.tensor([[2.5, 6.5, 9, 9], [9, 9, 9, 9]]))
    boxes = torch.tensor([[2.0, 1, 6, 4], [1, 1, 2, 8]]).npu()
    settings = (0.1, -0.1, 0.2, 0, 0.1, 0.1, 0.2, 0.2)
    deltas = torch_npu.npu_bounding_box_encode(regions, boxes, *settings)
    again = torch_npu.npu_bounding_box_decode(regions, deltas, *settings, (20, 20), 0.01)
    torch.testing.assert_close(again, boxes)


def test_signs_are_packed_and_unpacked() -> None:
    x = torch.randn(64)
    for device in ("cpu", "npu"):
        packed = torch_npu.npu_sign_bits_pack(x.to(device), 2)
        assert packed.shape == (2, 4) and packed.dtype is torch.uint8
        signs = torch_npu.npu_sign_bits_unpack(packed.flatten(), 1, torch.float16)
        assert torch.equal(signs.cpu()[0], torch.where(x >= 0, 1, -1).half())


def test_memory_is_copied_and_made_by_the_devices_own_names() -> None:
    made = torch_npu.empty_with_format((2, 3), dtype=torch.int32, device="npu", acl_format=29)
    assert made.shape == (2, 3) and made.device.type == "npu"
    assert torch_npu.copy_memory_(made, torch.ones_like(made)).sum() == 6
    with pytest.raises(ValueError, match="one element type"):
        torch_npu.copy_memory_(made, made.float())


# -- names -------------------------------------------------------------------------------------------------------


def test_operators_are_in_the_namespace_too() -> None:
    x, gamma = torch.randn(3, 8, requires_grad=True), torch.rand(8)

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.npu.npu_rms_norm(torch.ops.npu.npu_swiglu(x).repeat(1, 2), gamma)[0]

    wanted = F.rms_norm((F.silu(x[:, :4]) * x[:, 4:]).repeat(1, 2), (8,), gamma, 1e-6)
    for run in (call, torch.compile(call, backend="npu", fullgraph=True)):
        torch.testing.assert_close(run(x), wanted, rtol=1e-4, atol=1e-5)
        grads = [torch.autograd.grad(y.sum(), x)[0] for y in (run(x), wanted.clone())] if run is call else []
        torch.testing.assert_close(*(grads or [x, x]), rtol=1e-3, atol=1e-4)


def test_absent_operators_name_a_way_out() -> None:
    assert not hasattr(torch_npu, "npu_of_nobody")
    names = (
        "npu_mm_all_reduce_base",
        "npu_mla_prolog",
        "npu_fusion_attention_grad",
        "npu_get_float_status",
        "npu_giou",
    )
    for name in names:
        with pytest.raises(
            NotImplementedError, match=f"torch_npu.{name} is not available on this device; .*call|write"
        ):
            getattr(torch_npu, name)(torch.ones(1))


@pytest.mark.parametrize("name", ["NpuFusedLamb", "NpuFusedAdamP", "NpuFusedBertAdam", "NpuFusedRMSpropTF"])
def test_optimizers_of_our_own_reach_a_minimum(name: str) -> None:
    parameter = torch.nn.Parameter(torch.full((4, 3), 2.0))
    optimizer = getattr(torch_npu.optim, name)([parameter], lr=0.02)
    for _ in range(200):
        optimizer.zero_grad()
        loss = (parameter - 1).square().sum()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05


def test_lamb_scales_steps_by_norms() -> None:
    parameter = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    parameter.grad = torch.tensor([1.0, -1.0])
    torch_npu.optim.NpuFusedLamb([parameter], lr=0.1, eps=0.0).step()
    step = np.array([0.1, -0.1]) / np.sqrt(0.001)
    expected = np.array([3.0, 4.0]) - 0.1 * 5 / np.linalg.norm(step) * step
    np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-5)


def test_profiler_and_utilities(tmp_path: Any) -> None:
    activities = [torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU]
    config = torch_npu.profiler._ExperimentalConfig(profiler_level=torch_npu.profiler.ProfilerLevel.Level1)
    with torch_npu.profiler.profile(activities=activities, experimental_config=config) as found:
        torch.ones(4).npu() + 1
    assert any("add" in row.key for row in found.key_averages())
    torch_npu.utils.save_async({"x": torch.ones(2)}, tmp_path / "x.pt").join()
    assert torch.equal(torch.load(tmp_path / "x.pt")["x"], torch.ones(2))
    assert torch_npu.utils.get_cann_version()
