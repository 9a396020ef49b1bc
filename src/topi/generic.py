"""`generic.auto_schedule`."""

from tbe.tvm.topi.generic import auto_schedule

__all__ = ["auto_schedule"]
