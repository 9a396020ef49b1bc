"""The vector DSL for dynamic shapes, under its older name."""

from tbe import dsl as _dsl
from tbe.dsl import *  # noqa: F403

__all__ = list(_dsl.__all__)
