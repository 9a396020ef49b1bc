"""The plugins' view of a PaddlePaddle operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode
from ge.ops.math.derivatives import summed_to
from ge.ops.plugins import Unsupported, plugin
from ge.parsers.aten.parser import Call, Emitter
from ge.parsers.paddle.program import Operation

__all__ = ["PaddleNode", "axis_of", "paddle"]


@dataclass
class PaddleNode(AtenNode):
    """Inputs are in the order of Paddle's operands: a tensor, a list of tensors, or None for an absent one.

    What Paddle defines as PyTorch does is mapped by the plugin of the ATen operator (`aten`).
    """

    inputs: Sequence[Any]
    operation: Operation = field(default_factory=lambda: Operation("", {}, (), ()))

    def tensors(self, index: int = 0) -> list[Any]:
        """An input that is a list of tensors."""
        found = self.inputs[index]
        return found if isinstance(found, list) else [found]

    def is_wanted(self, index: int) -> bool:
        """Whether a result exists (gradients that were not asked for do not)."""
        return index < len(self.operation.results) and self.operation.results[index].number != 0

    def like(self, index: int = 0) -> TensorDesc:
        """The description of an input."""
        return self.desc(index)

    def number(self, index: int, default: Any = None) -> Any:
        """A constant input of one element as a Python number."""
        if self.input(index) is None:
            return default
        return self.const(index).reshape(-1)[0].item()

    def constant(self, value: Any, dtype: str) -> Any:
        """A constant in an element type."""
        return self.builder.constant(np.asarray(value).astype(numpy_dtype(dtype)))

    def aten(self, target: str, results: Sequence[TensorDesc | None], /, **arguments: Any) -> Any:
        """What an ATen call gives; one value where it has one result."""
        made = Emitter(self.builder).emit(Call(f"aten.{target}", self.name, arguments, results))
        return made[0] if len(results) == 1 else made

    def same(self, target: str, /, **arguments: Any) -> Any:
        """An ATen call whose result is like the first tensor among its arguments."""
        first = next(v for v in arguments.values() if isinstance(v, ir.Value))
        return self.aten(target, [desc_of(first)], **arguments)

    def sum_to(self, value: Any, desc: TensorDesc) -> Any:
        """A gradient summed over the axes that broadcasting added."""
        return summed_to(self.op, value, desc.shape)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front.

    >>> axis_of(-1, 4)
    3
    """
    if not -rank <= axis < max(rank, 1):
        raise Unsupported(f"axis {axis} of a tensor of {rank} dimensions")
    return axis + rank if axis < 0 else axis


def paddle(*names: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Declare how operators of PaddlePaddle map (a decorator), by their names in the dialect `pd_op`."""
    return plugin(paddle=names)
