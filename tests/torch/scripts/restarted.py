"""Training that loses a rank in each of three attempts; torchrun starts it with two ranks and a folder for its state.

Every attempt resumes from the state of the one before. The last one compares all losses with those of one process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import torch_npu  # noqa: F401

STEPS, ROWS, FAILURES = 8, 4, (2, 3, 6)  # the steps before which a rank dies, one an attempt
ATTEMPT, STATE = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), Path(sys.argv[1]) / "state.pt"


def model_and_optimizer(device: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3).to(device)
    return model, torch.optim.Adam(model.parameters(), 0.1)


def batch(step: int, rows: slice) -> torch.Tensor:
    return torch.randn(2 * ROWS, 6, generator=torch.Generator().manual_seed(step))[rows]


def step_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(rows).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train() -> list[float]:
    """All losses, those of earlier attempts included."""
    dist.init_process_group("hccl")
    rank = dist.get_rank()
    model, optimizer = model_and_optimizer("npu")
    replica = torch.nn.parallel.DistributedDataParallel(model)
    losses: list[float] = []
    if STATE.exists():
        saved = torch.load(STATE)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        losses = saved["losses"]
    for step in range(len(losses), STEPS):
        if step == (*FAILURES, STEPS)[ATTEMPT] and rank == ATTEMPT % 2:
            os._exit(1)
        loss = step_of(replica, optimizer, batch(step, slice(ROWS * rank, ROWS * (rank + 1))).npu())
        dist.all_reduce(loss)
        losses.append(float(loss) / 2)
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            torch.save(state, STATE.with_suffix(".new"))
            STATE.with_suffix(".new").replace(STATE)
        dist.barrier()
    return losses


found = train()
if dist.get_rank() == 0:
    alone, updates = model_and_optimizer("cpu")
    wanted = [float(step_of(alone, updates, batch(step, slice(None)))) for step in range(STEPS)]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=1e-5, atol=1e-6)
    print(f"attempt {ATTEMPT}: the losses of an undisturbed run", flush=True)
