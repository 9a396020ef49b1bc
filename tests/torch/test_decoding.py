"""Decoding with a cache that grows: few graphs and programs for all lengths, with the tokens of eager mode."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchair.executable import observe


class Decoder(nn.Module):
    """One layer of attention over a growing cache, written as transformers writes it."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(64, width)
        self.joint = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 64)

    def forward(
        self, tokens: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], positional: bool
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        x = self.tokens(tokens)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.joint(x).chunk(3, -1))
        keys, values = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        causal = q.shape[2] > 1 and True
        if positional:
            y = F.scaled_dot_product_attention(q, keys, values, None, 0.0, causal)
        else:
            y = F.scaled_dot_product_attention(q, keys, values, is_causal=causal)
        return self.head(y.transpose(1, 2).flatten(2)[:, -1]), (keys, values)


def generated(run: nn.Module, prompt: torch.Tensor, count: int, positional: bool) -> list[list[int]]:
    empty = torch.zeros(prompt.shape[0], 4, 0, 8)
    tokens, cache, found = prompt, (empty, empty), []
    for _ in range(count):
        logits, cache = run(tokens, cache, positional)
        tokens = logits.argmax(-1, keepdim=True)
        found.append(tokens.squeeze(1).tolist())
    return found


@torch.no_grad()
@pytest.mark.parametrize("positional", [False, True])
def test_decoding_lengths_share_graphs_and_programs(positional: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = Decoder().eval()
    prompts = [torch.randint(0, 64, (2, length)) for length in (5, 9, 7)]
    compiled = torch.compile(network, backend="npu", dynamic=True, fullgraph=True)
    with observe() as reports:
        first = generated(compiled, prompts[0], 6, positional)
        after_few = len(reports), sum(r.programs for r in reports)
        others = [generated(compiled, p, 14, positional) for p in prompts[1:]]
    assert [first, *others] == [
        generated(network, p, count, positional) for p, count in zip(prompts, (6, 14, 14), strict=True)
    ]
    assert all(not r.failure for r in reports)
    assert len(reports) <= after_few[0] + 1 and len(reports) <= 4, "a graph for prompts, one for tokens"
    assert sum(r.programs for r in reports) <= after_few[1] + 4, "no program for each length"
