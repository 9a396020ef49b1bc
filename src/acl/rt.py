"""acl.rt: devices, contexts, streams, events and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acl import _gpu, _memory, _state
from acl import constants as c
from acl._conventions import AclError, returns_code, returns_value
from acl._state import Context, contexts, current_context, events, stream_of, streams
from acl._stream import Event, Stream, reports
from acl.constants import *  # noqa: F403  (samples read acl.rt.ACL_MEMCPY_… as well)

# -- devices ----------------------------------------------------------------------------------------


@returns_code
def set_device(device_id: int) -> None:
    """Use a device in this thread. Returns ret."""
    device = _state.check_device(device_id)
    if device not in _state.process.primary:
        _state.process.primary[device] = contexts.add(Context(device))
    _state.thread.context = _state.process.primary[device]


@returns_code
def reset_device(device_id: int) -> None:
    """Finish a device's work and release its default context. Returns ret."""
    handle = _state.process.primary.pop(_state.check_device(device_id), None)
    if handle is None:
        return
    context = contexts.remove(handle)
    context.stream.synchronize()
    context.stream.close()
    if getattr(_state.thread, "context", None) == handle:
        _state.thread.context = None


reset_device_force = reset_device


@returns_value(0)
def get_device() -> int:
    """(device_id, ret) of this thread."""
    return current_context().device


@returns_value(0)
def get_device_count() -> int:
    """(count, ret)."""
    return _state.device_count()


@returns_value(0)
def get_run_mode() -> int:
    """(run_mode, ret): programs run on the host."""
    return c.ACL_HOST


@returns_code
def synchronize_device() -> None:
    """Wait for all streams of the device. Returns ret."""
    current_context().stream.synchronize()
    for _, stream in streams.items():
        stream.synchronize()


@returns_code
def set_ts_device(ts_id: int) -> None:
    """Has no effect: there is only one task scheduler. Returns ret."""


@returns_value(0, 0)
def get_device_utilization_rate(device_id: int) -> tuple[int, int]:
    """Not measured here. Returns (0, 0, ret)."""
    raise AclError(c.ACL_ERROR_API_NOT_SUPPORT, "utilisation is not measured")


# -- contexts ---------------------------------------------------------------------------------------


@returns_value(0)
def create_context(device_id: int) -> int:
    """Create a context and make it current in this thread. Returns (context, ret)."""
    handle = contexts.add(Context(_state.check_device(device_id)))
    _state.thread.context = handle
    return handle


@returns_code
def destroy_context(context: int) -> None:
    """Release a context. Returns ret."""
    contexts.remove(context).stream.close()
    if getattr(_state.thread, "context", None) == context:
        _state.thread.context = None


@returns_code
def set_context(context: int) -> None:
    """Make a context current in this thread. Returns ret."""
    contexts.get(context)
    _state.thread.context = context


@returns_value(0)
def get_context() -> int:
    """(context, ret) of this thread."""
    return _state.current_handle()


get_current_context = get_context

# -- streams ----------------------------------------------------------------------------------------


@returns_value(0)
def create_stream() -> int:
    """Create a stream. Returns (stream, ret)."""
    return streams.add(Stream(_gpu.new_stream(current_context().device)))


@returns_value(0)
def create_stream_with_config(priority: int, flag: int) -> int:
    """Create a stream; priority and flag have no effect. Returns (stream, ret)."""
    return streams.add(Stream(_gpu.new_stream(current_context().device)))


@returns_code
def destroy_stream(stream: int) -> None:
    """Finish a stream's work and release it. Returns ret."""
    streams.remove(stream).close()


destroy_stream_force = destroy_stream


@returns_code
def synchronize_stream(stream: int) -> None:
    """Wait for a stream's work. Returns ret, the code of the first failure since the last call."""
    stream_of(stream).synchronize()


@returns_code
def synchronize_stream_with_timeout(stream: int, timeout: int) -> None:
    """Wait for a stream's work, at most `timeout` milliseconds (-1: no limit). Returns ret."""
    stream_of(stream).synchronize(_seconds(timeout))


@returns_value(c.ACL_STREAM_STATUS_NOT_READY)
def stream_query(stream: int) -> int:
    """(status, ret): complete if the stream has no work left."""
    return c.ACL_STREAM_STATUS_COMPLETE if stream_of(stream).idle else c.ACL_STREAM_STATUS_NOT_READY


def _seconds(milliseconds: int) -> float | None:
    return None if milliseconds < 0 else milliseconds / 1000


# -- events -----------------------------------------------------------------------------------------


@returns_value(0)
def create_event() -> int:
    """Create an event. Returns (event, ret)."""
    current_context()
    return events.add(Event())


@returns_value(0)
def create_event_with_flag(flag: int) -> int:
    """Create an event; all events record the time and can be waited for. Returns (event, ret)."""
    current_context()
    return events.add(Event())


@returns_code
def destroy_event(event: int) -> None:
    """Release an event. Returns ret."""
    events.remove(event)


@returns_code
def record_event(event: int, stream: int) -> None:
    """Record an event after a stream's current work. Returns ret."""
    events.get(event).record(stream_of(stream))


@returns_code
def reset_event(event: int, stream: int) -> None:
    """Reset an event after a stream's current work. Returns ret."""
    events.get(event).reset(stream_of(stream))


@returns_value(c.ACL_EVENT_STATUS_NOT_READY)
def query_event(event: int) -> int:
    """(status, ret): ACL_EVENT_STATUS_COMPLETE once the stream has passed the event."""
    return c.ACL_EVENT_STATUS_COMPLETE if events.get(event).complete else c.ACL_EVENT_STATUS_NOT_READY


@returns_value(c.ACL_EVENT_RECORDED_STATUS_NOT_READY)
def query_event_status(event: int) -> int:
    """(status, ret): ACL_EVENT_RECORDED_STATUS_COMPLETE once the stream has passed the event."""
    done = events.get(event).complete
    return c.ACL_EVENT_RECORDED_STATUS_COMPLETE if done else c.ACL_EVENT_RECORDED_STATUS_NOT_READY


@returns_value(c.ACL_EVENT_WAIT_STATUS_NOT_READY)
def query_event_wait_status(event: int) -> int:
    """(status, ret): ACL_EVENT_WAIT_STATUS_COMPLETE once no stream waits for the event."""
    done = events.get(event).complete
    return c.ACL_EVENT_WAIT_STATUS_COMPLETE if done else c.ACL_EVENT_WAIT_STATUS_NOT_READY


@returns_code
def synchronize_event(event: int) -> None:
    """Wait for an event. Returns ret."""
    events.get(event).wait()


@returns_code
def synchronize_event_with_timeout(event: int, timeout: int) -> None:
    """Wait for an event, at most `timeout` milliseconds. Returns ret."""
    events.get(event).wait(_seconds(timeout))


@returns_code
def stream_wait_event(stream: int, event: int) -> None:
    """Make a stream wait for an event of another stream. Returns ret at once."""
    events.get(event).hold(stream_of(stream))


@returns_value(0.0)
def event_elapsed_time(start: int, end: int) -> float:
    """(milliseconds, ret) between two completed events."""
    first, last = events.get(start), events.get(end)
    if not (first.complete and last.complete):
        raise AclError(c.ACL_ERROR_RT_PARAM_INVALID, "both events must be recorded and complete")
    return last.milliseconds_since(first)


@returns_value(0)
def event_get_timestamp(event: int) -> int:
    """(microseconds, ret) at which a completed event was passed."""
    item = events.get(event)
    if not item.complete:
        raise AclError(c.ACL_ERROR_RT_PARAM_INVALID, "the event is not complete")
    return int(item.time * 1e6)


# -- callbacks --------------------------------------------------------------------------------------


@returns_code
def subscribe_report(thread_id: int, stream: int) -> None:
    """Subscribe a thread to the callbacks of a stream. Returns ret."""
    reports.subscribe(thread_id, stream_of(stream))


@returns_code
def unsubscribe_report(thread_id: int, stream: int) -> None:
    """End a thread's subscription. Returns ret."""
    reports.unsubscribe(thread_id, stream_of(stream))


@returns_code
def launch_callback(fn: Callable[[Any], Any], user_data: Any, block_type: int, stream: int) -> None:
    """Queue `fn(user_data)` after a stream's current work, for the subscribed thread. Returns ret."""
    if not callable(fn):
        raise TypeError("the callback is not callable")
    reports.launch(fn, user_data, block_type == c.ACL_CALLBACK_BLOCK, stream_of(stream))


@returns_code
def process_report(timeout: int) -> None:
    """Run one callback in this thread; wait for it at most `timeout` milliseconds. Returns ret."""
    reports.process(int(timeout))


# -- memory -----------------------------------------------------------------------------------------


@returns_value(0)
def malloc(size: int, policy: int) -> int:
    """Allocate device memory. Returns (address, ret)."""
    return _memory.memory.allocate(size, current_context().device).address


malloc_align32 = malloc
malloc_cached = malloc


@returns_code
def free(dev_ptr: int) -> None:
    """Free device memory. Returns ret."""
    _memory.memory.release(dev_ptr, device=True)


@returns_value(0)
def malloc_host(size: int) -> int:
    """Allocate host memory. Returns (address, ret)."""
    return _memory.memory.allocate(size, None).address


@returns_code
def free_host(host_ptr: int) -> None:
    """Free host memory. Returns ret."""
    _memory.memory.release(host_ptr, device=False)


@returns_code
def memset(dev_ptr: int, max_count: int, value: int, count: int) -> None:
    """Fill `count` bytes. Returns ret."""
    _fill(dev_ptr, max_count, value, count)()


@returns_code
def memset_async(dev_ptr: int, max_count: int, value: int, count: int, stream: int) -> None:
    """Fill `count` bytes in a stream. Returns ret."""
    stream_of(stream).submit(_fill(dev_ptr, max_count, value, count))


def _fill(address: int, room: int, value: int, count: int) -> Callable[[], None]:
    if not 0 <= count <= room:
        raise AclError(c.ACL_ERROR_RT_PARAM_INVALID, f"{count} bytes do not fit into {room}")
    keep = _memory.check_range(address, count, write=True)

    def fill() -> None:
        _memory.fill(address, value, count)
        _hold(keep)

    return fill


def _hold(_: object) -> None:
    """Keep the argument alive until the work queued on it is done."""


@returns_code
def memcpy(dst: int, dest_max: int, src: int, count: int, direction: int) -> None:
    """Copy `count` bytes. Returns ret."""
    current_context()
    _transfer(dst, dest_max, src, count, direction)()


@returns_code
def memcpy_async(dst: int, dest_max: int, src: int, count: int, direction: int, stream: int) -> None:
    """Copy `count` bytes in a stream. Returns ret."""
    stream_of(stream).submit(_transfer(dst, dest_max, src, count, direction))


def _transfer(dst: int, room: int, src: int, count: int, direction: int) -> Callable[[], None]:
    """Prepare a checked copy. The direction determines which ends must be device memory."""
    if direction not in range(c.ACL_MEMCPY_DEFAULT + 1):
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"direction {direction!r} is unknown")
    if not 0 < count <= room:
        raise AclError(c.ACL_ERROR_RT_PARAM_INVALID, f"{count} bytes do not fit into {room}")
    target = _memory.check_range(dst, count, write=True)
    source = _memory.check_range(src, count, write=False)
    for block, name, directions in (
        (target, "destination", (c.ACL_MEMCPY_HOST_TO_DEVICE, c.ACL_MEMCPY_DEVICE_TO_DEVICE)),
        (source, "source", (c.ACL_MEMCPY_DEVICE_TO_HOST,)),
    ):
        if direction in directions and (block is None or not block.device):
            raise AclError(c.ACL_ERROR_RT_PARAM_INVALID, f"the {name} is not device memory")

    def transfer() -> None:
        _memory.copy(dst, src, count)
        _hold((target, source))

    return transfer


@returns_code
def memcpy_2d(dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, direction: int) -> None:
    """Copy a matrix of `height` rows of `width` bytes. Returns ret."""
    if not (0 < width <= dpitch and width <= spitch and height > 0):
        raise AclError(c.ACL_ERROR_RT_PARAM_INVALID, "rows are wider than their pitch")
    _memory.check_range(dst, dpitch * (height - 1) + width, write=True)
    _memory.check_range(src, spitch * (height - 1) + width, write=False)
    for row in range(height):
        _memory.copy(dst + row * dpitch, src + row * spitch, width)


memcpy2d = memcpy_2d


@returns_code
def mem_flush(dev_ptr: int, size: int) -> None:
    """Has no effect: memory is coherent. Returns ret."""
    _memory.check_range(dev_ptr, size, write=False)


mem_invalidate = mem_flush


@returns_value(0, 0)
def get_mem_info(attr: int) -> tuple[int, int]:
    """(free, total, ret) bytes of the device."""
    return _memory.room(current_context().device)


@returns_value(0)
def device_can_access_peer(device_id: int, peer_device_id: int) -> int:
    """(1, ret): devices share the machine's memory, and GPUs copy to one another."""
    _state.check_device(device_id)
    _state.check_device(peer_device_id)
    return 1


@returns_code
def device_enable_peer_access(peer_device_id: int, flags: int) -> None:
    """Has no effect: access is always possible. Returns ret."""
    _state.check_device(peer_device_id)


@returns_code
def device_disable_peer_access(peer_device_id: int) -> None:
    """Has no effect: access is always possible. Returns ret."""
    _state.check_device(peer_device_id)


@returns_value(0)
def query_device_status(device_id: int) -> int:
    """(status, ret) of a device: ACL_RT_DEVICE_STATUS_NORMAL where its runtime answers."""
    _memory.room(_state.check_device(device_id))
    return c.ACL_RT_DEVICE_STATUS_NORMAL
