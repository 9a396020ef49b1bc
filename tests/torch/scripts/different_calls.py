"""Two ranks whose calls differ, and calls that only look different; started by torchrun with two ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

import torch_npu  # noqa: F401

RANK = int(os.environ["RANK"])
dist.init_process_group("hccl", timeout=timedelta(seconds=60))


def ones(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype, device="npu")


def reduced(
    count: int, dtype: torch.dtype = torch.float32, op: dist.ReduceOp = dist.ReduceOp.SUM
) -> Callable:
    return lambda group: dist.all_reduce(ones(count, dtype), op, group, async_op=True)


def gathered(count: int) -> Callable:
    return lambda group: dist.all_gather_into_tensor(ones(2 * count), ones(count), group, async_op=True)


DIFFERENT = {  # what ranks 0 and 1 call
    "sizes": (reduced(4), reduced(6)),
    "types of one size": (reduced(4), reduced(4, torch.int32)),
    "reductions": (reduced(4), reduced(4, op=dist.ReduceOp.MAX)),
    "operators": (reduced(4), lambda group: dist.broadcast(ones(4), 0, group, async_op=True)),
    "roots": tuple(lambda group, n=n: dist.broadcast(ones(4), n, group, async_op=True) for n in range(2)),
    "gathered sizes": (gathered(2), gathered(3)),
    "a message too long": (
        lambda group: dist.isend(ones(4), 1, group),
        lambda group: dist.irecv(ones(2), 0, group),
    ),
    "a message of another type": (
        lambda group: dist.isend(ones(4, torch.int32), 1, group),
        lambda group: dist.irecv(ones(4), 0, group),
    ),
}
for what, calls in DIFFERENT.items():
    own = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if RANK == 0:
        left = calls[0](own)
    dist.barrier()
    if RANK == 1:
        try:
            calls[1](own)
        except RuntimeError as error:
            assert "rank 1 calls" in str(error) and "but rank 0 calls" in str(error), error
            print(f"named: {what}", flush=True)
    dist.barrier()

for n in range(200):  # the sender does not wait: the other rank falls far behind
    dist.broadcast(value := ones(2) * n if RANK == 0 else ones(2), 0)
    assert value.tolist() == [n, n]
if RANK == 0:  # a message may be shorter than the memory that takes it
    dist.send(ones(2) * 7, 1)
else:
    dist.recv(taken := ones(4), 0)
    assert taken.tolist() == [7, 7, 1, 1]
for where in ("npu", "cpu" if RANK else "npu", "npu"):  # Gloo adds tensors of the host to the NPU's
    dist.all_reduce(value := torch.ones(3, device=where))
    assert value.tolist() == [2, 2, 2]
dist.all_reduce(value := ones(3))
assert value.tolist() == [2, 2, 2]
print("done", flush=True)
os._exit(0)  # calls that nobody answered are still under way
