"""Renders a schedule as the code of one GPU thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tbe import convert
from tbe.accumulate import accumulate, combine, components, horizontal, initial, neutral, result
from tbe.cuda.grid import TILE, TILE_ROWS, WARP, Grid, Mapping, loads_of
from tbe.cuda.platforms import Platform
from tbe.dtypes import DTYPES
from tbe.elements import Elements
from tbe.index import Atom, LoopVar
from tbe.ir import Builder, Value
from tbe.lower import Node, Reduction
from tbe.schedule import Schedule, Stage, Store

__all__ = ["render"]

_SHARED_LIMIT = 48 * 1024  # bytes of static shared memory that every architecture has
_COMPONENT_BYTES = {"i1": 1, "i8": 1, "i16": 2, "half": 2, "i32": 4, "i64": 8, "float": 4, "double": 8}


class _ThreadBuilder(Builder):
    """Loops are plain: the optimiser unrolls them and computes their addresses."""

    def counted(self, counter: Value) -> Value:
        return counter


def render(schedule: Schedule, grid: Grid, platform: Platform, symbol: str, *, aligned: bool = True) -> str:
    """The module that contains the kernel."""
    b = _ThreadBuilder(platform.machine)
    count = len(schedule.inputs) + len(schedule.outputs)
    buffers = platform.begin(b, count)
    thread, block = platform.thread(b), platform.block(b)
    shared = 0
    first = 0
    for mapping in grid.mappings:
        writer = _ThreadWriter(b, mapping, buffers, platform)

        def write(writer: _ThreadWriter = writer, mapping: Mapping = mapping, first: int = first) -> None:
            own = b.op("sub", block, b.const("i32", 1, first)) if first else block
            if mapping.threads < grid.threads:
                b.when(
                    b.icmp("ult", thread, b.const("i32", 1, mapping.threads)), lambda: writer.run(thread, own)
                )
            else:
                writer.run(thread, own)

        if len(grid.mappings) == 1:
            write()
        else:
            _when_between(b, block, first, first + mapping.blocks, write)
        shared = max(shared, writer.shared_bytes)
        first += mapping.blocks
    b.line("ret void")
    if shared > _SHARED_LIMIT:
        raise AssertionError(f"kernel {symbol} needs {shared} bytes of shared memory")
    return platform.module(b, symbol, grid.threads, shared, _attributes(schedule, 16 if aligned else 1))


def _when_between(b: Builder, x: Value, lo: int, hi: int, body: Callable[[], None]) -> None:
    from_lo = b.op("sub", x, b.const("i32", 1, lo))
    b.when(b.icmp("ult", from_lo, b.const("i32", 1, hi - lo)), body)


def _attributes(schedule: Schedule, alignment: int) -> list[str]:
    """Parameter attributes: buffers that may alias are not declared noalias."""
    count = len(schedule.inputs)
    shared = {i for i, _ in schedule.aliases} | {count + o for _, o in schedule.aliases}
    kinds = ["readonly"] * count + ["writeonly"] * len(schedule.outputs)
    alone = ["" if n in shared else "noalias " for n in range(len(kinds))]
    return [f"{word}align {alignment} {kind}" for word, kind in zip(alone, kinds, strict=True)]


class _ThreadWriter(Elements):
    """Emits the work of one thread in one nest.

    The copies of `Elements` are the steps a thread handles at a time; `places` holds the loop variables of each. Steps
    and cells past the end repeat the first ones: they read valid memory, accumulate nothing and store nothing.
    """

    def __init__(self, b: Builder, mapping: Mapping, buffers: list[Value], platform: Platform) -> None:
        super().__init__(b, mapping.nest, buffers)
        self.mapping = mapping
        self.platform = platform
        self.width = self.full_width = mapping.width
        self.lanes = mapping.width
        self.temporaries = {}  # values stay in registers, or are recomputed
        self.copy_bits = 0
        self.places: list[dict[int, Value]] = []
        self.place_depth = 0
        self.inside: list[Value | None] = []  # whether each copy's step exists
        self.valid: Value | None = None  # whether the cell exists
        self.member = b.const("i32", 1, 0)  # this thread's index in its team
        self.column = b.const("i32", 1, 0)  # the index of its cell in the block
        self.shared_bytes = 0
        self._shared: Value | None = None
        self._done: dict[int, tuple[list[dict[int, Value]], list[Value | None]]] = {}

    def run(self, thread: Value, block: Value) -> None:
        """Emit the whole nest."""
        if self.mapping.tiled:
            self._tile(thread, block)
            return
        self._find_cell(thread, block)
        for stage in self.nest.stages:
            self.stage = stage.number
            if not self.nest.groups:
                self._set_places([{}], [None])
                self._store_all(stage.stores, 1, alone=False)
            elif self.nest.runnings:
                self._scan(stage)
            else:
                self._reduce(stage)
        self.stage = len(self.nest.stages) + 1
        self._set_places([{}], [None])
        if not self.nest.lane_outer:
            self.lanes = 1
        rest = [s for s in self.nest.stores if not s.full]
        if rest:
            self._store_all(rest, 1, alone=True)

    # -- cells --------------------------------------------------------------------------------------------

    def _find_cell(self, thread: Value, block: Value) -> None:
        """Bind the kept loop variables to this thread's cell."""
        b, m, nest = self.b, self.mapping, self.nest
        self.column, self.member = thread, b.const("i32", 1, 0)
        if m.team > 1 and nest.lane_outer:  # adjacent threads handle adjacent lanes
            self.column, self.member = self._divided(thread, m.cells_per_block)[::-1]
        elif m.team > 1:  # adjacent threads share a row
            self.column, self.member = self._divided(thread, m.team)
        wide = m.blocks * m.cells_per_block >= 1 << 31
        numbers = [b.convert("zext", x, "i64") if wide else x for x in (block, self.column)]
        per_block = b.const(numbers[0].elem, 1, m.cells_per_block)
        cell = b.op("add", b.op("mul", numbers[0], per_block), numbers[1])
        if m.cells % m.cells_per_block:
            self.valid = b.icmp("ult", cell, b.like(cell, m.cells))
            cell = b.select(self.valid, cell, b.like(cell, 0))
        variables = list(nest.outer)
        extents = [v.extent for v in variables]
        if nest.lane_outer:
            extents.append(nest.lane.extent // m.width)
        values = self._unravel(cell, extents)
        for var, value in zip(variables, values, strict=False):
            self._bind(var, value)
        if nest.lane_outer:
            self._bind(nest.lane, self._times(values[-1], m.width) if m.width > 1 else values[-1])

    def _divided(self, x: Value, by: int) -> tuple[Value, Value]:
        """Quotient and remainder by a constant."""
        b = self.b
        return b.op("udiv", x, b.like(x, by)), b.op("urem", x, b.like(x, by))

    def _unravel(self, position: Value, extents: Sequence[int]) -> list[Value]:
        """The i64 indices of a row-major position."""
        b = self.b
        values: list[Value] = []
        first = next((n for n, extent in enumerate(extents) if extent > 1), 0)
        for n in range(len(extents) - 1, -1, -1):
            if extents[n] == 1:
                values.insert(0, self._number(0))
                continue
            digit = position
            if n != first:
                position, digit = self._divided(position, extents[n])
            values.insert(0, b.convert("zext", digit, "i64") if digit.elem == "i32" else digit)
        return values

    def _atom(self, atom: Atom, u: int) -> tuple[Value, int]:
        if isinstance(atom, LoopVar) and u >= 0 and atom.bit in self.places[u]:
            return self.places[u][atom.bit], self.place_depth
        if isinstance(atom, LoopVar):
            return self.bound[atom.bit]
        return super()._atom(atom, u)

    # -- steps --------------------------------------------------------------------------------------------

    def _set_places(self, places: list[dict[int, Value]], inside: list[Value | None]) -> None:
        self.places, self.inside = places, inside
        self.copy_bits = sum(places[0])
        self.place_depth = len(self.scopes) - 1
        self.masks = [None] * len(places)

    def _steps_at(self, group: int, turn: Value | None) -> None:
        """Set the copies to the steps of an iteration: turn * team + member, then `team` further for each copy."""
        b, m = self.b, self.mapping
        variables = list(self.nest.groups[group])
        lane = self.nest.lane
        if lane in variables:
            variables = [v for v in variables if v is not lane] + [lane]
        extents = [v.extent // m.width if v is lane else v.extent for v in variables]
        steps = m.steps[group]
        exact = steps % (m.team * (1 if m.unrolled else m.copies)) == 0
        places: list[dict[int, Value]] = []
        inside: list[Value | None] = []
        wide = steps + m.team * m.copies >= 1 << 31
        for u in range(-(-steps // m.team) if m.unrolled else m.copies):
            step = b.const("i32", 1, u * m.team)
            if m.team > 1:
                step = b.op("add", self.member, step) if u else self.member
            if wide:
                step = b.convert("zext", step, "i64")
            if turn is not None:
                first = turn if wide else b.convert("trunc", turn, "i32")
                scaled = b.op("mul", first, b.like(first, m.team)) if m.team > 1 else first
                step = b.op("add", scaled, step) if u or m.team > 1 else scaled
            whole = exact or (turn is None and (u + 1) * m.team <= steps)
            exists = None if whole else b.icmp("ult", step, b.like(step, steps))
            if exists is not None:
                step = b.select(exists, step, b.like(step, 0))
            values = self._unravel(step, extents)
            if variables[-1] is lane and m.width > 1:
                values[-1] = self._times(values[-1], m.width)
            places.append({v.bit: value for v, value in zip(variables, values, strict=True)})
            inside.append(exists)
        self._set_places(places, inside)

    def _turns(
        self, group: int, carried: list[Value], body: Callable[[list[Value]], list[Value]]
    ) -> list[Value]:
        """Run a body for all steps of this thread, with carried values."""
        m = self.mapping
        if m.unrolled:
            if group in self._done:
                self._set_places(*self._done[group])
            else:
                self._steps_at(group, None)
                self._done[group] = self.places, self.inside
            return body(carried)
        turns = -(-m.steps[group] // m.team)

        def turn(counter: Value, values: list[Value]) -> list[Value]:
            self._steps_at(group, counter)
            return body(values)

        return self._loop(self._number(0), self._number(turns), m.copies, carried, turn)

    # -- reductions ---------------------------------------------------------------------------------------

    def _lanes_of(self, r: Reduction) -> int:
        if not self.nest.lane_outer or r.body.vars & self.lane_bit:
            return self.lanes
        return 1

    def _reduce(self, stage: Stage) -> None:
        """One pass over the steps, and the combination of the team's accumulators."""
        sizes = [len(components(r)) for r in stage.reductions]
        carried = [part for r in stage.reductions for part in initial(self.b, r, self._lanes_of(r))]

        def body(values: list[Value]) -> list[Value]:
            copies = len(self.places)
            totals = _grouped(values, sizes)
            for n, r in enumerate(stage.reductions):
                for u in range(copies):
                    totals[n] = combine(self.b, r, totals[n], self._masked_element(r, u))
            self._store_all(stage.stores, copies, alone=False)
            return [part for parts in totals for part in parts]

        totals = _grouped(self._turns(stage.group, carried, body), sizes)
        if not self.nest.lane_outer:
            totals = [horizontal(self.b, r, t) for r, t in zip(stage.reductions, totals, strict=True)]
        totals = self._across_team(stage.reductions, totals)
        for r, parts in zip(stage.reductions, totals, strict=True):
            self._keep(
                (r.node.uid, self._copy(r.node.vars, -1)), result(self.b, r, parts), len(self.scopes) - 1
            )

    def _masked_element(self, r: Reduction, u: int) -> list[Value]:
        element = self._element(r, u)
        exists = self.inside[u]
        if exists is None:
            return element
        nothing = initial(self.b, r, element[0].lanes)
        return [self.b.select(exists, x, n) for x, n in zip(element, nothing, strict=True)]

    def _across_team(self, reductions: Sequence[Reduction], totals: list[list[Value]]) -> list[list[Value]]:
        m = self.mapping
        if m.team == 1 or not reductions:
            return totals
        if self.nest.lane_outer:
            return self._through_shared(
                reductions, totals, m.team, self.member, m.cells_per_block, self.column
            )
        distance = 1
        while distance < min(m.team, WARP):
            for n, r in enumerate(reductions):
                other = [self.platform.shuffle(self.b, part, distance) for part in totals[n]]
                totals[n] = combine(self.b, r, totals[n], other)
            distance *= 2
        if m.team <= WARP:
            return totals
        warp, _ = self._divided(self.member, WARP)
        return self._through_shared(reductions, totals, m.team // WARP, warp, m.cells_per_block, self.column)

    def _through_shared(
        self,
        reductions: Sequence[Reduction],
        totals: list[list[Value]],
        rows: int,
        row: Value,
        columns: int,
        column: Value,
    ) -> list[list[Value]]:
        """Combine the accumulators of all rows of each column through shared memory; all threads receive the result."""
        b = self.b
        slots = [[self._reserve(part, rows * columns) for part in parts] for parts in totals]
        place = b.op("add", b.op("mul", row, b.const("i32", 1, columns)), column)
        at = b.convert("zext", place, "i64")
        for parts, addresses in zip(totals, slots, strict=True):
            for part, address in zip(parts, addresses, strict=True):
                self._put(part, address, at)
        self.platform.barrier(b)
        joined = []
        for r, parts, addresses in zip(reductions, totals, slots, strict=True):
            total = list(parts)
            for n in range(rows):
                where = b.convert("zext", b.op("add", column, b.const("i32", 1, n * columns)), "i64")
                row_parts = [self._get(p, a, where) for p, a in zip(parts, addresses, strict=True)]
                total = combine(b, r, total, row_parts) if n else row_parts
            joined.append(total)
        return joined

    def _reserve(self, value: Value, count: int) -> Value:
        """Shared memory for `count` values of a type."""
        if self._shared is None:
            self._shared = self.platform.shared(self.b)
        offset = -(-self.shared_bytes // 16) * 16
        self.shared_bytes = offset + count * value.lanes * _COMPONENT_BYTES[value.elem]
        return self.b.gep("i8", self._shared, self._number(offset))

    def _put(self, value: Value, address: Value, at: Value) -> None:
        if value.elem == "i1":
            value = self.b.convert("zext", value, "i8")
        slot = self.b.gep(value.ty, address, at)
        self.b.store(value, slot, _COMPONENT_BYTES[value.elem])

    def _get(self, like: Value, address: Value, at: Value) -> Value:
        elem = "i8" if like.elem == "i1" else like.elem
        kind = Value("%", elem, like.lanes)
        value = self.b.load(elem, like.lanes, self.b.gep(kind.ty, address, at), _COMPONENT_BYTES[elem])
        return self.b.icmp("ne", value, self.b.like(value, 0)) if like.elem == "i1" else value

    # -- scans --------------------------------------------------------------------------------------------

    def _scan(self, stage: Stage) -> None:
        """A thread walks its row with the running totals."""
        b, runnings = self.b, self.nest.runnings
        start = [b.const(convert.register_type(r.dtype), 1, neutral(r.op, r.dtype)) for r in runnings]

        def body(values: list[Value]) -> list[Value]:
            following = []
            for r, before in zip(runnings, values, strict=True):
                after = accumulate(b, r.op, before, self._value(r.body, 0)[0], r.dtype)
                shown = before if r.exclusive else after
                if r.op in ("sum", "prod"):
                    shown = convert.rounded(b, shown, r.dtype)
                self._keep((r.node.uid, self._copy(r.node.vars, 0)), shown, len(self.scopes) - 1)
                following.append(after)
            self._store_all(stage.stores, 1, alone=False)
            return following

        self._turns(0, start, body)

    # -- memory -------------------------------------------------------------------------------------------

    def _load(self, node: Node, u: int) -> tuple[Value, int]:
        b = self.b
        buffer, offset = node.data
        lanes = self.lanes if self._in_lanes(offset.vars) else 1
        elem, size = self._memory(node.dtype), DTYPES[node.dtype].size
        index, depth = self._index(offset, u)
        if node.args:
            inside, guard_depth = self._value(node.args[0], u)
            depth = max(depth, guard_depth)
            index = self._at(depth, lambda: b.select(inside, index, self._number(0)))

        def read() -> Value:
            address = b.gep(elem, self.buffers[buffer], index)
            return self._from_memory(b.load(elem, lanes, address, lanes * size), node.dtype)

        return self._at(depth, read), depth

    def _store_all(self, stores: Sequence[Store], copies: int, *, alone: bool) -> None:
        """Store values after all of them are computed; `alone`: only by the first thread of each team."""
        for store in stores:
            for u in range(copies):
                self._value(store.value, u)
        for u in range(copies):
            condition = self._both(self.valid, self.inside[u])
            if alone and self.mapping.team > 1:
                first = self.b.icmp("eq", self.member, self.b.const("i32", 1, 0))
                condition = self._both(condition, first)

            def write(u: int = u) -> None:
                for store in stores:
                    self._store(store, u)

            if condition is None:
                write()
            elif stores:
                self._when(condition, write)

    def _both(self, a: Value | None, b: Value | None) -> Value | None:
        if a is None or b is None:
            return a or b
        return self.b.op("and", a, b)

    def _store(self, store: Store, u: int) -> None:
        b = self.b
        value = self._value(store.value, u)[0]
        lanes = self.lanes if self._in_lanes(store.offset.vars) else 1
        elem, size = self._memory(store.dtype), DTYPES[store.dtype].size
        address = b.gep(elem, self.buffers[store.buffer], self._index(store.offset, u)[0])
        b.store(self._to_memory(b.splat(value, lanes), store.dtype), address, lanes * size)

    # -- transposes ---------------------------------------------------------------------------------------

    def _tile(self, thread: Value, block: Value) -> None:
        """A square of the lane and the tile variable: loads along the tile, stores along the lane."""
        b, nest = self.b, self.nest
        lane, tile = nest.lane, nest.tile
        assert tile is not None
        sides = [-(-v.extent // TILE) for v in (tile, lane)]
        *outer, tile_number, lane_number = self._unravel(block, [*(v.extent for v in nest.outer), *sides])
        for var, value in zip(nest.outer, outer, strict=True):
            self._bind(var, value)
        row, column = (b.convert("zext", x, "i64") for x in self._divided(thread, TILE))
        first_lane, first_tile = self._times(lane_number, TILE), self._times(tile_number, TILE)
        moved, slots = [], {}
        pitch = TILE + 1
        for node in filter(self._is_tiled, loads_of(nest)):
            if self.shared_bytes + TILE * pitch * DTYPES[node.dtype].size > _SHARED_LIMIT:
                break  # the others are read where they are needed
            moved.append(node)
            elem = self._memory(node.dtype)
            slots[node.uid] = self._reserve(Value("%", elem, 1), TILE * pitch)

        def place(along_row: Value, along_column: Value, variables: tuple[LoopVar, LoopVar]) -> None:
            places, inside = [], []
            for u in range(TILE // TILE_ROWS):
                moved_row = b.op("add", along_row, self._number(u * TILE_ROWS)) if u else along_row
                values, exists = {}, None
                for var, value in zip(variables, (moved_row, along_column), strict=True):
                    if var.extent % TILE:
                        exists = self._both(exists, b.icmp("slt", value, self._number(var.extent)))
                    values[var.bit] = value
                if exists is not None:
                    values = {bit: b.select(exists, x, self._number(0)) for bit, x in values.items()}
                places.append(values)
                inside.append(exists)
            self._set_places(places, inside)

        def read() -> None:
            place(b.op("add", first_lane, row), b.op("add", first_tile, column), (lane, tile))
            for node in moved:
                for u in range(len(self.places)):
                    elem, size = self._memory(node.dtype), DTYPES[node.dtype].size
                    index = self._index(node.data[1], u)[0]
                    value = b.load(elem, 1, b.gep(elem, self.buffers[node.data[0]], index), size)
                    line = b.op("add", row, self._number(u * TILE_ROWS))
                    at = b.op("add", self._times(line, pitch), column)
                    b.store(value, b.gep(elem, slots[node.uid], at), size)

        self._straight(read)
        self.platform.barrier(b)
        place(b.op("add", first_tile, row), b.op("add", first_lane, column), (tile, lane))
        for node in moved:
            for u in range(len(self.places)):
                elem, size = self._memory(node.dtype), DTYPES[node.dtype].size
                line = b.op("add", row, self._number(u * TILE_ROWS))
                at = b.op("add", self._times(column, pitch), line)
                value = b.load(elem, 1, b.gep(elem, slots[node.uid], at), size)
                self._keep((node.uid, u), self._from_memory(value, node.dtype), len(self.scopes) - 1)
        for stage in nest.stages:
            self._store_all(stage.stores, len(self.places), alone=False)

    def _is_tiled(self, node: Node) -> bool:
        offset, tile = node.data[1], self.nest.tile
        return (
            not node.args
            and tile is not None
            and offset.coefficient(tile) == 1
            and offset.coefficient(self.nest.lane) not in (None, 0, 1)
        )


def _grouped(values: Sequence[Value], sizes: Sequence[int]) -> list[list[Value]]:
    rest = iter(values)
    return [[next(rest) for _ in range(size)] for size in sizes]
