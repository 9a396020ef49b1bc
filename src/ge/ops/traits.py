"""Traits: properties of operators that passes rely on, declared with the operator."""

from __future__ import annotations

import enum
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

__all__ = ["Cost", "Epilogue", "Formula", "ImageFormat", "Precision", "Result", "Sign", "WeightAxes"]


class Cost(enum.IntEnum):
    """The arithmetic cost per element: determines whether a kernel may recompute it for each reader."""

    PLAIN = 0  # an instruction: worth a separate kernel if that saves memory
    CHEAP = 1
    SLOW = 2  # exp, log, tanh: not recomputed if the value is stored anyway
    EXPENSIVE = 3  # pow, erf, inverse functions: never recomputed for many results


class Sign(enum.Enum):
    """Whether an operator's results can be negative."""

    ANY = "they can"
    KEPT = "not where no input is"
    NON_NEGATIVE = "they cannot"


class Formula(enum.Enum):
    """An operator's role in decomposed activations, which are recognised by their values."""

    NONE = "it is not: the operator ends the formula"
    PART = "arithmetic between numbers and functions"
    CURVE = "a function without which no formula is an activation"


@dataclass(frozen=True)
class Epilogue:
    """The equivalent post-op of products and convolutions; `{…}` stands for an attribute.

    >>> Epilogue("leaky,{alpha!r}").of({"alpha": 0.1}), Epilogue("clip,{min!r},{max!r}").of({"min": 0.0, "max": None})
    ('leaky,0.1', '')
    """

    form: str
    # Attribute values with another name there; None for those that no post-op has.
    words: Mapping[Any, str | None] = field(default_factory=dict)

    def of(self, attrs: Mapping[str, Any]) -> str:
        """The post-op for attributes, "" if one of them is absent or has no equivalent."""
        names = [name for _, name, _, _ in string.Formatter().parse(self.form) if name]
        known = {name: self.words.get(attrs[name], attrs[name]) for name in names}
        return "" if None in known.values() else self.form.format(**known)

    def attrs_of(self, post_op: str) -> dict[str, Any] | None:
        """The attributes for which `of` gives a post-op; None if there are none.

        >>> Epilogue("clip,{min!r},{max!r}").attrs_of("clip,0.0,6.0"), Epilogue("relu").attrs_of("clip,0.0,6.0")
        ({'min': 0.0, 'max': 6.0}, None)
        """
        pattern, numbers = "", set()
        for text, name, _, conversion in string.Formatter().parse(self.form):
            pattern += re.escape(text) + (f"(?P<{name}>[^,]+)" if name else "")
            numbers |= {name} if conversion == "r" else set()
        found = re.fullmatch(pattern, post_op)
        if found is None:
            return None
        words = {word: value for value, word in self.words.items()}
        return {
            name: float(text) if name in numbers else words.get(text, text)
            for name, text in found.groupdict().items()
        }


class Result(enum.Enum):
    """The element type of a narrowed operator's result."""

    NARROW = "that of its inputs"
    EITHER = "that of its inputs, or float32 where that is asked for by output_dtype"
    WIDE = "float32, by output_dtype"


@dataclass(frozen=True)
class Precision:
    """How precision modes treat an operator."""

    narrows: bool = False  # float32 inputs may be narrowed to 16 bits; sums stay float32
    product: bool = False  # runs as matrix products: its inputs are worth storing in 16 bits
    keeps: tuple[int, ...] = (2,)  # inputs that stay unchanged when the others are narrowed
    masked: bool = False  # some inputs may be bools
    result: Result = Result.NARROW
    sensitive: bool = False  # statistics or steps that need the full precision of their inputs
    normalises: bool = False  # the sums it reads are the residual stream of a transformer
    passes_on: bool = False  # its result is as sensitive as its inputs: scores and sums in between
    widens: bool = False  # runs in float32, between casts, if the primitives lack its 16-bit type
    # True for a node whose 16-bit primitive multiplies unrelated elements by zero: NaN would spread
    spreads: Callable[[ir.Node], bool] = lambda node: False


@dataclass(frozen=True)
class ImageFormat:
    """An operator on images whose attribute data_format gives the position of the channels."""

    images: int = 1  # the number of leading inputs that are images
    leads: bool = False  # a graph with such a node stores its images channels-last
    image_result: bool = True


@dataclass(frozen=True)
class WeightAxes:
    """The channel axes of a product; None where one value per channel does not broadcast over the weight."""

    data: int  # the channels of the first input and of the result
    outputs: int | None  # of the weight: the channels of the result
    inputs: int | None  # of the weight: the channels of the first input
    # Of the weight: the axes over which one result is a sum, channels before the taps of a window; () if unknown.
    summed: tuple[int, ...] = ()
    groups: int | None = None  # of a convolution's channels
