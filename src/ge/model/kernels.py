"""Generated kernels in model files: uses the machine code that fits this machine and regenerates the rest."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import platform
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import npu_runtime
from ge.errors import GeError
from ge.ir.types import TensorDesc
from ge.plan import KernelImage, Plan, Task
from ge.target import cuda as gpu_targets
from ge.target import host, processor_of
from npu_runtime import environment

__all__ = ["add_portable", "machine", "no_expression", "regenerate", "select"]

HOST, PORTABLE = "host", "portable"
_MOST_THREADS = 2


@functools.cache
def machine() -> str:
    """A name for the processors that can run this machine's code."""
    flags = ""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    flags += " " + environment.choice("NPU_MAX_ISA", environment.INSTRUCTION_SETS)
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()
    return f"{HOST}:{platform.machine()}-{digest[:12]}"


def stored(image: KernelImage) -> dict[str, bytes]:
    """The machine code of a kernel, keyed by the names a file uses."""
    return {machine() if target == HOST else target: code for target, code in image.objects.items()}


def select(objects: dict[str, bytes]) -> dict[str, bytes]:
    """The usable machine code of a trusted file: this machine's, else none if it can be generated, else portable.

    >>> select({machine(): b"fast", "portable": b"slow"})
    {'host': b'fast'}
    """
    gpu = {target: code for target, code in objects.items() if target in gpu_targets.NAMES}
    if gpu:
        return gpu
    if machine() in objects:
        return {HOST: objects[machine()]}
    if importlib.util.find_spec("llvmlite") is None and PORTABLE in objects:
        return {PORTABLE: objects[PORTABLE]}
    return {}


def add_portable(plans: Iterable[Plan]) -> None:
    """Add the variant that runs on any processor of the architecture."""
    import tbe

    def build(item: tuple[KernelImage, tbe.Processor]) -> None:
        image, processor = item
        inputs, outputs = tbe.from_json(image.expression)
        if image.isolated:
            from ge import isolation

            kernel = isolation.build(inputs, outputs, PORTABLE, image.symbol, processor)
        else:
            kernel = tbe.build(inputs, outputs, PORTABLE, image.symbol, processor=processor)
        image.objects[PORTABLE] = kernel.object

    cpu = [plan for plan in plans if _target(plan) == HOST]
    missing = [
        (image, processor_of(plan.report))
        for plan in cpu
        for image in plan.kernels
        if PORTABLE not in image.objects and image.expression
    ]
    _each(missing, build)


def regenerate(plans: Sequence[Plan]) -> None:
    """Generate the kernels of an untrusted model from their expressions.

    1. An expression must parse and compile.
    2. Each task that runs the kernel has the kernel's inputs and outputs, element for element.
    3. The new kernel, not the file, determines how the work is divided.
    """
    uses = [(task, plan.kernels[task.attrs["kernel"]]) for plan in plans for task in _kernel_tasks(plan)]
    images = {id(image): image for _, image in uses}
    targets = {
        id(plan.kernels[t.attrs["kernel"]]): _target(plan) for plan in plans for t in _kernel_tasks(plan)
    }
    built = _each(list(images.values()), lambda image: _rebuild(image, targets[id(image)]))
    kernels = dict(zip(images, built, strict=True))
    for task, image in uses:
        inputs, outputs, kernel = kernels[id(image)]
        _match(task, "input", inputs, [v.desc for v in task.inputs])
        _match(task, "output", outputs, [v.desc for v in task.outputs])
        task.attrs["total"], task.attrs["grain"] = kernel.total, kernel.grain


def _target(plan: Plan) -> str:
    """The target of a plan's kernels."""
    return gpu_targets.architecture_of(plan.report) or HOST


def _kernel_tasks(plan: Plan) -> list[Task]:
    return [task for task in plan.tasks if task.kind == "kernel"]


def _rebuild(image: KernelImage, target: str) -> tuple[Any, Any, Any]:
    import tbe

    if not image.expression:
        raise no_expression(image)
    try:
        inputs, outputs = tbe.from_json(image.expression)
        kernel = tbe.build(inputs, outputs, target, image.symbol, processor=host().processor)
    except Exception as error:
        raise _refused(f"the expression of kernel {image.symbol[:80]} is not valid ({error})") from error
    image.objects = {target: kernel.object}
    image.symbol, image.total, image.grain = kernel.symbol, kernel.total, kernel.grain
    return inputs, outputs, kernel


def no_expression(image: KernelImage) -> GeError:
    """A TIK program has only machine code."""
    return _refused(
        f"{image.symbol[:80]} is the machine code of a TIK program for another machine, or not trusted"
    )


def _match(task: Task, side: str, tensors: Sequence[Any], descs: Sequence[TensorDesc]) -> None:
    expected = [(t.dtype, TensorDesc(tuple(t.shape), t.dtype).size) for t in tensors]
    given = [(d.dtype, d.size) for d in descs]
    if expected != given:
        raise _refused(f"the {side}s of task {task.name[:80]} do not match its kernel")


def _refused(cause: str) -> GeError:
    return GeError("E11007", cause, remedy="compile the original model with atc")


def _each(items: Sequence[Any], work: Any) -> list[Any]:
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(_MOST_THREADS, npu_runtime.num_threads())) as pool:
        return list(pool.map(work, items))
