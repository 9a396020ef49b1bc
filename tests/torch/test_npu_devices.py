"""Which device tensors are on: indices, several devices, torch.accelerator, generators, and what has no place there."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn

import torch_npu

assert torch_npu

SECOND_DEVICE = """
import copy, io, torch, torch_npu, torchair
from torch import nn
assert torch.npu.device_count() == torch.accelerator.device_count() == 2
x = torch.ones(2, device="npu:1")
made = [x + 1, x[1:], x.sum(), x.new_zeros(2), torch.zeros_like(x), x.conj(), x.npu(1), torch.cat([x, x]), x.add_(0)]
made += [copy.deepcopy(x), torch.arange(3, device="npu:1"), torch.compile(lambda v: v * 2, backend="npu")(x)]
assert {t.device for t in made} == {torch.device("npu", 1)}
with torch.npu.device(1):
    made = [torch.ones(2, device="npu"), torch.ones(2).npu(), torch.ones(2).to("npu"), torch.tensor([1], device="npu")]
    made += [torch.randn(2, device="npu"), nn.Linear(2, 2).to("npu").weight, nn.Linear(2, 2, device="npu").weight]
    made += [torch.Generator("npu"), torch.npu.current_stream()]
    made += [torch.empty(2, device="npu").untyped_storage()]
    assert {t.device for t in made} == {torch.device("npu", 1)}
    assert torch.accelerator.current_device_index() == torch.npu.current_device() == 1
assert torch.npu.current_device() == 0
torch.npu.set_device("npu:1")
assert torch.ones(1, device="npu").device.index == 1
torch.npu.set_device(0)
zero = torch.ones(2, device="npu:0")
for call in (torch.add, torch.dot, torch.Tensor.mul_, lambda a, b: torch.stack([a, b])):
    try:
        call(x, zero)
    except RuntimeError as error:
        assert "same device" in str(error) and "npu:1 and npu:0" in str(error)
    else:
        raise AssertionError(call)
assert (zero + x.to("npu:0")).tolist() == [2, 2] and zero.copy_(x).device.index == 0
host = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
model, image = copy.deepcopy(host).to("npu:1"), torch.randn(2, 1, 4, 4)
for net, data in ((host, image), (model, image.to("npu:1"))):
    net(data).square().sum().backward()
for left, right in zip(host.parameters(), model.parameters()):
    assert right.grad.device.index == 1
    torch.testing.assert_close(right.grad.cpu(), left.grad)
y = x.requires_grad_()
((y * 2).to("npu:0") * 3).sum().backward()
assert y.grad.tolist() == [6, 6] and y.grad.device.index == 1
file = io.BytesIO()
torch.save(model.state_dict(), file)
for place, index in ((None, 1), ("npu:0", 0)):
    file.seek(0)
    assert {v.device.index for v in torch.load(file, map_location=place).values()} == {index}
"""


def test_a_second_device_is_a_device_of_its_own() -> None:
    environment = {**os.environ, "NPU_DEVICE_COUNT": "2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SECOND_DEVICE], capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(2, device="npu:1"),
        lambda: torch.ones(2).to("npu:1"),
        lambda: torch.ones(2).npu(1),  # type: ignore[attr-defined]
        lambda: torch.tril_indices(2, 2, device="npu:1"),
        lambda: torch.npu.set_device(1),
        lambda: torch.npu.device(1),
        lambda: torch.Generator("npu:1"),
        lambda: torch.UntypedStorage(4, device="npu:1"),
        lambda: torch.accelerator.set_device_index(1),
        lambda: nn.Linear(2, 2).to("npu:1"),
    ],
)
def test_a_device_that_is_not_there_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="invalid device ordinal npu:1"):
        call()


def test_tensors_of_the_host_are_not_mixed_with_the_devices() -> None:
    x, plain = torch.arange(3.0).npu(), torch.arange(3.0)
    for call in (
        lambda: x + plain,
        lambda: plain.add_(x),
        lambda: torch.cat([x, plain]),
        lambda: torch.add(x, x, out=plain),
        lambda: nn.functional.linear(x, plain),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            call()
    assert x.to("cpu", non_blocking=True).tolist() == [0, 1, 2]
    assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3]
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    assert x[plain > 0].tolist() == [1, 2]
    x[torch.tensor([0])] = torch.tensor(5.0)
    assert x.tolist() == [5, 1, 2]


def test_tensors_pass_between_processes_by_value() -> None:
    x = torch.arange(3.0).npu()[1:]
    message = bytes(ForkingPickler.dumps([x, x[1:], torch.empty(0, device="npu")]))
    whole, part, empty = pickle.loads(message)
    assert {t.device for t in (whole, part, empty)} == {torch.device("npu", 0)}
    part.add_(1)
    assert (whole.tolist(), x.tolist(), empty.shape) == ([1, 3], [1, 2], (0,))


def test_functions_of_the_accelerator() -> None:
    accelerator = torch.accelerator
    assert accelerator.current_accelerator() == torch.device("npu")
    assert (accelerator.device_count(), accelerator.current_device_index()) == (1, 0)
    accelerator.synchronize()
    accelerator.set_stream(accelerator.current_stream())
    with accelerator.device_index(0):
        pass
    assert torch.bfloat16 in accelerator.get_device_capability()["supported_dtypes"]
    accelerator.empty_cache()
    accelerator.memory.empty_host_cache()
    accelerator.reset_peak_memory_stats()
    assert accelerator.memory_stats()["allocated_bytes.all.current"] == accelerator.memory_allocated()
    assert accelerator.max_memory_allocated() >= accelerator.memory_allocated()
    assert accelerator.get_memory_info() == torch.npu.mem_get_info()


def test_generators_of_the_device() -> None:
    drawn = [torch.rand(2, device="npu", generator=torch.Generator("npu").manual_seed(3)) for _ in range(2)]
    assert torch.equal(drawn[0].cpu(), drawn[1].cpu())
    generator = torch.Generator(device="npu:0")
    assert generator.device == torch.device("npu", 0)
    for again in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator)), generator.clone_state()):
        assert again.device == generator.device
        assert torch.equal(again.get_state(), generator.get_state())
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.default_generator, torch.Generator)
    assert torch.Generator().device.type == "cpu"
    with torch.random.fork_rng(device_type="npu"):
        first = torch.rand(2, device="npu")
    assert torch.equal(first.cpu(), torch.rand(2, device="npu").cpu())


def test_tensors_are_made_on_a_default_device() -> None:
    with torch.device("npu"):
        layer = nn.LSTM(2, 3)
        x = torch.ones(2, 1, 2)
        layer(x)[0].sum().backward()
        empty = torch.ones(0, 2) @ torch.ones(2, 3)
        out = torch.empty(1).resize_(3)
    assert {v.device.type for v in (x, empty, out, *(p.grad for p in layer.parameters()))} == {"npu"}
