"""Host segments: tasks of a GPU plan that run on the host, and the copies around them.

Tasks of AI CPU operators, and checks in branches and loops, have no GPU kernel. Consecutive ones form one host program.
Before it runs, its inputs are copied from the GPU (the caller's inputs are already on the host); afterwards its results
are copied there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import npu_runtime
from ge.implementations.cuda import runs_ai_cpu
from ge.implementations.selection import ON_HOST
from ge.plan import Plan, Task

__all__ = ["Copies", "HostPart", "runs_on_host"]

_CONTROL = frozenset({"if", "while", "scan_store"})  # the program's own tasks (control.py)
_ON_GPU = _CONTROL | {
    "kernel",
    "copy",
    "matmul",
    "conv",
    "deconv",
    "conv_grad_weights",
    "attention",
    "attention_grad",
    "stem",
    "bottleneck",
}
_ALIGNMENT = 64


def runs_on_host(task: Task) -> bool:
    """True if a task has no GPU implementation.

    >>> [runs_on_host(Task(kind, "", [], [])) for kind in ("copy", "check", "aicpu")]
    [False, False, True]
    """
    if task.kind == "check":
        return task.block != 0
    if task.kind == "reorder":  # what a kernel gathers
        source, target = task.inputs[0], task.outputs[0]
        return not target.contiguous or source.dtype != target.dtype
    if task.kind == "aicpu":
        return not runs_ai_cpu(task.attrs.get("op", ""), task.inputs)
    return task.kind not in _ON_GPU or bool(task.attrs.get(ON_HOST))


@dataclass
class Copies:
    """The number and bytes of a program's copies.

    Between the GPU and the host for host tasks, between the GPU and callers with host memory (`fed_bytes`,
    `fetched_bytes`), and on the GPU from and to memory that is not bound (binding.py).
    """

    to_host: int = 0
    to_host_bytes: int = 0
    to_gpu: int = 0
    fed_bytes: int = 0
    fetched_bytes: int = 0
    on_gpu: int = 0


@dataclass
class _Buffer:
    """A buffer of the plan in the host program."""

    number: int  # in the plan
    memory: np.ndarray


@dataclass
class HostPart:
    """Consecutive host tasks as one CPU program."""

    plan: Plan
    tasks: Sequence[Task]
    reads: list[_Buffer] = field(default_factory=list)
    writes: list[_Buffer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.program = npu_runtime.Program(f"{self.plan.name} on the host")
        self._numbers: dict[int, int] = {}
        written = {v.buffer for task in self.tasks for v in task.outputs}
        for number in dict.fromkeys(v.buffer for task in self.tasks for v in (*task.inputs, *task.outputs)):
            self._add(number, written)
        for task in self.tasks:
            inputs, outputs = (
                [(self._numbers[v.buffer], *v.as_tuple()[1:]) for v in side]
                for side in (task.inputs, task.outputs)
            )
            self.program.task(task.kind, task.name, inputs, outputs, dict(task.attrs))
        self.program.finalize(0)

    def _add(self, number: int, written: set[int]) -> None:
        buffer = self.plan.buffers[number]
        if buffer.kind == "constant":
            array = self.plan.constants[buffer.index]
            self._numbers[number] = self.program.constant(array, copy=False)
            return
        memory = _aligned(buffer.nbytes)
        source = -2  # an output without initial contents
        if number not in written or not self._is_overwritten(number):
            self._numbers[number] = self.program.input(len(self.reads), buffer.nbytes)
            source = len(self.reads)
            self.reads.append(_Buffer(number, memory))
        if number in written:
            self._numbers[number] = self.program.output(len(self.writes), buffer.nbytes, source)
            self.writes.append(_Buffer(number, memory))

    def _is_overwritten(self, number: int) -> bool:
        """True if the tasks write all of a buffer before they read any of it."""
        for task in self.tasks:
            if any(v.buffer == number for v in task.inputs):
                return False
            for view in task.outputs:
                if view.buffer == number:
                    return view.contiguous and view.nbytes == self.plan.buffers[number].nbytes
        return False

    def run(
        self, device: Any, feeds: Sequence[np.ndarray] | None, copies: Copies
    ) -> dict[int, tuple[int, ...]]:
        """Run between copies; `device` is the loaded program. Returns the shapes of dynamically shaped outputs."""
        for buffer in self.reads:
            found = self.plan.buffers[buffer.number]
            if found.kind == "input" and feeds is not None:
                buffer.memory[:] = feeds[found.index].reshape(-1).view(np.uint8)
                continue
            device.download(buffer.number, buffer.memory)
            copies.to_host += 1
            copies.to_host_bytes += buffer.memory.nbytes
        inputs, outputs = ([b.memory.ctypes.data for b in side] for side in (self.reads, self.writes))
        shapes = self.program.run_pointers(inputs, outputs)
        for buffer in self.writes:
            device.upload(buffer.number, buffer.memory)
            copies.to_gpu += 1
        return self._reported(shapes)

    def warm_up(self, device: Any) -> None:
        """Nothing: its program is ready."""

    def capture(self, device: Any) -> None:
        """Nothing: it is not part of a graph."""

    def launch(self, device: Any, feeds: Sequence[np.ndarray] | None) -> dict[int, tuple[int, ...]]:
        """Run, and add its copies to the loaded program's count."""
        device.checks.settle()
        return self.run(device, feeds, device.copies)

    def _reported(self, shapes: Mapping[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        """Shapes by the plan's outputs; nothing else reads a dynamically shaped value."""
        found = {index: self.plan.buffers[self.writes[index].number] for index in shapes}
        return {
            buffer.index: tuple(shapes[index]) for index, buffer in found.items() if buffer.kind == "output"
        }


def _aligned(nbytes: int) -> np.ndarray:
    """Bytes at an address aligned for vector loads."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    skip = -memory.ctypes.data % _ALIGNMENT
    return memory[skip : skip + nbytes]
