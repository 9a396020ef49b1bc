"""Sizes of element types."""

from tbe.common.platform import get_bit_len

__all__ = ["get_bit_len"]
