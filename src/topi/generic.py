"""`generic.auto_schedule`."""

from tbe.dsl import auto_schedule

__all__ = ["auto_schedule"]
