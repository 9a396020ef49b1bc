"""Generates machine code for TIK's instructions; `tbe.tik.instructions` defines their semantics.

A repeat is processed in groups of lanes that are contiguous in every operand. If source and target share a memory, all
groups of a repeat are read before the first is written, as in the interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tbe import convert, integers, vector_math
from tbe.dtypes import DTYPES
from tbe.ir import Value
from tbe.tik import cube_code
from tbe.tik.expression import Expression, Variable
from tbe.tik.instructions import BLOCK, LOCAL, MOST_REPEATS, MOST_STRIDE, REPEAT, counted
from tbe.tik.instructions import ahead as _ahead
from tbe.tik.native import NotNative, Writer
from tbe.tik.tensor import Tensor

__all__ = ["INSTRUCTIONS"]

Function = Callable[[Writer, list[Value]], Value]


# -- lanes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lanes:
    """Lanes selected by a mask: constant ones, the first `count`, or the bits of two words."""

    width: int
    known: tuple[int, ...] | None = None
    count: Value | None = None
    words: tuple[Value, Value] | None = None  # low, high

    @property
    def prefix(self) -> bool:
        """True if they are a prefix."""
        return self.count is not None or self.known == tuple(range(len(self.known or ())))

    def last(self, w: Writer) -> Value:
        """An upper bound of the selected lanes."""
        if self.known is not None:
            return w.i64(self.known[-1])
        return w.i64(self.width - 1) if self.count is None else w.b.op("sub", self.count, w.i64(1))

    def mask(self, w: Writer, first: int, size: int) -> Value | bool | None:
        """Mask of the selected lanes of a group: None for all, False for none."""
        b = w.b
        if self.known is not None:
            chosen = [lane in self.known for lane in range(first, first + size)]
            return None if all(chosen) else b.vector("i1", chosen) if any(chosen) else False
        if self.count is not None:
            numbers = b.vector("i64", list(range(first, first + size)))
            return b.icmp("slt", numbers, b.splat(self.count, size))
        assert self.words is not None
        word = b.op("lshr", self.words[first // 64], w.i64(first % 64))
        bits = word if size == 64 else b.convert("trunc", word, f"i{size}")
        return b.emit(f"bitcast {bits.ty} {bits.name} to <{size} x i1>", "i1", size)


def _lanes(w: Writer, mask: Any, width: int) -> Lanes:
    if not isinstance(mask, list | tuple):
        count = w.whole(mask, 1, width)
        return Lanes(width, tuple(range(int(count.name)))) if count.is_const else Lanes(width, count=count)
    if len(mask) != 2:
        raise NotNative("a mask of bits that is not [high, low]")
    if all(isinstance(part, int) for part in mask):
        bits = int(mask[0]) << 64 | int(mask[1])
        known = tuple(lane for lane in range(128) if bits >> lane & 1)
        if not known or known[-1] >= width:
            raise NotNative("a mask that chooses no lane, or too many")
        return Lanes(width, known)
    high, low = (w.as_int(*w.number(part)) for part in mask)
    if width < 128:
        w.require(w.b.icmp("eq", high, w.i64(0)))
    w.require(w.b.icmp("ne", w.b.op("or", high, low), w.i64(0)))
    return Lanes(width, words=(low, high))


def _width(*dtypes: str) -> int:
    return REPEAT // max(DTYPES[d].size for d in dtypes)


# -- operands ----------------------------------------------------------------------------------------------------


class Operand:
    """A tensor with its strides in blocks, checked for the lanes and repeats of an instruction."""

    def __init__(self, w: Writer, tensor: Any, blocks: Any, rows: Any, lanes: Lanes, repeats: Value) -> None:
        if not isinstance(tensor, Tensor) or tensor.scope not in LOCAL:
            raise NotNative("an operand that is not a tensor of the Unified Buffer")
        self.w, self.tensor, self.dtype = w, tensor, tensor.dtype
        self.each = BLOCK // DTYPES[tensor.dtype].size
        self.first = w.start(tensor)
        self.blocks, self.rows = w.whole(blocks, 0, MOST_STRIDE), w.whole(rows, 0, MOST_STRIDE)
        b, whole = w.b, w.i64(self.each)
        w.require(b.icmp("eq", b.op("and", self.first, w.i64(self.each - 1)), w.i64(0)))
        self.row_step = b.op("mul", self.rows, whole)
        behind = b.op("mul", b.op("sub", repeats, w.i64(1)), self.row_step)
        end = b.op("add", b.op("add", self.first, behind), self._offset(lanes.last(w)))
        if not (self.blocks.is_const and int(self.blocks.name) > 0):
            end = b.op("add", end, w.i64(self.each - 1))
        inside = b.op("and", b.icmp("slt", end, w.i64(w.count(tensor))), b.icmp("sge", self.first, w.i64(0)))
        if repeats.is_const and int(repeats.name) > 0:
            w.require(inside)
        else:
            w.require(b.op("or", inside, b.icmp("eq", repeats, w.i64(0))))

    @property
    def dense(self) -> bool:
        """True if the lanes of a repeat are contiguous."""
        return self.blocks.name == "1"

    def _offset(self, lane: Value) -> Value:
        """Offset of a lane in elements."""
        b, w = self.w.b, self.w
        if self.dense:
            return lane
        if lane.is_const and self.blocks.is_const:
            number, rest = divmod(int(lane.name), self.each)
            return w.i64(number * int(self.blocks.name) * self.each + rest)
        block = b.op("lshr", lane, w.i64(self.each.bit_length() - 1))
        return b.op("add", b.op("mul", b.op("mul", block, self.blocks), w.i64(self.each)),
                    b.op("and", lane, w.i64(self.each - 1)))  # fmt: skip

    def at(self, repeat: Value, lane: Value) -> Value:
        """Address of a lane of a repeat."""
        b = self.w.b
        row = b.op("mul", repeat, self.row_step) if repeat.name != "0" else repeat
        place = b.op("add", b.op("add", self.first, row), self._offset(lane))
        return self.w.address(self.tensor, place)

    def load(self, repeat: Value, lane: Value, size: int, mask: Value | None) -> Value:
        """Load lanes of a repeat."""
        return self.w.load(self.at(repeat, lane), self.dtype, size, mask)


def _same(a: Any, b: Any) -> bool:
    """True if two numbers are equal for all values of the variables."""
    if isinstance(a, Variable) or isinstance(b, Variable):
        return a is b
    if isinstance(a, Expression) and isinstance(b, Expression):
        kinds = a.kind == b.kind != "element" and len(a.parts) == len(b.parts)
        return kinds and all(_same(x, y) for x, y in zip(a.parts, b.parts, strict=True))
    return not isinstance(a, Expression | Tensor) and not isinstance(b, Expression | Tensor) and a == b


def _aside(dst: Operand, source: Operand) -> bool:
    """True if writes to dst cannot affect later reads of a source in the same repeat."""
    if dst.tensor.memory is not source.tensor.memory:
        return True
    if dst.dtype != source.dtype or not _same(dst.tensor.offset, source.tensor.offset):
        return False
    strides = ((dst.blocks, source.blocks), (dst.rows, source.rows))
    return dst.blocks.name != "0" and all(a.is_const and a.name == b.name for a, b in strides)


# -- element by element ------------------------------------------------------------------------------------------


def _apply(
    w: Writer, mask: Any, repeat: Any, dst: tuple[Any, Any, Any], sources: Sequence[tuple[Any, Any, Any]],
    function: Function, reads_dst: bool = False,
) -> None:  # fmt: skip
    """dst = function(sources) per lane; with reads_dst the old value is the first argument."""
    repeats = w.whole(repeat, 0, MOST_REPEATS)
    lanes = _lanes(w, mask, _width(dst[0].dtype, *(s[0].dtype for s in sources)))
    target = Operand(w, *dst, lanes, repeats)
    reads = [Operand(w, *s, lanes, repeats) for s in sources]
    if reads_dst:
        reads.insert(0, target)
    size = _group(w, lanes, [target, *reads])
    groups = [
        (first, m) for first in range(0, lanes.width, size) if (m := lanes.mask(w, first, size)) is not False
    ]
    together = all(_aside(target, r) for r in reads)

    def row(r: Value) -> None:
        def read(first: Value, m: Any) -> list[Value]:
            return [operand.load(r, first, size, m) for operand in reads]

        def write(first: Value, m: Any, values: list[Value]) -> None:
            w.store(w.b.splat(function(w, values), size), target.at(r, first), target.dtype, m)

        if not together:
            loaded = [read(w.i64(first), m) for first, m in groups]
            for (first, m), values in zip(groups, loaded, strict=True):
                write(w.i64(first), m, values)
            return
        full = 0
        while full < len(groups) and groups[full] == (full * size, None):
            full += 1
        w.times(w.i64(full * size), lambda first: write(first, None, read(first, None)), step=size)
        for first, m in groups[full:]:
            write(w.i64(first), m, read(w.i64(first), m))

    w.times(repeats, row)


def _group(w: Writer, lanes: Lanes, operands: Sequence[Operand]) -> int:
    """Lanes per group: those of a block, or of a register if blocks are contiguous."""
    block = min(o.each for o in operands)
    if not all(o.dense for o in operands):
        return block
    return min(max(block, w.b.machine.lanes(32)), lanes.width, 64)


def _arithmetic(w: Writer, op: str, x: Value, y: Value, dtype: str) -> Value:
    """An operation, rounded to the type."""
    if not DTYPES[dtype].is_float:
        if op == "div":
            raise NotNative("a division of whole numbers")
        return integers.apply_binary(w.b, {"and": "bitand", "or": "bitor"}.get(op, op), x, y, DTYPES[dtype])
    if op in ("and", "or"):
        raise NotNative("bits of numbers that are not whole")
    plain = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
    made = w.b.op(plain[op], x, y) if op in plain else vector_math.apply_binary(w.b, op, x, y)
    return convert.rounded(w.b, made, dtype)


def _function(w: Writer, op: str, x: Value, dtype: str) -> Value:
    b = w.b
    if not DTYPES[dtype].is_float:
        if op not in ("abs", "relu", "not"):
            raise NotNative(f"{op} of whole numbers")
        return integers.apply_unary(b, op, x, DTYPES[dtype])
    if op == "not":
        raise NotNative("bits of numbers that are not whole")
    if op == "rec":
        return _arithmetic(w, "div", b.like(x, 1.0), x, dtype)
    if op == "rsqrt":
        wide = convert.to_dtype(b, x, dtype, "float64")
        made = b.fdiv(b.like(wide, 1.0), b.intrinsic("sqrt", wide))
        return convert.to_dtype(b, made, "float64", dtype)
    return convert.rounded(b, vector_math.apply_unary(b, {"ln": "log"}.get(op, op), x), dtype)


def _same_types(*tensors: Any) -> str:
    kinds = {t.dtype for t in tensors if isinstance(t, Tensor)}
    if len(kinds) != 1 or not all(isinstance(t, Tensor) for t in tensors):
        raise NotNative("operands of different types")
    return str(kinds.pop())


def _binary(name: str) -> Callable[..., None]:
    def write(w: Writer, mask: Any, dst: Any, src0: Any, src1: Any, repeat_times: Any, *, dst_blk_stride: Any = 1,
              src0_blk_stride: Any = 1, src1_blk_stride: Any = 1, dst_rep_stride: Any, src0_rep_stride: Any,
              src1_rep_stride: Any, mask_mode: str = "normal") -> None:  # fmt: skip
        dtype = _same_types(dst, src0, src1)
        operands = [(dst, dst_blk_stride, dst_rep_stride), (src0, src0_blk_stride, src0_rep_stride),
                    (src1, src1_blk_stride, src1_rep_stride)]  # fmt: skip
        for part, times, (into, *sources) in _parts(mask, repeat_times, mask_mode, dtype, operands):
            _apply(w, part, times, into, sources, lambda w, x: _arithmetic(w, name, x[0], x[1], dtype))

    return write


def _parts(
    mask: Any, repeats: Any, mode: str, dtype: str, operands: Sequence[Any]
) -> Iterator[tuple[Any, Any, Any]]:
    """Split an instruction into (mask, repeats, operands) like the interpreter."""
    if mode != "normal" and not isinstance(mask, int):
        raise NotNative("the counter mode with a number that only the run knows")
    for part, times, at in counted(lambda: int(mask), mask, repeats, mode, dtype):
        yield part, times, [(_ahead(tensor, at, rows), blocks, rows) for tensor, blocks, rows in operands]


_PRODUCTS: dict[str, Callable[[Writer, list[Value], str], Value]] = {
    "mla": lambda w, x, t: _arithmetic(w, "add", x[0], _arithmetic(w, "mul", x[1], x[2], t), t),
    "madd": lambda w, x, t: _arithmetic(w, "add", _arithmetic(w, "mul", x[1], x[0], t), x[2], t),
    "maddrelu": lambda w, x, t: _function(w, "relu", _PRODUCTS["madd"](w, x, t), t),
}


def _three(name: str) -> Callable[..., None]:
    def write(w: Writer, mask: Any, dst: Any, src0: Any, src1: Any, repeat_times: Any, dst_blk_stride: Any,
              src0_blk_stride: Any, src1_blk_stride: Any, dst_rep_stride: Any, src0_rep_stride: Any,
              src1_rep_stride: Any) -> None:  # fmt: skip
        dtype = _same_types(dst, src0, src1)
        sources = [(src0, src0_blk_stride, src0_rep_stride), (src1, src1_blk_stride, src1_rep_stride)]
        _apply(w, mask, repeat_times, (dst, dst_blk_stride, dst_rep_stride), sources,
               lambda w, x: _PRODUCTS[name](w, x, dtype), True)  # fmt: skip

    return write


def _unary(name: str) -> Callable[..., None]:
    def write(w: Writer, mask: Any, dst: Any, src: Any, repeat_times: Any, *, dst_blk_stride: Any = 1,
              src_blk_stride: Any = 1, dst_rep_stride: Any, src_rep_stride: Any,
              work_tensor: Any = None) -> None:  # fmt: skip
        dtype = _same_types(dst, src)
        _apply(w, mask, repeat_times, (dst, dst_blk_stride, dst_rep_stride),
               [(src, src_blk_stride, src_rep_stride)], lambda w, x: _function(w, name, x[0], dtype))  # fmt: skip

    return write


def _scalar(name: str) -> Callable[..., None]:
    def write(w: Writer, mask: Any, dst: Any, src: Any, scalar: Any, repeat_times: Any, *, dst_blk_stride: Any = 1,
              src_blk_stride: Any = 1, dst_rep_stride: Any, src_rep_stride: Any,
              mask_mode: str = "normal") -> None:  # fmt: skip
        dtype = _same_types(dst, src)
        number = w.in_type(scalar, dtype)
        operands = [(dst, dst_blk_stride, dst_rep_stride), (src, src_blk_stride, src_rep_stride)]
        for part, times, (into, source) in _parts(mask, repeat_times, mask_mode, dtype, operands):
            _apply(w, part, times, into, [source],
                   lambda w, x: _arithmetic(w, name, x[0], w.b.splat(number, x[0].lanes), dtype))  # fmt: skip

    return write


def _axpy(w: Writer, mask: Any, dst: Any, src: Any, scalar: Any, repeat_times: Any, *, dst_blk_stride: Any = 1,
          src_blk_stride: Any = 1, dst_rep_stride: Any, src_rep_stride: Any) -> None:  # fmt: skip
    number = w.in_type(scalar, src.dtype)

    def function(w: Writer, x: list[Value]) -> Value:
        product = _arithmetic(w, "mul", x[1], w.b.splat(number, x[1].lanes), src.dtype)
        return _arithmetic(w, "add", x[0], convert.to_dtype(w.b, product, src.dtype, dst.dtype), dst.dtype)

    _apply(w, mask, repeat_times, (dst, dst_blk_stride, dst_rep_stride), [(src, src_blk_stride, src_rep_stride)],
           function, True)  # fmt: skip


def _dup(w: Writer, mask: Any, dst: Any, scalar: Any, repeat_times: Any, *, dst_blk_stride: Any = 1,
         dst_rep_stride: Any) -> None:  # fmt: skip
    number = w.in_type(scalar, dst.dtype)
    _apply(w, mask, repeat_times, (dst, dst_blk_stride, dst_rep_stride), [], lambda w, x: number)


# -- conversions -------------------------------------------------------------------------------------------------

_ROUNDINGS = {"": "round", "none": "round", "round": "round", "floor": "floor", "ceil": "ceil", "ceiling": "ceil",
              "to-zero": "trunc"}  # fmt: skip


def _conv(w: Writer, mask: Any, round_mode: str, dst: Any, src: Any, repeat_times: Any, *, dst_blk_stride: Any = 1,
          src_blk_stride: Any = 1, dst_rep_stride: Any, src_rep_stride: Any, deqscale: Any = None,
          ldst_high_half: bool = False) -> None:  # fmt: skip
    if ldst_high_half or deqscale is not None or (round_mode not in _ROUNDINGS and round_mode != "away-zero"):
        raise NotNative(f"conversions with {round_mode!r}, a scale or halves")
    _apply(w, mask, repeat_times, (dst, dst_blk_stride, dst_rep_stride), [(src, src_blk_stride, src_rep_stride)],
           lambda w, x: _converted(w, x[0], src.dtype, dst.dtype, round_mode))  # fmt: skip


def _converted(w: Writer, x: Value, source: str, target: str, mode: str) -> Value:
    b, old, new = w.b, DTYPES[source], DTYPES[target]
    if new.is_float:
        return convert.to_dtype(b, x, source, target)
    if old.is_float:
        if mode == "away-zero":
            x = convert.to_dtype(b, x, source, "float64")
            half = b.intrinsic("copysign", b.like(x, 0.5), x)
            return convert.to_dtype(b, b.intrinsic("trunc", b.fadd(x, half)), "float64", target)
        return convert.to_dtype(b, vector_math.apply_unary(b, _ROUNDINGS[mode], x), source, target)
    wide = convert.to_dtype(b, x, source, "int64")
    low, high = b.like(wide, int(new.min)), b.like(wide, int(min(new.max, 2**63 - 1)))
    return convert.to_dtype(b, b.intrinsic("smin", b.intrinsic("smax", wide, low), high), "int64", target)


# -- comparisons -------------------------------------------------------------------------------------------------


def _bits_place(w: Writer, tensor: Any, count: Value) -> Value:
    """Address of a tensor's bits; checks that there are `count` bytes."""
    size = DTYPES[tensor.dtype].size
    start = w.start(tensor)
    end = w.b.op("add", w.b.op("mul", start, w.i64(size)), count)
    w.require(w.b.icmp("sge", start, w.i64(0)))
    w.require(w.b.icmp("sle", end, w.i64(tensor.memory.nbytes)))
    return w.address(tensor, start)


def _compare(name: str) -> Callable[..., None]:
    def write(w: Writer, dst: Any, src0: Any, src1: Any, repeat_times: Any, src0_rep_stride: Any,
              src1_rep_stride: Any) -> None:  # fmt: skip
        dtype = _same_types(src0, src1)
        if dst.memory in (src0.memory, src1.memory):
            raise NotNative("a comparison into its own operand")
        repeats, b = w.whole(repeat_times, 0, MOST_REPEATS), w.b
        width = _width(dtype)
        lanes = Lanes(width, tuple(range(width)))
        sources = [
            Operand(w, s, 1, rows, lanes, repeats)
            for s, rows in ((src0, src0_rep_stride), (src1, src1_rep_stride))
        ]
        size = _group(w, lanes, sources)
        place = _bits_place(w, dst, b.op("mul", repeats, w.i64(width // 8)))

        def row(r: Value) -> None:
            for first in range(0, width, size):
                x, y = (s.load(r, w.i64(first), size, None) for s in sources)
                holds = (vector_math.apply_binary(b, name, x, y) if DTYPES[dtype].is_float
                         else integers.apply_binary(b, name, x, y, DTYPES[dtype]))  # fmt: skip
                bits = b.emit(f"bitcast {holds.ty} {holds.name} to i{size}", f"i{size}", 1)
                at = b.op("add", b.op("mul", r, w.i64(width // 8)), w.i64(first // 8))
                b.store(bits, b.gep("i8", place, at), 1)

        w.times(repeats, row)

    return write


def _select(w: Writer, mask: Any, mode: Any, dst: Any, sel: Any, src0: Any, src1: Any, repeat_times: Any, *,
            dst_blk_stride: Any = 1, src0_blk_stride: Any = 1, src1_blk_stride: Any = 1, dst_rep_stride: Any = 0,
            src0_rep_stride: Any = 0, src1_rep_stride: Any = 0) -> None:  # fmt: skip
    if mode not in (0, 1, 2) or sel.memory is dst.memory:
        raise NotNative("a selection by a mode that is not known, or into its own bits")
    b, repeats, width = w.b, w.whole(repeat_times, 0, MOST_REPEATS), _width(dst.dtype)
    lanes = _lanes(w, mask, width)
    step = 0 if mode == 0 else width // 8
    place = _bits_place(w, sel, w.i64(width // 8) if mode == 0 else b.op("mul", repeats, w.i64(step)))
    target = Operand(w, dst, dst_blk_stride, dst_rep_stride, lanes, repeats)
    sources = [Operand(w, src0, src0_blk_stride, src0_rep_stride, lanes, repeats)]
    if isinstance(src1, Tensor) and mode != 1:
        sources.append(Operand(w, src1, src1_blk_stride, src1_rep_stride, lanes, repeats))
        number = None
    else:
        number = w.in_type(src1, dst.dtype)
    _same_types(dst, *(s.tensor for s in sources))
    if not all(_aside(target, s) for s in sources):
        raise NotNative("a selection into a part of its operands")
    size = _group(w, lanes, [target, *sources])

    def row(r: Value) -> None:
        for first in range(0, width, size):
            m = lanes.mask(w, first, size)
            if isinstance(m, bool):
                continue
            at = b.op("add", b.op("mul", r, w.i64(step)), w.i64(first // 8))
            bits = b.load(f"i{size}", 1, b.gep("i8", place, at), 1)
            chosen = b.emit(f"bitcast i{size} {bits.name} to <{size} x i1>", "i1", size)
            values = [s.load(r, w.i64(first), size, m) for s in sources]
            other = b.splat(number, size) if number is not None else values[1]
            w.store(b.select(chosen, values[0], other), target.at(r, w.i64(first)), dst.dtype, m)

    w.times(repeats, row)


# -- reductions --------------------------------------------------------------------------------------------------


def _tree(w: Writer, values: list[Value], op: str, dtype: str) -> Value:
    """Pairwise reduction to one value."""
    joined = []
    for x in values:
        while x.lanes > 1:
            even, odd = (w.b.shuffle(x, None, range(k, x.lanes, 2)) for k in (0, 1))
            x = _arithmetic(w, op, even, odd, dtype)
        joined.append(x)
    while len(joined) > 1:
        joined = [_arithmetic(w, op, a, b, dtype) for a, b in zip(joined[::2], joined[1::2], strict=True)]
    return joined[0]


def _row_sum(w: Writer, src: Operand, lanes: Lanes, r: Value) -> Value:
    """Sum of the lanes of a repeat."""
    if not lanes.prefix:
        raise NotNative("a sum of lanes that are not the first ones")
    size = _group(w, lanes, [src])
    zero = w.b.const(convert.register_type(src.dtype), size, 0)
    values = []
    for first in range(0, lanes.width, size):
        m = lanes.mask(w, first, size)
        if isinstance(m, bool):  # no lane selected
            values.append(zero)
            continue
        x = src.load(r, w.i64(first), size, m)
        values.append(x if m is None else w.b.select(m, x, zero))
    return _tree(w, values, "add", src.dtype)


def _results(w: Writer, dst: Any, count: Value, step: Value, each: int) -> Callable[[Value, int], Value]:
    """Destination of the repeats' results: `each` elements every `step` elements."""
    start = w.start(dst)
    last = w.b.op("add", w.b.op("mul", w.b.op("sub", count, w.i64(1)), step), w.i64(each))
    w.require(w.b.icmp("sge", start, w.i64(0)))
    w.require(w.b.icmp("sle", w.b.op("add", start, last), w.i64(w.count(dst))))
    return lambda r, n: w.address(dst, w.b.op("add", w.b.op("add", start, w.b.op("mul", r, step)), w.i64(n)))


def _reduced(
    w: Writer, mask: Any, dst: Any, src: Any, repeat_times: Any, src_blk_stride: Any, src_rep_stride: Any
) -> tuple[Value, str, Lanes, Operand]:
    """The repeats of a reduction, its type, its lanes and what it reads, which it must not write to."""
    repeats, dtype = w.whole(repeat_times, 1, MOST_REPEATS), _same_types(dst, src)
    if dst.memory is src.memory:
        raise NotNative("a reduction into its own operand")
    lanes = _lanes(w, mask, _width(dtype))
    return repeats, dtype, lanes, Operand(w, src, src_blk_stride, src_rep_stride, lanes, repeats)


def _sums(w: Writer, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_blk_stride: Any,
          src_rep_stride: Any) -> None:  # fmt: skip
    """The sum of each repeat."""
    repeats, dtype, lanes, source = _reduced(w, mask, dst, src, repeat_times, src_blk_stride, src_rep_stride)
    place = _results(w, dst, repeats, w.whole(dst_rep_stride, 0, MOST_STRIDE), 1)
    w.times(repeats, lambda r: w.store(_row_sum(w, source, lanes, r), place(r, 0), dtype))


def _sum_of_all(w: Writer, mask: Any, dst: Any, src: Any, work_tensor: Any, repeat_times: Any,
                src_rep_stride: Any) -> None:  # fmt: skip
    """Sum of all repeats: first of each, then pairwise among them."""
    b, repeats, dtype = w.b, w.whole(repeat_times, 1, 4095), _same_types(dst, src)
    lanes = _lanes(w, mask, _width(dtype))
    source = Operand(w, src, 1, src_rep_stride, lanes, repeats)
    elem = convert.register_type(dtype)
    room = w.room(elem, 4096)
    size = DTYPES["float32" if elem == "float" else dtype].size
    w.times(repeats, lambda r: b.store(_row_sum(w, source, lanes, r), b.gep(elem, room, r), size))

    def level(_: Value, carried: list[Value]) -> list[Value]:
        (count,) = carried
        half = b.op("lshr", b.op("add", count, w.i64(1)), w.i64(1))

        def pair(i: Value) -> None:
            left = b.op("mul", i, w.i64(2))
            right = b.op("add", left, w.i64(1))
            x = b.load(elem, 1, b.gep(elem, room, left), size)
            y = b.load(elem, 1, b.gep(elem, room, right), size)
            y = b.select(b.icmp("slt", right, count), y, b.like(y, 0))
            b.store(_arithmetic(w, "add", x, y, dtype), b.gep(elem, room, i), size)

        w.times(half, pair)
        return [half]

    b.loop(w.i64(0), w.i64(12), 1, [repeats], level)
    place = _results(w, dst, w.i64(1), w.i64(0), 1)
    w.store(b.load(elem, 1, room, size), place(w.i64(0), 0), dtype)


def _better(w: Writer, name: str, x: Value, best: Value, dtype: str) -> Value:
    """True if a value replaces the current extremum; NaN always does."""
    b, relation = w.b, "gt" if name == "max" else "lt"
    if not DTYPES[dtype].is_float:
        return integers.apply_binary(b, relation, x, best, DTYPES[dtype])
    new = b.op("and", b.fcmp("uno", x, x), b.fcmp("ord", best, best))
    return b.op("or", b.fcmp(f"o{relation}", x, best), new)


def _best_lane(
    w: Writer, name: str, src: Operand, lanes: Lanes, r: Value, before: list[Value]
) -> list[Value]:
    """Extremum of a repeat and its index, starting from the previous ones ([] for none)."""
    if not lanes.prefix:
        raise NotNative("an extreme of lanes that are not the first ones")
    b = w.b
    count = w.i64(len(lanes.known)) if lanes.known is not None else lanes.count
    assert count is not None
    base = b.op("mul", r, w.i64(lanes.width)) if before else w.i64(0)
    start = before or [src.load(r, w.i64(0), 1, None), base]

    def turn(lane: Value, carried: list[Value]) -> list[Value]:
        x = src.load(r, lane, 1, None)
        take = _better(w, name, x, carried[0], src.dtype)
        return [b.select(take, x, carried[0]), b.select(take, b.op("add", base, lane), carried[1])]

    return b.loop(w.i64(0), count, 1, start, turn)


def _store_pair(
    w: Writer, pair: list[Value], dst: Any, place: Callable[[Value, int], Value], r: Value, both: bool
) -> None:
    w.store(pair[0], place(r, 0), dst.dtype)
    if both:
        bits = DTYPES[dst.dtype].bits
        w.b.store(w.b.convert("trunc", pair[1], f"i{bits}"), place(r, 1), bits // 8)


def _extremes(name: str) -> Callable[..., None]:
    def write(w: Writer, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_blk_stride: Any,
              src_rep_stride: Any) -> None:  # fmt: skip
        repeats, _, lanes, source = _reduced(w, mask, dst, src, repeat_times, src_blk_stride, src_rep_stride)
        step = w.b.op("mul", w.whole(dst_rep_stride, 0, MOST_STRIDE), w.i64(2))
        place = _results(w, dst, repeats, step, 2)
        w.times(
            repeats, lambda r: _store_pair(w, _best_lane(w, name, source, lanes, r, []), dst, place, r, True)
        )

    return write


def _extreme_of_all(name: str) -> Callable[..., None]:
    def write(w: Writer, mask: Any, dst: Any, src: Any, work_tensor: Any, repeat_times: Any, src_rep_stride: Any,
              cal_index: bool = False) -> None:  # fmt: skip
        repeats, dtype = w.whole(repeat_times, 1, 4095), _same_types(dst, src)
        lanes = _lanes(w, mask, _width(dtype))
        source = Operand(w, src, 1, src_rep_stride, lanes, repeats)
        first = [source.load(w.i64(0), w.i64(0), 1, None), w.i64(0)]
        pair = w.b.loop(w.i64(0), repeats, 1, first, lambda r, c: _best_lane(w, name, source, lanes, r, c))
        place = _results(w, dst, w.i64(1), w.i64(0), 2 if cal_index else 1)
        _store_pair(w, pair, dst, place, w.i64(0), bool(cal_index))

    return write


def _by_block(name: str) -> Callable[..., None]:
    def write(w: Writer, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_blk_stride: Any,
              src_rep_stride: Any) -> None:  # fmt: skip
        repeats, dtype = w.whole(repeat_times, 1, MOST_REPEATS), _same_types(dst, src)
        lanes = _lanes(w, mask, _width(dtype))
        source = Operand(w, src, src_blk_stride, src_rep_stride, lanes, repeats)
        if (
            dst.memory is src.memory
            or lanes.known is None
            or len(lanes.known) % source.each
            or not lanes.prefix
        ):
            raise NotNative("results of blocks that are not whole, or into their own operand")
        place = _results(w, dst, repeats, w.b.op("mul", w.whole(dst_rep_stride, 0, MOST_STRIDE), w.i64(8)),
                         len(lanes.known) // source.each)  # fmt: skip

        def row(r: Value) -> None:
            for block in range(len(lanes.known or ()) // source.each):
                x = source.load(r, w.i64(block * source.each), source.each, None)
                w.store(_tree(w, [x], name, dtype), place(r, block), dtype)

        w.times(repeats, row)

    return write


# -- moves -------------------------------------------------------------------------------------------------------


def _data_move(w: Writer, dst: Any, src: Any, sid: Any, nburst: Any, burst: Any, src_stride: Any, dst_stride: Any,
               deqscale: Any = None, **_: Any) -> None:  # fmt: skip
    if isinstance(dst, Tensor) and isinstance(src, Tensor) and "local.L0C" in (dst.scope, src.scope):
        cube_code.out_of_l0c(w, dst, src, nburst, burst, src_stride, dst_stride, deqscale)
        return
    b, dtype = w.b, _same_types(dst, src)
    size, each = DTYPES[dtype].size, BLOCK // DTYPES[dtype].size
    pieces, length = w.whole(nburst, 0, 4095), w.whole(burst, 0, MOST_STRIDE)
    gaps = [w.whole(g, 0, MOST_STRIDE) for g in (src_stride, dst_stride)]
    starts, steps, limits = [], [], []
    for tensor, gap in ((src, gaps[0]), (dst, gaps[1])):
        start = w.start(tensor)
        w.require(b.icmp("sge", start, w.i64(0)))
        if tensor.scope != "global":
            w.require(b.icmp("eq", b.op("and", start, w.i64(each - 1)), w.i64(0)))
        starts.append(start)
        steps.append(b.op("mul", b.op("add", length, gap), w.i64(each)))
        limits.append(w.count(tensor))
    whole = b.op("mul", length, w.i64(each))
    if dst.memory is src.memory:
        raise NotNative("a move within one tensor")

    def piece(number: Value) -> None:
        places = [b.op("add", s, b.op("mul", number, step)) for s, step in zip(starts, steps, strict=True)]
        count = whole
        for tensor, place, limit in zip((src, dst), places, limits, strict=True):
            left = b.op("sub", w.i64(limit), place)
            if tensor.scope == "global":  # the last block may extend past the tensor
                rounded = b.op("and", b.op("add", left, w.i64(each - 1)), w.i64(-each))
                w.require(b.icmp("sle", whole, rounded))
                count = b.intrinsic("smin", count, left)
            else:
                w.require(b.icmp("sle", whole, left))
        source, target = (w.address(t, p) for t, p in zip((src, dst), places, strict=True))
        _move(w, target, source, count, size, dtype, dst.scope == "global")

    w.times(pieces, piece)


def _move(
    w: Writer, target: Value, source: Value, count: Value, size: int, dtype: str, outside: bool
) -> None:
    b = w.b
    if not (outside and w.has_atomic):
        w.copy(target, source, b.op("mul", count, w.i64(size)))
        return
    atomic = b.icmp("ne", b.emit(f"load i64, ptr {w.atomic.name}", "i64", 1), w.i64(0))

    def add(i: Value) -> None:
        places = [b.gep(f"i{size * 8}", p, i) for p in (target, source)]
        x, y = (w.load(p, dtype) for p in places)
        w.store(_arithmetic(w, "add", x, y, dtype), places[0], dtype)

    b.when(atomic, lambda: w.times(count, add))
    plain = b.op("xor", atomic, b.const("i1", 1, True))
    b.when(plain, lambda: w.copy(target, source, b.op("mul", count, w.i64(size))))


def _set_atomic_add(w: Writer, data_type: Any) -> None:
    w.b.line(f"store i64 {int(data_type not in (0, None, 'none'))}, ptr {w.atomic.name}")


def _transpose(
    w: Writer, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_rep_stride: Any
) -> None:
    if dst.memory is src.memory or DTYPES[_same_types(dst, src)].size != 2:
        raise NotNative("a transposition into its own operand, or of other sizes")
    b, repeats = w.b, w.whole(repeat_times, 1, MOST_REPEATS)
    places = []
    for tensor, stride in ((src, src_rep_stride), (dst, dst_rep_stride)):
        step = b.op("mul", w.whole(stride, 0, 4095), w.i64(256))
        places.append(_results(w, tensor, repeats, step, 256))

    def block(r: Value) -> None:
        source, target = (place(r, 0) for place in places)

        def element(at: Value) -> None:
            row, column = b.op("lshr", at, w.i64(4)), b.op("and", at, w.i64(15))
            x = b.load("i16", 1, b.gep("i16", source, at), 2)
            b.store(x, b.gep("i16", target, b.op("add", b.op("mul", column, w.i64(16)), row)), 2)

        w.times(w.i64(256), element)

    w.times(repeats, block)


# -- scalars -----------------------------------------------------------------------------------------------------


def _into_scalar(kind: str) -> Callable[..., None]:
    def write(w: Writer, dst: Any, operands: Sequence[Any] = ()) -> None:
        w.assign(dst, *w.number(Expression(kind, tuple(operands))))

    return write


def _nothing(w: Writer, **_: Any) -> None:
    """Has no effect here."""


def _table() -> dict[str, Callable[..., None]]:
    made: dict[str, Callable[..., None]] = {}
    for name in ("add", "sub", "mul", "div", "max", "min", "and", "or"):
        made[f"vec_{name}"] = made[f"v{name}"] = _binary(name)
    for name in ("abs", "exp", "ln", "relu", "rec", "rsqrt", "sqrt", "not"):
        made[f"vec_{name}"] = made[f"v{name}"] = _unary(name)
    for name in ("rec", "rsqrt", "ln"):
        made[f"vec_{name}_high_preci"] = _unary(name)
    for name, op in {"adds": "add", "muls": "mul", "maxs": "max", "mins": "min"}.items():
        made[f"vec_{name}"] = made[f"v{name}"] = _scalar(op)
    for name in _PRODUCTS:
        made[f"v{name}"] = _three(name)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        made[f"vec_cmpv_{name}"] = _compare(name)
    for name in ("max", "min"):
        made[f"vec_reduce_{name}"], made[f"vc{name}"] = _extreme_of_all(name), _extremes(name)
    for name in ("add", "max", "min"):
        made[f"vcg{name}"] = _by_block(name)
    for name, kind in {"max": "max", "min": "min", "abs": "abs", "sqrt": "sqrt", "countbit1": "ones"}.items():
        made[f"scalar_{name}"] = _into_scalar(kind)
    made |= {"vec_axpy": _axpy, "vaxpy": _axpy, "vec_dup": _dup, "vector_dup": _dup, "vec_conv": _conv, "vconv": _conv,
             "vec_sel": _select, "vsel": _select, "vec_reduce_add": _sum_of_all, "vcadd": _sums,
             "data_move": _data_move, "vec_trans": _transpose, "set_atomic_add": _set_atomic_add}  # fmt: skip
    made |= cube_code.INSTRUCTIONS
    return made | dict.fromkeys(("tensor_mov_sync", "pipe_barrier", "set_vector_mask"), _nothing)


INSTRUCTIONS = _table()
