"""Instructions of the cube unit as machine code; sizes are numbers of the file. `tbe.tik.cube` says what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tbe import convert
from tbe.dtypes import DTYPES
from tbe.ir import Value
from tbe.tik.cube import BLOCK, QUANTISED, TILE, rounded_up, sums_of
from tbe.tik.expression import TikError
from tbe.tik.fractals import FRACTAL, LOADS, MATRIX, OUT_OF_L0C, Window
from tbe.tik.native import NotNative, Writer
from tbe.tik.tensor import Tensor

__all__ = ["INSTRUCTIONS", "out_of_l0c"]


def _numbers(*values: Any) -> None:
    if not all(isinstance(v, int | np.integer) for v in values):
        raise NotNative("sizes of the cube unit that the program computes")


def _tensors(*values: Any) -> None:
    if not all(isinstance(v, Tensor) for v in values):
        raise NotNative("an operand that is not a tensor")


def _region(w: Writer, tensor: Tensor, count: int, *scopes: str) -> Value:
    """Where an operand begins; `count` elements from there on are its."""
    if tensor.scope not in scopes:
        raise NotNative(f"an operand in {tensor.scope}")
    start = w.start(tensor)
    w.require(w.b.icmp("sge", start, w.i64(0)))
    w.require(w.b.icmp("sle", start, w.i64(w.count(tensor) - count)))
    return start


def _at(w: Writer, tensor: Tensor, start: Value, *terms: tuple[Value, int]) -> Value:
    """The address of the element at start + the sum of index times stride."""
    place = start
    for index, stride in terms:
        place = w.b.op("add", place, w.b.op("mul", index, w.i64(stride)))
    return w.address(tensor, place)


def _total(w: Writer, x: Value) -> Value:
    """The sum of the lanes, in pairs."""
    lanes = [w.b.extract(x, lane) for lane in range(x.lanes)]
    while len(lanes) > 1:
        lanes = [_added(w, a, b) for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
    return lanes[0]


def _added(w: Writer, a: Value, b: Value) -> Value:
    return w.b.fadd(a, b) if a.elem == "float" else w.b.op("add", a, b)


def _matmul(w: Writer, dst: Any, a: Any, b: Any, m: Any, k: Any, n: Any, init_l1out: Any = True,
            bias: Any = None) -> None:  # fmt: skip
    _tensors(dst, a, b)
    _numbers(m, k, n)
    if bias is not None or not isinstance(init_l1out, bool | int):
        raise NotNative("a product with a bias")
    if not (1 <= m <= 4096 and 1 <= n <= 4096 and 1 <= k <= (32768 if DTYPES[a.dtype].size == 1 else 16384)):
        raise NotNative("a product of these sizes")
    tall = rounded_up(m)
    sizes, each = (int(m), int(k), int(n)), BLOCK // DTYPES[a.dtype].size
    scopes = ("local.L1", "local.L1", "local.L1_out_buffer")
    _product(w, dst, a, b, sizes, scopes, bool(init_l1out),
             lambda block, row: ((block, tall * each), (row, each)))  # fmt: skip


def _mmad(w: Writer, dst: Any, a: Any, b: Any, m: Any, k: Any, n: Any, is_bias: Any, **others: Any) -> None:
    _tensors(dst, a, b)
    _numbers(m, k, n, is_bias)
    if any(others.values()) or not all(1 <= size <= 4095 for size in (m, k, n)):
        raise NotNative("mmad of this form")
    each = BLOCK // DTYPES[a.dtype].size
    blocks = -(-int(k) // each)

    def left(block: Value, row: Value) -> Sequence[tuple[Value, int]]:
        if m == 1:
            return ((block, each),)
        tile, line = w.b.op("lshr", row, w.i64(4)), w.b.op("and", row, w.i64(15))
        return (tile, blocks * TILE * each), (block, TILE * each), (line, each)

    _product(
        w, dst, a, b, (int(m), int(k), int(n)), ("local.L0A", "local.L0B", "local.L0C"), not is_bias, left
    )


def _product(w: Writer, dst: Tensor, a: Tensor, b: Tensor, sizes: tuple[int, int, int], scopes: Sequence[str],
             begin: bool, left_place: Callable[[Value, Value], Sequence[tuple[Value, int]]]) -> None:  # fmt: skip
    """dst = a b or dst + a b; `left_place` says where a block of a row of a is."""
    m, k, n = sizes
    kind = sums_of(a, b, dst)
    if kind is None:
        raise NotNative("a product of these types")
    each, tall, broad = BLOCK // DTYPES[a.dtype].size, rounded_up(m), rounded_up(n)
    blocks, whole = -(-k // each), k // each
    single = scopes[0] == "local.L0A" and m == 1
    left = _region(w, a, blocks * each if single else blocks * tall * each, scopes[0])
    right = _region(w, b, blocks * broad * each, scopes[1])
    into = _region(w, dst, tall * broad, scopes[2])
    elem = "float" if kind == "float32" else "i32"

    def products(block: Value, row: Value, column: Value) -> Value:
        x = w.load(_at(w, a, left, *left_place(block, row)), a.dtype, each)
        y = w.load(_at(w, b, right, (block, broad * each), (column, each)), b.dtype, each)
        if elem == "float":
            return w.b.fmul(x, y)
        x, y = (w.b.convert("zext" if t.dtype == "uint8" else "sext", v, "i32") for t, v in ((a, x), (b, y)))
        return w.b.op("mul", x, y)

    def element(row: Value, column: Value) -> Value:
        sums = w.b.const(elem, each, 0)

        def turn(block: Value, carried: list[Value]) -> Sequence[Value]:
            return [_added(w, carried[0], products(block, row, column))]

        if whole:
            (sums,) = w.b.loop(w.i64(0), w.i64(whole), 1, [sums], turn)
        if k % each:
            last = products(w.i64(whole), row, column)
            valid = w.b.vector("i1", [lane < k % each for lane in range(each)])
            sums = _added(w, sums, w.b.select(valid, last, w.b.const(elem, each, 0)))
        return _total(w, sums)

    def each_column(row: Value, column: Value, value: Callable[[], Value]) -> None:
        block, lane = w.b.op("lshr", column, w.i64(4)), w.b.op("and", column, w.i64(15))
        place = _at(w, dst, into, (block, tall * TILE), (row, TILE), (lane, 1))
        new = value()
        new = new if begin else _added(w, w.load(place, dst.dtype), new)
        w.store(convert.rounded(w.b, new, dst.dtype), place, dst.dtype)

    def each_row(row: Value) -> None:
        w.times(w.i64(n), lambda column: each_column(row, column, lambda: element(row, column)))
        if begin and broad > n:
            zero = w.b.const(elem, 1, 0)
            w.times(w.i64(broad - n), lambda i: each_column(row, w.b.op("add", i, w.i64(n)), lambda: zero))

    w.times(w.i64(m), each_row)


def _load2d(w: Writer, dst: Any, src: Any, index: Any, repeat_times: Any, src_stride: Any, sid: Any = 0,
            if_transpose: Any = False, addr_mode: Any = None, dst_gap: Any = 0) -> None:  # fmt: skip
    _tensors(dst, src)
    b, size = w.b, DTYPES[src.dtype].size
    if dst.dtype != src.dtype or dst.scope not in LOADS.get(src.scope, ()) or dst.memory is src.memory:
        raise NotNative("fractals of these types or places")
    if (
        addr_mode not in (None, "inc", 0)
        or not isinstance(if_transpose, bool | int)
        or (if_transpose and size != 2)
    ):
        raise NotNative("fractals in this order")
    each = FRACTAL // size
    first, repeats = w.whole(index, 0, 65535), w.whole(repeat_times, 1, 255)
    steps = w.whole(src_stride, 0, 65535), b.op("add", w.whole(dst_gap, 0, 65535), w.i64(1))
    last = b.op("sub", repeats, w.i64(1))
    starts = []
    for tensor, number, step in ((src, first, steps[0]), (dst, w.i64(0), steps[1])):
        start = w.start(tensor)
        w.require(b.icmp("sge", start, w.i64(0)))
        start = b.op("add", start, b.op("mul", number, w.i64(each)))
        end = b.op("add", start, b.op("mul", b.op("mul", last, step), w.i64(each)))
        w.require(b.icmp("sle", end, w.i64(w.count(tensor) - each)))
        starts.append(start)

    def fractal(repeat: Value) -> None:
        places = [
            w.address(t, b.op("add", start, b.op("mul", b.op("mul", repeat, step), w.i64(each))))
            for t, start, step in zip((src, dst), starts, steps, strict=True)
        ]
        if not if_transpose:
            w.copy(places[1], places[0], w.i64(FRACTAL))
            return
        for row in range(TILE):
            x = b.load("i16", TILE, b.gep("i16", places[0], w.i64(row * TILE)), 2)
            for column in range(TILE):
                b.store(b.extract(x, column), b.gep("i16", places[1], w.i64(column * TILE + row)), 2)

    w.times(repeats, fractal)


def out_of_l0c(w: Writer, dst: Tensor, src: Tensor, nburst: Any, burst: Any, src_stride: Any, dst_stride: Any,
               deqscale: Any = None, relu: Any = False) -> None:  # fmt: skip
    """Move fractals between L0C and the Unified Buffer, converted on the way out."""
    b = w.b
    inner = dst if dst.scope == "local.UB" else src
    if inner.scope != "local.UB" or (src.dtype, dst.dtype) not in OUT_OF_L0C or dst.memory is src.memory:
        raise NotNative("a move of L0C of these types")
    if (dst is not inner and dst.dtype != src.dtype) or (src.dtype, dst.dtype) == ("int32", "float16"):
        raise NotNative("a move of L0C with a factor")
    pieces, length = w.whole(nburst, 1, 4095), b.op("mul", w.whole(burst, 1, 65535), w.i64(MATRIX))
    steps, starts = [], []
    for tensor, gap in ((src, src_stride), (dst, dst_stride)):
        unit = MATRIX if tensor.scope == "local.L0C" else BLOCK // DTYPES[inner.dtype].size
        step = b.op("add", length, b.op("mul", w.whole(gap, 0, 65535), w.i64(unit)))
        start = w.start(tensor)
        w.require(b.icmp("sge", start, w.i64(0)))
        end = b.op("add", start, b.op("mul", b.op("sub", pieces, w.i64(1)), step))
        w.require(b.icmp("sle", b.op("add", end, length), w.i64(w.count(tensor))))
        steps.append(step)
        starts.append(start)

    def tile(piece: Value, at: Value) -> None:
        places = [
            w.address(t, b.op("add", b.op("add", start, b.op("mul", piece, step)), at))
            for t, start, step in zip((src, dst), starts, steps, strict=True)
        ]
        x = convert.rounded(b, w.load(places[0], src.dtype, TILE), dst.dtype)
        w.store(_positive(w, x) if relu else x, places[1], dst.dtype)

    w.times(pieces, lambda piece: w.times(length, lambda at: tile(piece, at), TILE))


def _tensor_mov(w: Writer, dst: Any, src: Any, block_mode: Any, nburst: Any, burst: Any, dst_stride: Any,
                src_stride: Any, deqscale: Any = None, sid_store_mode: Any = 0, relu: Any = False,
                **others: Any) -> None:  # fmt: skip
    _tensors(dst, src)
    if "local.L0C" not in (dst.scope, src.scope) or block_mode != "m" or any(others.values()):
        raise NotNative("tensor_mov of this form")
    out_of_l0c(w, dst, src, nburst, burst, src_stride, dst_stride, deqscale, relu)


def _broadcast(w: Writer, dst: Any, src: Any, nburst: Any, burst: Any, src_gap: Any, dst_gap: Any) -> None:
    _tensors(dst, src)
    _numbers(nburst, burst, src_gap, dst_gap)
    if dst.dtype != src.dtype or not (1 <= nburst <= 255 and 1 <= burst <= 255):
        raise NotNative("broadcast_ub_to_l0c of this form")
    steps = burst * TILE + src_gap * (BLOCK // DTYPES[src.dtype].size), (burst + dst_gap) * MATRIX
    source = _region(w, src, (nburst - 1) * steps[0] + burst * TILE, "local.UB")
    target = _region(w, dst, (nburst - 1) * steps[1] + burst * MATRIX, "local.L0C")

    def fractal(piece: Value, number: Value) -> None:
        x = w.load(_at(w, src, source, (piece, steps[0]), (number, TILE)), src.dtype, TILE)
        w.times(
            w.i64(TILE),
            lambda row: w.store(
                x, _at(w, dst, target, (piece, steps[1]), (number, MATRIX), (row, TILE)), dst.dtype
            ),
        )

    w.times(
        w.i64(int(nburst)), lambda piece: w.times(w.i64(int(burst)), lambda number: fractal(piece, number))
    )


def _positive(w: Writer, x: Value) -> Value:
    """The larger of elements and 0."""
    zero = w.b.like(x, 0)
    below = w.b.fcmp("olt", x, zero) if x.elem == "float" else w.b.icmp("slt", x, zero)
    return w.b.select(below, zero, x)


def _load3d(w: Writer, dst: Any, src: Any, pad: Any, l1_h: Any, l1_w: Any, c1_index: Any, fetch_filter_w: Any,
            fetch_filter_h: Any, left_top_w: Any, left_top_h: Any, stride_w: Any, stride_h: Any, filter_w: Any,
            filter_h: Any, dilation_filter_w: Any, dilation_filter_h: Any, jump_offset: Any, repeat_mode: Any,
            repeat_time: Any, _csize: Any = 0, pad_value: Any = None) -> None:  # fmt: skip
    """Windows by sixteen (`repeat_mode` 1); which element of the filter and where they begin may be computed."""
    _tensors(dst, src)
    b, dtype = w.b, src.dtype
    if not isinstance(pad, list | tuple) or len(pad) != 4:
        raise NotNative("a border of this form")
    fixed = (*pad, l1_h, l1_w, stride_w, stride_h, filter_w, filter_h, dilation_filter_w, dilation_filter_h,
             jump_offset, repeat_mode)  # fmt: skip
    _numbers(*fixed)
    scopes = ("local.L0A", "local.L0B", "local.UB")
    if dst.dtype != dtype or dst.scope not in scopes or repeat_mode != 1 or pad_value not in (None, 0):
        raise NotNative("load3dv1 of this form")
    try:
        window = Window(_Constants(), pad, l1_h, l1_w, stride_w, stride_h, filter_w, filter_h, dilation_filter_w,
                        dilation_filter_h)  # fmt: skip
    except TikError as error:
        raise NotNative(str(error)) from None
    each = BLOCK // DTYPES[dtype].size
    repeats = w.whole(repeat_time, 1, 255)
    row, column = w.whole(fetch_filter_h, 0, filter_h - 1), w.whole(fetch_filter_w, 0, filter_w - 1)
    top, left = w.whole(left_top_h, -255, 32767), w.whole(left_top_w, -255, 32767)
    size = window.height * window.width * each
    source = w.start(src)
    w.require(b.icmp("sge", source, w.i64(0)))
    source = b.op("add", source, b.op("mul", w.whole(c1_index, 0, 4095), w.i64(size)))
    w.require(b.icmp("sle", source, w.i64(w.count(src) - size)))
    target = w.start(dst)
    w.require(b.icmp("sge", target, w.i64(0)))
    step = w.i64(int(jump_offset) * TILE * each)
    end = b.op("add", target, b.op("mul", b.op("sub", repeats, w.i64(1)), step))
    w.require(b.icmp("sle", end, w.i64(w.count(dst) - TILE * each)))
    from_left = b.op("add", left, w.i64(window.left))
    w.require(b.icmp("sge", from_left, w.i64(0)))
    first = b.op("sdiv", from_left, w.i64(window.stride[1]))
    shift = b.op("sub", from_left, b.op("mul", first, w.i64(window.stride[1])))
    down = b.op("add", top, b.op("mul", row, w.i64(window.dilation[0])))
    right = b.op("sub", b.op("mul", column, w.i64(window.dilation[1])), w.i64(window.left))

    def line(repeat: Value, number: Value) -> None:
        place = b.op("add", first, b.op("add", b.op("mul", repeat, w.i64(TILE)), number))
        turn = b.op("sdiv", place, w.i64(window.across))
        own = b.op("sub", place, b.op("mul", turn, w.i64(window.across)))
        begun = b.select(b.icmp("eq", turn, w.i64(0)), shift, w.i64(0))
        y = b.op("add", down, b.op("mul", turn, w.i64(window.stride[0])))
        x = b.op("add", b.op("add", right, begun), b.op("mul", own, w.i64(window.stride[1])))
        inside = b.op("and", b.icmp("ult", y, w.i64(window.height)), b.icmp("ult", x, w.i64(window.width)))
        pixel = b.select(inside, b.op("add", b.op("mul", y, w.i64(window.width)), x), w.i64(0))
        found = b.load("i8", BLOCK, _at(w, src, source, (pixel, each)), 1)
        place = b.op("add", b.op("add", target, b.op("mul", repeat, step)), b.op("mul", number, w.i64(each)))
        b.store(b.select(inside, found, b.const("i8", BLOCK, 0)), w.address(dst, place), 1)

    w.times(repeats, lambda repeat: w.times(w.i64(TILE), lambda number: line(repeat, number)))


class _Constants:
    """Reads numbers of the file as a machine does."""

    @staticmethod
    def whole(value: Any, what: str, least: int, most: int) -> int:
        if not isinstance(value, int | np.integer) or not least <= value <= most:
            raise NotNative(f"{what} of {value!r:.40}")
        return int(value)


def _fixpipe(w: Writer, dst: Any, src: Any, cburst_num: Any, burst_len: Any, dst_stride: Any, src_stride: Any,
             extend_params: Mapping[str, Any] | None = None) -> None:  # fmt: skip
    _tensors(dst, src)
    _numbers(cburst_num, burst_len, dst_stride, src_stride)
    params = dict(extend_params or {})
    quantised = params.get("quantize_params") or {}
    mode, factor, bias = quantised.get("mode"), quantised.get("mode_param"), params.get("bias")
    length = burst_len * BLOCK // DTYPES[src.dtype].size
    fits = (
        (src.dtype, dst.dtype) in QUANTISED and QUANTISED[src.dtype, dst.dtype] == mode and not length % TILE
    )
    if not fits or params.keys() - {"bias", "quantize_params", "relu"}:
        raise NotNative("pieces that are no whole tiles, or these parameters")
    if mode == "int322fp16" and not isinstance(factor, int | float):
        raise NotNative("a factor that is not a number")
    pieces, gap = int(cburst_num), int(dst_stride) * BLOCK // DTYPES[dst.dtype].size
    step = (-(-length // TILE**2) + int(src_stride)) * TILE**2
    source = _region(w, src, step * (pieces - 1) + length, "local.L1_out_buffer")
    target = _region(w, dst, pieces * length + (pieces - 1) * gap, "global", "local.UB")
    added = None
    if bias is not None:
        if not isinstance(bias, Tensor) or bias.dtype != src.dtype:
            raise NotNative("a bias of another type")
        added = (bias, _region(w, bias, pieces * TILE, "local.L1"))

    def tile(piece: Value, at: Value) -> None:
        x = w.load(_at(w, src, source, (piece, step), (at, 1)), src.dtype, TILE)
        if added is not None:
            x = _added(w, x, w.load(_at(w, *added, (piece, TILE)), src.dtype, TILE))
        if mode == "int322fp16":
            x = w.b.convert("sitofp", x, "float")
            x = w.b.fmul(x, w.b.like(x, float(np.float32(np.float16(factor)))))
        x = convert.rounded(w.b, x, dst.dtype)
        if params.get("relu"):
            x = _positive(w, x)
        w.store(x, _at(w, dst, target, (piece, length + gap), (at, 1)), dst.dtype)

    w.times(w.i64(pieces), lambda piece: w.times(w.i64(length), lambda at: tile(piece, at), TILE))


def _trans_scatter(w: Writer, dst_high_half: Any, src_high_half: Any, dst_list: Any, src_list: Any, repeat_times: Any,
                   dst_rep_stride: Any, src_rep_stride: Any, **_: Any) -> None:  # fmt: skip
    lists = (src_list, dst_list)
    for tensors in lists:
        if not isinstance(tensors, list | tuple) or len(tensors) != 16:
            raise NotNative("lists of other than 16 tensors")
        _tensors(*tensors)
    memories = [{t.memory for t in tensors} for tensors in lists]
    kinds = {t.dtype for tensors in lists for t in tensors}
    if memories[0] & memories[1] or len(kinds) > 1 or DTYPES[min(kinds)].size != 2:
        raise NotNative("a transposition into its own operand, or of other sizes")
    _numbers(repeat_times, dst_rep_stride, src_rep_stride)
    steps = [int(s) * 16 for s in (src_rep_stride, dst_rep_stride)]
    starts = [
        [_region(w, t, (int(repeat_times) - 1) * step + 16, "local.UB") for t in tensors]
        for tensors, step in zip(lists, steps, strict=True)
    ]

    def block(repeat: Value) -> None:
        for row, (source, start) in enumerate(zip(src_list, starts[0], strict=True)):
            x = w.b.load("i16", 16, _at(w, source, start, (repeat, steps[0])), 2)
            for column, (target, place) in enumerate(zip(dst_list, starts[1], strict=True)):
                address = _at(w, target, place, (repeat, steps[1]), (w.i64(row), 1))
                w.b.store(w.b.extract(x, column), address, 2)

    w.times(w.i64(int(repeat_times)), block)


INSTRUCTIONS: dict[str, Callable[..., None]] = {
    "matmul": _matmul,
    "mmad": _mmad,
    "load2dv1": _load2d,
    "load2dv2": _load2d,
    "load3dv1": _load3d,
    "tensor_mov": _tensor_mov,
    "broadcast_ub_to_l0c": _broadcast,
    "fixpipe": _fixpipe,
    "vec_trans_scatter": _trans_scatter,
    "vnchwconv": _trans_scatter,
}
