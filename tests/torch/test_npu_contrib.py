"""Functions and modules of torch_npu.contrib against PyTorch's own, on npu tensors and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torch_npu import contrib
from torch_npu.contrib import function, module

CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul_transpose": (contrib.matmul_transpose, lambda a, b: a @ b.mT, [(2, 3, 4), (2, 5, 4)]),
    "roll": (lambda x: contrib.roll(x, (1, 2), (0, 1)), lambda x: x.roll((1, 2), (0, 1)), [(3, 4)]),
    "condition": (
        lambda x: contrib.npu_fast_condition_index_put(x, x > 0, 7.0),
        lambda x: x.masked_fill(x > 0, 7.0),
        [(3, 4)],
    ),
    "softmax_dropout": (
        lambda m, s: contrib.fuse_add_softmax_dropout(False, None, m, s, 16),
        lambda m, s: (s / 4 + m).softmax(-1),
        [(2, 1, 4), (2, 3, 4)],
    ),
    "shuffle": (
        contrib.ChannelShuffle(8, split_shuffle=False),
        lambda a, b: nn.ChannelShuffle(2)(torch.cat((a, b), 1)),
        [(1, 4, 2, 2), (1, 4, 2, 2)],
    ),
    "smoothed labels": (
        lambda x: contrib.LabelSmoothingCrossEntropy(4, 0.1)(x, torch.tensor([1, 3], device=x.device)),
        lambda x: F.cross_entropy(x, torch.tensor([1, 3]), label_smoothing=0.1),
        [(2, 4)],
    ),
    "drop path": (contrib.NpuDropPath(0.5).eval(), lambda x: x, [(2, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_its_formula_with_gradients(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    call, formula, shapes = CASES[name]
    plain = [torch.randn(s, requires_grad=True) for s in shapes]
    wanted = formula(*plain)
    gradients = torch.autograd.grad(wanted.square().sum(), plain)
    for run, device in ((call, "npu"), (torch.compile(call, backend="npu"), "cpu")):
        given = [p.detach().to(device).requires_grad_() for p in plain]
        made = run(*given)
        torch.testing.assert_close(made.cpu(), wanted)
        for found, expected in zip(torch.autograd.grad(made.square().sum(), given), gradients, strict=True):
            torch.testing.assert_close(found.cpu(), expected)


def test_modules_with_weights_run_on_the_device() -> None:
    focus = contrib.Focus(3, 8, 3).npu().eval()
    x = torch.randn(1, 3, 8, 8)
    wanted = focus.cpu()(x)
    torch.testing.assert_close(focus.npu()(x.npu()).cpu(), wanted)
    assert wanted.shape == (1, 8, 4, 4)
    assert contrib.BiLSTM(4, 3).npu()(torch.randn(5, 2, 4).npu()).shape == (5, 2, 6)
    dropped = contrib.NpuDropPath(0.5)(torch.ones(64, 2).npu()).cpu()
    assert set(dropped.flatten().tolist()) == {0.0, 2.0} and torch.equal(dropped[:, 0], dropped[:, 1])
    assert contrib.NpuFairseqDropout(0.5, "name").eval()(x) is x


def test_batches_are_prefetched_to_the_device() -> None:
    batches = contrib.Prefetcher([(torch.ones(2), torch.zeros(2, dtype=torch.int64))])
    inputs, targets = batches.next()
    assert inputs.device.type == targets.device.type == "npu"
    assert batches.next() == (None, None)


def test_boxes_there_and_back() -> None:
    regions = torch.tensor([[1.0, 2, 3, 4], [3, 4, 5, 6]])
    boxes = torch.tensor([[2.0, 1, 6, 4], [1, 1, 2, 8]])
    deltas = contrib.npu_bbox_coder_encode_xyxy2xywh(regions, boxes, stds=(0.1, 0.1, 0.2, 0.2))
    again = contrib.npu_bbox_coder_decode_xywh2xyxy(regions, deltas, stds=(0.1, 0.1, 0.2, 0.2))
    torch.testing.assert_close(again, boxes)


@pytest.mark.parametrize("where", [(function, "npu_giou"), (module, "ROIAlign"), (module, "LinearQuant")])
def test_what_is_absent_says_so_when_it_is_called(where: tuple[Any, str]) -> None:
    called = getattr(*where)
    with pytest.raises(
        NotImplementedError, match=f"{where[1]} is not available on this device; .*(write|call)"
    ):
        called()
