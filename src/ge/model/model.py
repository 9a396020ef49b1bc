"""The model in memory: a plan loaded into the runtime, called with arrays."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import npu_runtime
from ge import tensor_dump
from ge.errors import GeError
from ge.interface import Interface
from ge.ir.types import numpy_dtype
from ge.memory_advice import out_of_memory
from ge.model.kernels import no_expression
from ge.plan import KernelImage, Plan, Port, Task
from ge.profile import TaskProfile, recorded_tasks, table, trace
from ge.target import cuda as gpu_targets
from ge.target import processor_of, runtime_loops
from npu_runtime import activity, environment

__all__ = ["Model", "PackedConstants", "cut_to_reported"]


@dataclass(frozen=True)
class PackedConstants:
    """The constants of a program in packed form, and their layout."""

    image: np.ndarray
    layout: str


# The data error behind a failed task, by its kind.
_FAULTS = {
    "index": ("E10024", "check where the value comes from, or clip it"),
    "division": ("E10024", "check where the divisor comes from, or put 1 where it is 0"),
}


class Model:
    """A compiled model. Calls from several threads run concurrently.

    >>> y = model(x)                     # doctest: +SKIP
    >>> y, z = model.run([x1, x2])       # doctest: +SKIP
    """

    def __init__(self, plan: Plan, packed: PackedConstants | None = None) -> None:
        self.plan = plan
        activity.publish()
        self.program = _load(plan, packed)
        self.interface = _interface(plan)
        self.unknown_constants: frozenset[int] = frozenset()
        if packed is not None:
            self.unknown_constants = frozenset(range(len(plan.constants))) - {*self.program.plain_constants}
        tensor_dump.register(self.program, self)
        self._announce = environment.text("NPU_PROFILE") not in ("", "0")
        self._takes, self._gives = (
            [(p.desc.shape, numpy_dtype(p.desc.dtype)) for p in ports]
            for ports in (plan.inputs, plan.outputs)
        )
        self._is_native = isinstance(self.program, npu_runtime.Program)
        if npu_runtime.is_recording() and isinstance(self.program, npu_runtime.Program):
            recorded_tasks[self.program.number] = self._tasks()

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def packed_bytes(self) -> int:
        """Bytes of this program's packed weights, on a CPU."""
        return self.program.constant_bytes if isinstance(self.program, npu_runtime.Program) else 0

    @property
    def inputs(self) -> list[Port]:
        return self.plan.inputs

    @property
    def outputs(self) -> list[Port]:
        return self.plan.outputs

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on arrays, passed by position or by name; returns one array, or a tuple of several."""
        results = self.run([*arrays, *self._named(arrays, named)] if named else arrays)
        return results[0] if len(results) == 1 else tuple(results)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of a call's arguments; a sequence is one argument, and several of `inputs`."""
        return self.interface.names if self.interface is not None else tuple(p.name for p in self.inputs)

    def run(self, arrays: Sequence[Any], into: Sequence[np.ndarray] | None = None) -> list[Any]:
        """Run on values in the order of `input_names`; results are new arrays unless `into` is given.

        String tensors are object arrays, sequences are lists, an absent optional is None.
        """
        if self.interface is None:
            return self.run_plan(arrays, into)
        if into is not None:
            raise GeError(
                "E10020", f"model {self.name} gives strings, sequences or dictionaries: nothing to fill"
            )
        feeds, state = self.interface.feeds(arrays, len(self.inputs))
        return self.interface.results(self.run_plan(feeds), state)

    def run_plan(self, arrays: Sequence[Any], into: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Run on arrays in the order of `inputs`, without the conversions of the interface.

        Tensors in GPU memory (by DLPack) are used in place, and the results are on the GPU too.
        """
        if not self._is_native and self._is_on_gpu(arrays):
            from ge.model.cuda.arrays import run_arrays

            return run_arrays(self.program, arrays, into)
        feeds = self._feeds(arrays)
        try:
            if into is None:
                results = [np.empty(*made) for made in self._gives]
            else:
                results = _results(self.name, self.outputs, into)
            if self.plan.donated:
                self._donate(feeds, results)
            if self._announce:
                self.announce(feeds)
            shapes = self.program.run(feeds, results)
        except npu_runtime.TaskError as error:
            raise self.failure(error) from error
        except MemoryError as error:
            raise out_of_memory(
                f"no memory is left for the results of {self.name}: {error}",
                *([], sum(p.desc.nbytes for p in self.outputs), 0),
                "a smaller batch",
            ) from error
        return cut_to_reported(results, shapes) if shapes else results

    def _is_on_gpu(self, arrays: Sequence[Any]) -> bool:
        """True if some of the arrays are in the memory of a GPU, which must then be the model's."""
        if not isinstance(arrays, list | tuple):
            return False
        from ge.model.cuda.arrays import gpu_of

        return any(gpu_of(array) is not None for array in arrays)

    def _feeds(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        if not isinstance(arrays, (list, tuple)) or len(arrays) != len(self._takes):
            got = len(arrays) if isinstance(arrays, list | tuple) else f"a {type(arrays).__name__}"
            raise GeError("E10020", f"model {self.name} takes {len(self.inputs)} inputs, got {got}")
        feeds = list(arrays)
        for index, (shape, dtype) in enumerate(self._takes):
            array = feeds[index]
            fits = type(array) is np.ndarray and array.shape == shape and array.dtype == dtype
            if not fits or not array.flags.c_contiguous:
                feeds[index] = _fitting(self.inputs[index], array)
        return feeds

    def run_addresses(self, inputs: Sequence[int], outputs: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Run on checked addresses; returns the shapes of dynamically shaped outputs."""
        try:
            shapes = self.program.run_pointers(inputs, outputs)
        except npu_runtime.TaskError as error:
            raise self.failure(error) from error
        return dict(_reported(shapes))

    def run_on_gpu(
        self, inputs: Sequence[int], outputs: Sequence[int], stream: Any
    ) -> dict[int, tuple[int, ...]]:
        """Run a GPU model on checked device addresses, enqueued on a stream."""
        try:
            return dict(_reported(self.program.run_on_gpu(inputs, outputs, stream)))
        except npu_runtime.TaskError as error:
            raise self.failure(error) from error

    def failure(self, error: npu_runtime.TaskError) -> GeError:
        """The error of a run whose task failed, with the node and operator of the task."""
        task = next((t for t in self.plan.tasks if t.name == error.task), None)
        origin = (task.origin or (task.name,)) if task is not None else (error.task,)
        operator = str(task.attrs.get("operator") or task.attrs.get("op", "")) if task is not None else ""
        code, remedy = _FAULTS.get(error.kind, ("E10032", ""))
        return GeError(code, error.cause, node=", ".join(origin), operator=operator, remedy=remedy)

    def _donate(self, feeds: list[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Move inputs whose memory an output takes to that output's memory; the caller's arrays do not change."""
        for output, source in self.plan.donated:
            if feeds[source].ctypes.data != results[output].ctypes.data:
                np.copyto(results[output], feeds[source])
                feeds[source] = results[output]

    def profile(self, arrays: Sequence[Any] | None = None, repeats: int = 10) -> list[TaskProfile]:
        """Run the tasks one by one and time each; without arrays, on zeros."""
        if arrays is None:
            arrays = [np.zeros(p.desc.shape, numpy_dtype(p.desc.dtype)) for p in self.inputs]
        feeds = self._feeds(arrays)
        outputs = [np.empty(p.desc.shape, numpy_dtype(p.desc.dtype)) for p in self.outputs]
        self._donate(feeds, outputs)
        try:
            seconds = self.program.profile(feeds, outputs, repeats)
        except npu_runtime.TaskError as error:
            raise self.failure(error) from error
        return [
            self._profiled(*item)
            for item in zip(self.plan.tasks, self.program.task_info(), seconds, strict=True)
        ]

    def announce(self, feeds: Sequence[np.ndarray] | None = None) -> None:
        """Do what NPU_PROFILE asks for, once: 1 prints one line per task, a path also writes a trace to that file."""
        if not self._announce:
            return
        self._announce = False
        tasks = self.profile(feeds)
        print(table(tasks))
        path = environment.text("NPU_PROFILE") or "1"
        if path == "1":
            return
        try:
            print(f"trace: {trace(path, tasks, self.name)}")
        except OSError as error:
            environment.warn("NPU_PROFILE", path, f"1, and paths that can be written ({error.strerror})")

    def _profiled(self, task: Any, info: Any, seconds: float) -> TaskProfile:
        main = task.outputs[0] if task.outputs else task.inputs[0]
        return TaskProfile(
            task.name,
            task.engine,
            task.kind,
            _implementation(task, info["impl"]),
            info["layout"],
            main.shape,
            main.dtype,
            seconds,
            (info["flops"] or task.flops) * self.plan.steps,
            info["bytes"] * self.plan.steps,
        )

    def _tasks(self) -> tuple[TaskProfile, ...]:
        """The tasks without times, each with the work of one call."""
        steps = self.plan.steps
        found = (
            self._profiled(*item, 0.0) for item in zip(self.plan.tasks, self.program.task_info(), strict=True)
        )
        return tuple(
            replace(task, flops=task.flops / steps, nbytes=task.nbytes / steps, feeds=feeds)
            for task, feeds in zip(found, self.plan.feeds(), strict=True)
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to an `.om` file; returns its path."""
        from ge.model import om

        return om.save(self, path)

    def _named(self, arrays: Sequence[Any], named: dict[str, Any]) -> list[Any]:
        rest = self.input_names[len(arrays) :]
        if not named:
            return []
        unknown = sorted(set(named) - set(rest))
        missing = [name for name in rest if name not in named]
        if unknown or missing:
            cause = f"model {self.name}: unknown inputs {unknown}, missing inputs {missing}"
            raise GeError("E10020", cause, remedy=f"the inputs are {', '.join(self.input_names)}")
        return [named[name] for name in rest]

    def __repr__(self) -> str:
        ins = ", ".join(f"{p.name}: {p.desc}" for p in self.inputs)
        outs = ", ".join(f"{p.name}: {p.desc}" for p in self.outputs)
        return f"Model({self.name}: {ins} -> {outs}; {len(self.plan.tasks)} tasks)"


def _interface(plan: Plan) -> Interface | None:
    """The interface around the plan, with its ports checked."""
    data = plan.report.get("interface")
    if data is None:
        return None
    interface = Interface.from_json(data)
    interface.check(len(plan.inputs), len(plan.outputs))
    return interface


def _implementation(task: Task, kernel: str) -> str:
    """The implementation that the compiler chose and, if its name does not say so, the kernel that runs it."""
    chosen = str(task.attrs.get("implementation", ""))
    return kernel if kernel.startswith(chosen) else f"{chosen} {kernel}"


def _fitting(port: Port, array: Any) -> np.ndarray:
    """The array in the port's form; raises if shape or element type differ."""
    if not isinstance(array, np.ndarray):
        try:
            array = np.asarray(array)
        except (TypeError, ValueError) as error:
            raise GeError("E10020", f"input '{port.name}' is not an array: {error}") from error
    if array.dtype != numpy_dtype(port.desc.dtype) or array.shape != port.desc.shape:
        got = f"{array.dtype}[{','.join(map(str, array.shape))}]"
        raise GeError(
            "E10020", f"input '{port.name}' is {got}, the model takes {port.desc}", remedy="convert it first"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _results(name: str, ports: Sequence[Port], arrays: Sequence[Any]) -> list[np.ndarray]:
    """The output arrays of a run."""
    if not isinstance(arrays, list | tuple) or len(arrays) != len(ports):
        raise GeError("E10020", f"model {name} fills a list of {len(ports)} arrays, got {arrays!r:.80}")
    for port, array in zip(ports, arrays, strict=True):
        fits = isinstance(array, np.ndarray) and array.dtype == numpy_dtype(port.desc.dtype)
        if not fits or array.shape != port.desc.shape or not array.flags.carray:
            raise GeError(
                "E10020",
                f"the array for output '{port.name}' is not a contiguous, writable array of {port.desc}",
                remedy="allocate it with np.empty",
            )
    return list(arrays)


def _reported(shapes: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Actual shapes of dynamically shaped outputs."""
    items = shapes.items() if isinstance(shapes, dict) else enumerate(shapes or ())
    return [(int(i), tuple(s)) for i, s in items if s is not None]


def cut_to_reported(results: list[np.ndarray], shapes: Any) -> list[np.ndarray]:
    """The results in the shapes that a run reported."""
    for index, shape in _reported(shapes):
        results[index] = _leading(results[index], shape)
    return results


def _leading(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The first elements of a buffer in the actual shape."""
    if array.shape == shape:
        return array
    return array.reshape(-1)[: int(np.prod(shape))].reshape(shape)


# -- loading ---------------------------------------------------------------------------------------------------


class _KernelLoader:
    """Loads machine code; regenerates it if it was compiled for another machine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def load(self, image: KernelImage, report: Mapping[str, Any]) -> Any:
        """A handle of the kernel for this machine."""
        for target in ("host", "portable"):
            data = image.objects.get(target)
            if data is not None:
                return npu_runtime.load_object(data, image.symbol)
        if not image.expression:
            raise no_expression(image)
        import tbe  # needs the code generator, which a model with machine code does not

        inputs, outputs = tbe.from_json(image.expression)
        with self._lock:
            kernel = tbe.build(inputs, outputs, "host", image.symbol, processor=processor_of(report))
        image.objects["host"] = kernel.object
        return npu_runtime.load_object(kernel.object, kernel.symbol)


_LOADER = _KernelLoader()


def _require_packages(plan: Plan) -> None:
    """Load the operator packages whose kernels the tasks name."""
    versions = plan.report.get("packages", {})
    for name in dict.fromkeys(str(t.attrs.get("op", "")) for t in plan.tasks if t.kind == "aicpu"):
        if name.startswith("opp:"):
            from ge.ops.custom import search

            search.require(name, str(versions.get(name[4:].partition("/")[0], "")))


def _load(plan: Plan, packed: PackedConstants | None = None) -> Any:
    if gpu_targets.architecture_of(plan.report):
        from ge.model.cuda import CudaProgram

        return CudaProgram(plan)
    program = npu_runtime.Program(plan.name, max(npu_runtime.selected_device(), 0))
    program.set_loops(**runtime_loops(plan.report))
    over = dict(plan.donated)
    for buffer in plan.buffers:
        if buffer.kind == "constant":
            program.constant(plan.constants[buffer.index], copy=False)
        elif buffer.kind == "arena":
            program.arena(buffer.offset, buffer.nbytes)
        elif buffer.kind == "input":
            program.input(buffer.index, buffer.nbytes)
        else:
            program.output(buffer.index, buffer.nbytes, over.get(buffer.index, -1))
    for _ in range(plan.blocks - 1):
        program.block()
    kernels = [_LOADER.load(image, plan.report) for image in plan.kernels]
    _require_packages(plan)
    for task in plan.tasks:
        attrs = dict(task.attrs)
        if task.kind == "kernel":
            attrs["kernel"] = kernels[attrs["kernel"]]
        inputs, outputs = ([v.as_tuple() for v in side] for side in (task.inputs, task.outputs))
        program.task(task.kind, task.name, inputs, outputs, attrs, task.block)
    if plan.steps > 1:
        program.repeat(plan.steps, plan.strides("input"), plan.strides("output"))
    try:
        if packed is None:
            program.finalize(plan.arena_bytes)
        else:
            program.finalize(plan.arena_bytes, packed.image, packed.layout)
    except npu_runtime.OutOfDeviceMemory as error:
        remedy = "a smaller batch, a higher memory limit, or in training the option recompute"
        peak = plan.report.get("peak", [])
        raise out_of_memory(error, peak, error.requested, error.available, remedy) from error
    return program
