"""Storage format: channels last inside, transposes cancelled; large reductions in two steps."""

from __future__ import annotations

import pytest

from ge.passes import STAGES
from ge.passes.fusion.split_reductions import SplitReductions
from ge.passes.layout.sink_transposes import SinkTransposes
from ge.passes.rewrite import attrs_of
from tests.passes.pass_support import floats, transformed, types

FORMAT = next(stage.passes for stage in STAGES if stage.name == "format")


def image(b, channels=4, size=8):
    return b.input("x", (2, channels, size, size), "float32")


def conv(b, v, channels=6, kernel=3, seed=0, **attrs):
    pads = {"pads_begin": [kernel // 2] * 2, "pads_end": [kernel // 2] * 2}
    return b.op("Conv", v, floats(channels, int(v.shape[1]), kernel, kernel, seed=seed), **pads, **attrs)


def transposes(graph):
    return types(graph).count("Transpose")


def test_a_chain_of_convolutions_has_transposes_only_at_its_ends():
    graph = transformed(lambda b: conv(b, b.op("Relu", conv(b, conv(b, image(b))))), *FORMAT)
    assert transposes(graph) == 2
    assert all(attrs_of(n)["data_format"] == "channels_last" for n in graph if n.op_type == "Conv")


THROUGH = {
    "elementwise": lambda b, v: b.op("Tanh", b.op("Add", v, b.op("Sigmoid", v))),
    "per-channel constant": lambda b, v: b.op("Mul", v, floats(6, 1, 1)),
    "pooling": lambda b, v: b.op("MaxPool", v, kernel=[2, 2], strides=[2, 2]),
    "average": lambda b, v: b.op("AvgPool", v, kernel=[2, 2], strides=[2, 2]),
    "squeeze and excite": lambda b, v: b.op(
        "Mul", v, b.op("Sigmoid", b.op("ReduceMean", v, axes=[2, 3], keepdims=True))
    ),
    "concat": lambda b, v: b.op("Concat", v, b.op("Neg", v), axis=1),
    "split": lambda b, v: b.op("Split", v, axis=1, sizes=[2, 4])[1],
    "slice": lambda b, v: b.op("Slice", v, starts=[0, 1, 0, 2], ends=[2, 5, 8, 6]),
    "pad": lambda b, v: b.op("Pad", v, low=[0, 0, 1, 2], high=[0, 0, 0, 1]),
    "instance norm": lambda b, v: b.op("InstanceNorm", v, floats(6), floats(6)),
    "group norm": lambda b, v: b.op("GroupNorm", v, floats(6), floats(6), groups=2),
    "resize": lambda b, v: b.op(
        "Resize", v, axes=[2, 3], sizes=[16, 16], mode="nearest", coordinates="asymmetric"
    ),
    "depth to space": lambda b, v: b.op("DepthToSpace", b.op("Concat", v, v, axis=1), block=2),
    "softmax": lambda b, v: b.op("Softmax", v, axes=[1]),
    "clip": lambda b, v: b.op("Clip", v, min=0.0, max=6.0),
}


@pytest.mark.parametrize("middle", THROUGH.values(), ids=THROUGH)
def test_transposes_pass_through(middle):
    graph = transformed(lambda b: conv(b, middle(b, conv(b, image(b))), kernel=1), *FORMAT)
    assert transposes(graph) == 2


def test_residuals_cancel():
    def build(b):
        v = conv(b, image(b))
        for seed in range(3):
            v = b.op("Relu", b.op("Add", v, conv(b, v, seed=seed)))
        return b.op("ReduceMean", v, axes=[2, 3])

    assert transposes(transformed(build, *FORMAT)) == 1


def test_patches_become_rows_without_a_transpose():
    def build(b):
        v = b.op("Conv", image(b), floats(6, 4, 4, 4), strides=[4, 4])
        return b.op("Transpose", b.op("Reshape", v, shape=[2, 6, 4]), perm=[0, 2, 1])

    assert transposes(transformed(build, *FORMAT)) == 1


def test_graphs_without_convolutions_are_left_alone():
    graph = transformed(lambda b: b.op("MaxPool", image(b), kernel=[2, 2]), *FORMAT)
    assert types(graph) == ["MaxPool"]


def test_an_operand_of_full_size_in_another_order_stops_the_transpose():
    def build(b):
        v = b.op("Transpose", b.input("x", (2, 3, 4), "float32"), perm=[0, 2, 1])
        return b.op("Add", v, b.input("y", (2, 4, 3), "float32"))

    assert types(transformed(build, SinkTransposes())) == ["Transpose", "Add"]


def test_two_small_operands_do_not_hand_a_transpose_to_one_another():
    def build(b):
        v = b.op("Transpose", b.input("x", (16, 1, 8), "float32"), perm=[2, 1, 0])
        return b.op("Mul", v, b.input("y", (8, 16, 1), "float32"))

    assert types(transformed(build, SinkTransposes())) == ["Transpose", "Mul"]


@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_renumber_their_axes(keepdims):
    def build(b):
        v = b.op("Transpose", b.input("x", (2, 3, 4, 5), "float32"), perm=[0, 3, 1, 2])
        return b.op("ReduceMax", v, axes=[2], keepdims=keepdims)

    assert types(transformed(build, SinkTransposes())) == ["ReduceMax", "Transpose"]


# -- reductions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
def test_large_reductions_go_in_two_steps(type_):
    def build(b):
        return b.op(type_, b.input("x", (1, 64, 64, 16), "float32"), axes=[1, 2])

    graph = transformed(build, SplitReductions(), tolerance=1e-4)
    assert types(graph) == [type_, type_]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1, 8, 8, 16), [1, 2]), ((16, 64, 64, 16), [1, 2]), ((64, 64, 32), [1, 2]), ((9, 4096, 16), [1])],
)
def test_other_reductions_stay(shape, axes):
    def build(b):
        return b.op("ReduceSum", b.input("x", shape, "float32"), axes=axes)

    assert types(transformed(build, SplitReductions(), tolerance=1e-4)) == ["ReduceSum"]
