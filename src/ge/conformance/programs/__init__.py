"""Differential fuzzing: compares random programs in every mode of a front door with the framework; shrinks failures."""

from __future__ import annotations

import importlib

from ge.conformance.programs.door import Door

__all__ = ["DOORS", "load_door"]

# Front doors import this package, so their modules are loaded on demand.
DOORS = {
    "onnx": "ge.conformance.programs.onnx_door",
    "tensorflow": "tf_adapter.conformance.random_programs",
    "tensorflow_v1": "npu_bridge.random_programs",
    "torch": "torchair.conformance.random_programs",
}


def load_door(name: str) -> Door:
    """The door with this name or module name."""
    module = importlib.import_module(DOORS.get(name, name))
    door: Door = module.door()
    return door
