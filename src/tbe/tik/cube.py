"""Cube unit instructions: products and convolutions of tiles in L1, and moves of their results.

Operands are in tiles: [K1, M, K0] and [K1, N, K0] for a product, [C1, H, W, C0] and [C1, Kh, Kw, Cout, C0] for a
convolution, with 32 bytes in the last axis. Results are [N1, M, 16] in the output buffer of L1, M a multiple of 16;
`fixpipe` drops the padding rows. Sums of float16 are float32, sums of 8-bit integers int32.
`mmad` works one level below, on L0A [M1, K1, 16, K0], L0B [K1, N1, 16, K0] and L0C [N1, M1, 16, 16]
(`tbe.tik.fractals` moves data into and out of these).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tbe.dtypes import DTYPES, numpy_dtype
from tbe.tik.expression import TikError
from tbe.tik.machine import Machine
from tbe.tik.tensor import Tensor

__all__ = [
    "BLOCK",
    "QUANTISED",
    "SUMS",
    "TILE",
    "conv2d",
    "fixpipe",
    "matmul",
    "mmad",
    "part",
    "reject_options",
    "rounded_up",
    "sums_of",
]

BLOCK, TILE = 32, 16
SUMS = {("float16", "float16"): "float32", ("int8", "int8"): "int32", ("uint8", "int8"): "int32"}
QUANTISED = {
    ("float32", "float32"): None,
    ("float32", "float16"): "fp322fp16",
    ("int32", "int32"): None,
    ("int32", "float16"): "int322fp16",
}


def part(m: Machine, tensor: Any, shape: Sequence[int], scope: str, what: str) -> np.ndarray:
    """A writable view of an operand's elements from its offset on, in a shape."""
    if not isinstance(tensor, Tensor):
        raise TikError(f"{what} has to be a tensor, not {tensor!r:.60}")
    if tensor.scope != scope:
        raise TikError(f"{what} {tensor.name} is in {tensor.scope}, not in {scope}")
    start, count = m.offset(tensor), math.prod(shape)
    elements = m.elements(tensor)
    if not 0 <= start <= len(elements) - count:
        raise TikError(
            f"{what} needs {count} elements {list(shape)} from {start} on, {tensor.name} has {len(elements)}"
        )
    return elements[start : start + count].reshape(tuple(shape))


def sums_of(a: Tensor, b: Tensor, dst: Tensor) -> str | None:
    """The accumulator type of a product of two tensors; float16 only in L0C."""
    wanted = SUMS.get((a.dtype, b.dtype))
    rounded = dst.scope == "local.L0C" and (wanted, dst.dtype) == ("float32", "float16")
    return wanted if wanted == dst.dtype or rounded else None


def _checked_types(dst: Any, a: Any, b: Any) -> np.dtype:
    """Check the types and return the accumulator type."""
    for tensor in (dst, a, b):
        if not isinstance(tensor, Tensor):
            raise TikError(f"a tensor is needed, not {tensor!r:.60}")
    wanted = sums_of(a, b, dst)
    if wanted is None:
        known = ", ".join(f"{x} and {y} to {z}" for (x, y), z in SUMS.items())
        raise TikError(f"no product of {a.dtype} and {b.dtype} to {dst.dtype}; there are {known}")
    return numpy_dtype(wanted)


def reject_options(options: Mapping[str, Any]) -> None:
    """Reject non-default options, which are not supported."""
    asked = [
        f"{k}={v!r:.40}" for k, v in options.items() if not (v is None or (isinstance(v, int) and not v))
    ]
    if asked:
        raise TikError(f"{', '.join(asked)}: this form is not provided")


def rounded_up(number: int) -> int:
    """Round up to a multiple of the tile size."""
    return -(-number // TILE) * TILE


def _accumulate(
    into: np.ndarray, rows: int, product: np.ndarray, begin: Any, bias: np.ndarray | None
) -> None:
    """Add a product (rows, columns) to a result [N1, M, 16], or overwrite it. Rows past `rows` are undefined."""
    tiles = np.zeros((into.shape[0] * TILE, rows), product.dtype)
    tiles[: product.shape[1]] = product.T
    tiles = tiles.reshape(into.shape[0], TILE, rows).transpose(0, 2, 1)
    if bias is not None:
        whole = np.zeros(into.shape[0] * TILE, product.dtype)
        whole[: len(bias)] = bias
        tiles = tiles + whole.reshape(into.shape[0], 1, TILE)
    into[:, :rows] = tiles if begin else into[:, :rows] + tiles


def _bias(m: Machine, bias: Any, count: int, dtype: np.dtype) -> np.ndarray | None:
    if bias is None:
        return None
    found = part(m, bias, (count,), "local.L1", "bias")
    if found.dtype != dtype:
        raise TikError(f"bias is {found.dtype}, sums are {dtype}")
    return found


def _product(x: np.ndarray, y: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A product with the given accumulator type. For 8-bit numbers double precision is exact and fastest."""
    wide = np.dtype(np.float64) if dtype.kind == "i" else dtype
    return (x.astype(wide) @ y.astype(wide)).astype(dtype)


def matmul(machine: Machine, dst: Any, a: Any, b: Any, m: Any, k: Any, n: Any, init_l1out: Any = True,
           bias: Any = None) -> None:  # fmt: skip
    """dst = a b, or dst + a b if `init_l1out` is false; m, k and n are the sizes without padding."""
    dtype = _checked_types(dst, a, b)
    rows, columns = (machine.whole(v, name, 1, 4096) for v, name in ((m, "m"), (n, "n")))
    inner = machine.whole(k, "k", 1, 32768 if DTYPES[a.dtype].size == 1 else 16384)
    each = BLOCK // DTYPES[a.dtype].size
    blocks = -(-inner // each)
    left = part(machine, a, (blocks, rounded_up(rows), each), "local.L1", "a")
    right = part(machine, b, (blocks, rounded_up(columns), each), "local.L1", "b")
    shape = (rounded_up(columns) // TILE, rounded_up(rows), TILE)
    into = part(machine, dst, shape, "local.L1_out_buffer", "dst")
    x, y = (v.transpose(1, 0, 2).reshape(v.shape[1], -1)[:, :inner] for v in (left, right))
    product = _product(x[:rows], y[:columns].T, dtype)
    _accumulate(into, rows, product, init_l1out, _bias(machine, bias, columns, dtype))


def mmad(machine: Machine, dst: Any, a: Any, b: Any, m: Any, k: Any, n: Any, is_bias: Any, fm_offset: Any = 0,
         en_weight_offset: Any = False, smask: Any = None, **others: Any) -> None:  # fmt: skip
    """dst = a b, or dst + a b if `is_bias` is 1. A single row (m = 1) is k contiguous elements."""
    dtype = _checked_types(dst, a, b)
    reject_options({"fm_offset": fm_offset, "en_weight_offset": en_weight_offset, "smask": smask, **others})
    rows, inner, columns = (machine.whole(v, name, 1, 4095) for v, name in ((m, "m"), (k, "k"), (n, "n")))
    each = BLOCK // DTYPES[a.dtype].size
    blocks, tall, broad = -(-inner // each), rounded_up(rows), rounded_up(columns)
    if rows == 1:
        x = part(machine, a, (1, inner), "local.L0A", "a")
    else:
        tiles = part(machine, a, (tall // TILE, blocks, TILE, each), "local.L0A", "a")
        x = tiles.transpose(0, 2, 1, 3).reshape(tall, -1)[:rows, :inner]
    right = part(machine, b, (blocks, broad, each), "local.L0B", "b")
    y = right.transpose(1, 0, 2).reshape(broad, -1)[:columns, :inner]
    into = part(machine, dst, (broad // TILE, tall, TILE), "local.L0C", "dst")
    _accumulate(into, rows, _product(x, y.T, dtype), not machine.number(is_bias), None)


def conv2d(m: Machine, dst: Any, feature_map: Any, weight: Any, fm_shape: Any, kernel_shape: Any, stride: Any, pad: Any,
           dilation: Any, pad_value: Any = 0, init_l1out: Any = True, bias: Any = None) -> None:  # fmt: skip
    """A convolution. Strides and dilations are (height, width), borders (left, right, top, bottom)."""
    dtype = _checked_types(dst, feature_map, weight)
    blocks, height, width, each = (m.whole(v, "fm_shape", 1, 4096) for v in fm_shape)
    channels, high, wide, count, own = (m.whole(v, "kernel_shape", 1, 4096) for v in kernel_shape)
    if (channels, own) != (blocks, each) or count % TILE:
        raise TikError(f"a kernel {list(kernel_shape)} does not match a feature map {list(fm_shape)}")
    left, right, top, bottom = (m.whole(v, "pad", 0, 255) for v in pad)
    down, across = (m.whole(v, "stride", 1, 63) for v in stride)
    far, apart = (m.whole(v, "dilation", 1, 255) for v in dilation)
    x = part(m, feature_map, (blocks, height, width, each), "local.L1", "feature_map")
    w = part(m, weight, (blocks, high, wide, count, each), "local.L1", "weight")
    border = ((0, 0), (top, bottom), (left, right), (0, 0))
    x = np.pad(x, border, constant_values=x.dtype.type(m.number(pad_value)))
    reach = (far * (high - 1) + 1, apart * (wide - 1) + 1)
    if x.shape[1] < reach[0] or x.shape[2] < reach[1]:
        raise TikError(
            f"the kernel reaches over {list(reach)}, the picture with its border is {list(x.shape[1:3])}"
        )
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(1, 2))[:, ::down, ::across]
    windows = windows[..., ::far, ::apart]  # blocks, height, width, C0, Kh, Kw
    size = windows.shape[1] * windows.shape[2]
    rows = windows.transpose(1, 2, 0, 4, 5, 3).reshape(size, -1)
    product = _product(rows, w.transpose(0, 1, 2, 4, 3).reshape(-1, count), dtype)
    into = part(m, dst, (count // TILE, rounded_up(size), TILE), "local.L1_out_buffer", "dst")
    _accumulate(into, size, product, init_l1out, _bias(m, bias, count, dtype))


def fixpipe(m: Machine, dst: Any, src: Any, cburst_num: Any, burst_len: Any, dst_stride: Any, src_stride: Any,
            extend_params: Mapping[str, Any] | None = None) -> None:  # fmt: skip
    """`cburst_num` pieces of `burst_len` blocks of the source go out; there a piece begins at a whole tile of 256.

    extend_params: "bias" (a tensor in L1), "quantize_params" ({"mode", "mode_param"}: a conversion, of integers with a
    factor), "relu".
    """
    for tensor in (dst, src):
        if not isinstance(tensor, Tensor):
            raise TikError(f"a tensor is needed, not {tensor!r:.60}")
    params = dict(extend_params or {})
    if unknown := params.keys() - {"bias", "quantize_params", "relu"}:
        raise TikError(f"unknown extend_params {', '.join(sorted(unknown))}")
    pieces = m.whole(cburst_num, "cburst_num", 1, 4095)
    length = m.whole(burst_len, "burst_len", 1, 65535) * BLOCK // DTYPES[src.dtype].size
    gap = m.whole(dst_stride, "dst_stride", 0, 65535) * BLOCK // DTYPES[dst.dtype].size
    tile = TILE * TILE
    step = -(-length // tile) * tile + m.whole(src_stride, "src_stride", 0, 65535) * tile
    x = part(m, src, (step * (pieces - 1) + length,), "local.L1_out_buffer", "src")
    x = x[np.arange(pieces)[:, None] * step + np.arange(length)]
    bias = _bias(m, params.get("bias"), pieces * TILE, x.dtype)
    if bias is not None:
        x = x + np.tile(bias.reshape(pieces, TILE), -(-length // TILE))[:, :length]
    x = _converted(m, x, dst, src, params.get("quantize_params"))
    x = np.maximum(x, x.dtype.type(0)) if params.get("relu") else x
    if dst.scope not in ("global", "local.UB"):
        raise TikError(f"dst {dst.name} is in {dst.scope}: fixpipe writes to tik.scope_gm or tik.scope_ubuf")
    into = part(m, dst, (pieces * length + (pieces - 1) * gap,), dst.scope, "dst")
    into[np.arange(pieces)[:, None] * (length + gap) + np.arange(length)] = x


def _converted(
    m: Machine, x: np.ndarray, dst: Tensor, src: Tensor, params: Mapping[str, Any] | None
) -> np.ndarray:
    """The elements in the type of the result, as the mode of quantisation says."""
    mode = (params or {}).get("mode")
    if (src.dtype, dst.dtype) not in QUANTISED or QUANTISED[src.dtype, dst.dtype] != mode:
        raise TikError(f"no way from {src.dtype} to {dst.dtype} with the mode {mode!r} of quantisation")
    if mode == "int322fp16":
        factor = (params or {}).get("mode_param")
        if factor is None or isinstance(factor, Tensor):
            raise TikError("int322fp16 takes a number as mode_param")
        x = x.astype(np.float32) * np.float32(np.float16(m.number(factor)))
    with np.errstate(over="ignore"):
        return x.astype(numpy_dtype(dst.dtype))
