"""Renders a schedule as LLVM IR: one function over a range of units, with explicit vectors.

Values are written once, in the outermost loop where all their operands are known. Names used here: a *copy* is
one of the vectors an unrolled loop body handles at a time; the *depth* of a value is the number of the scope
(loop) it is written in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tbe import convert, integers, vector_math
from tbe.dtypes import DTYPES
from tbe.index import Atom, Index, LoopVar
from tbe.ir import Builder, Lines, Value, flatten
from tbe.lower import Node, Reduction, Running
from tbe.ops import BINARY, UNARY
from tbe.schedule import STACK_LIMIT, Nest, Schedule, Stage, Store, Temporary, closure, effort, lane_of
from tbe.target import Machine

__all__ = ["render"]

_ONE_COPY = -1  # the copy number of values that are the same in all copies
_ROW = 64  # copy numbers of the second row of a pair start here


def render(schedule: Schedule, machine: Machine, symbol: str) -> str:
    """The module that holds the kernel."""
    b = Builder(machine)
    count = len(schedule.inputs) + len(schedule.outputs)
    buffers = []
    for number in range(count):
        slot = b.gep("ptr", Value("%args", "ptr", 1), b.const("i64", 1, number))
        buffers.append(b.emit(f"load ptr, ptr {slot.name}, align 8", "ptr", 1))
    first = 0
    stack: Lines = []
    b.out.append(stack)
    for nest in schedule.nests:
        _render_nest(b, nest, buffers, first, len(schedule.nests) == 1, stack)
        first += nest.units
    b.line("ret void")
    body = "\n".join(flatten(b.out))
    functions = "\n".join("\n".join(lines) for lines in b.functions.values())
    declarations = "\n".join(b.declared.values())
    width = machine.vector_bytes * 8
    attributes = f'nounwind "no-builtins" "target-cpu"="{machine.cpu}" "prefer-vector-width"="{width}"'
    attributes += f' "min-legal-vector-width"="{width}"'
    return (
        f'target triple = "x86_64-unknown-linux-gnu"\n{declarations}\n'
        f"define void @{symbol}(ptr %args, i64 %lo, i64 %hi) #0 {{\nentry:\n{body}\n}}\n{functions}\n"
        f"attributes #0 = {{ {attributes} }}\nattributes #1 = {{ noinline {attributes} }}\n"
    )


def _render_nest(b: Builder, nest: Nest, buffers: list[Value], first: int, only: bool, stack: Lines) -> None:
    """Run the nest over the part of [lo, hi) that is its own."""
    lo, hi = Value("%lo", "i64", 1), Value("%hi", "i64", 1)
    if not only:
        lo = b.intrinsic("smax", lo, b.const("i64", 1, first))
        hi = b.intrinsic("smin", hi, b.const("i64", 1, first + nest.units))
    if first:
        lo = b.op("sub", lo, b.const("i64", 1, first))
        hi = b.op("sub", hi, b.const("i64", 1, first))
    if nest.rows_per_unit > 1:
        size = b.const("i64", 1, nest.rows_per_unit)
        lo, hi = b.op("mul", lo, size), b.op("mul", hi, size)
        hi = b.intrinsic("smin", hi, b.const("i64", 1, nest.rows))
    writer = _NestWriter(b, nest, buffers, stack)
    b.when(b.icmp("slt", lo, hi), lambda: writer.rows(lo, hi))


class _Scope:
    """A loop body (or a straight block): where code hoisted out of it goes, and what it defines."""

    __slots__ = ("before", "bound", "keys")

    def __init__(self, before: Lines) -> None:
        self.before = before
        self.bound: list[int] = []
        self.keys: list[tuple] = []


class _NestWriter:
    """Writes the loops of one nest."""

    def __init__(self, b: Builder, nest: Nest, buffers: list[Value], stack: Lines) -> None:
        self.b = b
        self.nest = nest
        self.buffers = buffers
        self.main = b.out
        self.scopes: list[_Scope] = [_Scope([])]
        self.bound: dict[int, tuple[Value, int]] = {}
        self.memo: dict[tuple, tuple[Value, int]] = {}
        self.raw = _raw_dtypes(nest)
        self.lane = nest.lane
        self.lane_bit = nest.lane.bit
        self.copy_bits = nest.lane.bit | (nest.tile.bit if nest.tile is not None else 0)
        self.lanes = 1
        self.bases: list[Value] = []  # the first lane of each copy
        self.tile_bases: list[Value] = []  # the value of the tile variable of each copy
        self.lane_depth = 0
        self.masks: list[Value | None] = []
        self.stage = 0
        self.row_bits = 0  # the variables that differ between the rows of a pair
        self.row_values: list[dict[int, Value]] = [{}]
        self.row_depth = 0
        self.temporaries = {t.node.uid: t for t in nest.temporaries}
        self.slots: dict[int, Value] = {}
        self.width = self._width()
        if self._pairs_rows():
            self.row_bits = sum(v.bit for v in nest.outer)
            self.row_values = [{}, {}]
        self._reserve(stack)

    # -- vectors ------------------------------------------------------------------------------------------

    def _width(self) -> int:
        """Lanes of a full vector: one register of the widest type computed with."""
        bits = 8
        for stage in self.nest.stages:
            for node in closure(stage.roots(), set()):
                if node.op not in ("const", "index", "cond") and not (node.op == "load" and not node.vars):
                    kind = DTYPES[node.dtype]
                    wide = kind.is_float and kind.bits == 16 and node.dtype not in self.raw
                    bits = max(bits, 32 if wide else kind.bits)
            for reduction in stage.reductions:
                if reduction.op in ("argmax", "argmin"):
                    bits = max(bits, 32)
        most = self.nest.tile_step if self.nest.tile is not None else 1 << max(self.lane.extent - 1, 0).bit_length()
        return min(self.b.machine.lanes(bits), most)

    def _pairs_rows(self) -> bool:
        """Whether to do two rows at a time, so that one computes while the other waits for its reductions."""
        nest = self.nest
        if nest.lane_outer or nest.rows < 2 or nest.runnings:
            return False
        sizes = [math.prod(v.extent for v in group) for group in nest.groups]
        work = sum(effort(n) for stage in nest.stages for n in closure(stage.roots(), set()))
        room = sum(sizes[t.group] * 8 for t in nest.temporaries)
        return max(sizes) <= 4096 and work <= 120 and room <= STACK_LIMIT // 2

    def _copies(self, lane_copies: int) -> list[int]:
        """The numbers of all copies: those of each row of a pair."""
        return [row * _ROW + u for row in range(len(self.row_values)) for u in range(lane_copies)]

    def _copy(self, variables: int, u: int) -> int:
        """The copy that stands for u in what depends on the given variables."""
        if u == _ONE_COPY or not variables & (self.row_bits | self.copy_bits):
            return _ONE_COPY
        row = u // _ROW * _ROW if variables & self.row_bits else 0
        return row + (u % _ROW if variables & self.copy_bits else 0)

    def _unroll(self, stage: Stage | None) -> int:
        """How many vectors the innermost body handles at a time."""
        stages = [stage] if stage is not None else self.nest.stages
        work = 0.0
        for one in stages:
            for node in closure(one.roots(), set()):
                if node.vars & self.lane_bit:
                    work += effort(node)
        carried = sum(len(_components(r)) for one in stages for r in one.reductions)
        copies = 4 if work <= 12 else 2 if work <= 50 else 1
        copies = max(1, copies // len(self.row_values))
        while copies > 1 and carried * copies * len(self.row_values) > 16:
            copies //= 2
        while copies > 1 and stage is None and self.nest.temporaries and self.width * copies > 64:
            copies //= 2
        return copies

    def _reserve(self, stack: Lines) -> None:
        """Stack room for the temporaries: a whole number of vectors for each step of the serial loops."""
        self.pitch: dict[int, int] = {}
        outer = self.nest.lane_outer
        for t in self.nest.temporaries:
            group = self.nest.groups[t.group]
            lane = self.lane if outer else self._lane_of(t.group)
            lanes = self.width * self._unroll(None) if outer else -(-lane.extent // 64) * 64
            serial = math.prod(v.extent for v in group if v is not lane)
            self.pitch[t.number] = lanes
            elem = _stack_type(t)
            slot = Value(self.b.fresh(), "ptr", 1)
            count = serial * lanes * len(self.row_values)
            stack.append(f"{slot.name} = alloca [{count} x {elem}], align 64")
            self.slots[t.number] = slot

    def _lane_of(self, group: int) -> LoopVar:
        return lane_of(self.nest.groups, group, self.nest.lane, self.nest.lane_outer)

    def _memory(self, dtype: str) -> str:
        return f"i{DTYPES[dtype].size * 8}" if dtype in self.raw else convert.memory_type(self.b, dtype)

    def _from_memory(self, x: Value, dtype: str) -> Value:
        return x if dtype in self.raw else convert.from_memory(self.b, x, dtype)

    def _to_memory(self, x: Value, dtype: str) -> Value:
        return x if dtype in self.raw else convert.to_memory(self.b, x, dtype)

    # -- scopes -------------------------------------------------------------------------------------------

    def _open(self) -> None:
        before: Lines = []
        self.main.append(before)
        self.scopes.append(_Scope(before))

    def _close(self) -> None:
        scope = self.scopes.pop()
        for key in scope.keys:
            self.memo.pop(key, None)
        for bit in scope.bound:
            del self.bound[bit]

    def _bind(self, var: LoopVar, value: Value) -> None:
        depth = len(self.scopes) - 1
        self.bound[var.bit] = (value, depth)
        self.scopes[-1].bound.append(var.bit)

    def _region(self, depth: int) -> Lines:
        """Where code of a depth goes."""
        return self.main if depth + 1 >= len(self.scopes) else self.scopes[depth + 1].before

    def _keep(self, key: tuple, value: Value, depth: int) -> tuple[Value, int]:
        self.scopes[depth].keys.append(key)
        found = self.memo[key] = (value, depth)
        return found

    def _at(self, depth: int, write: Callable[[], Value]) -> Value:
        """Write code at a depth."""
        saved = self.b.out
        self.b.out = self._region(depth)
        value = write()
        self.b.out = saved
        return value

    def _loop(
        self,
        start: Value,
        stop: Value,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        self._open()
        results = self.b.loop(start, stop, step, carried, body)
        self._close()
        return results

    def _when(self, condition: Value, body: Callable[[], None]) -> None:
        """Run the body where the condition holds; what is hoisted out of it goes before the branch."""
        self._open()
        self.b.when(condition, body)
        self._close()

    def _number(self, value: int) -> Value:
        return self.b.const("i64", 1, value)

    # -- rows ---------------------------------------------------------------------------------------------

    def rows(self, lo: Value, hi: Value) -> None:
        """The loop over rows lo .. hi-1."""
        nest, b = self.nest, self.b
        counters = [*(v.extent for v in nest.outer), nest.tiles, nest.chunks]
        live = [n for n, extent in enumerate(counters) if extent > 1]
        starts: list[Value] = []
        rest = lo
        for n in reversed(live):
            extent = self._number(counters[n])
            last = n == live[0]
            starts.insert(0, rest if last else b.op("urem", rest, extent))
            rest = rest if last else b.op("udiv", rest, extent)

        extents = [counters[n] for n in live]

        def row(_: Value, values: list[Value]) -> list[Value]:
            at = dict(zip(live, values))
            for number, var in enumerate(nest.outer):
                self._bind(var, at.get(number, self._number(0)))
            tile, chunk = (at.get(len(counters) - k, self._number(0)) for k in (2, 1))
            if nest.tile is not None:
                self._row_of_tiles(nest.tile, tile, chunk)
            elif nest.lane_outer:
                self._row_of_chunk(chunk)
            else:
                self._row_of_stages()
            return self._advance(values, extents)

        def pair(number: Value, values: list[Value]) -> list[Value]:
            second = self._advance(values, extents)
            alone = b.icmp("eq", b.op("add", number, self._number(1)), hi)  # then the last row is done twice
            chosen = [b.select(alone, x, y) for x, y in zip(values, second)]
            for row_number, counts in enumerate((values, chosen)):
                at = dict(zip(live, counts))
                self.row_values[row_number] = {
                    var.bit: at.get(n, self._number(0)) for n, var in enumerate(nest.outer)
                }
            self.row_depth = len(self.scopes) - 1
            self._row_of_stages()
            return self._advance(second, extents)

        if self.row_bits:
            self._loop(lo, hi, 2, starts, pair)
        else:
            self._loop(lo, hi, 1, starts, row)

    def _advance(self, values: list[Value], extents: list[int]) -> list[Value]:
        """Count up by one, the last counter fastest."""
        b = self.b
        following: list[Value] = []
        carry: Value | None = None
        for value, extent in zip(reversed(values), reversed(extents)):
            step = self._number(1) if carry is None else b.convert("zext", carry, "i64")
            up = b.op("add nuw nsw", value, step)
            if len(following) + 1 == len(values):
                following.insert(0, up)
            else:
                carry = b.icmp("eq", up, self._number(extent))
                following.insert(0, b.select(carry, self._number(0), up))
        return following

    # -- tiles: blocks of lanes x values of the tile variable, transposed in registers ---------------------

    def _row_of_tiles(self, tile: LoopVar, number: Value, chunk: Value) -> None:
        """Tiles at the edge overlap their neighbours: the elements in common are written twice, alike."""
        nest, b, side = self.nest, self.b, self.width
        first = self._edge(b.op("mul", number, self._number(nest.tile_step)), tile.extent, nest.tile_step)
        start = b.op("mul", chunk, self._number(nest.chunk))
        stop = b.op("add", start, self._number(nest.chunk))
        stop = b.intrinsic("smin", stop, self._number(nest.lane.extent))

        def block(counter: Value, _: list[Value]) -> list[Value]:
            lane = self._edge(counter, nest.lane.extent, side)
            if side == nest.tile_step:
                self._tile_block(lane, first)
                return []

            def part(offset: Value, _: list[Value]) -> list[Value]:
                self._tile_block(lane, b.op("add", first, offset))
                return []

            self._loop(self._number(0), self._number(nest.tile_step), side, [], part)
            return []

        self._loop(start, stop, side, [], block)

    def _edge(self, start: Value, extent: int, size: int) -> Value:
        """A block start, moved back so that the block ends inside the extent."""
        return self.b.intrinsic("smin", start, self._number(extent - size)) if extent % size else start

    def _tile_block(self, lane: Value, tile: Value) -> None:
        side = self.width
        self._set_lanes(self.lane, [lane] * side, None)
        self.tile_bases = [self.b.op("add", tile, self._number(u)) if u else tile for u in range(side)]
        for stage in self.nest.stages:
            self._write_all(stage.stores, side)

    def _load_tile(self, node: Node, u: int) -> tuple[Value, int]:
        """Load a tile along the tile variable and turn it to run along the lane; all copies at once."""
        b, side = self.b, self.width
        buffer, offset = node.data
        elem, size = self._memory(node.dtype), DTYPES[node.dtype].size
        stride = offset.coefficient(self.lane)
        assert self.nest.tile is not None and stride is not None
        depth = len(self.scopes) - 1
        corner = b.gep(elem, self.buffers[buffer], self._index(offset, 0)[0])
        rows = []
        for lane in range(side):
            address = b.gep(elem, corner, self._number(stride * lane))
            rows.append(b.load(elem, side, address, size))
        for copy, column in enumerate(_transposed(b, rows, size)):
            self._keep((node.uid, copy), self._from_memory(column, node.dtype), depth)
        return self.memo[(node.uid, u)]

    # -- an outer lane: blocks of lanes, each through all stages ------------------------------------------

    def _row_of_chunk(self, chunk: Value) -> None:
        nest, b = self.nest, self.b
        extent, width, copies = nest.lane.extent, self.width, self._unroll(None)
        block = width * copies
        whole = extent // block * block
        if nest.chunks == 1:
            start, stop = self._number(0), self._number(whole)
            if whole:
                self._blocks(start, stop, block, copies, once=whole == block)
            self._rest_of_chunk(whole, extent)
            return
        start = b.op("mul", chunk, self._number(nest.chunk))
        stop = b.op("add", start, self._number(nest.chunk))
        stop = b.intrinsic("smin", stop, self._number(whole))
        if whole:
            self._when(b.icmp("slt", start, stop), lambda: self._blocks(start, stop, block, copies, once=False))
        if whole < extent:
            last = b.icmp("eq", chunk, self._number(nest.chunks - 1))
            self._when(last, lambda: self._rest_of_chunk(whole, extent))

    def _blocks(self, start: Value, stop: Value, block: int, copies: int, *, once: bool) -> None:
        if once:
            self._straight(lambda: self._lane_block([self._number(u * self.width) for u in range(copies)]))
            return

        def body(base: Value, _: list[Value]) -> list[Value]:
            self._lane_block(self._copy_bases(base, copies))
            return []

        self._loop(start, stop, block, [], body)

    def _straight(self, body: Callable[[], None]) -> None:
        self._open()
        body()
        self._close()

    def _copy_bases(self, base: Value, copies: int) -> list[Value]:
        """The first lanes of the vectors of a block."""
        step = self.width
        return [base if not u else self.b.op("add nuw nsw", base, self._number(u * step)) for u in range(copies)]

    def _rest_of_chunk(self, start: int, extent: int) -> None:
        """The lanes after the last whole block."""
        vectors, tail = divmod(extent - start, self.width)
        masked = tail and self.b.machine.masks and self.width > 1
        bases = [self._number(start + u * self.width) for u in range(vectors + bool(masked))]
        masks: list[Value | None] = [None] * vectors
        if masked:
            masks.append(self._prefix_mask(tail))
        if bases:
            self._straight(lambda: self._lane_block(bases, masks))
        if tail and not masked:
            self._one_by_one(extent - tail, extent)

    def _one_by_one(self, start: int, extent: int) -> None:
        width, self.width = self.width, 1

        def body(base: Value, _: list[Value]) -> list[Value]:
            self._lane_block([base])
            return []

        self._loop(self._number(start), self._number(extent), 1, [], body)
        self.width = width

    def _prefix_mask(self, count: int) -> Value:
        return self.b.vector("i1", [lane < count for lane in range(self.width)])

    def _lane_block(self, bases: list[Value], masks: Sequence[Value | None] | None = None) -> None:
        """All stages for the lanes at `bases`."""
        self._set_lanes(self.lane, bases, masks)
        copies = len(bases)
        for stage in self.nest.stages:
            self.stage = stage.number
            if not self.nest.groups:
                self._write_all(stage.stores, copies)
                continue
            group = self.nest.groups[stage.group]
            initial = [[_initial(self.b, r, self._lanes_of(r)) for _ in self._copies_of(r, copies)] for r in stage.reductions]
            carried = _flat(initial) + self._running_start(copies)
            final = self._serial(group, carried, lambda values: self._outer_body(stage, values, copies))
            self._finish_outer(stage, final, copies)
        self.stage = len(self.nest.stages) + 1
        self._write_all([s for s in self.nest.stores if not s.full], copies)

    def _lanes_of(self, r: Reduction) -> int:
        return self.lanes if r.body.vars & self.lane_bit or self._position_in_lanes(r) else 1

    def _position_in_lanes(self, r: Reduction) -> bool:
        return r.op in ("argmax", "argmin") and bool(r.position.vars & self.lane_bit)

    def _copies_of(self, r: Reduction, copies: int) -> range:
        return range(copies if r.body.vars & self.lane_bit else 1)

    def _outer_body(self, stage: Stage, values: list[Value], copies: int) -> list[Value]:
        carried = list(values)
        position = 0
        layout: list[list[list[Value]]] = []
        for r in stage.reductions:
            parts = len(_components(r))
            rows = []
            for _ in self._copies_of(r, copies):
                rows.append(carried[position : position + parts])
                position += parts
            layout.append(rows)
        running = self._run_scans(carried[position:], copies)
        for r, rows in zip(stage.reductions, layout):
            for u, parts in enumerate(rows):
                rows[u] = _combine(self.b, r, parts, self._element(r, u))
        self._keep_temporaries(stage, copies)
        self._write_all(stage.stores, copies)
        return _flat(layout) + running

    def _finish_outer(self, stage: Stage, final: list[Value], copies: int) -> None:
        position = 0
        for r in stage.reductions:
            parts = len(_components(r))
            for u in self._copies_of(r, copies):
                value = _result(self.b, r, final[position : position + parts])
                position += parts
                self._keep((r.node.uid, self._copy(r.node.vars, u)), value, len(self.scopes) - 1)

    # -- scans --------------------------------------------------------------------------------------------

    def _running_start(self, copies: int) -> list[Value]:
        values = []
        for r in self.nest.runnings:
            for _ in range(copies):
                values.append(self.b.const(convert.register_type(r.dtype), self.lanes, _neutral(r.op, r.dtype)))
        return values

    def _run_scans(self, carried: list[Value], copies: int) -> list[Value]:
        following = []
        for number, r in enumerate(self.nest.runnings):
            for u in range(copies):
                before = carried[number * copies + u]
                element = self._vector(r.body, u)
                after = _accumulate(self.b, r.op, before, element, r.dtype)
                shown = before if r.exclusive else after
                if r.op in ("sum", "prod"):
                    shown = convert.rounded(self.b, shown, r.dtype)
                copy = u if r.node.vars & self.lane_bit else _ONE_COPY
                if copy == u or u == 0:
                    self._keep((r.node.uid, copy), shown, len(self.scopes) - 1)
                following.append(after)
        return following

    def _row_scan(self, stage: Stage, lane: LoopVar) -> None:
        """A scan along the lane: prefixes within a vector, and a carried total."""
        width, extent = self.width, lane.extent
        whole = extent // width * width
        carried = [self.b.const(convert.register_type(r.dtype), 1, _neutral(r.op, r.dtype)) for r in self.nest.runnings]

        def turn(base: Value, values: list[Value]) -> list[Value]:
            return self._scan_block(stage, lane, base, None, values)

        if whole:
            carried = self._loop(self._number(0), self._number(whole), width, carried, turn)
        if whole == extent:
            return
        if self.b.machine.masks and width > 1:
            self._straight(
                lambda: self._scan_block(stage, lane, self._number(whole), self._prefix_mask(extent - whole), carried)
            )
            return
        self.width = 1
        self._loop(self._number(whole), self._number(extent), 1, carried, turn)
        self.width = width

    def _scan_block(
        self, stage: Stage, lane: LoopVar, base: Value, mask: Value | None, carried: list[Value]
    ) -> list[Value]:
        self._set_lanes(lane, [base], [mask])
        following = []
        for r, before in zip(self.nest.runnings, carried):
            total, shown = _prefix(self.b, r, before, self._vector(r.body, 0))
            if r.op in ("sum", "prod"):
                shown = convert.rounded(self.b, shown, r.dtype)
            self._keep((r.node.uid, 0), shown, len(self.scopes) - 1)
            following.append(total)
        self._write_all(stage.stores, 1)
        return following

    # -- an inner lane: stages one after another ----------------------------------------------------------

    def _row_of_stages(self) -> None:
        for stage in self.nest.stages:
            self.stage = stage.number
            self._row_stage(stage)
        self.stage = len(self.nest.stages) + 1
        self._set_lanes(self.nest.lane, [], None)
        self.lanes = 1
        for store in self.nest.stores:
            if not store.full:
                for u in self._copies(1):
                    self._store(store, u)

    def _row_stage(self, stage: Stage) -> None:
        """One pass over a group of inner loops, vectorised along its lane."""
        b = self.b
        lane = self._lane_of(stage.group)
        if self.nest.runnings:
            self._row_scan(stage, lane)
            return
        self.lane, self.lane_bit = lane, lane.bit
        serial = [v for v in self.nest.groups[stage.group] if v is not lane]
        copies = self._unroll(stage)
        width = self.width
        scalar_tail = bool(lane.extent % width) and not (b.machine.masks and width > 1)
        every = self._copies(copies)
        accumulators = [[_initial(b, r, width) for _ in every] for r in stage.reductions]
        rows = self._copies(1)
        tails = [[_initial(b, r, 1) for _ in rows] if scalar_tail else [] for r in stage.reductions]
        carried = _flat(accumulators) + _flat(tails)

        def body(values: list[Value]) -> list[Value]:
            return self._lane_loop(stage, lane, copies, values)

        final = iter(self._serial(serial, carried, body))

        def take(r: Reduction) -> list[Value]:
            return [next(final) for _ in _components(r)]

        merged = []
        for r in stage.reductions:
            for _ in rows:
                merged.append(_horizontal(b, r, _tree(b, r, [take(r) for _ in range(copies)])))
        for n, r in enumerate(stage.reductions):
            for k, u in enumerate(rows):
                total = merged[n * len(rows) + k]
                if scalar_tail:
                    total = _combine(b, r, total, take(r))
                self._keep((r.node.uid, self._copy(r.node.vars, u)), _result(b, r, total), len(self.scopes) - 1)

    def _serial(
        self, variables: Sequence[LoopVar], carried: list[Value], body: Callable[[list[Value]], list[Value]]
    ) -> list[Value]:
        """Nested serial loops around a body that takes and gives carried values."""
        variables = [v for v in variables if v.extent > 1]
        if not variables:
            return body(carried)
        var = variables[0]

        def turn(counter: Value, values: list[Value]) -> list[Value]:
            self._bind(var, counter)
            return self._serial(variables[1:], values, body)

        return self._loop(self._number(0), self._number(var.extent), 1, carried, turn)

    def _lane_loop(self, stage: Stage, lane: LoopVar, copies: int, carried: list[Value]) -> list[Value]:
        """The lane of an inner stage: whole blocks, then single vectors, then the tail."""
        b, width, extent = self.b, self.width, lane.extent
        split = sum(len(_components(r)) for r in stage.reductions) * len(self._copies(copies))
        vectors, tail_parts = carried[:split], carried[split:]
        block = width * copies
        whole = extent // block

        def run(bases: list[Value], masks: list[Value | None], values: list[Value], available: int) -> list[Value]:
            self._set_lanes(lane, bases, masks)
            return self._inner_body(stage, values, len(bases), available)

        if whole > 1:

            def turn(base: Value, values: list[Value]) -> list[Value]:
                return run(self._copy_bases(base, copies), [None] * copies, values, copies)

            vectors = self._loop(self._number(0), self._number(whole * block), block, vectors, turn)
        elif whole == 1:
            self._open()
            vectors = run([self._number(u * width) for u in range(copies)], [None] * copies, vectors, copies)
            self._close()
        rest, tail = divmod(extent - whole * block, width)
        masked = bool(tail) and b.machine.masks and width > 1
        bases = [self._number(whole * block + u * width) for u in range(rest + masked)]
        masks: list[Value | None] = [None] * rest + [self._prefix_mask(tail)] * masked
        if bases:
            self._open()
            vectors = run(bases, masks, vectors, copies)
            self._close()
        if tail and not masked:
            tail_parts = self._scalar_tail(stage, lane, extent - tail, tail_parts)
        return vectors + tail_parts

    def _scalar_tail(self, stage: Stage, lane: LoopVar, start: int, carried: list[Value]) -> list[Value]:
        width, self.width = self.width, 1

        def turn(base: Value, values: list[Value]) -> list[Value]:
            self._set_lanes(lane, [base], None)
            return self._inner_body(stage, values, 1, 1)

        results = self._loop(self._number(start), self._number(lane.extent), 1, carried, turn)
        self.width = width
        return results

    def _inner_body(self, stage: Stage, values: list[Value], copies: int, available: int) -> list[Value]:
        """One block of a pass: values are the accumulators by reduction, row, copy (`available` of them), part."""
        results = list(values)
        elements = [[self._element(r, u) for u in self._copies(copies)] for r in stage.reductions]
        position = 0
        for r, added in zip(stage.reductions, elements):
            size = len(_components(r))
            for u, element in zip(self._copies(copies), added):
                place = position + (u // _ROW * available + u % _ROW % available) * size
                mask = self.masks[u % _ROW]
                if mask is not None:
                    element = [self.b.select(mask, x, n) for x, n in zip(element, _initial(self.b, r, self.lanes))]
                results[place : place + size] = _combine(self.b, r, results[place : place + size], element)
            position += size * available * len(self.row_values)
        self._keep_temporaries(stage, copies)
        self._write_all(stage.stores, copies)
        return results

    # -- elements -----------------------------------------------------------------------------------------

    def _set_lanes(self, lane: LoopVar, bases: list[Value], masks: Sequence[Value | None] | None) -> None:
        self.lane, self.lane_bit = lane, lane.bit
        self.copy_bits = lane.bit | (self.nest.tile.bit if self.nest.tile is not None else 0)
        self.lanes = self.width
        self.bases = bases
        self.lane_depth = len(self.scopes) - 1
        self.masks = list(masks) if masks is not None else [None] * len(bases)

    def _element(self, r: Reduction, u: int) -> list[Value]:
        """What one element adds to a reduction: its value, and its position for argmax and argmin."""
        lanes = self.lanes if (not self.nest.lane_outer or r.body.vars & self.lane_bit) else 1
        value = self._value(r.body, u)[0]
        value = self.b.splat(value, lanes)
        if r.op not in ("argmax", "argmin"):
            return [value]
        elem = _position_type(r)
        if r.position.vars & self.lane_bit and self.lanes > 1:
            position = self._vector_index(r.position, u, elem)[0]
        else:
            scalar = self._index(r.position, u)[0]
            if elem == "i32":
                scalar = self.b.convert("trunc", scalar, "i32") if not scalar.is_const else Value(scalar.name, "i32", 1)
            position = self.b.splat(scalar, lanes)
        return [value, position]

    def _keep_temporaries(self, stage: Stage, copies: int) -> None:
        for t in stage.temporaries:
            for u in self._copies(copies):
                value = self._vector(t.node, u)
                if value.elem == "i1":
                    value = self.b.convert("zext", value, "i8")
                self.b.store(value, self._slot(t, u), 1 if value.elem == "i8" else 4)

    def _slot(self, t: Temporary, u: int) -> Value:
        """The address of a temporary for the current step and copy."""
        b = self.b
        group = [v for v in self.nest.groups[t.group] if v is not self.lane]
        terms, stride = [], self.pitch[t.number]
        for var in reversed(group):
            terms.append((var, stride))
            stride *= var.extent
        terms.sort(key=lambda term: term[0].uid)
        offset = self._index(Index(tuple(terms), u // _ROW * stride), _ONE_COPY)[0]
        address = b.gep(_stack_type(t), self.slots[t.number], offset)
        lane = self._number(u * self.lanes) if self.nest.lane_outer else self.bases[u % _ROW]
        return b.gep(_stack_type(t), address, lane)

    def _write_all(self, stores: Sequence[Store], copies: int) -> None:
        """Evaluate every value before the first store, so that an output may share memory with an input."""
        for store in stores:
            for u in self._copies(copies):
                self._value(store.value, u)
        for store in stores:
            spread = store.offset.vars & self.copy_bits or store.value.vars & self.copy_bits
            for u in self._copies(copies if spread else 1):
                self._store(store, u)

    def _store(self, store: Store, u: int) -> None:
        b = self.b
        value = self._value(store.value, u)[0]
        size = DTYPES[store.dtype].size
        elem = self._memory(store.dtype)
        stride = store.offset.coefficient(self.lane)
        if self.lanes == 1 or u == _ONE_COPY or stride == 0:
            offset = self._index(store.offset, u)[0]
            b.store(self._to_memory(value, store.dtype), b.gep(elem, self.buffers[store.buffer], offset), size)
            return
        value = self._to_memory(b.splat(value, self.lanes), store.dtype)
        mask = self.masks[u % _ROW]
        if stride == 1:
            b.store(value, self._address(store.buffer, elem, store.offset, u)[0], size, mask)
        elif stride == -1:
            backwards = range(self.lanes - 1, -1, -1)
            address = self._address_back(store.buffer, elem, store.offset, u)[0]
            mask = b.shuffle(mask, None, backwards) if mask is not None else None
            b.store(b.shuffle(value, None, backwards), address, size, mask)
        else:
            addresses = self._addresses(store.buffer, elem, store.offset, u)[0]
            b.scatter(value, addresses, size, mask or b.const("i1", self.lanes, True))

    def _address(self, buffer: int, elem: str, offset: Index, u: int) -> tuple[Value, int]:
        """The address of the first lane of a contiguous access, and its depth."""
        rest = _without(offset, self.lane)
        key = ("at", buffer, elem, rest, u, self.lanes)
        found = self.memo.get(key)
        if found is None:
            pointer, depth = self._pointer(buffer, elem, rest, u)
            depth = max(depth, self.lane_depth)
            address = self._at(depth, lambda: self.b.gep(elem, pointer, self.bases[u % _ROW]))
            found = self._keep(key, address, depth)
        return found

    def _address_back(self, buffer: int, elem: str, offset: Index, u: int) -> tuple[Value, int]:
        """The lowest address of an access whose lanes run backwards, and its depth."""
        b = self.b
        pointer, depth = self._pointer(buffer, elem, _without(offset, self.lane), u)
        depth = max(depth, self.lane_depth)

        def write() -> Value:
            return b.gep(elem, pointer, b.op("sub", self._number(1 - self.lanes), self.bases[u % _ROW]))

        return self._at(depth, write), depth

    def _pointer(self, buffer: int, elem: str, offset: Index, u: int) -> tuple[Value, int]:
        """The address of an access without its lane part."""
        copy = self._copy(offset.vars, u)
        key = ("pointer", buffer, elem, offset, copy)
        found = self.memo.get(key)
        if found is None:
            index, depth = self._index(offset, copy)
            pointer = self._at(depth, lambda: self.b.gep(elem, self.buffers[buffer], index))
            found = self._keep(key, pointer, depth)
        return found

    def _addresses(self, buffer: int, elem: str, offset: Index, u: int) -> tuple[Value, int]:
        """Addresses of the lanes of an access that is not contiguous."""
        kind = "i32" if _fits(offset) else "i64"
        index, depth = self._vector_index(offset, u, kind)
        base = self.buffers[buffer]
        text = f"getelementptr {elem}, ptr {base.name}, {index.ty} {index.name}"
        return self._at(depth, lambda: self.b.emit(text, "ptr", self.lanes)), depth

    # -- values -------------------------------------------------------------------------------------------

    def _vector(self, node: Node, u: int) -> Value:
        """A value in all lanes."""
        return self._spread(node, u, self.lanes)[0]

    def _spread(self, node: Node, u: int, lanes: int) -> tuple[Value, int]:
        value, depth = self._value(node, u)
        if value.lanes == lanes or value.is_const:
            return self.b.splat(value, lanes), depth
        key = ("splat", node.uid, self._copy(node.vars, u), lanes)
        found = self.memo.get(key)
        if found is None:
            found = self._keep(key, self._at(depth, lambda: self.b.splat(value, lanes)), depth)
        return found

    def _value(self, node: Node, u: int) -> tuple[Value, int]:
        """The value of a node for one copy, and the depth it is written at."""
        copy = self._copy(node.vars, u)
        key = (node.uid, copy)
        found = self.memo.get(key)
        if found is not None:
            return found
        if node.op == "const":
            return self._constant(node), 0
        kept = self.temporaries.get(node.uid)
        if kept is not None and self.stage > kept.stage:
            return self._keep(key, self._reload(kept, u), len(self.scopes) - 1)
        value, depth = _WRITERS.get(node.op, _NestWriter._operation)(self, node, copy)
        return self._keep(key, value, depth)

    def _constant(self, node: Node) -> Value:
        value, elem = node.data[1], convert.register_type(node.dtype)
        if node.dtype in self.raw:
            kind = DTYPES[node.dtype]
            elem = f"i{kind.size * 8}"
            value = int(np.array(value, kind.numpy).view(f"u{kind.size}"))
        return self.b.const(elem, 1, value)

    def _in_lanes(self, variables: int) -> bool:
        """Whether something that depends on `variables` differs from lane to lane."""
        return bool(variables & self.lane_bit) and self.lanes > 1

    def _reload(self, t: Temporary, u: int) -> Value:
        elem = _stack_type(t)
        value = self.b.load(elem, self.lanes, self._slot(t, u), 1 if elem == "i8" else 4)
        return self.b.icmp("ne", value, self.b.like(value, 0)) if t.node.dtype == "bool" else value

    def _operation(self, node: Node, u: int) -> tuple[Value, int]:
        lanes = self.lanes if self._in_lanes(node.vars) else 1
        if node.op == "cast" and node.args[0].op == "index" and _fits(node.args[0].data):
            return self._cast_index(node, u, lanes)
        operands = [self._spread(a, u, lanes) for a in node.args]
        depth = max(d for _, d in operands)
        if node.op == "div" and node.args[1].stage and operands[1][1] < depth and DTYPES[node.dtype].is_float:
            return self._divide_by_known(node, u, operands[0][0], lanes, depth), depth
        values = [v for v, _ in operands]
        return self._at(depth, lambda: _apply(self.b, node, values)), depth

    def _divide_by_known(self, node: Node, u: int, x: Value, lanes: int, depth: int) -> Value:
        """x / y for a reduced y that is known before the loop: x times its reciprocal, scaled to stay in range."""
        b = self.b
        divisor = node.args[1]
        copy = self._copy(divisor.vars, u)
        parts = []
        for number in range(2):
            key = ("reciprocal", divisor.uid, copy, lanes, number)
            if key not in self.memo:
                y, y_depth = self._spread(divisor, u, lanes)
                inverse, scale = self._at_pair(y_depth, lambda y=y: vector_math.scaled_reciprocal(b, y))
                self._keep(("reciprocal", divisor.uid, copy, lanes, 0), inverse, y_depth)
                self._keep(("reciprocal", divisor.uid, copy, lanes, 1), scale, y_depth)
            parts.append(self.memo[key][0])

        def write() -> Value:
            return convert.rounded(b, b.fmul(b.fmul(x, parts[0]), parts[1]), node.dtype)

        return self._at(depth, write)

    def _at_pair(self, depth: int, write: Callable[[], tuple[Value, Value]]) -> tuple[Value, Value]:
        saved = self.b.out
        self.b.out = self._region(depth)
        pair = write()
        self.b.out = saved
        return pair

    def _cast_index(self, node: Node, u: int, lanes: int) -> tuple[Value, int]:
        index = node.args[0].data
        if lanes > 1:
            value, depth = self._vector_index(index, u, "i32")
            return self._at(depth, lambda: convert.to_dtype(self.b, value, "int32", node.dtype)), depth
        value, depth = self._index(index, u)
        return self._at(depth, lambda: convert.to_dtype(self.b, value, "int64", node.dtype)), depth

    def _index_value(self, node: Node, u: int) -> tuple[Value, int]:
        if not self._in_lanes(node.vars):
            return self._index(node.data, u)
        return self._vector_index(node.data, u, "i64")

    def _condition(self, node: Node, u: int) -> tuple[Value, int]:
        relation, index = node.data
        relation = "slt" if relation == "lt" else "eq"
        if not self._in_lanes(node.vars):
            value, depth = self._index(index, u)
        else:
            value, depth = self._vector_index(index, u, "i32" if _fits(index) else "i64")
        return self._at(depth, lambda: self.b.icmp(relation, value, self.b.like(value, 0))), depth

    def _load(self, node: Node, u: int) -> tuple[Value, int]:
        buffer, offset = node.data
        elem = self._memory(node.dtype)
        size = DTYPES[node.dtype].size
        guard = node.args[0] if node.args else None
        if not self._in_lanes(node.vars):
            return self._load_one(node, u, elem, size, guard)
        stride = offset.coefficient(self.lane)
        if stride in (1, -1):
            return self._load_row(node, u, elem, size, guard, stride)
        tile = self.nest.tile
        if tile is not None and guard is None and stride and offset.coefficient(tile) == 1:
            return self._load_tile(node, u)
        if stride in (2, 3, 4) and guard is None and self.masks[u % _ROW] is None:
            return self._load_spaced(node, u, elem, size, stride)
        addresses, depth = self._addresses(buffer, elem, offset, u)
        mask, depth = self._mask(guard, u, depth)
        mask = mask or self.b.const("i1", self.lanes, True)
        value = self._at(depth, lambda: self.b.gather(elem, addresses, size, mask))
        return self._at(depth, lambda: self._from_memory(value, node.dtype)), depth

    def _load_one(self, node: Node, u: int, elem: str, size: int, guard: Node | None) -> tuple[Value, int]:
        b = self.b
        buffer, offset = node.data
        index, depth = self._index(offset, u)
        if guard is not None:
            inside, guard_depth = self._value(guard, u)
            depth = max(depth, guard_depth)
            index = self._at(depth, lambda: b.select(inside, index, self._number(0)))

        def read() -> Value:
            return self._from_memory(b.load(elem, 1, b.gep(elem, self.buffers[buffer], index), size), node.dtype)

        return self._at(depth, read), depth

    def _load_row(
        self, node: Node, u: int, elem: str, size: int, guard: Node | None, stride: int
    ) -> tuple[Value, int]:
        """A contiguous access, forwards or backwards."""
        b = self.b
        buffer, offset = node.data
        find = self._address if stride == 1 else self._address_back
        address, depth = find(buffer, elem, offset, u)
        mask, depth = self._mask(guard, u, depth)
        backwards = range(self.lanes - 1, -1, -1)

        def read() -> Value:
            if stride == 1:
                return self._from_memory(b.load(elem, self.lanes, address, size, mask), node.dtype)
            turned = b.shuffle(mask, None, backwards) if mask is not None else None
            value = b.shuffle(b.load(elem, self.lanes, address, size, turned), None, backwards)
            return self._from_memory(value, node.dtype)

        return self._at(depth, read), depth

    def _load_spaced(self, node: Node, u: int, elem: str, size: int, stride: int) -> tuple[Value, int]:
        """Every second, third or fourth element: contiguous loads that cover just these, and shuffles."""
        b, lanes = self.b, self.lanes
        buffer, offset = node.data
        first, depth = self._index(offset, u)
        last = stride * (lanes - 1)
        starts = [k * lanes for k in range(stride - 1)] + [last + 1 - lanes]

        def read() -> Value:
            address = b.gep(elem, self.buffers[buffer], first)
            pieces = [b.load(elem, lanes, b.gep(elem, address, self._number(at)), size) for at in starts]
            value, held = pieces[0], dict.fromkeys(range(0), 0)
            held = {lane: lane * stride for lane in range(lanes) if lane * stride < lanes}
            value = b.shuffle(value, None, [held.get(lane, 0) for lane in range(lanes)])
            for piece, at in zip(pieces[1:], starts[1:]):
                choice = []
                for lane in range(lanes):
                    wanted = lane * stride
                    inside = wanted not in held.values() and at <= wanted < at + lanes and lane not in held
                    choice.append(lanes + wanted - at if inside else lane)
                    if inside:
                        held[lane] = wanted
                value = b.shuffle(value, piece, choice)
            return self._from_memory(value, node.dtype)

        return self._at(depth, read), depth

    def _mask(self, guard: Node | None, u: int, depth: int) -> tuple[Value | None, int]:
        """The lanes to touch: those of the tail mask where the guard holds."""
        mask = self.masks[u % _ROW]
        if guard is None:
            return mask, max(depth, self.lane_depth) if mask is not None else depth
        inside, guard_depth = self._spread(guard, u, self.lanes)
        depth = max(depth, guard_depth)
        if mask is None:
            return inside, depth
        tail = mask
        return self._at(depth, lambda: self.b.op("and", inside, tail)), depth

    def _missing(self, node: Node, u: int) -> tuple[Value, int]:
        raise AssertionError(f"{node.op} used before it is known")

    # -- indices ------------------------------------------------------------------------------------------

    def _index(self, i: Index, u: int) -> tuple[Value, int]:
        """A scalar index; each partial sum is written as far out as its terms allow."""
        copy = self._copy(i.vars, u)
        terms = []
        for atom, c in i.terms:
            if isinstance(atom, LoopVar) and atom.extent == 1:
                continue
            value, depth = self._atom(atom, copy)
            terms.append((depth, atom.uid, c, value))
        terms.sort(key=lambda term: term[:2])
        total: Value | None = None
        depth = 0
        key: tuple = ("sum", copy)
        for term_depth, uid, c, value in terms:
            key = (*key, uid, c)
            depth = max(depth, term_depth)
            found = self.memo.get(key)
            if found is None:
                before = total

                def add(value: Value = value, c: int = c, before: Value | None = before) -> Value:
                    scaled = value if c == 1 else self._times(value, c)
                    return scaled if before is None else self.b.op("add", before, scaled)

                found = self._keep(key, self._at(depth, add), depth)
            total, depth = found
        if total is None:
            return self._number(i.const), 0
        if not i.const:
            return total, depth
        found = self.memo.get((*key, "const", i.const))
        if found is None:
            whole = total
            value = self._at(depth, lambda: self.b.op("add", whole, self._number(i.const)))
            found = self._keep((*key, "const", i.const), value, depth)
        return found

    def _times(self, value: Value, factor: int) -> Value:
        if value.is_const and value.lanes == 1:
            return self.b.const(value.elem, 1, int(value.name) * factor)
        return self.b.op("mul", value, self.b.like(value, factor))

    def _atom(self, atom: Atom, u: int) -> tuple[Value, int]:
        if isinstance(atom, LoopVar):
            if atom is self.lane and self.bases:
                return self.bases[u % _ROW], self.lane_depth
            if atom is self.nest.tile:
                return self.tile_bases[u % _ROW], self.lane_depth
            if atom.bit & self.row_bits:
                return self.row_values[u // _ROW][atom.bit], self.row_depth
            return self.bound[atom.bit]
        if atom.kind == "opaque":
            return self._value(atom.data, u)
        key = ("atom", atom.uid, self._copy(atom.vars, u))
        found = self.memo.get(key)
        if found is None:
            inner, depth = self._index(atom.data[0], u)
            found = self._keep(key, self._at(depth, lambda: _index_function(self.b, atom, inner)), depth)
        return found

    def _vector_index(self, i: Index, u: int, elem: str) -> tuple[Value, int]:
        """An index in every lane."""
        key = ("lanes", i, u, elem, self.lanes)
        found = self.memo.get(key)
        if found is not None:
            return found
        b = self.b
        same, steps, parts = [], [0] * self.lanes, []
        for atom, c in i.terms:
            if atom is self.lane:
                same.append((atom, c))
                steps = [c * lane for lane in range(self.lanes)]
            elif atom.vars & self.lane_bit:
                parts.append((atom, c))
            else:
                same.append((atom, c))
        base, depth = self._index(Index(tuple(same), i.const), u)
        varying = [(self._vector_atom(atom, u, elem), c) for atom, c in parts]
        depth = max([depth, *(d for (_, d), _ in varying)])

        def write() -> Value:
            first = base
            if elem != "i64":
                first = b.const(elem, 1, int(base.name)) if base.is_const else b.convert("trunc", base, elem)
            total = b.splat(first, self.lanes)
            if any(steps):
                offsets = b.vector(elem, steps)
                total = offsets if total.name == f"splat ({elem} 0)" else b.op("add", total, offsets)
            for (value, _), c in varying:
                scaled = value if c == 1 else b.op("mul", value, b.like(value, c))
                total = b.op("add", total, scaled)
            return total

        return self._keep(key, self._at(depth, write), depth)

    def _vector_atom(self, atom: Atom, u: int, elem: str) -> tuple[Value, int]:
        key = ("vector atom", atom.uid, u, elem, self.lanes)
        found = self.memo.get(key)
        if found is not None:
            return found
        b = self.b
        if atom.kind == "opaque":
            value, depth = self._spread(atom.data, u, self.lanes)
        else:
            inner_elem = "i32" if _fits(atom.data[0]) else "i64"
            inner, depth = self._vector_index(atom.data[0], u, inner_elem)
            value = self._at(depth, lambda: _index_function(b, atom, inner))
        if value.elem != elem:
            opcode = "trunc" if elem == "i32" else "sext"
            narrow = value
            value = self._at(depth, lambda: b.convert(opcode, narrow, elem))
        return self._keep(key, value, depth)


_WRITERS: dict[str, Callable[[_NestWriter, Node, int], tuple[Value, int]]] = {
    "index": _NestWriter._index_value,
    "cond": _NestWriter._condition,
    "load": _NestWriter._load,
    "reduction": _NestWriter._missing,
    "running": _NestWriter._missing,
}


def _apply(b: Builder, node: Node, values: list[Value]) -> Value:
    """One scalar operation, rounded to its dtype."""
    dtype = node.args[-1].dtype
    kind = DTYPES[dtype]
    if node.op == "select":
        return b.select(*values)
    if node.op == "cast":
        return convert.to_dtype(b, values[0], dtype, node.dtype)
    table = UNARY if len(values) == 1 else BINARY
    if not kind.is_float:
        module = integers.apply_unary if len(values) == 1 else integers.apply_binary
        return module(b, node.op, *values, kind)
    if node.op == "exp" and node.data and values[0].elem == "float":
        result = vector_math.exp_of_negative(b, values[0])
    else:
        apply = vector_math.apply_unary if len(values) == 1 else vector_math.apply_binary
        result = apply(b, node.op, *values)
    if kind.bits == 16 and not table[node.op].exact and not table[node.op].to_bool:
        return convert.rounded(b, result, dtype)
    return result


def _raw_dtypes(nest: Nest) -> frozenset[str]:
    """The dtypes that are only moved, never computed with: their bits travel as integers."""
    if nest.groups:
        return frozenset()
    raw = {"float16", "bfloat16", "bool"}
    for stage in nest.stages:
        for node in closure(stage.roots(), set()):
            if node.op not in ("load", "const", "select"):
                raw.discard(node.dtype)
                raw -= {a.dtype for a in node.args}
            elif node.op == "select":
                raw.discard("bool")
    return frozenset(raw)


def _transposed(b: Builder, rows: list[Value], size: int) -> list[Value]:
    """The columns of a square of vectors: unpacking within 16-byte parts, then exchanging the parts."""
    side = len(rows)
    part = min(side, 16 // size)
    for step in range(part.bit_length() - 1):
        half = 1 << step
        mixed = list(rows)
        low, high = [], []
        for start in range(0, side, part):  # one 16-byte part of the lanes
            units = part // half
            for unit in range(units // 2):
                for source, place in ((0, low), (units // 2, high)):
                    at = start + (source + unit) * half
                    place.extend(range(at, at + half))
                    place.extend(range(side + at, side + at + half))
        for block in range(0, side, 2 * half):
            for j in range(half):
                pair = rows[block + j], rows[block + half + j]
                mixed[block + 2 * j] = b.shuffle(*pair, low)
                mixed[block + 2 * j + 1] = b.shuffle(*pair, high)
        rows = mixed
    parts = side // part
    columns: list[Value] = []
    for at in range(parts):
        for j in range(part):
            columns.append(_gathered(b, [rows[group * part + j] for group in range(parts)], at, part))
    return columns


def _gathered(b: Builder, rows: list[Value], at: int, part: int) -> Value:
    """Part `at` of every row, one after another."""
    parts = len(rows)
    if parts == 1:
        return rows[0]
    lanes = rows[0].lanes
    pieces = [(r, [at]) for r in rows]
    if parts == 2:
        choice = [*range(at * part, (at + 1) * part), *range(lanes + at * part, lanes + (at + 1) * part)]
        return b.shuffle(rows[0], rows[1], choice)
    # two rows into one: parts at, at+2 of each; then the wanted halves of two such
    key = at % 2
    assert parts == 4 and pieces
    order = [key, key + 2]

    def pick(first: Value, second: Value, which: list[int]) -> Value:
        choice = [p * part + k for p in which for k in range(part)]
        return b.shuffle(first, second, choice + [lanes + c for c in choice])

    first, second = pick(rows[0], rows[1], order), pick(rows[2], rows[3], order)
    return pick(first, second, [0, 2] if at < 2 else [1, 3])


def _prefix(b: Builder, r: Running, before: Value, x: Value) -> tuple[Value, Value]:
    """The total after a vector of elements, and the running values in its lanes."""
    lanes = x.lanes
    neutral = b.like(x, _neutral(r.op, r.dtype))
    step = 1
    while step < lanes:
        shifted = b.shuffle(x, neutral, [lanes if lane < step else lane - step for lane in range(lanes)])
        x = _accumulate(b, r.op, shifted, x, r.dtype)
        step *= 2
    running = _accumulate(b, r.op, b.splat(before, lanes), x, r.dtype)
    total = b.extract(running, lanes - 1)
    if not r.exclusive:
        return total, running
    if lanes == 1:
        return total, before
    first = b.splat(before, lanes)
    return total, b.shuffle(running, first, [lanes, *range(lanes - 1)])


def _index_function(b: Builder, atom: Atom, inner: Value) -> Value:
    """Quotient, remainder or clamp of an index."""
    bits = int(inner.elem[1:])
    if atom.kind == "clamp":
        _, lo, hi = atom.data
        if lo >= -(1 << (bits - 1)):
            inner = b.intrinsic("smax", inner, b.like(inner, lo))
        return b.intrinsic("smin", inner, b.like(inner, hi)) if hi < 1 << (bits - 1) else inner
    index, d = atom.data
    divisor = b.like(inner, d)
    if -(1 << (bits - 2)) < index.lo and index.hi < 1 << (bits - 2):
        shift = -(index.lo // d) if index.lo < 0 else 0  # a multiple of d that makes it nonnegative
        if shift:
            inner = b.op("add", inner, b.like(inner, shift * d))
        if atom.kind == "mod":
            return b.op("urem", inner, divisor)
        quotient = b.op("udiv", inner, divisor)
        return b.op("sub", quotient, b.like(inner, shift)) if shift else quotient
    quotient, rest = b.op("sdiv", inner, divisor), b.op("srem", inner, divisor)
    negative = b.icmp("slt", rest, b.like(inner, 0))
    if atom.kind == "mod":
        return b.select(negative, b.op("add", rest, divisor), rest)
    return b.select(negative, b.op("sub", quotient, b.like(inner, 1)), quotient)


def _fits(i: Index) -> bool:
    """Whether an index and all its partial sums fit 32 bits, and their double too."""
    size = abs(i.const)
    for atom, c in i.terms:
        size += abs(c) * max(abs(atom.lo), abs(atom.hi))
    return size < 1 << 30


def _without(i: Index, var: LoopVar) -> Index:
    return Index(tuple((a, c) for a, c in i.terms if a is not var), i.const)


def _stack_type(t: Temporary) -> str:
    return "i8" if t.node.dtype == "bool" else convert.register_type(t.node.dtype)


def _flat(nested: Sequence) -> list[Value]:
    flat: list[Value] = []
    for item in nested:
        if isinstance(item, Value):
            flat.append(item)
        else:
            flat.extend(_flat(item))
    return flat


# ---------------------------------------------------------------------------------------------------------
# Reductions
# ---------------------------------------------------------------------------------------------------------


def _neutral(op: str, dtype: str) -> float | int | bool:
    kind = DTYPES[dtype]
    if op in ("sum", "any"):
        return 0.0 if kind.is_float else 0
    if op in ("prod", "all"):
        return 1.0 if kind.is_float else 1
    return kind.min if op in ("max", "argmax") else kind.max


def _position_type(r: Reduction) -> str:
    return "i32" if r.extent < 1 << 30 else "i64"


def _components(r: Reduction) -> list[str]:
    """The types of the accumulators of a reduction."""
    value = convert.register_type(r.dtype)
    return [value, _position_type(r)] if r.op in ("argmax", "argmin") else [value]


def _initial(b: Builder, r: Reduction, lanes: int) -> list[Value]:
    kinds = _components(r)
    first = b.const(kinds[0], lanes, _neutral(r.op, r.dtype))
    if len(kinds) == 1:
        return [first]
    return [first, b.const(kinds[1], lanes, -1 if r.last else r.extent)]


def _accumulate(b: Builder, op: str, total: Value, x: Value, dtype: str) -> Value:
    kind = DTYPES[dtype]
    if op == "sum":
        return b.op("fadd contract" if kind.is_float else "add", total, x)
    if op == "prod":
        return b.op("fmul contract" if kind.is_float else "mul", total, x)
    if op in ("any", "all"):
        return b.op("or" if op == "any" else "and", total, x)
    if kind.is_float:
        return (vector_math.float_max if op == "max" else vector_math.float_min)(b, x, total)
    return b.intrinsic(("s" if kind.kind == "int" else "u") + op, x, total)


def _combine(b: Builder, r: Reduction, total: Sequence[Value], x: Sequence[Value]) -> list[Value]:
    """Accumulators with one more element (or other accumulators) added."""
    if len(total) == 1:
        return [_accumulate(b, r.op, total[0], x[0], r.dtype)]
    best, best_at = total
    value, at = x
    kind = DTYPES[r.dtype]
    greater = r.op == "argmax"
    if kind.is_float:
        better = b.fcmp("ogt" if greater else "olt", value, best)
        nan, best_nan = b.fcmp("uno", value, value), b.fcmp("uno", best, best)
        better = b.op("or", better, b.op("and", nan, b.op("xor", best_nan, b.like(best_nan, True))))
        same = b.op("or", b.fcmp("oeq", value, best), b.op("and", nan, best_nan))
    else:
        sign = "s" if kind.kind == "int" else "u"
        better = b.icmp(sign + ("gt" if greater else "lt"), value, best)
        same = b.icmp("eq", value, best)
    nearer = b.icmp("sgt" if r.last else "slt", at, best_at)
    take = b.op("or", better, b.op("and", same, nearer))
    return [b.select(take, value, best), b.select(take, at, best_at)]


def _tree(b: Builder, r: Reduction, rows: list[list[Value]]) -> list[Value]:
    while len(rows) > 1:
        paired = [_combine(b, r, rows[i], rows[i + 1]) for i in range(0, len(rows) - 1, 2)]
        rows = paired + rows[len(rows) - len(rows) % 2 :]
    return rows[0]


def _horizontal(b: Builder, r: Reduction, parts: list[Value]) -> list[Value]:
    """All lanes combined into one."""
    while parts[0].lanes > 1:
        half = parts[0].lanes // 2
        low = [b.shuffle(p, None, range(half)) for p in parts]
        high = [b.shuffle(p, None, range(half, 2 * half)) for p in parts]
        parts = _combine(b, r, low, high)
    return parts


def _result(b: Builder, r: Reduction, parts: Sequence[Value]) -> Value:
    """The value of a finished reduction as its node has it."""
    if len(parts) == 1:
        return convert.rounded(b, parts[0], r.dtype) if r.op in ("sum", "prod") else parts[0]
    return parts[1] if parts[1].elem == "i64" else b.convert("sext", parts[1], "i64")


