"""GPUs: memory, streams, events, kernels and graphs, over the CUDA driver found at run time.

With `NPU_CUDA_DRIVER=simulated` the driver is simulated on the host; kernels are then those that
`tbe.cuda.build(simulated=True)` compiles.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

try:
    from npu_runtime._cuda import (
        Attention,
        Convolution,
        CudaError,
        CudaUnavailable,
        Event,
        Graph,
        Memory,
        Module,
        PinnedMemory,
        Product,
        Stream,
        Tensor,
        describe,
        device_count,
        gpu_calls,
        is_simulated,
        memory_info,
        set_memory_limit,
        synchronize,
        tensor_stream,
        to_dlpack,
        trim,
    )
except ImportError as error:
    raise ImportError(
        f"the runtime for GPUs could not be loaded ({error}). In a source tree, build it with 'make build'"
    ) from error

__all__ = [
    "Attention",
    "Convolution",
    "CudaError",
    "CudaUnavailable",
    "Event",
    "Graph",
    "Memory",
    "Module",
    "PinnedMemory",
    "Product",
    "Stream",
    "Tensor",
    "describe",
    "device_count",
    "gpu_calls",
    "is_simulated",
    "library_path",
    "memory_info",
    "set_memory_limit",
    "synchronize",
    "tensor_stream",
    "to_dlpack",
    "trim",
]


@functools.cache
def library_path(name: str) -> str:
    """Where one of NVIDIA's libraries is: in its Python packages, else wherever the system's loader finds it.

    Libraries that it loads by name itself must be in the process before: the caller loads them in this order.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob(f"*/lib/lib{name}.so.*")):
            return str(path)
    return f"lib{name}.so"
