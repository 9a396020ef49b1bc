"""Targets: what the compiler knows of a device. Passes, placement and planning read it and ask nothing else."""

from ge.target.cpu import host, named
from ge.target.target import Target

__all__ = ["Target", "host", "named"]
