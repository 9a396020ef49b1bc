"""Rematerialisation: recompute a value before a late reader instead of keeping it in memory until then."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ge.ir import facts
from ge.ir.values import constant_of, desc_of, set_desc
from ge.ops.base import Engine, Pattern, is_custom, lookup, pattern_of
from ge.ops.traits import Cost
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.cleanup.merge_movements import holds_exactly

__all__ = ["Recompute"]

# Bounds of the search for memory, in nodes and bytes of a plan: no times were measured for them.
MIN_BYTES = 4096
FAR = 12  # nodes between two uses from which a value counts as kept for a late reader
SLACK = 6  # nodes by which a live range may grow to save another value
MOST_NODES = 16  # nodes repeated for one value
SMALL_SHARE = 8  # a source this many times smaller than the value may be kept instead
MOST_LIGHT = 8  # the same, inside the kernel that reads it
LIGHT_ROUNDS = 4
_CHEAP = frozenset({Engine.VECTOR, Engine.VIEW})
_ANY = frozenset({Engine.VECTOR, Engine.VIEW, Engine.AI_CORE})
_ELEMENT_WISE = frozenset({Pattern.ELEMENTWISE, Pattern.BROADCAST})
_serial = itertools.count(1)


class Recompute(Pass):
    """Trade arithmetic for memory, as `options.recompute` says.

    0. "light": a large value whose late readers are all vector operators is recomputed inside their kernels, element by
       element, from values that are live then anyway, from small ones, or from one of no more bytes whose live range
       has to grow for it (or that replaces several such values): memory traffic does not grow. A value that products or
       convolutions read late is recomputed by one pass of plain arithmetic over live values, though not on a GPU, which
       has spare memory and would lose time.
       A live value that is widened for several vector operators is widened by each of them.
    1. "vector": light, and a large value with a long gap between readers is recomputed before its next reader, if
       vector operators (activations, normalisations, elementwise work) compute it from values that are live then or
       shortly before, from small ones, from inputs or from constants; or if one further value that is kept for it
       replaces several. None of these is recomputed for the sake of another.
    2. "segments": light, and the work up to the memory peak is cut into about as many segments as a segment has values
       that outlive it; of each segment but the last only what later ones read is kept; the rest, including products and
       convolutions, is recomputed before its first late reader.
    3. Outputs of the graph are kept. Operators with nondeterministic results (random numbers), nested graphs and custom
       operators are not repeated: their values are kept.
    4. A recomputed value is placed right before its first late reader, computed once for all of them, and marked, so
       that common subexpression elimination does not merge it with the original.
    """

    name = "recompute"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if options.recompute == "light":
            return _light(graph, passes=options.target.kind != "cuda")
        work = _WAYS.get(options.recompute)
        return work is not None and work(graph)


@dataclass
class _Late:
    """A value that is kept for late readers: the positions of its first late reader and of its last early use."""

    value: ir.Value
    first: int
    early: int


class _Lives:
    """Positions of nodes, and the live ranges of values."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.nodes = list(graph)
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.end: dict[ir.Value, int] = {
            v: max((self.position[n] for n in v.consumers()), default=-1)
            for node in self.nodes
            for v in node.outputs
        }

    def late(self) -> list[_Late]:
        """The large values that are live over many nodes, in the order in which they are computed."""
        found = []
        for place, node in enumerate(self.nodes):
            for value in node.outputs:
                if desc_of(value).nbytes < MIN_BYTES or value.is_graph_output():
                    continue
                uses = sorted({place, *(self.position[n] for n in value.consumers())})
                gap, index = max(
                    ((b - a, i) for i, (a, b) in enumerate(itertools.pairwise(uses))), default=(0, 0)
                )
                if gap >= FAR:
                    found.append(_Late(value, uses[index + 1], uses[index]))
        return found

    def fullest(self) -> int:
        """The position of the memory peak, where the backward pass begins."""
        change = [0] * (len(self.nodes) + 1)
        for value, end in self.end.items():
            change[self.position[_maker(value)]] += desc_of(value).nbytes
            change[max(end, self.position[_maker(value)]) + 1] -= desc_of(value).nbytes
        live = list(itertools.accumulate(change))
        return live.index(max(live))

    def is_given(self, value: ir.Value) -> bool:
        """True if a value is always in memory."""
        return value.producer() is None or constant_of(value) is not None

    def is_there(self, value: ir.Value, position: int) -> bool:
        """True if a value is live at a position anyway, or until shortly before."""
        return self.is_given(value) or self.end[value] >= position - SLACK

    def repeat(self, nodes: Sequence[ir.Node], before: ir.Node) -> dict[ir.Value, ir.Value]:
        """Insert copies of nodes before a node; return the copies of their outputs."""
        made: dict[ir.Value, ir.Value] = {}
        for node in sorted(nodes, key=self.position.__getitem__):
            copy = _copy(node, [made.get(v, v) if v is not None else None for v in node.inputs])
            self.graph.insert_before(before, copy)
            made.update(zip(node.outputs, copy.outputs, strict=True))
        return made

    def hand_over(self, value: ir.Value, other: ir.Value, first: int) -> None:
        """Redirect the readers from a position on to another value."""
        for node, index in value.uses():
            if self.position.get(node, -1) >= first:
                node.replace_input_with(index, other)


def _copy(node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Node:
    copy = ir.Node(
        node.domain,
        node.op_type,
        inputs,
        list(node.attributes.values()),
        num_outputs=len(node.outputs),
        name=f"{node.name}.again{next(_serial)}",
        metadata_props=dict(node.metadata_props),
    )
    facts.set_recomputed(copy)
    for new, old in zip(copy.outputs, node.outputs, strict=True):
        new.name = f"{old.name}.again{next(_serial)}"
        set_desc(new, desc_of(old))
        new.metadata_props.update(old.metadata_props)
    return copy


def _repeatable(node: ir.Node, engines: frozenset[Engine]) -> bool:
    operator = lookup(node.op_type)
    nested = any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()
    )
    plain = operator.foldable and not operator.dynamic_outputs and not is_custom(operator) and not nested
    return plain and operator.engine in engines


def _light(graph: ir.Graph, *, passes: bool = True) -> bool:
    """Rule 0, repeated while inputs of recomputed values can be recomputed too."""
    rounds = 0
    while rounds < LIGHT_ROUNDS and _light_round(_Lives(graph), passes):
        rounds += 1
    return _widen_for_each(_Lives(graph)) or rounds > 0


def _widen_for_each(lives: _Lives) -> bool:
    """Give every vector operator that reads a widened value its own cast, so that the wide value is not stored."""
    casts = [node for node in lives.nodes if _widens_stored_value(node)]
    changed = False
    for cast in casts:
        readers = sorted(set(cast.outputs[0].consumers()), key=lives.position.__getitem__)
        for reader in readers[1:]:
            (made,) = lives.repeat([cast], reader).values()
            for index, value in enumerate(reader.inputs):
                if value is cast.outputs[0]:
                    reader.replace_input_with(index, made)
            changed = True
    return changed


def _widens_stored_value(node: ir.Node) -> bool:
    """True if the node widens a value that no vector operator computes, and only vector operators read it."""
    source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
    if node.op_type != "Cast" or source is None or result.is_graph_output():
        return False
    narrow, wide = desc_of(source), desc_of(result)
    maker = source.producer()
    stored = maker is None or source.is_graph_output() or lookup(maker.op_type).engine not in _CHEAP
    widens = holds_exactly(narrow.dtype, wide.dtype) and narrow.nbytes < wide.nbytes
    large = wide.nbytes >= MIN_BYTES and constant_of(source) is None
    return stored and widens and large and all(map(_joins, result.consumers()))


def _light_round(lives: _Lives, passes: bool) -> bool:
    plans: list[tuple[_Late, list[ir.Node]]] = []
    wanting: dict[ir.Value, list[tuple[_Late, list[ir.Node]]]] = {}
    for late in lives.late():
        found = _chain(lives, late, _is_light, MOST_LIGHT)
        if found is None or not (_read_by_kernels(lives, late) or (passes and _one_pass(found))):
            continue
        if found.missing is None or _nearly_there(lives, late, found.missing):
            _accept(lives, late, found, plans)
        else:
            wanting.setdefault(found.missing, []).append((late, found.nodes))
    for source, waiting in wanting.items():
        saved = sum(desc_of(late.value).nbytes for late, _ in waiting)
        if saved > desc_of(source).nbytes:
            for late, nodes in waiting:
                _accept(lives, late, _Chain(nodes, source), plans)
    return _carry_out(lives, plans)


def _accept(lives: _Lives, late: _Late, chain: _Chain, plans: list[tuple[_Late, list[ir.Node]]]) -> None:
    """Plan to recompute a value: it is live until its last early use, its sources for as long as it was."""
    last, lives.end[late.value] = lives.end[late.value], late.early
    for value in {v for node in chain.nodes for v in node.inputs if v is not None and not lives.is_given(v)}:
        if _maker(value) not in chain.nodes:
            lives.end[value] = max(lives.end[value], last)
    plans.append((late, chain.nodes))


def _nearly_there(lives: _Lives, late: _Late, source: ir.Value) -> bool:
    """True if a source of no more bytes is live for most of the time for which a value would be kept."""
    extension = late.first - lives.end[source]
    return desc_of(source).nbytes <= desc_of(late.value).nbytes and 2 * extension <= late.first - late.early


def _read_by_kernels(lives: _Lives, late: _Late) -> bool:
    """True if the late readers of a value are vector operators that can recompute it as they read."""
    return all(_joins(node) for node in late.value.consumers() if lives.position[node] >= late.first)


def _one_pass(chain: _Chain) -> bool:
    """True if a value is cheap to recompute even in a separate kernel, for products and convolutions."""
    return chain.missing is None and all(map(_is_plain, chain.nodes))


def _joins(node: ir.Node) -> bool:
    operator = lookup(node.op_type)
    if operator.engine is Engine.VIEW:
        return all(_joins(n) and not v.is_graph_output() for v in node.outputs for n in v.consumers())
    return operator.engine is Engine.VECTOR and pattern_of(node) is not Pattern.OPAQUE


def _is_cheap(node: ir.Node) -> bool:
    return _repeatable(node, _CHEAP)


def _is_light(node: ir.Node) -> bool:
    return _is_cheap(node) and (_is_plain(node) or pattern_of(node) in _ELEMENT_WISE)


def _is_plain(node: ir.Node) -> bool:
    return lookup(node.op_type).cost is Cost.PLAIN


def _vector(graph: ir.Graph) -> bool:
    """Rule 1, after rule 0."""
    changed = _light(graph)
    return _vector_round(_Lives(graph)) or changed


def _vector_round(lives: _Lives) -> bool:
    gone: set[ir.Value] = set()
    plans: list[tuple[_Late, list[ir.Node]]] = []
    wanting: dict[ir.Value, list[tuple[_Late, list[ir.Node]]]] = {}
    for late in lives.late():
        found = _chain(lives, late, _is_cheap, MOST_NODES, gone)
        if found is None:
            continue
        if found.missing is None:
            gone.add(late.value)
            lives.end[late.value] = late.early
            plans.append((late, found.nodes))
        else:
            wanting.setdefault(found.missing, []).append((late, found.nodes))
    for source, waiting in wanting.items():
        saved = sum(desc_of(late.value).nbytes for late, _ in waiting)
        if saved > desc_of(source).nbytes and source not in gone:
            plans += waiting
    return _carry_out(lives, plans)


@dataclass
class _Chain:
    """Vector nodes that recompute a value, and the one source that would have to be kept for it."""

    nodes: list[ir.Node]
    missing: ir.Value | None = None


def _chain(
    lives: _Lives,
    late: _Late,
    repeatable: Callable[[ir.Node], bool],
    most: int,
    gone: Collection[ir.Value] = (),
) -> _Chain | None:
    """A way to recompute a value from live values with at most `most` nodes; None if there is none."""
    small = desc_of(late.value).nbytes // SMALL_SHARE
    nodes: dict[ir.Node, None] = {}
    missing: ir.Value | None = None
    todo = [late.value]
    while todo:
        value = todo.pop()
        if value is missing or (value is not late.value and lives.is_there(value, late.first)):
            continue
        if value is not late.value and desc_of(value).nbytes <= small:
            small -= desc_of(value).nbytes
            continue
        if value in gone:
            return None
        node = _maker(value)
        if node in nodes:
            continue
        if repeatable(node) and len(nodes) < most:
            nodes[node] = None
            todo += [v for v in node.inputs if v is not None]
        elif missing is not None or value is late.value:
            return None
        else:
            missing = value
    return _Chain(list(nodes), missing)


def _carry_out(lives: _Lives, plans: list[tuple[_Late, list[ir.Node]]]) -> bool:
    """Recompute the values before their late readers."""
    for late, nodes in plans:
        made = lives.repeat(nodes, lives.nodes[late.first])
        lives.hand_over(late.value, made[late.value], late.first)
    return bool(plans)


def _segments(graph: ir.Graph) -> bool:
    """Rule 2, after rule 0."""
    changed = _light(graph)
    return _segments_round(_Lives(graph)) or changed


def _segments_round(lives: _Lives) -> bool:
    turn = lives.fullest()
    lates = [late for late in lives.late() if late.early < turn <= late.first]
    changed = False
    for part in _parts(lates)[:-1]:
        changed |= _repeat_segment(lives, part)
    return changed


def _maker(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _parts(lates: Sequence[_Late]) -> list[list[_Late]]:
    size = max(math.isqrt(len(lates)), 1)
    return [list(lates[i : i + size]) for i in range(0, len(lates), size)]


def _repeat_segment(lives: _Lives, part: Sequence[_Late]) -> bool:
    """Keep what later segments read, and recompute the rest of a segment before its first late reader."""
    start = lives.position[_maker(part[0].value)]
    stop = lives.position[_maker(part[-1].value)]
    # Read while later segments are computed: the last value, and any other that reaches over.
    dropped = [late for late in part if late.early <= stop]
    nodes = _closure(lives, [late.value for late in dropped], lambda n: start <= lives.position[n] <= stop)
    able = [late for late in dropped if _maker(late.value) in nodes]
    if not able:
        return False
    first = min(late.first for late in able)
    made = lives.repeat(list(nodes), lives.nodes[first])
    for late in able:
        lives.hand_over(late.value, made[late.value], late.first)
    return True


def _closure(
    lives: _Lives, values: Iterable[ir.Value], inside: Callable[[ir.Node], bool]
) -> dict[ir.Node, None]:
    """The nodes of a segment that compute some values from its inputs, as far as these can be recomputed."""
    nodes: dict[ir.Node, None] = {}
    todo = list(values)
    while todo:
        value = todo.pop()
        node = value.producer()
        if node is None or node in nodes or lives.is_given(value):
            continue
        if inside(node) and _repeatable(node, _ANY):
            nodes[node] = None
            todo += [v for v in node.inputs if v is not None]
    return nodes


_WAYS: dict[str, Callable[[ir.Graph], bool]] = {"vector": _vector, "segments": _segments}
