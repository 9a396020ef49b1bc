"""Traits: what passes must know of an operator, declared with it."""

from __future__ import annotations

import enum
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

__all__ = ["Cost", "Epilogue", "Formula", "ImageFormat", "Precision", "Result", "Sign"]


class Cost(enum.IntEnum):
    """How long one element takes, in arithmetic: whether a kernel may compute it again for each reader."""

    PLAIN = 0  # an instruction: worth a kernel of its own where that saves memory
    CHEAP = 1
    SLOW = 2  # exp, log, tanh: not again where the value is in memory anyway
    EXPENSIVE = 3  # pow, erf, inverse functions: never again for many results


class Sign(enum.Enum):
    """Whether an operator's results can be negative."""

    ANY = "they can"
    KEPT = "not where no input is"
    NON_NEGATIVE = "they cannot"


class Formula(enum.Enum):
    """Whether an activation written out in simpler operators is recognised through an operator, by its values."""

    NONE = "it is not: the operator ends the formula"
    PART = "arithmetic between numbers and functions"
    CURVE = "a function without which no formula is an activation"


@dataclass(frozen=True)
class Epilogue:
    """The post-op of products and convolutions that does the same; `{…}` stands for an attribute.

    >>> Epilogue("leaky,{alpha!r}").of({"alpha": 0.1}), Epilogue("clip,{min!r},{max!r}").of({"min": 0.0, "max": None})
    ('leaky,0.1', '')
    """

    form: str
    # Of attribute values that have another name there; None for those that no post-op has.
    words: Mapping[Any, str | None] = field(default_factory=dict)

    def of(self, attrs: Mapping[str, Any]) -> str:
        """The post-op for attributes, "" where one of them is absent or has no name there."""
        names = [name for _, name, _, _ in string.Formatter().parse(self.form) if name]
        known = {name: self.words.get(attrs[name], attrs[name]) for name in names}
        return "" if None in known.values() else self.form.format(**known)


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
    passes_on: bool = False  # its result is read as sensitively as its inputs: scores and sums on their way
    widens: bool = False  # runs in float32, between casts, where the primitives lack its 16-bit type
    # True for a node whose primitive of 16 bits multiplies elements that are not its own with zero: NaN would spread
    spreads: Callable[[ir.Node], bool] = lambda node: False


@dataclass(frozen=True)
class ImageFormat:
    """An operator on images whose attribute data_format says where the channels are."""

    images: int = 1  # so many inputs, the first ones, are images
    leads: bool = False  # a graph that has such a node stores its images channels-last
    image_result: bool = True
