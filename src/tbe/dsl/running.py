"""Runs operators on arrays: builds them for the arrays, loads the kernels into the runtime and calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npu_runtime.bounded import BoundedCache
from tbe import expr as e
from tbe.dsl.tracing import (
    compute_function,
    is_operator_class,
    load_operator,
    located,
    of_class,
    tik_program,
    trace,
)
from tbe.dtypes import DTYPES, numpy_dtype
from tbe.kernel import Kernel, build
from tbe.kernel_sequence import split_into_kernels
from tbe.serialize import fingerprint
from tbe.tik.expression import TikError

__all__ = ["Runner", "run_operator", "runner"]

_runners: BoundedCache[str, Runner] = BoundedCache(256)
_ALIGNMENT = 64


def run_operator(
    function: Callable[..., Any] | str | Path,
    *arrays: Any,
    outputs: Sequence[tuple[Sequence[int], str]] | None = None,
    **attrs: Any,
) -> Any:
    """Build an operator for arrays and run it on them.

    `function` is an operator function (which calls `build`), a compute function (which returns tensors), an operator
    class or the path of an operator file. An absent optional input is None, a dynamic input a list. `outputs` gives
    shapes and types of the results where the function needs to be told; attributes go by name. Gives one array, or a
    list of several.

    >>> import numpy as np
    >>> from tbe import dsl
    >>> def twice_compute(x, y, kernel_name="twice"):
    ...     return dsl.vmuls(x, 2)
    >>> run_operator(twice_compute, np.array([1.0, 2.0], np.float32))
    array([2., 4.], dtype=float32)
    """
    if isinstance(function, (str, Path)):
        function = load_operator(function).entry
    given = [_arrays(a) for a in arrays]
    places = [_places(a, n) for n, a in enumerate(given)]
    flat = [a for a in _flat(given) if a is not None]
    if (program := tik_program(function, places, outputs, attrs)) is not None:
        try:
            made = program.run(*flat)
        except TikError as error:
            raise located(error, function.__name__) from error
        return made[0] if len(made) == 1 else made
    results = _expressions(function, places, outputs, attrs)
    flat_places = [p for p in _flat(places) if p is not None]
    found = runner(flat_places, results)(*flat)
    return found[0] if len(found) == 1 else found


def _expressions(
    function: Callable[..., Any], places: Sequence[Any], outputs: Any, attrs: dict[str, Any]
) -> tuple[e.Tensor, ...]:
    if is_operator_class(function):
        return of_class(function, _flat(places), attrs)
    if not _is_compute(function):
        return trace(function, places, outputs, attrs)
    from tbe.dsl.tracing import Signature, _guess, _results, description

    if outputs is not None:
        return compute_function(function, places, outputs, attrs)
    signature = Signature.of(function, len(places), None, attrs)
    described = _guess(places, len(signature.outputs))
    for _ in range(2):
        from tbe.dsl.tensor import lift

        try:
            result = function(**signature.arguments([lift(p, "input") for p in places], described, attrs))
        except Exception as error:
            raise located(error, function.__name__) from error
        results = _results(result, function.__name__)
        found = [description(t.shape, t.dtype) for t in results]
        if len(found) != len(described) or found == described:
            break
        described = found
    return tuple(results)


def _is_compute(function: Callable[..., Any]) -> bool:
    return getattr(function, "__name__", "").endswith("_compute")


def _arrays(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_arrays(v) for v in value]
    return None if value is None else np.asarray(value, order="C")


def _places(value: Any, number: int) -> Any:
    if isinstance(value, list):
        return [_places(v, number) for v in value]
    return None if value is None else e.placeholder(value.shape, value.dtype.name, f"x{number}")


def _flat(values: Sequence[Any]) -> list[Any]:
    return [x for v in values for x in (_flat(v) if isinstance(v, list) else [v])]


def runner(inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor]) -> Runner:
    """The program that computes `outputs`, made once for each structure."""
    key = fingerprint(inputs, outputs)
    found = _runners.get(key)
    return found if found is not None else _runners.put(key, Runner(inputs, outputs))


def aligned_empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array that starts at a multiple of 64 bytes, as kernels that write past the caches want it."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)


class Runner:
    """An expression as a program of the runtime; calling it takes and gives arrays."""

    def __init__(
        self, inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor], kernels: Sequence[Kernel] | None = None
    ) -> None:
        import npu_runtime

        self.outputs = [(t.shape, numpy_dtype(t.dtype)) for t in outputs]
        self.parts = split_into_kernels(inputs, outputs, npu_runtime.num_threads())
        self.kernels = list(kernels or (build(s.inputs, s.outputs, plan=s.plan) for s in self.parts.steps))
        self.program = npu_runtime.Program("operator")
        self._assemble(npu_runtime, len(inputs))

    def _assemble(self, rt: Any, count: int) -> None:
        values, program = self.parts.values, self.program
        results: dict[int, int] = {}  # value -> the program output it is
        copies: list[tuple[int, int]] = []  # (value, further program output that it is)
        for number, value in enumerate(self.parts.outputs):
            if value in results:
                copies.append((value, number))
            else:
                results[value] = number
        offset, buffers = 0, {}
        for value, (shape, dtype) in enumerate(values):
            nbytes = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].size
            if value < count:
                buffers[value] = program.input(value, nbytes)
            elif value in results:
                buffers[value] = program.output(results[value], nbytes)
            else:
                buffers[value] = program.arena(offset, nbytes)
                offset += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        for step, kernel in zip(self.parts.steps, self.kernels, strict=True):
            handle = rt.load_object(kernel.object, kernel.symbol)
            views = [[self._view(buffers[v], v) for v in side] for side in (step.reads, step.writes)]
            attrs = {"kernel": handle, "total": kernel.total, "grain": kernel.grain}
            program.task("kernel", kernel.symbol, views[0], views[1], attrs)
        for value, number in copies:
            shape, dtype = values[value]
            target = program.output(number, int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].size)
            program.task("copy", "copy", [self._view(buffers[value], value)], [self._view(target, value)], {})
        program.finalize(offset)

    def _view(self, buffer: int, value: int) -> tuple[Any, ...]:
        shape, dtype = self.parts.values[value]
        strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
        return (buffer, dtype, tuple(map(int, shape)), tuple(strides), 0)

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        results = [aligned_empty(shape, dtype) for shape, dtype in self.outputs]
        self.into(arrays, results)
        return results

    def into(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Compute into given arrays."""
        self.program.run(list(arrays), list(results))
