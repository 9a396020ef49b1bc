"""TensorFlow operators that the host runs with NumPy: text, tables, ragged and sparse structure, integers."""

from ge.parsers.tensorflow.host import integers, ragged, tables, text
from ge.parsers.tensorflow.host.operators import INTEGERS, OPERATORS, HostNode

__all__ = ["INTEGERS", "OPERATORS", "HostNode"]

_DECLARING = (integers, ragged, tables, text)
