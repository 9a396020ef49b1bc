"""Quantised models run on integers."""

from __future__ import annotations

import numpy as np
import pytest

from ge.passes import STAGES
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.cleanup.fold_constants import FoldConstants
from ge.passes.fusion.fuse_quantised_sums import FuseQuantisedSums
from ge.passes.rewrite import attrs_of
from tests.passes.pass_support import floats, transformed, types
from tests.support.small_graphs import compiled

QUANTISED = next(stage.passes for stage in STAGES if stage.name == "quantised")
SCALE = np.float32(0.02)


def quantised(b, v, zero=3, scale=SCALE):
    return b.op("Quantize", v, scale, np.uint8(zero), dtype="uint8")


def dequantised(b, v, zero=3, scale=SCALE):
    return b.op("Dequantize", v, scale, np.uint8(zero))


def grid(b, v, zero=3, scale=SCALE):
    return dequantised(b, quantised(b, v, zero, scale), zero, scale)


def weight(b, *shape, axis=0, zero=0):
    values = np.random.default_rng(0).integers(-100, 100, shape).astype(np.int8)
    scales = floats(shape[axis], low=0.001, high=0.01)
    return b.op("Dequantize", b.constant(values), scales, np.full(shape[axis], zero, np.int8), axis=axis)


def image(b):
    return b.input("x", (2, 4, 6, 6), "float32")


def test_a_convolution_between_grids_is_an_integer_convolution():
    def build(b):
        v = b.op(
            "Conv", grid(b, image(b)), weight(b, 8, 4, 3, 3), floats(8), pads_begin=[1, 1], pads_end=[1, 1]
        )
        return dequantised(b, quantised(b, v))

    graph = transformed(build, *QUANTISED, tolerance=0.02)
    assert types(graph) == ["Quantize", "QConv", "Dequantize"]
    attrs = attrs_of(list(graph)[1])
    assert (attrs["src_zero_point"], attrs["dst_zero_point"], attrs["output_dtype"]) == (3, 3, "uint8")


def test_a_product_that_nobody_quantises_gives_floats():
    def build(b):
        v = grid(b, b.input("x", (4, 8), "float32"))
        return b.op("Tanh", b.op("MatMul", v, weight(b, 8, 5, axis=1), floats(5)))

    graph = transformed(build, *QUANTISED)
    assert types(graph) == ["Quantize", "QMatMul", "Tanh"]


@pytest.mark.parametrize(("zero", "wanted"), [(0, ["Quantize", "QConv", "Dequantize"]), (3, None)])
def test_relu_goes_only_where_the_grid_has_no_negative_values(zero, wanted):
    def build(b):
        v = b.op("Relu", b.op("Conv", grid(b, image(b)), weight(b, 8, 4, 1, 1)))
        return dequantised(b, quantised(b, v, zero), zero)

    found = types(transformed(build, *QUANTISED, tolerance=0.02))
    assert found == wanted if wanted else "Relu" in found


def test_pooling_and_movements_work_on_the_integers():
    def build(b):
        v = b.op("MaxPool", grid(b, image(b)), kernel=[2, 2], strides=[2, 2])
        v = b.op("Reshape", grid(b, v), shape=[2, 36])
        return grid(b, v)

    graph = transformed(build, *QUANTISED)
    assert types(graph) == ["Quantize", "MaxPool", "Reshape", "Dequantize"]


def test_a_weight_with_zero_points_keeps_the_float_product():
    def build(b):
        return b.op("Tanh", b.op("Conv", grid(b, image(b)), weight(b, 8, 4, 1, 1, zero=5)))

    graph = transformed(build, *QUANTISED, FoldConstants())
    assert "QConv" not in types(graph) and "Conv" in types(graph)


def test_scales_along_another_axis_keep_the_float_product():
    def build(b):
        return b.op("Tanh", b.op("Conv", grid(b, image(b)), weight(b, 8, 4, 1, 1, axis=1)))

    assert "QConv" not in types(transformed(build, *QUANTISED))


def test_other_grids_are_not_merged():
    def build(b):
        v = dequantised(b, quantised(b, image(b)))
        return dequantised(b, quantised(b, v, zero=7), zero=7)

    assert types(transformed(build, *QUANTISED)).count("Quantize") == 2


# -- residual additions ------------------------------------------------------------------------------------------

SUMS = (*QUANTISED, FuseQuantisedSums(), DeadCode())


def residual_block(b, relu=False, zero=0, residual=np.uint8, other_zero=5):
    """A quantised convolution plus a quantised input, on a third grid."""
    other = b.op(
        "Quantize",
        b.input("r", (2, 8, 6, 6), "float32"),
        SCALE,
        residual(other_zero),
        dtype=residual.__name__,
    )
    other = b.op("Dequantize", other, SCALE, residual(other_zero))
    v = b.op("Conv", grid(b, image(b)), weight(b, 8, 4, 1, 1), floats(8))
    total = b.op("Add", grid(b, v, zero=100, scale=np.float32(0.015)), other)
    total = b.op("Relu", total) if relu else total
    return dequantised(b, quantised(b, total, zero, np.float32(0.03)), zero, np.float32(0.03))


@pytest.mark.parametrize(("residual", "other_zero"), [(np.uint8, 5), (np.uint8, 0), (np.int8, -7)])
@pytest.mark.parametrize(("relu", "zero"), [(True, 0), (False, 90)])
def test_a_residual_is_added_by_the_integer_convolution(relu, zero, residual, other_zero):
    def build(b):
        return residual_block(b, relu, zero, residual, other_zero)

    graph = transformed(build, *SUMS, tolerance=0.02)
    assert sorted(types(graph)) == ["Dequantize", "QConv", "Quantize", "Quantize"]
    assert attrs_of(next(n for n in graph if n.op_type == "QConv"))["post_ops"][-1] == "add"


def test_relu_above_a_grid_with_negative_values_stays():
    graph = transformed(lambda b: residual_block(b, relu=True, zero=9), *SUMS, tolerance=0.02)
    assert "Relu" in types(graph)


@pytest.mark.parametrize("zero", [0, 100])
def test_compiled_sums_are_the_interpreters(zero):
    """Of two roundings one is left out, so a result may be one step of its grid away."""

    def build(b):
        v = grid(b, image(b))
        left = grid(b, b.op("Conv", v, weight(b, 16, 4, 3, 3), floats(16)), 90)
        right = grid(b, b.op("Conv", v, weight(b, 16, 4, 3, 3), floats(16, seed=1)), zero)
        v = grid(b, b.op("Relu", b.op("Add", left, right)), 0, np.float32(0.03))
        return grid(b, b.op("Conv", v, weight(b, 8, 16, 1, 1)), 100, np.float32(0.05))

    model = compiled(build, tolerance=0.1)
    convolutions = [task for task in model.plan.tasks if task.kind == "conv"]
    assert len(convolutions) == 3
    assert sum(bool({"add", "sum"} & set(task.attrs["post_ops"])) for task in convolutions) == 1
