"""Data parallel training in PyTorch that keeps its state after every step: `ddp.py folder`."""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import torch_npu  # noqa: F401

FOLDER, STEPS, ROWS = Path(sys.argv[1]), 30, 4
STATE = FOLDER / "state.pt"

dist.init_process_group("hccl", timeout=timedelta(seconds=60))
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)).to("npu")
optimizer = torch.optim.Adam(model.parameters(), 0.01)
replica = torch.nn.parallel.DistributedDataParallel(model)
losses: list[float] = []
if STATE.exists():
    saved = torch.load(STATE)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    losses = saved["losses"]
print(f"rank {rank} begins at step {len(losses)}", flush=True)
for step in range(len(losses), STEPS):
    rows = torch.randn(2 * ROWS, 6, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    loss = replica(rows[ROWS * rank :][:ROWS].npu()).square().mean()
    loss.backward()
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    losses.append(float(total) / 2)
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
        torch.save(state, STATE.with_suffix(".new"))
        STATE.with_suffix(".new").replace(STATE)
        (FOLDER / "step").write_text(str(step))
    dist.barrier()
    time.sleep(0.1)  # the test ends a host in the middle
if rank == 0:
    (FOLDER / "losses.json").write_text(json.dumps(losses))
