"""Small plans made by hand, for tests of model files and of acl that need no compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ge.gears import GearKind, Gears
from ge.ir.types import TensorDesc
from ge.model import codec
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


def edited(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """`dense` as plain data, with a change."""
    data = codec.decode_json(
        codec.encode_json(codec.encode_plan(dense(), codec.ConstantPool(), codec.KernelPool())), "plan"
    )
    change(data)
    return data


def replaced(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    """A change that puts a value somewhere."""

    def change(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return change


# Changes after which a plan makes no sense.
SENSELESS = [
    replaced("tasks", 0, "inputs", 0, 0, to=99),  # a buffer that is not there
    replaced("tasks", 0, "inputs", 0, 0, to=-1),
    replaced("tasks", 0, "inputs", 0, 2, to=[2, 400]),  # shape beyond the buffer
    replaced("tasks", 0, "inputs", 0, 3, to=[1 << 40, 1]),  # stride beyond the buffer
    replaced("tasks", 0, "inputs", 0, 3, to=[-4, 1]),
    replaced("tasks", 0, "inputs", 0, 4, to=1),  # offset beyond the buffer
    replaced("tasks", 0, "inputs", 0, 4, to=1.0),
    replaced("tasks", 0, "inputs", 0, 1, to="complex64"),
    replaced("tasks", 0, "inputs", 0, to=[0, "float32"]),
    replaced("tasks", 0, "outputs", 0, 0, to=1),  # writing a constant
    replaced("tasks", 0, "outputs", 0, 0, to=0),  # writing an input
    replaced("tasks", 1, "inputs", 0, 2, to=[1 << 60, 1 << 60]),
    replaced("tasks", 0, "kind", to="kernel"),  # without a kernel
    replaced("tasks", 0, "attrs", to=[1]),
    replaced("tasks", 0, "attrs", "x", to={"a": 1}),
    replaced("tasks", 0, "attrs", "x", to=[[1]]),
    replaced("tasks", 0, "attrs", "x", to=1 << 70),
    replaced("tasks", 0, "attrs", "then_block", to=1),  # a block that is not there
    replaced("tasks", 0, "block", to=1),
    replaced("tasks", 0, "name", to=None),
    replaced("buffers", 3, to=["arena", 24, 1 << 20, 0]),  # outside the arena
    replaced("buffers", 3, to=["heap", 24, 0, 0]),
    replaced("buffers", 0, to=["input", 3200, 0, 0]),  # larger than the input
    replaced("buffers", 0, to=["input", 32, 0, 5]),
    replaced("buffers", 1, to=["constant", 4800, 0, 0]),
    replaced("buffers", 4, to=["input", 24, 0, 0]),  # two buffers for an input, none for the output
    replaced("constants", 0, to=7),
    replaced("kernels", to=[0]),
    replaced("blocks", to=0),
    replaced("blocks", to=True),
    replaced("steps", to=0),
    replaced("steps", to="2"),
    replaced("arena_bytes", to=-1),
    replaced("arena_bytes", to=1 << 60),
    replaced("inputs", 0, "shape", to=[2, -4]),
    replaced("inputs", 0, "dtype", to="string"),
    replaced("inputs", 0, to=None),
    replaced("outputs", to={}),
    replaced("report", to=[]),
]
