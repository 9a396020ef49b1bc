"""Schedules kernels: parallel loops, vectorised loops, and the temporaries between them.

The iteration space is split into kept variables (one value of each output or reduction per combination) and inner
variables (those that reductions run over). A *row* is one combination of the kept variables. One variable is the lane:
with an inner lane, every row is a sequence of vectorised stages (softmax along the last axis); with an outer lane,
adjacent rows share vectors (sum over the first axis, and all elementwise work).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tbe import expr as e
from tbe.channels import long_rows
from tbe.dtypes import DTYPES
from tbe.index import Index, LoopVar, linear
from tbe.lower import Lowering, Node, Reduction, Running, Unfusable
from tbe.ops import BINARY, UNARY
from tbe.processor import Processor
from tbe.tuning import Tuning

__all__ = [
    "Nest",
    "Schedule",
    "Stage",
    "Store",
    "Temporary",
    "Unfusable",
    "children",
    "closure",
    "effort",
    "lane_of",
    "retuned",
    "row_by_row",
    "schedule",
    "stack_elements",
    "stack_size",
]

MAX_BOXES = 64
_NOMINAL_LANES = 16
_ORDERED_LANES = 256  # lanes from which accumulators are on the stack
_ORDERED_ALONE = 1024  # the same if there are fewer rows than this to parallelise over
_ORDERED_ROWS = 8
_ORDERED_AGAIN = 6.0  # vector instructions that may be repeated for each row
_SHARED_ROWS = (6, 5, 4, 3, 2)  # with sums in up to four vectors each, 32 registers hold six
_IN_ORDER = frozenset(["sum", "prod", "max", "min"])


@dataclass(frozen=True)
class Store:
    """An output element: its address, its value, and whether it is stored inside the inner loops."""

    buffer: int
    offset: Index
    value: Node
    full: bool
    dtype: str


@dataclass(frozen=True)
class Temporary:
    """A value of the inner loops kept on the stack for later stages."""

    number: int
    node: Node
    group: int
    stage: int


@dataclass
class Stage:
    """One pass over a group of inner loops: what it reduces and what it stores."""

    number: int
    group: int
    reductions: list[Reduction] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    temporaries: list[Temporary] = field(default_factory=list)

    def roots(self) -> list[Node]:
        """The values the pass needs."""
        return (
            [r.body for r in self.reductions]
            + [s.value for s in self.stores]
            + [t.node for t in self.temporaries]
        )


@dataclass
class Nest:
    """The loops of one box of the iteration space."""

    lowering: Lowering
    kept: list[LoopVar]
    groups: list[list[LoopVar]]
    stores: list[Store]
    stages: list[Stage]
    temporaries: list[Temporary]
    lane: LoopVar
    lane_outer: bool
    chunk: int  # maximum lanes per row, if the lane is an outer one
    runnings: list[Running]
    tile: LoopVar | None = None  # the variable along which loads that are strided in the lane are contiguous
    tile_step: int = 1  # its values per row
    shared: LoopVar | None = None  # rows along it share one factor of a sum of products
    shared_step: int = 1  # the number of such rows computed at a time
    row_ns: float = 0.0
    rows_per_unit: int = 1
    tuning: Tuning = field(default_factory=Tuning)
    in_order: bool = False  # accumulators are on the stack, so that operands are read in memory order
    processor: Processor = field(default_factory=Processor)

    @property
    def outer(self) -> list[LoopVar]:
        """The loops of a row, without the lane, the tile and rows computed at a time."""
        return [v for v in self.kept if v is not self.lane and v is not self.tile and v is not self.shared]

    @property
    def tiles(self) -> int:
        """The number of pieces of the tile variable."""
        return -(-self.tile.extent // self.tile_step) if self.tile is not None else 1

    @property
    def blocks(self) -> int:
        """The number of blocks of rows that are computed several at a time."""
        return -(-self.shared.extent // self.shared_step) if self.shared is not None else 1

    @property
    def chunks(self) -> int:
        """The number of pieces of the lane."""
        return -(-self.lane.extent // self.chunk) if self.lane_outer else 1

    @property
    def rows(self) -> int:
        """The number of rows, counting every piece of the lane as one."""
        return math.prod(v.extent for v in self.outer) * self.tiles * self.blocks * self.chunks

    @property
    def units(self) -> int:
        """The number of units of parallel work of the nest."""
        return -(-self.rows // self.rows_per_unit)


@dataclass
class Schedule:
    """The loops of a kernel, and the cost of running it."""

    inputs: tuple[e.Tensor, ...]
    outputs: tuple[e.Tensor, ...]
    nests: list[Nest]
    total: int
    grain: int
    flops: int
    bytes_moved: int
    aliases: list[tuple[int, int]]  # (input, output) pairs that may share memory
    streams: bool = False  # whether aligned outputs use non-temporal stores
    processor: Processor = field(default_factory=Processor)

    @property
    def nanoseconds(self) -> float:
        """Estimated time on one core."""
        return _nanoseconds(self.nests)


def schedule(
    inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor], processor: Processor | None = None
) -> Schedule:
    """Find the loops that compute `outputs` as one kernel; raises Unfusable with the reason."""
    processor = processor or Processor()
    try:
        same = long_rows(inputs, outputs) if outputs else None
        if same is None:
            return _Planner(tuple(inputs), tuple(outputs), processor).plan()
        plan = _Planner(tuple(same[0]), tuple(same[1]), processor, long_rows=True).plan()
        return dataclasses.replace(plan, inputs=tuple(inputs), outputs=tuple(outputs))
    except RecursionError:
        raise Unfusable("the graph is too deep") from None


def children(node: Node) -> Iterator[Node]:
    """The nodes a node is computed from, including run-time values inside its index."""
    yield from node.args
    if node.op == "load":
        yield from _opaque(node.data[1])
    elif node.op == "index":
        yield from _opaque(node.data)
    elif node.op == "cond":
        yield from _opaque(node.data[1])
    elif node.op == "running":
        yield node.data.body


def _opaque(i: Index) -> Iterator[Node]:
    for atom, _ in i.terms:
        if atom.kind == "opaque":
            yield atom.data
        elif atom.kind != "var":
            yield from _opaque(atom.data[0])


def _indices(node: Node) -> Iterator[Index]:
    """Every index polynomial of one node, including those inside quotients and clamps."""
    if node.op == "load":
        yield from _nested(node.data[1])
    elif node.op == "index":
        yield from _nested(node.data)
    elif node.op == "cond":
        yield from _nested(node.data[1])


def _nested(i: Index) -> Iterator[Index]:
    yield i
    for atom, _ in i.terms:
        if atom.kind not in ("var", "opaque"):
            yield from _nested(atom.data[0])


# ---------------------------------------------------------------------------------------------------------
# The iteration space
# ---------------------------------------------------------------------------------------------------------


@dataclass
class _Dim:
    """One dimension of the iteration space, from `offset` on, split into factors (outermost first).

    A falling dimension counts down from its last element.
    """

    factors: list[int]
    offset: int = 0
    falling: bool = False


class _Split(Exception):
    """Raised if a loop variable must be split in two for an index to become affine."""

    def __init__(self, dim: _Dim, position: int, inner: int) -> None:
        super().__init__()
        self.dim = dim
        self.position = position
        self.inner = inner

    def apply(self) -> None:
        extent = self.dim.factors[self.position]
        self.dim.factors[self.position : self.position + 1] = [extent // self.inner, self.inner]


class _Space:
    """Creates the loop variables of dimensions and records their origin."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.origin: dict[LoopVar, tuple[_Dim, int]] = {}

    def variables(self, dims: Sequence[_Dim], name: str) -> tuple[list[list[LoopVar]], tuple[Index, ...]]:
        """The variables of each dimension, and its index in terms of them."""
        made, indices = [], []
        for number, dim in enumerate(dims):
            variables, terms, stride = [], [], math.prod(dim.factors)
            for position, extent in enumerate(dim.factors):
                stride //= max(extent, 1)
                if extent == 1:
                    continue
                var = self.lowering.arith.var(
                    extent, f"{name}{number}" + (f"_{position}" if position else "")
                )
                self.origin[var] = (dim, position)
                variables.append(var)
                terms.append((var, stride))
            made.append(variables)
            index = Index(tuple(terms), dim.offset)
            indices.append(index * -1 + (math.prod(dim.factors) - 1) if dim.falling else index)
        return made, tuple(indices)

    def check(self) -> None:
        """Raise _Split if splitting a variable would remove a quotient or remainder of it."""
        for made in self.lowering.arith.atoms():
            if made.kind not in ("div", "mod"):
                continue
            inner, d = made.data
            if len(inner.terms) != 1 or inner.const or inner.terms[0][1] != 1:
                continue
            var = inner.terms[0][0]
            if isinstance(var, LoopVar) and var.extent % d == 0 and var.extent != d:
                raise _Split(*self.origin[var], d)


class _Planner:
    """Plans one kernel."""

    def __init__(
        self,
        inputs: tuple[e.Tensor, ...],
        outputs: tuple[e.Tensor, ...],
        processor: Processor,
        long_rows: bool = False,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.processor = processor
        self.long_rows = long_rows  # vectors run along the last dimension, remainders in it are kept
        if not outputs:
            raise ValueError("a kernel needs at least one output")
        self.reducing = _has_reduction(outputs)

    def plan(self) -> Schedule:
        if any(t.size == 0 for t in self.outputs):
            if any(t.size for t in self.outputs):
                raise Unfusable("outputs with and without elements")
            nests: list[Nest] = []
        elif self.reducing:
            nests = self._plan_reducing()
        else:
            nests = self._plan_plain()
        return self._finish(nests)

    # -- without reductions -------------------------------------------------------------------------------

    def _plan_plain(self) -> list[Nest]:
        first = self.outputs[0]
        for t in self.outputs[1:]:
            if t.size != first.size:
                raise Unfusable(f"outputs of different sizes: {first.shape} and {t.shape}")
        dims = [_Dim([d]) for d in first.shape]
        return list(self._boxes(dims, 1))

    def _boxes(self, dims: list[_Dim], count: int) -> Iterator[Nest]:
        """Nests that cover `dims`, cut where a concat changes from one part to the next."""
        space, stores = self._lower_plain(dims)
        cut = self._cut(space, dims, space.lowering.cut_concat)
        nest = None
        if cut is None:
            nest = self._nest(space, stores, order=space.lowering.arith.vars, inner=[])
            cut = self._cut(space, dims, {nest.lane} & set(space.lowering.breaks))
        if cut is None or count * (len(cut[1]) + 1) > MAX_BOXES:
            yield nest or self._nest(space, stores, order=space.lowering.arith.vars, inner=[])
            return
        number, places = cut
        edges = [0, *sorted(places), math.prod(dims[number].factors)]
        for lo, hi in pairwise(edges):
            box = [_Dim([math.prod(d.factors)], d.offset) for d in dims]
            box[number] = _Dim([hi - lo], dims[number].offset + lo)
            yield from self._boxes(box, count * (len(edges) - 1))

    def _cut(self, space: _Space, dims: list[_Dim], among: set[LoopVar]) -> tuple[int, set[int]] | None:
        """A dimension to cut and the position, if one of the variables `among` has break points."""
        for var in sorted(among, key=lambda v: v.bit):
            dim, _ = space.origin[var]
            if len(dim.factors) == 1:
                return next(n for n, d in enumerate(dims) if d is dim), space.lowering.breaks[var]
        return None

    def _lower_plain(self, dims: list[_Dim]) -> tuple[_Space, list[Store]]:
        whole = self.outputs[0].shape
        while True:
            space = _Space(Lowering(self.inputs))
            _, at = space.variables(dims, "i")
            position = linear(at, whole)
            stores = []
            for number, t in enumerate(self.outputs):
                where = at if t.shape == whole else space.lowering.arith.unravel(position, t.shape)
                value = space.lowering.lower(t, where)
                stores.append(Store(len(self.inputs) + number, position, value, True, t.dtype))
            if space.lowering.unknowns or space.lowering.runnings:
                raise Unfusable("outputs with and without reductions")
            try:
                if not self.long_rows:
                    space.check()
                return space, stores
            except _Split as split:
                split.apply()

    # -- with reductions or scans -------------------------------------------------------------------------

    def _plan_reducing(self) -> list[Nest]:
        primary = max(self.outputs, key=lambda t: (_has_reduction([t]), t.size))
        dims = [_Dim([d]) for d in primary.shape]
        groups: dict[e.Shape, list[_Dim]] = {}
        for _ in range(32):
            try:
                nest = self._try_reducing(primary, dims, groups)
                return self._plan_plain() if nest is None else [nest]
            except _Split as split:
                split.apply()
        raise Unfusable("the reshapes in the graph do not fit one set of loops")

    def _try_reducing(
        self, primary: e.Tensor, dims: list[_Dim], groups: dict[e.Shape, list[_Dim]]
    ) -> Nest | None:
        """The loops, or None if the values of reductions turn out to be unused."""
        probe = _Space(Lowering(self.inputs))
        probe.lowering.lower(primary, probe.variables(dims, "i")[1])
        probe.check()
        if probe.lowering.runnings:
            if probe.lowering.unknowns:
                raise Unfusable("a scan together with a reduction")
            return self._plan_scan(primary, dims)
        if not probe.lowering.unknowns:
            return None
        kept_bits = 0
        for _, kept in probe.lowering.unknowns:
            for i in kept:
                kept_bits |= i.vars
        space = _Space(Lowering(self.inputs))
        order = [v for variables in space.variables(dims, "i")[0] for v in variables]
        inner = [v for v in order if not v.bit & kept_bits]
        if not inner:
            order, inner = self._inner_of(space, probe.lowering.unknowns[0], order, groups)
        nest_groups = [inner]
        space.lowering.reduced = self._reducer(space, order, nest_groups, groups)
        stores = [self._store(space, n, t, order, inner) for n, t in enumerate(self.outputs)]
        space.check()
        if space.lowering.runnings:
            raise Unfusable("a scan together with a reduction")
        kept_order = [v for v in order if v not in inner]
        return self._nest(space, stores, order=kept_order, inner=nest_groups)

    def _inner_of(
        self,
        space: _Space,
        unknown: tuple[e.Reduce, tuple[Index, ...]],
        order: list[LoopVar],
        groups: dict[e.Shape, list[_Dim]],
    ) -> tuple[list[LoopVar], list[LoopVar]]:
        """Inner loops over the axes of a reduction, placed among the kept loops in the order of its operand."""
        t, kept = unknown
        shape = t.inputs[0].shape
        reduced = tuple(shape[a] for a in t.axes)
        made, _ = space.variables(groups.setdefault(reduced, [_Dim([d]) for d in reduced]), "r")
        inner = [v for variables in made for v in variables]
        names = {v.name: v for v in order}
        dims: list[list[LoopVar]] = []
        rest = iter(kept)
        for axis in range(len(shape)):
            if axis in t.axes:
                dims.append(made[t.axes.index(axis)])
            else:
                dims.append(
                    [names[a.name] for a, _ in next(rest).terms if isinstance(a, LoopVar) and a.name in names]
                )
        placed = [v for variables in dims for v in variables]
        if len(placed) != len(order) + len(inner) or len(set(placed)) != len(placed):
            placed = [*order, *inner]
        return placed, inner

    def _reducer(
        self,
        space: _Space,
        order: list[LoopVar],
        nest_groups: list[list[LoopVar]],
        groups: dict[e.Shape, list[_Dim]],
    ) -> Callable[[e.Reduce, tuple[Index, ...]], tuple[tuple[Index, ...], int]]:
        """A function that gives a reduction its inner indices; new groups of loops are added to `nest_groups`."""
        inner = nest_groups[0]
        inner_bits = sum(v.bit for v in inner)
        kept_size = math.prod(v.extent for v in order if v not in inner)
        extra: dict[e.Shape, tuple[Index, ...]] = {}

        def reduced(t: e.Reduce, kept: tuple[Index, ...]) -> tuple[tuple[Index, ...], int]:
            bits = 0
            for i in kept:
                bits |= i.vars
            if bits & inner_bits or bits & ~sum(v.bit for v in order):
                raise Unfusable("reductions over different axes")
            if math.prod(v.extent for v in order if v.bit & bits) != kept_size:
                raise Unfusable("the result of a reduction is used by several rows")
            shape = tuple(t.inputs[0].shape[a] for a in t.axes)
            if math.prod(shape) == math.prod(v.extent for v in inner):
                position = linear([Index(((v, 1),), 0) for v in inner], [v.extent for v in inner])
                return space.lowering.arith.unravel(position, shape), 0
            if shape not in extra:
                made, at = space.variables(
                    groups.setdefault(shape, [_Dim([d]) for d in shape]), f"g{len(extra)}_"
                )
                nest_groups.append([v for variables in made for v in variables])
                extra[shape] = at
            return extra[shape], 1 + list(extra).index(shape)

        return reduced

    def _store(
        self, space: _Space, number: int, t: e.Tensor, order: list[LoopVar], inner: list[LoopVar]
    ) -> Store:
        kept = [v for v in order if v not in inner]
        size = math.prod(v.extent for v in order)
        full = t.size == size
        if not full and t.size != math.prod(v.extent for v in kept):
            raise Unfusable(f"an output of shape {t.shape} beside loops of {size} elements")
        # Loops may be in the order of a reduction's operand; results are stored in their own order.
        over = order if full else sorted(kept, key=lambda v: v.bit)
        position = linear([Index(((v, 1),), 0) for v in over], [v.extent for v in over])
        at = space.lowering.arith.unravel(position, t.shape)
        value = space.lowering.lower(t, at)
        return Store(len(self.inputs) + number, position, value, full, t.dtype)

    def _plan_scan(self, primary: e.Tensor, dims: list[_Dim]) -> Nest:
        """The loops of a scan; a backward scan makes its loop count down."""
        for t in self.outputs:
            if t.size != primary.size:
                raise Unfusable("outputs of different sizes beside a scan")
        space = _Space(Lowering(self.inputs))
        made, at = space.variables(dims, "i")
        order = [v for variables in made for v in variables]
        position = linear(at, primary.shape)
        stores = []
        for number, t in enumerate(self.outputs):
            where = at if t.shape == primary.shape else space.lowering.arith.unravel(position, t.shape)
            value = space.lowering.lower(t, where)
            stores.append(Store(len(self.inputs) + number, position, value, True, t.dtype))
        space.check()
        runnings = space.lowering.runnings
        if not runnings:
            return self._nest(space, stores, order=order, inner=[])
        if len({(r.var.bit, r.falling) for r in runnings}) > 1:
            raise Unfusable("scans along different axes or directions")
        along = runnings[0].var
        if runnings[0].falling:
            dim, _ = space.origin[along]
            if dim.falling or len(dim.factors) > 1:
                raise Unfusable("a scan whose axis is not one whole loop")
            dim.falling = True
            return self._plan_scan(primary, dims)
        return self._nest(space, stores, order=[v for v in order if v is not along], inner=[[along]])

    # -- loops --------------------------------------------------------------------------------------------

    def _nest(
        self, space: _Space, stores: list[Store], order: Sequence[LoopVar], inner: list[list[LoopVar]]
    ) -> Nest:
        nodes = _reachable([s.value for s in stores])
        uses = _uses(nodes, stores)
        runnings = [n.data for n in nodes if n.op == "running"]
        kept = _merge(list(order), uses)
        groups = [_merge(group, uses) for group in inner]
        stages = _stages(stores, nodes)
        lane, tile = _choose_lane(kept, groups, stores, nodes, runnings)
        if self.long_rows:
            lane, tile = kept[-1], None
        if lane is None:
            lane = space.lowering.arith.var(1, "lane")
            kept.append(lane)
        outer = lane in kept
        temporaries = _temporaries(stages, groups, lane, outer, self.processor.stack_bytes)
        nest = Nest(
            space.lowering,
            kept,
            groups,
            stores,
            stages,
            temporaries,
            lane,
            outer,
            lane.extent,
            runnings,
            tile,
            processor=self.processor,
        )
        _share_factor(nest, uses)
        nest.in_order = nest.shared is None and _runs_in_order(nest)
        nest.chunk = _chunk(nest, nodes)
        if tile is not None:
            nest.tile_step = _tile_step(lane, tile, nodes, self.processor)
        nest.row_ns = _row_time(nest)
        return nest

    def _finish(self, nests: list[Nest]) -> Schedule:
        if len(nests) > 1:
            slowest = max(n.row_ns for n in nests)
            for nest in nests:
                nest.rows_per_unit = max(1, min(nest.rows, int(slowest / nest.row_ns)))
        total, grain = _pieces(nests, self.processor)
        flops, moved = _work(nests, self.inputs, self.outputs)
        written = sum(t.size * DTYPES[t.dtype].size for t in self.outputs)
        streams = moved >= self.processor.streamed_bytes and written * 8 >= moved
        aliases = _aliases(self, nests)
        return Schedule(
            self.inputs, self.outputs, nests, total, grain, flops, moved, aliases, streams, self.processor
        )


def _pieces(nests: Sequence[Nest], processor: Processor) -> tuple[int, int]:
    """Units of parallel work, and the number of them that justifies a thread."""
    total = sum(n.units for n in nests)
    time = max(_nanoseconds(nests), 1.0)
    return total, max(1, min(total, math.ceil(processor.wake_ns * total / time))) if total else 1


def _nanoseconds(nests: Sequence[Nest]) -> float:
    return sum(n.row_ns * n.rows for n in nests)


def retuned(plan: Schedule, tuning: Tuning) -> Schedule:
    """The schedule with measured choices in place of those made by rules."""
    nests = []
    for nest in plan.nests:
        changed = dataclasses.replace(nest, tuning=tuning)
        plain = nest.lane_outer and not nest.groups and nest.tile is None
        if tuning.chunk is not None and plain:
            changed.chunk = min(nest.lane.extent, -(-tuning.chunk // 256) * 256)
            changed.row_ns = _row_time(changed)
        if tuning.tile is not None and nest.tile is not None:
            most = min(tuning.tile, nest.lane.extent, nest.tile.extent)
            changed.tile_step = 1 << (most.bit_length() - 1)
            changed.row_ns = _row_time(changed)
        nests.append(changed)
    total, grain = _pieces(nests, plan.processor)
    streams = plan.streams if tuning.streams is None else tuning.streams
    return dataclasses.replace(plan, nests=nests, total=total, grain=grain, streams=streams)


def row_by_row(plan: Schedule) -> Schedule:
    """The schedule with every row by itself, as threads of a GPU compute them."""
    nests = [dataclasses.replace(nest, shared=None, shared_step=1) for nest in plan.nests]
    return dataclasses.replace(plan, nests=nests)


def _has_reduction(outputs: Sequence[e.Tensor]) -> bool:
    seen: set[int] = set()
    stack = list(outputs)
    while stack:
        t = stack.pop()
        if id(t) in seen:
            continue
        seen.add(id(t))
        if isinstance(t, e.Reduce) and math.prod(t.inputs[0].shape[a] for a in t.axes) > 1:
            return True
        if isinstance(t, e.Scan) and t.shape[t.axis] > 1:
            return True
        stack.extend(t.inputs)
    return False


def _reachable(roots: Sequence[Node]) -> list[Node]:
    """All nodes below `roots` in topological order, including bodies of reductions."""
    return _in_order(roots, lambda n: [*children(n), n.data.body] if n.op == "reduction" else children(n))


def _in_order(roots: Sequence[Node], below: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """The reachable nodes in topological order."""
    order: list[Node] = []
    seen: set[int] = set()
    stack = [(n, False) for n in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node.uid not in seen:
            seen.add(node.uid)
            stack.append((node, True))
            stack.extend((c, False) for c in below(node))
    return order


def _uses(nodes: Sequence[Node], stores: Sequence[Store]) -> list[Index]:
    uses = [s.offset for s in stores]
    for node in nodes:
        uses.extend(_indices(node))
        if node.op == "reduction" and node.data.op in ("argmax", "argmin"):
            uses.append(node.data.position)
    return uses


def _merge(order: list[LoopVar], uses: Sequence[Index]) -> list[LoopVar]:
    """Merge adjacent loops that every index treats as one."""
    merged: list[LoopVar] = []
    for var in order:
        while merged and all(_as_one(i, merged[-1], var) for i in uses):
            before = merged.pop()
            var.extent *= before.extent
            var.hi = var.extent - 1
            before.extent = 1
            before.hi = 0
        merged.append(var)
    return merged


def _as_one(i: Index, outer: LoopVar, inner: LoopVar) -> bool:
    if not i.vars & (outer.bit | inner.bit):
        return True
    a = b = 0
    for atom, c in i.terms:
        if atom is outer:
            a = c
        elif atom is inner:
            b = c
    return a == b * inner.extent


def _stages(stores: Sequence[Store], nodes: Sequence[Node]) -> list[Stage]:
    """The passes in execution order: by the number of reductions they wait for, then by group."""
    found: dict[tuple[int, int], Stage] = {}
    for node in nodes:
        if node.op == "reduction":
            key = (node.data.body.stage, node.data.group)
            found.setdefault(key, Stage(*key)).reductions.append(node.data)
    for store in stores:
        if store.full:
            key = (store.value.stage, 0)
            found.setdefault(key, Stage(*key)).stores.append(store)
    return [found[key] for key in sorted(found)]


def closure(roots: Sequence[Node], stop: set[int]) -> list[Node]:
    """The nodes evaluated in one pass in topological order: down to reductions and to the nodes in `stop`."""
    return _in_order(roots, lambda n: () if n.op == "reduction" or n.uid in stop else children(n))


def lane_of(groups: list[list[LoopVar]], group: int, lane: LoopVar, outer: bool) -> LoopVar:
    """The variable vectors run along in the passes over a group."""
    if outer or group == 0:
        return lane
    return max(reversed(groups[group]), key=lambda v: min(v.extent, _NOMINAL_LANES))


def stack_elements(group: Sequence[LoopVar], lane: LoopVar, outer: bool) -> int:
    """Elements of a temporary: whole vectors per step of the serial loops of its group."""
    lanes = _NOMINAL_LANES * 4 if outer else -(-lane.extent // 64) * 64
    return math.prod(v.extent for v in group if v is not lane) * lanes


def stack_size(node: Node) -> int:
    """Bytes of one element of a temporary."""
    kind = DTYPES[node.dtype]
    return max(kind.size, 4) if kind.is_float else kind.size


def _temporaries(
    stages: list[Stage], groups: list[list[LoopVar]], lane: LoopVar, outer: bool, room: int
) -> list[Temporary]:
    """Choose the values of an early pass to keep on the stack for a later pass over the same loops."""
    found: list[Temporary] = []
    for number, group in enumerate(groups):
        passes = [s for s in stages if s.group == number]
        vector = lane_of(groups, number, lane, outer)
        elements = stack_elements(group, vector, outer)
        kept: set[int] = set()
        for early, late in ((a, b) for i, a in enumerate(passes) for b in passes[i + 1 :]):
            spent: dict[int, float] = {}
            first = closure(early.roots(), kept)
            later = {n.uid for n in closure(late.roots(), kept)}
            needed = {
                c.uid for n in closure(late.roots(), kept | {n.uid for n in first}) for c in children(n)
            }
            needed |= {n.uid for n in late.roots()}
            for node in first:
                own = 0.0 if node.uid in kept else effort(node)
                spent[node.uid] = own + sum(
                    spent.get(c.uid, 0.0) for c in children(node) if node.uid not in kept
                )
                size = elements * stack_size(node)
                wanted = (
                    node.uid in later and node.uid in needed and node.vars & vector.bit and node.op != "load"
                )
                if wanted and node.uid not in kept and spent[node.uid] >= 4 and size <= room:
                    temporary = Temporary(len(found), node, number, early.number)
                    found.append(temporary)
                    early.temporaries.append(temporary)
                    kept.add(node.uid)
                    room -= size
                    spent[node.uid] = 0.0
    return found


def effort(node: Node) -> float:
    """The approximate number of vector instructions of a node."""
    if node.op in ("const", "index", "cond", "reduction", "unknown", "running"):
        return 0.5
    if node.op == "load":
        return 1.0 if DTYPES[node.dtype].bits >= 32 else 2.0
    if node.op in ("select", "cast"):
        return 1.0
    if node.op == "lookup":
        return 4.0
    table = UNARY if len(node.args) == 1 else BINARY
    cost = table[node.op].cost
    if node.dtype == "float64":
        cost *= 2 if cost <= 5 else 4
    elif DTYPES[node.dtype].is_float and DTYPES[node.dtype].bits == 16 and not table[node.op].exact:
        cost += 4
    return cost


def _choose_lane(
    kept: list[LoopVar],
    groups: list[list[LoopVar]],
    stores: Sequence[Store],
    nodes: Sequence[Node],
    runnings: Sequence[Running],
) -> tuple[LoopVar | None, LoopVar | None]:
    """The lane with the cheapest memory accesses, and the tile variable."""
    candidates = [v for v in kept if v.extent > 1]
    if groups:
        candidates += [v for v in groups[0] if v.extent > 1]
    loads = [n for n in nodes if n.op == "load"]
    targets = [s.offset for s in stores if s.full or not groups]
    work = sum(effort(n) for n in nodes) + 2.0
    reductions = sum(1 for n in nodes if n.op == "reduction")
    inner_size = math.prod(v.extent for v in groups[0]) if groups else 1
    best: tuple[float, int] | None = None
    choice: tuple[LoopVar | None, LoopVar | None] = None, None
    for rank, var in enumerate(candidates):
        tile = _tile_for(var, kept, loads) if not groups else None
        lanes = var.extent / math.ceil(var.extent / _NOMINAL_LANES)
        cost = work + sum(_access_cost(n.data[1], var, lanes, None if n.args else tile) for n in loads)
        cost += sum(1.5 * _access_cost(i, var, lanes, None) for i in targets)
        if runnings and var not in kept:
            cost += 10.0 * len(runnings)
        cost /= lanes
        if reductions and var not in kept:
            cost += 12.0 * reductions / inner_size
        key = (cost, -rank)
        if best is None or key < best:
            best, choice = key, (var, tile)
    return choice


def _tile_for(lane: LoopVar, kept: Sequence[LoopVar], loads: Sequence[Node]) -> LoopVar | None:
    """The variable along which a load that is strided in the lane is contiguous, if tiling it would help."""
    for node in loads:
        offset = node.data[1]
        if node.args or not offset.vars & lane.bit or offset.coefficient(lane) in (None, 0, 1, -1):
            continue
        for var in kept:
            if var is not lane and offset.coefficient(var) == 1 and min(var.extent, lane.extent) >= 4:
                return var
    return None


def _access_cost(i: Index, var: LoopVar, lanes: float, tile: LoopVar | None) -> float:
    if not i.vars & var.bit:
        return 0.3
    stride = i.coefficient(var)
    if stride == 1:
        return 1.0
    if tile is not None and stride is not None and i.coefficient(tile) == 1:
        return 5.0
    if stride is not None and 1 < stride <= 4:
        return 2.0 * stride
    return 2.0 if stride == -1 else 1.0 + 1.5 * lanes


def _tile_step(lane: LoopVar, tile: LoopVar, nodes: Sequence[Node], processor: Processor) -> int:
    narrow = all(DTYPES[n.dtype].size <= 2 for n in nodes)
    most = 32 if narrow else 128 if lane.extent * tile.extent >= processor.tiled_elements else 16
    return 1 << (min(most, lane.extent, tile.extent).bit_length() - 1)


def _share_factor(nest: Nest, uses: Sequence[Index]) -> None:
    """Register blocking: compute several rows of a sum of products together if they share one factor.

    Each value of the common factor is then loaded once for all of them, and each of the other once for several vectors:
    the sums stay in registers. The innermost loop follows the other factor through memory.
    """
    factors = _factors(nest)
    if factors is None:
        return
    common, own = factors
    along = [v for v in nest.outer if own & v.bit and not common & v.bit and v.extent > 1]
    if not along:
        return
    nest.shared = along[-1]
    nest.shared_step = max(_SHARED_ROWS, key=lambda n: _shared_gain(along[-1].extent, n))
    loads = [
        n for n in closure(nest.stages[0].roots(), set()) if n.op == "load" and not n.vars & nest.lane.bit
    ]
    (group,) = nest.groups
    group.sort(key=lambda v: any(n.data[1].coefficient(v) == 1 for n in loads))
    nest.groups[0] = _merge(group, uses)


def _factors(nest: Nest) -> tuple[int, int] | None:
    """The variables of the two factors of a nest's sum of products: one along the lane, one not."""
    if not nest.lane_outer or nest.tile is not None or nest.runnings or nest.temporaries:
        return None
    if len(nest.groups) != 1 or len(nest.stages) != 1 or len(nest.stages[0].reductions) != 1:
        return None
    (stage,) = nest.stages
    (reduction,) = stage.reductions
    body = reduction.body
    if body.dtype not in ("float32", "float64", "int32"):
        return None
    if stage.stores or reduction.op != "sum" or body.op != "mul":
        return None
    one, other = sorted(body.args, key=lambda n: not n.vars & nest.lane.bit)
    if not one.vars & nest.lane.bit or other.vars & nest.lane.bit:
        return None
    return one.vars, other.vars


def _shared_gain(extent: int, step: int) -> float:
    """How well this many rows at a time use the registers; rows computed twice at the end count once."""
    return extent / (-(-extent // step) * step) * step / (step + 1.5)


def _runs_in_order(nest: Nest) -> bool:
    """True if long rows are accumulated one after another, instead of piece by piece through all of them."""
    if not nest.lane_outer or nest.tile is not None or nest.runnings or nest.temporaries:
        return False
    if len(nest.groups) != 1 or len(nest.stages) != 1:
        return False
    reductions = nest.stages[0].reductions
    plain = all(r.op in _IN_ORDER and r.body.vars & nest.lane.bit for r in reductions)
    least = _ORDERED_LANES if math.prod(v.extent for v in nest.outer) >= _ORDERED_ROWS else _ORDERED_ALONE
    long = nest.lane.extent >= least and nest.lane.extent % 256 == 0
    many = math.prod(v.extent for v in nest.groups[0]) >= 16
    return plain and long and many and len(reductions) <= 3 and _again(nest) <= _ORDERED_AGAIN


def _again(nest: Nest) -> float:
    """Vector instructions for row-invariant values, which only rows computed piece by piece evaluate once."""
    inner = sum(v.bit for v in nest.groups[0])
    nodes = closure(nest.stages[0].roots(), set())
    return sum(effort(n) for n in nodes if not n.vars & inner and n.op not in ("const", "load"))


def _chunk(nest: Nest, nodes: Sequence[Node]) -> int:
    if not nest.lane_outer:
        return 1
    extent, chunk = nest.lane.extent, nest.processor.chunk
    if nest.in_order:
        room = extent * 8 * len(nest.stages[0].reductions)
        return min(extent, chunk) if room > nest.processor.stack_bytes else extent
    if nest.groups:
        widest = max((DTYPES[n.dtype].size for n in nodes), default=4)
        return min(extent, max(64, 256 // max(widest, 1)))
    return chunk if extent >= 2 * chunk else extent


def _row_time(nest: Nest) -> float:
    """The approximate nanoseconds of one row on one core."""
    lanes = min(nest.lane.extent, nest.chunk) * nest.tile_step * nest.shared_step if nest.lane_outer else 1
    time = 3.0
    for stage in nest.stages:
        group = nest.groups[stage.group] if nest.groups else []
        lane = lane_of(nest.groups, stage.group, nest.lane, nest.lane_outer)
        width = min(lane.extent, _NOMINAL_LANES)
        nodes = closure(stage.roots(), set())
        cost = sum(effort(n) for n in nodes)
        for node in nodes:
            if node.op == "load":
                cost += _access_cost(node.data[1], lane, width, nest.tile)
        cost += sum(1.5 * _access_cost(s.offset, lane, width, None) for s in stage.stores)
        time += lanes * math.prod(v.extent for v in group) * cost / width * 0.2
        time += 6.0 * len(stage.reductions)
    return time


def _work(nests: Sequence[Nest], inputs: Sequence[e.Tensor], outputs: Sequence[e.Tensor]) -> tuple[int, int]:
    flops = 0
    read: dict[int, int] = {}
    for nest in nests:
        extents = {v.bit: v.extent for v in nest.lowering.arith.vars}
        roots = [s.value for s in nest.stores]
        for node in _reachable(roots):
            count = 1
            for bit, extent in extents.items():
                if node.vars & bit:
                    count *= extent
            if node.op == "load":
                read[node.data[0]] = read.get(node.data[0], 0) + count
            elif node.op == "reduction":
                flops += count * node.data.extent
            elif node.args:
                flops += count
    moved = sum(DTYPES[t.dtype].size * t.size for t in outputs)
    for buffer, count in read.items():
        moved += DTYPES[inputs[buffer].dtype].size * min(count, inputs[buffer].size)
    return flops, moved


def _aliases(planner: _Planner, nests: Sequence[Nest]) -> list[tuple[int, int]]:
    """Inputs whose every element is read only where one output element of the same size is then stored."""
    count = len(planner.inputs)
    pairs = []
    for number, tensor in enumerate(planner.inputs):
        for out, target in enumerate(planner.outputs):
            same = DTYPES[tensor.dtype].size == DTYPES[target.dtype].size and tensor.size == target.size
            if same and all(_in_place(nest, number, count + out) for nest in nests):
                pairs.append((number, out))
    return pairs


def _in_place(nest: Nest, source: int, target: int) -> bool:
    store = next(s for s in nest.stores if s.buffer == target)
    # Tiles overlap at the edges, as do rows computed several at a time: elements are stored twice.
    if nest.tile is not None or nest.shared is not None or not store.full:
        return False
    for node in _reachable([s.value for s in nest.stores]):
        if node.op == "lookup" and node.data == source:
            return False
        if node.op == "load" and node.data[0] == source and (node.args or node.data[1] != store.offset):
            return False
    for stage in nest.stages:
        for node in closure(stage.roots(), set()):
            if node.op == "load" and node.data[0] == source and stage.number > store.value.stage:
                return False
    return True
