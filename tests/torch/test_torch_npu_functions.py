"""Names that libraries take from torch_npu: functions against their definitions, eager and compiled, with gradients."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import torch_npu


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def rotated(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def neighbours(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * 1j).reshape(x.shape)


def normed(x: torch.Tensor, gamma: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return F.rms_norm(x, gamma.shape, gamma, eps)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...]]] = {
    "swiglu": (torch_npu.npu_swiglu, lambda x: F.silu(x[..., :4]) * x[..., 4:], (2, 3, 8)),
    "swiglu, an axis": (lambda x: torch_npu.npu_swiglu(x, 0), lambda x: F.silu(x[:2]) * x[2:], (4, 3)),
    "geglu": (
        lambda x: torch_npu.npu_geglu(x, dim=-1, approximate=1)[0],
        lambda x: x[..., :4] * F.gelu(x[..., 4:], approximate="tanh"),
        (2, 3, 8),
    ),
    "geglu, the left half": (
        lambda x: torch_npu.npu_geglu(x, -1, 0, True)[1],
        lambda x: F.gelu(x[..., :4]),
        (2, 3, 8),
    ),
    "fast_gelu": (torch_npu.fast_gelu, lambda x: x / (1 + torch.exp(-1.702 * x)), (7,)),
    "mish": (torch_npu.npu_mish, F.mish, (7,)),
    "silu": (torch_npu.npu_silu, F.silu, (7,)),
    "gelu": (torch_npu.npu_gelu, F.gelu, (7,)),
    "rms_norm": (
        lambda x: torch_npu.npu_rms_norm(x, torch.arange(8.0), epsilon=1e-5)[0],
        lambda x: normed(x, torch.arange(8.0), 1e-5),
        (2, 3, 8),
    ),
    "rms_norm's scale": (
        lambda x: torch_npu.npu_rms_norm(x, torch.ones(8))[1],
        lambda x: 1 / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(),
        (2, 3, 8),
    ),
    "add_rms_norm": (
        lambda x: torch_npu.npu_add_rms_norm(x, 2 * x, torch.ones(8))[0],
        lambda x: normed(3 * x, torch.ones(8)),
        (2, 8),
    ),
    "add_layer_norm": (
        lambda x: torch_npu.npu_add_layer_norm(x, x, torch.ones(8), torch.arange(8.0), 1e-5, True)[0],
        lambda x: F.layer_norm(2 * x, (8,), None, torch.arange(8.0)),
        (2, 8),
    ),
    "deep_norm": (
        lambda x: torch_npu.npu_deep_norm(x, x.sin(), torch.zeros(8), torch.ones(8), 0.5, 1e-5)[2],
        lambda x: F.layer_norm(0.5 * x + x.sin(), (8,)),
        (2, 8),
    ),
    "group_norm_silu": (
        lambda x: torch_npu.npu_group_norm_silu(x, None, None, 2)[0],
        lambda x: F.silu(F.group_norm(x, 2)),
        (2, 4, 3),
    ),
    "rotary_mul": (
        lambda x: torch_npu.npu_rotary_mul(x, x.cos(), x.sin()),
        lambda x: x * x.cos() + rotated(x) * x.sin(),
        (2, 3, 8),
    ),
    "rotary_mul of neighbours": (
        lambda x: torch_npu.npu_rotary_mul(x, x.cos(), x.sin(), "interleave"),
        lambda x: x * x.cos() + neighbours(x) * x.sin(),
        (2, 3, 8),
    ),
    "scaled_masked_softmax": (
        lambda x: torch_npu.npu_scaled_masked_softmax(x, torch.zeros(1), 0.5, True),
        lambda x: (x / 2).masked_fill(torch.ones(4, 4).triu(1).bool(), -10000).softmax(-1),
        (1, 2, 4, 4),
    ),
    "transpose": (lambda x: torch_npu.npu_transpose(x, (1, 0)), lambda x: x.T.contiguous(), (2, 3)),
    "confusion_transpose": (
        lambda x: torch_npu.npu_confusion_transpose(x, (0, 2, 1), (2, 12), True),
        lambda x: x.permute(0, 2, 1).reshape(2, 12),
        (2, 3, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_function_is_its_definition(name: str, compiled: bool) -> None:
    function, definition, shape = CASES[name]
    run = torch.compile(function, backend="npu") if compiled else function
    x = torch.randn(shape, requires_grad=True)
    made, wanted = run(x), definition(x)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)
    weights = torch.randn(made.shape)
    torch.testing.assert_close(
        torch.autograd.grad(made, x, weights)[0],
        torch.autograd.grad(wanted, x, weights)[0],
        rtol=1e-3,
        atol=1e-4,
    )


# -- attention ---------------------------------------------------------------------------------------------------


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, hidden: Any = None, pse: Any = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """By definition, in (batch, head, token, feature)."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2)
    scores = scale * (scores + pse if pse is not None else scores)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    top = scores.amax(-1, keepdim=True)
    total = (scores - top).exp().sum(-1, keepdim=True)
    return scores.softmax(-1) @ v, top.expand(*top.shape[:3], 8), total.expand(*top.shape[:3], 8)


def heads(layout: str, tensor: torch.Tensor, count: int) -> torch.Tensor:
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    split = tensor.unflatten(-1, (count, -1))
    return split.transpose(1, 2) if layout == "BSH" else split.permute(1, 2, 0, 3)


SHAPES = {  # queries, keys: 2 samples, 4 heads over 2, 5 queries, 7 keys, 8 features
    "BNSD": ((2, 4, 5, 8), (2, 2, 7, 8)),
    "BSND": ((2, 5, 4, 8), (2, 7, 2, 8)),
    "BSH": ((2, 5, 32), (2, 7, 16)),
    "SBH": ((5, 2, 32), (7, 2, 16)),
}


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_attention_in_every_layout(layout: str, compiled: bool) -> None:
    of_query, of_key = SHAPES[layout]
    tensors = [torch.randn(s, requires_grad=True) for s in (of_query, of_key, of_key)]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return torch_npu.npu_fusion_attention(q, k, v, 4, layout, scale=0.3)

    made = (torch.compile(call, backend="npu") if compiled else call)(*tensors)
    q, k, v = (heads(layout, t, c) for t, c in zip(tensors, (4, 2, 2), strict=True))
    wanted, top, total = attention(q, k, v, 0.3)
    torch.testing.assert_close(heads(layout, made[0], 4), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(made[1:3], (top, total), rtol=1e-4, atol=1e-5)
    assert made[0].shape == torch.Size(of_query) and made[4:] == (0, 0, 0)
    weights = torch.randn(wanted.shape)
    for found, expected in zip(
        torch.autograd.grad((heads(layout, made[0], 4) * weights).sum(), tensors),
        torch.autograd.grad((wanted * weights).sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


AHEAD = torch.arange(7) - torch.arange(5).unsqueeze(1)
UPPER = torch.ones(2048, 2048).triu(1).bool()


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ({"atten_mask": AHEAD > 3}, AHEAD > 3),
        ({"atten_mask": AHEAD > 3, "pre_tockens": 1}, (AHEAD > 3) | (AHEAD < -1)),
        ({"atten_mask": (AHEAD > 3).to(torch.uint8), "sparse_mode": 1, "pre_tockens": 1}, AHEAD > 3),
        ({"atten_mask": UPPER, "sparse_mode": 2}, AHEAD > 0),
        ({"atten_mask": UPPER, "sparse_mode": 3}, AHEAD > 2),
        (
            {"atten_mask": UPPER, "sparse_mode": 4, "pre_tockens": 2, "next_tockens": 1},
            (AHEAD - 2 > 1) | (AHEAD - 2 < -2),
        ),
        (
            {"atten_mask": UPPER, "sparse_mode": 6, "prefix": (4, 6)},
            (AHEAD > 2) & (torch.arange(7) >= torch.tensor([4, 6]).view(2, 1, 1, 1)),
        ),
    ],
    ids=["default", "default in a band", "all", "left-up", "right-down", "band", "prefix"],
)
@pytest.mark.parametrize("with_pse", [False, True])
def test_attention_masks(options: dict[str, Any], hidden: torch.Tensor, with_pse: bool) -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
    pse = torch.randn(1, 4, 5, 7) if with_pse else None
    made = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", pse=pse, scale=0.3, **options)
    torch.testing.assert_close(made[:3], attention(q, k, v, 0.3, hidden, pse), rtol=1e-4, atol=1e-5)


def test_attention_over_packed_sequences() -> None:
    q, k, v = torch.randn(6, 4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)
    made = torch_npu.npu_fusion_attention(
        q, k, v, 4, "TND", atten_mask=UPPER, scale=0.3, sparse_mode=3,
        actual_seq_qlen=(2, 6), actual_seq_kvlen=(4, 9),
    )  # fmt: skip
    for (a, b), (c, d) in zip(((0, 2), (2, 6)), ((0, 4), (4, 9)), strict=True):
        x, y, z = (t.transpose(0, 1).unsqueeze(0) for t in (q[a:b], k[c:d], v[c:d]))
        hidden = torch.arange(d - c) - torch.arange(b - a).unsqueeze(1) > (d - c) - (b - a)
        for found, wanted in zip(made[:3], attention(x, y, z, 0.3, hidden), strict=True):
            torch.testing.assert_close(found[a:b], wanted[0].transpose(0, 1), rtol=1e-4, atol=1e-5)


def test_hidden_queries_give_zeros_and_dropout_keeps_the_mean() -> None:
    q = torch.randn(1, 2, 5, 8)
    hidden = torch.zeros(5, 5, dtype=torch.bool)
    hidden[1] = True
    made = torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", atten_mask=hidden)
    assert made[0][:, :, 1].eq(0).all() and made[0].isfinite().all() and made[2][:, :, 1].eq(0).all()
    ones = torch.ones(1, 1, 4000, 1)
    dropped = torch_npu.npu_fusion_attention(ones[:, :, :4], ones, ones, 1, "BNSD", keep_prob=0.5)[0]
    torch.testing.assert_close(dropped.mean(), torch.tensor(1.0), rtol=0.1, atol=0.0)


def test_second_version_adds_positions_after_scaling() -> None:
    q, pse = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 5)
    made = torch_npu.npu_fusion_attention_v2(q, q, q, 2, "BNSD", pse=pse, scale=0.3, pse_type=0)
    torch.testing.assert_close(made[0], attention(q, q, q, 0.3, None, pse / 0.3)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"sparse_mode": 2}, ValueError, "needs atten_mask"),
        ({"sparse_mode": 7, "atten_mask": UPPER}, NotImplementedError, "sparse_mode=7"),
        ({"input_layout": "BHSD"}, ValueError, "BHSD"),
        ({"head_num": 3}, ValueError, "head_num=3"),
        ({"keep_prob": 0.0}, ValueError, "keep_prob"),
        ({"input_layout": "TND"}, ValueError, "actual_seq_qlen"),
    ],
)
def test_wrong_arguments_of_attention_are_named(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    q = torch.randn(1, 2, 5, 8)
    arguments = {"head_num": 2, "input_layout": "BNSD", **options}
    with pytest.raises(error, match=words):
        torch_npu.npu_fusion_attention(q, q, q, **arguments)


# -- the surface -------------------------------------------------------------------------------------------------


def test_optimizers_step_as_torchs_and_clip() -> None:
    from torch_npu.optim import NpuFusedAdamW

    ours, theirs = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizers = NpuFusedAdamW([ours], lr=0.1), torch.optim.AdamW([theirs], lr=0.1)
    for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
        parameter.grad = torch.full((3,), 4.0)
        optimizer.step()
    torch.testing.assert_close(ours, theirs)
    assert optimizers[0].clip_grad_norm_fused_(1.0) > 6 and ours.grad is not None
    torch.testing.assert_close(ours.grad.norm(), torch.tensor(1.0), rtol=1e-4, atol=1e-4)


def test_random_numbers_have_a_module_of_their_own() -> None:
    state = torch_npu.npu.random.get_rng_state_all()
    first = torch.rand(3)
    torch_npu.npu.random.set_rng_state_all(state)
    assert torch.equal(torch.rand(3), first)


def test_importing_the_device_alone_names_the_backend() -> None:
    script = (
        "import torch, torch_npu\n"
        "f = torch.compile(lambda x: x + 1, backend='npu')\n"
        "assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))\n"
        "import torchair, torchair.executable as e\n"
        "with e.observe() as reports:\n"
        "    torch.compile(lambda x: x * 3, backend='npu')(torch.ones(2))\n"
        "assert reports[0].npu_calls == 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
