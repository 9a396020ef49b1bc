"""Maps PyTorch's ATen graphs to GE graphs."""

from ge.parsers.aten import (  # noqa: F401  the plugins are declared when their modules are loaded
    creation,
    index,
    math,
    movement,
    order,
    recurrent,
    reduce,
    special,
)
