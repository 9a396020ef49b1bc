"""Lowers a flat function for given inputs to a compiled model and its ports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import onnx_ir as ir
from tensorflow.core.framework import attr_value_pb2

from ge.build.resident import ResidentValues
from ge.compiler import compile_plan
from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.model.model import Model
from ge.options import CompileOptions
from ge.parsers.tensorflow.convert import Refusal
from ge.parsers.tensorflow.parser import Attempt, Parsed, VariableSpec, attempt_graph
from ge.passes.cleanup.dead_code import DeadCode
from tf_adapter import cache
from tf_adapter.graphs import ARGUMENT, FlatGraph, FlatNode, Functions, tensor_names
from tf_adapter.randomness import Counter, steps_of, with_counters
from tf_adapter.resident import Layout, Place

__all__ = ["Described", "Lowered", "Ports", "Refused", "Request", "lower"]

SPECIAL_SIZE = 16  # elements of an input (a number, or a row of them) whose value may become part of a model
_KEEP_DTYPE = "_keep_dtype"  # attribute of nodes that keep their element types
_SPECIAL_TYPES = frozenset({"int32", "int64", "bool", "uint8", "int8", "int16"})

_COUNTER = TensorDesc((2,), "uint64")

Port = tuple[str, int]


class Described(Protocol):
    """An input of a call: kind "tensor", "variable" or "host", its type, its shape and, on demand, its value."""

    @property
    def kind(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def version(self) -> int: ...

    @property
    def variable(self) -> int:
        """A number that no other variable has."""

    def numpy(self) -> np.ndarray: ...


@dataclass(frozen=True)
class Ports:
    """What the operands of a model are to its caller.

    inputs: ("input", argument), ("variable", argument) or ("random", counter), one for each of the model's.
    outputs: ("output", result), ("variable", argument) or ("random", counter), likewise. others: results that the
    model does not compute: ("input", argument), ("variable", argument) or ("constant", position in `constants`).
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    others: tuple[tuple[int, Port], ...] = ()
    constants: tuple[np.ndarray, ...] = ()
    random: tuple[tuple[str, int | None, int], ...] = ()  # name, upper half before the first call, step
    specialised: tuple[int, ...] = ()
    bound: tuple[int, ...] = ()  # arguments whose value is part of the model


@dataclass
class Lowered:
    """A compiled function."""

    model: Model
    ports: Ports
    left: Layout = ()  # results that stay in the device's memory for another part


@dataclass(frozen=True)
class Refused:
    """A function of which some nodes cannot be compiled."""

    nodes: Mapping[str, Refusal]
    unknown: frozenset[str] = frozenset()
    settled: Mapping[str, np.ndarray] = field(
        default_factory=dict
    )  # conditions of host nodes that are constant
    specialised: frozenset[int] = frozenset()  # inputs whose values were used in finding out


@dataclass
class Request:
    """A function with its inputs sorted by what they are to the parser."""

    graph: FlatGraph
    inputs: Sequence[Described]
    counters: list[Counter] = field(default_factory=list)
    bind: frozenset[int] = frozenset()
    specialised: set[int] = field(default_factory=set)
    kept: frozenset[int] = frozenset()
    given: Mapping[int, int] = field(default_factory=dict)
    left: frozenset[int] = frozenset()

    def tensors(self) -> dict[str, TensorDesc]:
        found = {
            name: TensorDesc(tuple(given.shape), given.dtype)
            for i, name, given in self._args()
            if given.kind == "tensor" and i not in self.specialised
        }
        return {**found, **{c.argument: _COUNTER for c in self.counters if not c.moved}}

    def constants(self) -> dict[str, np.ndarray]:
        return {name: given.numpy() for i, name, given in self._args() if i in self.specialised}

    def variables(self) -> dict[str, VariableSpec]:
        found = {
            name: VariableSpec(
                name,
                TensorDesc(tuple(given.shape), given.dtype),
                given.numpy() if i in self.bind else None,
            )
            for i, name, given in self._args()
            if given.kind == "variable"
        }
        moved = (c.argument for c in self.counters if c.moved)
        return {**found, **{name: VariableSpec(name, _COUNTER, None) for name in moved}}

    def strangers(self) -> list[str]:
        """Arguments that the NPU has no type for."""
        return [name for _, name, given in self._args() if given.kind == "host"]

    def _args(self) -> list[tuple[int, str, Described]]:
        return [
            (i, name, given) for i, (name, given) in enumerate(zip(self.graph.args, self.inputs, strict=True))
        ]

    def may_specialise(self, index: int) -> bool:
        given = self.inputs[index]
        size = int(np.prod(given.shape, dtype=np.int64))
        plain = given.kind == "tensor" and given.dtype in _SPECIAL_TYPES
        return plain and len(given.shape) < 2 and size <= SPECIAL_SIZE


def lower(
    graph: FlatGraph,
    functions: Functions,
    inputs: Sequence[Described],
    options: CompileOptions,
    *,
    bind: Sequence[int] = (),
    host: Mapping[str, Refusal] | None = None,
    specialise: Collection[int] = (),
    kept: Collection[int] = (),
    given: Mapping[int, int] | None = None,
    left: Collection[int] = (),
    name: str = "",
) -> Lowered | Refused:
    """Compile a function for its inputs; `bind` are variables whose value becomes part of the model.

    `host` are nodes that are known to stay on the host: then this only finds out what else has to.
    `specialise` are inputs whose values the graph was made for, `kept` variables whose new values do not take the
    memory of the old ones. `given` are inputs that another part has left in the device's memory, with their places,
    `left` results that this one leaves there.
    """
    counted, counters = with_counters(graph)
    request = Request(
        _own_results(counted),
        inputs,
        counters,
        frozenset(bind),
        set(specialise),
        frozenset(kept),
        given or {},
        frozenset(left),
    )
    stays = bool(request.given or request.left)
    key = None if host or specialise or stays else cache.key(request, functions, options)
    found = cache.find(key)
    if found is not None:
        model, ports = found
        return Lowered(model, ports)
    attempt = _attempt(request, functions, host or {}, name or graph.name)
    while attempt.refused and attempt.needs:
        wanted = {request.graph.args.index(n) for n in attempt.needs if n in request.graph.args}
        fresh = {i for i in wanted if request.may_specialise(i)} - request.specialised
        if not fresh or fresh != wanted - request.specialised:
            break
        request.specialised |= fresh
        attempt = _attempt(request, functions, host or {}, name or graph.name)
    if attempt.parsed is None:
        return Refused(attempt.refused, attempt.unknown, attempt.settled, frozenset(request.specialised))
    _keep_types(request.graph, attempt.parsed.graph)
    ports = _ports(request, attempt.parsed)
    resident = _resident(request, ports)
    donated = _donated(ports, request.kept)
    layout_of = [desc_of(attempt.parsed.graph.outputs[k]) for k in resident.left]
    plan = compile_plan(attempt.parsed.graph, options, name or graph.name, donated, resident)
    places = [
        Place(ports.outputs[k][1], offset, desc.dtype, tuple(desc.shape))
        for k, offset, desc in zip(resident.left, plan.left, layout_of, strict=True)
    ]
    ports = _without(ports, resident)
    model = cache.store(None if ports.specialised else key, plan, ports)
    return Lowered(model, ports, tuple(places))


def _resident(request: Request, ports: Ports) -> ResidentValues:
    """The operands of a model that stay in the arena between parts."""
    return ResidentValues(
        {
            k: request.given[i]
            for k, (kind, i) in enumerate(ports.inputs)
            if kind == "input" and i in request.given
        },
        tuple(k for k, (kind, j) in enumerate(ports.outputs) if kind == "output" and j in request.left),
    )


def _without(ports: Ports, resident: ResidentValues) -> Ports:
    """The ports of a model without its resident values, which the caller does not see."""
    return replace(
        ports,
        inputs=tuple(p for k, p in enumerate(ports.inputs) if k not in resident.given),
        outputs=tuple(p for k, p in enumerate(ports.outputs) if k not in resident.left),
    )


def _keep_types(source: FlatGraph, graph: ir.Graph) -> None:
    """Exempt from precision modes what comes from nodes that the user marked so."""
    marked = {n.name for n in source.nodes.values() if _KEEP_DTYPE in n.attr and n.attr[_KEEP_DTYPE].b}
    if not marked:
        return
    for node in graph:
        if not marked.isdisjoint(facts.origin(node)):
            facts.set_keep_dtype(node)


def _attempt(request: Request, functions: Functions, host: Mapping[str, Refusal], name: str) -> Attempt:
    results = list(
        dict.fromkeys(r for r in request.graph.results if request.graph.nodes[r[0]].op != ARGUMENT)
    )
    return attempt_graph(
        request.graph.graph_def(functions),
        inputs=request.tensors(),
        outputs=tensor_names(results),
        constants=request.constants(),
        variables=request.variables(),
        effects=request.graph.effects,
        host=[*host, *(request.strangers() if host else ())],
        name=name,
    )


def _own_results(graph: FlatGraph) -> FlatGraph:
    """The graph with a node of its own behind every result that is there twice."""
    seen: set[tuple[str, int]] = set()
    nodes, results = dict(graph.nodes), []
    for index, ref in enumerate(graph.results):
        if ref in seen and graph.nodes[ref[0]].op != ARGUMENT:
            kind = attr_value_pb2.AttrValue(type=graph.type_of(ref))
            node = FlatNode(f"{ref[0]}.{index}", "Identity", [ref], [], {"T": kind}, (graph.type_of(ref),))
            nodes[node.name] = node
            ref = (node.name, 0)
        seen.add(ref)
        results.append(ref)
    return replace(graph, nodes=nodes, results=results)


# -- ports -----------------------------------------------------------------------------------------------------


def _ports(request: Request, parsed: Parsed) -> Ports:
    """Sort a parsed graph's inputs and outputs; what needs no computing leaves it."""
    graph, args = parsed.graph, request.graph.args
    kinds = {
        name: ("variable" if given.kind == "variable" else "input", i)
        for i, (name, given) in enumerate(zip(args, request.inputs, strict=True))
    }
    kinds.update({c.argument: ("random", i) for i, c in enumerate(request.counters)})
    owned = {*parsed.updates, *(args[i] for i in request.given)}  # memory that no result may share
    by_name = {name: i for i, name in enumerate(parsed.outputs)}
    outputs: list[Port] = []
    others: list[tuple[int, Port]] = []
    constants: list[np.ndarray] = []
    kept: list[ir.Value] = []
    results = [
        (j, tensor_names([ref])[0] if request.graph.nodes[ref[0]].op != ARGUMENT else None, ref)
        for j, ref in enumerate(request.graph.results)
    ]
    for j, text, ref in results:
        if text is None:
            others.append((j, ("input", args.index(ref[0]))))
            continue
        value = graph.outputs[by_name[text]]
        source = _source(value) if j not in request.left else None
        if source is None:
            outputs.append(("output", j))
            kept.append(value)
        elif isinstance(source, np.ndarray):
            others.append((j, ("constant", len(constants))))
            constants.append(source)
        elif source in kinds and source not in owned and kinds[source][0] != "random":
            others.append((j, kinds[source]))
        else:
            outputs.append(("output", j))
            kept.append(value)
    first = len(parsed.outputs)
    for k, name in enumerate(parsed.updates):
        outputs.append(kinds[name])
        kept.append(graph.outputs[first + k])
    graph.outputs[:] = kept
    DeadCode().run(graph, CompileOptions())
    ports_in = []
    for value in list(graph.inputs):
        if value.uses() or value.is_graph_output():
            ports_in.append(kinds[value.name or ""])
        else:
            graph.inputs.remove(value)
    steps = steps_of(graph, request.counters)
    random = tuple((c.argument, c.high, step) for c, step in zip(request.counters, steps, strict=True))
    bound = [i for i in request.bind if request.inputs[i].kind == "variable"]
    return Ports(
        tuple(ports_in),
        tuple(outputs),
        tuple(others),
        tuple(constants),
        random,
        tuple(sorted(request.specialised)),
        tuple(sorted(bound)),
    )


def _donated(ports: Ports, kept: Collection[int]) -> list[tuple[int, int]]:
    """Outputs that are new values of variables which are inputs too: they share their memory."""
    variables = ((k, index) for k, (kind, index) in enumerate(ports.inputs) if kind == "variable")
    inputs = {index: k for k, index in variables if index not in kept}
    return [
        (k, inputs[index])
        for k, (kind, index) in enumerate(ports.outputs)
        if kind == "variable" and index in inputs
    ]


def _source(value: ir.Value) -> np.ndarray | str | None:
    """A constant, or the name of an input, that an output is a mere copy of; None when it is computed."""
    node = value.producer()
    if node is None or node.op_type != "Identity" or node.domain != "ge":
        return None
    behind = node.inputs[0]
    if behind is None:
        return None
    array = constant_of(behind)
    if array is not None:
        return np.array(array, order="C")
    return behind.name if behind.producer() is None else None
