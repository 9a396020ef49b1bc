"""Parses TensorFlow models (GraphDef, MetaGraphDef, SavedModel, functions) into GE graphs, without TensorFlow.

    graph = parse("model.pb", input_shapes={"x": (1, 224, 224, 3)}, out_nodes=["logits"])
    graph = parse("saved_model_folder", signature="serving_default")

A front door that has a graph in memory calls `parse_graph` and says what each input, capture and variable is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError, OpenSizesError
from ge.hybrid.cuts import required_inputs
from ge.ir import facts
from ge.ir.types import TENSORS, TensorDesc
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Unsupported, mapped
from ge.parsers.tensorflow import complex_numbers as tensorflow_complex_numbers
from ge.parsers.tensorflow import control as tensorflow_control
from ge.parsers.tensorflow import distinct as tensorflow_distinct
from ge.parsers.tensorflow import lists as tensorflow_lists
from ge.parsers.tensorflow import loops as tensorflow_loops
from ge.parsers.tensorflow import optimizers as tensorflow_optimizers
from ge.parsers.tensorflow import positions as tensorflow_positions
from ge.parsers.tensorflow.convert import HANDLERS, Converter, Refusal, Scope
from ge.parsers.tensorflow.files import ModelFile, Signature, load_model
from ge.parsers.tensorflow.frames import structured
from ge.parsers.tensorflow.graph import Body, GraphNode, Library, Ref, graph_body, parse_ref
from ge.parsers.tensorflow.state import VariableStore
from ge.parsers.tensorflow.values import FAILED, UNKNOWN, Binding, HostTensor, Missing, VariableSpec

__all__ = [
    "Attempt",
    "Parsed",
    "Refusal",
    "VariableSpec",
    "attempt_graph",
    "bodies_of",
    "operators",
    "outputs_of",
    "parse",
    "parse_body",
    "parse_graph",
    "parse_model",
    "signature_of",
]

# Imported for their declarations.
_WITH_HANDLERS = (
    tensorflow_complex_numbers,
    tensorflow_control,
    tensorflow_distinct,
    tensorflow_lists,
    tensorflow_loops,
    tensorflow_optimizers,
    tensorflow_positions,
)

DEFAULT_SIGNATURE = "serving_default"
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
_NO_RESULTS = (
    "NoOp",
    "Assert",
    "SaveV2",
    "RestoreV2",
    "Const",
    "VarHandleOp",
    "VariableV2",
    "PlaceholderWithDefault",
)


@dataclass(frozen=True)
class Parsed:
    """A parsed graph and what its caller should know of it.

    Graph inputs are the model's inputs, then the variables named in `reads`; outputs are the model's outputs,
    then the new values of the variables named in `updates`.
    """

    graph: ir.Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass
class _Request:
    """What to parse of a graph."""

    name: str
    body: Body
    library: Library
    outputs: Mapping[str, Ref]  # name -> tensor
    inputs: dict[str, tuple[Ref, TensorDesc]] = field(default_factory=dict)  # name -> tensor, description
    constants: Mapping[Ref, np.ndarray] = field(default_factory=dict)
    variables: Mapping[Ref, VariableSpec] = field(default_factory=dict)
    store: Callable[[str, GraphNode], VariableSpec] | None = None
    updates: bool = False
    effects: Sequence[str] = ()
    warnings: list[str] = field(default_factory=list)
    declared: dict[str, tuple[int, ...] | None] = field(default_factory=dict)  # -1 for open sizes


def operators() -> list[str]:
    """The TensorFlow operator types that can be parsed."""
    import ge.ops  # noqa: F401  (declares the plugins)

    return sorted({*mapped("tensorflow"), *(op for op in HANDLERS if not op.startswith("_"))})


def parse(
    model: Any,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    out_nodes: Sequence[str] = (),
    signature: str | None = None,
    tags: Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
) -> ir.Graph:
    """The GE graph of a model: a path, bytes, or a GraphDef, MetaGraphDef or SavedModel message.

    input_shapes: shapes of inputs by name, for those the model leaves open (an open batch size becomes 1).
    out_nodes: what to compute, as "node" or "node:index"; without it, the signature's outputs or the graph's
    ends.
    """
    return parse_model(
        model,
        input_shapes=input_shapes,
        out_nodes=out_nodes,
        signature=signature,
        tags=tags,
        checkpoint=checkpoint,
    ).graph


def parse_model(
    model: Any,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    out_nodes: Sequence[str] = (),
    signature: str | None = None,
    tags: Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
) -> Parsed:
    """Like `parse`, with names and warnings."""
    source = load_model(model, tags=tags, checkpoint=checkpoint)
    library, body = bodies_of(source)
    chosen = None if out_nodes else signature_of(source, signature)
    store = VariableStore(source.checkpoint, body, library, source.restore_node)
    return parse_body(
        source.name, body, chosen, library, store, input_shapes=input_shapes, out_nodes=out_nodes
    )


def parse_body(
    name: str,
    body: Body,
    signature: Signature | None,
    library: Library | None = None,
    store: Callable[[str, GraphNode], VariableSpec] | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    out_nodes: Sequence[str] = (),
) -> Parsed:
    """The GE graph of a body whose inputs are placeholders, named by a signature or by their nodes."""
    library = library or Library()
    request = _Request(name, body, library, outputs_of(body, signature, out_nodes), store=store)
    _Inputs(request, signature, input_shapes or {}).find()
    return _convert(request)


def parse_graph(
    graph: Any,
    *,
    inputs: Mapping[str, TensorDesc],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    variables: Mapping[str, VariableSpec] | None = None,
    updates: bool = False,
    effects: Sequence[str] = (),
) -> Parsed:
    """The GE graph of a GraphDef (with its function library) whose every input is given.

    inputs, constants and variables are keyed by tensor ("node" or "node:index"): placeholders, or any other
    tensors, that are fed, that have a known value, or that are handles of variables. With `updates`,
    variables may be written; their new values become further outputs. `effects` are nodes that must run for
    what they write.
    """
    return _convert(_request(graph, inputs, outputs, constants, variables, updates, effects, "graph"))


@dataclass(frozen=True)
class Attempt:
    """What came of a graph of which some nodes stay on the host.

    parsed: the whole graph, when nothing had to stay there. refused: nodes that cannot be converted, and why.
    unknown: nodes that read, directly or not, what the host computes, so that nothing can be said of them
    yet. needs: inputs whose values would have to be constant for a node that was refused. settled: first
    inputs of host nodes (the condition of a branch or a check) that turned out to be constant.
    """

    parsed: Parsed | None
    refused: Mapping[str, Refusal]
    unknown: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    settled: Mapping[str, np.ndarray] = field(default_factory=dict)


def attempt_graph(
    graph: Any,
    *,
    inputs: Mapping[str, TensorDesc],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    variables: Mapping[str, VariableSpec] | None = None,
    effects: Sequence[str] = (),
    host: Collection[str] = (),
    name: str = "graph",
) -> Attempt:
    """Like `parse_graph` with updates, for a caller that runs on the host what cannot be converted.

    `host` are nodes that are known to stay there.
    """
    import ge.ops  # noqa: F401  (declares operators and plugins)

    others = [e for e in effects if e not in set(host)]
    request = _request(graph, inputs, outputs, constants, variables, True, others, name)
    converter, scope = _converter(request, host)
    roots = [*(n for n, _ in request.outputs.values()), *request.effects, *host]
    converter.evaluate(scope, roots)
    unknown = frozenset(n for n, value in scope.values.items() if value is UNKNOWN and n not in host)
    if converter.refused or host:
        needs = frozenset(required_inputs(converter.needs, inputs))
        return Attempt(None, converter.refused, unknown, needs, converter.settled)
    try:
        return Attempt(_finished(request, converter, scope), {})
    except GeError as error:
        name = next(iter(request.outputs.values()))[0]
        return Attempt(None, {name: Refusal(request.body.nodes[name].op, error.cause, error.remedy)})


def _request(
    graph: Any,
    inputs: Mapping[str, TensorDesc],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None,
    variables: Mapping[str, VariableSpec] | None,
    updates: bool,
    effects: Sequence[str],
    name: str,
) -> _Request:
    source = load_model(graph)
    library = Library(source.graph.library.function, structured, source.graph.versions.producer)
    body = structured(graph_body(source.graph, name))
    return _Request(
        name,
        body,
        library,
        {o: _known(body, o) for o in outputs},
        {n: (_known(body, n), desc) for n, desc in inputs.items()},
        {_known(body, n): array for n, array in (constants or {}).items()},
        {_known(body, n): spec for n, spec in (variables or {}).items()},
        updates=updates,
        effects=[_known(body, n)[0] for n in effects],
    )


# -- what to compute -----------------------------------------------------------------------------------------


def _known(body: Body, text: str) -> Ref:
    ref = parse_ref(text)
    if ref[0] not in body.nodes:
        near = ", ".join(sorted(n for n in body.nodes if ref[0].rsplit("/", 1)[-1] in n)[:5])
        raise GeError(
            "E10107",
            f"the graph has no node '{ref[0]}'",
            location=body.name,
            remedy=f"similar names: {near}" if near else "list the graph's nodes",
        )
    return ref


def bodies_of(source: ModelFile) -> tuple[Library, Body]:
    """The functions of a model and its outermost graph."""
    library = Library(source.graph.library.function, structured, source.graph.versions.producer)
    return library, structured(graph_body(source.graph, source.name))


def signature_of(source: ModelFile, name: str | None) -> Signature | None:
    """The requested signature, the default one, or the only one with outputs; None when the file has none."""
    if not source.signatures:
        if name is not None:
            raise GeError(
                "E10107", f"the model has no signature '{name}', nor any other", location=source.name
            )
        return None
    if name is None:
        useful = [n for n, s in source.signatures.items() if s.outputs and not n.startswith("__")]
        name = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in useful or len(useful) != 1 else useful[0]
    if name not in source.signatures:
        there = ", ".join(sorted(n for n in source.signatures if not n.startswith("__")))
        raise GeError(
            "E10107",
            f"the model has no signature '{name}'",
            location=source.name,
            remedy=f"use one of {there}"
            if there
            else "save it with signatures={'serving_default': function}",
        )
    return source.signatures[name]


def outputs_of(body: Body, signature: Signature | None, out_nodes: Sequence[str]) -> dict[str, Ref]:
    """The requested outputs, those of a signature, or the ends of the graph."""
    if out_nodes:
        return {text: _known(body, text) for text in out_nodes}
    if signature is not None:
        return {key: _known(body, spec.tensor) for key, spec in signature.outputs.items() if spec.tensor}
    read = {n for node in body.nodes.values() for n in (*(i for i, _ in node.inputs), *node.controls)}
    ends = [
        n for n in body.nodes.values() if n.name not in read and n.op not in (*_NO_RESULTS, *_PLACEHOLDERS)
    ]
    if not ends:
        raise GeError(
            "E10107", "the graph has no outputs", location=body.name, remedy="name them with out_nodes"
        )
    return {n.name: (n.name, i) for n in ends for i in range(1)}


class _Inputs:
    """Finds the inputs of a request and settles their shapes."""

    def __init__(
        self, request: _Request, signature: Signature | None, shapes: Mapping[str, Sequence[int]]
    ) -> None:
        self.request = request
        self.signature = signature
        self.shapes = {k: tuple(int(d) for d in v) for k, v in shapes.items()}
        self.used: set[str] = set()
        self.open: list[str] = []

    def find(self) -> None:
        """Fill in the request's inputs."""
        named = self._signature_inputs()
        for ref, name in named.items():
            self._add(name, ref)
        for node in self._reachable():
            if (node.name, 0) not in named and (node.op in _PLACEHOLDERS or self._given(node)):
                self._add(node.name, (node.name, 0))
        unknown = sorted(set(self.shapes) - self.used)
        if unknown:
            there = ", ".join(self.request.inputs) or "none"
            cause = f"input_shapes names {unknown}, which the model does not read"
            raise GeError("E10108", cause, location=self.request.name, remedy=f"its inputs are {there}")
        if self.open:
            raise OpenSizesError(
                "E10108",
                f"the shapes of these inputs are not complete: {'; '.join(self.open)}",
                location=self.request.name,
                remedy="give them with input_shapes",
                inputs=self.request.declared,
            )

    def _signature_inputs(self) -> dict[Ref, str]:
        if self.signature is None:
            return {}
        return {_known(self.request.body, spec.tensor): key for key, spec in self.signature.inputs.items()}

    def _reachable(self) -> list[GraphNode]:
        """The nodes that the outputs depend on, in the graph's order."""
        nodes = self.request.body.nodes
        todo = [n for n, _ in self.request.outputs.values()]
        seen = set(todo)
        while todo:
            name = todo.pop()
            before = () if self._given(nodes[name]) else (n for n, _ in nodes[name].inputs)
            for n in before:
                if n not in seen:
                    seen.add(n)
                    todo.append(n)
        return [node for name, node in nodes.items() if name in seen]

    def _given(self, node: GraphNode) -> bool:
        return node.name in self.shapes or f"{node.name}:0" in self.shapes

    def _add(self, name: str, ref: Ref) -> None:
        node = self.request.body.nodes[ref[0]]
        key = next((k for k in (name, node.name, f"{node.name}:0") if k in self.shapes), None)
        spec = self.signature.inputs.get(name) if self.signature else None
        declared = node.attrs.get("shape") if node.op in _PLACEHOLDERS or "shape" in node.attrs else None
        if declared == () and spec is not None and spec.shape:
            declared = spec.shape  # graphs of old producers leave the placeholder's own shape empty
        if declared is not None and not isinstance(declared, tuple):
            raise GeError("E10108", f"its shape is {declared!r:.60}", node=name, operator=node.op)
        dtype = str(node.attrs.get("dtype") or (spec.dtype if spec else node.attrs.get("T", "float32")))
        if dtype not in TENSORS:
            error = GeError(
                "E10108", f"the input is {dtype}", node=name, operator=node.op, remedy="feed numbers"
            )
            error.later = dtype == "string"
            raise error
        if key is not None:
            self.used.add(key)
            declared = declared or None  # graphs of old producers leave a shape that is open empty
            self._check(name, self.shapes[key], declared)
            given = self.shapes[key]
            declared = tuple(max(g, d) for g, d in zip(given, declared or given, strict=True))
        self.request.declared[name] = declared
        shape = self._settled(name, declared)
        if shape is not None:
            self.request.inputs[name] = (ref, TensorDesc(shape, dtype))

    def _check(self, name: str, given: tuple[int, ...], declared: tuple[int, ...] | None) -> None:
        fits = declared is None or (
            len(given) == len(declared)
            and all(-1 in (d, g) or d == g for d, g in zip(declared, given, strict=True))
        )
        if not fits:
            cause = f"the shape {list(given)} does not fit the input '{name}' of shape {list(declared or ())}"
            raise GeError("E10108", cause, location=self.request.name)

    def _settled(self, name: str, declared: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """A complete shape; an open batch size becomes 1, anything else open is collected for the report."""
        if declared is None or -1 in declared[1:]:
            self.open.append(f"{name} {'of unknown rank' if declared is None else list(declared)}")
            return None
        if declared and declared[0] == -1:
            self.request.warnings.append(
                f"the open batch size of the input '{name}' is taken as 1; set input_shapes"
            )
            return (1, *declared[1:])
        return declared


# -- conversion ----------------------------------------------------------------------------------------------


def _convert(request: _Request) -> Parsed:
    import ge.ops  # noqa: F401  (declares operators and plugins)

    converter, scope = _converter(request)
    roots = [*(name for name, _ in request.outputs.values()), *request.effects]
    converter.scan(request.body, roots, scope.values, request.name)
    converter.evaluate(scope, roots)
    converter.report(request.name)
    return _finished(request, converter, scope)


def _converter(request: _Request, host: Collection[str] | None = None) -> tuple[Converter, Scope]:
    builder = GraphBuilder(_identifier(request.name))
    converter = Converter(
        request.library, builder, variables=request.store, updates=request.updates, host=host
    )
    scope = Scope(request.body, builder)
    scope.values.update(_bind(request, converter, builder))
    request.body.effects = list(request.effects)
    request.body.results = list(request.outputs.values())
    return converter, scope


def _finished(request: _Request, converter: Converter, scope: Scope) -> Parsed:
    builder = scope.builder
    names = _name_outputs(request, converter, builder, scope)
    reads = tuple(v.name or "" for v in builder.graph.inputs[len(request.inputs) :])
    for variable in converter.updated:
        builder.output(converter.state[variable])
    _drop_unused_constants(builder.graph)
    warnings = (*request.warnings, *converter.warnings)
    if warnings:
        builder.graph.metadata_props["ge.warnings"] = "\n".join(warnings)
    facts.set_open_inputs(builder.graph, request.declared)
    return Parsed(builder.graph, tuple(request.inputs), names, reads, tuple(converter.updated), warnings)


def _bind(request: _Request, converter: Converter, builder: GraphBuilder) -> dict[str, list[Binding]]:
    """Values of the tensors that are given from outside, by node."""
    given: dict[Ref, Binding] = {}
    for name, (ref, desc) in request.inputs.items():
        if desc.dtype not in TENSORS:
            raise GeError("E10004", f"input '{name}' is {desc}, no engine accepts {desc.dtype}")
        given[ref] = builder.input(name, desc.shape, desc.dtype)
    for ref, array in request.constants.items():
        dtype = array.dtype.name
        given[ref] = builder.constant(array, ref[0]) if dtype in TENSORS else HostTensor(array, dtype)
    for ref, spec in request.variables.items():
        given[ref] = converter.declare(spec)
    bound: dict[str, list[Binding]] = {}
    for (name, index), value in sorted(given.items(), key=lambda item: item[0]):
        outputs = bound.setdefault(name, [])
        outputs += [Missing("an output that is not given")] * (index + 1 - len(outputs))
        outputs[index] = value
    return bound


def _name_outputs(
    request: _Request, converter: Converter, builder: GraphBuilder, scope: Scope
) -> tuple[str, ...]:
    for name, ref in request.outputs.items():
        value = converter.binding(scope, ref)
        assert value is not FAILED, f"{name} failed without a report"
        if isinstance(value, Missing):
            raise GeError("E10107", f"the output '{name}' is {value.what}", location=request.name)
        builder.set_origin(ref[0])
        if isinstance(value, tensorflow_positions.Positions):
            value = value.tensor(builder)
        try:
            builder.output(converter.tensor(value, f"the output '{name}'"), name)
        except Unsupported as error:
            raise GeError(
                "E10107", error.reason, location=request.name, remedy="name other outputs"
            ) from error
    return tuple(request.outputs)


def _drop_unused_constants(graph: ir.Graph) -> None:
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def _identifier(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z_.-]", "_", name) or "graph"
