"""Measured costs: the sizes at which one implementation overtakes another, and from which threads pay off."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CostTable", "shipped"]


@dataclass(frozen=True)
class CostTable:
    """Crossover points of a target, each in the unit of the bounded quantity; `python -m ge.tune` measures them.

    >>> CostTable.of({"narrow_elements": 1 << 15}).narrow_elements
    32768
    """

    # False if only float32 was measured: the model decides about 16-bit floats
    narrow_floats: bool = True
    # Threads: nanoseconds of work on one core that justify waking another
    wake_ns: float = 20_000.0
    # Primitives of the library: operations or bytes from which all cores are faster than one
    library_flops: int = 300_000
    library_bytes: int = 64 << 10
    # Matrix products by Strassen's algorithm
    strassen_depth: int = 512  # terms of a sum
    strassen_gain: float = 1.05  # least ratio of arithmetic saved to packing added
    strassen_gain_packed: float = 1.085  # the same if the library packs the second operand once
    strassen_handling: float = 14.0  # multiplications in the time it takes to measure and pack one number
    # Products with few rows or terms: elements of the large operand
    narrow_elements: int = 1 << 14
    # Products with few terms: bytes of the result from which it is written past the caches (bfloat16: never)
    outer_bytes: int = 8 << 20
    # Products with 4- or 8-bit weights: rows up to which unpacking the weights in registers is faster
    packed_rows: int = 64
    # Winograd convolutions: 4x4 output tiles, channels, and the share of computed results that are real
    winograd_tiles: int = 12
    winograd_tiles_variable: int = 32  # if weights are transformed in every run
    winograd_tiles_bf16: int = 40  # direct products of bfloat16 are twice as fast
    winograd_outputs_per_tile_bf16: float = 2.0  # with more outputs per tile a transform does not pay off
    winograd_channels: int = 32
    winograd_cover: float = 0.5
    winograd_gradient_tiles: int = 48
    # Own 1x1 convolutions: depth up to which stores dominate, and rows from which weights do not
    pointwise_depth: int = 48
    pointwise_rows: int = 16
    pointwise_rows_per_core: int = 64  # from which cores divide the rows, not the outputs
    # Times of the library's kernel over ours where something other than its size decides
    depthwise_gain: float = 0.8
    depthwise_swish_gain: float = 2.0
    pointwise_gain: float = 0.9
    gate_gain: float = 2.0  # of 1x1 convolutions whose input is multiplied by a gate
    spread_gain: float = 2.0  # transposed 1x1 convolutions with strides
    depthwise_source_gain: float = 0.8
    depthwise_source_gain_bf16: float = 10.0  # with strides, for which the library has only its reference
    depthwise_weight_gain: float = 3.0  # of kernels larger than 3x3
    outer_gain_bf16: float = 0.5  # products with few terms
    # Swish applied in place after the library's convolution: elements of the result
    swish_elements: int = 1 << 15
    # Own weight gradients of convolutions: channels of source and result
    weight_gradient_channels: int = 64
    weight_gradient_pixels: int = 8  # per channel, above which cores divide the pixels
    weight_gradient_step_bytes: int = 2620  # of the second-level cache for the panels of one pixel
    # Own weight gradients of depthwise 3x3 convolutions: bytes of source and gradient, read once instead of per tap
    depthwise_gradient_bytes: int = 16 << 20
    # The library's weight gradients: operations from which cores that meet at barriers are faster than one, and the
    # least share of the cores' time at work if each has a primitive for its own images
    gradient_flops: int = 50_000_000
    gradient_evenness: float = 0.85
    # LSTM layers in inference: batch up to which reading recurrent weights dominates
    lstm_batch: int = 4
    # Attention as one task: queries from which packing keys and values pays off
    attention_queries: int = 16
    attention_gradient_scores: int = 1 << 20  # of a head, all of which the gradient keeps: at most this many
    # Loops: overhead of one task of a step
    task_ns: float = 1_000.0
    # Lookups in tables of 256 bytes: operators and elements from which they are faster than computing
    lookup_operators: int = 4
    lookup_elements: int = 32

    # GPUs: rows up to which the memory of the weights limits a product; smallest side and multiplications of products,
    # and of convolutions, for which copies to aligned rows pay off; results for which folding strides into channels
    # does; elements that no cache holds until they are read again; of long sums the pieces per thread, which hide the
    # latency of memory, and the elements of a piece, more than there are sums to add afterwards (both not measured)
    few_rows: int = 64
    aligned_side: int = 256
    aligned_work: int = 1 << 29
    aligned_windows: int = 1 << 31
    folded_places: int = 1 << 16
    moments_elements: int = 1 << 18
    pieces_per_thread: int = 4
    piece_elements: int = 8

    @classmethod
    def of(cls, values: Mapping[str, float]) -> CostTable:
        """A table with some values replaced; unknown names raise TypeError."""
        whole = {field.name for field in dataclasses.fields(cls) if isinstance(field.default, int)}
        given: dict[str, Any] = {n: int(v) if n in whole else float(v) for n, v in values.items()}
        return cls(**given)


# Measured on a 2-core AVX-512 server with bfloat16 products; AVX2 was measured there under NPU_MAX_ISA=avx2.
# Instructions for bytes and half floats do not change these costs. AMX multiplies narrow types only: float32 costs the
# same with it.
_AVX2, _AVX512 = CostTable(), CostTable()
_AMX = dataclasses.replace(_AVX512, narrow_floats=False)
_SHIPPED = {
    "avx2": _AVX2,
    "avx2_vnni": _AVX2,
    "avx2_vnni_2": _AVX2,
    "avx512_core": _AVX512,
    "avx512_core_vnni": _AVX512,
    "avx512_core_bf16": _AVX512,
    "avx512_core_fp16": _AVX512,
    "avx512_core_amx": _AMX,
    "avx512_core_amx_fp16": _AMX,
}


def shipped(isa: str) -> CostTable | None:
    """The table shipped with the package for an instruction set, None if nothing was measured."""
    return _SHIPPED.get(isa)
