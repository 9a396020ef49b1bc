"""Streams (ordered queues, one worker thread each), events and callbacks."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from acl import _gpu
from acl import constants as c
from acl._conventions import AclError, code_of

if TYPE_CHECKING:
    from npu_runtime import cuda

__all__ = ["CallbackQueues", "Event", "Stream", "reports"]

POLL_SECONDS = 0.05
EXIT_SECONDS = 5.0

_streams: weakref.WeakSet[Stream] = weakref.WeakSet()


class Stream:
    """Runs submitted work in order in its own thread, which starts on first use.

    With a CUDA stream, submitted work is enqueued there.
    """

    def __init__(self, gpu: cuda.Stream | None = None) -> None:
        self.gpu = gpu
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pending = 0
        self._idle = threading.Condition(self._lock)
        self._failure: AclError | None = None
        self.closing = False
        _streams.add(self)

    def submit(self, work: Callable[[], None]) -> None:
        """Queue work. The next synchronisation returns its failure."""
        with self._lock:
            if self.closing:
                raise AclError(c.ACL_ERROR_RT_PARAM_INVALID, "the stream is destroyed")
            self._pending += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="acl-stream", daemon=True)
                self._thread.start()
        self._queue.put(work)

    def _work(self) -> None:
        while (work := self._queue.get()) is not None:
            failure = None
            try:
                with _gpu.working_on(self.gpu):
                    work()
            except Exception as error:
                failure = AclError(code_of(error, self._work), f"work on the stream failed: {error}")
            del work
            with self._idle:
                self._failure = self._failure or failure
                self._pending -= 1
                self._idle.notify_all()

    @property
    def idle(self) -> bool:
        with self._lock:
            return self._pending == 0 and (self.gpu is None or self.gpu.idle)

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait for all submitted work; raise the first failure since the last call."""
        if threading.current_thread() is self._thread:
            return
        with self._idle:
            if not self._idle.wait_for(lambda: self._pending == 0, timeout):
                raise AclError(c.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "the stream did not finish in time")
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self.settle()

    def settle(self) -> None:
        """Wait for the CUDA stream."""
        if self.gpu is not None:
            self.gpu.synchronize()

    def close(self, timeout: float | None = None) -> None:
        """Finish the work and end the thread; abandons waits for events that were never recorded."""
        with self._lock:
            self.closing = True
        self._queue.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)


class Event:
    """A marker in a stream, complete once the stream reaches it."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._gpu: cuda.Event | None = None
        self._device = 0
        self.recorded = False
        self._time = 0.0

    @property
    def time(self) -> float:
        """Host time in seconds at which the stream reached it."""
        return self._time if self._gpu is None else _gpu.event_time(self._gpu, self._device)

    def milliseconds_since(self, first: Event) -> float:
        """The time between two completed events."""
        if self._gpu is not None and first._gpu is not None and self._device == first._device:
            return self._gpu.milliseconds_since(first._gpu)
        return (self.time - first.time) * 1000

    def record(self, stream: Stream) -> None:
        """Record the event after the stream's current work."""
        done = threading.Event()
        self._done, self.recorded = done, True

        def mark() -> None:
            self._time = time.perf_counter()
            self._gpu = self._on_gpu(stream)
            done.set()

        stream.submit(mark)

    def _on_gpu(self, stream: Stream) -> cuda.Event | None:
        """Record the event in a CUDA stream."""
        if stream.gpu is None:
            return None
        from npu_runtime import cuda

        self._device = stream.gpu.device
        event = cuda.Event(self._device)
        event.record(stream.gpu)
        return event

    def reset(self, stream: Stream) -> None:
        """Reset the event when the stream reaches this point."""

        def clear() -> None:
            self._done, self.recorded = threading.Event(), False

        stream.submit(clear)

    @property
    def complete(self) -> bool:
        return self._done.is_set() and (self._gpu is None or self._gpu.complete)

    def wait(self, timeout: float | None = None) -> None:
        """Block the calling thread until the event is complete."""
        if not self.recorded:
            raise AclError(c.ACL_ERROR_RT_PARAM_INVALID, "the event was never recorded")
        if not self._done.wait(timeout):
            raise AclError(c.ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "the event did not complete in time")
        if self._gpu is not None:
            self._gpu.synchronize()

    def hold(self, stream: Stream) -> None:
        """Make a stream wait without blocking the caller."""

        def wait() -> None:
            while not self._done.wait(POLL_SECONDS):
                if stream.closing:
                    return
            if self._gpu is None:
                return
            if stream.gpu is None:
                self._gpu.synchronize()
            else:
                stream.gpu.wait(self._gpu)

        stream.submit(wait)


class CallbackQueues:
    """Queues of stream callbacks, drained by the threads that subscribed to them."""

    def __init__(self) -> None:
        self._threads: dict[int, queue.SimpleQueue[Callable[[], None]]] = {}
        self._streams: dict[Stream, int] = {}
        self._lock = threading.Lock()

    def subscribe(self, thread: int, stream: Stream) -> None:
        """Subscribe a thread to the callbacks of a stream."""
        with self._lock:
            if stream in self._streams:
                raise AclError(
                    c.ACL_ERROR_REPEAT_SUBSCRIBE, "the stream has a thread for its callbacks already"
                )
            self._streams[stream] = thread
            self._threads.setdefault(thread, queue.SimpleQueue())

    def unsubscribe(self, thread: int, stream: Stream) -> None:
        """End a subscription."""
        with self._lock:
            if self._streams.get(stream) != thread:
                raise AclError(
                    c.ACL_ERROR_STREAM_NOT_SUBSCRIBE, "this thread is not subscribed to the stream"
                )
            del self._streams[stream]
            if thread not in self._streams.values():
                self._threads.pop(thread, None)

    def launch(self, function: Callable[[Any], Any], argument: Any, block: bool, stream: Stream) -> None:
        """Queue a callback after the stream's work; a blocking one stalls the stream until it has run."""
        with self._lock:
            if stream not in self._streams:
                raise AclError(c.ACL_ERROR_STREAM_NOT_SUBSCRIBE, "no thread is subscribed to the stream")
            inbox = self._threads[self._streams[stream]]

        def deliver() -> None:
            stream.settle()
            done = threading.Event()

            def run() -> None:
                try:
                    function(argument)
                finally:
                    done.set()

            inbox.put(run)
            while block and not done.wait(POLL_SECONDS):
                if stream.closing or stream not in self._streams:
                    return

        stream.submit(deliver)

    def process(self, timeout_ms: int) -> None:
        """Run one callback in the calling thread; a negative timeout waits forever."""
        inbox = self._threads.get(threading.get_ident())
        seconds = None if timeout_ms < 0 else timeout_ms / 1000
        if inbox is None:
            time.sleep(min(seconds if seconds is not None else POLL_SECONDS, POLL_SECONDS))
            raise AclError(c.ACL_ERROR_THREAD_NOT_SUBSCRIBE, "this thread is not subscribed to any stream")
        try:
            callback = inbox.get(timeout=seconds)
        except queue.Empty:
            raise AclError(c.ACL_ERROR_WAIT_CALLBACK_TIMEOUT, "no callback came in time") from None
        callback()


reports = CallbackQueues()


def close_all() -> None:
    """End all streams (at acl.finalize or exit)."""
    for stream in list(_streams):
        stream.close(EXIT_SECONDS)


atexit.register(close_all)
