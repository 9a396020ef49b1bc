"""Streams and events of the NPU, as `torch.npu.*` and as what `torch.Stream` and `torch.Event` make for the device.

PyTorch's own ones ask a C++ guard for the time and for completion, which a device in Python does not have.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch

from torch_npu import devices

__all__ = [
    "Event",
    "Stream",
    "current_stream",
    "default_stream",
    "event_type",
    "set_stream",
    "stream",
    "stream_type",
]

_PlainStream: Any = torch._C.Stream
_PlainEvent: Any = torch._C.Event
_DEVICE_TYPE = 20  # PyTorch's number of devices outside of it
_numbers = itertools.count(1)


class Stream(_PlainStream):
    """An order of work. Calls are done when they return, so all streams are in one order."""

    priority: int
    _before: list[tuple[Stream, int]]

    def __new__(cls, device: Any = None, priority: int = 0, **ids: int) -> Stream:
        ids = ids or {
            "stream_id": next(_numbers),
            "device_index": devices.index_of(device),
            "device_type": _DEVICE_TYPE,
        }
        made: Stream = _PlainStream.__new__(cls, **ids)
        made.priority, made._before = priority, []
        return made

    def record_event(self, event: Event | None = None) -> Event:
        """An event at this point."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._before.append((current_stream(self.device), devices.current()))
        set_stream(self)
        devices.set_current(self.device.index)
        return self

    def __exit__(self, *error: object) -> None:
        before, index = self._before.pop()
        set_stream(before)
        devices.set_current(index)


class Event(_PlainEvent):
    """A point in time."""

    _timed: bool
    _at: float | None

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        *,
        device: Any = None,
    ) -> Event:
        made: Event = _PlainEvent.__new__(
            cls,
            torch.device("npu", devices.index_of(device)),
            enable_timing=enable_timing,
            blocking=blocking,
            interprocess=interprocess,
        )
        made._timed, made._at = enable_timing, None
        return made

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        super().record(stream if stream is not None else current_stream())
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds to another event."""
        if not isinstance(end, Event):
            raise ValueError(f"the other event is one of {end.device}, not of the NPU")
        if not (self._timed and end._timed):
            raise ValueError("both events must be made with enable_timing=True")
        if self._at is None or end._at is None:
            raise RuntimeError("both events must be recorded before the time between them is known")
        return (end._at - self._at) * 1000


# -- the current stream ------------------------------------------------------------------------------------------


class _Current(threading.local):
    """The streams of each thread by device, where they are not the default ones."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}


_current = _Current()


@functools.cache
def _default(index: int) -> Stream:
    return Stream(stream_id=0, device_index=index, device_type=_DEVICE_TYPE)


def default_stream(device: Any = None) -> Stream:
    """The stream of a device."""
    return _default(devices.index_of(device))


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work on a device is in."""
    index = devices.index_of(device)
    return _current.streams.get(index) or _default(index)


def set_stream(stream: Stream) -> None:
    """Put this thread's work on the stream's device into the stream from now on."""
    _current.streams[stream.device.index] = stream


@contextlib.contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """A block whose work is in a stream, on its device."""
    if stream is None:
        yield
        return
    with stream:
        yield


# -- PyTorch's types ---------------------------------------------------------------------------------------------


def _of_npu(device: Any) -> bool:
    """Whether a device is this one; without a device PyTorch takes its accelerator, which is this one, too."""
    return device is None or isinstance(device, int) or torch.device(device).type == "npu"


class _Kind(type):
    """A type of PyTorch that every stream (or event) is of; the device decides which kind a new one is."""

    _plain: Any
    _make: Any

    def __call__(cls, *args: Any, **more: Any) -> Any:
        if "_make" in vars(cls):
            return cls._make(*args, **more)
        return super().__call__(*args, **more)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls._plain) if "_make" in vars(cls) else super().__instancecheck__(value)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls._plain) if "_make" in vars(cls) else super().__subclasscheck__(kind)


class _AnyStream(_PlainStream, metaclass=_Kind):
    __doc__ = _PlainStream.__doc__
    _plain = _PlainStream

    @staticmethod
    def _make(device: Any = None, **more: Any) -> Any:
        if "device_type" in more:
            return (Stream if more["device_type"] == _DEVICE_TYPE else _PlainStream)(**more)
        return Stream(device, **more) if _of_npu(device) else _PlainStream(device, **more)


class _AnyEvent(_PlainEvent, metaclass=_Kind):
    __doc__ = _PlainEvent.__doc__
    _plain = _PlainEvent

    @staticmethod
    def _make(device: Any = None, **more: Any) -> Any:
        return Event(device=device, **more) if _of_npu(device) else _PlainEvent(device, **more)


def stream_type(original: Any) -> Any:
    """A patch of `torch.Stream` that makes streams of the device."""
    _AnyStream.__module__, _AnyStream.__qualname__, _AnyStream.__name__ = "torch", "Stream", "Stream"
    return _AnyStream


def event_type(original: Any) -> Any:
    """A patch of `torch.Event` that makes events of the device."""
    _AnyEvent.__module__, _AnyEvent.__qualname__, _AnyEvent.__name__ = "torch", "Event", "Event"
    return _AnyEvent
