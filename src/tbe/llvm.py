"""Renders a schedule as LLVM IR: one function over a range of units, with explicit vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tbe import convert
from tbe.accumulate import (
    accumulate,
    combine,
    components,
    flat,
    horizontal,
    initial,
    neutral,
    prefix,
    result,
    tree,
)
from tbe.dtypes import DTYPES
from tbe.elements import ROW, Elements, Place, stack_type
from tbe.index import LoopVar
from tbe.ir import Builder, Lines, Value, flatten
from tbe.lower import Reduction, Running
from tbe.schedule import (
    Nest,
    Schedule,
    Stage,
    closure,
    effort,
    lane_of,
    stack_elements,
    stack_size,
)
from tbe.target import TRIPLE, Machine

__all__ = ["render"]


def render(schedule: Schedule, machine: Machine, symbol: str) -> str:
    """The module that contains the kernel."""
    b = Builder(machine)
    count = len(schedule.inputs) + len(schedule.outputs)
    buffers = []
    for number in range(count):
        slot = b.gep("ptr", Value("%args", "ptr", 1), b.const("i64", 1, number))
        buffers.append(b.emit(f"load ptr, ptr {slot.name}, align 8", "ptr", 1))
    stack: Lines = []
    b.out.append(stack)

    def nests(streaming: bool) -> None:
        first = 0
        for nest in schedule.nests:
            _render_nest(b, nest, buffers, first, len(schedule.nests) == 1, stack, streaming)
            first += nest.units

    if schedule.streams and machine.masks:
        aligned = _all_aligned(b, buffers[len(schedule.inputs) :], machine.vector_bytes)
        b.when(aligned, lambda: nests(streaming=True))
        b.when(b.op("xor", aligned, b.const("i1", 1, True)), lambda: nests(streaming=False))
        b.fence()
    else:
        nests(streaming=False)
    b.line("ret void")
    body = "\n".join(flatten(b.out))
    functions = "\n".join("\n".join(lines) for lines in b.functions.values())
    declarations = "\n".join(b.declared.values())
    width = machine.vector_bytes * 8
    attributes = f'nounwind "no-builtins" "target-cpu"="{machine.cpu}" "prefer-vector-width"="{width}"'
    attributes += f' "min-legal-vector-width"="{width}"'
    return (
        f'target triple = "{TRIPLE}"\n{declarations}\n'
        f"define void @{symbol}(ptr %args, i64 %lo, i64 %hi) #0 {{\nentry:\n{body}\n}}\n{functions}\n"
        f"attributes #0 = {{ {attributes} }}\nattributes #1 = {{ noinline {attributes} }}\n!0 = !{{i32 1}}\n"
    )


def _all_aligned(b: Builder, buffers: Sequence[Value], size: int) -> Value:
    """Test whether all buffers are aligned to a vector's size."""
    bits = b.const("i64", 1, 0)
    for buffer in buffers:
        bits = b.op("or", bits, b.convert("ptrtoint", buffer, "i64"))
    return b.icmp("eq", b.op("and", bits, b.const("i64", 1, size - 1)), b.const("i64", 1, 0))


def _render_nest(
    b: Builder, nest: Nest, buffers: list[Value], first: int, only: bool, stack: Lines, streaming: bool
) -> None:
    """Run the nest over its part of [lo, hi)."""
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
    writer.streaming = streaming
    b.when(b.icmp("slt", lo, hi), lambda: writer.rows(lo, hi))


class _NestWriter(Elements):
    """Emits the loops of one nest."""

    def __init__(self, b: Builder, nest: Nest, buffers: list[Value], stack: Lines) -> None:
        super().__init__(b, nest, buffers)
        self.width = self.full_width = self._width()
        if self._pairs_rows():
            self.row_bits = sum(v.bit for v in nest.outer)
            self.row_values = [{}, {}]
        self._reserve(stack)

    # -- vectors ------------------------------------------------------------------------------------------

    def _width(self) -> int:
        """Lanes of a full vector: one register of the widest compute type."""
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
        most = (
            self.nest.tile_step
            if self.nest.tile is not None
            else 1 << max(self.lane.extent - 1, 0).bit_length()
        )
        return min(self.b.machine.lanes(bits), most)

    def _pairs_rows(self) -> bool:
        """True if two rows are interleaved, so that one computes while the other waits for its reductions."""
        nest = self.nest
        if nest.lane_outer or nest.rows < 2 or nest.runnings or nest.tuning.pairs is False:
            return False
        sizes = [math.prod(v.extent for v in group) for group in nest.groups]
        work = sum(effort(n) for stage in nest.stages for n in closure(stage.roots(), set()))
        room = 0
        for t in nest.temporaries:
            room += stack_elements(nest.groups[t.group], self._lane_of(t.group), outer=False) * stack_size(
                t.node
            )
        wanted = nest.tuning.pairs or (max(sizes) < 2048 and work <= 120)
        return wanted and room <= nest.processor.stack_bytes // 2

    def _unroll(self, stage: Stage | None) -> int:
        """The number of vectors that the innermost body handles at a time."""
        stages = [stage] if stage is not None else self.nest.stages
        work = 0.0
        for one in stages:
            for node in closure(one.roots(), set()):
                if node.vars & self.lane_bit:
                    work += effort(node)
        carried = sum(len(components(r)) for one in stages for r in one.reductions)
        if self.nest.shared is not None:
            room = (self.b.machine.registers - 2) // (self.nest.shared_step + 1)
            return 1 << (min(room, 4).bit_length() - 1)
        copies = 4 if work <= 12 else 2 if work <= 50 else 1
        copies = self.nest.tuning.unroll or max(1, copies // len(self.row_values))
        while copies > 1 and carried * copies * len(self.row_values) > 16:
            copies //= 2
        while copies > 1 and stage is None and self.nest.temporaries and self.width * copies > 64:
            copies //= 2
        return copies

    def _reserve(self, stack: Lines) -> None:
        """Stack space for the temporaries: a whole number of vectors per step of the serial loops."""
        outer = self.nest.lane_outer
        for t in self.nest.temporaries:
            lane = self._lane_of(t.group)
            group = self.nest.groups[t.group]
            serial = math.prod(v.extent for v in group if v is not lane)
            elements = stack_elements(group, lane, outer)
            self.pitch[t.number] = elements // serial
            elem = stack_type(t)
            slot = Value(self.b.fresh(), "ptr", 1)
            count = elements * len(self.row_values)
            stack.append(f"{slot.name} = alloca [{count} x {elem}], align 64")
            self.slots[t.number] = slot
        for r in self.nest.stages[0].reductions if self.nest.in_order else ():
            self.sums[r.node.uid] = slot = Value(self.b.fresh(), "ptr", 1)
            stack.append(f"{slot.name} = alloca [{self.nest.chunk} x {components(r)[0]}], align 64")

    def _lane_of(self, group: int) -> LoopVar:
        return lane_of(self.nest.groups, group, self.nest.lane, self.nest.lane_outer)

    # -- rows ---------------------------------------------------------------------------------------------

    def rows(self, lo: Value, hi: Value) -> None:
        """The loop over rows lo .. hi-1."""
        nest, b = self.nest, self.b
        if nest.shared is not None:  # all rows for one piece of the lane, whose factors stay in the caches
            counters = [nest.chunks, *(v.extent for v in nest.outer), nest.blocks]
        else:
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

        def row(count: Value, values: list[Value]) -> list[Value]:
            at = dict(zip(live, values or [count], strict=False))
            first = 0 if nest.shared is None else 1
            for number, var in enumerate(nest.outer, first):
                self._bind(var, at.get(number, self._number(0)))
            tile, chunk = (at.get(len(counters) - k, self._number(0)) for k in (2, 1))
            if nest.shared is not None:
                self._rows_of_chunk(nest.shared, chunk, at.get(0, self._number(0)))
            elif nest.tile is not None:
                self._row_of_tiles(nest.tile, tile, chunk)
            elif nest.lane_outer:
                self._row_of_chunk(chunk)
            else:
                self._row_of_stages()
            return self._advance(values, extents)

        def pair(number: Value, values: list[Value]) -> list[Value]:
            second = self._advance(values, extents)
            alone = b.icmp(
                "eq", b.op("add", number, self._number(1)), hi
            )  # then the last row is computed twice
            chosen = [b.select(alone, x, y) for x, y in zip(values, second, strict=False)]
            for row_number, counts in enumerate((values, chosen)):
                at = dict(zip(live, counts, strict=False))
                self.row_values[row_number] = {
                    var.bit: at.get(n, self._number(0)) for n, var in enumerate(nest.outer)
                }
            self.row_depth = len(self.scopes) - 1
            self._row_of_stages()
            return self._advance(second, extents)

        if self.row_bits:
            self._loop(lo, hi, 2, starts, pair)
        else:
            self._loop(lo, hi, 1, starts if len(live) > 1 else [], row)

    def _advance(self, values: list[Value], extents: list[int]) -> list[Value]:
        """Increment the counters, the last one fastest."""
        b = self.b
        following: list[Value] = []
        carry: Value | None = None
        for value, extent in zip(reversed(values), reversed(extents), strict=False):
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
        """Tiles at the edge overlap their neighbours: the common elements are stored twice with equal values."""
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
        self._set_lanes(self.lane, [(lane, 0)] * side, None)
        self.tile_bases = [(tile, u) for u in range(side)]
        for stage in self.nest.stages:
            self._write_all(stage.stores, side)

    # -- an outer lane: blocks of lanes, each through all stages ------------------------------------------

    def _chunk_in_order(self, chunk: Value) -> None:
        """Reductions with accumulators on the stack: the loops follow the operands' memory order.

        Several steps of the innermost loop are accumulated at a time, in order.
        """
        nest, b = self.nest, self.b
        (stage,) = nest.stages
        start = b.op("mul", chunk, self._number(nest.chunk))
        stop = b.intrinsic(
            "smin", b.op("add", start, self._number(nest.chunk)), self._number(nest.lane.extent)
        )

        def blocks(write: Callable[[Reduction, int, Value], None], copies: int) -> None:
            def body(base: Value, _: list[Value]) -> list[Value]:
                self._set_lanes(self.lane, self._copy_bases(base, copies), None)
                for r in stage.reductions:
                    for u in range(copies):
                        place = (b.op("sub", base, start), self.bases[u][1])
                        write(r, u, self._gep(components(r)[0], self.sums[r.node.uid], place))
                if write is add:
                    self._write_all(stage.stores, copies)
                if write is finish:
                    self._write_all([s for s in nest.stores if not s.full], copies)
                return []

            self._loop(start, stop, self.width * copies, [], body)

        def begin(r: Reduction, u: int, place: Value) -> None:
            b.store(initial(b, r, self.width)[0], place, DTYPES[r.dtype].size)

        def loaded(r: Reduction, place: Value) -> list[Value]:
            return [b.load(components(r)[0], self.width, place, DTYPES[r.dtype].size)]

        def add(r: Reduction, u: int, place: Value) -> None:
            total = loaded(r, place)
            for step in range(len(self.row_values)):
                total = combine(b, r, total, self._element(r, step * ROW + u))
            b.store(total[0], place, DTYPES[r.dtype].size)

        def finish(r: Reduction, u: int, place: Value) -> None:
            value = result(b, r, loaded(r, place))
            self._keep((r.node.uid, self._copy(r.node.vars, u)), value, len(self.scopes) - 1)

        self.stage = stage.number
        blocks(begin, 4)
        self._steps_together(nest.groups[stage.group], lambda: blocks(add, 2))
        self.stage = len(nest.stages) + 1
        blocks(finish, 4)

    def _has_long_rows(self) -> bool:
        widest = max(DTYPES[r.dtype].size for r in self.nest.stages[0].reductions)
        return self.nest.lane.extent * widest >= self.nest.processor.long_row_bytes

    def _steps_together(self, variables: Sequence[LoopVar], body: Callable[[], None]) -> None:
        """Serial loops around a body that handles several steps of the innermost one as rows.

        Short rows are handled one by one: sequential reads are fastest, and several short rows at a time are not
        sequential.
        """
        *outer, inner = [v for v in variables if v.extent > 1]
        together = next(n for n in (4, 3, 2, 1) if inner.extent % n == 0) if self._has_long_rows() else 1

        def turn(counter: Value, values: list[Value]) -> list[Value]:
            steps = [
                self.b.op("add nuw nsw", counter, self._number(n)) if n else counter for n in range(together)
            ]
            self.row_bits, self.row_values = inner.bit, [{inner.bit: step} for step in steps]
            self.row_depth = len(self.scopes) - 1
            body()
            self.row_bits, self.row_values = 0, [{}]
            return values

        def innermost(values: list[Value]) -> list[Value]:
            return self._loop(self._number(0), self._number(inner.extent), together, values, turn)

        self._serial(outer, [], innermost)

    def _rows_of_chunk(self, shared: LoopVar, block: Value, chunk: Value) -> None:
        """Several rows with a common factor; those at the edge overlap their neighbours."""
        b, step = self.b, min(self.nest.shared_step, shared.extent)
        first = self._edge(b.op("mul", block, self._number(self.nest.shared_step)), shared.extent, step)
        rows = [b.op("add nuw nsw", first, self._number(n)) if n else first for n in range(step)]
        self.row_bits, self.row_values = shared.bit, [{shared.bit: row} for row in rows]
        self.row_depth = len(self.scopes) - 1
        self._row_of_chunk(chunk)
        self.row_bits, self.row_values = 0, [{}]

    def _row_of_chunk(self, chunk: Value) -> None:
        nest, b = self.nest, self.b
        if nest.in_order:
            self._chunk_in_order(chunk)
            return
        extent, width, copies = nest.lane.extent, self.width, self._unroll(None)
        block = width * copies
        whole = extent // block * block
        if nest.chunks == 1:
            self.fixed_lanes = not nest.groups and b.machine.masks and (not whole or whole == block == extent)
            start, stop = self._number(0), self._number(whole)
            if whole:
                self._blocks(start, stop, block, copies, once=whole == block)
            self._rest_of_chunk(whole, extent)
            return
        start = b.op("mul", chunk, self._number(nest.chunk))
        stop = b.op("add", start, self._number(nest.chunk))
        stop = b.intrinsic("smin", stop, self._number(whole))
        if whole:
            self._when(
                b.icmp("slt", start, stop), lambda: self._blocks(start, stop, block, copies, once=False)
            )
        if whole < extent:
            last = b.icmp("eq", chunk, self._number(nest.chunks - 1))
            self._when(last, lambda: self._rest_of_chunk(whole, extent))

    def _blocks(self, start: Value, stop: Value, block: int, copies: int, *, once: bool) -> None:
        if once:
            self._straight(lambda: self._lane_block(self._fixed_bases(0, copies)))
            return

        def body(base: Value, _: list[Value]) -> list[Value]:
            self._lane_block(self._copy_bases(base, copies))
            return []

        self._loop(start, stop, block, [], body)

    def _copy_bases(self, base: Value, copies: int) -> list[Place]:
        """The first lanes of the vectors of a block."""
        return [(base, u * self.width) for u in range(copies)]

    def _fixed_bases(self, start: int, copies: int) -> list[Place]:
        """The first lanes of vectors that start at a known lane."""
        return [(self._number(start + u * self.width), 0) for u in range(copies)]

    def _rest_of_chunk(self, start: int, extent: int) -> None:
        """The lanes after the last whole block."""
        vectors, tail = divmod(extent - start, self.width)
        masked = tail and self.b.machine.masks and self.width > 1
        bases = self._fixed_bases(start, vectors + bool(masked))
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
            self._lane_block([(base, 0)])
            return []

        self._loop(self._number(start), self._number(extent), 1, [], body)
        self.width = width

    def _prefix_mask(self, count: int) -> Value:
        return self.b.vector("i1", [lane < count for lane in range(self.width)])

    def _lane_block(self, bases: list[Place], masks: Sequence[Value | None] | None = None) -> None:
        """Run all stages for the lanes at `bases`."""
        self._set_lanes(self.lane, bases, masks)
        copies = len(bases)
        for stage in self.nest.stages:
            self.stage = stage.number
            if not self.nest.groups:
                self._write_all(stage.stores, copies)
                continue
            group = self.nest.groups[stage.group]
            first = [
                [initial(self.b, r, self._lanes_of(r)) for _ in self._copies_of(r, copies)]
                for r in stage.reductions
            ]
            carried = flat(first) + self._running_start(copies)
            final = self._serial(group, carried, partial(self._outer_body, stage, copies))
            self._finish_outer(stage, final, copies)
        self.stage = len(self.nest.stages) + 1
        self._write_all([s for s in self.nest.stores if not s.full], copies)

    def _lanes_of(self, r: Reduction) -> int:
        return self.lanes if r.body.vars & self.lane_bit or self._position_in_lanes(r) else 1

    def _position_in_lanes(self, r: Reduction) -> bool:
        return r.op in ("argmax", "argmin") and bool(r.position.vars & self.lane_bit)

    def _copies_of(self, r: Reduction | Running, copies: int) -> list[int]:
        return self._copies(copies if r.body.vars & self.lane_bit else 1)

    def _outer_body(self, stage: Stage, copies: int, values: list[Value]) -> list[Value]:
        carried = list(values)
        position = 0
        layout: list[list[list[Value]]] = []
        for r in stage.reductions:
            size = len(components(r))
            layout.append([])
            for _ in self._copies_of(r, copies):
                layout[-1].append(carried[position : position + size])
                position += size
        running = self._run_scans(carried[position:], copies)
        for r, rows in zip(stage.reductions, layout, strict=False):
            for place, u in enumerate(self._copies_of(r, copies)):
                rows[place] = self._with_element(r, rows[place], u)
        self._keep_temporaries(stage, copies)
        self._write_all(stage.stores, copies)
        return flat(layout) + running

    def _with_element(self, r: Reduction, total: list[Value], u: int) -> list[Value]:
        """Accumulate one more element; interleaved rows use a fused multiply-add."""
        if self.nest.shared is None or not DTYPES[r.dtype].is_float:
            return combine(self.b, r, total, self._element(r, u))
        one, other = (self._spread(x, u, total[0].lanes)[0] for x in r.body.args)
        return [self.b.muladd(one, other, total[0])]

    def _finish_outer(self, stage: Stage, final: list[Value], copies: int) -> None:
        position = 0
        for r in stage.reductions:
            parts = len(components(r))
            for u in self._copies_of(r, copies):
                value = result(self.b, r, final[position : position + parts])
                position += parts
                self._keep((r.node.uid, self._copy(r.node.vars, u)), value, len(self.scopes) - 1)

    # -- scans --------------------------------------------------------------------------------------------

    def _running_start(self, copies: int) -> list[Value]:
        values = []
        for r in self.nest.runnings:
            lanes = self.lanes if r.body.vars & self.lane_bit else 1
            start = self.b.const(convert.register_type(r.dtype), lanes, neutral(r.op, r.dtype))
            values += [start] * len(self._copies_of(r, copies))
        return values

    def _run_scans(self, carried: list[Value], copies: int) -> list[Value]:
        following: list[Value] = []
        for r in self.nest.runnings:
            for u in self._copies_of(r, copies):
                before = carried[len(following)]
                element = self._spread(r.body, u, before.lanes)[0]
                after = accumulate(self.b, r.op, before, element, r.dtype)
                shown = before if r.exclusive else after
                if r.op in ("sum", "prod"):
                    shown = convert.rounded(self.b, shown, r.dtype)
                self._keep((r.node.uid, self._copy(r.node.vars, u)), shown, len(self.scopes) - 1)
                following.append(after)
        return following

    def _row_scan(self, stage: Stage, lane: LoopVar) -> None:
        """A scan along the lane: prefixes within a vector, and a carried total."""
        width, extent = self.width, lane.extent
        whole = extent // width * width
        carried = [
            self.b.const(convert.register_type(r.dtype), 1, neutral(r.op, r.dtype))
            for r in self.nest.runnings
        ]

        def turn(base: Value, values: list[Value]) -> list[Value]:
            return self._scan_block(stage, lane, base, None, values)

        if whole:
            carried = self._loop(self._number(0), self._number(whole), width, carried, turn)
        if whole == extent:
            return
        if self.b.machine.masks and width > 1:
            self._open()
            self._scan_block(stage, lane, self._number(whole), self._prefix_mask(extent - whole), carried)
            self._close()
            return
        self.width = 1
        self._loop(self._number(whole), self._number(extent), 1, carried, turn)
        self.width = width

    def _scan_block(
        self, stage: Stage, lane: LoopVar, base: Value, mask: Value | None, carried: list[Value]
    ) -> list[Value]:
        self._set_lanes(lane, [(base, 0)], [mask])
        following = []
        for r, before in zip(self.nest.runnings, carried, strict=False):
            total, shown = prefix(self.b, r, before, self._vector(r.body, 0))
            if r.op in ("sum", "prod"):
                shown = convert.rounded(self.b, shown, r.dtype)
            self._keep((r.node.uid, 0), shown, len(self.scopes) - 1)
            following.append(total)
        self._write_all(stage.stores, 1)
        return following

    # -- an inner lane: stages in sequence ----------------------------------------------------------------

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
        accumulators = [[initial(b, r, width) for _ in every] for r in stage.reductions]
        rows = self._copies(1)
        tails = [[initial(b, r, 1) for _ in rows] if scalar_tail else [] for r in stage.reductions]
        carried = flat(accumulators) + flat(tails)

        def body(values: list[Value]) -> list[Value]:
            return self._lane_loop(stage, lane, copies, values)

        final = iter(self._serial(serial, carried, body))

        def take(r: Reduction) -> list[Value]:
            return [next(final) for _ in components(r)]

        merged = []
        for r in stage.reductions:
            for _ in rows:
                merged.append(horizontal(b, r, tree(b, r, [take(r) for _ in range(copies)])))
        for n, r in enumerate(stage.reductions):
            for k, u in enumerate(rows):
                total = merged[n * len(rows) + k]
                if scalar_tail:
                    total = combine(b, r, total, take(r))
                self._keep(
                    (r.node.uid, self._copy(r.node.vars, u)), result(b, r, total), len(self.scopes) - 1
                )

    def _serial(
        self, variables: Sequence[LoopVar], carried: list[Value], body: Callable[[list[Value]], list[Value]]
    ) -> list[Value]:
        """Nested serial loops around a body that takes and returns carried values."""
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
        split = sum(len(components(r)) for r in stage.reductions) * len(self._copies(copies))
        vectors, tail_parts = carried[:split], carried[split:]
        block = width * copies
        whole = extent // block

        def run(
            bases: list[Place], masks: list[Value | None], values: list[Value], available: int
        ) -> list[Value]:
            self._set_lanes(lane, bases, masks)
            return self._inner_body(stage, values, len(bases), available)

        if whole > 1:

            def turn(base: Value, values: list[Value]) -> list[Value]:
                return run(self._copy_bases(base, copies), [None] * copies, values, copies)

            vectors = self._loop(self._number(0), self._number(whole * block), block, vectors, turn)
        elif whole == 1:
            self._open()
            vectors = run(self._fixed_bases(0, copies), [None] * copies, vectors, copies)
            self._close()
        rest, tail = divmod(extent - whole * block, width)
        masked = bool(tail) and b.machine.masks and width > 1
        bases = self._fixed_bases(whole * block, rest + masked)
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
            self._set_lanes(lane, [(base, 0)], None)
            return self._inner_body(stage, values, 1, 1)

        results = self._loop(self._number(start), self._number(lane.extent), 1, carried, turn)
        self.width = width
        return results

    def _inner_body(self, stage: Stage, values: list[Value], copies: int, available: int) -> list[Value]:
        """One block of a pass: values are the accumulators by reduction, row, copy (`available` of them), part."""
        results = list(values)
        elements = [[self._element(r, u) for u in self._copies(copies)] for r in stage.reductions]
        position = 0
        for r, added in zip(stage.reductions, elements, strict=False):
            size = len(components(r))
            for u, element in zip(self._copies(copies), added, strict=False):
                place = position + (u // ROW * available + u % ROW % available) * size
                mask = self.masks[u % ROW]
                if mask is not None:
                    element = [
                        self.b.select(mask, x, n)
                        for x, n in zip(element, initial(self.b, r, self.lanes), strict=False)
                    ]
                results[place : place + size] = combine(self.b, r, results[place : place + size], element)
            position += size * available * len(self.row_values)
        self._keep_temporaries(stage, copies)
        self._write_all(stage.stores, copies)
        return results
