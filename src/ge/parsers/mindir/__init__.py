"""MindSpore's graphs (MINDIR): reader, and plugins of its primitives."""

from ge.parsers.mindir import (  # noqa: F401  the plugins
    control,
    gradients,
    layers,
    math,
    movement,
    optimizers,
    random,
    recurrent,
)
