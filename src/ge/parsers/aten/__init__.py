"""Maps PyTorch's ATen calls to operators; their plugins stand beside the operators, in `ge.ops`."""

from ge.ops.math import aten_arithmetic, aten_reductions, aten_special  # noqa: F401  declare plugins when loaded
from ge.ops.nn import aten_recurrent  # noqa: F401
from ge.ops.tensor import aten_creation, aten_indexing, aten_movement, aten_sorting  # noqa: F401
