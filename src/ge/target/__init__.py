"""Targets: the compiler's only description of a device, read by passes, placement and planning."""

from ge.target.costs import CostTable
from ge.target.cpu import NAMES, costs_file, fallback, host, named
from ge.target.target import Target, processor_of, runtime_loops

__all__ = [
    "NAMES",
    "CostTable",
    "Target",
    "costs_file",
    "fallback",
    "host",
    "named",
    "processor_of",
    "runtime_loops",
]
