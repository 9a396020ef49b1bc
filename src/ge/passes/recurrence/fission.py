"""Loop fission: only the recurrence stays in a Scan; everything else is computed for all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ge.ir.types import FLOATS, widened
from ge.ir.values import desc_of
from ge.ops.base import Engine, NodeView, Pattern, lookup, takes
from ge.ops.builder import GraphBuilder
from ge.passes.recurrence.loops import behind, is_product
from ge.passes.recurrence.stacking import Lifted, Lifter, Shift, repeated_source, way_to_stack
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, is_pure, only_use, producer, remove_dead

__all__ = ["Fission"]

_LIGHT = (Pattern.ELEMENTWISE, Pattern.BROADCAST, Pattern.INJECTIVE)

# How a value depends on the step.
_FIXED, _OF_ROWS, _OF_STATES = 0, 1, 2


class Fission(RewritePass):
    """Keep the recurrence in the loop and move everything else out of it.

    1. Loop invariants are hoisted before the loop; so is a row that is a copy of one value.
    2. Products, reductions and other heavy work on rows that depend on no state are computed for all rows before the
       loop, with the nodes that directly follow them. Elementwise work on rows stays: a kernel of the step does it on
       load.
    3. Values that no state depends on are computed after the loop from stacked values, unless these are larger.
    4. A state to which each step only adds products, or sums of rows, is one product or sum after the loop; 16-bit
       floats accumulate in float32. A state whose intermediate values are read stays.
    5. Invariant states, and states without readers, are removed.
    6. Operators with side effects or nondeterministic results, and those that cannot work on stacked inputs, stay in
       the loop.
    """

    name = "fission"
    rules: ClassVar[Rules] = {"Scan": (lambda r, node: _Scan(r, node).split(),)}


@dataclass(frozen=True)
class _Sum:
    """How to compute the sum of a value over all steps: the stacked values it needs, and whether it contains products
    or plain values, which a step can add as well.
    """

    make: Callable[[Lifter], ir.Value]
    needs: frozenset[ir.Value] = frozenset()
    products: bool = False
    plain: bool = False


@dataclass(frozen=True)
class _Split:
    """The split of a Scan: the states it carries, the states that are sums, the values it stacks."""

    carried: list[ir.Value]
    sums: dict[ir.Value, _Sum]
    collected: list[ir.Value]


class _Scan:
    """A Scan being split. Its body does not change; the new loop is built from a copy."""

    def __init__(self, r: Rewriter, node: ir.Node) -> None:
        attrs = attrs_of(node)
        self.r, self.node = r, node
        self.body: ir.Graph = attrs["body"]
        self.steps: int = attrs["steps"]
        self.reverse: bool = attrs["reverse"]
        count, last = attrs["num_states"], attrs["num_states"] + attrs["num_rows"]
        inputs = list(self.body.inputs)
        self.states, self.rows, self.captures = inputs[:count], inputs[count:last], inputs[last:]
        self.outer = dict(zip(inputs, [v for v in node.inputs if v is not None], strict=True))
        self.level = dict.fromkeys(self.captures, _FIXED) | dict.fromkeys(self.rows, _OF_ROWS)
        self.level |= dict.fromkeys(self.states, _OF_STATES)
        self.recurrence: set[ir.Node] = set()  # nodes that the next state depends on
        self.needs: dict[ir.Value, frozenset[ir.Value]] = {}
        self.equal: dict[ir.Value, ir.Value] = {}  # rows of one tensor
        self.changed = False

    def split(self) -> list[ir.Value] | None:
        """The replacements of the Scan's results, None if all of it is recurrence."""
        if any(not n.outputs for n in self.body):
            return None
        self._fix_inputs()
        for node in self.body:
            self._classify(node)
        plan = self._planned()
        hoisted = self._to_hoist(self._reached([*map(self._after, plan.carried), *plan.collected]))
        before = [behind(v) for v in self.stacks]
        same = len(plan.carried) == len(self.states) and len(before) == len(plan.collected)
        if not (self.changed or hoisted) and same and set(before) == {behind(v) for v in plan.collected}:
            return None
        return self._rebuilt(plan, hoisted)

    # -- the parts of the loop -------------------------------------------------------------------------------

    @property
    def stacks(self) -> list[ir.Value]:
        """The values of the body that the Scan stacks."""
        return list(self.body.outputs)[len(self.states) :]

    def _after(self, state: ir.Value) -> ir.Value:
        return self.body.outputs[self.states.index(state)]

    def _made(self, state: ir.Value) -> ir.Value:
        """The new value of a state after a step, looking through copies."""
        found = behind(self._after(state))
        assert found is not None
        return found

    def _level(self, value: ir.Value | None) -> int:
        return _FIXED if value is None else self.level.get(value, _FIXED)

    def _classify(self, node: ir.Node) -> None:
        level = max((self._level(v) for v in node.inputs), default=_FIXED)
        self.level |= dict.fromkeys(node.outputs, level if is_pure(node) else _OF_STATES)

    def _fix_inputs(self) -> None:
        """Turn invariant states, and rows that are copies of one value, into captures; merge equal rows."""
        for state in self.states:
            if self._made(state) is state:
                self.level[state] = _FIXED
        seen: dict[ir.Value, ir.Value] = {}
        for row in [v for v in self.rows if _is_read(v)]:
            stack = self.outer[row]
            source = repeated_source(stack)
            if source is not None:
                self._fix_row(row, source)
            elif seen.setdefault(stack, row) is not row:
                self.equal[row] = seen[stack]
        self.changed |= bool(self.equal)

    def _fix_row(self, row: ir.Value, source: ir.Value) -> None:
        shape = desc_of(row).shape
        same = desc_of(source).shape == shape
        self.outer[row] = source if same else self.r.op("BroadcastTo", source, shape=list(shape))
        self.rows.remove(row)
        self.captures.append(row)
        self.level[row] = _FIXED
        self.changed = True

    def _reached(self, values: Iterable[ir.Value]) -> set[ir.Node]:
        """The nodes that values depend on."""
        found: set[ir.Node] = set()
        stack = list(values)
        while stack:
            node = stack.pop().producer()
            if node is not None and node not in found:
                found.add(node)
                stack += [v for v in node.inputs if v is not None]
        return found

    # -- what stays in the loop ----------------------------------------------------------------------------------

    def _planned(self) -> _Split:
        possible = self._possible_sums()
        sums = {s: v for s, v in possible.items() if v.products and not v.plain}
        carried = self._carried(possible)
        there = self._needed(sums)
        for state, found in possible.items():  # other sums if what they need is stacked anyway
            if state not in sums and all(self._needs(v) <= there for v in found.needs):
                sums[state] = found
        if len(sums) < len(possible):
            carried = self._carried(sums)
        needed = self._needed(sums)
        order = [*self.states, *(v for n in self.body for v in n.outputs)]
        return _Split(carried, sums, [v for v in order if v in needed])

    def _carried(self, sums: Iterable[ir.Value]) -> list[ir.Value]:
        """The states that the loop must carry; determines the recurrence."""
        left = [s for s in self.states if s not in sums and self.level[s] == _OF_STATES]
        wanted = [*self._wanted(), *(v for s in sums for v in _addends(self._after(s)) if v is not s)]
        found = {s for s in left if _is_read(self.node.outputs[self.states.index(s)])}
        found |= {s for s in left if s in self._required_inputs(wanted)}
        size = -1
        while size != len(found):
            size = len(found)
            found |= {s for s in left if s in self._required_inputs(map(self._after, list(found)))}
        self.recurrence = self._reached(self._after(s) for s in found)
        self.needs.clear()
        return [s for s in left if s in found]

    def _required_inputs(self, values: Iterable[ir.Value]) -> set[ir.Value | None]:
        values = list(values)
        return {v for n in self._reached(values) for v in n.inputs} | set(values)

    def _wanted(self) -> list[ir.Value]:
        """The stacked values that have readers."""
        results = self.node.outputs[len(self.states) :]
        return [v for v, result in zip(self.stacks, results, strict=True) if _is_read(result)]

    def _needed(self, sums: dict[ir.Value, _Sum]) -> set[ir.Value]:
        """The values that the loop must stack for its results and for sums."""
        values = [*self._wanted(), *(v for s in sums.values() for v in s.needs)]
        return {n for v in values for n in self._needs(v)}

    def _needs(self, value: ir.Value) -> frozenset[ir.Value]:
        """The values that the loop must stack so that this one can be computed from them for all steps."""
        if value not in self.needs:
            self.needs[value] = self._found_needs(value)
        return self.needs[value]

    def _found_needs(self, value: ir.Value) -> frozenset[ir.Value]:
        node, level = value.producer(), self._level(value)
        if level == _FIXED:
            return frozenset()
        if value in self.states:
            if self._rotates(value):
                return frozenset({value})
            after = self._made(value)
            state_too = after in self.states or self._level(after) != _OF_STATES
            return self._needs(after) if state_too else frozenset({after})
        if node is None:
            return frozenset()
        if level == _OF_STATES and node in self.recurrence:
            return frozenset({value})
        stacked = [i for i, v in enumerate(node.inputs) if self._level(v) != _FIXED]
        if way_to_stack(node, stacked, self.steps) is None:
            return frozenset({value})
        found = frozenset(n for v in node.inputs if v is not None for n in self._needs(v))
        direct = {v for v in self.stacks if v.producer() in self.recurrence}
        light = not lookup(node.op_type).precision.product
        return frozenset({value}) if light and _nbytes(found - direct) > _nbytes({value}) else found

    def _rotates(self, state: ir.Value) -> bool:
        """True if the state is part of a rotation: states only exchange places."""
        seen = {state}
        after = self._made(state)
        while after in self.states and after not in seen:
            seen.add(after)
            after = self._made(after)
        return after is state

    # -- sums over the steps ---------------------------------------------------------------------------------

    def _possible_sums(self) -> dict[ir.Value, _Sum]:
        """States that steps only add to, with the way to compute their last value."""
        found: dict[ir.Value, _Sum] = {}
        for state in self.states:
            if self.level[state] != _OF_STATES or desc_of(state).dtype not in FLOATS:
                continue
            if not self._is_only_summed(state):
                continue
            terms = _addends(self._after(state))
            others = [v for v in terms if v is not state]
            if len(others) != len(terms) - 1 or any(desc_of(v) != desc_of(state) for v in others):
                continue
            parts = [self._sum_of(v) for v in others]
            if others and all(p is not None for p in parts):
                found[state] = self._total(state, [p for p in parts if p is not None])
        return found

    def _is_only_summed(self, state: ir.Value) -> bool:
        """True if only the next state reads the state and the partial sums on the way to it."""
        value, after = state, self._after(state)
        while value is not after:
            if not only_use(value):
                return False
            node = value.uses()[0].node  # type: ignore[index]
            if node.op_type not in ("Add", "Identity"):
                return False
            value = node.outputs[0]
        return not value.uses() and sum(v is value for v in self.body.outputs) == 1

    def _total(self, state: ir.Value, parts: list[_Sum]) -> _Sum:
        def make(lifter: Lifter) -> ir.Value:
            total = self.r.cast(self.outer[state], widened(desc_of(state).dtype))
            for part in parts:
                total = self.r.op("Add", part.make(lifter), total)
            return self.r.cast(total, desc_of(state).dtype)

        return _joined(make, parts)

    def _sum_of(self, value: ir.Value) -> _Sum | None:
        """How to compute the sum of a value over all steps, None if a step should add it."""
        node = value.producer()
        if self._level(value) == _FIXED:
            return _Sum(
                lambda lifter: self.r.op("Mul", self._wide(lifter.of(value).value), float(self.steps))
            )
        if node is None or not is_pure(node):
            return None
        if node.op_type == "Cast" and desc_of(node.inputs[0]).dtype in FLOATS:  # type: ignore[arg-type]
            return self._sum_of(node.inputs[0]) if desc_of(value).dtype in FLOATS else None  # type: ignore[arg-type]
        if is_product(node, transpose_a=True):
            return self._sum_of_products(node)
        if node.op_type == "ReduceSum":
            return self._sum_of_rows(node)
        if not _is_linear(node):
            return self._sum_of_values(value)
        parts = [self._sum_of(v) for v in node.inputs if v is not None]
        found = [p for p in parts if p is not None]
        if len(found) != len(parts):
            return None
        if any(p.plain for p in found) and not any(p.products for p in found):
            return self._sum_of_values(value)
        return _joined(lambda lifter: self.r.op_like(node, [p.make(lifter) for p in found]), found)

    def _wide(self, value: ir.Value) -> ir.Value:
        return self.r.cast(value, widened(desc_of(value).dtype))

    def _sum_of_values(self, value: ir.Value) -> _Sum:
        def make(lifter: Lifter) -> ir.Value:
            return self.r.op("ReduceSum", self._wide(lifter.rows(value)), axes=[0], keepdims=False)

        return _Sum(make, frozenset({value}), plain=True)

    def _sum_of_products(self, node: ir.Node) -> _Sum:
        factors = [v for v in node.inputs if v is not None]

        def make(lifter: Lifter) -> ir.Value:
            wide = widened(desc_of(node.outputs[0]).dtype)
            changes = {} if wide == desc_of(node.outputs[0]).dtype else {"output_dtype": wide}
            return self.r.op_like(node, [lifter.flat(v) for v in factors], **changes)

        return _Sum(make, frozenset(factors), products=True)

    def _sum_of_rows(self, node: ir.Node) -> _Sum:
        source = node.inputs[0]
        assert source is not None
        rank = desc_of(source).rank
        axes = [0, *(a % rank + 1 for a in attrs_of(node)["axes"] or range(rank))]
        shape = desc_of(node.outputs[0]).shape

        def make(lifter: Lifter) -> ir.Value:
            total = self.r.op("ReduceSum", self._wide(lifter.rows(source)), axes=axes, keepdims=False)
            return self.r.op("Reshape", total, shape=shape)

        return _Sum(make, frozenset({source}))

    # -- what moves before the loop ------------------------------------------------------------------------------

    def _to_hoist(self, kept: set[ir.Node]) -> set[ir.Node]:
        found: set[ir.Node] = set()
        for node in self.body:
            if node not in kept or lookup(node.op_type).broadcasts or not is_pure(node):
                continue  # a kernel of the step broadcasts on load
            level = self._level(node.outputs[0])
            if level == _FIXED or (level == _OF_ROWS and self._pays_before(node, found)):
                found.add(node)
        return found

    def _pays_before(self, node: ir.Node, hoisted: set[ir.Node]) -> bool:
        """True for heavy work on rows, and for nodes that only use its results."""
        if self._needs(node.outputs[0]):
            return False
        pattern = lookup(node.op_type).pattern
        if pattern not in _LIGHT:
            rows = [v for v in node.inputs if self._level(v) == _OF_ROWS]
            few = len(rows) == 1 and rows[0] is node.inputs[0]
            return few or _nbytes(node.outputs) <= _nbytes(v for v in rows if v is not None)
        if pattern is Pattern.INJECTIVE and lookup(node.op_type).engine is not Engine.VIEW:
            return False
        made = [
            v for v in node.inputs if v is not None and v.producer() in hoisted and self._level(v) == _OF_ROWS
        ]
        size = _nbytes(node.outputs)
        return any(only_use(v) and size <= _nbytes([v]) for v in made)

    # -- the new Scan ----------------------------------------------------------------------------------------

    def _rebuilt(self, plan: _Split, hoisted: set[ir.Node]) -> list[ir.Value]:
        known = {v: Lifted(self.outer[v], self.level[v] == _OF_ROWS) for v in (*self.rows, *self.captures)}
        known |= {s: Lifted(self.outer[s], False) for s in self.states if self.level[s] == _FIXED}
        states = {s: Shift(self._made(s), self.outer[s], self.reverse) for s in plan.carried}
        lifter = Lifter(self.r, self.steps, known, states)
        lasts, stacks = self._new_loop(plan, hoisted, lifter)
        lifter.known |= {v: Lifted(stack, True) for v, stack in zip(plan.collected, stacks, strict=True)}
        results: list[ir.Value] = []
        for state in self.states:
            total, last = plan.sums.get(state), lasts.get(state)
            results.append(last or (self.outer[state] if total is None else total.make(lifter)))
        for value, result in zip(self.stacks, self.node.outputs[len(self.states) :], strict=True):
            results.append(lifter.rows(value) if _is_read(result) else result)
        return results

    def _new_loop(
        self, plan: _Split, hoisted: set[ir.Node], lifter: Lifter
    ) -> tuple[dict[ir.Value, ir.Value], list[ir.Value]]:
        """Build the remaining loop; return the last states and the stacked values."""
        if not plan.carried and not plan.collected:
            return {}, []
        loop = _Body(self.body)
        fixed = [s for s in self.states if self.level[s] == _FIXED]
        for row, other in self.equal.items():
            loop.replace(row, loop.own[other])
        rows = [(loop.own[v], self.outer[v]) for v in self.rows]
        captures = [(loop.own[v], self.outer[v]) for v in (*fixed, *self.captures)]
        for value in [v for n in self.body if n in hoisted for v in n.outputs]:
            if value.is_graph_output() or any(c not in hoisted for c in value.consumers()):
                found = lifter.of(value)
                (rows if found.stacked else captures).append((loop.as_input(value), found.value))
        loop.finish([*map(self._after, plan.carried), *plan.collected])
        rows, captures = ([(v, o) for v, o in given if _is_read(v)] for given in (rows, captures))
        loop.graph.inputs[:] = [loop.own[s] for s in plan.carried] + [v for v, _ in (*rows, *captures)]
        self.r.stands_for(self.node)
        made = self.r.ops(
            "Scan",
            [*(self.outer[s] for s in plan.carried), *(o for _, o in (*rows, *captures))],
            body=loop.graph,
            num_states=len(plan.carried),
            num_rows=len(rows),
            steps=self.steps,
            reverse=self.reverse,
        )
        return dict(zip(plan.carried, made, strict=False)), list(made[len(plan.carried) :])


class _Body:
    """A copy of a body to be changed; `own` maps values to their copies."""

    def __init__(self, body: ir.Graph) -> None:
        self.graph = body.clone()
        self.own = dict(zip(body.inputs, self.graph.inputs, strict=True))
        for node, copy in zip(body, self.graph, strict=True):
            self.own.update(zip(node.outputs, copy.outputs, strict=True))

    def replace(self, value: ir.Value, other: ir.Value) -> None:
        """Replace the copy of a value by another value of the copy."""
        self.own[value].replace_all_uses_with(other, replace_graph_outputs=True)
        self.own[value] = other

    def as_input(self, value: ir.Value) -> ir.Value:
        """Replace a value by a new input."""
        desc = desc_of(value)
        inner = GraphBuilder(graph=self.graph).input(f"{value.name}.hoisted", desc.shape, desc.dtype)
        self.replace(value, inner)
        return inner

    def finish(self, outputs: Iterable[ir.Value]) -> None:
        """Set the outputs and remove dead nodes."""
        self.graph.outputs.clear()
        builder = GraphBuilder(graph=self.graph)
        for value in outputs:
            builder.output(self.own[value])
        remove_dead(self.graph, [n for n in self.graph if not any(map(_is_read, n.outputs))])


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _nbytes(values: Iterable[ir.Value]) -> int:
    return sum(desc_of(v).nbytes for v in values)


def _addends(value: ir.Value) -> list[ir.Value]:
    """The addends of a sum."""
    found = behind(value)
    assert found is not None
    node = producer(found, "Add")
    return [found] if node is None else [a for v in node.inputs if v is not None for a in _addends(v)]


def _is_linear(node: ir.Node) -> bool:
    """True if a node is linear: the sum of its results is its result on the sums."""
    operator = lookup(node.op_type)
    if operator.linear(NodeView.of(node)) if callable(operator.linear) else operator.linear:
        return len({desc_of(v).shape for v in node.inputs if v is not None}) == 1
    moved = operator.moves and len(node.outputs) == 1
    return moved and takes(node, widened(desc_of(node.outputs[0]).dtype))


def _joined(make: Callable[[Lifter], ir.Value], parts: Iterable[_Sum]) -> _Sum:
    parts = list(parts)
    needs = frozenset(v for p in parts for v in p.needs)
    return _Sum(make, needs, any(p.products for p in parts), any(p.plain for p in parts))
