"""Traits: what precision modes and kernel fusion must know of an operator, declared with it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Cost", "ImageFormat", "Precision", "Result"]


class Cost(enum.IntEnum):
    """How long one element takes, in arithmetic: whether a kernel may compute it again for each reader."""

    CHEAP = 0
    SLOW = 1  # exp, log, tanh: not again where the value is in memory anyway
    EXPENSIVE = 2  # pow, erf, inverse functions: never again for many results


class Result(enum.Enum):
    """The element type of a narrowed operator's result."""

    NARROW = "that of its inputs"
    EITHER = "that of its inputs, or float32 where that is asked for by output_dtype"
    WIDE = "float32, by output_dtype"


@dataclass(frozen=True)
class Precision:
    """How an operator takes part in precision modes."""

    narrows: bool = False  # float32 inputs may be given in 16 bits; sums stay float32
    product: bool = False  # runs as products of matrices: what it reads is worth storing in 16 bits
    keeps: tuple[int, ...] = (2,)  # inputs that stay as they are when the others are narrowed
    masked: bool = False  # some inputs may be bools
    result: Result = Result.NARROW
    sensitive: bool = False  # statistics or steps need the full precision of what they read
    normalises: bool = False  # the sums it reads are the residual stream of a transformer


@dataclass(frozen=True)
class ImageFormat:
    """An operator on images whose attribute data_format says where the channels are."""

    images: int = 1  # so many inputs, the first ones, are images
    leads: bool = False  # a graph that has such a node stores its images channels-last
    image_result: bool = True
