"""Training steps on one GPU: the whole step as one CUDA graph beside torch.compile, losses and weights checked.

`python -m benchmarks.cuda_training resnet50:64 bert:32 gpt2:32` needs a GPU and PyTorch with CUDA.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

RATE, MOMENTUM = 1e-2, 0.9
ADAM_RATE, BETAS, EPSILON, DECAY = 1e-4, (0.9, 0.999), 1e-8, 0.01


@dataclass
class Subject:
    """A network in training mode, its batch and its optimizer."""

    name: str
    batch: int
    small: bool = False

    def __post_init__(self) -> None:
        import torch

        from benchmarks.models.zoo import zoo

        model = zoo(self.small)[self.name]
        self.module = model.module().train().requires_grad_(True)
        self.inputs = [torch.from_numpy(a) for a in model.inputs(self.batch)]
        with torch.no_grad():
            shape = model.module()(*[x[:1] for x in self.inputs]).shape
        rng = np.random.default_rng(3)
        classes = shape[-1]
        self.classified = len(shape) == 2 or self.name == "gpt2"
        self.target = (
            torch.from_numpy(rng.integers(0, classes, (self.batch, *shape[1:-1])))
            if self.classified
            else torch.from_numpy(rng.standard_normal((self.batch, *shape[1:])).astype(np.float32))
        )

    @property
    def adam(self) -> bool:
        """Whether AdamW updates the weights; else momentum does."""
        return not any(x.dim() == 4 for x in self.inputs)

    def loss(self, y: Any, target: Any) -> Any:
        """Cross entropy of classes, the mean square of others."""
        import torch

        if not self.classified:
            return torch.nn.functional.mse_loss(y.float(), target)
        return torch.nn.functional.cross_entropy(y.float().reshape(-1, y.shape[-1]), target.reshape(-1))


def traced_step(subject: Subject, dtype: Any = None) -> tuple[Any, list[Any]]:
    """The graph of one step that writes weights, optimizer state and statistics in place, and its arguments.

    The order of arguments: weights, state, statistics, step count (AdamW), inputs, target; the result is the loss.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    from torchair import decompositions

    names, weights = zip(*subject.module.named_parameters(), strict=True)
    buffers = dict(subject.module.named_buffers())
    slots = 2 if subject.adam else 1
    state = [torch.zeros_like(w) for w in weights for _ in range(slots)]
    count = [torch.zeros(())] if subject.adam else []
    values = [*(w.detach().clone() for w in weights), *state, *(b.clone() for b in buffers.values()), *count]
    sizes = [len(weights), len(state), len(buffers), len(count)]

    def step(*given: Any) -> Any:
        ends = np.cumsum([0, *sizes])
        now, slot, statistics, counted = (list(given[a:b]) for a, b in itertools.pairwise(ends))
        *inputs, target = given[ends[-1] :]

        def forward(fresh: list[Any], moved: list[Any]) -> Any:
            parameters = dict(zip((*names, *buffers), (*fresh, *moved), strict=True))
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                y = torch.func.functional_call(subject.module, parameters, tuple(inputs))
            return subject.loss(y, target), moved

        gradients, (loss, moved) = torch.func.grad_and_value(forward, has_aux=True)(
            now, [s.clone() for s in statistics]
        )
        with torch.no_grad():
            for old, new in zip(statistics, moved, strict=True):
                old.copy_(new)
            if counted:
                number = counted[0] + 1
                counted[0].copy_(number)
                corrections = [1 - b**number for b in BETAS]
            for i, (w, g) in enumerate(zip(now, gradients, strict=True)):
                if not subject.adam:
                    v = slot[i] * MOMENTUM + g
                    slot[i].copy_(v)
                    w.copy_(w - RATE * v)
                    continue
                m = slot[2 * i] * BETAS[0] + g * (1 - BETAS[0])
                v = slot[2 * i + 1] * BETAS[1] + g * g * (1 - BETAS[1])
                slot[2 * i].copy_(m)
                slot[2 * i + 1].copy_(v)
                update = (m / corrections[0]) / ((v / corrections[1]).sqrt() + EPSILON)
                w.copy_(w * (1 - ADAM_RATE * DECAY) - ADAM_RATE * update)
        return loss

    def batch_norm(
        x: Any, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, *rest: float
    ) -> Any:
        """The form whose writes to the statistics a trace sees."""
        return torch.ops.aten._native_batch_norm_legit(x, weight, bias, mean, variance, training, *rest)[0]

    arguments = [*values, *subject.inputs, subject.target]
    functional = torch.func.functionalize(step, remove="mutations")
    with mock.patch.object(torch.nn.functional, "batch_norm", batch_norm):
        graph = make_fx(functional, decompositions.table(), tracing_mode="fake")(*arguments)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, arguments
