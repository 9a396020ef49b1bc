"""GPUs: memory, streams, events, kernels and graphs, over the CUDA driver found at run time.

With `NPU_CUDA_DRIVER=simulated` the driver is simulated on the host; kernels are then those that
`tbe.cuda.build(simulated=True)` compiles.
"""

from __future__ import annotations

try:
    from npu_runtime._cuda import (
        CudaError,
        CudaUnavailable,
        Event,
        Graph,
        Memory,
        Module,
        Stream,
        describe,
        device_count,
        is_simulated,
        memory_info,
        set_memory_limit,
        trim,
    )
except ImportError as error:
    raise ImportError(
        f"the runtime for GPUs could not be loaded ({error}). In a source tree, build it with 'make build'"
    ) from error

__all__ = [
    "CudaError",
    "CudaUnavailable",
    "Event",
    "Graph",
    "Memory",
    "Module",
    "Stream",
    "describe",
    "device_count",
    "is_simulated",
    "memory_info",
    "set_memory_limit",
    "trim",
]
