"""Small plans made by hand, for tests of model files and of acl that need no compiler."""

from __future__ import annotations

import numpy as np

from ge.gears import GearKind, Gears
from ge.ir.types import TensorDesc
from ge.model.om import Package
from ge.plan import Buffer, Plan, Port, Task, View

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
BIAS = np.array([-1.0, 0.0, 1.0], np.float32)


def dense(batch: int = 2) -> Plan:
    """y = relu(x @ WEIGHTS + BIAS), then a copy of it."""
    x, y = TensorDesc((batch, 4), "float32"), TensorDesc((batch, 3), "float32")
    weights, bias = WEIGHTS.copy(), BIAS.copy()
    bias_view = View(2, "float32", (1, 3), (3, 1))
    return Plan(
        "dense",
        [Port("x", x)],
        [Port("y", y)],
        buffers=[
            Buffer("input", x.nbytes),
            Buffer("constant", weights.nbytes, index=0),
            Buffer("constant", bias.nbytes, index=1),
            Buffer("arena", y.nbytes),
            Buffer("output", y.nbytes),
        ],
        tasks=[
            Task(
                "matmul",
                "dense",
                [View.of(0, x), View.of(1, TensorDesc((4, 3), "float32")), bias_view],
                [View.of(3, y)],
                {"has_bias": True, "post_ops": ["relu"]},
                engine="AI Core",
                origin=("layer/dense", "layer/relu"),
                flops=batch * 24,
            ),
            Task("copy", "copy", [View.of(3, y)], [View.of(4, y)]),
        ],
        constants=[weights, bias],
        arena_bytes=-(-y.nbytes // 64) * 64,
        report={"strategy": "first fit", "lower_bound": y.nbytes},
    )


def expected(x: np.ndarray) -> np.ndarray:
    """What `dense` computes."""
    return np.maximum(x @ WEIGHTS + BIAS, 0)


def geared(*batches: int) -> Package:
    """`dense` with batch gears."""
    gears = Gears(GearKind.BATCH, {"x": (-1, 4)}, tuple((b,) for b in batches))
    return Package([dense(b) for b in batches], gears, {"source": "hand"})
