"""Compiled graphs with NPU_DEVICE=cuda, on the simulated driver."""

from __future__ import annotations

import pytest
import torch

import torchair
from ge.model.cuda import CudaProgram


def test_compiled_graphs_run_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_DEVICE", "cuda")
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    runs = []
    run = CudaProgram.run_pointers
    monkeypatch.setattr(
        CudaProgram, "run_pointers", lambda self, *a, **k: (runs.append(1), run(self, *a, **k))[1]
    )

    def network(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * y + 1, -1).sum(0)

    torch._dynamo.reset()
    x, y = torch.randn(5, 40), torch.randn(40)
    compiled = torch.compile(network, backend=torchair.get_npu_backend())
    torch.testing.assert_close(compiled(x, y), network(x, y))
    assert runs
    torch._dynamo.reset()
