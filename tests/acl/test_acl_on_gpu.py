"""acl with NPU_DEVICE=cuda on the simulated driver, whose streams keep work until somebody waits for it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import acl
import ge
from acl import _memory, _state
from tests.model.test_cuda_program import model_of

H2D, D2H, D2D = 1, 2, 3


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")
    monkeypatch.setenv("NPU_DEVICE", "cuda")
    assert acl.init() == 0 and acl.rt.set_device(0) == 0
    yield
    acl.finalize()


def got(answer: tuple) -> int:
    *values, ret = answer
    assert ret == 0
    return values[0]


@pytest.fixture
def model(tmp_path: Path) -> int:
    nodes = [helper.make_node("Mul", ["x", "x"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    net = model_of(nodes, [("x", TensorProto.FLOAT, [300])], [("y", TensorProto.FLOAT, [300])])
    return got(acl.mdl.load_from_file(str(ge.compile(net).save(tmp_path / "net.om"))))


def dataset(*addresses: int) -> int:
    made = acl.mdl.create_dataset()
    for address in addresses:
        _, ret = acl.mdl.add_dataset_buffer(made, acl.create_data_buffer(address, 1200))
        assert ret == 0
    return made


def read(address: int, count: int = 300) -> np.ndarray:
    back = np.empty(count, np.float32)
    assert acl.rt.memcpy(back.ctypes.data, back.nbytes, address, back.nbytes, D2H) == 0
    return back


def test_devices_are_gpus_and_tell_their_memory() -> None:
    assert got(acl.rt.get_device_count()) == 2
    free, total, ret = acl.rt.get_mem_info(1)
    assert ret == 0
    address = got(acl.rt.malloc(1 << 20, 0))
    assert _memory.gpu_of(address) == 0
    assert acl.rt.get_mem_info(1)[0] == free - (1 << 20) and acl.rt.get_mem_info(1)[1] == total
    assert acl.rt.free(address) == 0
    assert acl.rt.get_mem_info(1)[0] == free
    assert acl.rt.malloc(1 << 40, 0)[1] == acl.constants.ACL_ERROR_RT_MEMORY_ALLOCATION


def test_copies_and_fills_reach_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(300, dtype=np.float32)
    first, second = (got(acl.rt.malloc(1200, 0)) for _ in range(2))
    assert acl.rt.set_device(1) == 0
    far = got(acl.rt.malloc(1200, 0))
    monkeypatch.setattr(ctypes, "memmove", lambda *a: pytest.fail("the host touches the GPU's memory"))
    assert acl.rt.memcpy(first, 1200, data.ctypes.data, 1200, H2D) == 0
    assert acl.rt.memcpy(second, 1200, first, 1200, D2D) == 0
    assert acl.rt.memcpy(far, 1200, second, 1200, D2D) == 0  # on another GPU
    np.testing.assert_array_equal(read(far), data)
    assert acl.rt.memset(first, 1200, 0, 1200) == 0
    np.testing.assert_array_equal(read(first), 0)
    assert acl.util.ptr_to_bytes(second, 8) == data[:2].tobytes()
    with pytest.raises(ValueError, match="copy it with"):
        acl.util.ptr_to_numpy(first, (300,), 11)


def test_models_run_in_a_stream_on_the_gpus_memory(model: int) -> None:
    data = np.linspace(-2, 2, 300).astype(np.float32)
    x, y, z = (got(acl.rt.malloc(1200, 0)) for _ in range(3))
    stream, other = (got(acl.rt.create_stream()) for _ in range(2))
    begin, end = (got(acl.rt.create_event()) for _ in range(2))
    assert acl.rt.memcpy(x, 1200, data.ctypes.data, 1200, H2D) == 0
    assert acl.rt.record_event(begin, stream) == 0
    assert acl.mdl.execute_async(model, dataset(x), dataset(y), stream) == 0
    assert acl.mdl.execute_async(model, dataset(y), dataset(z), stream) == 0
    assert acl.rt.record_event(end, stream) == 0
    assert acl.rt.stream_wait_event(other, end) == 0
    assert acl.rt.memset_async(x, 1200, 0, 1200, other) == 0  # not before both have run
    assert acl.rt.synchronize_stream(other) == 0
    np.testing.assert_allclose(read(z), data**4, rtol=1e-5)
    np.testing.assert_array_equal(read(x), 0)
    assert got(acl.rt.event_elapsed_time(begin, end)) >= 0
    loaded = acl.mdl.models.get(model).model.program
    assert loaded.copies.fed_bytes == loaded.copies.fetched_bytes == 0


def test_an_event_is_complete_when_the_gpu_has_passed_it(model: int) -> None:
    x, y = (got(acl.rt.malloc(1200, 0)) for _ in range(2))
    stream, event = got(acl.rt.create_stream()), got(acl.rt.create_event())
    assert acl.mdl.execute_async(model, dataset(x), dataset(y), stream) == 0
    assert acl.rt.record_event(event, stream) == 0
    gpu = _state.streams.get(stream).gpu
    assert gpu is not None
    while not _state.events.get(event)._done.is_set():  # put on the CUDA stream, which runs nothing by itself
        pass
    assert got(acl.rt.query_event(event)) == acl.constants.ACL_EVENT_STATUS_NOT_READY
    assert acl.rt.synchronize_event(event) == 0
    assert got(acl.rt.query_event(event)) == acl.constants.ACL_EVENT_STATUS_COMPLETE
    assert got(acl.rt.event_get_timestamp(event)) > 0


def test_buffers_of_the_host_are_copied(model: int) -> None:
    data = np.linspace(-2, 2, 300).astype(np.float32)
    host, out = got(acl.rt.malloc_host(1200)), got(acl.rt.malloc(1200, 0))
    ctypes.memmove(host, data.ctypes.data, 1200)
    assert acl.mdl.execute(model, dataset(host), dataset(out)) == 0
    np.testing.assert_allclose(read(out), data**2, rtol=1e-6)
    assert acl.mdl.execute(model, dataset(out), dataset(host)) == 0
    back = np.frombuffer(ctypes.string_at(host, 1200), np.float32)
    np.testing.assert_allclose(back, data**4, rtol=1e-5)


def test_freed_memory_lives_until_the_gpu_is_done(model: int) -> None:
    x, y = (got(acl.rt.malloc(1200, 0)) for _ in range(2))
    assert acl.rt.memset(x, 1200, 0, 1200) == 0
    stream = got(acl.rt.create_stream())
    assert acl.mdl.execute_async(model, dataset(x), dataset(y), stream) == 0
    assert acl.rt.free(x) == 0
    other = got(acl.rt.malloc(1200, 0))
    assert acl.rt.memset(other, 1200, 0xFF, 1200) == 0
    assert acl.rt.synchronize_stream(stream) == 0
    np.testing.assert_array_equal(read(y), 0)
