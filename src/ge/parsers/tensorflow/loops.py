"""Converts loops of TensorFlow graphs (While, and restored version-1 frames) to GE's Loop.

1. States that a body returns as they came are captured, so constants stay constants inside.
2. A condition that only compares counters with constants becomes a trip count.
3. A list that a body writes at the loop's own counter, and never reads but there before it does, becomes an output
   that the loop collects; what is read is the list as it was before the loop.
4. A list that each step makes longer by one item at its end is collected likewise; one that each step takes an item
   from stays outside, and each step reads its item. (Gradients of loops are such.)
   Where the number of steps is known only when the loop has run, but not more than some constant, such a list is a
   state of that length.
5. A variable that a body writes becomes a state.
6. A number that a step makes a list of is a list without contents. (The flow of a gradient's array is such.)
7. A loop whose states change shape, but whose condition is known at each step, is unrolled (within a limit).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ge.ir.types import INTS, numpy_dtype
from ge.ir.values import constant_of, desc_of
from ge.ops.base import is_whole_view
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.control import (
    changed_variables,
    drop_unused_captures,
    rebuild,
    tensors_of,
    truth,
)
from ge.parsers.tensorflow.convert import Context, Failures, Outputs, handler
from ge.parsers.tensorflow.graph import ARGUMENT, Body, Ref
from ge.parsers.tensorflow.lists import Counted, ListValue, Popped, Pushed
from ge.parsers.tensorflow.stacks import SPENT
from ge.parsers.tensorflow.values import FAILED, Binding, Opaque, Variable

__all__: list[str] = []

ATTEMPTS = 6
UNROLL_LIMIT = 512
TRIP_LIMIT = 1 << 62
MOST_STEPS = 1 << 20  # up to which a list is kept for as many steps as a loop can take
SAME_BYTES = 1 << 16  # up to which equal items of a list become one constant


class _ShapeChanges(Exception):
    """A state has another shape after a step than before it."""


@dataclass(frozen=True)
class _LoopForm:
    """What has been found out about a loop so far."""

    captured: frozenset[int]  # arguments that no step changes
    elements: dict[int, tuple[int, ...]] = field(
        default_factory=dict
    )  # item shapes of lists among the arguments
    variables: tuple[str, ...] = ()  # variables that the body writes
    moves: dict[int, int] = field(default_factory=dict)  # by how many items a step changes lists' lengths
    flows: dict[int, ListValue] = field(default_factory=dict)  # what numbers among the arguments stand for


@dataclass(frozen=True)
class _Loop:
    """A While node with its bodies."""

    context: Context
    cond: Body
    body: Body
    args: list[Binding]

    def run(self, body: Body, args: Sequence[Binding], builder: GraphBuilder) -> list[Binding]:
        c = self.context
        return c.converter.call(
            body, args, builder, prefix=f"{c.scope.label(c.node)}/", depth=c.scope.depth + 1
        )

    def holds(self, args: Sequence[Binding], builder: GraphBuilder) -> ir.Value:
        """The condition for given states."""
        results = self.run(self.cond, args, builder)
        if len(results) != 1:
            raise Unsupported(f"the loop's condition has {len(results)} results")
        if results[0] is FAILED:
            raise Unsupported("the loop's condition cannot be converted")
        builder.set_origin(self.context.scope.label(self.context.node))
        return truth(builder, results[0])


@handler("While", "StatelessWhile")
def _while(c: Context) -> Outputs:
    loop = _Loop(c, c.function("cond"), c.function("body"), list(c.inputs))
    before = c.converter.recorded()
    form = _LoopForm(frozenset(_untouched(loop.body, loop.args)), moves=_moves(loop.body, loop.args))
    why = "the loop's states do not settle"
    for _ in range(ATTEMPTS):
        try:
            found = _attempt(loop, form)
        except _ShapeChanges as change:
            why = str(change)
            break
        if not isinstance(found, _LoopForm):
            return found if FAILED not in found else _unrolled_instead(loop, before)
        form = found
        c.converter.forget(before)
    return _unrolled(loop, why)


def _unrolled_instead(loop: _Loop, before: Failures) -> Outputs:
    """A body that cannot be converted in general may be for each known step; else the first report stands."""
    converter = loop.context.converter
    first = converter.recorded()
    converter.forget(before)
    try:
        results = _unrolled(loop, "")
    except Unsupported:
        results = [FAILED]
    if FAILED in results:
        converter.forget(first)
        return FAILED
    return results


def _untouched(body: Body, args: Sequence[Binding]) -> list[int]:
    """Arguments that the body returns as they came, or that are handles."""
    result = []
    for index, (arg, ref) in enumerate(zip(body.args, body.results, strict=False)):
        fixed = isinstance(args[index], Opaque) and not isinstance(args[index], ListValue)
        if fixed or _source(body, ref) == arg:
            result.append(index)
    return result


def _moves(body: Body, args: Sequence[Binding]) -> dict[int, int]:
    """Lists that a step of the body makes longer by one item (1) or shorter (-1)."""
    found = {}
    for index, (arg, ref) in enumerate(zip(body.args, body.results, strict=False)):
        name, output = _source(body, ref)
        node = body.nodes[name]
        if not isinstance(args[index], ListValue) or node.op not in _STACKS or output:
            continue
        if _source(body, node.inputs[0]) == arg:
            found[index] = _STACKS[node.op]
    return found


_STACKS = {"TensorListPushBack": 1, "TensorListPopBack": -1}
_PASSING = ("Identity", "IdentityN", SPENT)


def _source(body: Body, ref: Ref) -> Ref:
    """Where a value comes from, looking through identities."""
    for _ in range(len(body.nodes)):
        node = body.nodes[ref[0]]
        if node.op == ARGUMENT or node.op not in _PASSING or ref[1] >= len(node.inputs):
            break
        ref = node.inputs[ref[1]]
    return ref


def _attempt(loop: _Loop, form: _LoopForm) -> list[Binding] | _LoopForm:
    """Convert the body under a form: the loop's results, or a better form."""
    c, outer = loop.context, loop.context.builder
    inner = outer.subgraph(f"{c.scope.label(c.node)}.body")
    inner.input("iteration", (), "int64")
    inner.input("condition", (), "bool")
    initial = [_settled(form.flows.get(i, arg), form.elements.get(i)) for i, arg in enumerate(loop.args)]
    states = [i for i in range(len(initial)) if i not in form.captured]
    bound = list(initial)
    for index in states:
        move = form.moves.get(index, 0)
        bound[index] = _moving(loop, inner, initial[index], move) or _as_state(inner, index, initial[index])
    with c.converter.branch_state() as after:
        before = dict(c.converter.state)
        for name in form.variables:
            spec = c.converter.spec(Variable(name))
            c.converter.state[name] = inner.input(name, spec.desc.shape, spec.desc.dtype)
        entry = dict(c.converter.state)
        results = loop.run(loop.body, bound, inner)
        if any(r is FAILED for r in results):
            return [FAILED] * len(loop.args)
        written = changed_variables(entry, [c.converter.state])
        better = _better(form, states, initial, bound, results, written)
        if better is not None:
            return better
        for index in form.captured:
            results[index] = bound[index]
        again = loop.holds(results, inner)
    first = loop.holds(initial, outer)
    if constant_of(first) is not None and not bool(constant_of(first)):
        return initial
    emitter = _Emitter(loop, inner, states, initial, bound, results, first, again)
    made = emitter.emit([(before.get(n) or c.converter.read(Variable(n)), after[n]) for n in form.variables])
    for name, value in zip(form.variables, made[len(initial) :], strict=True):
        assert isinstance(value, ir.Value)
        c.converter.write(Variable(name), value)
    return made[: len(initial)]


def _settled(arg: Binding, element: tuple[int, ...] | None) -> Binding:
    return arg.reshaped(element) if isinstance(arg, ListValue) else arg


def _moving(loop: _Loop, inner: GraphBuilder, arg: Binding, move: int) -> ListValue | None:
    """A list that steps make longer or shorter, as the body sees it."""
    if not move or not isinstance(arg, ListValue):
        return None
    if move > 0:
        return Pushed(arg.dtype, arg.element, arg.count)
    iteration = inner.graph.inputs[0]
    length = arg.length if isinstance(arg, Counted) else None
    if arg.repeated is not None and not arg.writes:
        return Popped(
            arg.dtype, arg.element, arg.count, repeated=arg.repeated, iteration=iteration, length=length
        )
    if length is not None:
        return Popped(arg.dtype, arg.element, arg.count, base=arg.base, iteration=iteration, length=length)
    whole = arg.buffer(loop.context.builder)
    return Popped(arg.dtype, arg.element, arg.count, base=whole, iteration=iteration)


def _as_state(inner: GraphBuilder, index: int, arg: Binding) -> Binding:
    """An argument as the body sees it: a value of its own."""
    if isinstance(arg, ir.Value):
        return inner.input(f"state.{index}", desc_of(arg).shape, desc_of(arg).dtype)
    assert isinstance(arg, ListValue)
    if arg.element is None:
        return ListValue(arg.dtype, None, arg.count, gradient=arg.gradient)
    return ListValue(
        arg.dtype,
        arg.element,
        arg.count,
        base=inner.input(f"list.{index}", (arg.count, *arg.element), arg.dtype),
        gradient=arg.gradient,
    )


def _better(
    form: _LoopForm,
    states: Sequence[int],
    initial: Sequence[Binding],
    bound: Sequence[Binding],
    results: Sequence[Binding],
    written: Sequence[str],
) -> _LoopForm | None:
    """A form that takes into account what a body did; None when the form was right."""
    if set(written) - set(form.variables):
        return replace(form, variables=(*form.variables, *(n for n in written if n not in form.variables)))
    same = [i for i in states if results[i] is bound[i]]
    if same:
        return replace(form, captured=form.captured | set(same))
    elements = dict(form.elements)
    flows = dict(form.flows)
    for index in states:
        before, after = bound[index], results[index]
        if isinstance(before, ir.Value) and isinstance(after, ListValue) and _is_zero(initial[index]):
            flows[index] = ListValue(after.dtype, None, after.count, gradient=after.gradient)
        elif isinstance(before, ListValue) and isinstance(after, ListValue):
            if before.element is None and after.element is not None:
                elements[index] = after.element
            elif (before.element, before.count) != (after.element, after.count):
                raise _ShapeChanges(f"a list of {before.count} tensors has {after.count} after a step")
        elif isinstance(before, ir.Value) and isinstance(after, ir.Value):
            if desc_of(before) != desc_of(after):
                raise _ShapeChanges(
                    f"state {index} is {desc_of(before)} before a step and {desc_of(after)} after it"
                )
        else:
            raise Unsupported(f"state {index} of the loop changes its kind")
    better = replace(form, elements=elements, flows=flows)
    return better if (elements, flows) != (form.elements, form.flows) else None


def _is_zero(arg: Binding) -> bool:
    """Whether an argument is the number zero."""
    known = constant_of(arg) if isinstance(arg, ir.Value) else None
    return known is not None and known.shape == () and not known.any()


@dataclass(frozen=True)
class _Place:
    """Where collected items go in a list, in the order of the steps or against it."""

    first: int
    backwards: bool = False


def _put(items: Binding) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """What a step sets in a list, or adds to it."""
    assert isinstance(items, ListValue)
    return items.writes if not items.adds else (*items.writes, *items.adds)


@dataclass(frozen=True)
class _Counter:
    """An integer state that grows by a constant each step."""

    start: int
    step: int


class _Emitter:
    """Turns a converted body into a Loop node and its results."""

    def __init__(
        self,
        loop: _Loop,
        inner: GraphBuilder,
        states: list[int],
        initial: list[Binding],
        bound: list[Binding],
        results: list[Binding],
        first: ir.Value,
        again: ir.Value,
    ) -> None:
        self.loop = loop
        self.outer = loop.context.builder
        self.inner = inner
        self.states = states
        self.initial = initial
        self.bound = bound
        self.results = results
        self.first = first
        self.again = again
        self.counters = self._find_counters()
        self._rows_after: dict[int, ListValue] = {}

    def emit(self, variables: Sequence[tuple[ir.Value, ir.Value]]) -> list[Binding]:
        """The arguments after the loop, then the variables (given before the loop and after a step)."""
        trips = self._trips()
        stacks = [i for i in self.states if isinstance(self.bound[i], (Pushed, Popped))]
        most = trips if trips is not None else self._most_trips()
        self._check_stacks(stacks, trips, most)
        pushed = [i for i in stacks if isinstance(self.bound[i], Pushed)]
        known = {i: list_ for i in pushed if (list_ := self._known_after(i, trips, most or 0)) is not None}
        filled = [i for i in pushed if i not in known] if trips is None else []
        self.states = [i for i in self.states if i not in stacks]
        collected = {i: place for i in self.states if (place := self._collected_from(i, trips)) is not None}
        counted = {} if trips is None else self._count_by_iteration(trips)
        kept = [i for i in self.states if i not in collected and i not in counted]
        for index in sorted(collected):
            base = self.bound[index].base  # type: ignore[union-attr]
            if base.uses():  # each item before it is set: as it was before the loop
                whole = self.initial[index].buffer(self.outer)  # type: ignore[union-attr]
                base.replace_all_uses_with(self.inner._own(whole))
            self.inner.graph.inputs.remove(base)
        started = self._start_filling(filled, most or 0)
        self._outputs(trips, kept, sorted(collected), variables, filled)
        for index in pushed:
            if index not in known and trips is not None:
                self.inner.output(self.results[index].items[0])  # type: ignore[union-attr]
        drop_unused_captures(self.inner)
        label = self.loop.context.scope.label(self.loop.context.node)
        self.outer.set_origin(label)
        entering = [t for i in kept for t in tensors_of(self.outer, self.initial[i])]
        entering += [*(before for before, _ in variables), *started]
        made = iter(
            self.outer.ops(
                "Loop",
                (
                    None if trips is None else self.outer.constant(np.int64(trips)),
                    self.first if trips is None else None,
                    *entering,
                    *self.inner.captures(),
                ),
                body=self.inner.graph,
                num_states=len(entering),
                max_trip=trips,
            )
        )
        after = list(self.initial)
        for index in kept:
            after[index] = rebuild(self.initial[index], [next(made)])
        for index, final in counted.items():
            after[index] = self.outer.constant(final)
        left = [next(made) for _ in variables]
        length = next(made) if filled else None
        rows_of = {index: next(made) for index in filled}
        for index in sorted(collected):
            after[index] = self._list_after(self.initial[index], collected[index], next(made))
        for index in stacks:
            if index in known:
                after[index] = known[index]
                continue
            if trips is None:
                after[index] = self._counted_after(self.initial[index], rows_of.get(index), length, most or 0)
                continue
            rows = next(made) if index in pushed else None
            after[index] = self._stack_after(self.initial[index], rows, trips or 0)
        return [*after, *left]

    def _check_stacks(self, stacks: Sequence[int], trips: int | None, most: int | None) -> None:
        """Lists that grow or shrink need a known number of steps, or a limit to it, and enough items."""
        for index in stacks:
            list_ = self.results[index]
            moved = list_.items if isinstance(list_, Pushed) else getattr(list_, "taken", 0)
            if not moved:
                raise _ShapeChanges("a list does not change its length by one item a step")
            if isinstance(list_, Pushed):
                unlimited = trips is None and (most is None or bool(list_.count))
            else:
                assert isinstance(list_, Popped)
                unlimited = (trips is None) != (list_.length is not None)
                if trips is not None and list_.count < trips:
                    raise _ShapeChanges("a list does not change its length by one item a step")
            if unlimited:
                raise _ShapeChanges("a list changes its length in every step")

    def _start_filling(self, filled: Sequence[int], most: int) -> list[ir.Value]:
        """Lists that a loop of unknown length fills, as states; the first of them counts the steps."""
        if not filled:
            return []
        inner, outer = self.inner, self.outer
        captured = set(inner.captured.values())
        place = next((i for i, v in enumerate(inner.graph.inputs) if v in captured), len(inner.graph.inputs))
        rest = [inner.graph.inputs.pop() for _ in range(len(inner.graph.inputs) - place)]
        inner.input("steps", (), "int64")
        started = [outer.constant(np.int64(0))]
        for index in filled:
            list_ = self.results[index]
            assert isinstance(list_, Pushed)
            (item,) = list_.items
            rows = (most, *desc_of(item).shape)
            zero = np.zeros((), numpy_dtype(desc_of(item).dtype))
            started.append(outer.op("BroadcastTo", zero, shape=rows))
            before = inner.input(f"rows.{index}", rows, desc_of(item).dtype)
            writes = ((inner.graph.inputs[0], item),)
            self._rows_after[index] = ListValue(list_.dtype, rows[1:], most, base=before, writes=writes)
        inner.graph.inputs.extend(reversed(rest))  # what is captured comes last
        return started

    def _counted_after(
        self, initial: Binding, rows: ir.Value | None, length: ir.Value | None, most: int
    ) -> Binding:
        """A list after a loop that ran as often as `length` says, or that took it apart."""
        assert isinstance(initial, ListValue)
        if rows is None:
            return Counted(initial.dtype, initial.element, initial.count)
        return Counted(initial.dtype, desc_of(rows).shape[1:], most, base=rows, length=length)

    def _known_after(self, index: int, trips: int | None, most: int) -> ListValue | None:
        """A list after a loop that adds the same value in every step, or a counter: nothing needs to be collected."""
        initial, item = self.initial[index], self.results[index].items[0]  # type: ignore[union-attr]
        assert isinstance(initial, ListValue)
        if initial.count:
            return None
        if trips is None:
            return self._repeated_after(initial, item, most)
        longer = replace(initial, count=trips, element=desc_of(item).shape)
        known, counter = constant_of(item), self.counters.get(_through(item))
        if known is not None:
            small = known.nbytes * trips <= SAME_BYTES
            return (
                replace(longer, base=self.outer.constant(np.repeat(known[None], trips, 0))) if small else None
            )
        if counter is not None:
            values = counter.start + counter.step * np.arange(trips)
            return replace(longer, base=self.outer.constant(values.astype(numpy_dtype(desc_of(item).dtype))))
        return None if self._is_inner(item) else replace(longer, repeated=item)

    def _repeated_after(self, initial: ListValue, item: ir.Value, most: int) -> ListValue | None:
        """A list after a loop of unknown length that adds the same value in every step."""
        known = constant_of(item)
        if known is None and self._is_inner(item):
            return None
        value = item if known is None else self.outer.constant(known)
        # Its length is not needed: readers never take more items than were put there.
        length = self.outer.constant(np.int64(most))
        return Counted(initial.dtype, desc_of(item).shape, most, repeated=value, length=length)

    def _is_inner(self, value: ir.Value) -> bool:
        """Whether a value is the body's own, not one that it captures."""
        node = value.producer()
        return value in self.inner.graph.inputs if node is None else node.graph is self.inner.graph

    def _stack_after(self, initial: Binding, rows: ir.Value | None, trips: int) -> Binding:
        """A list after a loop that made it longer by rows, or shorter."""
        assert isinstance(initial, ListValue)
        if rows is None:
            return initial.resized(initial.count - trips)
        element = desc_of(rows).shape[1:]
        if initial.count:
            rows = self.outer.op("Concat", initial.reshaped(element).buffer(self.outer), rows, axis=0)
        return replace(initial, base=rows, writes=(), element=element, count=initial.count + trips)

    def _outputs(
        self,
        trips: int | None,
        kept: list[int],
        collected: list[int],
        variables: Sequence[tuple[ir.Value, ir.Value]],
        filled: Sequence[int],
    ) -> None:
        inner = self.inner
        inner.set_origin(self.loop.context.scope.label(self.loop.context.node))
        inner.output(self.again if trips is None else inner.constant(np.bool_(True)))
        for index in kept:
            for tensor in tensors_of(inner, self.results[index]):
                inner.output(tensor)
        for _, after in variables:
            inner.output(after)
        if filled:
            inner.output(inner.op("Add", inner.graph.inputs[0], np.int64(1)))
        for index in filled:
            inner.output(self._rows_after[index].buffer(inner))
        for index in collected:
            inner.output(_put(self.results[index])[0][1])

    def _list_after(self, initial: Binding, place: _Place, rows: ir.Value) -> Binding:
        """A list whose items from a place on were collected."""
        assert isinstance(initial, ListValue)
        first = place.first
        if place.backwards:
            rows = self.outer.op("Reverse", rows, axes=(0,))
        element, size = desc_of(rows).shape[1:], desc_of(rows).shape[0]
        collected = replace(initial, base=rows, writes=(), element=element)
        if size == initial.count:
            return collected
        before = initial.reshaped(element).buffer(self.outer)
        rest = [self._rows(before, 0, first), rows, self._rows(before, first + size, initial.count)]
        return replace(collected, base=self.outer.op("Concat", *(r for r in rest if r is not None), axis=0))

    def _rows(self, whole: ir.Value, start: int, end: int) -> ir.Value | None:
        shape = desc_of(whole).shape
        if start == end:
            return None
        starts, ends = (start, *(0 for _ in shape[1:])), (end, *shape[1:])
        return self.outer.op("Slice", whole, starts=starts, ends=ends)

    # -- counters and trip counts ----------------------------------------------------------------------------

    def _find_counters(self) -> dict[ir.Value, _Counter]:
        """Counters by the value that the body sees."""
        found = {}
        for index in self.states:
            state, after = self.bound[index], self.results[index]
            if not isinstance(state, ir.Value) or not isinstance(after, ir.Value):
                continue
            step, start = self._step(state, after), constant_of(self.initial[index])  # type: ignore[arg-type]
            if step and start is not None:
                found[state] = _Counter(int(start), step)
        return found

    def _step(self, state: ir.Value, after: ir.Value) -> int:
        """By how much an integer scalar grows each step; 0 when it does not do just that."""
        node = _through(after).producer()
        if (
            node is None
            or desc_of(state).shape
            or desc_of(state).dtype not in INTS
            or node.op_type not in ("Add", "Sub")
        ):
            return 0
        left, right = node.inputs
        assert left is not None and right is not None
        if node.op_type == "Add" and right is state:
            left, right = right, left
        amount = constant_of(right)
        if left is not state or amount is None:
            return 0
        return int(amount) if node.op_type == "Add" else -int(amount)

    def _count_by_iteration(self, trips: int) -> dict[int, np.ndarray]:
        """Compute counters from the loop's own iteration number; their values after the loop."""
        final = {}
        for index in self.states:
            state = self.bound[index]
            if not isinstance(state, ir.Value) or state not in self.counters:
                continue
            counter, dtype = self.counters[state], desc_of(state).dtype
            final[index] = np.asarray(counter.start + trips * counter.step, numpy_dtype(dtype))
            value = self._counted(counter, dtype)
            ir.convenience.replace_all_uses_with(state, value)
            self.results = [_replaced(r, state, value) for r in self.results]
            self.inner.graph.inputs.remove(state)
        return final

    def _counted(self, counter: _Counter, dtype: str) -> ir.Value:
        """A counter's value at the start of a step."""
        graph = self.inner.graph
        first = GraphBuilder(graph=graph, before=next(iter(graph), None), parent=self.outer)
        first.set_origin(*self.inner.origin)
        value = graph.inputs[0]
        value = value if dtype == "int64" else first.op("Cast", value, to=dtype)
        value = value if counter.step == 1 else first.op("Mul", value, counter.step)
        return value if not counter.start else first.op("Add", value, counter.start)

    def _trips(self) -> int | None:
        """The trip count, if the condition depends on counters only."""
        if constant_of(self.first) is None:
            return None
        limits = [self._limit(part) for part in _conjuncts(self.again)]
        if any(limit is None for limit in limits):
            return None
        trips = min((limit for limit in limits if limit is not None), default=TRIP_LIMIT)
        return trips if trips < TRIP_LIMIT else None

    def _most_trips(self) -> int | None:
        """How often the body can run at most, when a part of the condition tells that."""
        outside = {inner: outer for outer, inner in self.inner.captured.items()}
        limits = [
            self._limit(part, lambda bound: _upper_bound(outside.get(_through(bound), bound)))
            for part in _conjuncts(self.again)
        ]
        return min((n for n in limits if n is not None and n < MOST_STEPS), default=None)

    def _limit(
        self, part: ir.Value, bound_of: Callable[[ir.Value], np.ndarray | None] = constant_of
    ) -> int | None:
        """After how many steps a comparison of a counter with a constant fails; None if it is not one."""
        known = constant_of(part)
        if known is not None:
            return TRIP_LIMIT if bool(known) else 1
        node = part.producer()
        if node is None or node.op_type not in _COMPARISONS:
            return None
        left, right = node.inputs
        assert left is not None and right is not None
        relation = node.op_type
        if self._counter_after(left) is None:
            left, right, relation = right, left, _MIRRORED[relation]
        bound, counter = bound_of(right), self._counter_after(left)
        if bound is None or counter is None or bound.ndim:
            return None
        if constant_of(right) is None and relation not in ("Less", "LessEqual"):
            return None
        return _steps_until_false(counter, relation, int(bound))

    def _counter_after(self, value: ir.Value) -> _Counter | None:
        """The counter whose value after a step this is."""
        value = _through(value)
        for index in self.states:
            after = self.results[index]
            if isinstance(after, ir.Value) and _through(after) is value:
                return self.counters.get(self.bound[index])  # type: ignore[arg-type]
        return None

    def _collected_from(self, index: int, trips: int | None) -> _Place | None:
        """Where a list is written, when it is so once a step, one further (or one less) each, and never read."""
        before, after = self.bound[index], self.results[index]
        if trips is None or not isinstance(before, ListValue) or not isinstance(after, ListValue):
            return None
        if (
            before.base is None
            or after.base is not before.base
            or len(_put(after)) != 1
            or not all(_reads(u.node, _put(after)[0][0]) for u in before.base.uses())
        ):
            return None
        initial = self.initial[index]
        if after.adds and not (isinstance(initial, ListValue) and initial.is_zero):
            return None
        place = _through(_put(after)[0][0])
        counter, highest = self.counters.get(place), self._descends_from(place)
        if counter is not None and counter.step == 1 and 0 <= counter.start <= before.count - trips:
            return _Place(counter.start)
        if highest is not None and trips - 1 <= highest < before.count:
            return _Place(highest - trips + 1, backwards=True)
        return None

    def _descends_from(self, value: ir.Value) -> int | None:
        """The constant from which a value takes the loop's own counter; None when it is something else."""
        node = value.producer()
        if node is None or node.op_type != "Sub" or node.inputs[1] is not self.inner.graph.inputs[0]:
            return None
        highest = constant_of(node.inputs[0])
        return None if highest is None else int(highest)


def _upper_bound(value: ir.Value) -> np.ndarray | None:
    """What an integer scalar cannot exceed: itself if it is constant, the least of what a minimum is taken of."""
    known = constant_of(value)
    if known is not None:
        return known
    node = _through(value).producer()
    if node is None or node.op_type not in ("Minimum", "Identity"):
        return None
    bounds = [b for v in node.inputs if v is not None and (b := _upper_bound(v)) is not None]
    return min(bounds, default=None, key=int) if all(b.ndim == 0 for b in bounds) else None


def _reads(node: ir.Node, place: ir.Value) -> bool:
    """Whether a node reads nothing but the item at a place of a list."""
    if node.op_type != "Gather" or node.inputs[1] is None or "batch_dims" in node.attributes:
        return False
    return node.attributes["axis"].value == 0 and _through(node.inputs[1]) is _through(place)


def _replaced(binding: Binding, old: ir.Value, new: ir.Value) -> Binding:
    """A binding with one tensor in place of another."""
    if binding is old:
        return new
    if isinstance(binding, ListValue):
        writes, adds = (
            tuple((new if i is old else i, new if v is old else v) for i, v in pairs)
            for pairs in (binding.writes, binding.adds)
        )
        binding = replace(binding, writes=writes, adds=adds)
    if isinstance(binding, Pushed):
        binding = replace(binding, items=tuple(new if v is old else v for v in binding.items))
    return binding


_COMPARISONS = ("Less", "LessEqual", "Greater", "GreaterEqual", "NotEqual")
_MIRRORED = {
    "Less": "Greater",
    "LessEqual": "GreaterEqual",
    "Greater": "Less",
    "GreaterEqual": "LessEqual",
    "NotEqual": "NotEqual",
}


def _steps_until_false(counter: _Counter, relation: str, bound: int) -> int | None:
    """The least n ≥ 1 for which `start + n·step relation bound` is false.

    >>> _steps_until_false(_Counter(0, 2), "Less", 5)
    3
    """
    distance, step = bound - counter.start, counter.step
    if relation in ("Greater", "GreaterEqual"):
        distance, step = -distance, -step
        relation = "Less" if relation == "Greater" else "LessEqual"
    if relation == "NotEqual":
        return distance // step if distance % step == 0 and distance // step >= 1 else None
    if step <= 0:
        return 1 if not _holds(step, relation, distance) else None
    steps = -(-distance // step) if relation == "Less" else distance // step + 1
    return max(steps, 1)


def _holds(value: int, relation: str, bound: int) -> bool:
    return value < bound if relation == "Less" else value <= bound


def _through(value: ir.Value) -> ir.Value:
    """A value's source, looking through nodes that keep an integer as it is."""
    node = value.producer()
    while node is not None and (node.op_type == "Cast" or is_whole_view(node)):
        source = node.inputs[0]
        assert source is not None
        if desc_of(source).shape or desc_of(source).dtype not in INTS or desc_of(value).dtype not in INTS:
            break
        value, node = source, source.producer()
    return value


def _conjuncts(value: ir.Value) -> list[ir.Value]:
    """The parts of a condition that must all hold."""
    node = value.producer()
    if node is not None and node.op_type == "Identity":
        assert node.inputs[0] is not None
        return _conjuncts(node.inputs[0])
    if node is not None and node.op_type == "And":
        return [part for side in node.inputs if side is not None for part in _conjuncts(side)]
    return [value]


def _unrolled(loop: _Loop, why: str) -> list[Binding]:
    """The loop's steps one after another, where the condition is known at each of them."""
    builder = loop.context.builder
    states = list(loop.args)
    for _ in range(UNROLL_LIMIT):
        holds = constant_of(loop.holds(states, builder))
        if holds is None:
            raise Unsupported(
                f"{why}, and the number of steps is computed at run time", "pad the state to its full size"
            )
        if not bool(holds):
            return states
        states = loop.run(loop.body, states, builder)
        if any(s is FAILED for s in states):
            return states
    raise Unsupported(f"{why}, and it takes more than {UNROLL_LIMIT} steps", "pad the state to its full size")
