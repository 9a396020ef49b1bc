"""Staged TensorFlow models (see `ge.hybrid.cuts`): host operators, then convertible nodes, alternately.

1. Functions are inlined, so that a stage may end anywhere.
2. The host runs operators on text, tables and ragged structure, and integers whose operands it has.
3. What a later stage reads of a stage is an output of it; constants and variables are read again.
4. An If that cannot be converted waits until its condition is known; then the taken branch replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError, UnmappedOperator, UnsupportedOperatorsError
from ge.hybrid.cuts import Cut, constants_for
from ge.ir.types import TENSORS
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.parsers.tensorflow.convert import Converter, Scope, remedy_of
from ge.parsers.tensorflow.files import Signature, load_model
from ge.parsers.tensorflow.graph import Body, GraphNode, Library, Ref, topological
from ge.parsers.tensorflow.host import INTEGERS, OPERATORS, HostNode
from ge.parsers.tensorflow.host.operators import Resources, as_bytes
from ge.parsers.tensorflow.host.tables import FILLING, Table
from ge.parsers.tensorflow.inline import inlined, with_branches
from ge.parsers.tensorflow.parser import bodies_of, outputs_of, signature_of
from ge.parsers.tensorflow.positions import Positions
from ge.parsers.tensorflow.state import VariableStore
from ge.parsers.tensorflow.values import Binding, Missing

__all__ = ["TensorflowStage", "first_stage", "stage_of_body"]

_PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
_BRANCHES = ("If", "StatelessIf")
_LEAVES = ("Const", "VarHandleOp", "VariableV2", "ReadVariableOp", "NoOp")
Sizes = dict[str, tuple[int, ...] | None]


def text_of(ref: Ref) -> str:
    """The name of a tensor."""
    return f"{ref[0]}:{ref[1]}"


@dataclass
class _Model:
    """What all stages of a model share."""

    name: str
    library: Library
    store: VariableStore | None
    inputs: Mapping[str, Ref]
    resources: Resources

    def converter(self, builder: GraphBuilder) -> Converter:
        return Converter(self.library, builder, variables=self.store, host=())


def first_stage(source: Any, options: CompileOptions) -> tuple[TensorflowStage, tuple[str, ...], Sizes]:
    """The whole model, the names of its outputs, and its inputs with -1 for open sizes."""
    file = load_model(source)
    library, body = bodies_of(file)
    signature = None if options.output_nodes else signature_of(file, options.signature or None)
    store = VariableStore(file.checkpoint, body, library, file.restore_node)
    resources = Resources(checkpoint=file.checkpoint, assets=file.assets)
    return stage_of_body(file.name, body, signature, options, library, store, resources)


def stage_of_body(
    name: str,
    outer: Body,
    signature: Signature | None,
    options: CompileOptions,
    library: Library | None = None,
    store: VariableStore | None = None,
    resources: Resources | None = None,
) -> tuple[TensorflowStage, tuple[str, ...], Sizes]:
    """The same of a body whose inputs are placeholders."""
    library = library or Library()
    wanted = outputs_of(outer, signature, options.output_nodes)
    outer.results = list(wanted.values())
    body = inlined(outer, library)
    reached = _reached(body, body.results)
    specs = signature.inputs if signature is not None else {}
    inputs = {key: (spec.tensor.partition(":")[0], 0) for key, spec in specs.items()}
    inputs.update(
        {n: (n, 0) for n in reached if body.nodes[n].op in _PLACEHOLDERS and (n, 0) not in inputs.values()}
    )
    model = _Model(name, library, store, inputs, resources or Resources())
    _check(model, body, reached)
    _fill_tables(model, body)
    sizes = {key: _declared(body.nodes[ref[0]], options.input_shapes.get(key)) for key, ref in inputs.items()}
    known = frozenset(text_of(ref) for ref in inputs.values())
    return TensorflowStage(model, body, known), tuple(map(text_of, body.results)), sizes


def _declared(node: GraphNode, given: Sequence[int] | None) -> tuple[int, ...] | None:
    declared = node.attrs.get("shape")
    sizes = declared if isinstance(declared, tuple) else None
    return tuple(int(d) for d in given) if given is not None else sizes


def _reached(body: Body, results: Iterable[Ref], bound: Iterable[str] = ()) -> list[str]:
    """The nodes that results depend on, dependencies first."""
    stop = set(bound)
    return topological(
        body.nodes,
        [n for n, _ in results],
        lambda node: () if node.name in stop else [n for n, _ in node.inputs],
    )


def _check(model: _Model, body: Body, reached: Sequence[str]) -> None:
    """Refuse operators that neither side has, and functions that write variables."""
    import ge.ops  # noqa: F401  (declares the plugins)

    converter = model.converter(GraphBuilder(model.name))
    missing: dict[str, list[str]] = {}
    for name in reached:
        op = body.nodes[name].op
        if op not in OPERATORS and op not in _PLACEHOLDERS and not converter.is_mapped(op):
            missing.setdefault(op, []).append(name)
    if missing:
        items = [
            UnmappedOperator(
                op,
                len(n),
                tuple(n[:8]),
                "no plugin maps it, nor has the host a function for it",
                remedy_of(op),
            )
            for op, n in missing.items()
        ]
        raise UnsupportedOperatorsError(f"model '{model.name}'", items)
    for name in body.effects:
        node, scope = body.nodes.get(name), name.rpartition("/")[0] + "/"
        if node is not None and converter.has_effect(node) and any(n.startswith(scope) for n in reached):
            raise GeError(
                "E10107",
                "it writes a variable, and a compiled model keeps no state",
                node=name,
                operator=node.op,
                remedy="export the model for inference",
            )


def _fill_tables(model: _Model, body: Body) -> None:
    """Run every node that fills a table, from constants, assets or the checkpoint."""
    values = _asset_paths(model, body)
    filling = [n for n in body.nodes.values() if n.op in FILLING]
    for name in _reached(body, [(n.name, 0) for n in filling]):
        node = body.nodes[name]
        if f"{name}:0" in values:
            continue
        if node.op in _PLACEHOLDERS:
            values[f"{name}:0"] = np.array(b"", object)
        elif all(text_of(ref) in values for ref in node.inputs) and (node.op in OPERATORS or _on_host(node)):
            inputs = [values[text_of(ref)] for ref in node.inputs]
            if all(i is not None for i in inputs):
                values.update(_run(model, node, inputs))


def _asset_paths(model: _Model, body: Body) -> dict[str, Any]:
    """The tensors that name files of the model: as the file says, and where variables hold them."""
    paths = {name: np.array(str(path).encode(), object) for name, path in model.resources.assets.items()}
    held = {
        node.inputs[0]: paths[node.inputs[1][0]]
        for node in body.nodes.values()
        if node.op == "AssignVariableOp" and node.inputs[1][0] in paths
    }
    read = {
        node.name: held[node.inputs[0]]
        for node in body.nodes.values()
        if node.op == "ReadVariableOp" and node.inputs[0] in held
    }
    return {f"{name}:0": path for name, path in {**paths, **read}.items()}


def _on_host(node: GraphNode) -> bool:
    return node.op == "Const" or node.op in INTEGERS


def _run(model: _Model, node: GraphNode, inputs: Sequence[Any]) -> dict[str, Any]:
    """The results of a node on the host, by tensor."""
    if node.op == "Const":
        return {f"{node.name}:0": node.attrs["value"]}
    function = OPERATORS.get(node.op) or INTEGERS[node.op]
    try:
        made = function(HostNode(node.name, node.op, node.attrs, model.resources), *inputs)
    except GeError:
        raise
    except (ValueError, IndexError, TypeError, KeyError, UnicodeError) as error:
        raise GeError(
            "E10024",
            f"the host cannot run it: {error}",
            node=node.name,
            operator=node.op,
            remedy="check the inputs",
        ) from error
    results = made if isinstance(made, tuple) else (made,)
    return {f"{node.name}:{i}": r if isinstance(r, Table) else np.asarray(r) for i, r in enumerate(results)}


@dataclass
class TensorflowStage:
    """The nodes that outputs still need, where some tensors are known."""

    model: _Model
    body: Body
    known: frozenset[str]
    branches: tuple[str, ...] = ()  # Ifs whose condition chooses a branch before this stage
    _calls: list[GraphNode] | None = field(default=None, repr=False)
    _reads: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What is known, and the branches taken before."""
        return (self.known, self.branches, len(self.body.nodes))

    @property
    def reads(self) -> tuple[str, ...]:
        """The known tensors that are no text; what `prepare` adds is among them."""
        return self._reads

    # -- the host -------------------------------------------------------------------------------------------

    def prepare(self, values: dict[str, Any]) -> None:
        """Run what the host can run; which nodes those are does not depend on sizes."""
        for name, ref in self.model.inputs.items():
            if text_of(ref) not in values:
                values[text_of(ref)] = self._given(name, ref, values[name])
        if self._calls is not None:
            for node in self._calls:
                values.update(_run(self.model, node, [values[text_of(r)] for r in node.inputs]))
            return
        calls = self._planned(values)
        needed = {r for n in self._open(values) for r in self.body.nodes[n].inputs}
        known = (text_of(r) for r in needed if self.body.nodes[r[0]].op != "Const" and text_of(r) in values)
        self._reads = tuple(sorted(n for n in known if not _is_text(values[n])))
        self._calls = calls

    def _given(self, name: str, ref: Ref, value: Any) -> np.ndarray:
        kind = str(self.model_node(ref).attrs.get("dtype", "float32"))
        array = as_bytes(value) if kind == "string" else np.asarray(value)
        if kind != "string" and array.dtype.name != kind:
            raise GeError(
                "E10020",
                f"input '{name}' is {array.dtype}, the model takes {kind}",
                remedy="convert it first",
            )
        return array

    def model_node(self, ref: Ref) -> GraphNode:
        """The node of a tensor."""
        return self.body.nodes[ref[0]]

    def _planned(self, values: dict[str, Any]) -> list[GraphNode]:
        calls: list[GraphNode] = []
        constants: set[str] = set()
        for name in self._open(values):
            node = self.body.nodes[name]
            inputs = [values.get(text_of(ref)) for ref in node.inputs]
            if node.op == "Const":
                values.update(_run(self.model, node, []))
                constants.add(name)
                calls.append(node)
            elif all(i is not None for i in inputs) and self._takes(node, inputs, constants):
                values.update(_run(self.model, node, inputs))
                calls.append(node)
        return calls

    @staticmethod
    def _takes(node: GraphNode, inputs: Sequence[Any], constants: set[str]) -> bool:
        """Text, tables and structure; integers where all operands are, and not only constants."""
        if node.op in OPERATORS:
            return True
        if node.op not in INTEGERS or all(n in constants for n, _ in node.inputs):
            return node.op in INTEGERS and any(
                isinstance(i, np.ndarray) and i.dtype.kind == "O" for i in inputs
            )
        return all(isinstance(i, np.ndarray) and i.dtype.kind in "biuO" for i in inputs)

    def _open(self, values: Mapping[str, Any]) -> list[str]:
        """The nodes that are not known and that outputs need, dependencies first."""
        done = {name.rpartition(":")[0] for name in values}
        wanted = [ref for ref in self.body.results if text_of(ref) not in values]
        return [n for n in _reached(self.body, wanted, done) if n not in done]

    # -- the device -----------------------------------------------------------------------------------------

    def cut(self, values: Mapping[str, Any]) -> Cut:
        """Convert what the known tensors' shapes allow; values that decide sizes become constants."""
        fixed: dict[str, np.ndarray] = {}
        while True:
            converter, scope = self._converted(values, fixed)
            more = constants_for(converter.needs, values, self._reads)
            if more.keys() <= fixed.keys():
                break
            fixed.update(more)
        crossing = self._crossing(scope, values)
        graph = scope.builder.graph
        for name, value in crossing.items():
            scope.builder.output(value, name)
        known = frozenset({*values, *crossing} - set(self.model.inputs))
        rest, deciding = self._rest(known, values)
        left = [ref for ref in self.body.results if text_of(ref) not in known]
        if left and not crossing and rest.body is self.body:
            converter.report(self.model.name)
            raise GeError(
                "E10107", f"the output '{text_of(left[0])}' cannot be computed", location=self.model.name
            )
        inputs = tuple(v.name or "" for v in graph.inputs)
        return Cut(graph, inputs, tuple(crossing), frozenset(fixed) | deciding, rest if left else None)

    def _converted(self, values: Mapping[str, Any], fixed: Mapping[str, Any]) -> tuple[Converter, Scope]:
        builder = GraphBuilder(self.model.name)
        converter = self.model.converter(builder)
        scope = Scope(self.body, builder)
        for name in sorted(values):
            node, _, index = name.rpartition(":")
            if node not in self.body.nodes or self.body.nodes[node].op == "Const":
                continue
            outputs: list[Binding] = scope.values.setdefault(node, [])  # type: ignore[assignment]
            outputs += [Missing("an output that is not given")] * (int(index) + 1 - len(outputs))
            outputs[int(index)] = self._bound(builder, name, values[name], fixed)
        wanted = [n for (n, i) in self.body.results if f"{n}:{i}" not in values]
        converter.evaluate(scope, wanted)
        return converter, scope

    def _bound(self, builder: GraphBuilder, name: str, value: Any, fixed: Mapping[str, Any]) -> Binding:
        if name in fixed:
            return builder.constant(fixed[name], name)
        if name in self._reads and value.dtype.name in TENSORS:
            return builder.input(name, value.shape, value.dtype.name)
        return Missing("a value of the host")

    def _crossing(self, scope: Scope, values: Mapping[str, Any]) -> dict[str, ir.Value]:
        """The tensors that were made here and that outputs or later stages need."""
        made = {n: v for n, v in scope.values.items() if not isinstance(v, Missing)}
        nodes = self._open(values)
        fixed = self._constant_nodes(nodes)
        read = [r for n in nodes if n not in made for r in self.body.nodes[n].inputs]
        found: dict[str, ir.Value] = {}
        for ref in dict.fromkeys([*self.body.results, *read]):
            outputs: Any = made.get(ref[0], ())
            if (
                text_of(ref) in values
                or ref[1] >= len(outputs)
                or (ref[0] in fixed and ref not in self.body.results)
            ):
                continue
            value = outputs[ref[1]]
            if isinstance(value, Positions):
                value = value.tensor(scope.builder)
            if isinstance(value, ir.Value):
                found[text_of(ref)] = value
        return found

    def _constant_nodes(self, nodes: Sequence[str]) -> set[str]:
        """Nodes that depend on constants and variables only."""
        found: set[str] = set()
        for name in nodes:
            node = self.body.nodes[name]
            if node.op in _LEAVES or (node.inputs and all(n in found for n, _ in node.inputs)):
                found.add(name)
        return found

    def _rest(
        self, known: frozenset[str], values: Mapping[str, Any]
    ) -> tuple[TensorflowStage, frozenset[str]]:
        """The next stage; Ifs whose conditions are known by now give way to a branch."""
        taken: dict[str, bool] = {}
        deciding = set()
        for name in self._open(dict.fromkeys(known)):
            node = self.body.nodes[name]
            condition = values.get(text_of(node.inputs[0])) if node.op in _BRANCHES else None
            if isinstance(condition, np.ndarray):
                taken[name] = bool(condition) if not condition.ndim else condition.size > 0
                deciding.add(text_of(node.inputs[0]))
        if not taken:
            return TensorflowStage(self.model, self.body, known, self.branches), frozenset()
        body = with_branches(self.body, self.model.library, taken)
        marks = tuple(f"{n}={t}" for n, t in taken.items())
        return TensorflowStage(
            self.model, inlined(body, self.model.library), known, self.branches + marks
        ), frozenset(deciding)


def _is_text(value: Any) -> bool:
    return not isinstance(value, np.ndarray) or value.dtype.kind == "O"
