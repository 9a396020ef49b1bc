"""Cases of shapes, under their older names."""

from tbe.dsl import OpPatternMode, classify

Mode = OpPatternMode

__all__ = ["Mode", "OpPatternMode", "classify"]
