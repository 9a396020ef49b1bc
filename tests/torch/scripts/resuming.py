"""Six steps of two ranks with a checkpoint after each; `killed` ends the second in the middle with signal 9."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torch_npu  # noqa: F401

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("hccl")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to("npu"))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
begin, losses = 0, []
kept = FOLDER / "checkpoint.pt"
if kept.exists():
    begin, losses, weights, moments = torch.load(kept, weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
for step in range(begin, 6):
    torch.manual_seed(2 * step + rank)
    loss = model(torch.randn(4, 4).npu()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach()
    dist.all_reduce(mean)
    losses.append(float(mean))
    if rank == 0:
        state = (step + 1, losses, model.state_dict(), optimizer.state_dict())
        torch.save(state, FOLDER / "new.pt")
        (FOLDER / "new.pt").rename(kept)
    dist.barrier()
    if HOW == "killed" and step == 2 and rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
if rank == 0:
    (FOLDER / "losses.json").write_text(json.dumps(losses))
dist.destroy_process_group()
