"""The semantics of TIK's instructions on a machine's memories.

Vector instructions work in repeats of 256 bytes: eight blocks of 32 bytes. Lane L of repeat r of an operand is element
L % n of block L // n (n elements a block), `block stride` blocks after the one before, `repeat stride` blocks from
repeat to repeat. A mask selects lanes. Repeats run in order, so a repeat reads values written
by earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tbe.dtypes import DTYPES, numpy_dtype
from tbe.tik import fractals
from tbe.tik.cube import conv2d, fixpipe, matmul, mmad, reject_options
from tbe.tik.expression import TikError, Variable
from tbe.tik.machine import Machine
from tbe.tik.tensor import Tensor

__all__ = ["BLOCK", "INSTRUCTIONS", "LOCAL", "MOST_REPEATS", "MOST_STRIDE", "REPEAT", "ahead", "counted"]

BLOCK, REPEAT = 32, 256
MOST_REPEATS, MOST_STRIDE = 255, 65535
LOCAL = ("local.UB",)

Operand = tuple[Tensor, Any, Any]  # tensor, block stride, repeat stride


# -- places ----------------------------------------------------------------------------------------------------


def _lanes(m: Machine, mask: Any, width: int) -> np.ndarray:
    """Lanes selected by a mask: the first ones, or the bits in [high, low]."""
    if isinstance(mask, list | tuple):
        if len(mask) != 2:
            raise TikError(f"a mask of bits is [high, low], not {mask}")
        high, low = (m.whole(part, "a mask", 0, 2**64 - 1) for part in mask)
        chosen = np.flatnonzero([(high << 64 | low) >> lane & 1 for lane in range(128)])
        if not len(chosen) or chosen[-1] >= width:
            raise TikError(f"the mask {mask} chooses no lane, or lanes beyond the {width} of a repeat")
        return chosen
    return np.arange(m.whole(mask, "mask", 1, width))


def _width(*dtypes: str) -> int:
    """Lanes per repeat, determined by the widest type."""
    return REPEAT // max(DTYPES[d].size for d in dtypes)


def _places(m: Machine, operand: Operand, lanes: np.ndarray, repeats: int, what: str) -> np.ndarray:
    """Element indices of an operand: repeats x lanes."""
    tensor, block_stride, repeat_stride = operand
    if tensor.scope not in LOCAL:
        raise TikError(
            f"{what} {tensor.name} is in {tensor.scope}: vector instructions work on tik.scope_ubuf"
        )
    size = DTYPES[tensor.dtype].size
    start, each = m.offset(tensor), BLOCK // size
    if start * size % BLOCK:
        raise TikError(
            f"{what} {tensor.name} begins at byte {start * size}, which is not a multiple of {BLOCK}"
        )
    blocks = m.whole(block_stride, f"the block stride of {what}", 0, MOST_STRIDE)
    rows = m.whole(repeat_stride, f"the repeat stride of {what}", 0, MOST_STRIDE)
    row = lanes // each * blocks * each + lanes % each
    places: np.ndarray = start + np.arange(repeats)[:, None] * rows * each + row
    _check_reach(m, tensor, places, what)
    return places


def _check_reach(m: Machine, tensor: Tensor, places: np.ndarray, what: str) -> None:
    count = len(m.elements(tensor))
    if places.size and not 0 <= places.min() <= places.max() < count:
        raise TikError(
            f"{what} reaches elements {places.min()} to {places.max()} of {tensor.name}, which has {count}"
        )


def _tensors(*values: Any) -> None:
    for value in values:
        if not isinstance(value, Tensor):
            raise TikError(f"a tensor is needed, not {value!r:.60}")


def _same_type(*tensors: Tensor) -> None:
    if len({t.dtype for t in tensors}) > 1:
        raise TikError(f"operands of different types: {', '.join(f'{t.name} {t.dtype}' for t in tensors)}")


# -- element by element ----------------------------------------------------------------------------------------

Function = Callable[..., np.ndarray]


def _apply(
    m: Machine,
    mask: Any,
    repeat: Any,
    dst: Operand,
    sources: Sequence[Operand],
    function: Function,
    reads_dst: bool = False,
) -> None:
    """dst = function(sources) per lane; with reads_dst the old value is the first argument."""
    repeats = m.whole(repeat, "repeat_times", 0, MOST_REPEATS)
    lanes = _lanes(m, mask, _width(dst[0].dtype, *(s[0].dtype for s in sources)))
    into = _places(m, dst, lanes, repeats, "dst")
    places = [_places(m, s, lanes, repeats, f"src{i}") for i, s in enumerate(sources)]
    target = m.elements(dst[0])
    arrays = [m.elements(s[0]) for s in sources]
    rows: list[Any] = [slice(None)]
    if repeats > 1 and _in_order(dst[0], into, sources, places):
        rows = [slice(r, r + 1) for r in range(repeats)]
    for row in rows:
        operands = [array[place[row]] for array, place in zip(arrays, places, strict=True)]
        with np.errstate(all="ignore"):
            value = function(*([target[into[row]]] if reads_dst else []), *operands)
        target[into[row]] = value


def _in_order(
    dst: Tensor, into: np.ndarray, sources: Sequence[Operand], places: Sequence[np.ndarray]
) -> bool:
    """True if a repeat may read or overwrite results of earlier ones."""
    if len(np.unique(into)) < into.size:
        return True
    for (tensor, _, _), place in zip(sources, places, strict=True):
        shared = tensor.memory is dst.memory
        if (
            shared
            and (tensor.dtype != dst.dtype or not np.array_equal(place, into))
            and np.isin(place, into).any()
        ):
            return True
    return False


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a / b, a.dtype)


_BINARY: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}
_UNARY: dict[str, Function] = {
    "abs": np.abs,
    "exp": np.exp,
    "ln": np.log,
    "relu": lambda x: np.maximum(x, x.dtype.type(0)),
    "rec": lambda x: np.asarray(x.dtype.type(1) / x, x.dtype),
    "rsqrt": lambda x: np.asarray(1 / np.sqrt(x.astype(np.float64)), x.dtype),
    "sqrt": np.sqrt,
    "not": np.bitwise_not,
}
_SCALAR: dict[str, Function] = {"adds": np.add, "muls": np.multiply, "maxs": np.maximum, "mins": np.minimum}
_THREE: dict[str, Function] = {  # of the old dst, src0 and src1
    "mla": lambda d, a, b: d + a * b,
    "madd": lambda d, a, b: a * d + b,
    "maddrelu": lambda d, a, b: np.maximum(a * d + b, d.dtype.type(0)),
}


def _bitwise(name: str, x: np.ndarray) -> None:
    if name in ("and", "or", "not") and x.dtype.kind not in "iu":
        raise TikError(f"{name} takes whole numbers, not {x.dtype}")


def _vec_binary(name: str) -> Callable[..., None]:
    function = _BINARY[name]

    def run(m: Machine, mask: Any, dst: Any, src0: Any, src1: Any, repeat_times: Any,
            dst_rep_stride: Any, src0_rep_stride: Any, src1_rep_stride: Any,
            mask_mode: str = "normal") -> None:  # fmt: skip
        _tensors(dst, src0, src1)
        _same_type(dst, src0, src1)
        _bitwise(name, m.elements(dst))
        sources = [(src0, 1, src0_rep_stride), (src1, 1, src1_rep_stride)]
        for part, times, at in _counted(m, mask, repeat_times, mask_mode, dst.dtype):
            moved = [(ahead(t, at, rep), 1, rep) for t, _, rep in sources]
            _apply(m, part, times, (ahead(dst, at, dst_rep_stride), 1, dst_rep_stride), moved, function)

    return run


def counted(
    count_of: Callable[[], int], mask: Any, repeats: Any, mode: str, dtype: str
) -> list[tuple[Any, Any, int]]:
    """Split an instruction into (mask, repeats, first repeat); counter mode gives full repeats and a remainder."""
    if mode == "normal":
        return [(mask, repeats, 0)]
    if mode != "counter":
        raise TikError(f"the mask mode {mode!r} is neither normal nor counter")
    width = _width(dtype)
    count = count_of()
    parts: list[tuple[Any, Any, int]] = [(width, min(MOST_REPEATS, count // width - at), at)
                                         for at in range(0, count // width, MOST_REPEATS)]  # fmt: skip
    return parts + ([(count % width, 1, count // width)] if count % width else [])


def _counted(m: Machine, mask: Any, repeats: Any, mode: str, dtype: str) -> list[tuple[Any, Any, int]]:
    return counted(lambda: m.whole(mask, "mask", 1, 2**32 - 1), mask, repeats, mode, dtype)


def ahead(tensor: Tensor, repeats: int, stride: Any) -> Tensor:
    """A tensor advanced by some repeats."""
    return tensor[repeats * stride * (BLOCK // DTYPES[tensor.dtype].size)] if repeats else tensor


def _binary(name: str) -> Callable[..., None]:
    function = _BINARY[name]

    def run(m: Machine, mask: Any, dst: Any, src0: Any, src1: Any, repeat_times: Any,
            dst_blk_stride: Any, src0_blk_stride: Any, src1_blk_stride: Any,
            dst_rep_stride: Any, src0_rep_stride: Any, src1_rep_stride: Any) -> None:  # fmt: skip
        _tensors(dst, src0, src1)
        _same_type(dst, src0, src1)
        _bitwise(name, m.elements(dst))
        sources = [(src0, src0_blk_stride, src0_rep_stride), (src1, src1_blk_stride, src1_rep_stride)]
        _apply(m, mask, repeat_times, (dst, dst_blk_stride, dst_rep_stride), sources, function)

    return run


def _three(name: str) -> Callable[..., None]:
    function = _THREE[name]

    def run(m: Machine, mask: Any, dst: Any, src0: Any, src1: Any, repeat_times: Any,
            dst_blk_stride: Any, src0_blk_stride: Any, src1_blk_stride: Any,
            dst_rep_stride: Any, src0_rep_stride: Any, src1_rep_stride: Any) -> None:  # fmt: skip
        _tensors(dst, src0, src1)
        _same_type(dst, src0, src1)
        sources = [(src0, src0_blk_stride, src0_rep_stride), (src1, src1_blk_stride, src1_rep_stride)]
        _apply(m, mask, repeat_times, (dst, dst_blk_stride, dst_rep_stride), sources, function, True)

    return run


def _vec_unary(name: str) -> Callable[..., None]:
    def run(
        m: Machine, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_rep_stride: Any
    ) -> None:
        _unary_run(m, name, mask, repeat_times, (dst, 1, dst_rep_stride), (src, 1, src_rep_stride))

    return run


def _unary(name: str) -> Callable[..., None]:
    def run(m: Machine, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_blk_stride: Any, src_blk_stride: Any,
            dst_rep_stride: Any, src_rep_stride: Any) -> None:  # fmt: skip
        _unary_run(
            m,
            name,
            mask,
            repeat_times,
            (dst, dst_blk_stride, dst_rep_stride),
            (src, src_blk_stride, src_rep_stride),
        )

    return run


def _unary_run(m: Machine, name: str, mask: Any, repeats: Any, dst: Operand, src: Operand) -> None:
    _tensors(dst[0], src[0])
    _same_type(dst[0], src[0])
    _bitwise(name, m.elements(dst[0]))
    _apply(m, mask, repeats, dst, [src], _UNARY[name])


def _precise(name: str) -> Callable[..., None]:
    """High-precision variants; the plain ones are precise already, so the work tensor is unused."""

    def run(m: Machine, mask: Any, dst: Any, src: Any, work_tensor: Any, repeat_times: Any,
            dst_rep_stride: Any, src_rep_stride: Any) -> None:  # fmt: skip
        _unary_run(m, name, mask, repeat_times, (dst, 1, dst_rep_stride), (src, 1, src_rep_stride))

    return run


def _with_scalar(m: Machine, dst: Tensor, scalar: Any) -> Any:
    return numpy_dtype(dst.dtype).type(m.number(scalar))


def _vec_scalar(name: str) -> Callable[..., None]:
    def run(m: Machine, mask: Any, dst: Any, src: Any, scalar: Any, repeat_times: Any, dst_rep_stride: Any,
            src_rep_stride: Any, mask_mode: str = "normal") -> None:  # fmt: skip
        _tensors(dst, src)
        _same_type(dst, src)
        number, function = _with_scalar(m, dst, scalar), _SCALAR[name]
        for part, times, at in _counted(m, mask, repeat_times, mask_mode, dst.dtype):
            moved = [(ahead(src, at, src_rep_stride), 1, src_rep_stride)]
            into = (ahead(dst, at, dst_rep_stride), 1, dst_rep_stride)
            _apply(m, part, times, into, moved, lambda x: function(x, number))

    return run


def _scalar(name: str) -> Callable[..., None]:
    def run(m: Machine, mask: Any, dst: Any, src: Any, scalar: Any, repeat_times: Any, dst_blk_stride: Any,
            src_blk_stride: Any, dst_rep_stride: Any, src_rep_stride: Any) -> None:  # fmt: skip
        _tensors(dst, src)
        _same_type(dst, src)
        number, function = _with_scalar(m, dst, scalar), _SCALAR[name]
        into, source = (dst, dst_blk_stride, dst_rep_stride), (src, src_blk_stride, src_rep_stride)
        _apply(m, mask, repeat_times, into, [source], lambda x: function(x, number))

    return run


def vec_axpy(m: Machine, mask: Any, dst: Any, src: Any, scalar: Any, repeat_times: Any, dst_rep_stride: Any,
             src_rep_stride: Any) -> None:  # fmt: skip
    """dst += scalar · src."""
    vaxpy(m, mask, dst, src, scalar, repeat_times, 1, 1, dst_rep_stride, src_rep_stride)


def vaxpy(m: Machine, mask: Any, dst: Any, src: Any, scalar: Any, repeat_times: Any, dst_blk_stride: Any,
          src_blk_stride: Any, dst_rep_stride: Any, src_rep_stride: Any) -> None:  # fmt: skip
    """dst += scalar · src."""
    _tensors(dst, src)
    number = numpy_dtype(src.dtype).type(m.number(scalar))
    into, source = (dst, dst_blk_stride, dst_rep_stride), (src, src_blk_stride, src_rep_stride)
    _apply(m, mask, repeat_times, into, [source], lambda d, x: d + (x * number).astype(d.dtype), True)


def vec_dup(m: Machine, mask: Any, dst: Any, scalar: Any, repeat_times: Any, dst_rep_stride: Any) -> None:
    """Fill all lanes with one number."""
    vector_dup(m, mask, dst, scalar, repeat_times, 1, dst_rep_stride)


def vector_dup(m: Machine, mask: Any, dst: Any, scalar: Any, repeat_times: Any, dst_blk_stride: Any,
               dst_rep_stride: Any) -> None:  # fmt: skip
    """Fill all lanes with one number."""
    _tensors(dst)
    number = _with_scalar(m, dst, scalar)
    _apply(m, mask, repeat_times, (dst, dst_blk_stride, dst_rep_stride), [], lambda: number)


# -- conversions -----------------------------------------------------------------------------------------------


def _away(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.trunc(x + np.copysign(0.5, x)))


_ROUNDINGS: dict[str, Function] = {
    "": np.rint,
    "none": np.rint,
    "round": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "ceiling": np.ceil,
    "away-zero": _away,
    "to-zero": np.trunc,
}


def _converted(x: np.ndarray, kind: np.dtype, mode: str, scale: Any) -> np.ndarray:
    if mode not in _ROUNDINGS:
        raise TikError(f"the rounding {mode!r} is none of {', '.join(_ROUNDINGS)}")
    if scale is not None:
        x = x.astype(np.float32) * np.float32(scale)
    if kind.kind not in "iu":
        return x.astype(kind)
    if x.dtype.kind in "iu":
        bounds = np.iinfo(kind)
        return np.clip(x.astype(np.int64), bounds.min, bounds.max).astype(kind)
    bounds = np.iinfo(kind)
    whole = np.nan_to_num(_ROUNDINGS[mode](x.astype(np.float64)), nan=0.0)
    return np.clip(whole, bounds.min, bounds.max).astype(kind)


def vec_conv(m: Machine, mask: Any, round_mode: str, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any,
             src_rep_stride: Any, deqscale: Any = None, ldst_high_half: bool = False) -> None:  # fmt: skip
    """Convert to another type; floats are rounded to integers as requested and saturate."""
    vconv(
        m,
        mask,
        round_mode,
        dst,
        src,
        repeat_times,
        1,
        1,
        dst_rep_stride,
        src_rep_stride,
        deqscale,
        ldst_high_half,
    )


def vconv(m: Machine, mask: Any, round_mode: str, dst: Any, src: Any, repeat_times: Any, dst_blk_stride: Any,
          src_blk_stride: Any, dst_rep_stride: Any, src_rep_stride: Any, deqscale: Any = None,
          ldst_high_half: bool = False) -> None:  # fmt: skip
    """Convert to another type; floats are rounded to integers as requested and saturate."""
    _tensors(dst, src)
    if ldst_high_half:
        raise TikError("ldst_high_half is not provided")
    scale = None if deqscale is None else float(m.number(deqscale))
    kind = numpy_dtype(dst.dtype)
    into, source = (dst, dst_blk_stride, dst_rep_stride), (src, src_blk_stride, src_rep_stride)
    _apply(m, mask, repeat_times, into, [source], lambda x: _converted(x, kind, round_mode, scale))


# -- comparisons -----------------------------------------------------------------------------------------------

_COMPARISONS: dict[str, Function] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}


def _compare(name: str) -> Callable[..., None]:
    def run(m: Machine, dst: Any, src0: Any, src1: Any, repeat_times: Any, src0_rep_stride: Any,
            src1_rep_stride: Any) -> None:  # fmt: skip
        """Compare; one bit per lane, contiguous over the repeats."""
        _tensors(dst, src0, src1)
        _same_type(src0, src1)
        repeats = m.whole(repeat_times, "repeat_times", 0, MOST_REPEATS)
        lanes = np.arange(_width(src0.dtype))
        left = m.elements(src0)[_places(m, (src0, 1, src0_rep_stride), lanes, repeats, "src0")]
        right = m.elements(src1)[_places(m, (src1, 1, src1_rep_stride), lanes, repeats, "src1")]
        bits = np.packbits(_COMPARISONS[name](left, right).reshape(-1), bitorder="little")
        size = DTYPES[dst.dtype].size
        start = m.offset(dst) * size
        _check_reach(m, dst, np.asarray([start // size, (start + len(bits) - 1) // size]), "dst")
        m.array(dst.memory, "uint8")[start : start + len(bits)] = bits

    return run


def vec_sel(m: Machine, mask: Any, mode: Any, dst: Any, sel: Any, src0: Any, src1: Any, repeat_times: Any,
            dst_rep_stride: Any = 0, src0_rep_stride: Any = 0, src1_rep_stride: Any = 0) -> None:  # fmt: skip
    """Select src0 if the bit of sel is 1, else src1.

    Mode 0: all repeats share the bits; 1: src1 is a number; 2: each repeat has its own bits.
    """
    vsel(
        m,
        mask,
        mode,
        dst,
        sel,
        src0,
        src1,
        repeat_times,
        1,
        1,
        1,
        dst_rep_stride,
        src0_rep_stride,
        src1_rep_stride,
    )


def vsel(m: Machine, mask: Any, mode: Any, dst: Any, sel: Any, src0: Any, src1: Any, repeat_times: Any,
         dst_blk_stride: Any, src0_blk_stride: Any, src1_blk_stride: Any, dst_rep_stride: Any = 0,
         src0_rep_stride: Any = 0, src1_rep_stride: Any = 0) -> None:  # fmt: skip
    """Like vec_sel, with block strides."""
    _tensors(dst, sel, src0)
    kind, repeats = m.whole(mode, "mode", 0, 2), m.whole(repeat_times, "repeat_times", 0, MOST_REPEATS)
    width = _width(dst.dtype)
    lanes = _lanes(m, mask, width)
    size = DTYPES[sel.dtype].size
    start, count = m.offset(sel) * size, width // 8 * (1 if kind == 0 else repeats)
    _check_reach(m, sel, np.asarray([start // size, (start + count - 1) // size]), "sel")
    bits = np.unpackbits(m.array(sel.memory, "uint8")[start : start + count], bitorder="little")
    chosen = (np.tile(bits, repeats) if kind == 0 else bits).reshape(repeats, width)[:, lanes]
    first = m.elements(src0)[_places(m, (src0, src0_blk_stride, src0_rep_stride), lanes, repeats, "src0")]
    if isinstance(src1, Tensor) and kind != 1:
        second = m.elements(src1)[
            _places(m, (src1, src1_blk_stride, src1_rep_stride), lanes, repeats, "src1")
        ]
    else:
        second = _with_scalar(m, dst, src1)
    into = _places(m, (dst, dst_blk_stride, dst_rep_stride), lanes, repeats, "dst")
    m.elements(dst)[into] = np.where(chosen.astype(bool), first, second)


# -- reductions ------------------------------------------------------------------------------------------------


def _read(m: Machine, mask: Any, src: Any, repeats: int, block_stride: Any, repeat_stride: Any) -> np.ndarray:
    _tensors(src)
    lanes = _lanes(m, mask, _width(src.dtype))
    return m.elements(src)[_places(m, (src, block_stride, repeat_stride), lanes, repeats, "src")]


def _write(m: Machine, dst: Tensor, places: np.ndarray, values: Any) -> None:
    places = m.offset(dst) + np.asarray(places)
    _check_reach(m, dst, places, "dst")
    m.elements(dst)[places] = values


def _total(x: np.ndarray, axis: int) -> np.ndarray:
    """Pairwise sums in the type itself, like the adder tree."""
    x = np.moveaxis(x, axis, -1)
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = np.concatenate([x, np.zeros((*x.shape[:-1], 1), x.dtype)], -1)
        x = x[..., ::2] + x[..., 1::2]
    return x[..., 0]


def vec_reduce_add(m: Machine, mask: Any, dst: Any, src: Any, work_tensor: Any, repeat_times: Any,
                   src_rep_stride: Any) -> None:  # fmt: skip
    """Sum of all selected lanes of all repeats."""
    repeats = m.whole(repeat_times, "repeat_times", 1, 4095)
    rows = _total(_read(m, mask, src, repeats, 1, src_rep_stride), 1)
    _write(m, dst, np.asarray([0]), _total(rows, 0))


def _reduce_extreme(name: str) -> Callable[..., None]:
    pick = np.argmax if name == "max" else np.argmin

    def run(m: Machine, mask: Any, dst: Any, src: Any, work_tensor: Any, repeat_times: Any, src_rep_stride: Any,
            cal_index: bool = False) -> None:  # fmt: skip
        """Extremum of all selected lanes, optionally followed by its index, as bits of the type."""
        repeats = m.whole(repeat_times, "repeat_times", 1, 4095)
        x = _read(m, mask, src, repeats, 1, src_rep_stride)
        place = int(pick(x))
        values = [x.reshape(-1)[place]]
        if cal_index:
            lane = int(_lanes(m, mask, _width(src.dtype))[place % x.shape[1]])
            values.append(_number_as_bits(place // x.shape[1] * _width(src.dtype) + lane, x.dtype))
        _write(m, dst, np.arange(len(values)), np.asarray(values, x.dtype))

    return run


def _number_as_bits(number: int, dtype: np.dtype) -> Any:
    return np.asarray([number], {2: np.uint16, 4: np.uint32}[dtype.itemsize]).view(dtype)[0]


def vcadd(m: Machine, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_blk_stride: Any,
          src_rep_stride: Any) -> None:  # fmt: skip
    """Sum of each repeat."""
    repeats = m.whole(repeat_times, "repeat_times", 0, MOST_REPEATS)
    sums = _total(_read(m, mask, src, repeats, src_blk_stride, src_rep_stride), 1)
    _write(m, dst, np.arange(repeats) * m.whole(dst_rep_stride, "dst_rep_stride", 0, MOST_STRIDE), sums)


def _extreme(name: str) -> Callable[..., None]:
    pick = np.argmax if name == "max" else np.argmin

    def run(m: Machine, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_blk_stride: Any,
            src_rep_stride: Any) -> None:  # fmt: skip
        """Extremum of each repeat and its lane, as bits of the type."""
        repeats = m.whole(repeat_times, "repeat_times", 0, MOST_REPEATS)
        x = _read(m, mask, src, repeats, src_blk_stride, src_rep_stride)
        lanes = _lanes(m, mask, _width(src.dtype))
        places = pick(x, axis=1)
        pairs = [(x[r, p], _number_as_bits(int(lanes[p]), x.dtype)) for r, p in enumerate(places)]
        starts = np.arange(repeats) * 2 * m.whole(dst_rep_stride, "dst_rep_stride", 0, MOST_STRIDE)
        _write(m, dst, (starts[:, None] + np.arange(2)).reshape(-1), np.asarray(pairs, x.dtype).reshape(-1))

    return run


def _by_block(name: str) -> Callable[..., None]:
    def run(m: Machine, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_blk_stride: Any,
            src_rep_stride: Any) -> None:  # fmt: skip
        """Reduce each of the eight blocks of a repeat."""
        repeats = m.whole(repeat_times, "repeat_times", 0, MOST_REPEATS)
        width = _width(src.dtype)
        lanes = _lanes(m, mask, width)
        x = _read(m, mask, src, repeats, src_blk_stride, src_rep_stride)
        each = width // 8
        step = m.whole(dst_rep_stride, "dst_rep_stride", 0, MOST_STRIDE) * 8
        for block in np.unique(lanes // each):
            part = x[:, lanes // each == block]
            value = _total(part, 1) if name == "add" else (part.max(1) if name == "max" else part.min(1))
            _write(m, dst, np.arange(repeats) * step + block, value)

    return run


def vcpadd(m: Machine, mask: Any, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_blk_stride: Any,
           src_rep_stride: Any) -> None:  # fmt: skip
    """Sums of adjacent pairs."""
    repeats = m.whole(repeat_times, "repeat_times", 0, MOST_REPEATS)
    x = _read(m, mask, src, repeats, src_blk_stride, src_rep_stride)
    pairs = x[:, 0::2] + x[:, 1::2]
    step = m.whole(dst_rep_stride, "dst_rep_stride", 0, MOST_STRIDE) * _width(src.dtype) // 2
    _write(
        m,
        dst,
        (np.arange(repeats)[:, None] * step + np.arange(pairs.shape[1])).reshape(-1),
        pairs.reshape(-1),
    )


# -- moves -----------------------------------------------------------------------------------------------------


def data_move(m: Machine, dst: Any, src: Any, sid: Any, nburst: Any, burst: Any, src_stride: Any, dst_stride: Any,
              deqscale: Any = None, *_: Any, **__: Any) -> None:  # fmt: skip
    """Move `nburst` pieces of `burst` blocks `src_stride` and `dst_stride` blocks apart; from L0C in fractals."""
    _tensors(dst, src)
    if "local.L0C" in (dst.scope, src.scope):
        fractals.move_out_of_l0c(m, dst, src, nburst, burst, src_stride, dst_stride, deqscale)
        return
    _same_type(dst, src)
    count = m.whole(nburst, "nburst", 0, 4095)
    length = m.whole(burst, "burst", 0, MOST_STRIDE)
    size = DTYPES[dst.dtype].size
    each = BLOCK // size
    gaps = [
        m.whole(g, n, 0, MOST_STRIDE) for g, n in ((src_stride, "src_stride"), (dst_stride, "dst_stride"))
    ]
    places = []
    for tensor, gap, what in ((src, gaps[0], "src"), (dst, gaps[1], "dst")):
        start = m.offset(tensor)
        if tensor.scope != "global" and start * size % BLOCK:
            raise TikError(
                f"{what} {tensor.name} begins at byte {start * size}, which is not a multiple of {BLOCK}"
            )
        rows = np.arange(count)[:, None] * (length + gap) * each
        places.append((start + rows + np.arange(length * each)).reshape(-1))
    _move(m, dst, src, places)


def tensor_mov(m: Machine, dst: Any, src: Any, block_mode: Any, nburst: Any, burst: Any, dst_stride: Any,
               src_stride: Any, deqscale: Any = None, sid_store_mode: Any = 0, relu: Any = False,
               **others: Any) -> None:  # fmt: skip
    """Like data_move with swapped strides; from L0C in fractals (`block_mode` "m")."""
    _tensors(dst, src)
    reject_options(others)
    if "local.L0C" not in (dst.scope, src.scope):
        data_move(m, dst, src, 0, nburst, burst, src_stride, dst_stride)
    elif block_mode == "m":
        fractals.move_out_of_l0c(m, dst, src, nburst, burst, src_stride, dst_stride, deqscale, relu)
    else:
        raise TikError(f"block_mode {block_mode!r} of L0C is not provided, 'm' is")


def _move(m: Machine, dst: Tensor, src: Tensor, places: Sequence[np.ndarray]) -> None:
    source, into = places
    source, into = _inside(m, src, source, dst, into)
    _check_reach(m, src, source, "src")
    _check_reach(m, dst, into, "dst")
    values = m.elements(src)[source]
    if m.atomic and dst.scope == "global":
        np.add.at(m.elements(dst), into, values)
    else:
        m.elements(dst)[into] = values


def _inside(
    m: Machine, src: Tensor, source: np.ndarray, dst: Tensor, into: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Clip the last block of a global tensor: the part past its end is neither read nor written."""
    keep = np.ones(len(source), bool)
    for tensor, places in ((src, source), (dst, into)):
        if tensor.scope == "global":
            count, each = len(m.elements(tensor)), BLOCK // DTYPES[tensor.dtype].size
            keep &= ~((places >= count) & (places < -(-count // each) * each))
    return source[keep], into[keep]


def data_move_pad(m: Machine, dst: Any, src: Any, nburst: Any, burst: Any, dst_gap: Any = 0, src_gap: Any = 0,
                  *_: Any, **__: Any) -> None:  # fmt: skip
    """Move `nburst` pieces of `burst` bytes; pieces in a core's memory are aligned to blocks."""
    _tensors(dst, src)
    _same_type(dst, src)
    size = DTYPES[dst.dtype].size
    count, length = m.whole(nburst, "nburst", 0, 4095), m.whole(burst, "burst", 0, 65535)
    if length % size:
        raise TikError(f"a burst of {length} bytes is no whole number of {dst.dtype}")
    places = []
    for tensor, gap in ((src, src_gap), (dst, dst_gap)):
        apart = m.whole(gap, "a gap", 0, MOST_STRIDE)
        step = length + apart if tensor.scope == "global" else (-(-length // BLOCK) + apart) * BLOCK
        rows = np.arange(count)[:, None] * (step // size)
        places.append((m.offset(tensor) + rows + np.arange(length // size)).reshape(-1))
    _move(m, dst, src, places)


def vec_trans(
    m: Machine, dst: Any, src: Any, repeat_times: Any, dst_rep_stride: Any, src_rep_stride: Any
) -> None:
    """Transpose matrices of 16 x 16 elements of 16 bits."""
    _tensors(dst, src)
    _same_type(dst, src)
    if DTYPES[src.dtype].size != 2:
        raise TikError(f"vec_trans takes elements of 16 bits, not {src.dtype}")
    repeats = m.whole(repeat_times, "repeat_times", 1, MOST_REPEATS)
    steps = [m.whole(s, "a repeat stride", 0, 4095) * 256 for s in (src_rep_stride, dst_rep_stride)]
    for repeat in range(repeats):
        places = np.arange(256)
        source = m.offset(src) + repeat * steps[0] + places
        _check_reach(m, src, source, "src")
        values = m.elements(src)[source].reshape(16, 16).T.reshape(-1)
        _write(m, dst, repeat * steps[1] + places, values)


def vec_trans_scatter(m: Machine, dst_high_half: Any, src_high_half: Any, dst_list: Any, src_list: Any,
                      repeat_times: Any, dst_rep_stride: Any, src_rep_stride: Any, *_: Any,
                      **__: Any) -> None:  # fmt: skip
    """Transpose sixteen blocks of sixteen 16-bit elements: element j of block i becomes element i of block j."""
    for blocks in (dst_list, src_list):
        if not isinstance(blocks, list | tuple) or len(blocks) != 16:
            raise TikError("dst_list and src_list are lists of 16 tensors")
        _tensors(*blocks)
    _same_type(*dst_list, *src_list)
    if DTYPES[src_list[0].dtype].size != 2:
        raise TikError(f"elements of 16 bits are needed, not {src_list[0].dtype}")
    repeats = m.whole(repeat_times, "repeat_times", 1, MOST_REPEATS)
    steps = [m.whole(s, "a repeat stride", 0, MOST_STRIDE) * 16 for s in (src_rep_stride, dst_rep_stride)]
    for repeat in range(repeats):
        places = [m.offset(t) + repeat * steps[0] + np.arange(16) for t in src_list]
        for tensor, place in zip(src_list, places, strict=True):
            _check_reach(m, tensor, place, "src")
        matrix = np.stack([m.elements(t)[p] for t, p in zip(src_list, places, strict=True)])
        for tensor, column in zip(dst_list, matrix.T, strict=True):
            _write(m, tensor, repeat * steps[1] + np.arange(16), column)


# -- scalars ---------------------------------------------------------------------------------------------------


def _into_scalar(function: Callable[..., Any]) -> Callable[..., None]:
    def run(m: Machine, dst: Any, *operands: Any) -> None:
        if not isinstance(dst, Variable):
            raise TikError(f"a scalar is needed, not {dst!r:.60}")
        m.set(dst, function(*(m.number(o) for o in operands)))

    return run


def scalar_conv(m: Machine, round_mode: str, dst: Any, src: Any) -> None:
    """Convert a scalar to another type."""
    value = np.asarray([m.number(src)])
    m.set(dst, _converted(value, numpy_dtype(dst.dtype), round_mode, None)[0].item())


def set_atomic_add(m: Machine, data_type: Any) -> None:
    """Make moves to global memory add (a type or 1) or overwrite (0)."""
    m.atomic = data_type not in (0, None, "none")


def _nothing(m: Machine, *_: Any, **__: Any) -> None:
    """Has no effect here."""


def _table() -> dict[str, Callable[..., None]]:
    made: dict[str, Callable[..., None]] = {}
    for name in _BINARY:
        made[f"vec_{name}"], made[f"v{name}"] = _vec_binary(name), _binary(name)
    for name in _UNARY:
        made[f"vec_{name}"], made[f"v{name}"] = _vec_unary(name), _unary(name)
    for name in ("rec", "rsqrt", "ln"):  # exact, whereas other hardware approximates
        made[f"vec_{name}_high_preci"] = _precise(name)
    for name in _SCALAR:
        made[f"vec_{name}"], made[f"v{name}"] = _vec_scalar(name), _scalar(name)
    for name in _THREE:
        made[f"v{name}"] = _three(name)
    for name in _COMPARISONS:
        made[f"vec_cmpv_{name}"] = _compare(name)
    for name in ("max", "min"):
        made[f"vec_reduce_{name}"], made[f"vc{name}"] = _reduce_extreme(name), _extreme(name)
    for name in ("add", "max", "min"):
        made[f"vcg{name}"] = _by_block(name)
    for function in (vec_axpy, vaxpy, vec_dup, vector_dup, vec_conv, vconv, vec_sel, vsel, vec_reduce_add, vcadd,
                     vcpadd, data_move, data_move_pad, vec_trans, scalar_conv, set_atomic_add, matmul, mmad,
                     conv2d, fixpipe, vec_trans_scatter, tensor_mov, fractals.load2dv1, fractals.load2dv2,
                     fractals.load3dv1, fractals.load3dv2, fractals.col2img, fractals.broadcast_ub_to_l0c):  # fmt: skip
        made[function.__name__] = function
    scalars: dict[str, Callable[..., Any]] = {"max": max, "min": min, "abs": abs}
    scalars |= {"sqrt": lambda x: float(np.sqrt(x)), "countbit1": lambda x: (x & (2**64 - 1)).bit_count()}
    for name, of in scalars.items():
        made[f"scalar_{name}"] = _into_scalar(of)
    made["vnchwconv"] = vec_trans_scatter
    made |= dict.fromkeys(("tensor_mov_sync", "pipe_barrier", "set_vector_mask"), _nothing)
    return made


INSTRUCTIONS = _table()
