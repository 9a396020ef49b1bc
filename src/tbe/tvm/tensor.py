"""The class of tensors."""

from tbe.dsl.tensor import Tensor

__all__ = ["Tensor"]
