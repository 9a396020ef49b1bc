"""Programs of a GPU: the tasks of a plan captured into one CUDA graph over fixed memory.

Nothing of CUDA is touched before the first run, so that a machine without a GPU compiles and saves models for one.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge.errors import GeError, OutOfMemoryError
from ge.implementations.cuda import matrix_of
from ge.ir.types import numpy_dtype
from ge.plan import KernelImage, Plan, Task, View
from ge.target.cuda import architecture_of
from npu_runtime import OutOfDeviceMemory, UnsupportedTask, cuda

__all__ = ["CudaProgram"]

_ALIGNMENT = 16
_WORKSPACE_LIMIT = 256 << 20
_REPEATS = 5


@dataclass
class _Call:
    """A library call: one of several candidates, with its operands' addresses."""

    task: Task
    call: cuda.Product | cuda.Convolution
    addresses: tuple[int, int, int, int, int]  # two operands, bias, residual, result
    candidate: int = 0

    def enqueue(self, stream: cuda.Stream, workspace: int) -> None:
        self.call.enqueue(stream, self.candidate, *self.addresses, workspace)


class CudaProgram:
    """A plan on a GPU, with the interface of `npu_runtime.Program` that models use."""

    def __init__(self, plan: Plan, device: int = 0) -> None:
        self.plan = plan
        self.device = device
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None

    @property
    def loaded(self) -> _Loaded:
        """The program in the memory of the GPU; loaded by the first that asks."""
        if self._loaded is None:
            try:
                self._loaded = _Loaded(self.plan, self.device)
            except cuda.CudaUnavailable as error:
                raise GeError(
                    "E10031",
                    f"model {self.plan.name} is compiled for {architecture_of(self.plan.report)}: {error}",
                    remedy="run it on a machine with such a GPU, or compile it for the CPU",
                ) from error
            except OutOfDeviceMemory as error:
                raise OutOfMemoryError(
                    "E10030",
                    str(error),
                    remedy="a smaller batch",
                    requested=error.requested,
                    available=error.available,
                    peak=self.plan.report.get("peak", []),
                ) from error
        return self._loaded

    def run(self, feeds: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Copy the inputs to the GPU, run, and copy the outputs back; runs of one program take turns."""
        with self._lock:
            loaded = self.loaded
            for memory, array in zip(loaded.inputs, feeds, strict=True):
                memory.upload(loaded.stream, _bytes(array))
            loaded.launch()
            for memory, array in zip(loaded.outputs, results, strict=True):
                memory.download(loaded.stream, _bytes(array))

    def tune(self) -> None:
        """Time every candidate of every library call and keep the fastest."""
        with self._lock:
            self.loaded.tune()

    def seconds(self, repeats: int = 50) -> float:
        """The median time of a launch between two events, inputs and outputs in the GPU's memory."""
        with self._lock:
            return self.loaded.seconds(repeats)


class _Loaded:
    """Memory, kernels and library calls of a plan, and the graph captured from them."""

    def __init__(self, plan: Plan, device: int) -> None:
        self.plan, self.device = plan, device
        self.stream = cuda.Stream(device)
        self.arena = cuda.Memory(device, max(plan.arena_bytes, 1), f"the arena of {plan.name}")
        self.constants = [self._upload(array) for array in plan.constants]
        self.inputs = [cuda.Memory(device, max(p.desc.nbytes, 1), p.name) for p in plan.inputs]
        self.outputs = [cuda.Memory(device, max(p.desc.nbytes, 1), p.name) for p in plan.outputs]
        self.packed: list[cuda.Memory] = []
        self.modules = [self._module(image) for image in plan.kernels]
        self.calls: list[_Call] = []
        self.steps = [self._step(task) for task in plan.tasks]
        for call in self.calls:
            self._settle(call)
        self.workspace = self._workspace()
        self.graph = self._capture()

    # -- memory ------------------------------------------------------------------------------------------------

    def _upload(self, array: np.ndarray) -> cuda.Memory:
        memory = cuda.Memory(self.device, max(array.nbytes, 1), f"a constant of {self.plan.name}")
        memory.upload(self.stream, _bytes(np.ascontiguousarray(array)))
        return memory

    def address(self, view: View) -> int:
        """Where a view begins."""
        buffer = self.plan.buffers[view.buffer]
        base = {
            "arena": lambda: self.arena.address + buffer.offset,
            "constant": lambda: self.constants[buffer.index].address,
            "input": lambda: self.inputs[buffer.index].address,
            "output": lambda: self.outputs[buffer.index].address,
        }[buffer.kind]()
        return base + view.offset * numpy_dtype(view.dtype).itemsize

    def _aligned(self, view: View, task: Task) -> int:
        address = self.address(view)
        if address % _ALIGNMENT:
            raise UnsupportedTask(f"{task.name}: an operand is not aligned to {_ALIGNMENT} bytes")
        return address

    # -- tasks -------------------------------------------------------------------------------------------------

    def _module(self, image: KernelImage) -> tuple[cuda.Module, str, int, int]:
        """A loaded kernel: its symbol, blocks and threads."""
        target = architecture_of(self.plan.report)
        code = image.objects.get(target)
        if code is None or cuda.is_simulated():
            import tbe

            inputs, outputs = tbe.from_json(image.expression)
            kernel = tbe.build(
                inputs, outputs, "simulated" if cuda.is_simulated() else target, name=image.symbol
            )
            return cuda.Module(self.device, kernel.object), kernel.symbol, kernel.total, kernel.grain
        return cuda.Module(self.device, code), image.symbol, image.total, image.grain

    def _step(self, task: Task) -> Callable[[], None]:
        """What puts a task on the stream."""
        make = {
            "kernel": self._kernel,
            "copy": self._copy,
            "matmul": self._product,
            "conv": self._convolution,
        }.get(task.kind)
        if make is None:
            raise UnsupportedTask(f"{task.name}: the GPU has no task of kind {task.kind}")
        return make(task)

    def _kernel(self, task: Task) -> Callable[[], None]:
        module, symbol, blocks, threads = self.modules[task.attrs["kernel"]]
        addresses = [self._aligned(v, task) for v in (*task.inputs, *task.outputs)]
        return lambda: self.stream.launch(module, symbol, blocks, threads, addresses) if blocks else None

    def _copy(self, task: Task) -> Callable[[], None]:
        source, target, nbytes = (
            self.address(task.inputs[0]),
            self.address(task.outputs[0]),
            task.inputs[0].nbytes,
        )
        return lambda: self.stream.copy(target, source, nbytes)

    def _library_call(
        self, task: Task, call: cuda.Product | cuda.Convolution, weight: int
    ) -> Callable[[], None]:
        bias = self._aligned(task.inputs[2], task) if task.attrs["has_bias"] else 0
        residual = self._aligned(task.inputs[-1], task) if "add" in task.attrs["post_ops"] else 0
        x, y = self._aligned(task.inputs[0], task), self._aligned(task.outputs[0], task)
        step = _Call(task, call, (x, weight, bias, residual, y))
        self.calls.append(step)
        return lambda: step.enqueue(self.stream, self.workspace.address)

    def _product(self, task: Task) -> Callable[[], None]:
        a, b, y = task.inputs[0], task.inputs[1], task.outputs[0]
        leading = y.shape[:-2]
        post_ops = list(task.attrs["post_ops"])
        added = "add" in post_ops
        first, second, result = (self._matrix(v, leading) for v in (a, b, y))
        call = cuda.Product(
            self.device,
            _library("cublasLt"),
            a.dtype,
            math.prod(leading),
            first,
            second,
            result,
            result if added else (),
            bool(task.attrs["has_bias"]),
            next((p for p in post_ops if p != "add"), ""),
        )
        return self._library_call(task, call, self._aligned(b, task))

    @staticmethod
    def _matrix(view: View, leading: Sequence[int]) -> tuple[int, int, int, int, int]:
        matrix = matrix_of(view, leading)
        assert matrix is not None, "the compiler chose cuBLASLt for another layout"
        return matrix

    def _convolution(self, task: Task) -> Callable[[], None]:
        x, w, y = task.inputs[0], task.inputs[1], task.outputs[0]
        weight, strides = self._channels_last_weights(w, task)
        attrs = task.attrs
        call = cuda.Convolution(
            self.device,
            _library("cudnn"),
            x.dtype,
            x.shape,
            x.strides,
            w.shape,
            strides,
            y.shape,
            y.strides,
            attrs["strides"],
            attrs["dilations"],
            attrs["pads_begin"],
            attrs["pads_end"],
            bool(attrs["has_bias"]),
            "add" in attrs["post_ops"],
            "relu" in attrs["post_ops"],
        )
        return self._library_call(task, call, weight)

    def _channels_last_weights(self, w: View, task: Task) -> tuple[int, tuple[int, ...]]:
        """Constant weights in the order O, kernel, I, which tensor cores read; others as they are."""
        buffer = self.plan.buffers[w.buffer]
        if buffer.kind != "constant":
            return self._aligned(w, task), w.strides
        flat = self.plan.constants[buffer.index].reshape(-1)[w.offset :]
        steps = [s * flat.itemsize for s in w.strides]
        array = np.lib.stride_tricks.as_strided(flat, w.shape, steps)
        moved = np.ascontiguousarray(np.moveaxis(array, 1, -1))
        self.packed.append(self._upload(moved))
        inner = np.moveaxis(moved, -1, 1).strides
        return self.packed[-1].address, tuple(s // flat.itemsize for s in inner)

    # -- candidates --------------------------------------------------------------------------------------------

    def _settle(self, call: _Call) -> None:
        """Take the first candidate that can be built."""
        for candidate in range(call.call.candidates):
            if 0 <= call.call.prepare(candidate) <= _WORKSPACE_LIMIT:
                call.candidate = candidate
                return
        raise UnsupportedTask(f"{call.task.name}: the library builds none of its candidates")

    def _workspace(self) -> cuda.Memory:
        most = max((call.call.prepare(call.candidate) for call in self.calls), default=0)
        return cuda.Memory(self.device, max(most, 1), f"the workspace of {self.plan.name}")

    def tune(self) -> None:
        """Time the candidates of every call; equal calls are timed once."""
        known: dict[tuple[Any, ...], int] = {}
        self.workspace = cuda.Memory(self.device, _WORKSPACE_LIMIT, f"the workspace of {self.plan.name}")
        for call in self.calls:
            key = _signature(call.task)
            if key not in known:
                known[key] = min(range(call.call.candidates), key=lambda n: self._time(call, n))
            call.call.prepare(known[key])
            call.candidate = known[key]
        self.workspace = self._workspace()
        self.graph = self._capture()

    def _time(self, call: _Call, candidate: int) -> float:
        if not 0 <= call.call.prepare(candidate) <= _WORKSPACE_LIMIT:
            return math.inf
        begin, end = cuda.Event(self.device), cuda.Event(self.device)
        before, call.candidate = call.candidate, candidate
        try:
            call.enqueue(self.stream, self.workspace.address)
            self.stream.begin_capture()
            for _ in range(10):
                call.enqueue(self.stream, self.workspace.address)
            graph = cuda.Graph(self.stream)
            times = []
            for _ in range(_REPEATS):
                begin.record(self.stream)
                graph.launch(self.stream)
                end.record(self.stream)
                end.synchronize()
                times.append(end.milliseconds_since(begin))
        except cuda.CudaError:
            return math.inf
        finally:
            call.candidate = before
        return min(times)

    # -- running -----------------------------------------------------------------------------------------------

    def _capture(self) -> cuda.Graph:
        for step in self.steps:  # libraries load what they need in a first run, which a capture cannot hold
            step()
        self.stream.synchronize()
        self.stream.begin_capture()
        for step in self.steps:
            step()
        return cuda.Graph(self.stream)

    def launch(self) -> None:
        self.graph.launch(self.stream)

    def seconds(self, repeats: int) -> float:
        begin, end = cuda.Event(self.device), cuda.Event(self.device)
        times = []
        for _ in range(repeats + 10):
            begin.record(self.stream)
            self.launch()
            end.record(self.stream)
            end.synchronize()
            times.append(end.milliseconds_since(begin))
        return float(np.median(times[10:])) / 1e3


def _signature(task: Task) -> tuple[Any, ...]:
    views = tuple((v.dtype, v.shape, v.strides) for v in (*task.inputs, *task.outputs))
    return task.kind, views, repr(sorted(task.attrs.items(), key=lambda item: item[0]))


_BEFORE = {"cublasLt": (), "cudnn": ("nvrtc", "cublasLt", "cublas")}  # libraries that one loads by name


def _library(name: str) -> str:
    """The path of one of NVIDIA's libraries; those it needs are in the process."""
    for needed in _BEFORE[name]:
        try:
            ctypes.CDLL(cuda.library_path(needed), ctypes.RTLD_GLOBAL)
        except OSError as error:
            cause = f"NVIDIA's {needed} cannot be loaded ({error}); pip install tf-adapter[cuda]"
            raise UnsupportedTask(cause) from error
    return cuda.library_path(name)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
