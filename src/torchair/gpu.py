"""CUDA tensors: programs for the GPU they are on, in PyTorch's memory and on PyTorch's current stream.

Results come from PyTorch's caching allocator and nothing is copied. Tensors of the host among them, such as numbers
that PyTorch keeps in tensors, are copied to the GPU first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import ge
from ge.errors import GeError, OutOfMemoryError
from ge.options import CompileOptions
from ge.target import cuda as gpu_targets

if TYPE_CHECKING:
    from npu_runtime import cuda

__all__ = ["Gpu", "gpu_of", "options_for"]

_make_strided: Any = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]

Runner = Callable[[Sequence[int], Sequence[int]], Any]


def gpu_of(values: Iterable[Any]) -> Gpu | None:
    """The GPU that tensors are on; None where they are the host's. Raises for tensors of several GPUs.

    >>> gpu_of([torch.ones(2), 3]) is None
    True
    """
    found = {
        t.device.index or 0
        for value in values
        for t in (value if isinstance(value, (list, tuple)) else (value,))
        if isinstance(t, torch.Tensor) and t.device.type == "cuda"
    }
    if len(found) > 1:
        raise GeError(
            "E10010",
            f"tensors of the GPUs {', '.join(map(str, sorted(found)))} are in one graph",
            remedy="one graph runs on one GPU; move them to the same device",
        )
    return Gpu(found.pop()) if found else None


def options_for(options: CompileOptions, gpu: Gpu | None) -> CompileOptions:
    """The options with the target that the tensors' memory asks for."""
    if gpu is None or options.target.kind == "cuda":
        return options
    return replace(options, target=gpu_targets.present(gpu.index))


@dataclass(frozen=True)
class Gpu:
    """A GPU as programs of PyTorch's graphs use it."""

    index: int

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index)

    def guard(self) -> Any:
        """The GPU as PyTorch's current one, and the one before again in the end."""
        return torch.cuda._DeviceGuard(self.index)

    def stream(self) -> cuda.Stream:
        """PyTorch's current stream."""
        return _borrowed(self.index, torch._C._cuda_getCurrentRawStream(self.index))

    def make(self, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor with undefined contents, of PyTorch's allocator; within the guard."""
        made: torch.Tensor = _make_strided(shape, strides, dtype)
        return made

    def take(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in the memory of this GPU."""
        return tensor if tensor.device.type == "cuda" else tensor.to(self.device)

    def runner(self, model: ge.Model) -> Runner:
        """What runs a model on addresses of the GPU's memory, within the guard."""
        run = model.program.run_on_gpu

        def on_stream(inputs: Sequence[int], outputs: Sequence[int]) -> Any:
            stream = self.stream()
            try:
                return run(inputs, outputs, stream)
            except OutOfMemoryError:  # PyTorch keeps what it frees
                torch.cuda.empty_cache()
                return run(inputs, outputs, stream)

        return on_stream


@functools.lru_cache(maxsize=256)
def _borrowed(device: int, handle: int) -> cuda.Stream:
    from npu_runtime import cuda

    return cuda.Stream.borrowed(device, handle)
