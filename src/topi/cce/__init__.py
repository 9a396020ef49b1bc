"""Checks of the oldest operator files."""

from topi.cce import util

__all__ = ["util"]
