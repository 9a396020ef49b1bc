"""Moves of fractals, the tiles of 512 bytes (16 rows of 32 bytes) that the cube unit computes with.

`load2dv1` and `load2dv2` move them from L1 or global memory, `load3dv1` and `load3dv2` gather them from a picture
[C1, H, W, C0] in L1 as rows of a convolution's matrix, `col2img` adds them back. Results leave L0C by `data_move` or
`tensor_mov`, and a bias enters it by `broadcast_ub_to_l0c`; there a fractal is 16 x 16 elements of any type.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tbe.dtypes import DTYPES, numpy_dtype
from tbe.tik.cube import BLOCK, TILE, part
from tbe.tik.expression import TikError
from tbe.tik.machine import Machine
from tbe.tik.tensor import Tensor

__all__ = [
    "FRACTAL",
    "LOADS",
    "MATRIX",
    "OUT_OF_L0C",
    "Window",
    "broadcast_ub_to_l0c",
    "col2img",
    "load2dv1",
    "load2dv2",
    "load3dv1",
    "load3dv2",
    "move_out_of_l0c",
]

FRACTAL = 512  # bytes
MATRIX = TILE * TILE  # elements of a fractal of L0C
LOADS = {  # from a scope to others
    "global": ("local.L1", "local.L0A", "local.L0B"),
    "local.L1": ("local.L0A", "local.L0B"),
}
OUT_OF_L0C = (("float32", "float32"), ("float32", "float16"), ("float16", "float16"), ("int32", "int32"),
              ("int32", "float16"))  # fmt: skip


def _same_type(dst: Any, src: Any) -> str:
    for tensor in (dst, src):
        if not isinstance(tensor, Tensor):
            raise TikError(f"a tensor is needed, not {tensor!r:.60}")
    if dst.dtype != src.dtype:
        raise TikError(f"operands of different types: {dst.name} {dst.dtype}, {src.name} {src.dtype}")
    return str(dst.dtype)


def load2dv1(m: Machine, dst: Any, src: Any, index: Any, repeat_times: Any, src_stride: Any, sid: Any = 0,
             if_transpose: Any = False, addr_mode: Any = None) -> None:  # fmt: skip
    """Load fractals `index`, `index` + `src_stride`, … of the source contiguously, optionally transposing each."""
    load2dv2(m, dst, src, index, repeat_times, 0, src_stride, sid, if_transpose, addr_mode)


def load2dv2(m: Machine, dst: Any, src: Any, index: Any, repeat_times: Any, dst_gap: Any, src_stride: Any,
             sid: Any = 0, if_transpose: Any = False, addr_mode: Any = None) -> None:  # fmt: skip
    """Like load2dv1, with gaps of `dst_gap` fractals in the destination."""
    dtype = _same_type(dst, src)
    if dst.scope not in LOADS.get(src.scope, ()):
        raise TikError(f"no fractals from {src.scope} to {dst.scope}")
    if addr_mode not in (None, "inc", "dec", 0, 1):
        raise TikError(f"addr_mode is {addr_mode!r}, not 'inc' or 'dec'")
    if if_transpose and DTYPES[dtype].size != 2:
        raise TikError(f"fractals of 16 bits are transposed, not of {dtype}")
    each = FRACTAL // DTYPES[dtype].size
    first, repeats = m.whole(index, "index", 0, 65535), m.whole(repeat_times, "repeat_times", 1, 255)
    stride, gap = m.whole(src_stride, "src_stride", 0, 65535), m.whole(dst_gap, "dst_gap", 0, 65535)
    numbers = first + np.arange(repeats) * (-stride if addr_mode in ("dec", 1) else stride)
    lowest, highest = int(np.min(numbers)), int(np.max(numbers))
    if lowest < 0:
        raise TikError(f"fractal {lowest} of {src.name}")
    source = part(m, src, ((highest + 1) * each,), src.scope, "src").reshape(-1, each)
    into = part(m, dst, (repeats * (1 + gap) * each - gap * each,), dst.scope, "dst")
    for repeat, number in enumerate(numbers):
        fractal = source[number]
        start = repeat * (1 + gap) * each
        into[start : start + each] = fractal.reshape(TILE, TILE).T.reshape(-1) if if_transpose else fractal


# -- pictures --------------------------------------------------------------------------------------------------


class Numbers(Protocol):
    """Evaluates integers: a machine, or the constants of the file."""

    def whole(self, value: Any, what: str, least: int, most: int) -> int:
        """Evaluate an integer and check its range."""


class Window:
    """Geometry of a convolution's windows over a picture."""

    def __init__(self, m: Numbers, pad: Any, height: Any, width: Any, stride_w: Any, stride_h: Any, filter_w: Any,
                 filter_h: Any, dilation_w: Any, dilation_h: Any) -> None:  # fmt: skip
        if not isinstance(pad, list | tuple) or len(pad) != 4:
            raise TikError(f"the border is [left, right, top, bottom], not {pad}")
        self.left, self.right, self.top, self.bottom = (m.whole(p, "the border", 0, 255) for p in pad)
        self.height, self.width = m.whole(height, "l1_h", 1, 32767), m.whole(width, "l1_w", 1, 32767)
        self.stride = m.whole(stride_h, "stride_h", 1, 63), m.whole(stride_w, "stride_w", 1, 63)
        self.filter = m.whole(filter_h, "filter_h", 1, 255), m.whole(filter_w, "filter_w", 1, 255)
        self.dilation = m.whole(dilation_h, "dilation_h", 1, 255), m.whole(dilation_w, "dilation_w", 1, 255)
        padded = self.top + self.height + self.bottom, self.left + self.width + self.right
        reach = [(f - 1) * d + 1 for f, d in zip(self.filter, self.dilation, strict=True)]
        if padded[0] < reach[0] or padded[1] < reach[1]:
            raise TikError(f"the filter reaches over {reach}, the picture with its border is {list(padded)}")
        self.across = (padded[1] - reach[1]) // self.stride[1] + 1

    def corners(self, top: int, left: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Corners of `count` consecutive windows, in row-major order of the result."""
        first = (left + self.left) // self.stride[1]
        shift = left + self.left - first * self.stride[1]
        column = np.arange(count) + first
        y = top + column // self.across * self.stride[0]
        x = column % self.across * self.stride[1] - self.left + np.where(column < self.across, shift, 0)
        return y, x

    def places(
        self, corners: tuple[np.ndarray, np.ndarray], element: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pixels that a filter element (row, column) reads in these windows, and a mask of those inside."""
        y = corners[0] + element[0] * self.dilation[0]
        x = corners[1] + element[1] * self.dilation[1]
        inside = (y >= 0) & (y < self.height) & (x >= 0) & (x < self.width)
        return np.where(inside, y * self.width + x, 0), inside


def _picture(m: Machine, src: Tensor, window: Window, block: int, scope: str) -> np.ndarray:
    """The pixels of one channel block."""
    each = BLOCK // DTYPES[src.dtype].size
    size = window.height * window.width * each
    return part(m, src, ((block + 1) * size,), scope, "src")[block * size :].reshape(-1, each)


def _border(m: Machine, value: Any, dtype: str) -> Any:
    return numpy_dtype(dtype).type(0 if value is None else m.number(value))


def load3dv1(m: Machine, dst: Any, src: Any, pad: Any, l1_h: Any, l1_w: Any, c1_index: Any, fetch_filter_w: Any,
             fetch_filter_h: Any, left_top_w: Any, left_top_h: Any, stride_w: Any, stride_h: Any, filter_w: Any,
             filter_h: Any, dilation_filter_w: Any, dilation_filter_h: Any, jump_offset: Any, repeat_mode: Any,
             repeat_time: Any, _csize: Any = 0, pad_value: Any = None) -> None:  # fmt: skip
    """Load fractals of sixteen windows and one filter element each, every `jump_offset` fractals.

    Each repeat advances the filter element along width, height, then channel blocks (`repeat_mode` 0), or advances by
    sixteen windows (1).
    """
    dtype = _same_type(dst, src)
    if dst.scope not in ("local.L0A", "local.L0B", "local.UB"):
        raise TikError(f"load3dv1 writes to L0A, L0B or the Unified Buffer, not {dst.scope}")
    window = Window(m, pad, l1_h, l1_w, stride_w, stride_h, filter_w, filter_h, dilation_filter_w,
                    dilation_filter_h)  # fmt: skip
    repeats, mode = m.whole(repeat_time, "repeat_time", 1, 255), m.whole(repeat_mode, "repeat_mode", 0, 1)
    jump = m.whole(jump_offset, "jump_offset", 0, 127)
    block = m.whole(c1_index, "c1_index", 0, 4095)
    row = m.whole(fetch_filter_h, "fetch_filter_h", 0, window.filter[0] - 1)
    column = m.whole(fetch_filter_w, "fetch_filter_w", 0, window.filter[1] - 1)
    corner = [m.whole(v, "left_top", -255, 32767) for v in (left_top_h, left_top_w)]
    each = FRACTAL // DTYPES[dtype].size
    into = part(m, dst, ((repeats - 1) * jump * each + each,), dst.scope, "dst")
    border = _border(m, pad_value, dtype)
    corners = window.corners(corner[0], corner[1], TILE * (repeats if mode else 1))
    first = (block * window.filter[0] + row) * window.filter[1] + column
    for repeat in range(repeats):
        number = first + (0 if mode else repeat)
        rest, x = divmod(number, window.filter[1])
        part_of, y = divmod(rest, window.filter[0])
        own = slice(repeat * TILE, repeat * TILE + TILE) if mode else slice(None)
        places, inside = window.places((corners[0][own], corners[1][own]), (y, x))
        values = np.where(inside[:, None], _picture(m, src, window, part_of, "local.L1")[places], border)
        into[repeat * jump * each : repeat * jump * each + each] = values.reshape(-1)


def load3dv2(m: Machine, dst: Any, src: Any, pad_list: Any, l1_height: Any, l1_width: Any, channel_size: Any,
             k_extension: Any, m_extension: Any, k_start_pt: Any, m_start_pt: Any, stride_w: Any, stride_h: Any,
             filter_w: Any, filter_h: Any, dilation_filter_w: Any, dilation_filter_h: Any, en_transpose: Any = False,
             en_small_k: Any = False, pad_value: Any = None) -> None:  # fmt: skip
    """Load a part of the matrix windows x (C1, filter rows, filter columns, C0), as fractals [M1, K1, 16, C0]."""
    dtype = _same_type(dst, src)
    if dst.scope != "local.L0A":
        raise TikError(f"load3dv2 writes to L0A here, not {dst.scope}")
    if en_transpose or en_small_k:
        raise TikError("en_transpose and en_small_k are not provided")
    window = Window(m, pad_list, l1_height, l1_width, stride_w, stride_h, filter_w, filter_h, dilation_filter_w,
                    dilation_filter_h)  # fmt: skip
    each = BLOCK // DTYPES[dtype].size
    columns, rows = (
        m.whole(k_extension, "k_extension", 1, 65535),
        m.whole(m_extension, "m_extension", 1, 65535),
    )
    first, top = m.whole(k_start_pt, "k_start_pt", 0, 65535), m.whole(m_start_pt, "m_start_pt", 0, 65535)
    blocks = -(-m.whole(channel_size, "channel_size", 1, 65535) // each)
    size = window.filter[0] * window.filter[1]
    if first % each or columns % each or top % TILE or first + columns > blocks * size * each:
        raise TikError("k_start_pt, k_extension and m_start_pt are multiples of a fractal, within the matrix")
    tiles, wide = -(-rows // TILE), columns // each
    into = part(m, dst, (tiles, wide, TILE, each), dst.scope, "dst")
    down, across = divmod(top, window.across)
    corners = window.corners(
        down * window.stride[0] - window.top, across * window.stride[1] - window.left, tiles * TILE
    )
    border = _border(m, pad_value, dtype)
    for number in range(wide):
        block, element = divmod(first // each + number, size)
        places, inside = window.places(corners, divmod(element, window.filter[1]))
        values = np.where(inside[:, None], _picture(m, src, window, block, "local.L1")[places], border)
        into[:, number] = values.reshape(tiles, TILE, each)


def col2img(m: Machine, dst: Any, src: Any, pad: Any, h: Any, w: Any, fetch_filter_w: Any, fetch_filter_h: Any,
            left_top_w: Any, left_top_h: Any, stride_w: Any, stride_h: Any, filter_w: Any, filter_h: Any,
            dilation_filter_w: Any, dilation_filter_h: Any, repeat_time: Any) -> None:  # fmt: skip
    """Inverse of load3dv1: add fractals of sixteen windows to their pixels; both are in the Unified Buffer."""
    dtype = _same_type(dst, src)
    window = Window(
        m, pad, h, w, stride_w, stride_h, filter_w, filter_h, dilation_filter_w, dilation_filter_h
    )
    repeats = m.whole(repeat_time, "repeat_time", 1, 255)
    row = m.whole(fetch_filter_h, "fetch_filter_h", 0, window.filter[0] - 1)
    column = m.whole(fetch_filter_w, "fetch_filter_w", 0, window.filter[1] - 1)
    corner = [m.whole(v, "left_top", -255, 32767) for v in (left_top_h, left_top_w)]
    each = BLOCK // DTYPES[dtype].size
    rows = part(m, src, (repeats * TILE, each), "local.UB", "src")
    picture = _picture(m, dst, window, 0, "local.UB")
    places, inside = window.places(window.corners(corner[0], corner[1], repeats * TILE), (row, column))
    np.add.at(picture, places[inside], rows[inside])


# -- results ---------------------------------------------------------------------------------------------------


def move_out_of_l0c(m: Machine, dst: Tensor, src: Tensor, nburst: Any, burst: Any, src_stride: Any, dst_stride: Any,
                    factor: Any = None, relu: Any = False) -> None:  # fmt: skip
    """Move `nburst` pieces of `burst` fractals; gaps are fractals in L0C and 32-byte blocks in the Unified Buffer."""
    into, source = (dst, src) if dst.scope == "local.UB" else (src, dst)
    if into.scope != "local.UB" or (source.dtype, into.dtype) not in OUT_OF_L0C:
        raise TikError(f"no way from {src.dtype} in {src.scope} to {dst.dtype} in {dst.scope}")
    if dst is not into and dst.dtype != src.dtype:
        raise TikError(f"{src.name} {src.dtype} enters L0C as {dst.dtype}")
    pieces, length = m.whole(nburst, "nburst", 1, 4095), m.whole(burst, "burst", 1, 65535) * MATRIX
    gaps = [m.whole(g, "a stride", 0, 65535) for g in (src_stride, dst_stride)]
    block = BLOCK // DTYPES[into.dtype].size
    places: list[np.ndarray] = []
    for tensor, gap in zip((src, dst), gaps, strict=True):
        step = length + gap * (MATRIX if tensor.scope == "local.L0C" else block)
        places.append(np.arange(pieces)[:, None] * step + np.arange(length))
    found = part(m, src, (int(places[0].max()) + 1,), src.scope, "src")[places[0]]
    if (src.dtype, dst.dtype) == ("int32", "float16"):
        if factor is None or isinstance(factor, Tensor):
            raise TikError("int32 leaves L0C as float16 with a number as factor")
        found = found.astype(np.float32) * np.float32(np.float16(m.number(factor)))
    with np.errstate(over="ignore"):
        found = found.astype(numpy_dtype(dst.dtype))
    found = np.maximum(found, found.dtype.type(0)) if relu else found
    part(m, dst, (int(places[1].max()) + 1,), dst.scope, "dst")[places[1]] = found


def broadcast_ub_to_l0c(
    m: Machine, dst: Any, src: Any, nburst: Any, burst: Any, src_gap: Any, dst_gap: Any
) -> None:
    """Broadcast sixteen elements to the sixteen rows of a fractal; gaps count blocks of 32 bytes and fractals."""
    dtype = _same_type(dst, src)
    pieces, length = m.whole(nburst, "nburst", 1, 255), m.whole(burst, "burst", 1, 255)
    gaps = m.whole(src_gap, "src_gap", 0, 255), m.whole(dst_gap, "dst_gap", 0, 255)
    rows = _steps(pieces, length * TILE, gaps[0] * (BLOCK // DTYPES[dtype].size))
    found = part(m, src, (int(rows.max()) + 1,), "local.UB", "src")[rows].reshape(-1, 1, TILE)
    into = _steps(pieces, length * MATRIX, gaps[1] * MATRIX)
    values = np.broadcast_to(found, (len(found), TILE, TILE)).reshape(into.shape)
    part(m, dst, (int(into.max()) + 1,), "local.L0C", "dst")[into] = values


def _steps(pieces: int, length: int, gap: int) -> np.ndarray:
    """Indices of elements of pieces separated by gaps."""
    made: np.ndarray = np.arange(pieces)[:, None] * (length + gap) + np.arange(length)
    return made
