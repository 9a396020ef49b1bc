"""The vector DSL of operator files (`te.lang.cce`, `tbe.dsl`), and what turns such files into expressions.

>>> import numpy as np, tbe
>>> from tbe import dsl
>>> def softsign_compute(x, y, kernel_name="softsign"):
...     return dsl.vdiv(x, dsl.vadds(dsl.vabs(x), 1))
>>> tbe.run_operator(softsign_compute, np.array([1.0, -3.0], np.float32)).tolist()
[0.5, -0.75]
"""

from tbe.dsl import elementwise as _elementwise
from tbe.dsl import structure as _structure
from tbe.dsl.building import Built, Schedule, auto_schedule, build, cce_build_code, compute
from tbe.dsl.dynamic import OpPatternMode, classify, var
from tbe.dsl.elementwise import *  # noqa: F403
from tbe.dsl.refused import CUBE as _CUBE
from tbe.dsl.refused import refuse_cube as _refuse_cube
from tbe.dsl.registry import computes, operators
from tbe.dsl.running import Runner, run_operator, runner
from tbe.dsl.structure import *  # noqa: F403
from tbe.dsl.tensor import Tensor
from tbe.dsl.tracing import (
    OperatorError,
    OperatorFile,
    Signature,
    compute_function,
    description,
    load_operator,
    trace,
)

globals().update({name: _refuse_cube(name) for name in _CUBE})

__all__ = [
    "Built",
    "OpPatternMode",
    "OperatorError",
    "OperatorFile",
    "Runner",
    "Schedule",
    "Signature",
    "Tensor",
    "auto_schedule",
    "build",
    "cce_build_code",
    "classify",
    "compute",
    "compute_function",
    "computes",
    "description",
    "load_operator",
    "operators",
    "run_operator",
    "runner",
    "trace",
    "var",
    *_elementwise.__all__,
    *_structure.__all__,
]
