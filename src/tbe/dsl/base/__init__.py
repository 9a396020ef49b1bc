"""What operator files ask about the build at work."""

from tbe.dsl.base import operation

__all__ = ["operation"]
