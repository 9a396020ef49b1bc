"""Calls models with tensors that are already in GPU memory, by DLPack: PyTorch's, JAX's, CuPy's, or our own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ge.errors import GeError
from ge.ir.types import numpy_dtype
from ge.plan import Port
from npu_runtime import cuda

if TYPE_CHECKING:
    from ge.model.cuda.program import CudaProgram

__all__ = ["GpuArray", "LentMemory", "gpu_of", "run_arrays"]

_CUDA = 2  # DLPack's kDLCUDA
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}  # DLPack's type codes


def gpu_of(value: Any) -> int | None:
    """The GPU whose memory holds a tensor; None for anything else."""
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack_device__"):
        return None
    kind, index = value.__dlpack_device__()
    return int(index) if int(kind) == _CUDA else None


class GpuArray:
    """A dense tensor in GPU memory; other libraries import it by DLPack without a copy.

    >>> torch.from_dlpack(model(x))      # doctest: +SKIP
    """

    def __init__(self, device: int, shape: Sequence[int], dtype: str, name: str = "") -> None:
        self.device, self.shape, self.dtype = device, tuple(shape), dtype
        self.nbytes = math.prod(self.shape) * numpy_dtype(dtype).itemsize
        self._memory = cuda.Memory(device, max(self.nbytes, 1), name)

    @property
    def address(self) -> int:
        return self._memory.address

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **asked: Any) -> Any:
        """A DLPack capsule; the contents are complete, so that no stream has to wait."""
        return cuda.to_dlpack(
            LentMemory(self._memory, self.device),
            _CUDA,
            self.device,
            self.address,
            self.shape,
            *_code(self.dtype),
        )

    def numpy(self) -> np.ndarray:
        """A copy in host memory."""
        array = np.empty(self.shape, numpy_dtype(self.dtype))
        self._memory.download(cuda.Stream(self.device), array.reshape(-1).view(np.uint8))
        return array

    def __repr__(self) -> str:
        return f"GpuArray({self.dtype}{list(self.shape)} on GPU {self.device})"


class LentMemory:
    """Memory lent to a caller who uses it on other streams: the GPU may still use it when it is returned."""

    def __init__(self, memory: cuda.Memory, device: int) -> None:
        self.memory, self.device = memory, device

    def __del__(self) -> None:
        cuda.synchronize(self.device)


def run_arrays(program: CudaProgram, arrays: Sequence[Any], into: Sequence[Any] | None = None) -> list[Any]:
    """Run on tensors of one GPU and wait; results are new arrays there unless `into` is given.

    Host arrays among them are copied.
    """
    plan = program.plan
    device = next(gpu for gpu in map(gpu_of, arrays) if gpu is not None)
    if len(arrays) != len(plan.inputs) or (into is not None and len(into) != len(plan.outputs)):
        raise GeError(
            "E10020",
            f"model {plan.name} takes {len(plan.inputs)} inputs and fills {len(plan.outputs)} outputs, "
            f"got {len(arrays)} and {'none' if into is None else len(into)}",
        )
    stream = program.stream(device)
    inputs = [_taken(port, array, device, stream) for port, array in zip(plan.inputs, arrays, strict=True)]
    results: list[Any] = (
        [GpuArray(device, port.desc.shape, port.desc.dtype, port.name) for port in plan.outputs]
        if into is None
        else list(into)
    )
    outputs = [_taken(port, array, device, stream) for port, array in zip(plan.outputs, results, strict=True)]
    shapes = program.run_on_gpu([t.address for t in inputs], [t.address for t in outputs], stream)
    stream.synchronize()
    for index, shape in shapes.items():
        if tuple(results[index].shape) != tuple(shape):
            results[index] = _leading(results[index], shape, stream)
    return results


def _taken(port: Port, array: Any, device: int, stream: cuda.Stream) -> Any:
    """A tensor in the port's form; the stream waits for pending work on it."""
    found = gpu_of(array)
    if found is None:
        return _uploaded(port, array, device)
    taken = cuda.Tensor(array.__dlpack__(stream=stream.handle))
    dense = [math.prod(taken.shape[i + 1 :]) for i in range(len(taken.shape))]
    is_dense = all(n == 1 or s == d for n, s, d in zip(taken.shape, taken.strides, dense, strict=True))
    fits = tuple(taken.shape) == port.desc.shape and taken.type == _code(port.desc.dtype)
    if found != device or not fits or not is_dense:
        cause = f"tensor '{port.name}' is {taken.type}{list(taken.shape)} with strides {list(taken.strides)}"
        raise GeError(
            "E10020",
            f"{cause} on GPU {found}; the model takes a dense {port.desc} on GPU {device}",
            remedy="convert it first",
        )
    return taken


def _uploaded(port: Port, array: Any, device: int) -> GpuArray:
    given = np.ascontiguousarray(array)
    if given.dtype != numpy_dtype(port.desc.dtype) or given.shape != port.desc.shape:
        got = f"{given.dtype}[{','.join(map(str, given.shape))}]"
        raise GeError("E10020", f"input '{port.name}' is {got}, the model takes {port.desc}")
    made = GpuArray(device, port.desc.shape, port.desc.dtype, port.name)
    made._memory.upload(cuda.Stream(device), given.reshape(-1).view(np.uint8))
    return made


def _leading(array: Any, shape: Sequence[int], stream: cuda.Stream) -> Any:
    """The first elements of a dynamically shaped result."""
    if not isinstance(array, GpuArray):
        raise GeError("E10020", f"a result has the shape {list(shape)}, its tensor {list(array.shape)}")
    part = GpuArray(array.device, shape, array.dtype)
    if part.nbytes:
        stream.copy(part.address, array.address, part.nbytes)
        stream.synchronize()
    return part


def _code(dtype: str) -> tuple[int, int]:
    """DLPack's type code and bits of an element type.

    >>> _code("bfloat16"), _code("bool")
    ((4, 16), (6, 8))
    """
    if dtype == "bool":
        return _CODES["bool"], 8
    kind = dtype.rstrip("0123456789")
    return _CODES[kind], int(dtype.removeprefix(kind))
