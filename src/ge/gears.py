"""Gears: one model compiled for several input shapes; each run selects the one that fits."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ge.errors import GeError
from ge.options.values import SizeRange

__all__ = ["GearKind", "Gears"]

MAX_GEARS = 100
DYNAMIC = -1


class GearKind(enum.Enum):
    """The dimensions that vary between gears."""

    BATCH = "batch"  # one number for all dynamic dimensions
    IMAGE = "image_size"  # height and width
    DIMS = "dims"  # one number per dynamic dimension


@dataclass(frozen=True)
class Gears:
    """Input shapes with -1 for the dimensions that vary, and the choices for these dimensions.

    >>> gears = Gears.parse(GearKind.BATCH, "1,4", {"x": (-1, 3)})
    >>> gears.shapes(1)
    {'x': (4, 3)}
    """

    kind: GearKind
    inputs: Mapping[str, tuple[int, ...]]
    choices: tuple[tuple[int, ...], ...]

    @classmethod
    def parse(cls, kind: GearKind, text: str, inputs: Mapping[str, Sequence[int]]) -> Gears:
        """Gears from the text of a command line option: "1,4,8", "224,224;448,448" or "8,16;8,32"."""
        parts = text.replace(" ", "").strip(";,")
        rows = parts.split(",") if kind is GearKind.BATCH else parts.split(";")
        try:
            choices = tuple(tuple(int(v) for v in row.split(",")) for row in rows)
        except ValueError as error:
            raise GeError(
                "E12004", f"the {kind.value} gears '{text}' are not numbers", remedy=_EXAMPLES[kind]
            ) from error
        gears = cls(kind, {name: tuple(shape) for name, shape in inputs.items()}, choices)
        gears.check()
        return gears

    @classmethod
    def of_ranges(cls, inputs: Mapping[str, Sequence[int]]) -> Gears | None:
        """One gear for every combination of sizes in ranges such as "1~8"; None if no size has bounds.

        The same range in the first dimension (the batch) of several inputs is one choice.

        >>> from ge.options.values import SizeRange
        >>> Gears.of_ranges({"x": (SizeRange(1, 2), SizeRange(3, 4)), "y": (SizeRange(1, 2),)}).choices
        ((1, 3, 1), (1, 4, 1), (2, 3, 2), (2, 4, 2))
        """
        keys = [
            (size.sizes, 0 if place == 0 else (name, place))
            for name, shape in inputs.items()
            for place, size in enumerate(shape)
            if isinstance(size, SizeRange)
        ]
        if not keys:
            return None
        chosen = list(dict.fromkeys(keys))
        count = math.prod(len(sizes) for sizes, _ in chosen)
        if count > MAX_GEARS:
            raise GeError(
                "E12005",
                f"the ranges of sizes have {count} combinations, more than {MAX_GEARS}",
                remedy=f"name the sizes that come, {_EXAMPLES[GearKind.DIMS]}",
            )
        rows = (dict(zip(chosen, row, strict=True)) for row in itertools.product(*(s for s, _ in chosen)))
        choices = tuple(tuple(row[key] for key in keys) for row in rows)
        gears = cls(GearKind.DIMS, {name: tuple(shape) for name, shape in inputs.items()}, choices)
        gears.check()
        return gears

    def check(self) -> None:
        """Raise if choices and shapes do not match."""
        places = self._places()
        expected = {GearKind.BATCH: 1, GearKind.IMAGE: 2, GearKind.DIMS: places}[self.kind]
        if not places:
            raise GeError(
                "E12005", "gears are given but no input has a dimension of -1", remedy=_EXAMPLES[self.kind]
            )
        if self.kind is GearKind.IMAGE and any(self._dynamic(s) not in (0, 2) for s in self.inputs.values()):
            raise GeError(
                "E12005", "an image size needs exactly two dimensions of -1", remedy=_EXAMPLES[self.kind]
            )
        for choice in self.choices:
            if len(choice) != expected or any(v < 1 for v in choice):
                cause = f"gear {','.join(map(str, choice))} must have {expected} positive number(s)"
                raise GeError("E12005", cause, remedy=_EXAMPLES[self.kind])
        if not 1 <= len(set(self.choices)) == len(self.choices) <= MAX_GEARS:
            raise GeError(
                "E12005", f"there must be 1 to {MAX_GEARS} gears, all different", remedy=_EXAMPLES[self.kind]
            )

    def shapes(self, index: int) -> dict[str, tuple[int, ...]]:
        """The input shapes of one gear."""
        values: Iterator[int] = iter(self.choices[index])
        if self.kind is not GearKind.DIMS:
            values = itertools.cycle(self.choices[index])
        return {
            name: tuple(next(values) if d == DYNAMIC else d for d in shape)
            for name, shape in self.inputs.items()
        }

    def _places(self) -> int:
        return sum(self._dynamic(shape) for shape in self.inputs.values())

    @staticmethod
    def _dynamic(shape: Sequence[int]) -> int:
        return sum(1 for d in shape if d == DYNAMIC)


_EXAMPLES = {
    GearKind.BATCH: 'for example --input_shape="x:-1,3,224,224" --dynamic_batch_size="1,4,8"',
    GearKind.IMAGE: 'for example --input_shape="x:1,3,-1,-1" --dynamic_image_size="224,224;448,448"',
    GearKind.DIMS: 'for example --input_shape="ids:-1,-1" --dynamic_dims="1,128;8,128"',
}
