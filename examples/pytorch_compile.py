"""A PyTorch module compiled for the NPU: inference and a training step, compared with eager mode.

python examples/pytorch_compile.py
"""

from __future__ import annotations

import copy

import torch

import torchair


def main() -> None:
    """Compile one module twice: without gradients and with them."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 10),
    )
    twin = copy.deepcopy(network)
    x, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    compiled = torch.compile(network, backend=torchair.get_npu_backend())

    with torch.no_grad():
        error = (compiled(x) - twin(x)).abs().max().item()
    print(f"inference: largest difference from eager mode {error:.1e}")
    assert error < 1e-5

    for module in (compiled, twin):
        torch.nn.functional.cross_entropy(module(x), labels).backward()
    pairs = zip(network.parameters(), twin.parameters(), strict=True)
    error = max((ours.grad - theirs.grad).abs().max().item() for ours, theirs in pairs)
    print(f"gradients: largest difference from eager mode {error:.1e}")
    assert error < 1e-5


if __name__ == "__main__":
    main()
