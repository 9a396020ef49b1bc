"""Options: one table (`table`), how values are read (`values`), and the record that a compile reads (`record`)."""

from ge.options.record import CompileOptions, compile_options
from ge.options.table import OptionError, UnknownOptionError
from ge.options.values import RECOMPUTE, Implementation, PrecisionMode

__all__ = [
    "RECOMPUTE",
    "CompileOptions",
    "Implementation",
    "OptionError",
    "PrecisionMode",
    "UnknownOptionError",
    "compile_options",
]
