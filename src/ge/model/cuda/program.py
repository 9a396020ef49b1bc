"""GPU programs: the tasks of a plan captured into one CUDA graph over the memory of inputs and outputs.

Host tasks (host.py) run between graphs. A graph's binding (binding.py) is the memory that it reads and writes: the
program's own for callers with host memory, else the caller's.

CUDA is not initialised before the first run, so that a machine without a GPU compiles and saves models for one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ge.errors import GeError, OutOfMemoryError
from ge.implementations import Operation, candidates_for
from ge.implementations.cuda import (
    ACTIVATIONS,
    data_gradient_rows,
    matrix_of,
    rows_of,
    weight_gradient_rows,
)
from ge.ir.types import numpy_dtype
from ge.memory_advice import out_of_memory
from ge.model.cuda import own
from ge.model.cuda.binding import Binding, Bindings
from ge.model.cuda.checks import Checks
from ge.model.cuda.control import Guard, Part, Step, parts_of_block, steps_in
from ge.model.cuda.host import Copies, HostPart
from ge.model.cuda.tuning import Tuning, task_key
from ge.plan import KernelImage, Plan, Task, View
from ge.target.cuda import architecture_of, named
from npu_runtime import OutOfDeviceMemory, UnsupportedTask, cuda, selected_device

if TYPE_CHECKING:
    import tbe
    from ge.model.cuda.trial import Trial

__all__ = ["CudaProgram"]

_ALIGNMENT = 16
_WORKSPACE_LIMIT = 256 << 20
_ONE_ELEMENT = {"strides": (1, 1), "dilations": (1, 1), "pads_begin": (0, 0), "pads_end": (0, 0)}  # windows
_REPEATS = 5
_TIMED_LAUNCHES = 10

_Kernel = tuple[cuda.Module, str, int, int]  # code, symbol, blocks and threads
_Operand = int | View  # an address, or a view whose address depends on the binding


@dataclass
class _GeneratedCall:
    """A generated kernel in the place of a library call."""

    run: Callable[[], None]
    candidates: int = 1

    def describe(self, candidate: int) -> str:
        return "generated"

    def prepare(self, candidate: int) -> int:
        return 0

    def enqueue(self, stream: cuda.Stream, candidate: int, workspace: int) -> None:
        self.run()


_LibraryCall = cuda.Product | cuda.Convolution | cuda.Attention | _GeneratedCall


@dataclass
class _Way:
    """One way to run a task: a library call on the operands' addresses, and a kernel for what it does not compute."""

    name: str  # of the implementation
    call: _LibraryCall
    operands: tuple[_Operand, ...]
    after: Callable[[], None] | None = None

    def enqueue(self, program: _Loaded, candidate: int) -> None:
        call: Callable[..., None] = self.call.enqueue
        call(program.stream, candidate, *program.addresses(self.operands), program.workspace.address)
        if self.after is not None:
            self.after()


class _Call:
    """A task that libraries can run in several ways, each with several candidates; the compiler's choice is first."""

    def __init__(self, task: Task, makers: Sequence[Callable[[], _Way]]) -> None:
        self.task = task
        self._makers = list(makers)
        self._made: list[_Way | None] = []  # None: the library refuses it
        self.refused: list[str] = []
        self.chosen = (0, 0)  # way and candidate

    def candidates(self) -> Iterator[tuple[int, int]]:
        """All ways with all their candidates, best guess first."""
        for number in range(len(self._makers)):
            way = self._way(number)
            if way is not None:
                yield from ((number, candidate) for candidate in range(way.call.candidates))

    def _way(self, number: int) -> _Way | None:
        while len(self._made) <= number:
            made = None
            try:
                made = self._makers[len(self._made)]()
            except UnsupportedTask as error:
                self.refused.append(str(error))
            self._made.append(made)
        return self._made[number]

    def _chosen_way(self, candidate: tuple[int, int]) -> _Way:
        way = self._way(candidate[0])
        assert way is not None, "a way that the library refuses has no candidates"
        return way

    def prepare(self, candidate: tuple[int, int]) -> int:
        """The workspace bytes that a candidate needs, -1 if the library cannot build it."""
        return self._chosen_way(candidate).call.prepare(candidate[1])

    def describe(self, candidate: tuple[int, int]) -> str:
        """Implementation, engine and settings; the text is stable for one version of the library."""
        way = self._chosen_way(candidate)
        return f"{way.name}{'+kernel' if way.after is not None else ''} {way.call.describe(candidate[1])}"

    def enqueue(self, program: _Loaded) -> None:
        way = self._chosen_way(self.chosen)
        for copy in program.copies_before(self.task):
            copy()
        way.enqueue(program, self.chosen[1])
        for copy in program.copies_after(self.task):
            copy()


@dataclass
class _Place:
    """A program on one GPU, where runs are serialised."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    loaded: _Loaded | None = None
    stream: cuda.Stream | None = None


class CudaProgram:
    """A plan on a GPU, with the interface of `npu_runtime.Program` that models use."""

    def __init__(self, plan: Plan, device: int = 0) -> None:
        self.plan = plan
        self.device = device
        self._places: dict[int, _Place] = {}

    def _place(self, device: int | None = None) -> _Place:
        """The program on a GPU: the given one, else the one that this thread selected, else its own."""
        return self._places.setdefault(self._device(device), _Place())

    def _device(self, device: int | None = None) -> int:
        chosen = selected_device() if device is None else device
        return self.device if chosen < 0 else chosen

    @property
    def loaded(self) -> _Loaded:
        """The program in GPU memory; loaded on first use."""
        return self._loaded(None, None)

    def _loaded(self, device: int | None, binding: Binding | None) -> _Loaded:
        place = self._place(device)
        if place.loaded is None:
            try:
                place.loaded = _Loaded(self.plan, self._device(device), binding)
            except cuda.CudaUnavailable as error:
                raise GeError(
                    "E10031",
                    f"model {self.plan.name} is compiled for {architecture_of(self.plan.report)}: {error}",
                    remedy="run it on a machine with such a GPU, or compile it for the CPU",
                ) from error
            except OutOfDeviceMemory as error:
                raise _out_of_memory(self.plan, error) from error
        return place.loaded

    @property
    def copies(self) -> Copies:
        """The copies of all runs so far, between the GPU and the host, and from and to the program's own memory."""
        loaded = self._place().loaded
        return Copies() if loaded is None else loaded.copies

    def run(self, feeds: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> dict[int, tuple[int, ...]]:
        """Copy the inputs to the GPU, run, and copy the outputs back; runs of one program are serialised.

        Returns the shapes of dynamically shaped outputs.
        """
        with self._place().lock:
            loaded = self.loaded
            loaded.bind_own()
            with loaded.on(loaded.own_stream):
                loaded.feed(feeds)
                shapes = loaded.launch_checked(feeds)
                loaded.fetch(results)
        return shapes

    def run_pointers(
        self, inputs: Sequence[int], outputs: Sequence[int], guests: bool = False
    ) -> dict[int, tuple[int, ...]]:
        """Run on host addresses; there are no threads that `guests` could join."""
        feeds, results = (
            [_at(address, port.desc.nbytes) for address, port in zip(side, ports, strict=True)]
            for side, ports in ((inputs, self.plan.inputs), (outputs, self.plan.outputs))
        )
        return self.run(feeds, results)

    def stream(self, device: int) -> cuda.Stream:
        """The program's own stream on a GPU, for callers that have none."""
        place = self._place(device)
        with place.lock:
            if place.stream is None:
                place.stream = cuda.Stream(device)
            return place.stream

    def run_on_gpu(
        self, inputs: Sequence[int], outputs: Sequence[int], stream: cuda.Stream
    ) -> dict[int, tuple[int, ...]]:
        """Run on device addresses of the stream's GPU, enqueued on the stream.

        Only later work on the stream waits for the run; with host tasks in it the caller waits. An output that takes an
        input's memory has the input's address. Returns the shapes of dynamically shaped outputs.
        """
        with self._place(stream.device).lock:
            binding = Binding(tuple(inputs), tuple(outputs))
            if self._place(stream.device).loaded is None:
                stream.synchronize()  # the first run of library calls writes the outputs
            loaded = self._loaded(stream.device, binding)
            try:
                with loaded.on(stream):
                    return loaded.run_bound(binding)
            except OutOfDeviceMemory as error:
                raise _out_of_memory(self.plan, error) from error

    def tune(self, seconds: float = math.inf) -> None:
        """Time every candidate of every library call and keep the fastest; stop after this many seconds."""
        with self._place().lock:
            self.loaded.bind_own()
            self.loaded.tune(seconds)

    def profile(
        self, feeds: Sequence[np.ndarray], results: Sequence[np.ndarray], repeats: int = 10
    ) -> list[float]:
        """Run, and return the median seconds of each task, captured in a separate graph."""
        self.run(feeds, results)
        with self._place().lock:
            self.loaded.bind_own()
            return self.loaded.profile(repeats)

    def task_info(self) -> list[dict[str, Any]]:
        """The properties of each task shown in profiles."""
        engines = {id(call.task): call.describe(call.chosen) for call in self.loaded.calls}
        return [
            {
                "impl": engines.get(id(task), ""),
                "layout": "",
                "flops": task.flops,
                "bytes": sum(v.nbytes for v in (*task.inputs, *task.outputs)),
            }
            for task in self.plan.tasks
        ]

    def seconds(self, repeats: int = 50) -> float:
        """The median time of a launch between two events, with inputs and outputs in GPU memory."""
        with self._place().lock:
            self.loaded.bind_own()
            return self.loaded.seconds(repeats)


class _Loaded:
    """Memory, kernels and library calls of a plan, and the graph captured from them."""

    def __init__(self, plan: Plan, device: int, binding: Binding | None = None) -> None:
        self.plan, self.device = plan, device
        _check_architecture(plan, device)
        self.own_stream = self.stream = cuda.Stream(device)
        self.side = cuda.Stream(device)
        self.forked, self.joined = cuda.Event(device), cuda.Event(device)
        self.done, self.last = cuda.Event(device), -1  # the end of the last run, and its stream
        self.arena = cuda.Memory(device, max(plan.arena_bytes, 1), f"the arena of {plan.name}")
        self.constants = [self._upload(array) for array in plan.constants]
        self.bindings = Bindings(plan, device)
        self.packed: dict[View, cuda.Memory] = {}
        self.own_modules: dict[str, cuda.Module] = {}
        self.kept: list[cuda.Memory] = []
        self.moved: dict[int, dict[View, cuda.Memory]] = {}  # by task: unaligned operands
        self.narrowed: dict[int, tuple[int, list[Callable[[], None]]]] = {}  # by task: a rounded bias
        self.tuning = Tuning(plan, device)
        self.modules = [self._module(image) for image in plan.kernels]
        self.calls: list[_Call] = []
        self.shared: dict[str, _LibraryCall] = {}  # library calls by their description
        self.wrong: list[str] = []  # candidates that tuning found to give wrong results
        self.copies = Copies()
        if plan.steps != 1:
            raise UnsupportedTask(f"{plan.name} runs in {plan.steps} parts of the batch")
        self.binding = self.bindings.scratch(binding)
        self.checks = Checks(self)
        self.parts: list[Part] = parts_of_block(self)
        for call in self.calls:
            self._settle(call)
        self.workspace = self._workspace()
        for part in self.parts:
            part.warm_up(self)
        self.stream.synchronize()
        self.bindings.drop_scratch()

    def __del__(self) -> None:
        if getattr(self, "last", -1) != -1:  # its memory returns to the pool: nothing may still use it
            self.done.synchronize()

    # -- memory ------------------------------------------------------------------------------------------------

    def memory(self, nbytes: int, name: str) -> cuda.Memory:
        """Allocate GPU memory for the lifetime of the program."""
        self.kept.append(cuda.Memory(self.device, nbytes, name))
        return self.kept[-1]

    def keep(self, array: np.ndarray) -> cuda.Memory:
        """Copy an array to GPU memory for the lifetime of the program."""
        self.kept.append(self._upload(array))
        return self.kept[-1]

    def scalar(self, view: View) -> Any:
        """Read the number in a view on the host."""
        self.checks.settle()
        array = np.empty(1, numpy_dtype(view.dtype))
        self._download(array, self.address(view))
        return array[0]

    def write(self, view: View, array: np.ndarray) -> None:
        """Write a view from the host."""
        self._upload_to(self.address(view), array)

    def _upload_to(self, address: int, array: np.ndarray) -> None:
        if array.nbytes:
            self.stream.upload(address, array.ctypes.data, array.nbytes)
            self.stream.synchronize()

    def _download(self, array: np.ndarray, address: int) -> None:
        if array.nbytes:
            self.stream.download(array.ctypes.data, address, array.nbytes)
            self.stream.synchronize()

    def _upload(self, array: np.ndarray) -> cuda.Memory:
        memory = cuda.Memory(self.device, max(array.nbytes, 1), f"a constant of {self.plan.name}")
        memory.upload(self.stream, _bytes(np.ascontiguousarray(array)))
        return memory

    def address(self, view: View) -> int:
        """The address of a view."""
        return self._base(view.buffer) + view.offset * numpy_dtype(view.dtype).itemsize

    def addresses(self, operands: Sequence[_Operand]) -> list[int]:
        """The addresses of operands in the current binding."""
        return [self.address(o) if isinstance(o, View) else o for o in operands]

    def _aligned(self, view: View, task: Task) -> _Operand:
        """A view; if it is not aligned for the libraries, it is copied to aligned memory.

        Bound memory is aligned, so that this holds for all bindings.
        """
        if not self.address(view) % _ALIGNMENT:
            return view
        moved = self.moved.setdefault(id(task), {})
        if view not in moved:
            reach = sum((n - 1) * s for n, s in zip(view.shape, view.strides, strict=True)) + 1
            nbytes = reach * numpy_dtype(view.dtype).itemsize
            moved[view] = cuda.Memory(self.device, nbytes, f"an operand of {task.name}")
        return moved[view].address

    def _copies(self, task: Task, views: Sequence[View], *, back: bool = False) -> list[Callable[[], None]]:
        """The copies of a task's views to aligned memory, or back."""

        def copy(view: View, memory: cuda.Memory) -> None:
            pair = (self.address(view), memory.address) if back else (memory.address, self.address(view))
            self.stream.copy(*pair, memory.size)

        moved = self.moved.get(id(task), {})
        return [functools.partial(copy, view, memory) for view, memory in moved.items() if view in views]

    # -- tasks -------------------------------------------------------------------------------------------------

    def _module(self, image: KernelImage) -> _Kernel:
        """A loaded kernel: its symbol, blocks and threads."""
        code = image.objects.get(architecture_of(self.plan.report))
        if code is None or cuda.is_simulated():
            import tbe

            return self.built(*tbe.from_json(image.expression), image.symbol)
        return cuda.Module(self.device, code), image.symbol, image.total, image.grain

    def built(
        self,
        inputs: Sequence[tbe.Tensor],
        outputs: Sequence[tbe.Tensor],
        symbol: str | None = None,
        *,
        aligned: bool = True,
    ) -> _Kernel:
        """Generate a kernel now."""
        import tbe

        target = "simulated" if cuda.is_simulated() else architecture_of(self.plan.report)
        kernel = tbe.build(inputs, outputs, target, name=symbol, aligned=aligned)
        return cuda.Module(self.device, kernel.object), kernel.symbol, kernel.total, kernel.grain

    def step(self, task: Task) -> Step:
        """The step that enqueues a task."""
        make = {
            "kernel": self._kernel,
            "copy": self._copy,
            "reorder": self._copy,
            "matmul": self._product,
            "conv": self._convolution,
            "deconv": self._data_gradient,
            "conv_grad_weights": self._weight_gradient,
            "attention": self._attention,
            "attention_grad": self._attention_gradient,
            "stem": self._stem,
            "bottleneck": self._bottleneck,
            "aicpu": self._row_sums,
        }.get(task.kind)
        if make is None:
            raise UnsupportedTask(f"{task.name}: the GPU has no task of kind {task.kind}")
        return Step(task, make(task))

    def _kernel(self, task: Task) -> Callable[[], None]:
        operands = [*task.inputs, *task.outputs]
        loaded = self.modules[task.attrs["kernel"]]
        if any(address % _ALIGNMENT for address in self.addresses(operands)):
            import tbe

            image = self.plan.kernels[task.attrs["kernel"]]
            loaded = self.built(*tbe.from_json(image.expression), image.symbol, aligned=False)
        return self.launcher(loaded, operands)

    def launcher(self, kernel: _Kernel, operands: Sequence[_Operand]) -> Callable[[], None]:
        module, symbol, blocks, threads = kernel
        if not blocks:
            return lambda: None
        return lambda: self.stream.launch(module, symbol, blocks, threads, self.addresses(operands))

    def _row_sums(self, task: Task) -> Callable[[], None]:
        """Sum rows by index, the gradient of an embedding: chains of equal indices, then their sums."""
        import tbe
        from tbe.cuda.row_sums import build_row_sums, chains

        (indices, rows), result = task.inputs, task.outputs[0]
        count = indices.shape[0]
        width = math.prod(rows.shape[1:])

        def clear() -> None:
            if result.nbytes:
                self.stream.fill(self.address(result), 0, result.nbytes)

        if not count or not width:
            return clear
        numbers = tbe.placeholder((count,), indices.dtype)
        first, following = (self.memory(4 * count, f"chains of {task.name}").address for _ in range(2))
        aligned = not self.address(indices) % _ALIGNMENT
        chain = self.launcher(
            self.built([numbers], chains(numbers), aligned=aligned), [indices, first, following]
        )
        made = build_row_sums(
            rows.dtype,
            indices.dtype,
            count,
            width,
            result.shape[0],
            architecture_of(self.plan.report),
            simulated=cuda.is_simulated(),
        )
        module = cuda.Module(self.device, made.code)
        kernel = module, made.symbol, made.blocks, made.threads
        total = self.launcher(kernel, [indices, rows, first, following, result])

        def run() -> None:
            clear()
            chain()
            total()

        return run

    def _copy(self, task: Task) -> Callable[[], None]:
        source, target = task.inputs[0], task.outputs[0]
        if not target.contiguous:
            raise UnsupportedTask(f"{task.name}: the GPU has no copy to strided memory")
        if not source.contiguous:
            return self._gather(source, target)
        return lambda: self.stream.copy(self.address(target), self.address(source), source.nbytes)

    def joined_copies(self, tasks: Sequence[Task]) -> Callable[[], None]:
        """One kernel for copies of one size, none of which reads what another writes."""
        import tbe

        nbytes = tasks[0].inputs[0].nbytes
        sources = [tbe.placeholder((nbytes,), "uint8") for _ in tasks]
        results = [tbe.compute((nbytes,), lambda i, source=source: source[(i,)]) for source in sources]
        operands = [*(t.inputs[0] for t in tasks), *(t.outputs[0] for t in tasks)]
        aligned = not any(address % _ALIGNMENT for address in self.addresses(operands))
        return self.launcher(self.built(sources, results, aligned=aligned), operands)

    def _gather(self, source: View, target: View) -> Callable[[], None]:
        """Copy a strided view: a kernel that reads from the start of its buffer."""
        import tbe

        reach = sum((n - 1) * s for n, s in zip(source.shape, source.strides, strict=True))
        whole = tbe.placeholder((source.offset + reach + 1,), source.dtype)

        def element(*at: tbe.Scalar) -> tbe.Scalar:
            return whole[(sum((i * s for i, s in zip(at, source.strides, strict=True)), source.offset),)]

        operands = [replace(source, offset=0), target]
        aligned = not any(address % _ALIGNMENT for address in self.addresses(operands))
        return self.launcher(
            self.built([whole], [tbe.compute(source.shape, element)], aligned=aligned), operands
        )

    def _call(self, task: Task, ways: Sequence[Callable[[], _Way]]) -> Callable[[], None]:
        """A library call in the ways that the library does not refuse; made when they are first considered."""
        call = _Call(task, ways)
        self.calls.append(call)
        return lambda: call.enqueue(self)

    def copies_before(self, task: Task) -> list[Callable[[], None]]:
        """The copies of a task's operands to aligned memory, and of a bias to its narrow type."""
        return [*self._copies(task, task.inputs), *self.narrowed.get(id(task), (0, []))[1]]

    def copies_after(self, task: Task) -> list[Callable[[], None]]:
        """The copies of a task's results from aligned memory."""
        return self._copies(task, task.outputs, back=True)

    def _library_call(self, kind: str, library: str, *described: Any) -> Any:
        """A call of a library; equal ones are one, because candidates take long to find and to build."""
        key = repr((kind, described))
        if key not in self.shared:
            self.shared[key] = getattr(_libraries(), kind)(self.device, _library(library), *described)
        return self.shared[key]

    def _operands(self, task: Task) -> tuple[_Operand, _Operand, _Operand]:
        """Bias, residual and result."""
        bias = self._bias(task) if task.attrs["has_bias"] else 0
        residual: _Operand = self._aligned(task.inputs[-1], task) if "add" in task.attrs["post_ops"] else 0
        return bias, residual, self._aligned(task.outputs[0], task)

    def _bias(self, task: Task) -> _Operand:
        """The bias rounded to the element type of the operands: a constant now, others before each call."""
        view, dtype = task.inputs[2], task.inputs[0].dtype
        if view.dtype == dtype:
            return self._aligned(view, task)
        if id(task) not in self.narrowed:
            if self.plan.buffers[view.buffer].kind == "constant":
                made = self.keep(self._constant(view).astype(numpy_dtype(dtype)))
                self.narrowed[id(task)] = made.address, []
            else:
                import tbe

                made = cuda.Memory(self.device, math.prod(view.shape) * numpy_dtype(dtype).itemsize, "a bias")
                self.kept.append(made)
                wide = tbe.placeholder(view.shape, view.dtype)
                kernel = self.built([wide], [tbe.cast(wide, dtype)], aligned=False)
                self.narrowed[id(task)] = made.address, [self.launcher(kernel, [view, made.address])]
        return self.narrowed[id(task)][0]

    def _product(self, task: Task) -> Callable[[], None]:
        op = Operation.of(task)
        if op.inputs[0].dtype == "int8":
            return self._call(
                task, [lambda: self._integer_product_way(task), lambda: self._integer_product_kernel(task)]
            )
        ways: dict[str, list[Callable[[], _Way]]] = {
            "cublaslt": [lambda: self._product_way(task, op)],
            "cudnn": [lambda: self._product_by_windows(task, op)],
        }
        return self._call(task, self._in_order(task, op, ways))

    def _integer_product_way(self, task: Task) -> _Way:
        """A product of int8 matrices; the library reads weights column by column."""
        x, w, y = *task.inputs, task.outputs[0]
        if self.plan.buffers[w.buffer].kind != "constant":
            raise UnsupportedTask("weights that the step computes are not turned for an integer product")
        if w not in self.packed:
            self.packed[w] = self._upload(np.ascontiguousarray(self._constant(w).T))
        depth, columns = w.shape
        sides = (x.shape[0], depth, depth, 1, 0), (depth, columns, 1, depth, 0), (*y.shape, columns, 1, 0)
        call = self._library_call("Product", "cublasLt", "int8", "int32", 1, *sides, (), False, "")
        operands = self._aligned(x, task), self.packed[w].address, 0, 0, self._aligned(y, task)
        return _Way("cublaslt", call, operands)

    def _integer_product_kernel(self, task: Task) -> _Way:
        """The same in a generated kernel, where the library has no algorithm or the weights are computed."""
        import tbe

        a, b = (tbe.placeholder(v.shape, v.dtype) for v in task.inputs)
        shape = (*task.outputs[0].shape, a.shape[1])
        terms = tbe.compute(
            shape, lambda i, j, k: tbe.cast(a[(i, k)], "int32") * tbe.cast(b[(k, j)], "int32")
        )
        kernel = self.built([a, b], [tbe.reduce("sum", terms, 2)], aligned=False)
        return _Way("kernel", _GeneratedCall(self.launcher(kernel, [*task.inputs, *task.outputs])), ())

    def _product_by_windows(self, task: Task, op: Operation) -> _Way:
        """A product with constant weights as a 1x1 convolution in which each row is an image."""
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        if self.plan.buffers[w.buffer].kind != "constant":
            raise UnsupportedTask("weights that the step computes are not turned for a convolution")
        if w not in self.packed:
            self.packed[w] = self._upload(np.ascontiguousarray(self._constant(w).T))
        depth, columns = w.shape
        call = self._dnn(
            "forward",
            _ONE_ELEMENT,
            replace(x, shape=(*x.shape, 1, 1), strides=(*x.strides, 1, 1)),
            View(w.buffer, w.dtype, (columns, depth, 1, 1), (depth, 1, 1, 1)),
            replace(y, shape=(*y.shape, 1, 1), strides=(*y.strides, 1, 1)),
            op.flag("has_bias"),
            "add" in op.post_ops,
            _activation(op),
        )
        return _Way("cudnn", call, (self._aligned(x, task), self.packed[w].address, *self._operands(task)))

    def _product_way(self, task: Task, op: Operation) -> _Way:
        """A product of cuBLASLt; a kernel in place after it if the library lacks the activation."""
        a, b, y = op.inputs[0], op.inputs[1], op.outputs[0]
        leading = y.shape[:-2]
        first, second, result = (self._matrix(v, leading) for v in (a, b, y))
        activation = _activation(op)
        by_kernel = activation == "gelu_erf"
        call = self._library_call(
            "Product",
            "cublasLt",
            a.dtype,
            y.dtype,
            math.prod(leading),
            first,
            second,
            result,
            result if "add" in op.post_ops else (),
            op.flag("has_bias"),
            "" if by_kernel else activation,
        )
        operands = self._aligned(task.inputs[0], task), self._aligned(task.inputs[1], task)
        way = _Way("cublaslt", call, (*operands, *self._operands(task)))
        if by_kernel:
            if not y.contiguous:
                raise UnsupportedTask("the result of a product has gaps")
            from ge.model.cuda.epilogue import epilogue  # needs the code generator

            target = way.operands[-1]
            kernel = self.built(*epilogue(y.dtype, y.shape, len(y.shape) - 1, False, False, activation))
            way.after = self.launcher(kernel, [target, target])
        return way

    @staticmethod
    def _matrix(view: View, leading: Sequence[int]) -> tuple[int, int, int, int, int]:
        matrix = matrix_of(view, leading)
        assert matrix is not None, "the compiler chose cuBLASLt for another layout"
        return matrix

    def _convolution(self, task: Task) -> Callable[[], None]:
        op = Operation.of(task)
        ways: dict[str, list[Callable[[], _Way]]] = {
            "cudnn": [
                lambda: self._convolution_way(task, op),
                lambda: self._convolution_and_kernel(task, op),
            ],
            "cublaslt": [lambda: self._product_way(task, rows_of(op) or op)],
        }
        if not op.post_ops and not op.flag("has_bias"):
            del ways["cudnn"][1]
        elif _activation(op) not in ("", "relu") or (
            "add" in op.post_ops and op.inputs[0].dtype == "float32"
        ):
            ways["cudnn"].reverse()  # only slow engines support such epilogues
        return self._call(task, self._in_order(task, op, ways))

    def _in_order(
        self, task: Task, op: Operation, ways: dict[str, list[Callable[[], _Way]]]
    ) -> list[Callable[[], _Way]]:
        """The ways of all libraries that accept a task, the compiler's choice first."""
        target = named(architecture_of(self.plan.report))
        names = [c.name for c in candidates_for(task.kind, target) if not c.refuse(op, target)]
        names.sort(key=lambda name: name != task.attrs["implementation"])
        return [way for name in names for way in ways[name]]

    def _data_gradient(self, task: Task) -> Callable[[], None]:
        op = Operation.of(task)
        y, w, x = *task.inputs, task.outputs[0]

        def by_windows() -> _Way:
            weight, strides = self._channels_last_weights(w, task)
            call = self._dnn("data", task.attrs, x, replace(w, strides=strides), y)
            return _Way("cudnn", call, (self._aligned(x, task), weight, 0, 0, self._aligned(y, task)))

        rows = data_gradient_rows(op)
        ways: dict[str, list[Callable[[], _Way]]] = {
            "cudnn": [by_windows],
            "cublaslt": [lambda: self._matrix_way(task, rows, y, w, x)] if rows else [],
        }
        return self._call(task, self._in_order(task, op, ways))

    def _weight_gradient(self, task: Task) -> Callable[[], None]:
        op = Operation.of(task)
        x, dy = task.inputs
        rows = weight_gradient_rows(op)
        ways: dict[str, list[Callable[[], _Way]]] = {
            "cudnn": [
                lambda: self._weight_gradient_way(task),
                *([lambda: self._narrow_weight_gradient(task)] if _widens(task) else []),
            ],
            "cublaslt": [lambda: self._matrix_way(task, rows, dy, x, task.outputs[0])] if rows else [],
        }
        return self._call(task, self._in_order(task, op, ways))

    def _weight_gradient_way(self, task: Task, into: cuda.Memory | None = None) -> _Way:
        (x, y), w = task.inputs, task.outputs[0]
        result = self._aligned(w, task) if into is None else into.address
        typed = w if into is None else replace(w, dtype=x.dtype)
        call = self._dnn("weights", task.attrs, x, typed, y)
        return _Way("cudnn", call, (self._aligned(x, task), result, 0, 0, self._aligned(y, task)))

    def _narrow_weight_gradient(self, task: Task) -> _Way:
        """The library rounds the sums to the operands' type; a kernel then writes them as float32."""
        import tbe

        x, w = task.inputs[0], task.outputs[0]
        count = math.prod(w.shape)
        narrow = self.memory(count * numpy_dtype(x.dtype).itemsize, f"a gradient of {task.name}")
        way = self._weight_gradient_way(task, narrow)
        rounded = tbe.placeholder((count,), x.dtype)
        kernel = self.built([rounded], [tbe.cast(rounded, w.dtype)])
        way.after = self.launcher(kernel, [narrow.address, self._aligned(w, task)])
        return way

    def _matrix_way(self, task: Task, op: Operation, *views: View) -> _Way:
        """A gradient as a product of matrices: the same operands and result, reshaped."""
        sides = [self._matrix(v, ()) for v in (*op.inputs, *op.outputs)]
        call = self._library_call(
            "Product",
            "cublasLt",
            op.inputs[0].dtype,
            op.outputs[0].dtype,
            1,
            *sides,
            (),
            False,
            "",
        )
        a, b, y = (self._aligned(v, task) for v in views)
        return _Way("cublaslt", call, (a, b, 0, 0, y))

    def _dnn(
        self, direction: str, attrs: Mapping[str, Any], x: View, w: View, y: View, *epilogue: bool | str
    ) -> cuda.Convolution:
        """A convolution of cuDNN in one direction; the operands share one type, the result has its own."""
        result = {"forward": y, "data": x, "weights": w}[direction]
        operand = x if direction == "weights" else w
        call: cuda.Convolution = self._library_call(
            "Convolution",
            "cudnn",
            direction,
            operand.dtype,
            result.dtype,
            x.shape,
            _steps(x),
            w.shape,
            _steps(w),
            y.shape,
            _steps(y),
            attrs["strides"],
            attrs["dilations"],
            attrs["pads_begin"],
            attrs["pads_end"],
            *(epilogue or (False, False, "")),
        )
        return call

    def _convolution_way(self, task: Task, op: Operation, *, plain: bool = False) -> _Way:
        x, w, y = task.inputs[0], task.inputs[1], task.outputs[0]
        weight, strides = self._channels_last_weights(w, task)
        epilogue = (
            op.flag("has_bias") and not plain,
            "add" in op.post_ops and not plain,
            "" if plain else _activation(op),
        )
        call = self._dnn("forward", task.attrs, x, replace(w, strides=strides), y, *epilogue)
        return _Way("cudnn", call, (self._aligned(x, task), weight, *self._operands(task)))

    def _convolution_and_kernel(self, task: Task, op: Operation) -> _Way:
        """The convolution without its epilogue, which a generated kernel applies in place."""
        way = self._convolution_way(task, op, plain=True)
        y = task.outputs[0]
        order = (0, *range(2, len(y.shape)), 1) if y.strides[1] == 1 else tuple(range(len(y.shape)))
        dense = y.permute(order)
        if not dense.contiguous:
            raise UnsupportedTask("the result of a convolution has gaps")
        from ge.model.cuda.epilogue import epilogue  # needs the code generator

        inputs, outputs = epilogue(
            y.dtype, dense.shape, order.index(1), op.flag("has_bias"), "add" in op.post_ops, _activation(op)
        )
        _, _, bias, residual, result = way.operands
        operands = [operand for operand in (result, bias, residual) if operand]
        way.after = self.launcher(self.built(inputs, outputs), [*operands, result])
        return way

    def _attention(self, task: Task) -> Callable[[], None]:
        return self._call(task, [lambda: self._attention_way(task)])

    def _attention_way(self, task: Task) -> _Way:
        q, k, v = (_four(view) for view in task.inputs[:3])
        y, sums = _four(task.outputs[0]), task.outputs[1]
        mask = _four(task.inputs[3]) if len(task.inputs) > 3 else None
        wanted = self._is_read(sums)
        call = self._library_call(
            "Attention",
            "cudnn",
            q.dtype,
            q.shape,
            q.strides,
            k.shape,
            k.strides,
            v.shape,
            v.strides,
            y.shape,
            y.strides,
            "" if mask is None else mask.dtype,
            () if mask is None else mask.shape,
            () if mask is None else mask.strides,
            float(task.attrs["scale"]),
            bool(task.attrs["causal"]),
            wanted,
        )
        inputs = [self._aligned(view, task) for view in task.inputs]
        operands = (
            *inputs[:3],
            inputs[3] if mask is not None else 0,
            self._aligned(task.outputs[0], task),
        )
        return _Way("cudnn", call, (*operands, self._aligned(sums, task) if wanted else 0))

    # -- our own kernels ---------------------------------------------------------------------------------------

    def _stem(self, task: Task) -> Callable[[], None]:
        weights, bias = (self._constant(v) for v in task.inputs[1:])
        packed = own.pack_stem(weights), bias.astype(np.float32)
        return self._own(task, own.stem_launch(Operation.of(task)), task.inputs[:1], packed)

    def _bottleneck(self, task: Task) -> Callable[[], None]:
        multiprocessors = int(cuda.describe(self.device)["multiprocessors"])
        launch = own.bottleneck_launch(Operation.of(task), multiprocessors)
        packed = own.pack_bottleneck([self._constant(v) for v in task.inputs[2:]])
        return self._own(task, launch, task.inputs[:2], packed)

    def _attention_gradient(self, task: Task) -> Callable[[], None]:
        """From the gradient of the result, queries, keys and values; the weights are recomputed."""
        return self._own(task, own.attention_gradient_launch(Operation.of(task)), task.inputs[:4], ())

    def _own(
        self, task: Task, how: own.Launch, inputs: Sequence[View], weights: Sequence[np.ndarray]
    ) -> Callable[[], None]:
        """A launch with the addresses of inputs, packed weights and outputs, followed by numbers."""
        if how.file not in self.own_modules:
            self.own_modules[how.file] = cuda.Module(self.device, own.code(how.file))
        module, memory = self.own_modules[how.file], [self.keep(array) for array in weights]
        arguments = [
            *(self._aligned(v, task) for v in inputs),
            *(m.address for m in memory),
            *(self._aligned(v, task) for v in task.outputs),
            *how.numbers,
        ]
        return lambda: self.stream.launch(
            module, how.symbol, how.blocks, how.threads, self.addresses(arguments), how.shared
        )

    def _constant(self, view: View) -> np.ndarray:
        """A constant operand in the order of its view."""
        buffer = self.plan.buffers[view.buffer]
        assert buffer.kind == "constant", "the compiler folds no other weights"
        flat = self.plan.constants[buffer.index].reshape(-1)[view.offset :]
        return np.lib.stride_tricks.as_strided(flat, view.shape, [s * flat.itemsize for s in view.strides])

    def _is_read(self, view: View) -> bool:
        """True if any task, or the caller, reads a view's buffer; gradients of attention do not."""
        if self.plan.buffers[view.buffer].kind != "arena":
            return True
        tasks = (task for task in self.plan.tasks if task.kind != "attention_grad")
        return any(v.buffer == view.buffer for task in tasks for v in task.inputs)

    def _channels_last_weights(self, w: View, task: Task) -> tuple[_Operand, tuple[int, ...]]:
        """Constant weights in the order O, kernel, I, which tensor cores read; others unchanged."""
        buffer = self.plan.buffers[w.buffer]
        if buffer.kind != "constant":
            return self._aligned(w, task), w.strides
        moved = np.ascontiguousarray(np.moveaxis(self._constant(w), 1, -1))
        if w not in self.packed:
            self.packed[w] = self._upload(moved)
        inner = np.moveaxis(moved, -1, 1).strides
        return self.packed[w].address, tuple(s // moved.itemsize for s in inner)

    # -- candidates --------------------------------------------------------------------------------------------

    def _settle(self, call: _Call) -> None:
        """Select the candidate that was fastest when last timed, else the first that can be built."""
        known = self.tuning.choice(call.task)
        if known is not None:
            for candidate in call.candidates():
                if call.describe(candidate) == known and self._fits(call, candidate):
                    return
        for candidate in call.candidates():
            if self._fits(call, candidate):
                return
        causes = "; ".join(call.refused) or "the library builds none of its candidates"
        raise UnsupportedTask(f"{call.task.name}: {causes}")

    def _fits(self, call: _Call, candidate: tuple[int, int]) -> bool:
        """Choose a candidate if the library can build it in the memory that it may take."""
        if 0 <= call.prepare(candidate) <= _WORKSPACE_LIMIT:
            call.chosen = candidate
            return True
        return False

    def _workspace(self) -> cuda.Memory:
        most = max((call.prepare(call.chosen) for call in self.calls), default=0)
        return cuda.Memory(self.device, max(most, 1), f"the workspace of {self.plan.name}")

    def tune(self, seconds: float) -> None:
        """Time the candidates of every call and keep the fastest correct one; equal calls are timed once.

        The largest calls come first; calls beyond the time limit keep their candidates.
        """
        until = time.monotonic() + seconds
        known: dict[str, tuple[int, int]] = {}
        self.workspace = cuda.Memory(self.device, _WORKSPACE_LIMIT, f"the workspace of {self.plan.name}")
        for call in sorted(self.calls, key=lambda call: -call.task.flops):
            key = task_key(call.task)
            if key not in known:
                if time.monotonic() > until:
                    continue
                known[key] = self._fastest(call)
                self.tuning.keep(call.task, call.describe(known[key]))
            call.prepare(known[key])
            call.chosen = known[key]
        self.tuning.save()
        self.workspace = self._workspace()
        self.bindings.forget()
        for steps in steps_in(self.parts):
            steps.graphs.clear()
        self.bind_own()

    def _fastest(self, call: _Call) -> tuple[int, int]:
        """The fastest candidate whose results match the first one's, on random operands."""
        from ge.model.cuda.trial import Trial  # needs the code generator

        trial = Trial(self, call.task)
        call.enqueue(self)
        trial.keep()
        first, times = call.chosen, {}
        for candidate in call.candidates():
            times[candidate] = self._time(call, candidate, trial)
        call.chosen = first
        return min(times, key=times.__getitem__)

    def _time(self, call: _Call, candidate: tuple[int, int], trial: Trial) -> float:
        """Milliseconds; infinite for a candidate that cannot be built or is wrong."""
        if not 0 <= call.prepare(candidate) <= _WORKSPACE_LIMIT:
            return math.inf
        call.chosen = candidate
        try:
            trial.poison()
            call.enqueue(self)
            if not trial.agrees():
                self.wrong.append(f"{call.task.name}: {call.describe(candidate)}")
                return math.inf
            self.stream.begin_capture()
            for _ in range(_TIMED_LAUNCHES):
                call.enqueue(self)
            graph = cuda.Graph(self.stream)
            return min(self._times(lambda: graph.launch(self.stream), _REPEATS))
        except cuda.CudaError:
            return math.inf

    def _times(self, launch: Callable[[], object], repeats: int) -> list[float]:
        """The milliseconds of launches between two events."""
        begin, end = cuda.Event(self.device), cuda.Event(self.device)
        times = []
        for _ in range(repeats):
            begin.record(self.stream)
            launch()
            end.record(self.stream)
            end.synchronize()
            times.append(end.milliseconds_since(begin))
        return times

    # -- running -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def on(self, stream: cuda.Stream) -> Iterator[None]:
        """Run on a stream, after the previous run: both use the same arena."""
        if self.last not in (-1, stream.handle):
            stream.wait(self.done)
        self.stream = stream
        try:
            yield
        finally:
            self.done.record(stream)
            self.last, self.stream = stream.handle, self.own_stream

    def bind_own(self) -> None:
        """Bind inputs and outputs to the program's own memory."""
        self._bind(self.bindings.own())

    def _bind(self, binding: Binding) -> None:
        """Use the graphs of a binding; capture them if there are none."""
        self.binding = binding
        if binding in self.bindings:
            return
        stream, self.stream = self.stream, self.own_stream  # the default stream cannot be captured
        try:
            for part in self.parts:
                part.capture(self)
        finally:
            self.stream = stream
        for dropped in self.bindings.add(binding):
            for steps in steps_in(self.parts):
                steps.graphs.pop(dropped, None)

    def run_bound(self, given: Binding) -> dict[int, tuple[int, ...]]:
        """Run on the caller's memory; what cannot be bound is copied from and to the program's own memory."""
        inputs = list(given.inputs)
        for output, source in self.plan.donated:
            if inputs[source] != given.outputs[output]:  # the caller's input must not change
                self._staged(given.outputs[output], inputs[source], self.plan.inputs[source].desc.nbytes)
                inputs[source] = given.outputs[output]
        binding = self.bindings.choose(Binding(tuple(inputs), given.outputs))
        for port, bound, address in zip(self.plan.inputs, binding.inputs, inputs, strict=True):
            if address != bound:
                self._staged(bound, address, port.desc.nbytes)
        self._bind(binding)
        shapes = self.launch_checked()
        for port, bound, address in zip(self.plan.outputs, binding.outputs, given.outputs, strict=True):
            if address != bound:
                self._staged(address, bound, port.desc.nbytes)
        return shapes

    def _staged(self, to: int, source: int, nbytes: int) -> None:
        if nbytes:
            self.stream.copy(to, source, nbytes)
            self.copies.on_gpu += 1

    def feed(self, feeds: Sequence[np.ndarray]) -> None:
        """Copy host inputs to the bound memory."""
        for address, array in zip(self.binding.inputs, feeds, strict=True):
            self._upload_to(address, array)
            self.copies.fed_bytes += array.nbytes

    def fetch(self, results: Sequence[np.ndarray]) -> None:
        """Copy outputs from the bound memory to the host."""
        for address, array in zip(self.binding.outputs, results, strict=True):
            self._download(array, address)
            self.copies.fetched_bytes += array.nbytes

    @property
    def nodes(self) -> int:
        """The number of nodes in all graphs."""
        return sum(next(iter(part.graphs.values())).nodes for part in steps_in(self.parts) if part.graphs)

    def launch(self, feeds: Sequence[np.ndarray] | None = None) -> dict[int, tuple[int, ...]]:
        """Enqueue a run; with host parts, wait for what they need. They read the feeds directly where possible."""
        shapes: dict[int, tuple[int, ...]] = {}
        for part in self.parts:
            shapes |= part.launch(self, feeds)
        return shapes

    def launch_checked(self, feeds: Sequence[np.ndarray] | None = None) -> dict[int, tuple[int, ...]]:
        """Enqueue a run and wait for its checks; raises for invalid elements."""
        self.checks.begin()
        shapes = self.launch(feeds)
        self.done.record(self.stream)
        self.checks.end(self.done)
        return shapes

    def download(self, number: int, array: np.ndarray) -> None:
        """Copy a buffer of the plan to the host."""
        self._download(array, self._base(number))

    def upload(self, number: int, array: np.ndarray) -> None:
        """Copy a buffer of the plan to the GPU."""
        self._upload_to(self._base(number), array)

    def _base(self, number: int) -> int:
        """The address of a buffer of the plan in the current binding."""
        buffer = self.plan.buffers[number]
        if buffer.kind == "arena":
            return self.arena.address + buffer.offset
        if buffer.kind == "constant":
            return self.constants[buffer.index].address
        return (self.binding.inputs if buffer.kind == "input" else self.binding.outputs)[buffer.index]

    def seconds(self, repeats: int) -> float:
        return float(np.median(self._times(self.launch, repeats + 10)[10:])) / 1e3

    def profile(self, repeats: int) -> list[float]:
        """The seconds of each task in a separate graph; the time of a host part is divided among its tasks.

        The contents of host branches and loops count once; a loop inside a graph counts as a whole.
        """
        found: dict[int, float] = {}
        outside = (HostPart, Guard)  # parts that no graph has
        if any(isinstance(part, outside) for part in self.parts):
            runs = [self._part_times() for _ in range(repeats)]
            for part, times in zip(self.parts, zip(*runs, strict=True), strict=True):
                if isinstance(part, outside):
                    found |= {id(t): float(np.median(times)) / 1e3 / len(part.tasks) for t in part.tasks}
        for steps in steps_in(self.parts):
            found |= {id(step.task): self._step_seconds(step, repeats) for step in steps.steps}
        return [found.get(id(task), 0.0) for task in self.plan.tasks]

    def _part_times(self) -> list[float]:
        """The milliseconds of each part of a run: host parts read what earlier parts wrote."""
        return [self._times(functools.partial(part.launch, self, None), 1)[0] for part in self.parts]

    def _step_seconds(self, step: Step, repeats: int) -> float:
        launches = 1 if step.task.kind == "while" else _TIMED_LAUNCHES
        self.stream.begin_capture()
        for _ in range(launches):
            step.run()
        graph = cuda.Graph(self.stream)
        times = self._times(lambda: graph.launch(self.stream), repeats)
        return float(np.median(times)) / 1e3 / launches


def _check_architecture(plan: Plan, device: int) -> None:
    """Reject a GPU that is older than the plan's target."""
    wanted, found = architecture_of(plan.report), str(cuda.describe(device)["architecture"])
    if int(wanted.removeprefix("sm_")) > int(found.removeprefix("sm_")):
        raise GeError(
            "E10031",
            f"model {plan.name} is compiled for {wanted}, GPU {device} is {found}",
            remedy=f"compile it for {found}, or run it on a GPU of {wanted}",
        )


def _out_of_memory(plan: Plan, error: OutOfDeviceMemory) -> OutOfMemoryError:
    remedy = "a smaller batch, or a GPU with more memory"
    return out_of_memory(error, plan.report.get("peak", []), error.requested, error.available, remedy)


def _activation(op: Operation) -> str:
    return next((ACTIVATIONS[text] for text in op.post_ops if text != "add"), "")


def _widens(task: Task) -> bool:
    """True if the result of a task has a wider type than its operands."""
    return task.outputs[0].dtype != task.inputs[0].dtype


def _steps(view: View) -> tuple[int, ...]:
    """The strides of images or weights; axes of one element get dense channels-last strides if these fit.

    >>> _steps(View(0, "float16", (8, 4, 1, 1), (4, 1, 1, 1)))
    (4, 1, 4, 4)
    """
    order = (0, *range(2, len(view.shape)), 1)
    dense, step = [0] * len(order), 1
    for axis in reversed(order):
        dense[axis], step = step, step * view.shape[axis]
    steps = zip(view.shape, view.strides, dense, strict=True)
    return tuple(dense) if all(n == 1 or s == d for n, s, d in steps) else view.strides


def _four(view: View) -> View:
    """The view with two leading axes."""
    missing = 4 - len(view.shape)
    return replace(
        view, shape=(1,) * missing + view.shape, strides=(view.strides[0],) * missing + view.strides
    )


def _libraries() -> Any:
    """The classes of library calls; simulated with the simulated driver."""
    if not cuda.is_simulated():
        return cuda
    from ge.model.cuda import simulated  # needs the code generator

    return simulated


_BEFORE = {"cublasLt": (), "cudnn": ("nvrtc", "cublasLt", "cublas")}  # libraries that one loads by name


def _library(name: str) -> str:
    """The path of one of NVIDIA's libraries; loads its dependencies first."""
    if cuda.is_simulated():
        return ""
    for needed in _BEFORE[name]:
        try:
            ctypes.CDLL(cuda.library_path(needed), ctypes.RTLD_GLOBAL)
        except OSError as error:
            cause = f"NVIDIA's {needed} cannot be loaded ({error}); pip install tf-adapter[cuda]"
            raise UnsupportedTask(cause) from error
    return cuda.library_path(name)


def _at(address: int, nbytes: int) -> np.ndarray:
    """A view of host memory as bytes."""
    return (
        np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        if nbytes
        else np.empty(0, np.uint8)
    )


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
