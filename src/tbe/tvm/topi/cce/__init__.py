"""Checks of the oldest operator files."""

from tbe.tvm.topi.cce import util

__all__ = ["util"]
