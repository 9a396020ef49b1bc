"""Converts TensorFlow nodes to a GE graph in dependency order, with one handler or plugin per node.

Nodes that carry structure (calls, branches, loops, lists, variables) have handlers, declared with `@handler`;
all others go to the plugins of ge.ops. What cannot be converted is collected, so that one report names all of
it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError, UnmappedOperator, UnsupportedOperatorsError, UserCodeError
from ge.faults import absorb
from ge.ir.types import TENSORS
from ge.ir.values import constant_of, desc_of
from ge.ops.base import has_dynamic_size
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Node, Unsupported, find, find_custom
from ge.parsers.tensorflow.graph import ARGUMENT, Body, GraphNode, Library, Ref, topological, with_absent
from ge.parsers.tensorflow.tensor import CHECKED, FunctionRef
from ge.parsers.tensorflow.values import (
    DEAD,
    FAILED,
    UNKNOWN,
    Binding,
    HostTensor,
    Missing,
    Opaque,
    Variable,
    VariableSpec,
)

__all__ = [
    "EFFECTS",
    "HANDLERS",
    "Context",
    "Converter",
    "Refusal",
    "Scope",
    "handler",
    "remedy_of",
    "special",
]

MAX_DEPTH = 48
NODE_BUDGET = 400_000
NAMED_NODES = 8  # node names kept per operator in a report

# Operators that change state; others that TensorFlow calls stateful (prints, summaries, checks) are not run.
EFFECTS: set[str] = set()

_CHOICES = ("If", "StatelessIf", "Case", "StatelessCase")

# Codes of errors that say "this use is not supported" rather than "this graph is broken".
_UNSUPPORTED_CODES = frozenset({"E10001", "E10002", "E10003", "E10004"})

Outputs = Sequence[Binding] | Missing
Failures = dict[tuple[str, str, str], list[str]]  # operator, reason, remedy -> nodes


@dataclass(frozen=True)
class Refusal:
    """Why a node cannot be converted: the operator at fault may be inside a function that the node calls."""

    operator: str
    reason: str
    remedy: str = ""


@dataclass
class Scope:
    """One body being converted into one builder."""

    body: Body
    builder: GraphBuilder
    prefix: str = ""
    values: dict[str, Outputs] = field(default_factory=dict)
    depth: int = 0

    def label(self, node: GraphNode) -> str:
        return f"{self.prefix}{node.name}"


@dataclass
class Context:
    """What a handler gets: the node, its resolved inputs and the way back into the converter."""

    converter: Converter
    scope: Scope
    node: GraphNode
    inputs: list[Binding]

    @property
    def builder(self) -> GraphBuilder:
        return self.scope.builder

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute or its default."""
        value = self.node.attrs.get(name)
        return default if value is None else value

    def binding(self, index: int) -> Binding:
        """An input of whatever kind."""
        if index >= len(self.inputs):
            raise GeError("E10105", f"input {index} is missing", node=self.node.name, operator=self.node.op)
        return self.inputs[index]

    def tensor(self, index: int) -> ir.Value:
        """An input that must be a tensor."""
        return self.converter.tensor(self.binding(index), f"input {index}")

    def const(self, index: int, what: str) -> np.ndarray:
        """A constant input that decides a shape."""
        array = constant_of(self.tensor(index))
        if array is None:
            raise Unsupported(
                f"{what} is computed at run time and decides a shape",
                "give the model static input shapes",
                self.tensor(index),
            )
        return array

    def function(self, name: str) -> Body:
        """The body that a function attribute names."""
        return self.converter.function(self.node.attrs.get(name), self.node)


Handler = Callable[[Context], Outputs]
HANDLERS: dict[str, Handler] = {}
# Names of operators that write variables; one that is not known must be refused, not left out.
_WRITES = re.compile("(Resource)?(Sparse)?(Apply|Assign|Scatter|StridedSliceAssign|Accumulator)")


def handler(*ops: str) -> Callable[[Handler], Handler]:
    """Declare how the parser itself treats operators (a decorator)."""

    def declare(function: Handler) -> Handler:
        for op in ops:
            HANDLERS[op] = function
        return function

    return declare


_SPECIAL: dict[type[Opaque], Handler] = {}


def special(kind: type[Opaque]) -> Callable[[Handler], Handler]:
    """Declare who treats every node that reads a value of some kind (a decorator)."""

    def declare(function: Handler) -> Handler:
        _SPECIAL[kind] = function
        return function

    return declare


class Converter:
    """Converts bodies; holds what spans them: the function library, variables, failures and warnings."""

    def __init__(
        self,
        library: Library,
        root: GraphBuilder,
        *,
        variables: Callable[[str, GraphNode], VariableSpec] | None = None,
        updates: bool = False,
        host: Collection[str] | None = None,
    ) -> None:
        self.library = library
        self.root = root
        self.tolerant = host is not None  # whatever cannot be converted will run elsewhere
        self.host = host or ()  # nodes of the outermost body that are not to be converted
        self.settled: dict[str, np.ndarray] = {}  # their first inputs, where these are constant
        self.refused: dict[str, Refusal] = {}  # nodes of the outermost body that could not be
        self.needs: list[ir.Value] = []  # computed values that would have to be constant
        self.hopeful = False  # whether a node was refused that a later stage, or the host, could run
        self.state: dict[str, ir.Value] = {}  # values of variables that were written
        self.updated: dict[str, None] = {}  # variables that were written, in order
        self.drawn: dict[str, ir.Value] = {}  # counters of random operators as they are before a draw
        self.allow_updates = updates
        self.warnings: list[str] = []
        self.failures: Failures = defaultdict(list)
        self._variables = variables
        self._specs: dict[str, VariableSpec] = {}
        self._initial: dict[str, ir.Value] = {}
        self._calls: list[str] = []
        self._converted = 0
        self._effectful: dict[int, bool] = {}
        self._last = Refusal("", "")

    # -- bodies ----------------------------------------------------------------------------------------------

    def function(self, ref: FunctionRef | Body | None, node: GraphNode) -> Body:
        """The body behind a function attribute."""
        if isinstance(ref, Body):
            return ref
        if ref is None:
            raise GeError("E10105", "names no function", node=node.name, operator=node.op)
        return self.library.body(ref, node.name)

    def call(
        self, body: Body, args: Sequence[Binding], builder: GraphBuilder, *, prefix: str = "", depth: int = 0
    ) -> list[Binding]:
        """Convert a body with given arguments into a builder; its results."""
        if len(args) != len(body.args):
            raise GeError("E10105", f"'{body.name}' takes {len(body.args)} arguments, got {len(args)}")
        if depth > MAX_DEPTH or body.name in self._calls:
            raise GeError(
                "E10106", f"the function '{body.name}' calls itself or is nested more than {MAX_DEPTH} deep"
            )
        scope = Scope(body, builder, prefix, depth=depth)
        bound: dict[str, list[Binding]] = defaultdict(list)
        for (name, _), value in zip(body.args, args, strict=True):
            bound[name].append(value)
        scope.values.update(bound)
        self._calls.append(body.name)
        try:
            self.evaluate(scope, [*(name for name, _ in body.results), *body.effects])
        finally:
            self._calls.pop()
        return [self.binding(scope, ref) for ref in body.results]

    def evaluate(self, scope: Scope, roots: Sequence[str]) -> None:
        """Convert the roots and all they depend on."""
        for name in self.order(scope.body, roots, scope.values):
            if name not in scope.values:
                node = scope.body.nodes[name]
                known = self._failed()
                scope.values[name] = self._convert(scope, node)
                if not scope.depth and self._failed() > known:
                    self.refused[name] = self._last

    def _failed(self) -> int:
        return sum(map(len, self.failures.values()))

    def _refuse(self, label: str, refusal: Refusal) -> None:
        self.failures[refusal.operator, refusal.reason, refusal.remedy].append(label)
        self._last = refusal

    def order(self, body: Body, roots: Sequence[str], bound: Mapping[str, Any]) -> list[str]:
        """The nodes to convert, dependencies first.

        Control edges demand only what changes state, but what is demanded follows the order they ask for.
        """
        nodes = body.nodes
        unread = {e for e in body.effects if e not in {n for n, _ in body.results}}
        wanted = [r for r in roots if r not in bound]
        if not self._body_has_effect(body):
            return topological(nodes, [r for r in wanted if r not in unread], lambda n: _data(n, bound))
        everything = topological(nodes, wanted, lambda n: (*_data(n, bound), *n.controls))
        active: set[str] = set()
        for name in everything:
            node = nodes[name]
            if self.has_effect(node) or any(d in active for d in (*_data(node, bound), *node.controls)):
                active.add(name)
        kept = [r for r in wanted if r not in unread or r in active]
        demanded = topological(
            nodes, kept, lambda n: (*_data(n, bound), *(c for c in n.controls if c in active))
        )
        chosen = set(demanded)
        return [name for name in everything if name in chosen]

    def has_effect(self, node: GraphNode) -> bool:
        """Whether executing a node changes state, itself or in a function it calls."""
        if (
            node.op in EFFECTS
            or node.attrs.get(CHECKED)
            or (_WRITES.match(node.op) and not self.is_mapped(node.op))
        ):
            return True
        return any(self._body_has_effect(b) for b in self._called(node))

    def _body_has_effect(self, body: Body) -> bool:
        key = id(body)
        if key not in self._effectful:
            self._effectful[key] = False  # a function that calls itself is reported when it is converted
            self._effectful[key] = any(self.has_effect(n) for n in body.nodes.values())
        return self._effectful[key]

    def _library_operator(self, node: GraphNode) -> tuple[str, dict[str, Any], tuple[int, ...]] | None:
        """The operator of the library that a call stands for, its attributes and its absent inputs."""
        ref = node.attrs.get("f")
        name = ref.name if isinstance(ref, FunctionRef) else node.op
        return self.library.implements(name)

    def _called(self, node: GraphNode) -> Iterator[Body]:
        """The bodies that a node calls."""
        if self._library_operator(node) is not None:
            return
        if node.op in self.library:
            yield self.library.body(node.op)
        for value in node.attrs.values():
            for item in value if isinstance(value, list) else (value,):
                if isinstance(item, Body):
                    yield item
                elif isinstance(item, FunctionRef) and item.name in self.library:
                    yield self.library.body(item, node.name)

    def _reached(self, body: Body, node: GraphNode) -> list[Body]:
        """The bodies that a node may call: of a branch whose predicate is a constant, only the taken one."""
        taken = (
            _known_predicate(body, node.inputs[0])
            if node.op in ("If", "StatelessIf") and node.inputs
            else None
        )
        if taken is None:
            return list(self._called(node))
        return [self.function(node.attrs.get("then_branch" if taken else "else_branch"), node)]

    # -- nodes -----------------------------------------------------------------------------------------------

    def binding(self, scope: Scope, ref: Ref) -> Binding:
        """What an output of a converted node is."""
        outputs = scope.values[ref[0]]
        if isinstance(outputs, Missing):
            return outputs
        if ref[1] >= len(outputs):
            node = scope.body.nodes[ref[0]]
            cause = f"output {ref[1]} is read, it has {len(outputs)}"
            raise GeError("E10105", cause, node=node.name, operator=node.op)
        return outputs[ref[1]]

    def _convert(self, scope: Scope, node: GraphNode) -> Outputs:
        self._converted += 1
        if self._converted > NODE_BUDGET:
            raise GeError(
                "E10106", f"the model expands to more than {NODE_BUDGET} nodes", location=scope.body.name
            )
        inputs = [self.binding(scope, ref) for ref in node.inputs]
        if not scope.depth and node.name in self.host:
            first = inputs[0] if inputs and isinstance(inputs[0], ir.Value) else None
            known = constant_of(first)
            if known is not None:
                self.settled[node.name] = known
            return UNKNOWN
        merge = node.op in ("Merge", "RefMerge")
        if FAILED in inputs:
            return FAILED
        if UNKNOWN in inputs:
            return UNKNOWN
        if DEAD in inputs and not merge:
            return DEAD
        label = scope.label(node)
        scope.builder.set_origin(label)
        try:
            return self.dispatch(Context(self, scope, node, inputs))
        except Unsupported as error:
            if error.needs is not None:
                self.needs.append(error.needs)
            self.hopeful |= error.later
            self._refuse(label, Refusal(node.op, error.reason, error.remedy))
        except GeError as error:
            unsupported = self.tolerant or error.code in _UNSUPPORTED_CODES
            if isinstance(error, UserCodeError) or not unsupported:
                raise
            self._refuse(label, Refusal(node.op, error.cause, error.remedy))
        except MemoryError as error:
            if not self.tolerant:
                cause = "its result does not fit into memory"
                raise GeError("E10014", cause, node=label, operator=node.op) from error
            self._refuse(label, Refusal(node.op, "its result does not fit into memory"))
        except Exception as error:
            if self.tolerant:
                self._refuse(label, Refusal(node.op, str(absorb(f"{node.op} '{label}'", error))))
                return FAILED
            cause = f"the node is malformed ({type(error).__name__}: {error})"
            raise GeError("E10105", cause, node=label, operator=node.op) from error
        return FAILED

    def dispatch(self, context: Context) -> Outputs:
        """The outputs of a node by its handler, plugin or function."""
        node = context.node
        custom = find_custom("tensorflow", node.op)
        if custom is not None:
            return self._plugin(custom.apply, context)
        operator = self._library_operator(node)
        if operator is not None:
            type_, attrs, absent = operator
            return self._plugin(
                lambda n: n.builder.ops(type_, with_absent(n.inputs, absent), **attrs), context
            )
        for binding in context.inputs:
            if type(binding) in _SPECIAL:
                return _SPECIAL[type(binding)](context)  # type: ignore[index]
        if node.op in HANDLERS:
            return HANDLERS[node.op](context)
        found = find("tensorflow", node.op)
        if found is not None:
            return self._plugin(found.function, context)
        if node.op in self.library:
            return HANDLERS["PartitionedCall"](context)
        raise Unsupported("no plugin maps it", remedy_of(node.op))

    def by_plugin(self, context: Context) -> Outputs:
        """Convert a node as if the parser itself did not treat its operator."""
        found = find("tensorflow", context.node.op)
        if found is None:
            raise Unsupported("no plugin maps it", remedy_of(context.node.op))
        return self._plugin(found.function, context)

    def _plugin(self, function: Callable[[Node], Any], context: Context) -> Outputs:
        node = context.node
        attrs = {k: v for k, v in node.attrs.items() if v is not None}
        inputs = [self.tensor(b, f"input {i}") for i, b in enumerate(context.inputs)]
        _refuse_dynamic(inputs)
        version = self.library.producer
        seen = Node(
            node.op, context.scope.label(node), inputs, attrs, 1, context.builder, version, parser=self
        )
        made = function(seen)
        results = [made] if isinstance(made, ir.Value) else list(made)
        return [FAILED if r is None else r for r in results]

    def tensor(self, binding: Binding, what: str = "an input") -> ir.Value:
        """A binding as a tensor; references are read."""
        if isinstance(binding, ir.Value):
            return binding
        if isinstance(binding, Variable) and binding.is_ref:
            return self.read(binding)
        text = isinstance(binding, HostTensor) and binding.dtype == "string"
        raise Unsupported(f"{what} is {binding.what}, which the NPU has no type for", later=text)

    def constant(self, builder: GraphBuilder, array: np.ndarray, dtype: str, name: str) -> Binding:
        """A constant, kept on the host when the device has no such element type."""
        return builder.constant(array, name) if dtype in TENSORS else HostTensor(array, dtype)

    # -- variables -------------------------------------------------------------------------------------------

    def variable(self, key: str, node: GraphNode, *, is_ref: bool = False) -> Variable:
        """The handle of a variable that a node declares."""
        if key not in self._specs:
            if self._variables is None:
                raise Unsupported(
                    f"the variable '{key}' has no value", "freeze the model, or give its checkpoint"
                )
            self._specs[key] = self._variables(key, node)
        return Variable(key, is_ref)

    def declare(self, spec: VariableSpec) -> Variable:
        """Make a variable known that is handed in from outside."""
        self._specs[spec.name] = spec
        return Variable(spec.name)

    def spec(self, variable: Variable) -> VariableSpec:
        return self._specs[variable.name]

    def read(self, variable: Variable) -> ir.Value:
        """A variable's current value: what was written last, or what it came with."""
        if variable.name in self.state:
            return self.state[variable.name]
        if variable.name not in self._initial:
            spec = self._specs[variable.name]
            self._initial[variable.name] = (
                self.root.input(spec.name, spec.desc.shape, spec.desc.dtype)
                if spec.value is None
                else self.root.constant(spec.value, spec.name)
            )
        return self._initial[variable.name]

    def write(self, variable: Variable, value: ir.Value) -> None:
        """A variable's new value."""
        spec = self._specs[variable.name]
        if not self.allow_updates:
            raise Unsupported(
                f"it writes the variable '{spec.name}', and a compiled model keeps no state",
                "export the model for inference, without the parts that train or count",
            )
        if desc_of(value) != spec.desc:
            raise Unsupported(
                f"it gives the variable '{spec.name}' ({spec.desc}) a value of {desc_of(value)}"
            )
        self.state[variable.name] = value
        self.updated[variable.name] = None

    @contextmanager
    def branch_state(self) -> Iterator[dict[str, ir.Value]]:
        """Conversion of a nested graph: what it makes of the state is yielded, then forgotten.

        The caller writes the variables if it keeps the nested graph: a loop that is known not to run writes none.
        """
        before, updated = dict(self.state), dict(self.updated)
        after: dict[str, ir.Value] = {}
        try:
            yield after
            after.update(self.state)
        finally:
            self.state, self.updated = before, updated

    # -- reports ---------------------------------------------------------------------------------------------

    def warn(self, text: str) -> None:
        """Record something the user should know."""
        if text not in self.warnings:
            self.warnings.append(text)

    def scan(self, body: Body, roots: Sequence[str], bound: Mapping[str, Any], model: str) -> None:
        """Raise one report of all operators in reach of the roots that nothing maps.

        When all of them are on one side of branches, conversion will tell whether they are reached.
        """
        found: dict[str, list[str]] = defaultdict(list)
        certain = False
        seen: set[int] = set()
        todo = [(body, list(roots), bound, True)]
        while todo:
            current, wanted, known, always = todo.pop()
            for name in self.order(current, wanted, known):
                node = current.nodes[name]
                if not self.is_mapped(node.op):
                    found[node.op].append(node.name)
                    certain |= always
                inner = always and node.op not in _CHOICES
                for called in self._reached(current, node):
                    if id(called) not in seen:
                        seen.add(id(called))
                        args = dict.fromkeys(n for n, _ in called.args)
                        todo.append((called, [*(n for n, _ in called.results), *called.effects], args, inner))
        if certain:
            ranked = sorted(found.items(), key=lambda item: -len(item[1]))
            from ge.parsers.tensorflow.host import OPERATORS  # only files with such operators pay for it

            raise UnsupportedOperatorsError(
                f"model '{model}'",
                [
                    UnmappedOperator(op, len(n), tuple(n[:NAMED_NODES]), "no plugin maps it", remedy_of(op))
                    for op, n in ranked
                ],
                later=all(op in OPERATORS for op in found),
            )

    def is_mapped(self, op: str) -> bool:
        """Whether something converts an operator."""
        return op in HANDLERS or op == ARGUMENT or op in self.library or find("tensorflow", op) is not None

    def recorded(self) -> Failures:
        """A copy of the failures so far."""
        return {key: list(nodes) for key, nodes in self.failures.items()}

    def forget(self, kept: Failures) -> None:
        """Keep only failures recorded earlier."""
        self.failures = defaultdict(list, {key: list(nodes) for key, nodes in kept.items()})

    def report(self, model: str) -> None:
        """Raise one report of all nodes that could not be converted, if there are any."""
        items = [
            UnmappedOperator(
                op, len(nodes), tuple(nodes[:NAMED_NODES]), f"{reason} (node {nodes[0]})", remedy
            )
            for (op, reason, remedy), nodes in self.failures.items()
        ]
        if items:
            raise UnsupportedOperatorsError(f"model '{model}'", items, later=self.hopeful)


def _known_predicate(body: Body, ref: Ref) -> bool | None:
    """The value of a predicate that is a constant, looking through identities, defaults and negations."""
    turned = False
    for _ in range(len(body.nodes)):
        node = body.nodes[ref[0]]
        if node.op == "Const":
            value = node.attrs.get("value")
            return (
                None if not isinstance(value, np.ndarray) or value.size != 1 else bool(value.item()) != turned
            )
        if node.op not in ("Identity", "PlaceholderWithDefault", "LogicalNot") or not node.inputs:
            return None
        turned ^= node.op == "LogicalNot"
        ref = node.inputs[0]
    return None


def _refuse_dynamic(inputs: Sequence[ir.Value]) -> None:
    """No operator can be compiled for a tensor whose size is known only after the run."""
    for value in inputs:
        if has_dynamic_size(value):
            maker = value.producer()
            raise Unsupported(
                f"it reads the result of {maker and maker.op_type}, whose size is known only after the run",
                "run the model with ge.compile, which takes it in stages, or end it with that result",
                later=True,
            )


def _data(node: GraphNode, bound: Mapping[str, Any]) -> tuple[str, ...]:
    """The nodes whose outputs a node reads; a node that is bound from outside reads none."""
    return () if node.name in bound else tuple(n for n, _ in node.inputs)


_REMEDIES = {
    "Dataset": "feed the model's inputs from outside; datasets run on the host",
    "Iterator": "feed the model's inputs from outside; iterators run on the host",
    "Summary": "export the model for inference, without summaries",
    "Apply": "export the model for inference, without the optimizer",
    "Lookup": "look words up on the host and feed the numbers",
    "HashTable": "look words up on the host and feed the numbers",
    "String": "process text on the host and feed numbers",
    "Decode": "decode on the host and feed tensors",
    "Sparse": "convert sparse tensors to dense ones on the host",
    "Ragged": "pad ragged tensors to dense ones on the host",
}


def remedy_of(op: str) -> str:
    """What to do about an operator that nothing maps."""
    fitting = next((text for word, text in _REMEDIES.items() if word in op), "")
    return fitting or "register a custom operator with a TensorFlow plugin, or run this part on the host"
