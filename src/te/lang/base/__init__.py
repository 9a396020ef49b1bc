"""Registration and classification, under their older names."""

from te.lang.base import operation_impl as operation
from te.lang.base import shape_classifier

__all__ = ["operation", "shape_classifier"]
