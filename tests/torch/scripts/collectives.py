"""Collectives, device meshes and data parallel training of NPU tensors; started by torchrun with two ranks."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import always_wrap_policy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import torch_npu  # noqa: F401
import torchair

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert SIZE == 2
dist.init_process_group("hccl", timeout=timedelta(seconds=120))


def npu(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device="npu")


def same(found: torch.Tensor, *expected: float) -> None:
    assert found.device.type == "npu" and found.flatten().tolist() == list(expected), (found, expected)


def collectives() -> None:
    x = npu(0, 1, 2, 3) + RANK
    y = x.clone()
    dist.all_reduce(y)
    same(y, 1, 3, 5, 7)
    y = x.clone()
    dist.all_reduce(y, dist.ReduceOp.MAX, async_op=True).wait()
    same(y, 1, 2, 3, 4)
    whole = torch.empty(8, device="npu")
    dist.all_gather_into_tensor(whole, x)
    same(whole, 0, 1, 2, 3, 1, 2, 3, 4)
    part = torch.empty(2, device="npu")
    dist.reduce_scatter_tensor(part, x.clone())
    same(part, *((1, 3), (5, 7))[RANK])
    dist.reduce_scatter(part, [v.clone() for v in x.chunk(2)])
    same(part, *((1, 3), (5, 7))[RANK])
    swapped = torch.empty(4, device="npu")
    dist.all_to_all_single(swapped, x)
    same(swapped, *((0, 1, 1, 2), (2, 3, 3, 4))[RANK])
    parts = [torch.empty(2, device="npu") for _ in range(2)]
    dist.all_to_all(parts, list(x.chunk(2)))
    same(torch.cat(parts), *((0, 1, 1, 2), (2, 3, 3, 4))[RANK])
    many = [torch.empty(4, device="npu") for _ in range(2)]
    dist.all_gather(many, x)
    same(torch.cat(many), 0, 1, 2, 3, 1, 2, 3, 4)
    y = x.clone()
    dist.broadcast(y, 1)
    same(y, 1, 2, 3, 4)
    y = x.clone()
    dist.reduce(y, 0)
    if RANK == 0:
        same(y, 1, 3, 5, 7)
    dist.gather(x, many if RANK == 0 else None)
    dist.scatter(part, [npu(5, 6), npu(7, 8)] if RANK == 0 else None)
    same(part, *((5, 6), (7, 8))[RANK])


def tensors_of_different_sizes() -> None:
    parts = [npu(*[10 * RANK + other] * (RANK + other + 1)) for other in range(SIZE)]
    found = [torch.empty(RANK + other + 1, device="npu") for other in range(SIZE)]
    dist.all_to_all(found, parts)
    same(torch.cat(found), *((0, 10, 10), (1, 1, 11, 11, 11))[RANK])
    for wait in (False, True):
        found = [torch.empty(other + 1, 2, device="npu") for other in range(SIZE)]
        work = dist.all_gather(found, npu(RANK).expand(RANK + 1, 2), async_op=wait)
        work.wait() if work else None
        same(torch.cat(found), 0, 0, 1, 1, 1, 1)
    stacked, part = torch.empty(SIZE, 1, 2, device="npu"), torch.empty(1, 2, device="npu")
    dist.all_gather_into_tensor(stacked, npu(RANK, 3).reshape(1, 2))
    same(stacked, 0, 3, 1, 3)
    dist.reduce_scatter_tensor(part, npu(0, 1, 2, 3).reshape(SIZE, 1, 2))
    same(part, *((0, 2), (4, 6))[RANK])


def synchronised_batch_normalisation() -> None:
    """Ranks with batches of different sizes normalise as one with all of them."""
    batch = torch.linspace(-2, 3, 5 * 3 * 4).sin().reshape(5, 3, 4)
    for kind, error in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        whole = nn.BatchNorm1d(3)
        expected = batch.clone().requires_grad_()
        whole(expected).pow(3).sum().backward()
        norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(3)).to("npu")
        mine = batch[:2] if RANK == 0 else batch[2:]
        mine = mine.to("npu", kind).requires_grad_()
        norm(mine).float().pow(3).sum().backward()
        rows = slice(0, 2) if RANK == 0 else slice(2, 5)
        torch.testing.assert_close(mine.grad.float().cpu(), expected.grad[rows], rtol=error, atol=10 * error)
        torch.testing.assert_close(norm.running_mean.cpu(), whole.running_mean, rtol=error, atol=error)
        torch.testing.assert_close(norm.running_var.cpu(), whole.running_var, rtol=error, atol=error)
        dist.all_reduce(norm.weight.grad)
        torch.testing.assert_close(norm.weight.grad.cpu(), whole.weight.grad, rtol=error, atol=50 * error)


def messages() -> None:
    x, y = npu(1, 2) + RANK, torch.empty(2, device="npu")
    dist.send(x, 1) if RANK == 0 else dist.recv(y, 0)
    if RANK == 1:
        same(y, 1, 2)
    others = [dist.P2POp(dist.isend, x, 1 - RANK), dist.P2POp(dist.irecv, y, 1 - RANK)]
    for work in dist.batch_isend_irecv(others):
        work.wait()
    same(y, *((2, 3), (1, 2))[RANK])
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier()
    alone = dist.new_group([0])
    if RANK == 0:
        dist.all_reduce(x, group=alone)
        same(x, 1, 2)


def meshes() -> None:
    world = dist.group.WORLD
    same(functional.all_reduce(npu(1, 2), "sum", world) + 0, 2, 4)
    same(functional.all_gather_tensor(npu(float(RANK)), 0, world) + 0, 0, 1)
    same(functional.reduce_scatter_tensor(npu(1, 2), "sum", 0, world) + 0, *((2,), (4,))[RANK])
    mesh = init_device_mesh("npu", (2,))
    rows = distribute_tensor(torch.arange(8.0, device="npu").reshape(4, 2), mesh, [Shard(0)])
    same((2 * rows).redistribute(mesh, [Replicate()]).to_local(), *range(0, 16, 2))
    columns = distribute_tensor(torch.ones(3, 4, device="npu"), mesh, [Shard(1)])
    same((columns @ rows).full_tensor(), *([12.0, 16.0] * 3))


torch.manual_seed(5)
X, Y = torch.randn(8, 4), torch.randn(8, 2)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("npu")


def trained(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, shared: bool = True) -> Any:
    """The losses of three steps, of all ranks' rows."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-2)
    x, y = (v.chunk(2)[RANK].npu() if shared else v.npu() for v in (X, Y))
    losses = []
    for _ in range(3):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if shared:
            dist.all_reduce(mean)
            mean /= 2
        losses.append(float(mean))
    return torch.tensor(losses)


def training() -> None:
    """Every way to train on two ranks has the losses of one."""
    alone = trained(network(), shared=False)
    backend = torchair.get_npu_backend()
    sharded = network()
    for layer in (sharded[0], sharded[2], sharded):
        fully_shard(layer)
    split = DistributedDataParallel(network())
    ways = {
        "DDP": trained(DistributedDataParallel(network())),
        "FSDP2": trained(sharded),
        **{
            f"FSDP1, {strategy.name}": trained(
                FullyShardedDataParallel(
                    network(), sharding_strategy=strategy, auto_wrap_policy=always_wrap_policy
                )
            )
            for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP)
        },
        "ZeRO": trained(split, ZeroRedundancyOptimizer(split.parameters(), torch.optim.AdamW, lr=1e-2)),
        "compiled DDP": trained(torch.compile(DistributedDataParallel(network()), backend=backend)),
    }
    for name, losses in ways.items():
        torch.testing.assert_close(losses, alone, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def another_shape() -> None:
    """DDP compares the models of all ranks before the first step; one that differs from the first rank's says so."""
    model = nn.Linear(4, 2 + RANK).to("npu")
    try:
        dist._verify_params_across_processes(dist.group.WORLD, list(model.parameters()), None)
    except RuntimeError as error:
        assert RANK == 1 and "[3, 4] appears not to match sizes of the same param in process 0" in str(error)
    else:
        assert RANK == 0, "models of different shapes were accepted"


def a_rank_that_dies() -> None:
    """The others get an error, at the latest when the group's time is over."""
    store = dist.distributed_c10d._get_default_store()
    if RANK == 1:
        store.wait(["ready"])  # the other has received what was sent before
        os._exit(0)
    store.set("ready", "")
    try:
        dist.all_reduce(npu(1, 2))
    except RuntimeError as error:
        print(f"refused: {error}\n", end="", flush=True)  # one write, which other ranks' do not divide
    else:
        raise AssertionError("a collective without the other rank came to an end")


for program in (
    collectives,
    tensors_of_different_sizes,
    synchronised_batch_normalisation,
    messages,
    meshes,
    training,
    another_shape,
    a_rank_that_dies,
):
    program()
    if RANK == 0:
        print(f"done {program.__name__}\n", end="", flush=True)
os._exit(0)  # the group cannot be closed together any more
