"""Languages of operator files."""

from te.lang import base, cce, dynamic

__all__ = ["base", "cce", "dynamic"]
