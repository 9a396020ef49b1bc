"""Variables of the host, which those of several NPUs are: their types, and the functions that assign many at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.eager import context

__all__ = ["assign_function", "variable_types"]


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
