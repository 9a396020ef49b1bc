"""Constants folded into weights, borders, post-ops, merged products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ge.compiler import compile_plan
from ge.ir.types import numpy_dtype
from ge.ir.values import constant_of
from ge.options import CompileOptions, Implementation
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.cleanup.merge_movements import MergeMovements
from ge.passes.cleanup.remove_identities import RemoveIdentities
from ge.passes.cleanup.simplify_algebra import SimplifyAlgebra
from ge.passes.fusion.broadcast_matmuls import BroadcastMatmuls
from ge.passes.fusion.fold_pads import FoldPads
from ge.passes.fusion.fold_weights import FoldWeights
from ge.passes.fusion.fuse_post_ops import FusePostOps
from ge.passes.fusion.merge_matmuls import MergeMatmuls
from ge.passes.rewrite import attrs_of
from tests.passes.pass_support import floats, transformed, types

SERVER = CompileOptions(target="avx512_bf16")


def image(b, channels=4, last=False):
    return b.input("x", (2, 6, 6, channels) if last else (2, channels, 6, 6), "float32")


def norm_inputs(channels):
    return [floats(channels, seed=i) for i in range(3)] + [floats(channels, seed=3, low=0.5, high=2.0)]


def conv(b, v, last=False, inputs=4, channels=5, **attrs):
    weight = floats(3, 3, inputs, channels) if last else floats(channels, inputs, 3, 3)
    formats = {"data_format": "channels_last", "weight_format": "IO"} if last else {}
    return b.op("Conv", v, weight, **formats, **attrs)


@pytest.mark.parametrize("last", [False, True])
def test_batch_norm_goes_into_the_convolution(last):
    def build(b):
        return b.op(
            "BatchNorm", conv(b, image(b, last=last), last), *norm_inputs(5), channel_axis=3 if last else 1
        )

    graph = transformed(build, FoldWeights(), DeadCode())
    assert types(graph) == ["Conv"] and len(next(iter(graph)).inputs) == 3


def test_batch_norm_goes_into_the_matrix_product():
    def build(b):
        y = b.op("MatMul", b.input("x", (4, 8), "float32"), floats(8, 5), floats(5))
        return b.op("BatchNorm", y, *norm_inputs(5), channel_axis=1)

    assert types(transformed(build, FoldWeights(), DeadCode())) == ["MatMul"]


def test_batch_norm_goes_into_the_transposed_convolution():
    def build(b):
        y = b.op("ConvTranspose", image(b), floats(4, 5, 3, 3), strides=[2, 2])
        return b.op("BatchNorm", y, *norm_inputs(5))

    assert types(transformed(build, FoldWeights(), DeadCode())) == ["ConvTranspose"]


def test_batch_norm_with_computed_statistics_stays():
    def build(b):
        scale, bias, mean, _ = norm_inputs(4)
        return b.op("BatchNorm", image(b), scale, bias, mean, b.op("Exp", b.input("v", (4,), "float32")))

    assert "BatchNorm" in types(transformed(build, FoldWeights()))


def test_a_product_read_twice_keeps_its_weight():
    def build(b):
        y = conv(b, image(b))
        return [b.op("Mul", y, 2.0), b.op("Relu", y)]

    assert types(transformed(build, FoldWeights())) == ["Conv", "Mul", "Relu"]


def test_scale_and_shift_of_the_input_go_into_the_weight():
    def build(b):
        v = b.op("Add", b.op("Mul", image(b), floats(4, 1, 1)), floats(4, 1, 1, seed=1))
        return conv(b, v)

    assert types(transformed(build, FoldWeights(), DeadCode())) == ["Conv"]


@pytest.mark.parametrize("before", [True, False])
def test_a_factor_that_overflows_stays(before):
    """Infinity times a weight of zero is NaN; the factor times the weight would be zero."""

    def build(b):
        x = b.input("x", (2, 4), "float32")
        v = b.op("MatMul", b.op("Mul", x, 1e35) if before else x, floats(4, 4))
        return v if before else b.op("Mul", v, 1e35)

    assert sorted(types(transformed(build, FoldWeights(), DeadCode()))) == ["MatMul", "Mul"]


def test_a_shift_before_a_border_stays():
    def build(b):
        return conv(b, b.op("Add", image(b), floats(4, 1, 1)), pads_begin=[1, 1], pads_end=[1, 1])

    assert types(transformed(build, FoldWeights())) == ["Add", "Conv"]


def test_a_number_moves_through_movements_into_the_weight():
    def build(b):
        y = b.op("MatMul", b.input("x", (2, 6, 8), "float32"), floats(8, 8), floats(8))
        heads = b.op("Transpose", b.op("Reshape", y, shape=[2, 6, 2, 4]), perm=[0, 2, 1, 3])
        return b.op("Mul", heads, 0.25)

    assert types(transformed(build, FoldWeights(), DeadCode())) == ["MatMul", "Reshape", "Transpose"]


def test_constant_transposed_weight_is_stored_plain():
    graph = transformed(
        lambda b: b.op("MatMul", b.input("x", (4, 8), "float32"), floats(5, 8), transpose_b=True),
        FoldWeights(),
    )
    assert not attrs_of(next(iter(graph)))["transpose_b"]


# -- borders -----------------------------------------------------------------------------------------------------


def padded(b, v, value=0.0, channels=0):
    return b.op("Pad", v, low=[0, channels, 1, 2], high=[0, 0, 1, 0], value=value)


def test_zero_border_goes_into_the_convolution():
    graph = transformed(lambda b: conv(b, padded(b, image(b))), FoldPads(), DeadCode())
    assert types(graph) == ["Conv"]
    assert attrs_of(next(iter(graph)))["pads_begin"] == (1, 2)


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda b: conv(b, padded(b, image(b), value=1.0)), ["Pad", "Conv"]),
        (lambda b: conv(b, padded(b, image(b, 3), channels=1)), ["Pad", "Conv"]),
        (lambda b: b.op("MaxPool", padded(b, image(b)), kernel=[3, 3]), ["Pad", "MaxPool"]),
        (lambda b: b.op("MaxPool", padded(b, b.op("Relu", image(b))), kernel=[3, 3]), ["Relu", "MaxPool"]),
        (
            lambda b: b.op("MaxPool", padded(b, b.op("Relu", image(b))), kernel=[2, 2]),
            ["Relu", "Pad", "MaxPool"],
        ),
        (lambda b: b.op("AvgPool", padded(b, image(b)), kernel=[3, 3]), ["AvgPool"]),
    ],
)
def test_borders_of_other_kinds(build, wanted):
    assert types(transformed(build, FoldPads(), DeadCode())) == wanted


# -- post-ops ----------------------------------------------------------------------------------------------------

UNARY = {
    "Relu": ({}, "relu"),
    "Clip": ({"min": 0.0, "max": 0.5}, "clip,0.0,0.5"),
    "Gelu": ({"approximate": "tanh"}, "gelu_tanh"),
    "Swish": ({"beta": 1.0}, "swish,1.0"),
    "HardSwish": ({}, "hardswish"),
    "Sigmoid": ({}, "sigmoid"),
    "Tanh": ({}, "tanh"),
    "Elu": ({"alpha": 0.5}, "elu,0.5"),
    "LeakyRelu": ({"alpha": 0.1}, "leaky,0.1"),
}


@pytest.mark.parametrize("type_", UNARY)
def test_activations_become_post_ops(type_):
    attrs, text = UNARY[type_]
    graph = transformed(lambda b: b.op(type_, conv(b, image(b)), **attrs), FusePostOps(), DeadCode())
    assert types(graph) == ["Conv"]
    assert attrs_of(next(iter(graph)))["post_ops"] == (text,)


def test_residual_and_activation_become_post_ops_in_order():
    def build(b):
        v = b.input("x", (2, 5, 4, 4), "float32")
        y = b.op("Conv", v, floats(5, 5, 3, 3), pads_begin=[1, 1], pads_end=[1, 1])
        return b.op("Relu", b.op("Add", b.op("Exp", v), y))

    graph = transformed(build, FusePostOps(), DeadCode())
    assert types(graph) == ["Exp", "Conv"]
    assert attrs_of(list(graph)[-1])["post_ops"] == ("add", "relu")


def test_reshape_moves_behind_the_post_op():
    def build(b):
        v = b.input("x", (2, 3, 8), "float32")
        y = b.op("MatMul", b.op("Reshape", v, shape=[6, 8]), floats(8, 8))
        y = b.op("Add", b.op("Reshape", y, shape=[2, 3, 8]), v)
        return b.op("Relu", y)

    graph = transformed(build, FusePostOps(), MergeMovements(), RemoveIdentities(), DeadCode())
    assert attrs_of(next(n for n in graph if n.op_type == "MatMul"))["post_ops"] == ("add", "relu")


def test_a_product_read_twice_gets_no_post_op():
    def build(b):
        y = conv(b, image(b))
        return [b.op("Relu", y), b.op("Exp", y)]

    assert types(transformed(build, FusePostOps())) == ["Conv", "Relu", "Exp"]


def test_operands_broadcast_along_rows_are_not_post_ops():
    def build(b):
        y = b.op("MatMul", b.input("x", (4, 8), "float32"), floats(8, 5))
        return b.op("Mul", y, b.input("rows", (4, 1), "float32"))

    assert types(transformed(build, FusePostOps())) == ["MatMul", "Mul"]


@pytest.mark.parametrize("read_twice", [True, False])
def test_the_momentum_of_a_gradient_is_left_to_the_kernel_that_uses_it(read_twice):
    def build(b):
        gradient = b.op("MatMul", b.input("x", (4, 8), "float32"), b.input("w", (8, 5), "float32"))
        momentum = b.op("Add", gradient, b.op("Mul", b.input("m", (4, 5), "float32"), 0.9))
        step = b.op("Mul", momentum, 0.01)
        return [momentum, step] if read_twice else step

    graph = transformed(build, FusePostOps(), DeadCode())
    assert ("Add" in types(graph)) == read_twice


def test_numbers_become_linear_post_ops():
    def build(b):
        return b.op("Add", b.op("Mul", b.op("Relu", conv(b, image(b))), 2.0), 1.0)

    graph = transformed(build, FusePostOps(), DeadCode())
    assert attrs_of(next(iter(graph)))["post_ops"] == ("relu", "linear,2.0,-0.0", "linear,1.0,1.0")


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (2, 4)])
def test_a_transposed_convolution_that_is_slow_with_post_ops_has_none(last, stride, groups):
    def build(b):
        x = b.input("x", (2, 6, 6, 16) if last else (2, 16, 6, 6), "float32")
        weight = floats(3, 3, 8, 16) if last else floats(16, 8, 3, 3)
        formats = {"data_format": "channels_last", "weight_format": "IO"} if last else {}
        y = b.op(
            "ConvTranspose", x, weight, floats(8 * groups), strides=[stride] * 2, groups=groups, **formats
        )
        return b.op("Relu", y)

    plan = compile_plan(transformed(build, FusePostOps(), DeadCode(), options=SERVER), SERVER)
    (task,) = (t for t in plan.tasks if t.kind == "deconv")
    fuses = stride == 1  # channels come last by then
    assert bool(task.attrs["post_ops"]) == task.attrs["has_bias"] == fuses


PRODUCTS = {
    "winograd": lambda b: conv(
        b, b.input("x", (2, 28, 28, 64), "float32"), last=True, inputs=64, channels=64
    ),
    "strassen": lambda b: b.op(
        "MatMul", b.input("x", (512, 768), "float32"), b.input("w", (768, 3072), "float32")
    ),
    "narrow": lambda b: b.op(
        "MatMul", b.input("x", (4, 512), "float32"), b.input("w", (512, 512), "float32")
    ),
}


@pytest.mark.parametrize("ours", PRODUCTS)
@pytest.mark.parametrize("activation", ["Relu", "Sigmoid"])
@pytest.mark.parametrize("implementation_", list(Implementation))
def test_an_algorithm_of_our_own_gets_only_post_ops_that_it_knows(ours, activation, implementation_):
    options = replace(SERVER, implementation=implementation_)

    def build(b):
        return b.op(activation, PRODUCTS[ours](b))

    plan = compile_plan(transformed(build, FusePostOps(), DeadCode(), options=options), options)
    (task,) = (t for t in plan.tasks if t.kind in ("conv", "matmul"))
    is_ours = ours == "narrow" or implementation_ is Implementation.FAST
    assert task.attrs["implementation"] == (ours if is_ours else "onednn")
    assert bool(task.attrs["post_ops"]) == (activation == "Relu" or not is_ours)


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_products_of_few_rows_get_post_ops_where_their_weight_is_packed_once(in_a_loop):
    def build(b):
        if in_a_loop:
            b.input("step", (), "int64")
            b.input("goes_on", (), "bool")
        return b.op("Tanh", PRODUCTS["narrow"](b))

    is_fused = types(transformed(build, FusePostOps(), DeadCode(), options=SERVER)) == ["MatMul"]
    assert is_fused == in_a_loop


# -- merged products ---------------------------------------------------------------------------------------------


def test_products_of_one_input_become_one():
    def build(b):
        v = b.input("x", (2, 6, 8), "float32")
        parts = [b.op("MatMul", v, floats(8, n, seed=n), floats(n)) for n in (4, 8, 4)]
        return [b.op("Transpose", p, perm=[0, 2, 1]) for p in parts]

    graph = transformed(build, MergeMatmuls(), DeadCode())
    assert types(graph) == ["MatMul", "Split", "Transpose", "Transpose", "Transpose"]
    assert constant_of(next(iter(graph)).inputs[1]).shape == (8, 16)


def packed_product(b, v, columns, *, bits=4, zeros=False, bias=False):
    levels = np.random.default_rng(columns).integers(0, 256, (columns, 4 * bits)).astype(np.uint8)
    scales = floats(columns, 2, seed=columns)
    offsets = floats(columns, 2, seed=1) if zeros else None
    given = v, levels, scales, offsets, floats(columns) if bias else None
    return b.op("Reshape", b.op("PackedMatMul", *given, bits=bits, group=16), shape=[3, 1, columns])


@pytest.mark.parametrize("zeros", [False, True])
def test_packed_products_of_one_input_become_one(zeros):
    def build(b):
        v = b.input("x", (3, 32), "float32")
        return [packed_product(b, v, n, zeros=zeros, bias=n == 8) for n in (4, 8, 4)]

    graph = transformed(build, MergeMatmuls(), DeadCode())
    assert types(graph) == ["PackedMatMul", "Split", "Reshape", "Reshape", "Reshape"]
    assert constant_of(next(iter(graph)).inputs[1]).shape == (16, 16)


def test_packed_products_of_different_weights_stay_apart():
    def build(b):
        v = b.input("x", (3, 32), "float32")
        others = packed_product(b, v, 8, bits=8), packed_product(b, v, 4, zeros=True)
        return [packed_product(b, v, 4), *others]

    assert types(transformed(build, MergeMatmuls(), DeadCode())).count("PackedMatMul") == 3


def test_products_read_by_kernels_stay_apart():
    def build(b):
        v = b.input("x", (6, 8), "float32")
        return b.op(
            "Mul", b.op("Swish", b.op("MatMul", v, floats(8, 4))), b.op("MatMul", v, floats(8, 4, seed=1))
        )

    assert types(transformed(build, MergeMatmuls(), SimplifyAlgebra())).count("MatMul") == 2


def test_weights_stay_single_precision():
    graph = transformed(lambda b: b.op("Mul", conv(b, image(b)), floats(5, 1, 1)), FoldWeights(), DeadCode())
    assert constant_of(next(iter(graph)).inputs[1]).dtype == np.float32


def test_heads_that_share_keys_are_not_repeated():
    def build(b):
        q = b.input("q", (2, 6, 5, 8), "float32")
        k = b.input("k", (2, 3, 5, 8), "float32")
        wide = b.op("BroadcastTo", b.op("Reshape", k, shape=[2, 3, 1, 5, 8]), shape=[2, 3, 2, 5, 8])
        keys = b.op("Transpose", b.op("Reshape", wide, shape=[2, 6, 5, 8]), perm=[0, 1, 3, 2])
        return b.op("MatMul", q, keys)

    graph = transformed(build, BroadcastMatmuls(), DeadCode())
    assert "BroadcastTo" not in types(graph)


def test_repeats_of_another_axis_stay():
    def build(b):
        q = b.input("q", (2, 6, 5, 8), "float32")
        k = b.input("k", (2, 3, 8, 5), "float32")
        wide = b.op("BroadcastTo", b.op("Reshape", k, shape=[2, 1, 3, 8, 5]), shape=[2, 2, 3, 8, 5])
        return b.op("MatMul", q, b.op("Reshape", wide, shape=[2, 6, 8, 5]))

    assert "BroadcastTo" in types(transformed(build, BroadcastMatmuls()))


@pytest.mark.parametrize(("dtype", "folded"), [("float16", True), ("bfloat16", True), ("float64", False)])
def test_biases_of_narrow_products_are_folded_where_the_target_multiplies_them(dtype, folded) -> None:
    def build(b):
        x = b.input("x", (4, 8), dtype)
        weight, bias = (np.ones(shape).astype(numpy_dtype(dtype)) for shape in ((8, 3), (3,)))
        return b.op("Add", b.op("MatMul", x, weight), bias)

    options = CompileOptions(target="sm_90")
    graph = transformed(build, FoldWeights(), options=options, tolerance=2e-2)
    assert (types(graph)[-1] == "MatMul") is folded
