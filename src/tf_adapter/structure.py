"""Loops and branches that contain host operators.

At the top of a function the device runs them itself: every turn is a call of the body, a function like any other, with
its variables in place; nothing goes back to Python in between. Those inside of something that TensorFlow runs (a
dataset that calls functions, say) stay with it: a body keeps its host nodes, and each row of NPU nodes between them
becomes one NpuGraph operation, which is compiled for the shapes it meets. Variables are read and written around it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import replace

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context

from ge.ir.types import TENSORS
from ge.parsers.tensorflow.convert import Refusal
from tf_adapter import partition
from tf_adapter.graphs import ARGUMENT, FlatGraph, FlatNode, Functions, Ref, called_functions, read_function
from tf_adapter.options import options
from tf_adapter.partition import HEAVY, STRUCTURE
from tf_adapter.randomness import COUNTED

__all__ = ["Place", "body", "by_the_device", "called_by", "follows_caller", "rewritten", "worthwhile"]

# Operators of the host that call functions: loops and branches, and loops over datasets.
_CALLERS = STRUCTURE | {"ReduceDataset", "ScanDataset", "ExperimentalScanDataset"}
_serial = itertools.count(1)


_LOOPS = frozenset({"While", "StatelessWhile"})
_CHOICES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_DECIDING = (tf.bool.as_datatype_enum, tf.int32.as_datatype_enum)  # types of conditions that the device reads


def by_the_device(graph: FlatGraph, functions: Functions, refused: Collection[str]) -> frozenset[str]:
    """The loops and branches among the refused nodes that the device runs, calling their functions."""
    return frozenset(
        name
        for name in refused
        if graph.nodes[name].op in STRUCTURE and _callable(graph, graph.nodes[name], functions)
    )


def _callable(graph: FlatGraph, node: FlatNode, functions: Functions) -> bool:
    """True if a loop or branch is worth calling from here and all its operands can cross."""
    if not any(_heavy(name, functions, set()) for name in called_functions(node.op, node.attr)):
        return False
    constants = (graph.nodes[n] for n, _ in node.inputs if graph.nodes[n].op == "Const")
    if any(tf.dtypes.as_dtype(c.types[0]).name not in TENSORS for c in constants):
        return False
    if node.op in _LOOPS:
        condition = functions[node.attr["cond"].func.name].signature
        return [a.type for a in condition.output_arg] == [_DECIDING[0]]
    return graph.type_of(node.inputs[0]) in _DECIDING


def called_by(node: FlatNode) -> tuple[str, ...]:
    """What a loop (its condition, its body) or a branch (for 0 or false, for 1 or true, ...) calls."""
    if node.op in _LOOPS:
        return node.attr["cond"].func.name, node.attr["body"].func.name
    if node.op in ("If", "StatelessIf"):
        return node.attr["else_branch"].func.name, node.attr["then_branch"].func.name
    return tuple(f.name for f in node.attr["branches"].list.func)


def worthwhile(graph: FlatGraph, functions: Functions) -> bool:
    """Whether loops or branches of a graph hold work that is worth a crossing."""
    return any(
        _heavy(name, functions, set())
        for node in graph.nodes.values()
        if node.op in _CALLERS
        for name in called_functions(node.op, node.attr)
    )


def follows_caller(graph: FlatGraph, functions: Functions) -> bool:
    """Whether such loops or branches run on the NPU that calls, for the program names none."""
    unplaced = {name: node for name, node in graph.nodes.items() if node.npu is None}
    return worthwhile(replace(graph, nodes=unplaced), functions)


def _heavy(name: str, functions: Functions, seen: set[str]) -> bool:
    if name in seen:
        return False
    seen.add(name)
    definition = functions.find(name)
    if definition is None:
        return False
    return any(
        node.op in HEAVY - STRUCTURE
        or any(_heavy(called, functions, seen) for called in called_functions(node.op, node.attr))
        for node in definition.node_def
    )


class Place:
    """Where the parts of a rewritten function run: on an NPU of this process."""

    device = ""  # of the operations that run the parts; empty: that of their caller

    def __init__(self, npu: int) -> None:
        self.npu = npu

    def of(self, node: FlatNode) -> Place:
        """The place of the functions that a node calls."""
        return self if node.npu in (None, self.npu) else Place(node.npu)

    def part(self, graph: FlatGraph, functions: Functions) -> dict[str, attr_value_pb2.AttrValue]:
        """The attributes of an NpuGraph operation that say what it runs."""
        from tf_adapter.parts import register_part

        number = register_part(graph, functions, options.compile_options(), npu=self.npu)
        return {"graph": attr_value_pb2.AttrValue(i=number)}

    def read(self, name: str, functions: Functions) -> FlatGraph:
        """A function to rewrite."""
        return read_function(name, functions)

    def host_nodes(self, graph: FlatGraph, functions: Functions) -> dict[str, Refusal]:
        """The nodes of a body that the host runs."""
        refused = partition.host_nodes(graph, functions, ())
        why = "its state is the host's inside loops and branches"
        refused.update({n.name: Refusal(n.op, why) for n in graph.nodes.values() if n.op in COUNTED})
        return refused


def rewritten(graph: FlatGraph, functions: Functions, place: Place) -> FlatGraph:
    """A graph for the host whose loops and branches use the NPU where that is worth it."""
    nodes = {}
    for node in graph.nodes.values():
        nodes[node.name] = _with_parts(node, functions, place) if node.op in _CALLERS else node
    return replace(graph, nodes=nodes)


def _with_parts(node: FlatNode, functions: Functions, place: Place) -> FlatNode:
    """A loop or branch that calls rewritten bodies."""
    attr = dict(node.attr)
    for key, value in node.attr.items():
        changed = attr_value_pb2.AttrValue()
        changed.CopyFrom(value)
        kind = value.WhichOneof("value")
        called = [changed.func] if kind == "func" else changed.list.func if kind == "list" else []
        for function in called:
            if _heavy(function.name, functions, set()):  # else nothing in it is worth a crossing
                function.name = body(function.name, functions, place.of(node))
        attr[key] = changed
    return replace(node, attr=attr)


def body(name: str, functions: Functions, place: Place) -> str:
    """The function to call in place of one: itself where it has no part for the NPU."""
    graph = place.read(name, functions)
    if partition.old_control_flow(graph):
        return name
    done = partition.cut(graph, place.host_nodes(graph, functions))
    if not any(step.on_npu for step in done.steps) and not worthwhile(graph, functions):
        return name
    made = _Joiner(graph, functions, done, place).join()
    made_name = f"{name}_npu_{next(_serial)}"
    context.context().add_function_def(made.function_def(functions, made_name))
    return made_name


class _Joiner:
    """Joins the steps of a body again: host nodes as they are, an NPU step as one node."""

    def __init__(self, graph: FlatGraph, functions: Functions, done: partition.Cut, place: Place) -> None:
        self.graph = graph
        self.functions = functions
        self.done = done
        self.place = place
        self.made = FlatGraph(graph.name, args=list(graph.args))
        for arg in graph.args:
            self.made.nodes[arg] = graph.nodes[arg]
        self.results: list[list[Ref]] = []  # of each step

    def join(self) -> FlatGraph:
        for index, step in enumerate(self.done.steps):
            given = [self._ref(source) for source in step.sources]
            self.results.append(self._npu(index, step, given) if step.on_npu else self._host(step, given))
        self.made.results = [self._ref(source) for source in self.done.sources]
        return self._ordered()

    def _ref(self, source: partition.Source) -> Ref:
        kind, first, second = source
        return (self.graph.args[first], 0) if kind == "input" else self.results[first][second]

    def _npu(self, index: int, step: partition.Step, given: list[Ref]) -> list[Ref]:
        name = f"npu_part_{index}"
        types = tuple(step.graph.type_of(ref) for ref in step.graph.results)
        attr = {
            "Tin": _types(self.made.type_of(ref) for ref in given),
            "Tout": _types(types),
            **self.place.part(step.graph, self.functions),
        }
        self.made.nodes[name] = FlatNode(name, "NpuGraph", given, [], attr, types, self.place.device)
        return [(name, i) for i in range(len(types))]

    def _host(self, step: partition.Step, given: list[Ref]) -> list[Ref]:
        """The nodes of a host step, their inputs bound to what stands for them here."""
        bound = dict(zip(step.graph.args, given, strict=True))
        for node in rewritten(step.graph, self.functions, self.place).nodes.values():
            if node.op != ARGUMENT:
                inputs = [bound.get(n, (n, i)) for n, i in node.inputs]
                self.made.nodes.setdefault(node.name, replace(node, inputs=inputs))
        return [bound.get(n, (n, i)) for n, i in step.graph.results]

    def _ordered(self) -> FlatGraph:
        """The order of effects as the body has it."""
        cutter = partition.effects_order(self.graph)
        effects = []
        for name, before in cutter.items():
            if name in self.made.nodes:
                node = self.made.nodes[name]
                node.controls = [n for n in sorted(before) if n in self.made.nodes]
                effects.append(name)
        self.made.effects = [e for e in effects if e in self.made.nodes]
        return self.made


def _types(numbers: Iterable[int]) -> attr_value_pb2.AttrValue:
    return attr_value_pb2.AttrValue(list=attr_value_pb2.AttrValue.ListValue(type=[*numbers]))
