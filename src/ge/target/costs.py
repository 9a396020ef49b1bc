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
    # Matrix products by Strassen's algorithm
    strassen_depth: int = 512  # terms of a sum
    strassen_gain: float = 1.05  # least ratio of arithmetic saved to packing added
    strassen_gain_packed: float = 1.085  # the same if the library packs the second operand once
    # Products with few rows or terms: elements of the large operand
    narrow_elements: int = 1 << 14
    # Products with few terms: bytes of the result from which it is written past the caches (bfloat16: never)
    outer_bytes: int = 8 << 20
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
    # Swish applied in place after the library's convolution: elements of the result
    swish_elements: int = 1 << 15
    # Own weight gradients of convolutions: channels of source and result
    weight_gradient_channels: int = 64
    # Own weight gradients of depthwise 3x3 convolutions: bytes of source and gradient, read once instead of per tap
    depthwise_gradient_bytes: int = 16 << 20
    # LSTM layers in inference: batch up to which reading recurrent weights dominates
    lstm_batch: int = 4
    # Attention as one task: queries from which packing keys and values pays off
    attention_queries: int = 16
    attention_gradient_scores: int = 1 << 20  # of a head, all of which the gradient keeps: at most this many

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
