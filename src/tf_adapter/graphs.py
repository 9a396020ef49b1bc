"""TensorFlow functions as flat graphs: read, inlined, cut into pieces, written back.

A `FlatGraph` has every call inlined; branches and loops keep their functions by name. Outputs are referred to
by (node, index), whatever the operator calls them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from tensorflow.core.framework import attr_value_pb2, function_pb2, graph_pb2, op_def_pb2, types_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.versions import GRAPH_DEF_VERSION

from ge.hybrid import in_order

__all__ = [
    "ARGUMENT",
    "FlatGraph",
    "FlatNode",
    "Functions",
    "Ref",
    "called_functions",
    "is_stateful",
    "read_function",
    "settle",
]

Ref = tuple[str, int]
"""A node's name and the index of one of its outputs."""

ARGUMENT = "_Arg"
CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
IMPLEMENTS = "_implements"
_COLOCATION = "_class"
_MAX_DEPTH = 64
_RESOURCE = types_pb2.DT_RESOURCE


@dataclass(slots=True)
class FlatNode:
    """A node with its inputs resolved."""

    name: str
    op: str
    inputs: list[Ref]
    controls: list[str]
    attr: dict[str, attr_value_pb2.AttrValue]
    types: tuple[int, ...]  # element types of its outputs (DataType numbers)
    device: str = ""
    npu: int | None = None  # the NPU that the program names for it


_API, _DEVICE = "api_implements", "api_preferred_device"


def _npu_of(device: str) -> int | None:
    """The number of the NPU that a node is placed on.

    >>> _npu_of("/job:localhost/replica:0/task:0/device:NPU:2"), _npu_of("/device:CPU:0")
    (2, None)
    """
    _, found, number = device.rpartition(":NPU:")
    return int(number) if found and number.isdecimal() else None


def _operands(function: function_pb2.FunctionDef) -> list[list[int]]:
    return [[a.type for a in side] for side in (function.signature.input_arg, function.signature.output_arg)]


class Functions:
    """The functions that the eager context knows, by name, and those added here.

    Of functions that implement the same thing for several devices, the one for the CPU is taken, as TensorFlow's
    optimizer does there: the others may draw other random numbers.
    """

    def __init__(self, given: Iterable[function_pb2.FunctionDef] = ()) -> None:
        self._known = {f.signature.name: f for f in given}
        self._chosen: dict[str, function_pb2.FunctionDef] = {}

    def find(self, name: str) -> function_pb2.FunctionDef | None:
        """A function's definition; None when there is none of this name."""
        if name not in self._chosen:
            found = self._given(name)
            if found is None:
                return None
            self._chosen[name] = self._for_cpu(found)
        return self._chosen[name]

    def _given(self, name: str) -> function_pb2.FunctionDef | None:
        if name not in self._known:
            ctx = context.context()
            if not ctx.has_function(name):
                return None
            self._known[name] = ctx.get_function_def(name)
        return self._known[name]

    def _for_cpu(self, default: function_pb2.FunctionDef) -> function_pb2.FunctionDef:
        if _API not in default.attr or default.attr[_DEVICE].s == b"CPU":
            return default
        for name in (*list(self._known), *context.context().list_function_names()):
            other = self._given(name)
            if other is None or _API not in other.attr or other.attr[_API].s != default.attr[_API].s:
                continue
            if other.attr[_DEVICE].s == b"CPU" and _operands(other) == _operands(default):
                chosen = function_pb2.FunctionDef()
                chosen.CopyFrom(other)
                chosen.signature.name = default.signature.name
                return chosen
        return default

    def __getitem__(self, name: str) -> function_pb2.FunctionDef:
        found = self.find(name)
        if found is None:
            raise KeyError(f"TensorFlow knows no function '{name}'")
        return found

    def signature(self, op: str) -> op_def_pb2.OpDef:
        """The operator's or function's prototype."""
        found = op_def_registry.get(op)
        return found if found is not None else self[op].signature

    def reached(self, graph: FlatGraph) -> list[function_pb2.FunctionDef]:
        """All functions that the nodes of a graph call, directly or not."""
        found: dict[str, function_pb2.FunctionDef] = {}
        todo = [name for node in graph.nodes.values() for name in called_functions(node.op, node.attr)]
        while todo:
            name = todo.pop()
            definition = self.find(name) if name not in found else None
            if definition is None:
                continue
            found[name] = definition
            for node in definition.node_def:
                todo += called_functions(node.op, node.attr)
        return list(found.values())


def called_functions(op: str, attr: Mapping[str, attr_value_pb2.AttrValue]) -> list[str]:
    """Names of the functions that a node names, by attribute; its own operator may be one of them.

    The order of attributes in a message is another in every process.
    """
    names = [op] if op_def_registry.get(op) is None else []
    for key in sorted(attr):
        value = attr[key]
        kind = value.WhichOneof("value")
        if kind == "func":
            names.append(value.func.name)
        elif kind == "list":
            names += [f.name for f in value.list.func]
    return names


def is_stateful(op: str) -> bool:
    """Whether TensorFlow says that running this operator twice is not running it once."""
    found = op_def_registry.get(op)
    return bool(found is None or found.is_stateful)


@dataclass
class FlatGraph:
    """Nodes with arguments and results. `effects` run although nothing reads their outputs."""

    name: str
    nodes: dict[str, FlatNode] = field(default_factory=dict)
    args: list[str] = field(default_factory=list)
    results: list[Ref] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)

    def type_of(self, ref: Ref) -> int:
        """The element type of a tensor (a DataType number)."""
        return self.nodes[ref[0]].types[ref[1]]

    def refused(self, reason: str, node: str = "") -> dict[str, str]:
        """What an error keeps on the host, with its reason: the node that it names, else every node."""
        names = [n.name for n in self.nodes.values() if n.op != ARGUMENT]
        return dict.fromkeys([node] if node in names else names, reason)

    def pruned(self) -> FlatGraph:
        """The graph without nodes that neither results nor effects need; arguments all stay."""
        todo = [*(n for n, _ in self.results), *self.effects]
        seen = set(todo)
        while todo:
            node = self.nodes[todo.pop()]
            for name in (*(n for n, _ in node.inputs), *node.controls):
                if name not in seen:
                    seen.add(name)
                    todo.append(name)
        kept = {k: n for k, n in self.nodes.items() if k in seen or n.op == ARGUMENT}
        return FlatGraph(self.name, kept, list(self.args), list(self.results), list(self.effects))

    def order(self, controls: Callable[[FlatNode], Iterable[str]] = lambda n: n.controls) -> list[str]:
        """All nodes, dependencies first."""

        def before(name: str) -> Iterable[str]:
            node = self.nodes[name]
            return (*(i for i, _ in node.inputs), *controls(node))

        return in_order(self.nodes, before)

    def consumers(self) -> dict[str, list[str]]:
        """Who reads the outputs of each node."""
        found: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for name, _ in node.inputs:
                found[name].append(node.name)
        return found

    def graph_def(self, functions: Functions) -> graph_pb2.GraphDef:
        """As a GraphDef whose arguments are placeholders, with the functions its nodes name."""
        graph = graph_pb2.GraphDef()
        graph.versions.producer = GRAPH_DEF_VERSION
        for node in self.nodes.values():
            made = graph.node.add(name=node.name, op="Placeholder" if node.op == ARGUMENT else node.op)
            made.input.extend(f"{n}:{i}" if i else n for n, i in node.inputs)
            made.input.extend(f"^{n}" for n in dict.fromkeys(node.controls))
            if node.op == ARGUMENT:
                made.attr["dtype"].type = node.types[0]
            else:
                for key, value in node.attr.items():
                    made.attr[key].CopyFrom(value)
        for definition in functions.reached(self):
            graph.library.function.add().CopyFrom(definition)
        return graph

    def function_def(self, functions: Functions, name: str = "") -> function_pb2.FunctionDef:
        """As a function definition."""
        made = function_pb2.FunctionDef()
        made.signature.name = name or self.name
        names = _Names(functions)
        for index, arg in enumerate(self.args):
            made.signature.input_arg.add(name=f"arg{index}", type=self.nodes[arg].types[0])
            names.args[arg] = f"arg{index}"
        for node in self.nodes.values():
            if node.op != ARGUMENT:
                self._write(made, node, names)
        for index, ref in enumerate(self.results):
            made.signature.output_arg.add(name=f"result{index}", type=self.type_of(ref))
            made.ret[f"result{index}"] = names.reference(self, ref)
        for effect in self.effects:
            if self.nodes[effect].op != ARGUMENT:
                made.control_ret[effect] = effect
                made.signature.control_output.append(effect)
        made.signature.is_stateful = any(
            is_stateful(n.op) for n in self.nodes.values() if n.op not in (ARGUMENT, "NoOp")
        )
        return made

    def _write(self, made: function_pb2.FunctionDef, node: FlatNode, names: _Names) -> None:
        written = made.node_def.add(name=node.name, op=node.op, device=node.device)
        written.input.extend(names.reference(self, ref) for ref in node.inputs)
        written.input.extend(f"^{n}" for n in dict.fromkeys(node.controls) if n not in names.args)
        for key, value in node.attr.items():
            written.attr[key].CopyFrom(value)


class _Names:
    """What a function definition calls the outputs of its nodes."""

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        self.args: dict[str, str] = {}
        self._outputs: dict[str, list[str]] = {}

    def reference(self, graph: FlatGraph, ref: Ref) -> str:
        name, index = ref
        if name in self.args:
            return self.args[name]
        if name not in self._outputs:
            node = graph.nodes[name]
            signature = self.functions.signature(node.op)
            self._outputs[name] = [
                f"{name}:{arg.name}:{i}"
                for arg in signature.output_arg
                for i in range(len(_types(arg, node.attr)))
            ]
        return self._outputs[name][index]


def _types(arg: op_def_pb2.OpDef.ArgDef, attr: Mapping[str, attr_value_pb2.AttrValue]) -> tuple[int, ...]:
    """The element types of the tensors that an argument stands for."""
    if arg.type_list_attr:
        return tuple(attr[arg.type_list_attr].list.type)
    one = arg.type if not arg.type_attr else attr[arg.type_attr].type
    return (one,) * (int(attr[arg.number_attr].i) if arg.number_attr else 1)


def output_types(
    functions: Functions, op: str, attr: Mapping[str, attr_value_pb2.AttrValue]
) -> tuple[int, ...]:
    """The element types of a node's outputs."""
    signature = functions.signature(op)
    return tuple(t for arg in signature.output_arg for t in _types(arg, _with_defaults(signature, attr)))


def _with_defaults(
    signature: op_def_pb2.OpDef, attr: Mapping[str, attr_value_pb2.AttrValue]
) -> Mapping[str, attr_value_pb2.AttrValue]:
    missing = [a for a in signature.attr if a.name not in attr and a.HasField("default_value")]
    return {**attr, **{a.name: a.default_value for a in missing}} if missing else attr


def read_function(name: str, functions: Functions | None = None, *, places: bool = False) -> FlatGraph:
    """A function of the eager context as a flat graph.

    places: keep the devices of nodes that TensorFlow places, instead of colocation with nodes by name.

    >>> graph = read_function(concrete.name)     # doctest: +SKIP
    """
    functions = functions if functions is not None else Functions()
    reader = _Reader(functions, places)
    graph = reader.body(functions[name], "")
    return _handles_traced(graph, functions).pruned()


def settle(graph: FlatGraph, functions: Functions, known: Mapping[str, np.ndarray]) -> FlatGraph:
    """The graph for conditions that are known: branches taken are inlined, checks that pass are dropped.

    known: conditions by node (If, Case, Assert); other nodes are left as they are.
    """
    made = replace(
        graph,
        nodes={
            k: replace(n, inputs=list(n.inputs), controls=list(n.controls)) for k, n in graph.nodes.items()
        },
    )
    for name, value in known.items():
        node = made.nodes[name]
        if node.op == "Assert" and bool(np.all(value)):
            made.nodes[name] = FlatNode(name, "NoOp", [], node.controls, {}, ())
        branch = _taken(node, value)
        if branch:
            func = attr_value_pb2.AttrValue(func=attr_value_pb2.NameAttrList(name=branch))
            node.op, node.attr, node.inputs = "StatefulPartitionedCall", {"f": func}, node.inputs[1:]
    return _handles_traced(_Reader(functions).inlined(made), functions).pruned()


def _handles_traced(graph: FlatGraph, functions: Functions) -> FlatGraph:
    """Who reads a handle that a loop hands on reads what the loop was given, after the loop."""
    moved: dict[Ref, Ref] = {}
    for node in graph.nodes.values():
        if node.op in ("While", "StatelessWhile"):
            body = functions[node.attr["body"].func.name]
            for index, number in enumerate(node.types):
                given = body.signature.input_arg[index].name
                if number == _RESOURCE and body.ret[body.signature.output_arg[index].name] == given:
                    moved[node.name, index] = node.inputs[index]
    settle = _Settle(moved)
    for node in graph.nodes.values():
        loops = [name for name, index in node.inputs if (name, index) in moved]
        node.inputs = [settle(ref) for ref in node.inputs]
        node.controls += [name for name in dict.fromkeys(loops) if node.op != "VariableShape"]
    graph.results = [settle(ref) for ref in graph.results]
    return graph


def _taken(node: FlatNode, value: np.ndarray) -> str:
    """The function that a branch calls for a known condition; empty when the node is no branch."""
    if node.op in ("If", "StatelessIf"):
        holds = bool(value.item()) if value.ndim == 0 else value.size > 0
        return str(node.attr["then_branch" if holds else "else_branch"].func.name)
    if node.op in ("Case", "StatelessCase"):
        branches = node.attr["branches"].list.func
        index = int(value.item())
        return str(branches[index if 0 <= index < len(branches) else -1].name)
    return ""


class _Reader:
    """Reads function definitions and inlines the calls between them."""

    def __init__(self, functions: Functions, places: bool = False) -> None:
        self.functions = functions
        self.places = places
        self._calls: list[str] = []

    def body(self, definition: function_pb2.FunctionDef, prefix: str) -> FlatGraph:
        """A function's own graph, its calls inlined. Names begin with the prefix."""
        name = definition.signature.name
        if name in self._calls or len(self._calls) > _MAX_DEPTH:
            raise RecursionError(f"the function '{name}' calls itself")
        self._calls.append(name)
        try:
            return self._body(definition, prefix)
        finally:
            self._calls.pop()

    def _body(self, definition: function_pb2.FunctionDef, prefix: str) -> FlatGraph:
        graph = FlatGraph(definition.signature.name)
        outputs = _Outputs(self.functions, definition, prefix)
        made: dict[str, FlatNode] = {}
        for arg in definition.signature.input_arg:
            node = FlatNode(prefix + arg.name, ARGUMENT, [], [], {}, (arg.type,))
            made[node.name] = node
            graph.args.append(node.name)
        for proto in definition.node_def:
            node = FlatNode(
                prefix + proto.name,
                proto.op,
                [outputs.ref(i) for i in proto.input if not i.startswith("^")],
                [prefix + i[1:] for i in proto.input if i.startswith("^")],
                dict(proto.attr),
                output_types(self.functions, proto.op, proto.attr),
                npu=_npu_of(proto.device),
            )
            if self.places:
                node.attr.pop(_COLOCATION, None)
                node.device = proto.device if node.npu is None else ""
            made[node.name] = node
        graph.nodes = made
        graph.results = [outputs.ref(definition.ret[a.name]) for a in definition.signature.output_arg]
        wanted = set(definition.control_ret.values())  # a map, in another order in every process
        graph.effects = [prefix + proto.name for proto in definition.node_def if proto.name in wanted]
        return self.inlined(graph)

    def inlined(self, graph: FlatGraph) -> FlatGraph:
        """A graph with its calls replaced by what they call."""
        calls = {n.name: callee for n in graph.nodes.values() if (callee := self._callee(n)) is not None}
        if not calls:
            return graph
        moved: dict[Ref, Ref] = {}  # a call's output -> the tensor it is
        ends: dict[str, str] = {}  # a call -> the node that ends it
        nodes: dict[str, FlatNode] = {}
        for node in graph.nodes.values():
            if node.name in calls:
                end, results = self._inline(node, calls[node.name], nodes)
                ends[node.name] = end
                moved.update(((node.name, i), ref) for i, ref in enumerate(results))
            else:
                nodes[node.name] = node
        settle = _Settle(moved)
        for node in nodes.values():
            node.inputs = [settle(ref) for ref in node.inputs]
            node.controls = [ends.get(c, c) for c in node.controls]
        graph.nodes = nodes
        graph.results = [settle(ref) for ref in graph.results]
        graph.effects = [ends.get(e, e) for e in graph.effects]
        return graph

    def _callee(self, node: FlatNode) -> function_pb2.FunctionDef | None:
        name = node.attr["f"].func.name if node.op in CALLS else node.op
        found = self.functions.find(name) if node.op in CALLS or op_def_registry.get(name) is None else None
        # A function that stands for an operator of the library stays a call.
        return None if found is not None and IMPLEMENTS in found.attr else found

    def _inline(
        self, call: FlatNode, callee: function_pb2.FunctionDef, nodes: dict[str, FlatNode]
    ) -> tuple[str, list[Ref]]:
        """Add a callee's nodes; the node that ends the call, and the call's results."""
        body = self.body(callee, f"{call.name}/")
        given = dict(zip(body.args, call.inputs, strict=True))
        settle = _Settle({(arg, 0): ref for arg, ref in given.items()})
        start = f"{call.name}/.start"
        if call.controls:
            nodes[start] = FlatNode(start, "NoOp", [], list(call.controls), {}, ())
        for node in body.nodes.values():
            if node.name in given:
                continue
            node.inputs = [settle(ref) for ref in node.inputs]
            node.controls = [c for c in node.controls if c not in given]
            if call.controls and is_stateful(node.op):
                node.controls.append(start)
            if node.npu is None:
                node.npu = call.npu
            node.device = node.device or call.device
            nodes[node.name] = node
        results = [settle(ref) for ref in body.results]
        end = f"{call.name}/.end"
        before = [e for e in body.effects if e not in given]
        before += [start] if call.controls else []
        before += [name for name, _ in results]
        nodes[end] = FlatNode(end, "NoOp", [], list(dict.fromkeys(before)), {}, ())
        return end, results


class _Settle:
    """Follows a tensor through replacements to what finally stands for it."""

    def __init__(self, moved: Mapping[Ref, Ref]) -> None:
        self.moved = moved

    def __call__(self, ref: Ref) -> Ref:
        while ref in self.moved:
            ref = self.moved[ref]
        return ref


class _Outputs:
    """Turns a function definition's references ("node:output:i") into (node, index)."""

    def __init__(self, functions: Functions, definition: function_pb2.FunctionDef, prefix: str) -> None:
        self.functions = functions
        self.prefix = prefix
        self.args = {a.name for a in definition.signature.input_arg}
        self.protos = {n.name: n for n in definition.node_def}
        self._starts: dict[str, dict[str, int]] = {}

    def ref(self, text: str) -> Ref:
        name, *rest = text.split(":")
        if name in self.args:
            return self.prefix + name, 0
        if len(rest) < 2:
            return self.prefix + name, int(rest[0]) if rest else 0
        return self.prefix + name, self._start(name)[rest[0]] + int(rest[1])

    def _start(self, name: str) -> dict[str, int]:
        if name not in self._starts:
            proto = self.protos[name]
            signature = self.functions.signature(proto.op)
            attr = _with_defaults(signature, proto.attr)
            starts, position = {}, 0
            for arg in signature.output_arg:
                starts[arg.name] = position
                position += len(_types(arg, attr))
            self._starts[name] = starts
        return self._starts[name]


def tensor_names(refs: Sequence[Ref]) -> list[str]:
    """References as a GraphDef has them."""
    return [f"{n}:{i}" if i else n for n, i in refs]
