"""Schedules and checks under the names that the oldest operator files import."""

from tbe.tvm.topi import cce, generic

__all__ = ["cce", "generic"]
