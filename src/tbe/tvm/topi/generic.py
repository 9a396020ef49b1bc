"""`generic.auto_schedule`."""

from tbe.dsl.building import auto_schedule

__all__ = ["auto_schedule"]
