"""Generates the element computations of a kernel as vectors: loads, scalar operations, indices and stores.

A *copy* is one of the vectors that an unrolled loop body handles at a time; copies of the second row of a pair are
numbered from `ROW` on. Values that are the same in all copies are emitted once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tbe import convert, integers, vector_math
from tbe.accumulate import position_type
from tbe.dtypes import DTYPES
from tbe.index import Atom, Index, LoopVar
from tbe.ir import Builder, Value
from tbe.lower import Node, Reduction
from tbe.ops import BINARY, UNARY
from tbe.schedule import Nest, Stage, Store, Temporary, closure
from tbe.scopes import Scopes
from tbe.tiles import transposed

__all__ = ["ONE_COPY", "ROW", "Elements", "stack_type"]

ONE_COPY = -1  # the copy number of values that are the same in all copies
ROW = 64  # copy numbers of the second row of a pair start here
Place = tuple[Value, int]  # a value of a loop variable, and an offset to add to it


class Elements(Scopes):
    """The values of one nest, emitted on demand."""

    def __init__(self, b: Builder, nest: Nest, buffers: list[Value]) -> None:
        super().__init__(b)
        self.nest = nest
        self.buffers = buffers
        self.raw = _raw_dtypes(nest)
        self.lane = nest.lane
        self.lane_bit = nest.lane.bit
        self.copy_bits = nest.lane.bit | (nest.tile.bit if nest.tile is not None else 0)
        self.width = 1  # lanes of a full vector
        self.full_width = 1  # the same, also while scalars are emitted
        self.streaming = False  # whether outputs use non-temporal stores
        self.lanes = 1  # lanes of the vectors being emitted
        self.bases: list[Place] = []  # the first lane of each copy
        self.tile_bases: list[Place] = []  # the value of the tile variable of each copy
        self.lane_depth = 0
        self.fixed_lanes = False  # whether the vectors are the same in all rows
        self.masks: list[Value | None] = []
        self.stage = 0
        self.row_bits = 0  # the variables that differ between the rows of a pair
        self.row_values: list[dict[int, Value]] = [{}]
        self.row_depth = 0
        self.temporaries = {t.node.uid: t for t in nest.temporaries}
        self.slots: dict[int, Value] = {}
        self.sums: dict[int, Value] = {}  # accumulators on the stack
        self.pitch: dict[int, int] = {}  # elements of a temporary per step of the serial loops

    # -- copies -------------------------------------------------------------------------------------------

    def _copies(self, lane_copies: int) -> list[int]:
        """The numbers of all copies: those of each row of a pair."""
        return [row * ROW + u for row in range(len(self.row_values)) for u in range(lane_copies)]

    def _copy(self, variables: int, u: int) -> int:
        """The copy that represents u in what depends on the given variables."""
        if u == ONE_COPY or not variables & (self.row_bits | self.copy_bits):
            return ONE_COPY
        row = u // ROW * ROW if variables & self.row_bits else 0
        return row + (u % ROW if variables & self.copy_bits else 0)

    def _set_lanes(self, lane: LoopVar, bases: list[Place], masks: Sequence[Value | None] | None) -> None:
        self.lane, self.lane_bit = lane, lane.bit
        self.copy_bits = lane.bit | (self.nest.tile.bit if self.nest.tile is not None else 0)
        self.lanes = self.width
        self.bases = bases
        self.lane_depth = 0 if self.fixed_lanes else len(self.scopes) - 1
        self.masks = list(masks) if masks is not None else [None] * len(bases)

    def _memory(self, dtype: str) -> str:
        return f"i{DTYPES[dtype].size * 8}" if dtype in self.raw else convert.memory_type(self.b, dtype)

    def _from_memory(self, x: Value, dtype: str) -> Value:
        return x if dtype in self.raw else convert.from_memory(self.b, x, dtype)

    def _to_memory(self, x: Value, dtype: str) -> Value:
        return x if dtype in self.raw else convert.to_memory(self.b, x, dtype)

    # -- reductions and temporaries -----------------------------------------------------------------------

    def _element(self, r: Reduction, u: int) -> list[Value]:
        """The contribution of one element to a reduction: its value, and its position for argmax and argmin."""
        lanes = self.lanes if (not self.nest.lane_outer or r.body.vars & self.lane_bit) else 1
        value = self._value(r.body, u)[0]
        value = self.b.splat(value, lanes)
        if r.op not in ("argmax", "argmin"):
            return [value]
        elem = position_type(r)
        if r.position.vars & self.lane_bit and self.lanes > 1:
            position = self._vector_index(r.position, u, elem)[0]
        else:
            scalar = self._index(r.position, u)[0]
            if elem == "i32":
                scalar = (
                    self.b.convert("trunc", scalar, "i32")
                    if not scalar.is_const
                    else Value(scalar.name, "i32", 1)
                )
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
        offset = self._index(Index(tuple(terms), u // ROW * stride), ONE_COPY)[0]
        address = b.gep(stack_type(t), self.slots[t.number], offset)
        lane = (self._number(u * self.lanes), 0) if self.nest.lane_outer else self.bases[u % ROW]
        return self._gep(stack_type(t), address, lane)

    # -- stores and addresses -----------------------------------------------------------------------------

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
        if self.lanes == 1 or u == ONE_COPY or stride == 0:
            offset = self._index(store.offset, u)[0]
            b.store(
                self._to_memory(value, store.dtype), b.gep(elem, self.buffers[store.buffer], offset), size
            )
            return
        value = self._to_memory(b.splat(value, self.lanes), store.dtype)
        mask = self.masks[u % ROW]
        if stride == 1:
            address = self._address(store.buffer, elem, store.offset, u)[0]
            if self.streaming and mask is None and self._is_aligned(store, size):
                b.stream(value, address)
            else:
                b.store(value, address, size, mask)
        elif stride == -1:
            backwards = range(self.lanes - 1, -1, -1)
            address = self._address_back(store.buffer, elem, store.offset, u)[0]
            mask = b.shuffle(mask, None, backwards) if mask is not None else None
            b.store(b.shuffle(value, None, backwards), address, size, mask)
        else:
            addresses = self._addresses(store.buffer, elem, store.offset, u)[0]
            b.scatter(value, addresses, size, mask or b.const("i1", self.lanes, True))

    def _is_aligned(self, store: Store, size: int) -> bool:
        """True if whole vectors of an output are aligned to their size, provided the output is."""
        vector = self.lanes * size
        strides = [c for atom, c in store.offset.terms if atom is not self.lane]
        plain = all(isinstance(atom, LoopVar) for atom, _ in store.offset.terms)
        whole = self.nest.chunk % self.lanes == 0 or not self.nest.lane_outer or self.nest.chunks == 1
        return (
            plain
            and whole
            and vector >= 16
            and not any(c * size % vector for c in [*strides, store.offset.const])
            and self.lanes == self.full_width
        )

    def _address(self, buffer: int, elem: str, offset: Index, u: int) -> tuple[Value, int]:
        """The address of the first lane of a contiguous access, and its depth."""
        pointer, depth = self._pointer(buffer, elem, _without(offset, self.lane), u)
        depth = max(depth, self.lane_depth)
        base, distance = self.bases[u % ROW]
        first = self._moved(elem, pointer, base, depth)
        return self._moved(elem, first, self._number(distance), depth), depth

    def _moved(self, elem: str, pointer: Value, offset: Value, depth: int) -> Value:
        """An address some elements after another, emitted once."""
        if offset.name == "0":
            return pointer
        key = ("at", elem, pointer.name, offset.name)
        found = self.memo.get(key)
        if found is None:
            found = self._keep(key, self._at(depth, lambda: self.b.gep(elem, pointer, offset)), depth)
        return found[0]

    def _gep(self, elem: str, address: Value, place: Place) -> Value:
        return self.b.gep(elem, self.b.gep(elem, address, place[0]), self._number(place[1]))

    def _at_place(self, place: Place) -> tuple[Value, int]:
        """The value of a loop variable for one copy, and its depth."""
        value, distance = place
        if not distance:
            return value, self.lane_depth
        key = ("place", value.name, distance)
        found = self.memo.get(key)
        if found is None:
            number = self._number(distance)
            moved = self._at(self.lane_depth, lambda: self.b.op("add nuw nsw", value, number))
            found = self._keep(key, moved, self.lane_depth)
        return found

    def _address_back(self, buffer: int, elem: str, offset: Index, u: int) -> tuple[Value, int]:
        """The lowest address of an access whose lanes run backwards, and its depth."""
        b = self.b
        pointer, depth = self._pointer(buffer, elem, _without(offset, self.lane), u)
        depth = max(depth, self.lane_depth)
        lane, _ = self._at_place(self.bases[u % ROW])

        def write() -> Value:
            return b.gep(elem, pointer, b.op("sub", self._number(1 - self.lanes), lane))

        return self._at(depth, write), depth

    def _pointer(self, buffer: int, elem: str, offset: Index, u: int) -> tuple[Value, int]:
        """The address of an access without its lane part."""
        copy = self._copy(offset.vars, u)
        key = ("pointer", buffer, elem, offset, copy)
        found = self.memo.get(key)
        if found is None and self.nest.tile is not None and copy % ROW and copy != ONE_COPY:
            stride = offset.coefficient(self.nest.tile)
            if stride is not None:
                pointer, depth = self._pointer(buffer, elem, offset, copy - copy % ROW)
                moved = self._number(stride * self.tile_bases[copy % ROW][1])
                return self._keep(key, self._moved(elem, pointer, moved, depth), depth)
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
        """The value of a node for one copy, and the depth at which it is emitted."""
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
        value, depth = getattr(self, _WRITERS.get(node.op, "_operation"))(node, copy)
        return self._keep(key, value, depth)

    def _constant(self, node: Node) -> Value:
        value, elem = node.data[1], convert.register_type(node.dtype)
        if node.dtype in self.raw:
            kind = DTYPES[node.dtype]
            elem = f"i{kind.size * 8}"
            value = int(np.array(value, kind.numpy).view(f"u{kind.size}"))
        return self.b.const(elem, 1, value)

    def _in_lanes(self, variables: int) -> bool:
        """True if something that depends on `variables` varies between lanes."""
        return bool(variables & self.lane_bit) and self.lanes > 1

    def _reload(self, t: Temporary, u: int) -> Value:
        elem = stack_type(t)
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
        """x / y for a reduced y that is known before the loop: x times its reciprocal, safely scaled."""
        b = self.b
        divisor = node.args[1]
        key = ("reciprocal", divisor.uid, self._copy(divisor.vars, u), lanes)
        if (*key, "scale") not in self.memo:
            y, y_depth = self._spread(divisor, u, lanes)
            scale = self._at(y_depth, lambda: vector_math.reciprocal_scale(b, y))
            inverse = self._at(y_depth, lambda: vector_math.scaled_reciprocal(b, y, scale))
            self._keep((*key, "scale"), scale, y_depth)
            self._keep((*key, "inverse"), inverse, y_depth)
        scale, inverse = self.memo[(*key, "scale")][0], self.memo[(*key, "inverse")][0]

        def write() -> Value:
            return convert.rounded(b, b.fmul(b.fmul(x, inverse), scale), node.dtype)

        return self._at(depth, write)

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
        if stride in (2, 3, 4) and guard is None and self.masks[u % ROW] is None:
            return self._load_spaced(node, u, elem, size, stride)
        addresses, depth = self._addresses(buffer, elem, offset, u)
        mask, depth = self._mask(guard, u, depth)
        mask = mask or self.b.const("i1", self.lanes, True)
        value = self._at(depth, lambda: self.b.gather(elem, addresses, size, mask))
        return self._at(depth, lambda: self._from_memory(value, node.dtype)), depth

    def _lookup(self, node: Node, u: int) -> tuple[Value, int]:
        """Elements of a table of 256 bytes."""
        b, base = self.b, self.buffers[node.data]
        index, depth = self._spread(node.args[0], u, self.lanes if self._in_lanes(node.vars) else 1)
        if index.lanes == 1 or not b.machine.permutes_bytes:
            return self._at(depth, lambda: _one_by_one(b, base, index)), depth
        parts = [self._table_part(node.data, number) for number in range(4)]
        return self._at(depth, lambda: _permuted(b, parts, index)), depth

    def _table_part(self, buffer: int, number: int) -> Value:
        """A quarter of a table of 256 bytes, loaded once."""
        key = ("table", buffer, number)
        found = self.memo.get(key)
        if found is None:
            b, base = self.b, self.buffers[buffer]
            read = self._at(0, lambda: b.load("i8", 64, b.gep("i8", base, self._number(number * 64)), 1))
            found = self._keep(key, read, 0)
        return found[0]

    def _load_one(self, node: Node, u: int, elem: str, size: int, guard: Node | None) -> tuple[Value, int]:
        b = self.b
        buffer, offset = node.data
        index, depth = self._index(offset, u)
        if guard is not None:
            inside, guard_depth = self._value(guard, u)
            depth = max(depth, guard_depth)
            index = self._at(depth, lambda: b.select(inside, index, self._number(0)))

        def read() -> Value:
            return self._from_memory(
                b.load(elem, 1, b.gep(elem, self.buffers[buffer], index), size), node.dtype
            )

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
        """Load every second, third or fourth element: contiguous loads that cover just these, and shuffles."""
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
            for piece, at in zip(pieces[1:], starts[1:], strict=False):
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

    def _load_tile(self, node: Node, u: int) -> tuple[Value, int]:
        """Load a tile along the tile variable and transpose it to run along the lane; all copies at once."""
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
        for copy, column in enumerate(transposed(b, rows, size)):
            self._keep((node.uid, copy), self._from_memory(column, node.dtype), depth)
        return self.memo[(node.uid, u)]

    def _mask(self, guard: Node | None, u: int, depth: int) -> tuple[Value | None, int]:
        """The active lanes: those of the tail mask if the guard holds."""
        mask = self.masks[u % ROW]
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
        """A scalar index; each partial sum is hoisted as far out as its terms allow."""
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
                return self._at_place(self.bases[u % ROW])
            if atom is self.nest.tile:
                return self._at_place(self.tile_bases[u % ROW])
            if atom.bit & self.row_bits:
                return self.row_values[u // ROW][atom.bit], self.row_depth
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
        same: list[tuple[Atom, int]] = []
        parts: list[tuple[Atom, int]] = []
        steps = [0] * self.lanes
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


_WRITERS = {  # by operation: the method that emits its value
    "index": "_index_value",
    "cond": "_condition",
    "load": "_load",
    "lookup": "_lookup",
    "reduction": "_missing",
    "running": "_missing",
}


def _one_by_one(b: Builder, base: Value, index: Value) -> Value:
    """Look bytes up with one load each."""
    found = [
        b.load("i8", 1, b.gep("i8", base, b.convert("zext", b.extract(index, lane), "i64")), 1)
        for lane in range(index.lanes)
    ]
    made = found[0]
    for lane, value in enumerate(found if index.lanes > 1 else ()):
        whole = f"{index.ty} {made.name if lane else 'poison'}"
        made = b.emit(f"insertelement {whole}, i8 {value.name}, i64 {lane}", "i8", index.lanes)
    return made


def _permuted(b: Builder, table: Sequence[Value], index: Value) -> Value:
    """Look bytes up in a table in four registers: one permute per half, and a select."""
    wide = b.shuffle(index, None, [lane % index.lanes for lane in range(64)]) if index.lanes < 64 else index
    function, kind = "llvm.x86.avx512.vpermi2var.qi.512", "<64 x i8>"
    b.declared.setdefault(function, f"declare {kind} @{function}({kind}, {kind}, {kind})")
    halves = [
        b.emit(f"call {kind} @{function}({kind} {x.name}, {kind} {wide.name}, {kind} {y.name})", "i8", 64)
        for x, y in (table[:2], table[2:])
    ]
    found = b.select(b.icmp("slt", wide, b.like(wide, 0)), halves[1], halves[0])
    return b.shuffle(found, None, range(index.lanes)) if index.lanes < 64 else found


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
        if len(values) == 1:
            return integers.apply_unary(b, node.op, values[0], kind)
        return integers.apply_binary(b, node.op, values[0], values[1], kind)
    if node.op == "exp" and node.data and values[0].elem == "float":
        result = vector_math.exp_of_negative(b, values[0])
    elif len(values) == 1:
        result = vector_math.apply_unary(b, node.op, values[0])
    else:
        result = vector_math.apply_binary(b, node.op, values[0], values[1])
    if kind.bits == 16 and not table[node.op].exact and not table[node.op].to_bool:
        return convert.rounded(b, result, dtype)
    return result


def _raw_dtypes(nest: Nest) -> frozenset[str]:
    """The dtypes that are only moved, never computed with: their bits are handled as integers."""
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
    """True if an index and all its partial sums fit 32 bits, and their double does too."""
    size = abs(i.const)
    for atom, c in i.terms:
        size += abs(c) * max(abs(atom.lo), abs(atom.hi))
    return size < 1 << 30


def _without(i: Index, var: LoopVar) -> Index:
    return Index(tuple((a, c) for a, c in i.terms if a is not var), i.const)


def stack_type(t: Temporary) -> str:
    return "i8" if t.node.dtype == "bool" else convert.register_type(t.node.dtype)
