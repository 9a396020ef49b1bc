"""The GPU behind acl's addresses and streams (NPU_DEVICE=cuda): copies, fills and runs on a CUDA stream.

An acl stream's work runs in its own thread, which enqueues it on the CUDA stream and continues; only copies from and to
the host wait there. Calls without a stream wait for the GPU.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from npu_runtime import cuda

__all__ = [
    "copy",
    "device_count",
    "enabled",
    "event_time",
    "fill",
    "new_stream",
    "on_stream",
    "room",
    "run",
    "working_on",
]

_thread = threading.local()


def enabled() -> bool:
    """True if devices are GPUs."""
    from npu_runtime import environment  # the runtime is not loaded before it is needed

    return environment.choice("NPU_DEVICE", ("cpu", "cuda")) == "cuda"


def device_count() -> int:
    """Number of GPUs."""
    from npu_runtime import cuda

    return int(cuda.device_count())


def new_stream(device: int) -> cuda.Stream | None:
    """Create a CUDA stream for an acl stream; None if devices are not GPUs."""
    if not enabled():
        return None
    from npu_runtime import cuda

    return cuda.Stream(device)


@contextlib.contextmanager
def working_on(stream: cuda.Stream | None) -> Iterator[None]:
    """In a stream's thread: enqueue GPU work on this stream."""
    _thread.stream = stream
    try:
        yield
    finally:
        _thread.stream = None


@contextlib.contextmanager
def on_stream(device: int) -> Iterator[cuda.Stream]:
    """The CUDA stream of the thread; callers' threads use one that is synchronised at the end."""
    current = getattr(_thread, "stream", None)
    if current is not None and current.device == device:
        yield current
        return
    waiting = _own_stream(device)
    yield waiting
    waiting.synchronize()


@functools.cache
def _own_stream(device: int) -> cuda.Stream:
    from npu_runtime import cuda

    return cuda.Stream(device)


def room(device: int) -> tuple[int, int]:
    """Free and total bytes of a GPU."""
    from npu_runtime import cuda

    info = cuda.memory_info(device)
    limit = int(info["limit"])
    free = int(info["free"]) + int(info["pooled"])
    return (min(free, max(limit - int(info["current"]), 0)), limit) if limit else (free, int(info["total"]))


def copy(dst: int, to: int | None, src: int, source: int | None, nbytes: int) -> None:
    """Copy bytes between GPUs (by number) and the host (None); copies with the host block."""
    device = to if to is not None else source
    assert device is not None, "one end is a GPU's"
    with on_stream(device) as stream:
        if source is None:
            stream.upload(dst, src, nbytes)
        elif to is None:
            stream.download(dst, src, nbytes)
        else:
            stream.copy_anywhere(dst, src, nbytes)
            return
        stream.synchronize()


def fill(address: int, device: int, value: int, nbytes: int) -> None:
    """Fill bytes of a GPU's memory."""
    with on_stream(device) as stream:
        stream.fill(address, value & 0xFF, nbytes)


@functools.cache
def _origin(device: int) -> tuple[cuda.Event, float]:
    from npu_runtime import cuda

    event, stream = cuda.Event(device), _own_stream(device)
    event.record(stream)
    event.synchronize()
    return event, time.perf_counter()


def event_time(event: cuda.Event, device: int) -> float:
    """Host time in seconds at which a completed event was reached."""
    origin, at = _origin(device)
    return at + event.milliseconds_since(origin) / 1e3


def run(model: Any, inputs: Sequence[int], outputs: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Run a model on addresses: in place if the device can access them, else on copies."""
    from acl import _memory

    where = [[_memory.gpu_of(a) for a in side] for side in (inputs, outputs)]
    if not hasattr(model.program, "run_on_gpu"):
        return _on_host(model, inputs, outputs, where)
    current = getattr(_thread, "stream", None)
    known = [gpu for side in where for gpu in side if gpu is not None]
    with on_stream(current.device if current is not None else (known or [_device_of_thread()])[0]) as stream:
        return _on_gpu(model, inputs, outputs, where, stream)


def _device_of_thread() -> int:
    from acl import _state

    handle = getattr(_state.thread, "context", None)
    return 0 if handle is None else _state.contexts.get(handle).device


def _on_gpu(
    model: Any,
    inputs: Sequence[int],
    outputs: Sequence[int],
    where: list[list[int | None]],
    stream: cuda.Stream,
) -> dict[int, tuple[int, ...]]:
    from npu_runtime import cuda

    held: list[cuda.Memory] = []

    def place(address: int, gpu: int | None, nbytes: int, name: str) -> int:
        if gpu == stream.device or not nbytes:
            return address
        held.append(cuda.Memory(stream.device, nbytes, name))
        return held[-1].address

    feeds, results = (
        [place(a, g, p.desc.nbytes, p.name) for a, g, p in zip(side, gpus, ports, strict=True)]
        for side, gpus, ports in (
            (inputs, where[0], model.plan.inputs),
            (outputs, where[1], model.plan.outputs),
        )
    )
    for address, own, gpu, port in zip(inputs, feeds, where[0], model.plan.inputs, strict=True):
        if address != own:
            copy(own, stream.device, address, gpu, port.desc.nbytes)
    shapes: dict[int, tuple[int, ...]] = model.run_on_gpu(feeds, results, stream)
    for address, own, gpu, port in zip(outputs, results, where[1], model.plan.outputs, strict=True):
        if address != own:
            copy(address, gpu, own, stream.device, port.desc.nbytes)
    if held:
        stream.synchronize()
    return shapes


def _on_host(
    model: Any, inputs: Sequence[int], outputs: Sequence[int], where: list[list[int | None]]
) -> dict[int, tuple[int, ...]]:
    """Run a CPU model; data in GPU memory is copied."""
    held: list[np.ndarray] = []

    def place(address: int, gpu: int | None, nbytes: int) -> int:
        if gpu is None:
            return address
        held.append(np.empty(nbytes + 64, np.uint8))
        return -(-held[-1].ctypes.data // 64) * 64

    feeds, results = (
        [place(a, g, p.desc.nbytes) for a, g, p in zip(side, gpus, ports, strict=True)]
        for side, gpus, ports in (
            (inputs, where[0], model.plan.inputs),
            (outputs, where[1], model.plan.outputs),
        )
    )
    for address, own, gpu, port in zip(inputs, feeds, where[0], model.plan.inputs, strict=True):
        if gpu is not None:
            copy(own, None, address, gpu, port.desc.nbytes)
    shapes: dict[int, tuple[int, ...]] = model.run_addresses(feeds, results)
    for address, own, gpu, port in zip(outputs, results, where[1], model.plan.outputs, strict=True):
        if gpu is not None:
            copy(address, gpu, own, None, port.desc.nbytes)
    return shapes
