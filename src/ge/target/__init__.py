"""Targets: what the compiler knows of a device. Passes, placement and planning read it and ask nothing else."""

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
