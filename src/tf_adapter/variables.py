"""Variables: the NPU that each is on, and those of the host: their types, and functions that assign many at once.

TensorFlow refuses functions with handles of two custom devices. So the handles of all variables are of the first NPU,
and remember whose memory they are about.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context

__all__ = ["assign_function", "remembered_device", "remembering_device", "variable_types"]

_DEVICE = "_npu_device"


def remembering_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """Handles of variables, marked with the device of the scope that they were made in."""

    def make(*args: Any, **named: Any) -> Any:
        handle = original(*args, **named)
        place = context.context().device_name
        if context.executing_eagerly() and place and "NPU" in handle.device:
            setattr(handle, _DEVICE, place)
        return handle

    return make


def remembered_device(original: Any) -> Any:
    """The property `device` of variables: that of their memory."""

    def device(self: Any) -> Any:
        return getattr(self.handle, _DEVICE, None) or original.fget(self)

    return property(device, doc=original.__doc__)


def variable_types(function: str) -> list[int]:
    """The types of the variables among a function's inputs, as its operators have them; of no meaning for others."""
    from tf_adapter.functions import known

    graph = known(function).graph
    types = dict.fromkeys(graph.args, 0)
    for node in graph.nodes.values():
        if "Variable" in node.op or node.op.startswith("Resource"):
            kind = next((node.attr[a].type for a in ("dtype", "T") if a in node.attr), 0)
            types.update({name: kind for name, _ in node.inputs if not types.get(name, 1)})
    return list(types.values())


def assign_function(types: Sequence[int]) -> str:
    """The name of a function that assigns values of these types: its inputs are all variables, then all values.

    A call of it takes a tenth of the time of as many assignments.
    """
    name = f"npu_assign_{hashlib.blake2b(repr(list(types)).encode(), digest_size=16).hexdigest()}"
    running = context.context()
    if not running.has_function(name):
        running.add_function_def(_assignments(name, types))
    return name


def _assignments(name: str, types: Sequence[int]) -> function_pb2.FunctionDef:
    made = function_pb2.FunctionDef()
    made.signature.name = name
    made.signature.is_stateful = True
    for number in range(len(types)):
        made.signature.input_arg.add(name=f"variable_{number}", type=tf.resource.as_datatype_enum)
    for number, kind in enumerate(types):
        made.signature.input_arg.add(name=f"value_{number}", type=kind)
        node = made.node_def.add(name=f"assign_{number}", op="AssignVariableOp")
        node.input.extend([f"variable_{number}", f"value_{number}"])
        node.attr["dtype"].type = kind
        made.signature.control_output.append(node.name)
        made.control_ret[node.name] = node.name
    return made
