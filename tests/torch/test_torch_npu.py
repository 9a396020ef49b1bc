"""The npu device: tensors, modules, autograd, autocast, files, collectives, and compiled graphs on it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import torch_npu
import torchair
from torchair.executable import observe


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def test_tensors_move_and_compute() -> None:
    plain = torch.randn(2, 3)
    x = plain.npu()
    assert x.device == torch.device("npu", 0)
    assert x.is_npu
    assert x.data_ptr() != plain.data_ptr()
    for found, expected in (
        (x + 1, plain + 1),
        (x @ x.t(), plain @ plain.t()),
        (x[x > 0], plain[plain > 0]),
        (torch.cat([x, x]).softmax(1), torch.cat([plain, plain]).softmax(1)),
        (x.max(1).values, plain.max(1).values),
    ):
        assert found.device.type == "npu"
        torch.testing.assert_close(found.cpu(), expected)
    assert x.to("cpu").device.type == "cpu"
    assert x.tolist() == plain.tolist()
    with pytest.raises(RuntimeError):
        torch.zeros(1, device="npu:7") + torch.npu.set_device(7)


@pytest.mark.parametrize("name", ["device_count", "current_device", "is_available", "is_initialized"])
def test_compiled_functions_ask_about_the_device(name: str) -> None:
    def asked(x: torch.Tensor) -> torch.Tensor:
        return x + int(getattr(torch.npu, name)())

    found = torch.compile(asked, backend="npu", fullgraph=True)(torch.zeros(2))
    assert found.tolist() == [int(getattr(torch.npu, name)())] * 2


def test_views_and_writes_share_memory() -> None:
    y = torch.zeros(2, 3, device="npu")
    y[0] = 1
    y.t()[2].add_(5)
    assert y.tolist() == [[1, 1, 6], [0, 0, 5]]
    z = torch.ones(4, device="npu")
    z.resize_(2, 3)
    assert z.shape == (2, 3)
    out = torch.empty(0, device="npu")
    torch.add(y, y, out=out)
    assert torch.equal(out.cpu(), 2 * y.cpu())
    assert torch.empty(0, device="npu").cpu().shape == (0,)
    assert torch.tensor([True, False]).npu().logical_not().tolist() == [False, True]


def test_factories_and_random_numbers() -> None:
    assert torch.arange(5, device="npu")[2:].tolist() == [2, 3, 4]
    torch.npu.manual_seed(1)
    found = torch.randn(3, device="npu")
    torch.manual_seed(1)
    assert torch.equal(found.cpu(), torch.randn(3))
    assert (torch.npu.is_available(), torch.npu.device_count(), torch.npu.current_device()) == (True, 1, 0)


def _network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def test_modules_train_as_on_the_cpu() -> None:
    host = _network()
    model, x = copy.deepcopy(host).npu(), torch.randn(2, 3, 8, 8)
    for module, data in ((host, x), (model, x.npu())):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(data).square().mean().backward()
            optimizer.step()
    for left, right in zip(host.state_dict().values(), model.state_dict().values(), strict=True):
        assert right.device.type == "npu"
        torch.testing.assert_close(right.cpu(), left, rtol=1e-4, atol=1e-5)


def test_attention_copies_and_autocast() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).npu()
    q = torch.randn(2, 3, 8, device="npu")
    found = layer(q, q, q)[0]
    twin = copy.deepcopy(layer).cpu()
    torch.testing.assert_close(found.cpu(), twin(q.cpu(), q.cpu(), q.cpu())[0], rtol=1e-4, atol=1e-5)
    with torch.autocast("npu", dtype=torch.bfloat16):
        assert nn.functional.linear(q, q[0]).dtype is torch.bfloat16
    with torch.npu.amp.autocast():
        assert torch.mm(q[0], q[0].t()).dtype is torch.bfloat16


@pytest.mark.parametrize("kind", ["none", "causal", "float", "bool", "learned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_is_the_hosts_own(kind: str, dtype: torch.dtype) -> None:
    """The host's fused kernel, not a sequence of products that rounds elsewhere, wherever the host takes it."""
    torch.manual_seed(0)
    operands = [torch.randn(2, 3, 17, 8, dtype=dtype) for _ in range(3)]
    masks = {"bool": torch.rand(2, 1, 17, 17) > 0.2, "float": torch.randn(2, 1, 17, 17, dtype=dtype)}
    found = {}
    for device in ("cpu", "npu"):
        given = [t.to(device).detach().requires_grad_() for t in operands]
        mask = masks.get("float" if kind == "learned" else kind)
        mask = None if mask is None else mask.to(device).detach().requires_grad_(kind == "learned")
        result = nn.functional.scaled_dot_product_attention(
            *given, attn_mask=mask, is_causal=kind == "causal"
        )
        result.float().square().sum().backward()
        slopes = [t.grad for t in (*given, mask) if t is not None and t.requires_grad]
        with torch.inference_mode():
            again = nn.functional.scaled_dot_product_attention(
                *given, attn_mask=mask, is_causal=kind == "causal"
            )
        found[device] = [t.detach().cpu() for t in (result, again, *slopes)]
    for left, right in zip(*found.values(), strict=True):
        torch.testing.assert_close(right, left, rtol=1e-5, atol=1e-6)


def test_files_keep_the_device(tmp_path: Path) -> None:
    state = _network().npu().state_dict()
    torch.save(state, tmp_path / "state.pt")
    again = torch.load(tmp_path / "state.pt")
    host = torch.load(tmp_path / "state.pt", map_location="cpu")
    for name, value in state.items():
        assert (again[name].device.type, host[name].device.type) == ("npu", "cpu")
        assert torch.equal(again[name].cpu(), value.cpu())
    torch.save(host, tmp_path / "host.pt")
    moved = torch.load(tmp_path / "host.pt", map_location="npu:0")
    assert {v.device.type for v in moved.values()} == {"npu"}
    assert torch.UntypedStorage(8, device="npu").nbytes() == 8


def test_streams_events_and_memory() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    with torch.npu.stream(torch.npu.Stream()):
        torch.ones(3, device="npu").sum().item()
    end.record()
    torch.npu.synchronize()
    assert start.elapsed_time(end) >= 0
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(torch.ones(1).npu(), 29)) == 2


def test_streams_are_current_where_they_are_said_to_be() -> None:
    default, other = torch.npu.current_stream(), torch.npu.Stream()
    assert default is torch.npu.default_stream()
    with torch.npu.stream(other):
        assert torch.npu.current_stream() is other
        with torch.npu.stream(None):
            assert torch.npu.current_stream() is other
    assert torch.npu.current_stream() is default
    torch.npu.set_stream(other)
    assert torch.npu.current_stream() is other
    torch.npu.set_stream(default)
    event = other.record_event()
    default.wait_event(event)
    default.wait_stream(other)
    event.synchronize()
    other.synchronize()
    assert event.query()
    assert other.query()
    x = torch.ones(2, device="npu")
    x.record_stream(other)
    assert x.tolist() == [1.0, 1.0]


def test_pytorchs_own_streams_and_events() -> None:
    start, end = (torch.Event("npu", enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    side = torch.Stream("npu")
    start.record()
    with side:
        assert torch.accelerator.current_stream() is torch.npu.current_stream() is side
        end.record(side)
    assert torch.accelerator.current_stream() is torch.npu.default_stream()
    end.synchronize()
    side.synchronize()
    end.wait(side)
    assert start.query()
    assert side.query()
    assert start.elapsed_time(end) >= 0
    assert start.device == side.device == torch.device("npu", 0)
    with pytest.raises(ValueError, match="enable_timing"):
        torch.Event().elapsed_time(end)
    torch.accelerator.set_stream(side)
    assert torch.npu.current_stream() == side != torch.npu.default_stream()
    torch.accelerator.set_stream(torch.npu.default_stream())


def test_streams_and_events_of_both_names_meet() -> None:
    ours, theirs = torch.npu.Stream(), torch.Stream(device="npu:0", priority=-1)
    for one, other in ((ours, theirs), (theirs, ours)):
        one.wait_stream(other)
        event = one.record_event()
        event.synchronize()
        other.wait_event(event)
        other.record_event(torch.npu.Event())
        torch.ones(2).npu().record_stream(one)
        assert isinstance(one, torch.Stream)
        assert isinstance(event, torch.Event)


def test_streams_and_events_of_the_host_stay_pytorchs() -> None:
    stream, event = torch.Stream("cpu"), torch.Event("cpu")
    assert isinstance(stream, torch.Stream)
    assert isinstance(event, torch.Event)
    assert not isinstance(stream, torch.npu.Stream)
    assert not isinstance(event, torch.npu.Event)
    assert stream.device.type == "cpu"

    class Mine(torch.Event):
        pass

    assert issubclass(Mine, torch.Event)
    assert not isinstance(event, Mine)
    assert isinstance(Mine("cpu"), Mine)


def test_streams_and_events_in_compiled_functions() -> None:
    side, event = torch.npu.Stream(), torch.npu.Event(enable_timing=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        event.record()
        with torch.npu.stream(side):
            y = x * 2
        y.record_stream(side)
        event.synchronize()
        done = torch.Event("npu")
        done.record()
        done.synchronize()
        return y + 1

    torch._dynamo.reset()
    compiled = torch.compile(run, backend="npu", fullgraph=True)
    assert compiled(torch.ones(2, device="npu")).tolist() == [3.0, 3.0]
    assert torch.npu.current_stream() is torch.npu.default_stream()


def test_memory_of_compiled_graphs_is_counted() -> None:
    torch.npu.empty_cache()
    before = torch.npu.memory_allocated()
    compiled = torch.compile(nn.Linear(512, 512).npu().eval(), backend="npu")
    with torch.no_grad():
        compiled(torch.ones(4, 512, device="npu"))
    held = torch.npu.memory_allocated()
    assert held - before >= 512 * 512 * 4
    assert torch.npu.max_memory_allocated() >= held
    stats = torch.npu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.npu.memory_reserved() == held
    assert f"{held:,}" in torch.npu.memory_summary()
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() <= stats["allocated_bytes.all.peak"]
    assert torch.npu.get_device_properties().total_memory == torch.npu.mem_get_info()[1]


def test_states_of_the_generator_come_back() -> None:
    states = torch.npu.get_rng_state_all()
    first = torch.rand(3, device="npu")
    torch.npu.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="npu").cpu(), first.cpu())
    torch.npu.manual_seed_all(torch.npu.seed_all())
    drawn = torch.rand(3, device="npu", generator=torch.Generator().manual_seed(3))
    assert torch.equal(drawn.cpu(), torch.rand(3, generator=torch.Generator().manual_seed(3)))


def test_scaled_gradients_and_every_kind_of_optimizer() -> None:
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad):
        for foreach in (None, True, False):
            layer = nn.Linear(3, 3)
            twin, x = copy.deepcopy(layer).npu(), torch.randn(2, 3)
            scaler = torch.npu.amp.GradScaler(init_scale=128.0)
            for module, data, scaled in ((layer, x, False), (twin, x.npu(), True)):
                optimizer = kind(module.parameters(), lr=0.1, foreach=foreach)
                loss = module(data).square().sum()
                (scaler.scale(loss) if scaled else loss).backward()
                if scaled:
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                if scaled:
                    scaler.step(optimizer)
                    scaler.update()
                else:
                    optimizer.step()
            torch.testing.assert_close(twin.weight.detach().cpu(), layer.weight.detach())


def test_formats_are_plain() -> None:
    x = torch.ones(2, 3, 4, 5, device="npu")
    for cast in (torch_npu.npu_format_cast, torch_npu.npu_format_cast_):
        assert torch_npu.get_npu_format(cast(x, 3)) == 2
        assert torch.equal(cast(x, 3).cpu(), x.cpu())


def test_checkpoints_functions_and_copies_on_the_device() -> None:
    from torch.utils.checkpoint import checkpoint

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *slopes: torch.Tensor) -> torch.Tensor:
            return slopes[0] * 2

    layer = nn.Linear(4, 4).npu()
    x = torch.ones(2, 4, device="npu", requires_grad=True)
    result: Any = checkpoint(layer, Doubled.apply(x), use_reentrant=False)
    result.sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 2 * layer.weight.sum(0).cpu().expand(2, 4).detach())  # type: ignore[union-attr]
    twin = copy.deepcopy(layer)
    twin.load_state_dict(layer.cpu().state_dict())
    assert twin.weight.device.type == "npu"
    assert torch.equal(twin.weight.cpu(), layer.weight)
    assert "npu:0" in repr(x)


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y)


def test_the_listing_of_the_guide_on_npu_tensors() -> None:
    npu_backend = torchair.get_npu_backend(compiler_config=torchair.CompilerConfig())
    opt_model = torch.compile(Model().npu(), backend=npu_backend)
    x, y = torch.randn(2, 2).npu(), torch.randn(2, 2).npu()
    with observe() as reports:
        found = opt_model(x, y)
    assert found.device.type == "npu"
    assert torch.equal(found.cpu(), x.cpu() + y.cpu())
    assert reports[0].failure == ""
    assert reports[0].npu_calls == 1


def test_compiled_networks_train_on_the_device() -> None:
    host = _network()
    model, x = copy.deepcopy(host).npu(), torch.randn(2, 3, 8, 8)
    with observe() as reports:
        found = torch.compile(model, backend="npu")(x.npu()).square().mean()
        found.backward()
    expected = host(x).square().mean()
    expected.backward()
    torch.testing.assert_close(found.cpu(), expected)
    for left, right in zip(host.parameters(), model.parameters(), strict=True):
        assert right.grad.device.type == "npu"  # type: ignore[union-attr]
        torch.testing.assert_close(right.grad.cpu(), left.grad, rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    assert [r.failure for r in reports] == ["", ""]


def _run(script: str, tmp_path: Path) -> str:
    file = tmp_path / "script.py"
    file.write_text(script)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=900, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_a_process_ends_well_right_after_a_backward_pass(tmp_path: Path) -> None:
    script = """
import torch, torch_npu
torch.nn.Linear(3, 2).npu()(torch.ones(4, 3, device="npu")).sum().backward()
"""
    for _ in range(4):  # without a wait at the end, more than half of them are aborted
        _run(script, tmp_path)


def test_scripts_for_cuda_run(tmp_path: Path) -> None:
    script = """
import torch
from torch_npu.contrib import transfer_to_npu
assert torch.cuda.is_available() and torch.cuda.device_count() == 1
model = torch.nn.Linear(3, 2).cuda()
x = torch.ones(4, 3, device="cuda:0").to("cuda")
assert torch.allclose(torch.compile(model, backend="npu")(x), model(x))
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = model(x)
y.float().sum().backward()
print(y.device, y.dtype, model.weight.grad.device, y.is_cuda)
data = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True)
assert [b.cuda(non_blocking=True).tolist() for b in data] == [[0.0, 1.0], [2.0, 3.0]]
wide = torch.nn.DataParallel(torch.nn.Linear(2, 2)).cuda()
optimizer = torch.optim.SGD(wide.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
with torch.cuda.amp.autocast():
    loss = wide(torch.cuda.FloatTensor([[1.0, 2.0]])).float().sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
    torch.cuda.synchronize()
torch.cuda.empty_cache()
assert torch.cuda.get_device_properties(0).multi_processor_count >= 1 and torch.cuda.get_device_capability() < (7, 0)
assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
print("trained")
"""
    assert _run(script, tmp_path).split() == ["npu:0", "torch.bfloat16", "npu:0", "True", "trained"]


def test_scripts_for_cuda_name_devices_in_every_form(tmp_path: Path) -> None:
    script = """
import torch
from torch_npu.contrib import transfer_to_npu
for device in ("cuda:0", torch.device("cuda:0"), torch.device("cuda", 0), 0, "cuda"):
    for name in ("synchronize", "get_device_properties", "get_device_name", "get_device_capability", "mem_get_info",
                 "memory_allocated", "max_memory_allocated", "memory_reserved", "reset_peak_memory_stats", "set_device",
                 "current_stream", "default_stream", "memory_stats", "get_rng_state", "Stream"):
        getattr(torch.cuda, name)(device)
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream(device)):
        assert torch.Generator(device).device.type == "npu"
        for made in (torch.ones(2).cuda(device), torch.ones(2).to(device), torch.ones(2, device=device),
                     torch.nn.Linear(2, 2).cuda(device).weight, torch.ones(2).to(device=device),
                     torch.randn(2, generator=torch.Generator(device=device), device=device)):
            assert made.is_cuda and made.device == torch.device("npu:0"), (device, made.device)
assert torch.ones(2).type("torch.cuda.HalfTensor").type() == "torch.npu.HalfTensor"
assert isinstance(torch.cuda.current_stream(), torch.cuda.Stream) and not torch.cuda.is_current_stream_capturing()
print("named")
"""
    assert _run(script, tmp_path).strip() == "named"


def test_scripts_for_cuda_find_no_gpu_for_triton(tmp_path: Path) -> None:
    """Where Triton is installed, PyTorch asks for the generation of the GPU that such a script believes in."""
    script = """
import sys, types
import torch
import torch._inductor.config
from torch._dynamo import device_interface
from torch.utils import _triton
from torch_npu.contrib import transfer_to_npu
sys.modules["triton"] = types.ModuleType("triton")
sys.modules["triton.backends"] = sys.modules["triton"].backends = types.SimpleNamespace(backends={})
_triton.has_triton_package = lambda: True
assert torch.cuda.is_available()
print(_triton.has_triton(), _triton.has_triton_tma_device(), torch.cuda.get_device_capability("cuda:0"))
"""
    assert _run(script, tmp_path).strip() == "False False (0, 0)"


def test_values_of_one_device_are_not_mixed_up_with_numbers() -> None:
    x: Any = torch.ones(2, device="npu")
    assert (x * 2 + x.sum()).tolist() == [4.0, 4.0]


def test_modes_are_written_to_given_tensors() -> None:
    x = torch.tensor([[1, 2, 2], [3, 3, 1]])
    values, indices = (torch.empty(0, dtype=torch.int64, device="npu") for _ in range(2))
    torch.mode(x.npu(), 1, out=(values, indices))
    wanted = torch.mode(x, 1)
    assert torch.equal(values.cpu(), wanted.values) and torch.equal(indices.cpu(), wanted.indices)


def test_a_tensor_is_set_to_the_same_view_of_its_storage_only() -> None:
    x = torch.arange(4.0, device="npu")
    assert x.is_set_to(torch.empty(0, device="npu").set_(x))
    assert not any(x.is_set_to(other) for other in (x.clone(), x[1:], x.view(2, 2)))


def test_an_empty_tensor_has_no_scalar() -> None:
    with pytest.raises(RuntimeError, match="Empty tensor not supported"):
        torch.ops.aten._local_scalar_dense(torch.empty(0, device="npu"))


def test_a_copy_between_parts_of_one_tensor_that_overlap_is_refused() -> None:
    x = torch.arange(12.0, device="npu")
    for target, source in ((x[1:10], x[:9]), (x[:1].expand(4), x[:4])):
        with pytest.raises(RuntimeError, match="unsupported operation"):
            target.copy_(source)
    x[:3].copy_(x[3:6])
    assert x[:4].tolist() == [3, 4, 5, 3]
    z = torch.tensor([1 + 2j, 3 - 4j], device="npu")
    z.copy_(z.conj())
    assert z.tolist() == [1 - 2j, 3 + 4j]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: torch.erfc(x, out=torch.tensor(0.0)),
        lambda x: torch.sub(x, 1, out=torch.tensor(0.0)),
        lambda x: torch.log_softmax(x, 0, out=torch.tensor(0.0)),
        lambda x: torch.tensor(1.0).add_(x),
    ],
)
def test_a_number_of_the_host_may_be_read_but_not_written(write: Any) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        write(torch.tensor(1.0, device="npu"))
    assert torch.add(torch.ones(2, device="npu"), torch.tensor(1.0)).tolist() == [2, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool, torch.complex64])
def test_memory_that_resizing_adds_is_filled_in_deterministic_mode(dtype: torch.dtype) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        found = torch.zeros(2, dtype=dtype, device="npu").resize_(4).cpu()
        wanted = torch.zeros(2, dtype=dtype).resize_(4)
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_a_mode_does_not_see_what_a_copy_into_an_attribute_calls() -> None:
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, z = torch.ones(3, device="npu"), torch.zeros(3, dtype=torch.complex64, device="npu")
    with Mode():
        z.real = x
    assert z.tolist() == [1, 1, 1] and torch.Tensor.is_nested.__get__ not in seen  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "make",
    [
        lambda **o: torch.empty(2, **o),
        lambda **o: torch.zeros(2, **o),
        lambda **o: torch.full((2,), 3.0, **o),
        lambda **o: torch.rand(2, **o),
        lambda **o: torch.arange(3, **o),
        lambda **o: torch.eye(2, **o),
        lambda **o: torch.empty_strided((2,), (1,), **o),
        lambda **o: torch.empty((1,), device=o["device"]).new_zeros((2,), **o),
    ],
)
def test_factories_of_the_device_refuse_pinned_memory(make: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        make(pin_memory=True, device="npu")
    assert make(pin_memory=False, device="npu").device.type == "npu"
