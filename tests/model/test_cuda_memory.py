"""Programs of a GPU on memory of the GPU, with the simulated driver: who does not wait reads what was there before."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ge
from ge.errors import GeError, OutOfMemoryError
from ge.model.cuda import binding
from ge.model.cuda.arrays import GpuArray
from ge.options import CompileOptions
from npu_runtime import cuda
from tests.model.test_cuda_program import convolution_net, largest_net, model_of

GPU = CompileOptions(target="sm_90")


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def affine() -> onnx.ModelProto:
    nodes = [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    inputs = [(name, TensorProto.FLOAT, [64]) for name in "xwb"]
    return model_of(nodes, inputs, [("y", TensorProto.FLOAT, [64])])


def on_gpu(array: np.ndarray, device: int = 0) -> GpuArray:
    made = GpuArray(device, array.shape, str(array.dtype))
    made._memory.upload(cuda.Stream(device), np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return made


def numbers(seed: int = 0, size: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def test_a_run_on_the_callers_stream_is_ordered_with_what_is_around_it() -> None:
    program = ge.compile(affine(), GPU).program
    host = [numbers(i) for i in range(4)]
    x, w, b, later = (on_gpu(a) for a in host)
    y, z = (on_gpu(np.zeros(64, np.float32)) for _ in range(2))
    stream = cuda.Stream(0)
    addresses = [x.address, w.address, b.address]
    program.run_on_gpu(addresses, [y.address], stream)
    stream.synchronize()
    for _ in range(3):
        stream.copy(x.address, later.address, x.nbytes)  # before: on the stream, not done yet
        program.run_on_gpu(addresses, [y.address], stream)
        stream.copy(z.address, y.address, y.nbytes)  # after
        stream.fill(y.address, 0, y.nbytes)
        np.testing.assert_array_equal(y.numpy() * 0, 0)
        stream.synchronize()
        np.testing.assert_allclose(z.numpy(), host[3] * host[1] + host[2], rtol=1e-5, atol=1e-6)
    assert program.copies.on_gpu == program.copies.fed_bytes == 0


def test_runs_on_two_streams_wait_for_one_another() -> None:
    """They share the arena: the second begins when the first has ended."""
    net = convolution_net(np.float32)
    program, want = ge.compile(net, GPU).program, ge.compile(net)
    xs = [np.random.default_rng(i).standard_normal((2, 8, 12, 12)).astype(np.float32) for i in range(2)]
    given, results = [on_gpu(x) for x in xs], [on_gpu(np.zeros_like(x)) for x in xs]
    streams = [cuda.Stream(0), cuda.Stream(0)]
    for x, y, stream in zip(given, results, streams, strict=True):
        program.run_on_gpu([x.address], [y.address], stream)
    streams[1].synchronize()  # which has waited for the first
    for x, y in zip(xs, results, strict=True):
        np.testing.assert_allclose(y.numpy(), want(x), rtol=1e-3, atol=1e-3)


def test_new_addresses_are_bound_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "MOST_BINDINGS", 3)
    program = ge.compile(affine(), GPU).program
    w, b, y = (on_gpu(numbers(i)) for i in range(3))
    stream = cuda.Stream(0)
    kept = []
    for turn in range(8):
        host = numbers(10 + turn)
        kept.append(on_gpu(host))
        program.run_on_gpu([kept[-1].address, w.address, b.address], [y.address], stream)
        stream.synchronize()
        np.testing.assert_allclose(y.numpy(), host * numbers(0) + numbers(1), rtol=1e-5, atol=1e-6)
        assert program.copies.on_gpu == max(0, turn - 2)  # only what moves is copied
    assert program.loaded.bindings.moving == {("input", 0)}


def test_memory_between_two_multiples_of_16_bytes_is_copied() -> None:
    program = ge.compile(affine(), GPU).program
    whole, result = on_gpu(numbers(5, 66)), on_gpu(np.zeros(66, np.float32))
    w, b = on_gpu(numbers(0)), on_gpu(numbers(1))
    stream = cuda.Stream(0)
    program.run_on_gpu([whole.address + 4, w.address, b.address], [result.address + 8], stream)
    stream.synchronize()
    np.testing.assert_allclose(
        result.numpy()[2:], whole.numpy()[1:65] * numbers(0) + numbers(1), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(result.numpy()[:2], 0)
    assert program.copies.on_gpu == 2


def test_host_tasks_copy_what_they_need_and_are_counted() -> None:
    net = largest_net()
    model, want = ge.compile(net, GPU), ge.compile(net)
    feeds = [np.random.default_rng(4).standard_normal((3, 50)).astype(np.float32)]
    results = model.run([on_gpu(f) for f in feeds])
    for ours, theirs in zip(results, want.run(feeds), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-6)
    assert model.program.copies.to_host > 0 and model.program.copies.fed_bytes == 0


def test_tensors_come_and_go_by_dlpack() -> None:
    model = ge.compile(affine(), GPU)
    host = [numbers(i) for i in range(3)]
    want = host[0] * host[1] + host[2]
    result = model(*(on_gpu(a, 1) for a in host))
    assert isinstance(result, GpuArray) and result.__dlpack_device__() == (2, 1)
    np.testing.assert_allclose(result.numpy(), want, rtol=1e-5, atol=1e-6)
    taken = cuda.Tensor(result.__dlpack__())
    assert (taken.device_type, taken.device, taken.address) == (2, 1, result.address)
    assert (taken.shape, taken.strides, taken.type) == ([64], [1], (2, 32))
    into = on_gpu(np.zeros(64, np.float32), 1)
    assert model.run([on_gpu(host[0], 1), *host[1:]], into=[into]) == [into]  # those of the host are copied
    np.testing.assert_allclose(into.numpy(), want, rtol=1e-5, atol=1e-6)
    with pytest.raises(GeError, match=r"'w' is .* on GPU 0; the model takes a dense float32\[64\] on GPU 1"):
        model.run([on_gpu(host[0], 1), on_gpu(host[1], 0), on_gpu(host[2], 1)])


def test_memory_comes_back_when_models_are_gone() -> None:
    gc.collect()
    before = cuda.memory_info(0)["current"]
    model = ge.compile(affine(), GPU)
    result = model(*(on_gpu(numbers(i)) for i in range(3)))
    capsule = result.__dlpack__()
    del model, result, capsule
    gc.collect()
    assert cuda.memory_info(0)["current"] == before


def test_a_gpu_that_is_too_old_and_memory_that_is_too_small_are_errors() -> None:
    model = ge.compile(affine(), CompileOptions(target="sm_100"))
    with pytest.raises(GeError, match=r"compiled for sm_100, GPU 0 is sm_90.*compile it for sm_90"):
        model(*(numbers(i) for i in range(3)))
    model = ge.compile(affine(), GPU)
    cuda.set_memory_limit(0, cuda.memory_info(0)["current"] + 300)
    try:
        with pytest.raises(OutOfMemoryError, match=r"asks for .*bytes"):
            model(*(numbers(i) for i in range(3)))
    finally:
        cuda.set_memory_limit(0, 0)
