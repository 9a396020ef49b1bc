"""Kernels for NVIDIA GPUs from the same expressions: thread mapping, PTX through LLVM, simulation on the host."""

from tbe.cuda.architectures import ARCHITECTURES, Architecture, architecture_of
from tbe.cuda.grid import Grid, Mapping, map_schedule
from tbe.cuda.kernel import GridKernel, build

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "Grid",
    "GridKernel",
    "Mapping",
    "architecture_of",
    "build",
    "map_schedule",
]
