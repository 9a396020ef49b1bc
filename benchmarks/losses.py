"""Networks that return their loss, as training scripts compile them: what a training step of each model minimises."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["WithLoss", "with_loss"]

CLASSES = 2  # of texts, where the network has no classes of its own


def classes(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of classes, in float32 whatever the network's type is.

    >>> classes(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)).item() == torch.tensor(4.0).log().item()
    True
    """
    return functional.cross_entropy(scores.float().flatten(0, -2), targets.flatten())


def chances(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of events that happen or do not, in float32."""
    return functional.binary_cross_entropy(scores.float().flatten(), targets)


class WithLoss(nn.Module):
    """A network and its loss; where it ends in hidden states, a linear layer on the first one tells the class."""

    def __init__(self, network: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], hidden: int = 0) -> None:
        super().__init__()
        self.network = network
        self.loss = loss
        self.head = nn.Linear(hidden, CLASSES) if hidden else None

    def forward(self, targets: Tensor, *args: Tensor) -> Tensor:
        scores = self.network(*args)
        if self.head is not None:
            scores = self.head(scores[:, 0])
        return self.loss(scores, targets)


def with_loss(name: str, network: nn.Module, args: list[Tensor]) -> tuple[nn.Module, list[Tensor]]:
    """A network of the zoo with its loss, and the arguments of that: targets first, the same at every call.

    Next tokens for GPT-2, whether something happens for DLRM, classes for all others.
    """
    torch.manual_seed(0)
    batch = args[0].shape[0]
    if name == "gpt2":
        return WithLoss(network, classes), [args[0].roll(-1, 1), *args]
    if name == "dlrm":
        return WithLoss(network, chances), [torch.randint(2, (batch,)).float(), *args]
    if name == "bert":
        model = WithLoss(network, classes, network.get_parameter("positions").shape[-1])
        return model, [torch.randint(CLASSES, (batch,)), *args]
    with torch.no_grad():
        count = network.eval()(*args).shape[-1]
    return WithLoss(network, classes), [torch.randint(count, (batch,)), *args]
