"""Compiled graphs on the GPU, with the simulated driver: tensors of the host, which are copied, and CUDA tensors."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from ge.compiler import compile_graph
from ge.errors import GeError
from ge.model.cuda import CudaProgram
from npu_runtime import cuda
from torchair import executable, gpu
from torchair.lowering import Layout, NpuPart, lower
from torchair.plan import FunctionPlan, form_of


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


class _Simulated(gpu.Gpu):
    """CPU tensors stand in for CUDA's: the simulated GPU's memory is the host's, where results are made too."""

    streams: ClassVar[list[cuda.Stream]] = []

    def guard(self) -> Any:
        return contextlib.nullcontext()

    def stream(self) -> cuda.Stream:
        if not self.streams:
            self.streams.append(cuda.Stream(0))
        return self.streams[0]

    def make(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return on_gpu(torch.empty_strided(shape, strides, dtype=dtype))

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        return on_gpu(tensor)

    def runner(self, model: Any) -> Any:
        run = super().runner(model)

        def at_once(inputs: Sequence[int], outputs: Sequence[int]) -> Any:
            shapes = run(inputs, outputs)
            self.stream().synchronize()  # PyTorch's own work is not on the stream here
            return shapes

        return at_once


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of the simulated GPU."""
    size = max(tensor.untyped_storage().nbytes(), 1)
    capsule = cuda.to_dlpack(memory := cuda.Memory(0, size), 1, 0, memory.address, [size], 1, 8)
    storage = torch.from_dlpack(capsule).untyped_storage()
    made = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, tensor.shape, tensor.stride())
    return made.copy_(tensor)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    monkeypatch.setattr(executable, "gpu_of", lambda values: _Simulated(0))
    copied = CudaProgram.run_pointers
    monkeypatch.setattr(CudaProgram, "run_pointers", lambda *a, **k: pytest.fail("copies through the host"))
    torch._dynamo.reset()
    yield
    monkeypatch.setattr(CudaProgram, "run_pointers", copied)
    torch._dynamo.reset()


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.nn.functional.max_pool2d(x, 2).mean((2, 3)))


def _trained(net: torch.nn.Module, call: Any, place: Any) -> list[float]:
    torch.manual_seed(1)
    steps = [(torch.randn(2, 3, 6, 6), torch.randint(0, 5, (2,))) for _ in range(3)]
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    losses = []
    for x, y in steps:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(call(place(x)), place(y))
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def test_cuda_tensors_train_where_they_are(simulated: None) -> None:
    torch.manual_seed(0)
    plain = _Net()
    ours = copy.deepcopy(plain)
    for parameter in ours.parameters():
        parameter.data = on_gpu(parameter.data)
    want = _trained(plain, plain, lambda t: t)
    with torchair.executable.observe() as reports:
        got = _trained(ours, torch.compile(ours, backend=torchair.get_npu_backend()), on_gpu)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_allclose(ours.norm.running_var.numpy(), plain.norm.running_var.numpy(), rtol=1e-4)
    assert [r.memory for r in reports] == ["GPU 0", "GPU 0"] and not any(r.copied_bytes for r in reports)


def test_parameters_on_the_gpu_become_constants_and_change_again(simulated: None) -> None:
    net = _Net().eval()
    compiled = torch.compile(net, backend=torchair.get_npu_backend())
    x = on_gpu(torch.randn(2, 3, 6, 6))
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
            net.head.weight.mul_(2.0)


def test_normalisations_of_16_bits_are_biases_of_convolutions(
    simulated: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed in float32, and so is the bias; the library takes it in 16 bits."""
    tasks: list[str] = []
    run = CudaProgram.run_on_gpu
    monkeypatch.setattr(
        CudaProgram,
        "run_on_gpu",
        lambda self, *a: (tasks.extend(t.kind for t in self.plan.tasks), run(self, *a))[1],
    )
    net = _Net().eval()
    net.norm.running_mean.normal_()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        want = net(x)
        got = torch.compile(net.half(), backend=torchair.get_npu_backend())(on_gpu(x.half()))
    torch.testing.assert_close(got.float(), want, rtol=5e-3, atol=5e-3)
    assert "conv" in tasks


def test_open_sizes_run_on_the_gpu(simulated: None) -> None:
    def network(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1) + 1

    compiled = torch.compile(network, backend=torchair.get_npu_backend(), dynamic=True)
    w = on_gpu(torch.randn(8, 6))
    for rows in (3, 5, 70, 11):
        x = on_gpu(torch.randn(rows, 8))
        torch.testing.assert_close(compiled(x, w), network(x, w), rtol=1e-5, atol=1e-6)


def test_tensors_of_two_gpus_in_a_graph_are_refused_with_the_reason() -> None:
    with FakeTensorMode(), pytest.raises(GeError, match=r"GPUs 0, 1 are in one graph"):
        gpu.gpu_of([torch.empty(2, device="cuda:0"), torch.empty(2, device="cuda:1")])


def test_tensors_of_the_host_are_copied_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_DEVICE", "cuda")
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    torch._dynamo.reset()
    executable._warn_of_copies.cache_clear()
    with pytest.warns(UserWarning, match="each call copies its inputs to the GPU"):
        text = str(torchair.explain(lambda x: torch.exp(x) + 1, torch.ones(5, 40)))
    assert "tensors in the memory of the host: 1600 bytes copied to and from the GPU in a call" in text
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["efficient", "flash", "cudnn"])
def test_attention_of_cuda_tensors_is_the_engines(kind: str) -> None:
    """The graphs of SDPA on CUDA tensors, forward and backward, give what SDPA and its gradients are."""
    forward = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention").default
    backward = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention_backward").default
    q, k, v, dy = (torch.randn(2, 3, 17, 8) for _ in range(4))
    bias = [] if kind == "flash" else [None, True]

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dy: torch.Tensor) -> list[torch.Tensor]:
        found = forward(q, k, v, *bias, 0.0, True)
        y, sums = found[:2]
        if kind == "efficient":
            grads = backward(dy, q, k, v, None, y, sums, *found[2:4], 0.0, [True] * 3 + [False], True)
        elif kind == "flash":
            grads = backward(dy, q, k, v, y, sums, *found[2:6], 0.0, True, *found[6:8])
        else:
            grads = backward(dy, q, k, v, y, sums, *found[6:8], None, *found[2:6], 0.0, True)
        return [y, *grads[:3]]

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t).to(torch.float16).to(torch.float32) for t in (q, k, v, dy)]
        graph = make_fx(step)(*fakes)
    places = [n for n in graph.graph.nodes if n.op == "placeholder"]
    values = {n: n.meta["val"] for n in graph.graph.nodes if "val" in n.meta}
    lowered = lower(graph, values, {}, {n: Layout.of(n.meta["val"]) for n in places})
    assert not lowered.refusals
    models = [compile_graph(s.graph) for s in lowered.steps if isinstance(s, NpuPart)]
    got = FunctionPlan(form_of(graph, places, lowered, values), models)([q, k, v, dy])
    given = [t.clone().requires_grad_() for t in (q, k, v)]
    y = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)
    want = [y.detach(), *torch.autograd.grad(y, given, dy)]
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
