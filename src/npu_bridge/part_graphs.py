"""Builds the graph of a part: its operations, and arguments for tensors and variables from outside."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import attr_value_pb2

from ge.parsers.tensorflow.tensor import CHECKED
from npu_bridge.candidates import CandidatePart
from npu_bridge.partition import ASSERT, ENDS, Partition, Region, is_free
from npu_bridge.variables import (
    is_update,
    read_resource,
    read_variable,
    type_of,
    updated_variables,
    variable_of,
)
from tf_adapter.graphs import ARGUMENT, FlatGraph, FlatNode, Ref

__all__ = ["DROPPED", "PartGraph"]

DROPPED = ("_class", "_output_shapes")  # attributes that are not copied with an operation


class PartGraph:
    """Builder of a part's graph; `wanted` are the fetched tensors."""

    def __init__(self, region: Region, cut: Partition, index: int, wanted: set[str]) -> None:
        self.region = region
        self.cut = cut
        self.wanted = wanted
        self.members = cut.parts[index]
        self.inside = set(self.members)
        self.written = {t.name for n in self.members for t in updated_variables(region.operations[n])}
        self.flat = FlatGraph(f"geop_{index}")
        self.taken: dict[str, tuple[str, Any]] = {}  # tensor name -> argument, tensor

    def candidate(self) -> CandidatePart:
        """Finish the graph as a candidate part."""
        controls: dict[str, None] = {}
        for name in self.members:
            operation = self.region.operations[name]
            inputs = [self._operand(operation, tensor) for tensor in operation.inputs]
            kept = [c for c in self.region.controls[name] if c in self.inside]
            if is_update(operation):
                kept += [t.op.name for t in operation.inputs if t.dtype._is_ref_dtype and is_update(t.op)]
            controls.update(dict.fromkeys(c for c in self.region.controls[name] if c not in self.inside))
            self.flat.nodes[name] = self._node(operation, inputs, kept)
        outputs = self._outputs()
        self.flat.results = [(t.op.name, t.value_index) for t in outputs]
        self.flat.effects = self._effects()
        written = frozenset(place for place, name in enumerate(self.taken) if name in self.written)
        return CandidatePart(self.flat, [t for _, t in self.taken.values()], outputs, list(controls), written)

    def _outputs(self) -> list[Any]:
        """Tensors that are read outside the part."""
        tensors = (t for name in self.members for t in self.region.operations[name].outputs)
        return [
            t
            for t in tensors
            if not t.dtype._is_ref_dtype
            and t.name not in self.region.fed
            and (t.name in self.wanted or self._leaves(t))
        ]

    def _leaves(self, tensor: Any) -> bool:
        readers = (c.name for c in tensor.consumers())
        return any(name in self.region.operations and name not in self.inside for name in readers)

    def _effects(self) -> list[str]:
        """Operations that must run even if their results are unused, and the ends of branches and loops."""
        ends: dict[str, list[str]] = {}
        for names in self.cut.units:
            inner = {producer for n in names for producer in self.region.inputs[n]}
            last = [n for n in names if self.region.operations[n].type in ENDS and n not in inner]
            ends.update(dict.fromkeys(names, last))
        effects = (name for name in self.members if _must_run(self.region.operations[name]))
        return list(dict.fromkeys(end for name in effects for end in ends.get(name) or [name]))

    # -- operations ------------------------------------------------------------------------------------------

    def _node(self, operation: Any, inputs: list[Ref], controls: list[str]) -> FlatNode:
        """Add an operation. Variables that the part only reads become tensors, with or without a handle."""
        node = _flat_node(operation, inputs, controls)
        reference = read_variable(operation)
        if reference is not None and reference.name in self.written:
            node.op, node.attr = "ReadVariableOp", {"dtype": node.attr["T"]}
        variable = read_resource(operation)
        if variable is not None and variable.name not in self.written:
            self._read_as_tensor(node, attr_value_pb2.AttrValue(type=type_of(variable).as_datatype_enum))
        return node

    def _read_as_tensor(self, node: FlatNode, kind: attr_value_pb2.AttrValue) -> None:
        """Replace a read of a variable by the equivalent operation on its value."""
        if node.op == "ReadVariableOp":
            node.op, node.attr = "Identity", {"T": kind}
            return
        indices = {"Tparams": kind, "Tindices": node.attr["Tindices"]}
        if node.op == "ResourceGatherNd":
            node.op, node.attr = "GatherNd", indices
            return
        batch, axis = node.attr["batch_dims"], f"{node.name}.axis"
        number = attr_value_pb2.AttrValue(tensor=tf.make_tensor_proto(int(batch.i), tf.int32))
        index = attr_value_pb2.AttrValue(type=tf.int32.as_datatype_enum)
        attrs = {"value": number, "dtype": index}
        self.flat.nodes[axis] = FlatNode(axis, "Const", [], [], attrs, (index.type,))
        node.op, node.inputs = "GatherV2", [*node.inputs, (axis, 0)]
        node.attr = {**indices, "Taxis": index, "batch_dims": batch}

    # -- what they read --------------------------------------------------------------------------------------

    def _operand(self, operation: Any, tensor: Any) -> Ref:
        """Operand of an operation; the variable itself if the operation updates it."""
        outside = tensor.name in self.region.fed or tensor.op.name in self.inside
        read = None if outside else read_variable(tensor.op)
        if read is not None and read.name in self.written:
            awaited = [n for n in self.region.before(operation.name) if n in self.inside]
            return self._value(read, awaited, f"{tensor.op.name}.{operation.name}")
        if not (tensor.dtype._is_ref_dtype and is_update(tensor.op)):
            return self._input(tensor)
        variable = variable_of(tensor)
        if is_update(operation):
            return self._input(variable)
        return self._value(variable, [tensor.op.name], f"{tensor.op.name}.value")

    def _value(self, variable: Any, awaited: list[str], name: str) -> Ref:
        """The value of a variable after other operations: a reference shows the variable's value at that time."""
        kind = type_of(variable).as_datatype_enum
        source = self._input(variable)
        attrs = {"dtype": attr_value_pb2.AttrValue(type=kind)}
        node = FlatNode(name, "ReadVariableOp", [source], awaited, attrs, (kind,))
        self.flat.nodes.setdefault(name, node)
        return name, 0

    def _input(self, tensor: Any) -> Ref:
        operation = tensor.op
        fed = tensor.name in self.region.fed
        if operation.name in self.inside and not fed:
            return operation.name, tensor.value_index
        if is_free(operation) and not fed:
            variable = read_variable(operation)
            inputs = [] if variable is None else [self._input(variable)]
            self.flat.nodes.setdefault(operation.name, _flat_node(operation, inputs, []))
            return operation.name, 0
        if tensor.name not in self.taken:
            name = f"argument.{len(self.taken)}"
            self.taken[tensor.name] = (name, tensor)
            kinds = (type_of(tensor).as_datatype_enum,)
            self.flat.nodes[name] = FlatNode(name, ARGUMENT, [], [], {}, kinds)
            self.flat.args.append(name)
        return self.taken[tensor.name][0], 0


def _must_run(operation: Any) -> bool:
    """True if an operation must be kept although its results are unused."""
    return operation.type == ASSERT or bool(updated_variables(operation))


def _flat_node(operation: Any, inputs: list[Ref], controls: list[str]) -> FlatNode:
    attrs = {k: v for k, v in operation.node_def.attr.items() if k not in DROPPED}
    if operation.type == ASSERT:
        attrs[CHECKED] = attr_value_pb2.AttrValue(b=True)
    types = tuple(t.dtype.base_dtype.as_datatype_enum for t in operation.outputs)
    return FlatNode(operation.name, operation.type, inputs, controls, attrs, types)
