"""Maps post-ops to the epilogues of our own kernels and states which of them each kernel supports."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ge.implementations.base import Operation
from ge.plan import View

__all__ = ["Epilogue", "is_like", "read_epilogue"]


@dataclass
class Epilogue:
    """The epilogue of a sum: bias, residual, factor, activation, in this order."""

    bias: bool = False
    residual: bool = False
    factor: bool = False
    activation: str = ""
    why_not: str = ""  # the post-op that a kernel cannot apply


def is_like(view: View, other: View) -> bool:
    """True if two tensors have the same type, shape and layout."""
    return (view.shape, view.strides, view.dtype) == (other.shape, other.strides, other.dtype)


def read_epilogue(op: Operation, first: int, activations: Collection[str]) -> Epilogue:
    """Parse at most one addition of a tensor like the result, then at most one of the activations.

    first: the index of the first post-op operand among the inputs.
    """
    found = Epilogue()
    for text in op.post_ops:
        kind = text.partition(",")[0]
        if found.activation:
            found.why_not = f"{kind} follows an activation"
        elif text == "add" and not found.residual:
            if not is_like(op.inputs[first], op.outputs[0]):
                found.why_not = "it adds an operand that is not laid out like the result"
            first += 1
            found.residual = True
        elif text == "sum" and not found.residual:
            found.residual = True
        elif kind in activations:
            found.activation = kind
        else:
            found.why_not = f"it has no epilogue {kind}"
        if found.why_not:
            return found
    if first != len(op.inputs):
        found.why_not = "it has operands that no post-operation takes"
    return found
