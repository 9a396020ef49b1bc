"""GPUs through the simulated driver: memory and its account, streams, events, kernels, graphs."""

from __future__ import annotations

import ctypes.util

import numpy as np
import pytest

import npu_runtime
import tbe
from npu_runtime import cuda
from tbe import cuda as gpu


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def test_devices_describe_themselves() -> None:
    assert cuda.device_count() == 2
    assert cuda.describe(0)["architecture"] == "sm_90"
    with pytest.raises(ValueError, match="no GPU 2: the machine has 2"):
        cuda.describe(2)


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPU_CUDA_DRIVER")
    with pytest.raises(cuda.CudaUnavailable, match=r"no CUDA driver.*install NVIDIA's driver"):
        cuda.device_count()


def test_copies_round_trip_and_are_checked() -> None:
    stream, memory = cuda.Stream(0), cuda.Memory(0, 1000, "round trip")
    data = np.arange(250, dtype=np.float32)
    memory.upload(stream, data)
    back = np.empty_like(data)
    memory.download(stream, back)
    np.testing.assert_array_equal(back, data)
    with pytest.raises(ValueError, match="exceeds the 1000 bytes"):
        memory.upload(stream, data, offset=4)


def test_released_memory_is_pooled_and_counted() -> None:
    cuda.trim(0)
    before = cuda.memory_info(0)
    memory = cuda.Memory(0, 5000, "a")
    address = memory.address
    assert cuda.memory_info(0)["current"] - before["current"] == 5120
    del memory
    assert cuda.memory_info(0)["pooled"] == 5120
    again = cuda.Memory(0, 5001, "b")
    assert again.address == address
    del again
    cuda.trim(0)
    assert cuda.memory_info(0)["pooled"] == 0
    assert cuda.memory_info(0)["current"] == before["current"]


def test_out_of_memory_names_who_asked() -> None:
    with pytest.raises(npu_runtime.OutOfDeviceMemory, match="the arena asks for") as raised:
        cuda.Memory(0, 1 << 40, "the arena")
    assert raised.value.name == "the arena"
    cuda.set_memory_limit(1, 10000)
    try:
        with pytest.raises(npu_runtime.OutOfDeviceMemory) as raised:
            cuda.Memory(1, 20000, "weights")
        assert raised.value.available == 10000
    finally:
        cuda.set_memory_limit(1, 0)


def test_a_captured_graph_runs_when_launched() -> None:
    x = tbe.placeholder((100,), "float32")
    kernel = gpu.build([x], [x * 2.0], "sm_90", simulated=True)
    stream, module = cuda.Stream(0), cuda.Module(0, kernel.code)
    source, result, copy = (cuda.Memory(0, 400) for _ in range(3))
    stream.begin_capture()
    addresses = [source.address, result.address]
    stream.launch(module, kernel.symbol, kernel.blocks, kernel.threads, addresses)
    stream.copy(copy.address, result.address, 400)
    graph = cuda.Graph(stream)
    assert graph.nodes == 2
    begin, end = cuda.Event(0), cuda.Event(0)
    for factor in (1.0, 3.0):
        source.upload(stream, np.full(100, factor, np.float32))
        begin.record(stream)
        graph.launch(stream)
        end.record(stream)
        stream.synchronize()
        back = np.empty(100, np.float32)
        copy.download(stream, back)
        np.testing.assert_array_equal(back, 2.0 * factor)
    assert end.milliseconds_since(begin) >= 0.0


def test_a_stream_that_waits_takes_part_in_the_capture() -> None:
    first, second = cuda.Stream(0), cuda.Stream(0)
    begin, end = cuda.Event(0), cuda.Event(0)
    memory = cuda.Memory(0, 16)
    for joined in (True, False):
        first.begin_capture()
        begin.record(first)
        second.wait(begin)
        second.fill(memory.address, 7, 16)
        end.record(second)
        if not joined:
            with pytest.raises(cuda.CudaError):
                cuda.Graph(first)
            continue
        first.wait(end)
        graph = cuda.Graph(first)
        assert graph.nodes == 1
        graph.launch(first)
        back = np.empty(16, np.uint8)
        memory.download(first, back)
        np.testing.assert_array_equal(back, 7)


def test_code_the_driver_refuses_is_an_error() -> None:
    with pytest.raises(cuda.CudaError, match="INVALID_IMAGE"):
        cuda.Module(0, b".version 7.0 nothing")
