"""Schedules and checks under the names the oldest operator files import."""

from topi import cce, generic

__all__ = ["cce", "generic"]
