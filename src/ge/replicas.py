"""One model on several NPUs: selects the NPU of a call, and runs requests concurrently, one on each NPU."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

import npu_runtime
from ge.errors import GeError
from ge.open_model import OpenModel

__all__ = ["Replicas", "on_device"]


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Run the models that this thread calls inside on this NPU: in its memory and on its threads.

    >>> with on_device(0):
    ...     ge.compile("resnet50.onnx")(images)  # doctest: +SKIP
    """
    with npu_runtime.on_device(_checked(device)):
        yield


def _checked(device: object) -> int:
    if not isinstance(device, int) or not 0 <= device < npu_runtime.device_count():
        raise GeError(
            "E10020",
            f"there is no NPU {device!r}: there are {npu_runtime.device_count()}",
            remedy="NPU_DEVICE_COUNT sets their number before the first one is used",
        )
    return device


class Replicas:
    """A model on several NPUs, all of them unless `devices` are given; they share its weights.

    `submit` queues requests, which run concurrently, one on each NPU, first in, first out. `run` splits a batch over
    the NPUs.

    >>> with ge.Replicas(model) as npus:                       # doctest: +SKIP
    ...     answers = [npus.submit([x]) for x in requests]
    ...     print([answer.result() for answer in answers])
    """

    def __init__(self, model: Any, devices: Sequence[int] | None = None) -> None:
        self.model = model
        self.devices = [
            _checked(d) for d in (range(npu_runtime.device_count()) if devices is None else devices)
        ]
        if not self.devices or len(set(self.devices)) != len(self.devices):
            raise GeError("E10020", f"replicas need NPUs, each once, got {list(self.devices)}")
        self._requests: queue.SimpleQueue[tuple[Future[list[Any]], Sequence[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._serve, args=(device,), name=f"NPU:{device}", daemon=True)
            for device in self.devices
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, arrays: Sequence[Any]) -> Future[list[Any]]:
        """The future results of a call to `model.run`; errors are raised when the result is requested."""
        answer: Future[list[Any]] = Future()
        with self._lock:
            if self._closed:
                raise GeError("E10020", f"the replicas of {self.model.name} are closed")
            self._requests.put((answer, arrays))
        return answer

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Run a batch of any number of rows in concurrent parts; returns the results of all rows, in order.

        A model with a fixed batch takes parts of that size, a model with an open batch one part per NPU; the last part
        is padded with copies of its last row. Results must have one row per row of the inputs.
        """
        rows = self._rows(arrays)
        size = self._part(rows)
        parts = [self.submit([_part(a, start, size) for a in arrays]) for start in range(0, rows, size)]
        results = [part.result() for part in parts]
        for part in results:
            for number, array in enumerate(part):
                if np.ndim(array) == 0 or len(array) != size:
                    raise GeError(
                        "E10020",
                        f"result {number} of {self.model.name} has the shape {list(np.shape(array))} for {size} rows: "
                        "it cannot be joined",
                        remedy="submit such requests whole",
                    )
        return [np.concatenate(same)[:rows] for same in zip(*results, strict=True)]

    def _rows(self, arrays: Sequence[Any]) -> int:
        counts = {np.shape(a)[0] if np.ndim(a) else -1 for a in arrays}
        if len(counts) != 1 or min(counts) < 1:
            shapes = ", ".join(str(list(np.shape(a))) for a in arrays)
            raise GeError(
                "E10020", f"inputs of {self.model.name} need one number of rows, at least one: {shapes}"
            )
        return int(counts.pop())

    def _part(self, rows: int) -> int:
        """The number of rows of a part."""
        if isinstance(self.model, OpenModel):
            return -(-rows // len(self.devices))
        sizes = {p.desc.shape[0] if p.desc.shape else -1 for p in self.model.inputs}
        if len(sizes) != 1 or min(sizes) < 1:
            raise GeError(
                "E10020", f"the inputs of {self.model.name} have no batch in common: nothing to split"
            )
        return int(sizes.pop())

    def _serve(self, device: int) -> None:
        """Serve requests until None, which ends the threads one by one."""
        with on_device(device):
            while (request := self._requests.get()) is not None:
                answer, arrays = request
                if not answer.set_running_or_notify_cancel():
                    continue
                try:
                    answer.set_result(self.model.run(arrays))
                except BaseException as error:  # the caller's thread raises it
                    answer.set_exception(error)
                del request, answer, arrays

    def close(self) -> None:
        """Finish the submitted requests, then end the threads."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in self._threads:
                self._requests.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Replicas:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _part(array: Any, start: int, size: int) -> np.ndarray:
    """Rows of an array, padded with copies of the last one."""
    rows = np.asarray(array)[start : start + size]
    if len(rows) == size:
        return rows
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows), axis=0)])
