"""Converts MINDIR to one graph: inlines calls, turns side effects into values, branches and loops into operators.

Parameters are read and written through a log of writes. A monad is a position in that log, so that a `Load` sees the
writes before it and no others; what the log holds at the end are the new values of the parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ge.errors import GeError, UnmappedOperator, UserCodeError
from ge.faults import absorb
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.flow.control import shared_captures
from ge.ops.plugins import Unsupported, find
from ge.parsers.mindir.graph import Body, Library, MsGraphNode
from ge.parsers.mindir.node import MsNode, constants, described
from ge.parsers.mindir.values import (
    RANDOM,
    Binding,
    Closure,
    Monad,
    Parameter,
    Switched,
    leaves,
    rebuilt,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Converter", "Failed"]

MAX_DEPTH = 256  # of calls, unrolled loops included


@dataclass(frozen=True)
class Failed:
    """The result of a node that has no mapping; what reads it is not tried."""


@dataclass(frozen=True)
class Again:
    """A call of the loop that is being built: the next values of its states."""

    states: tuple[Any, ...]


@dataclass
class Refusals:
    """Nodes without a mapping, by operator and reason."""

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    nodes: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)

    def add(self, operator: str, node: str, reason: str, remedy: str = "") -> None:
        key = (operator, reason, remedy)
        self.counts[key] += 1
        self.nodes.setdefault(key, []).append(node)

    def items(self) -> list[UnmappedOperator]:
        return [
            UnmappedOperator(op, count, tuple(self.nodes[op, reason, remedy][:10]), reason, remedy)
            for (op, reason, remedy), count in sorted(self.counts.items())
        ]


class Converter:
    """Evaluates the functions of a model into a graph."""

    def __init__(self, library: Library, builder: GraphBuilder, parameters: Mapping[str, ir.Value]) -> None:
        self.library = library
        self.builder = builder
        self.initial = dict(parameters)
        self.writes: list[tuple[str, ir.Value]] = []
        self.refusals = Refusals()
        self.loops: list[str] = []  # headers whose bodies are being built
        self.depth = 0
        self.stack: list[str] = []  # functions that are being evaluated
        self.barrier = 0  # how many of them began before the branch that is being built
        self.kept: dict[
            ir.Value, Any
        ] = {}  # what a plugin leaves for the plugin of its gradient, by a result

    # -- state ---------------------------------------------------------------------------------------------------

    def read(self, place: Parameter, writes: int | None = None) -> ir.Value:
        """The value of a parameter, after some of the writes or all of them."""
        for name, value in reversed(self.writes[:writes]):
            if name == place.name:
                return value
        if place == RANDOM and place.name not in self.initial:
            raise Unsupported(
                "a file has no state of random numbers", "export the network after set_train(False)"
            )
        if place.name not in self.initial:
            raise Unsupported(f"parameter {place.name} has no value")
        return self.initial[place.name]

    def write(self, place: Parameter, value: ir.Value) -> ir.Value:
        """Give a parameter a new value."""
        if desc_of(value) != desc_of(self.read(place)):
            raise Unsupported(
                f"parameter {place.name} is {desc_of(self.read(place))}, its new value {desc_of(value)}"
            )
        self.writes.append((place.name, value))
        return value

    def resolved(self, value: Binding) -> Binding:
        """A binding with parameters as their values."""
        if isinstance(value, Parameter):
            return self.read(value)
        return tuple(self.resolved(v) for v in value) if isinstance(value, tuple) else value

    def updates(self) -> dict[str, ir.Value]:
        """The parameters that were written, with their last values."""
        return dict(self.writes)

    # -- functions -----------------------------------------------------------------------------------------------

    def call(self, function: Binding, arguments: Sequence[Binding]) -> Binding:
        """The result of a function for arguments."""
        if isinstance(function, Switched):
            return self._branches(function, arguments)
        if not isinstance(function, Closure):
            raise Unsupported("a call of a value that is not a function")
        given = (*function.bound, *arguments)
        if function.graph in self.loops:
            return Again(given)
        body = self.library.body(function.graph)
        if self.depth > MAX_DEPTH:
            raise Unsupported(
                "a recursion that is not a loop, or a loop of more steps than can be unrolled",
                "use a while loop whose gradient is not taken, or a fixed number of steps",
            )
        if function.graph in self.stack[: self.barrier]:
            raise Unsupported(
                "a recursion that only the run ends, as in the gradient of a loop whose condition is computed",
                "use a fixed number of steps",
            )
        self.depth += 1
        self.stack.append(function.graph)
        try:
            if self.library.is_loop(function.graph):
                return self._loop(body, given)
            return self.evaluate(body, given)
        finally:
            self.depth -= 1
            self.stack.pop()

    def evaluate(self, body: Body, arguments: Sequence[Binding]) -> Binding:
        """A function's result, all of its nodes emitted in their order."""
        return self._value(self._run(body, arguments, body.nodes), body.result)

    def _run(
        self, body: Body, arguments: Sequence[Binding], nodes: Sequence[MsGraphNode]
    ) -> dict[str, Binding]:
        if len(arguments) != len(body.arguments):
            raise Unsupported(
                f"function {body.name} takes {len(body.arguments)} arguments, got {len(arguments)}"
            )
        values: dict[str, Binding] = dict(zip(body.arguments, arguments, strict=True))
        for node in nodes:
            values[node.output] = self._node(node, values)
        return values

    def _value(self, values: dict[str, Binding], name: str) -> Binding:
        if name in values:
            return values[name]
        if name in self.library:
            return Closure(name)
        found = self.library.value(name)
        return constants(self.builder, found)

    def _node(self, node: MsGraphNode, values: dict[str, Binding]) -> Binding:
        arguments = [self._value(values, name) for name in node.inputs]
        if any(isinstance(leaf, Failed) for a in arguments for leaf in leaves(a)):
            return Failed()
        try:
            if node.function:
                callee = self._value(values, node.function)
                if isinstance(callee, Failed):
                    return callee
                return self.call(callee, arguments)
            return self._emit(node, arguments)
        except Unsupported as error:
            self.refusals.add(node.operator or "call", node.label, error.reason, error.remedy)
        except UserCodeError:
            raise
        except GeError as error:
            self.refusals.add(node.operator or "call", node.label, error.cause, error.remedy)
        except RecursionError:
            self.refusals.add(node.operator or "call", node.label, "a recursion that is not a loop")
        except Exception as error:
            reason = str(absorb(f"{node.operator} '{node.label}'", error))
            self.refusals.add(node.operator or "call", node.label, reason)
        return Failed()

    def _emit(self, node: MsGraphNode, arguments: list[Binding]) -> Binding:
        found = find("mindspore", node.operator)
        if found is None:
            raise Unsupported("no plugin maps it", "declare one with ge.ops.plugins.plugin(mindspore=...)")
        form = node.form()
        made = MsNode(
            node.operator,
            node.label,
            [self.resolved(a) if isinstance(a, ir.Value | Parameter) else None for a in arguments],
            node.attributes(),
            1,
            self.builder,
            parser=self,
            results=described(form),
            arguments=arguments,
            form=form,
        )
        self.builder.set_origin(node.label)
        result: Any = found.apply(made)
        if isinstance(result, list):
            result = tuple(result)
        if isinstance(form, tuple) and isinstance(result, ir.Value) and len(form) == 1:
            result = (result,)
        _check(result, form)
        return result

    # -- branches ------------------------------------------------------------------------------------------------

    def _branches(self, function: Switched, arguments: Sequence[Binding]) -> Binding:
        """An If over what the two functions return and the parameters that either writes."""
        start, outer, barrier = len(self.writes), self.builder, self.barrier
        parts = [outer.subgraph("then_branch"), outer.subgraph("else_branch")]
        found: list[tuple[Binding, dict[str, ir.Value]]] = []
        self.barrier = len(self.stack)
        try:
            for part, side in zip(parts, (function.then, function.otherwise), strict=True):
                with self._inside(part):
                    result = self.resolved(_states_of(answer := self.call(side, arguments)))
                    found.append(
                        (Again(result) if isinstance(answer, Again) else result, dict(self.writes[start:]))
                    )
                    del self.writes[start:]
        finally:
            self.barrier = barrier
        names = list(dict.fromkeys(name for _, written in found for name in written))
        pattern = _common_pattern([result for result, _ in found])
        for part, (result, written) in zip(parts, found, strict=True):
            states = [written[n] if n in written else self.read(Parameter(n), start) for n in names]
            for value in (*_tensors_of(part, _states_of(result), pattern), *states):
                part.output(value)
        values = outer.ops(
            "If",
            [_scalar(outer, function.condition), *shared_captures(parts)],
            then_branch=parts[0].graph,
            else_branch=parts[1].graph,
        )
        self.writes += list(zip(names, values[len(values) - len(names) :], strict=True))
        result = rebuilt(pattern, _filled(pattern, values))
        result = _with_monads(result, Monad(len(self.writes)))
        return Again(result) if isinstance(found[0][0], Again) else result

    @contextmanager
    def _inside(self, builder: GraphBuilder) -> Iterator[None]:
        before, self.builder = self.builder, builder
        try:
            yield
        finally:
            self.builder = before

    # -- loops ---------------------------------------------------------------------------------------------------

    def _loop(self, body: Body, arguments: Sequence[Binding]) -> Binding:
        """A loop: its header computes a condition and leads to a step, which calls the header, or to the end."""
        before, turn, _ = self.library.loop_parts(body.name)
        values = self._run(body, arguments, before)
        switch = self._value(values, turn.function)
        if not isinstance(switch, Switched):  # the condition is known: one step in place
            return self.call(switch, [self._value(values, n) for n in turn.inputs])
        states = [self.resolved(a) if isinstance(a, ir.Value | Parameter) else a for a in arguments]
        carried = [i for i, s in enumerate(states) if isinstance(s, ir.Value)]
        changed = self._written_by(body, states, carried)
        start = len(self.writes)
        names = [*changed]
        inputs = [*(states[i] for i in carried), *(self.read(Parameter(n)) for n in names)]
        inner = self.builder.subgraph("body")
        inner.input("step", (), "int64")
        inner.input("going", (), "bool")
        ports = [inner.input(f"state{i}", desc_of(v).shape, desc_of(v).dtype) for i, v in enumerate(inputs)]
        with self._inside(inner):
            after, written = self._step(body, states, carried, names, ports)
            going = self._condition(body, after)
            for value in (going, *(after[i] for i in carried), *written):
                inner.output(value)
        del self.writes[start:]
        condition = _scalar(self.builder, switch.condition)
        made = self.builder.ops(
            "Loop",
            [None, condition, *inputs, *inner.captures()],
            body=inner.graph,
            num_states=len(inputs),
        )
        final = list(states)
        for i, value in zip(carried, made, strict=False):
            final[i] = value
        for name, value in zip(names, made[len(carried) :], strict=False):
            self.writes.append((name, value))
        values = self._run(body, _with_monads(tuple(final), Monad(len(self.writes))), before)
        last = self._value(values, turn.function)
        assert isinstance(last, Switched), "the condition after a loop is computed"
        return self.call(last.otherwise, [self._value(values, n) for n in turn.inputs])

    def _step(
        self, body: Body, states: list[Any], carried: list[int], names: list[str], ports: list[ir.Value]
    ) -> tuple[list[Any], list[ir.Value]]:
        """One step inside of a loop's body: the next states and parameters."""
        inside = list(states)
        for i, port in zip(carried, ports, strict=False):
            inside[i] = port
        for name, port in zip(names, ports[len(carried) :], strict=False):
            self.writes.append((name, port))
        inside = list(_with_monads(tuple(inside), Monad(len(self.writes))))
        before, turn, _ = self.library.loop_parts(body.name)
        values = self._run(body, inside, before)
        switch = self._value(values, turn.function)
        assert isinstance(switch, Switched), "the condition of a loop is computed"
        self.loops.append(body.name)
        try:
            result = self.call(switch.then, [self._value(values, n) for n in turn.inputs])
        finally:
            self.loops.pop()
        if isinstance(result, Failed):
            raise Unsupported("its body has operators without a mapping")
        if not isinstance(result, Again):
            raise Unsupported("a loop with an exit inside of its body", "compute the exit in the condition")
        after = [self.resolved(s) if isinstance(s, ir.Value | Parameter) else s for s in result.states]
        for i in carried:
            after[i] = constants(self.builder, after[i])
            if not isinstance(after[i], ir.Value) or desc_of(after[i]) != desc_of(states[i]):
                raise Unsupported(f"state {i} of a loop changes its shape or type")
        rest = [i for i in range(len(states)) if i not in carried and not isinstance(states[i], Monad)]
        if any(after[i] != states[i] for i in rest):
            raise Unsupported("a loop changes a value that is not a tensor", "make it a tensor")
        written = [self.read(Parameter(n)) for n in names]
        return list(_with_monads(tuple(after), Monad(len(self.writes)))), written

    def _condition(self, body: Body, states: list[Any]) -> ir.Value:
        before, turn, _ = self.library.loop_parts(body.name)
        switch = self._value(self._run(body, states, before), turn.function)
        if not isinstance(switch, Switched):
            raise Unsupported("a loop whose condition becomes constant")
        return _scalar(self.builder, switch.condition)

    def _written_by(self, body: Body, states: list[Any], carried: list[int]) -> list[str]:
        """The parameters that a step writes, found by a trial."""
        start = len(self.writes)
        trial = self.builder.subgraph("trial")
        ports = [trial.input(f"s{i}", desc_of(states[i]).shape, desc_of(states[i]).dtype) for i in carried]
        with self._inside(trial):
            self._step(body, states, carried, [], ports)
        names = list(dict.fromkeys(name for name, _ in self.writes[start:]))
        del self.writes[start:]
        return names


def _scalar(builder: GraphBuilder, value: ir.Value) -> ir.Value:
    found: ir.Value = value if not desc_of(value).shape else builder.op("Reshape", value, shape=[])
    return found


def _states_of(result: Binding) -> Binding:
    return result.states if isinstance(result, Again) else result


def _with_monads(value: Binding, monad: Monad) -> Any:
    """A value whose monads are at the end of the log."""
    if isinstance(value, Monad):
        return monad
    return tuple(_with_monads(v, monad) for v in value) if isinstance(value, tuple) else value


def _common_pattern(results: Sequence[Binding]) -> Any:
    """What both branches return, as nested tuples: None for a tensor, else the value that both have."""
    if any(isinstance(leaf, Failed) for r in results for leaf in leaves(_states_of(r))):
        raise Unsupported("a branch has operators without a mapping")
    if len({isinstance(r, Again) for r in results}) > 1:
        raise Unsupported("a loop with an exit inside of its body", "compute the exit in the condition")
    first, second = (_states_of(r) for r in results)
    return _merged(first, second)


@dataclass(frozen=True)
class _Same:
    """A part of a result that is the same in both branches and no tensor."""

    value: Any


def _merged(first: Binding, second: Binding) -> Any:
    if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
        return tuple(_merged(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, Monad) and isinstance(second, Monad):
        return _Same(first)
    plain = (bool, int, float, str, type(None), Closure)
    if isinstance(first, plain) and type(first) is type(second) and first == second:
        return _Same(first)
    tensors = (ir.Value, Parameter, bool, int, float)
    if isinstance(first, tensors) and isinstance(second, tensors):
        return None
    raise Unsupported(
        "the branches of a condition return different kinds of values, or functions",
        "return tensors of the same shape and type from both branches",
    )


def _tensors_of(builder: GraphBuilder, result: Binding, pattern: Any) -> list[Any]:
    """The tensors of a branch's result that the pattern leaves open."""
    parts = zip(leaves(result), leaves(pattern), strict=True)
    found = []
    for part, slot in parts:
        if slot is None:
            found.append(part if isinstance(part, ir.Value) else builder.constant(part))
    return found


def _filled(pattern: Any, values: Sequence[Any]) -> list[Any]:
    remaining = list(values)
    return [remaining.pop(0) if slot is None else slot.value for slot in leaves(pattern)]


def _check(result: Binding, form: Any) -> None:
    """Refuse a plugin's result that is not what MindSpore inferred."""
    if isinstance(form, TensorDesc) and isinstance(result, ir.Value) and desc_of(result) != form:
        raise Unsupported(f"its result would be {desc_of(result)} where MindSpore has {form}")
    if isinstance(form, tuple) and isinstance(result, tuple):
        for value, part in zip(result, form, strict=False):
            _check(value, part)


def switched(condition: Binding, then: Binding, otherwise: Binding) -> Binding:
    """The function that a condition selects; both, where only the run knows."""
    if isinstance(condition, ir.Value):
        known = constant_of(condition)
        if known is None:
            return Switched(condition, then, otherwise)
        condition = bool(known.reshape(-1)[0])
    return then if condition else otherwise
