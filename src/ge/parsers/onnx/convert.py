"""Converts ONNX nodes: names to values, attributes to Python, each node by its plugin or function body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ge.errors import GeError, UnmappedOperator, UnsupportedOperatorsError
from ge.ir import facts
from ge.ir.types import TensorDesc, dtype_to_ir
from ge.ir.values import desc_of
from ge.ops.base import has_dynamic_size
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Maps, Node, Sequence_, Unsupported, find
from ge.parsers.onnx.model import (
    MAX_BYTES,
    DataFolder,
    ModelFile,
    array_of,
    opset_versions,
    reads_of,
    sorted_nodes,
)
from ge.parsers.onnx.narrow import MOVES, TAKES_NARROW, TAKES_TEXT, TEXT, TEXT_MOVES, plain_dtype, store
from ge.parsers.onnx.scan import MAX_DEPTH, MAX_NAMES, schema_of

__all__ = ["FAILED", "LATER", "Binding", "Converter", "Failed", "Maps", "Scope", "Sequence_"]

# Exceptions of plugins on malformed nodes.
_MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Failed:
    """Placeholder for a value that could not be created; its consumers are not reported again."""


FAILED = Failed()
LATER = Failed()  # a value of a later stage


Binding = ir.Value | Sequence_ | Maps | Failed | None
Refused = dict[tuple[str, str, str], list[str]]  # operator, reason, remedy -> nodes


@dataclass
class Scope:
    """Names visible in a graph or a function body."""

    builder: GraphBuilder
    versions: Mapping[str, int]
    values: dict[str, Binding] = field(default_factory=dict)
    pending: dict[str, Callable[[], np.ndarray]] = field(default_factory=dict)  # unused initializers
    attributes: Mapping[str, Any] = field(default_factory=dict)  # attributes of a function's call
    parent: Scope | None = None
    calls: tuple[str, ...] = ()  # functions being expanded, outermost first
    path: str = ""  # names of the calling nodes, "outer/inner/"
    variables: frozenset[str] = frozenset()  # a Gradient differentiates with respect to these: not folded

    def find(self, name: str) -> Binding:
        """Look up a name in this scope or an outer one."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            if name in scope.pending:
                value = store(scope.builder, scope.pending.pop(name)(), name)
                if name in scope.variables:
                    value = scope.builder.variable(value)
                scope.values[name] = value
                return value
            scope = scope.parent
        raise GeError("E10016", f"there is no value {name}")

    def names(self) -> set[str]:
        """All visible names."""
        own = self.values.keys() | self.pending.keys()
        return own | self.parent.names() if self.parent is not None else set(own)


class Converter:
    """Emits the nodes of a model, collecting all unmapped ones."""

    def __init__(self, file: ModelFile, in_stages: bool = False) -> None:
        self.file = file
        self.refused: Refused = {}
        self.needed: set[ir.Value] = set()  # computed values that determine shapes
        self.hopeful = False  # True if a rejected node could run in a later stage
        self.lasting = False  # True if a rejected node could run in no stage
        self.in_stages = in_stages  # collect nodes for a later stage instead of rejecting them
        self.later: list[onnx.NodeProto] = []
        self.waiting: Refused = {}  # reasons for a later stage

    # -- graphs ---------------------------------------------------------------------------------------------

    def graph(self, graph: onnx.GraphProto, scope: Scope, where: str) -> list[Binding]:
        """Emit a graph whose inputs are bound in the scope; returns the bindings of its outputs."""
        scope.variables = frozenset(
            name.decode()
            for node in graph.node
            if node.op_type == "Gradient"
            for attribute in node.attribute
            if attribute.name == "xs"
            for name in attribute.strings
        )
        for tensor in graph.initializer:
            if tensor.name not in scope.values:
                scope.pending[tensor.name] = _reader(tensor, self.file.folder)
        for sparse in graph.sparse_initializer:
            scope.pending[sparse.values.name] = lambda s=sparse: dense_of(s, self.file.folder)  # type: ignore[misc]
        self.nodes(graph.node, scope, where)
        return [scope.find(v.name) for v in graph.output]

    def nodes(self, nodes: Sequence[onnx.NodeProto], scope: Scope, where: str) -> None:
        """Emit nodes in topological order."""
        make = self._staged if self.in_stages and scope.parent is None and not scope.calls else self.node
        for node in sorted_nodes(nodes, scope.names(), where):
            for name, value in zip(node.output, make(node, scope), strict=False):
                if name:
                    scope.values[name] = value

    def body(
        self, graph: onnx.GraphProto, scope: Scope, builder: GraphBuilder, args: Sequence[Binding]
    ) -> list[Binding]:
        """Emit a subgraph into a builder, its inputs bound to `args`; outer names are visible."""
        inner = Scope(
            builder,
            scope.versions,
            parent=scope,
            attributes=scope.attributes,
            calls=scope.calls,
            path=scope.path,
        )
        names = [v.name for v in graph.input]
        if len(args) > len(names):
            raise Unsupported(f"subgraph {graph.name} has {len(names)} inputs where {len(args)} are given")
        inner.values.update(zip(names, args, strict=False))
        return self.graph(graph, inner, f"subgraph {graph.name}")

    # -- nodes ----------------------------------------------------------------------------------------------

    def _staged(self, node: onnx.NodeProto, scope: Scope) -> Sequence[Binding]:
        """Emit a node of the outermost graph, or leave it for a later stage."""
        later = [LATER] * len(node.output)
        if any(scope.values.get(name) is LATER for name in reads_of(node)):
            self.later.append(node)
            return later
        before, lasting = {key: list(nodes) for key, nodes in self.refused.items()}, self.lasting
        found = self.node(node, scope)
        if self.refused == before or (self.lasting and not lasting and node.op_type != "If"):
            return found
        self.waiting, self.refused, self.lasting = self.refused, before, lasting
        self.later.append(node)
        return later

    def node(self, node: onnx.NodeProto, scope: Scope) -> Sequence[Binding]:
        """Emit a node; returns its results. An unmapped node is recorded and returns FAILED."""
        label = scope.path + (node.name or (node.output[0] if node.output else node.op_type))
        failed = [FAILED] * len(node.output)
        if len(scope.calls) > MAX_DEPTH:
            raise GeError(
                "E10017", "functions call each other without end", node=label, operator=node.op_type
            )
        inputs = [scope.find(n) if n else None for n in node.input]
        if any(isinstance(v, Failed) for v in inputs):
            return failed
        domain = "" if node.domain == "ai.onnx" else node.domain
        scope.builder.set_origin(label)
        try:
            results = self._mapped(node, domain, label, inputs, scope)
            self._check_sizes(results, label, node.op_type)
        except Unsupported as error:
            self._refuse(
                node.op_type if not domain else f"{domain}.{node.op_type}", label, error.reason, error.remedy
            )
            if error.needs is not None:
                self.needed.add(error.needs)
            self.hopeful |= error.later
            self.lasting |= not error.later
            return failed
        except GeError as error:
            if error.code not in ("E10004", "E10005"):
                raise GeError(
                    error.code,
                    error.cause,
                    node=error.node or label,
                    operator=error.operator or node.op_type,
                    location=error.location,
                    remedy=error.remedy,
                ) from error
            self._refuse(node.op_type, label, error.cause, error.remedy)
            self.lasting = True
            return failed
        except MemoryError as error:
            raise GeError(
                "E10014", "its result does not fit into memory", node=label, operator=node.op_type
            ) from error
        except _MALFORMED as error:
            raise GeError(
                "E10018",
                f"the node is malformed: {error}",
                node=label,
                operator=node.op_type,
                remedy="check the model",
            ) from error
        return list(results) + [None] * (len(node.output) - len(results))

    def _mapped(
        self, node: onnx.NodeProto, domain: str, label: str, inputs: list[Binding], scope: Scope
    ) -> Sequence[Binding]:
        version = scope.versions.get(domain, 1)
        plugin = find("onnx", node.op_type, version, domain)
        function = self.file.functions.get((domain, node.op_type))
        if function is not None and (plugin is None or not plugin.custom):
            return self._call(function, self.attributes(node, scope), inputs, scope, node.op_type, label)
        attributes = self.attributes(node, scope)
        if plugin is None:
            return self._expand(node, domain, version, attributes, inputs, scope, label)
        _refuse_sequences(node.op_type, inputs)
        _refuse_narrow(node.op_type, inputs)
        self._refuse_dynamic(inputs)
        outputs = max((i + 1 for i, name in enumerate(node.output) if name), default=0)
        view = Node(
            node.op_type,
            label,
            inputs,  # type: ignore[arg-type]
            attributes,
            outputs,
            scope.builder,
            version,
            domain,
            Context(self, scope),
        )
        results = plugin.apply(view)
        found: list[Any] = [results] if isinstance(results, (ir.Value, Sequence_, Maps)) else list(results)
        return _kept_narrow(node.op_type, inputs, found)

    def _refuse(self, operator: str, node: str, reason: str, remedy: str) -> None:
        self.refused.setdefault((operator, reason, remedy), []).append(node)

    def refusals(self) -> UnsupportedOperatorsError:
        """All recorded refusals."""
        items = [
            UnmappedOperator(operator, len(nodes), tuple(nodes[:MAX_NAMES]), reason, remedy)
            for (operator, reason, remedy), nodes in (self.refused or self.waiting).items()
        ]
        return UnsupportedOperatorsError(self.file.name, items, later=self.hopeful)

    @staticmethod
    def _refuse_dynamic(inputs: Sequence[Binding]) -> None:
        for value in inputs:
            if isinstance(value, ir.Value) and has_dynamic_size(value):
                maker = value.producer()
                raise Unsupported(
                    f"it reads the result of {maker.op_type if maker else '?'}, whose size depends on data",
                    "run the model with ge.compile, which takes it in stages, or end it with that result",
                    later=True,
                )

    @staticmethod
    def _check_sizes(results: Sequence[Binding], label: str, type_: str) -> None:
        for value in results:
            if isinstance(value, ir.Value) and desc_of(value).nbytes > MAX_BYTES:
                raise GeError(
                    "E10014",
                    f"a result of {desc_of(value)} is larger than {MAX_BYTES >> 40} TiB",
                    node=label,
                    operator=type_,
                )

    # -- functions ------------------------------------------------------------------------------------------

    def _call(
        self,
        function: onnx.FunctionProto,
        attributes: Mapping[str, Any],
        inputs: Sequence[Binding],
        scope: Scope,
        name: str,
        label: str,
    ) -> list[Binding]:
        """Inline a function call."""
        defaults = {a.name: self.attribute(a, scope) for a in function.attribute_proto}
        versions = dict(scope.versions) | opset_versions(function.opset_import, name)
        inner = Scope(
            scope.builder,
            versions,
            attributes={**defaults, **attributes},
            calls=(*scope.calls, name),
            path=f"{label}/",
        )
        padded = list(inputs) + [None] * (len(function.input) - len(inputs))
        inner.values.update(zip(function.input, padded, strict=False))
        self.nodes(function.node, inner, f"function {name}")
        known = inner.names()  # a body omits optional outputs that the call does not use
        return [inner.find(n) if n in known else None for n in function.output]

    def _expand(
        self,
        node: onnx.NodeProto,
        domain: str,
        version: int,
        attributes: Mapping[str, Any],
        inputs: Sequence[Binding],
        scope: Scope,
        label: str,
    ) -> list[Binding]:
        """Expand an operator without a plugin by the function body of its ONNX schema."""
        schema = schema_of(node.op_type, version, domain)
        if schema is None:
            raise Unsupported(
                "no plugin maps it", "write a plugin with ge.ops.plugins, or replace it in the model"
            )
        _refuse_sequences(node.op_type, inputs)
        _refuse_narrow(node.op_type, inputs)
        self._refuse_dynamic(inputs)
        function = function_of(schema, version, _resolved(node, attributes), inputs)
        if function is None:
            raise Unsupported(
                "no plugin maps it and its function cannot be built for these inputs",
                "write a plugin with ge.ops.plugins, or replace it in the model",
            )
        defaults = {
            name: onnx.helper.get_attribute_value(a.default_value)
            for name, a in schema.attributes.items()
            if a.default_value.name
        }
        defaults = {k: v.decode() if isinstance(v, bytes) else v for k, v in defaults.items()}
        return self._call(function, {**defaults, **attributes}, inputs, scope, node.op_type, label)

    # -- attributes -----------------------------------------------------------------------------------------

    def attributes(self, node: onnx.NodeProto, scope: Scope) -> dict[str, Any]:
        """Attributes of a node as Python values; resolves references to a function's attributes."""
        found: dict[str, Any] = {}
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name in scope.attributes:
                    found[attribute.name] = scope.attributes[attribute.ref_attr_name]
                continue
            found[attribute.name] = self.attribute(attribute, scope)
        return found

    def attribute(self, attribute: onnx.AttributeProto, scope: Scope) -> Any:
        """Value of an attribute: tensors as arrays, strings as str, graphs unchanged."""
        kind, kinds = attribute.type, onnx.AttributeProto
        if kind == kinds.TENSOR:
            return array_of(attribute.t, self.file.folder, attribute.name)
        if kind == kinds.SPARSE_TENSOR:
            return dense_of(attribute.sparse_tensor, self.file.folder)
        value = onnx.helper.get_attribute_value(attribute)
        if kind == kinds.STRING:
            return value.decode("utf-8", "replace")
        if kind == kinds.STRINGS:
            return [v.decode("utf-8", "replace") for v in value]
        return list(value) if kind in (kinds.INTS, kinds.FLOATS) else value


@dataclass(frozen=True)
class Context:
    """The parser's interface for plugins with subgraphs."""

    converter: Converter
    scope: Scope

    def body(self, graph: onnx.GraphProto, builder: GraphBuilder, args: Sequence[Any]) -> list[Any]:
        """Emit a subgraph into a builder; returns the bindings of its outputs, none of them FAILED."""
        before = sum(map(len, self.converter.refused.values()))
        results = self.converter.body(graph, self.scope, builder, args)
        if any(r is FAILED for r in results):
            count = sum(map(len, self.converter.refused.values())) - before
            raise Unsupported(
                f"subgraph {graph.name} has {count} unsupported node(s)",
                "see them in this list",
                later=not self.converter.lasting,
            )
        return results

    def named(self, name: str) -> Any:
        """Look up a name of the model."""
        return self.scope.find(name)

    def constant(self, array: np.ndarray, name: str) -> ir.Value:
        """Create a constant; rejects unsupported element types."""
        return store(self.scope.builder, plain_array(array, "its value"), name)

    def attempt(self, make: Callable[[], Any]) -> Any:
        """Result of `make`; None, with all side effects undone, if it is rejected."""
        refused = {key: list(nodes) for key, nodes in self.converter.refused.items()}
        needed, lasting = set(self.converter.needed), self.converter.lasting
        try:
            return make()
        except Unsupported:
            self.converter.refused, self.converter.needed = refused, needed
            self.converter.lasting = lasting
            return None

    def note(self, text: str) -> None:
        """Add a note for the user."""
        self.converter.file.notes.append(text)


def _refuse_sequences(type_: str, inputs: Sequence[Binding]) -> None:
    """Reject sequences as inputs of operators that do not support them."""
    if type_ in _TAKES_SEQUENCES:
        return
    if any(isinstance(v, Sequence_ | Maps) for v in inputs):
        raise Unsupported("it is given a sequence or an optional", "use tensors")


def _refuse_narrow(type_: str, inputs: Sequence[Binding]) -> None:
    """Reject narrow types as inputs of operators other than conversions, quantisation and movements."""
    names = [facts.narrow(v) for v in inputs if isinstance(v, ir.Value)]
    if TEXT in names and type_ not in TAKES_TEXT | _TAKES_SEQUENCES:
        raise Unsupported(
            "it is given strings, which can be moved and compared only", "prepare text on the host"
        )
    if any(names) and TEXT not in names and type_ not in TAKES_NARROW:
        raise Unsupported(f"no engine accepts {next(n for n in names if n)}", "convert it with Cast")


def _kept_narrow(type_: str, inputs: Sequence[Binding], results: list[Binding]) -> list[Binding]:
    """Results of movements keep the narrow type of their input."""
    place = TEXT_MOVES.get(type_, 0)
    first = inputs[place] if len(inputs) > place else None
    name = facts.narrow(first) if isinstance(first, ir.Value) else ""
    if name and (type_ in MOVES or (name == TEXT and type_ in TEXT_MOVES)):
        for value in results:
            if isinstance(value, ir.Value):
                facts.set_narrow(value, name)
    return results


_TAKES_SEQUENCES = frozenset(
    {
        "AdamWOptimizer",
        "ConcatFromSequence",
        "Identity",
        "If",
        "Loop",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SGDOptimizerV2",
        "SequenceAt",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SequenceMap",
    }
)


def _reader(tensor: onnx.TensorProto, folder: DataFolder | None) -> Callable[[], np.ndarray]:
    return lambda: plain_array(array_of(tensor, folder), tensor.name)


def plain_array(array: np.ndarray, name: str) -> np.ndarray:
    """Convert an array to a supported element type."""
    if array.dtype.kind in "OSU":
        return array
    try:
        plain_dtype(int(ir.DataType.from_numpy(array.dtype)))
    except (KeyError, TypeError):
        raise Unsupported(
            f"{name} is a constant of type {array.dtype}, which no engine accepts", "convert it"
        ) from None
    return array


def dense_of(sparse: onnx.SparseTensorProto, folder: DataFolder | None) -> np.ndarray:
    """Convert a sparse tensor to a dense array."""
    values, indices = array_of(sparse.values, folder), array_of(sparse.indices, folder)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def _resolved(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> onnx.NodeProto:
    """The node with references to a function's attributes replaced by their values."""
    if not any(a.ref_attr_name for a in node.attribute):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    del copy.attribute[:]
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            copy.attribute.append(attribute)
        elif attribute.name in attributes:
            copy.attribute.append(onnx.helper.make_attribute(attribute.name, attributes[attribute.name]))
    return copy


def function_of(
    schema: Any, version: int, node: onnx.NodeProto, inputs: Sequence[Binding]
) -> onnx.FunctionProto | None:
    """The function body that a schema defines for a node; None if there is none."""
    if schema.has_function:
        fitting = [v for v in schema.function_opset_versions if v <= version]
        data = schema.get_function_with_opset_version(max(fitting)) if fitting else None
        return _function(data) if data else None
    if not schema.has_context_dependent_function:
        return None
    types = [_type_proto(v) for v in inputs]
    fitting = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not fitting:
        return None
    data = schema.get_context_dependent_function_with_opset_version(
        max(fitting), node.SerializeToString(), types
    )
    return _function(data) if data else None


def _function(data: Any) -> onnx.FunctionProto:
    if isinstance(data, onnx.FunctionProto):
        return data
    function = onnx.FunctionProto()
    function.ParseFromString(data)
    return function


def _type_proto(value: Binding) -> bytes:
    if not isinstance(value, ir.Value):
        return onnx.TypeProto().SerializeToString()
    desc: TensorDesc = desc_of(value)
    proto = onnx.helper.make_tensor_type_proto(int(dtype_to_ir(desc.dtype)), list(desc.shape))
    return proto.SerializeToString()
