"""State of the process and its threads: initialisation, devices, contexts, streams, events."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

from acl import _gpu
from acl import constants as c
from acl._conventions import AclError, Handles
from acl._stream import Event, Stream

__all__ = [
    "Context",
    "contexts",
    "current_context",
    "device_count",
    "events",
    "on_device_of_thread",
    "process",
    "stream_of",
    "streams",
]


@dataclass(eq=False)
class Context:
    """A context on a device, with a default stream."""

    device: int
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.stream = Stream(_gpu.new_stream(self.device))


@dataclass
class Process:
    """State of the whole process."""

    initialised: bool = False
    finalised: bool = False
    primary: dict[int, int] = field(default_factory=dict)  # device -> handle of its primary context


process = Process()
contexts: Handles[Context] = Handles("context", c.ACL_ERROR_RT_CONTEXT_NULL)
streams: Handles[Stream] = Handles("stream", c.ACL_ERROR_RT_PARAM_INVALID)
events: Handles[Event] = Handles("event", c.ACL_ERROR_RT_PARAM_INVALID)
thread = threading.local()


def device_count() -> int:
    """Number of NPUs: the GPUs with NPU_DEVICE=cuda, else NPU_DEVICE_COUNT (default 1)."""
    if _gpu.enabled():
        return _gpu.device_count()
    import npu_runtime

    return int(npu_runtime.device_count())


def check_device(device: object) -> int:
    """Check that a device number exists."""
    if not isinstance(device, int) or not 0 <= device < device_count():
        raise AclError(c.ACL_ERROR_RT_INVALID_DEVICEID, f"device {device!r}: there are {device_count()}")
    return device


def on_device_of_thread() -> contextlib.AbstractContextManager[None]:
    """Bind programs to the device of the calling thread's context, even if another thread runs them."""
    handle: int | None = getattr(thread, "context", None)
    if handle is None or _gpu.enabled():  # streams know their GPUs
        return contextlib.nullcontext()
    from npu_runtime import on_device

    return on_device(contexts.get(handle).device)


def current_handle() -> int:
    """The handle of the calling thread's context."""
    handle: int | None = getattr(thread, "context", None)
    if handle is None:
        raise AclError(
            c.ACL_ERROR_RT_CONTEXT_NULL,
            "this thread has no context: call acl.rt.set_device or set_context first",
        )
    return handle


def current_context() -> Context:
    """The calling thread's context."""
    return contexts.get(current_handle())


def stream_of(handle: object) -> Stream:
    """The stream of a handle; 0 and None mean the context's default stream."""
    if handle in (0, None):
        return current_context().stream
    return streams.get(handle)
