"""Random programs: made, run in every mode of a front door, compared with the framework, shrunk where they differ."""

from __future__ import annotations

import importlib

from ge.conformance.programs.door import Door

__all__ = ["DOORS", "load_door"]

# Front doors import this package, never the other way round: a door's module is loaded when it is asked for.
DOORS = {
    "onnx": "ge.conformance.programs.onnx_door",
    "tensorflow": "tf_adapter.conformance.random_programs",
    "tensorflow_v1": "npu_bridge.random_programs",
    "torch": "torchair.conformance.random_programs",
}


def load_door(name: str) -> Door:
    """The door of this name, or of this module's name."""
    module = importlib.import_module(DOORS.get(name, name))
    door: Door = module.door()
    return door
