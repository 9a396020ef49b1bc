"""Models on NVIDIA GPUs."""

from ge.model.cuda.program import CudaProgram

__all__ = ["CudaProgram"]
