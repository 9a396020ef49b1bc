"""Instructions of the cube unit as machine code; sizes are numbers of the file. `tbe.tik.cube` says what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tbe import convert
from tbe.dtypes import DTYPES
from tbe.ir import Value
from tbe.tik.cube import BLOCK, QUANTISED, SUMS, TILE, rounded_up
from tbe.tik.native import NotNative, Writer
from tbe.tik.tensor import Tensor

__all__ = ["INSTRUCTIONS"]


def _numbers(*values: Any) -> None:
    if not all(isinstance(v, int | np.integer) for v in values):
        raise NotNative("sizes of the cube unit that the program computes")


def _tensors(*values: Any) -> None:
    if not all(isinstance(v, Tensor) for v in values):
        raise NotNative("an operand that is no tensor")


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
    if (
        SUMS.get((a.dtype, b.dtype)) != dst.dtype
        or bias is not None
        or not isinstance(init_l1out, bool | int)
    ):
        raise NotNative("a product of these types, or with a bias")
    if not (1 <= m <= 4096 and 1 <= n <= 4096 and 1 <= k <= (32768 if DTYPES[a.dtype].size == 1 else 16384)):
        raise NotNative("a product of these sizes")
    each, tall, broad = BLOCK // DTYPES[a.dtype].size, rounded_up(m), rounded_up(n)
    blocks, whole = -(-k // each), k // each
    left = _region(w, a, blocks * tall * each, "local.L1")
    right = _region(w, b, blocks * broad * each, "local.L1")
    into = _region(w, dst, tall * broad, "local.L1_out_buffer")
    elem = "float" if dst.dtype == "float32" else "i32"

    def products(block: Value, row: Value, column: Value) -> Value:
        x = w.load(_at(w, a, left, (block, tall * each), (row, each)), a.dtype, each)
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
        w.store(new if init_l1out else _added(w, w.load(place, dst.dtype), new), place, dst.dtype)

    def each_row(row: Value) -> None:
        w.times(w.i64(n), lambda column: each_column(row, column, lambda: element(row, column)))
        if init_l1out and broad > n:
            zero = w.b.const(elem, 1, 0)
            w.times(
                w.i64(broad - n), lambda i: each_column(row, w.b.op("add", i, w.i64(int(n))), lambda: zero)
            )

    w.times(w.i64(m), each_row)


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
        raise NotNative("a factor that is no number")
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
            zero = w.b.like(x, 0)
            below = w.b.fcmp("olt", x, zero) if x.elem == "float" else w.b.icmp("slt", x, zero)
            x = w.b.select(below, zero, x)
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
    "fixpipe": _fixpipe,
    "vec_trans_scatter": _trans_scatter,
    "vnchwconv": _trans_scatter,
}
