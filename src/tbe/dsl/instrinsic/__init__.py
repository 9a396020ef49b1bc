"""Facts about instructions, where operator files look for them (the name is spelled as they spell it)."""

from tbe.dsl.instrinsic import cce_intrin

__all__ = ["cce_intrin"]
