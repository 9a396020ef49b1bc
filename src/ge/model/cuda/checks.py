"""Range checks of a GPU plan: kernels find the first invalid element and write it to memory that the host can read.

1. Checks of the caller's inputs come first. Those of equal form in one buffer (a table's columns of indices) share a
   kernel.
2. If the plan writes in place to inputs, such as weights, every check is launched by itself, and the run continues once
   the host has read its result: a failed run changes nothing.
3. Otherwise checks are part of the graph, beside the other work, because kernels clamp the indices that they read. The
   host waits for their results only, and discards those of a failed run.
4. Checks in branches and loops run on the host (host.py).
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ge.plan import Task, View
from npu_runtime import TaskError, cuda

if TYPE_CHECKING:
    import tbe
    from ge.model.cuda.program import _Loaded

__all__ = ["Check", "Checks", "groups_of"]

_PENDING, _VALID = -1, (1 << 63) - 1  # in place of the position of an invalid element
_ROWS, _ROW = 256, 4096  # most rows of a large tensor, elements of a row
_ALIGNED = 2  # results in the 16 bytes to which memory is aligned
_MESSAGES = {
    "index": "{what}{place} = {value} is not in [{least}, {size})",
    "division": "{what}{place} is 0",
}


@dataclass(frozen=True)
class _Grid:
    """The elements of several tensors of one form as rows of a matrix; clamped positions repeat the last element."""

    view: View  # the first tensor
    tensors: int
    distance: int  # between two tensors, in elements
    rows: int  # of each tensor
    columns: int

    @classmethod
    def of(cls, views: Sequence[View]) -> _Grid:
        count = math.prod(views[0].shape)
        rows = min(_ROWS, -(-count // _ROW))
        distance = views[1].offset - views[0].offset if len(views) > 1 else 0
        return cls(views[0], len(views), distance, rows, -(-count // rows))


class Check:
    """One or several checks in one kernel."""

    def __init__(self, tasks: Sequence[Task], positions: np.ndarray, values: np.ndarray) -> None:
        self.tasks = tasks
        self.grid = _Grid.of([task.inputs[0] for task in tasks])
        self.positions, self.values = positions, values  # of the first invalid element of each row

    def failure(self) -> TaskError | None:
        """The error of the first invalid element."""
        for row in np.flatnonzero((self.positions != _VALID) & (self.positions != _PENDING)):
            task = self.tasks[int(row) // self.grid.rows]
            return _failure(task, int(self.positions[row]), int(self.values[row]))
        return None

    def expression(self) -> tuple[list[tbe.Tensor], list[tbe.Tensor]]:
        """The kernel's buffer, from the first element of the first view; its results are positions and values."""
        import tbe

        grid, task = self.grid, self.tasks[0]
        count = math.prod(grid.view.shape)
        steps = [abs(n - 1) * s for n, s in zip(grid.view.shape, grid.view.strides, strict=True)]
        whole = tbe.placeholder((sum(steps) + (grid.tensors - 1) * grid.distance + 1,), grid.view.dtype)
        shape = (grid.tensors * grid.rows, grid.columns)

        def position(row: tbe.Scalar, column: tbe.Scalar) -> tbe.Scalar:
            if grid.rows == 1:
                return column
            flat = (row % grid.rows) * grid.columns + column
            return tbe.binary("min", flat, count - 1) if grid.rows * grid.columns != count else flat

        def value(row: tbe.Scalar, column: tbe.Scalar) -> tbe.Scalar:
            tensor = row // grid.rows if grid.rows > 1 else row
            at = _offset(grid.view, position(row, column)) + tensor * grid.distance
            return tbe.cast(whole[(at,)], "int64")

        def suspect(row: tbe.Scalar, column: tbe.Scalar) -> tbe.Scalar:
            at = position(row, column)
            wrong = _is_wrong(task, values[(row, column)], at)
            return tbe.select(wrong, tbe.cast(at, "int64"), _VALID)

        values = tbe.compute(shape, value)
        suspects = tbe.compute(shape, suspect)
        first = tbe.reduce("min", suspects, 1)

        def chosen(row: tbe.Scalar, column: tbe.Scalar) -> tbe.Scalar:
            is_first = tbe.binary("eq", suspects[(row, column)], first[(row,)])
            return tbe.select(is_first, values[(row, column)], -_VALID)

        return [whole], [first, tbe.reduce("max", tbe.compute(shape, chosen), 1)]


class Checks:
    """The checks of a loaded program, and the results of the current run."""

    def __init__(self, program: _Loaded) -> None:
        self.program = program
        self.at_once = bool(program.plan.donated)  # rule 2
        self.made: list[Check] = []
        self._running = False
        views = [t.inputs[0] for t in program.plan.tasks if t.kind == "check"]
        count = 2 * sum(_padded(_Grid.of([view])) for view in views if math.prod(view.shape))
        self._memory = cuda.PinnedMemory(program.device, max(8 * count, 1)) if count else None
        self._used = 0

    def add(self, tasks: Sequence[Task]) -> Callable[[], None]:
        """The launch of checks that share a kernel."""
        program = self.program
        views = [task.inputs[0] for task in tasks]
        copies = [self._copy(task) for task in tasks if task.outputs]
        if not math.prod(views[0].shape):
            return lambda: None
        grid = _Grid.of(views)
        addresses = [self._slots(grid) for _ in range(2)]
        check = Check(tasks, *(_numbers(address, grid.tensors * grid.rows) for address in addresses))
        self.made.append(check)
        kernel = program.built(*check.expression(), aligned=False)
        launch = program.launcher(kernel, [views[0], *addresses])

        def run() -> None:
            launch()
            for copy in copies:
                copy()

        return run

    def _slots(self, grid: _Grid) -> int:
        """The address of memory for one result of each row."""
        assert self._memory is not None, "no check has elements"
        address: int = self._memory.address + 8 * self._used
        self._used += _padded(grid)
        return address

    def _copy(self, task: Task) -> Callable[[], None]:
        program, source, target = self.program, task.inputs[0], task.outputs[0]

        def copy() -> None:
            if source.nbytes and program.address(source) != program.address(target):
                program.stream.copy(program.address(target), program.address(source), source.nbytes)

        return copy

    def begin(self) -> None:
        """Before a run: no check has a result."""
        if self._running:  # the last run failed for another reason
            cuda.synchronize(self.program.device)
        self._running = bool(self.made)
        for check in self.made:
            check.positions[:] = _PENDING

    def settle(self, event: cuda.Event | None = None) -> None:
        """Wait for the results of checks, at most until the event; raise for the first invalid element.

        Without an event, those that were launched so far.
        """
        if not self.made:
            return
        if event is None:
            self.program.stream.synchronize()
        else:
            while any(_PENDING in check.positions for check in self.made) and not event.complete:
                time.sleep(0)
        for check in self.made:
            if not np.all((check.positions == _VALID) | (check.positions == _PENDING)):
                self.program.stream.synchronize()  # its value may be on its way, and readers of it still run
                failure = check.failure()
                assert failure is not None
                raise failure

    def end(self, event: cuda.Event) -> None:
        """After a run whose end the event marks: wait for the checks, as `settle` does."""
        self.settle(event)
        self._running = False


def _numbers(address: int, count: int) -> np.ndarray:
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_int64))
    return np.ctypeslib.as_array(pointer, (count,))


def groups_of(tasks: Sequence[Task]) -> list[list[Task]]:
    """Checks in order; tensors of one form at equal distances in one buffer, by one rule, together."""
    groups: list[list[Task]] = []
    for task in tasks:
        if not groups or not _continues(groups[-1], task):
            groups.append([])
        groups[-1].append(task)
    return groups


def _continues(group: Sequence[Task], task: Task) -> bool:
    first, last, view = group[0].inputs[0], group[-1].inputs[0], task.inputs[0]
    distance = view.offset - last.offset
    return (
        replace(first, offset=0) == replace(view, offset=0)
        and distance > 0
        and (len(group) == 1 or distance == group[1].inputs[0].offset - first.offset)
        and _rule(group[0]) == _rule(task)
        and all(stride >= 0 for stride in view.strides)
        and math.prod(view.shape) <= _ROW
        and len(group) < _ROWS
    )


def _rule(task: Task) -> tuple[list[int], int, bool]:
    attrs = task.attrs
    limits = [int(n) for n in attrs.get("limits", ())]
    return limits, int(attrs.get("least", 0)), bool(attrs.get("from_end", False))


def _padded(grid: _Grid) -> int:
    return -(-grid.tensors * grid.rows // _ALIGNED) * _ALIGNED


def _offset(view: View, position: tbe.Scalar) -> tbe.Scalar:
    """Where the element at a position in row-major order is, relative to the first one."""
    at, below = position * 0, 1
    for extent, stride in zip(reversed(_merged(view)[0]), reversed(_merged(view)[1]), strict=True):
        whole = below * extent == math.prod(view.shape)
        digit = position // below if below > 1 else position
        at = at + (digit if whole else digit % extent) * stride
        below *= extent
    return at


def _merged(view: View) -> tuple[list[int], list[int]]:
    """Extents and strides, with axes that follow each other in memory as one."""
    extents: list[int] = []
    strides: list[int] = []
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if extent == 1:
            continue
        if extents and strides[-1] == extent * stride:
            extents[-1] *= extent
            strides[-1] = stride
        else:
            extents.append(extent)
            strides.append(stride)
    return extents, strides


def _is_wrong(task: Task, value: tbe.Scalar, position: tbe.Scalar) -> tbe.Scalar:
    """True if the value at a position breaks the rule, as in the runtime's task."""
    import tbe

    limits, least, from_end = _rule(task)
    if not limits:
        return tbe.binary("eq", value, 0)
    wrong = None
    for column, size in enumerate(limits):
        outside = (value < (-size if from_end else least)) | (value >= size)
        if len(limits) > 1:
            outside = outside & tbe.binary("eq", position % len(limits), column)
        wrong = outside if wrong is None else wrong | outside
    assert wrong is not None
    return wrong


def _failure(task: Task, position: int, value: int) -> TaskError:
    """The runtime's error for an invalid element."""
    limits, least, from_end = _rule(task)
    kind = "index" if limits else "division"
    place, left = [], position
    for extent in reversed(task.inputs[0].shape):
        place.append(str(left % extent))
        left //= extent
    found = {
        "what": str(task.attrs.get("what", "indices")),
        "place": f"[{','.join(reversed(place))}]",
        "value": str(value),
    }
    if limits:
        size = limits[position % len(limits)]
        found |= {"least": str(-size if from_end else max(least, 0)), "size": str(size)}
    text = str(task.attrs.get("message", _MESSAGES[kind]))
    for name, part in found.items():
        text = text.replace("{" + name + "}", part)
    error = TaskError(f"{task.name}: {text}")
    error.task, error.cause, error.kind = task.name, text, kind
    return error
