"""Patterns recognised in graphs that spell operators out."""

from __future__ import annotations

import numpy as np
import pytest

from ge.passes import STAGES
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.cleanup.simplify_algebra import SimplifyAlgebra
from ge.passes.fusion.fuse_activations import FuseActivations
from ge.passes.fusion.fuse_normalisation import FuseNormalisation
from ge.passes.fusion.fuse_softmax import FuseSoftmax
from ge.passes.rewrite import attrs_of
from tests.passes.pass_support import floats, transformed, types

PATTERNS = next(stage.passes for stage in STAGES if stage.name == "patterns")


def x(b, *shape, name="x"):
    return b.input(name, shape or (4, 8), "float32")


# -- activations -------------------------------------------------------------------------------------------------


def gelu_erf(b, v):
    return b.op("Mul", b.op("Mul", v, 0.5), b.op("Add", b.op("Erf", b.op("Div", v, 2**0.5)), 1.0))


def gelu_erf_other_order(b, v):
    half = b.op("Mul", b.op("Add", b.op("Erf", b.op("Mul", v, np.float32(0.5**0.5))), 1.0), 0.5)
    return b.op("Mul", v, half)


def gelu_tanh(b, v):
    inner = b.op("Add", v, b.op("Mul", b.op("Pow", v, 3.0), 0.044715))
    return b.op(
        "Mul",
        b.op("Mul", v, 0.5),
        b.op("Add", b.op("Tanh", b.op("Mul", inner, 0.7978845608)), 1.0),
    )


def sigmoid(b, v):
    return b.op("Div", b.constant(np.float32(1)), b.op("Add", b.op("Exp", b.op("Neg", v)), 1.0))


def hard_sigmoid(b, v):
    return b.op("Div", b.op("Clip", b.op("Add", v, 3.0), min=0.0, max=6.0), 6.0)


ACTIVATIONS = {
    "gelu": (gelu_erf, "Gelu", {"approximate": "none"}),
    "gelu, other order": (gelu_erf_other_order, "Gelu", {"approximate": "none"}),
    "gelu by tanh": (gelu_tanh, "Gelu", {"approximate": "tanh"}),
    "sigmoid": (sigmoid, "Sigmoid", {}),
    "swish": (lambda b, v: b.op("Mul", v, b.op("Sigmoid", v)), "Swish", {"beta": 1.0}),
    "scaled swish": (
        lambda b, v: b.op("Mul", v, b.op("Sigmoid", b.op("Mul", v, 1.5))),
        "Swish",
        {"beta": 1.5},
    ),
    "swish from exp": (lambda b, v: b.op("Mul", v, sigmoid(b, v)), "Swish", {"beta": 1.0}),
    "hard sigmoid": (hard_sigmoid, "HardSigmoid", {}),
    "hard swish": (lambda b, v: b.op("Mul", v, hard_sigmoid(b, v)), "HardSwish", {}),
    "mish": (lambda b, v: b.op("Mul", v, b.op("Tanh", b.op("Softplus", v))), "Mish", {}),
    "softplus": (lambda b, v: b.op("Log", b.op("Add", b.op("Exp", v), 1.0)), "Softplus", {}),
    "leaky": (lambda b, v: b.op("Maximum", v, b.op("Mul", v, 0.125)), "LeakyRelu", {"alpha": 0.125}),
}


@pytest.mark.parametrize(("build", "wanted", "attrs"), ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_activation_is_recognised(build, wanted, attrs):
    graph = transformed(lambda b: build(b, b.op("MatMul", x(b), floats(8, 8))), *PATTERNS)
    assert types(graph) == ["MatMul", wanted]
    found = attrs_of(list(graph)[-1])
    assert {k: found[k] for k in attrs} == attrs


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("build", "form"), [(gelu_erf, "none"), (gelu_tanh, "tanh")])
def test_activations_of_narrow_floats_are_the_nearest_function(dtype, build, form):
    def narrow(b):
        return build(b, b.input("x", (4, 8), dtype))

    graph = transformed(narrow, *PATTERNS, tolerance=2e-2)
    assert types(graph) == ["Gelu"]
    assert attrs_of(list(graph)[-1])["approximate"] == form


def test_activation_of_a_computed_argument_stops_at_the_argument():
    def build(b):
        v = b.op("Mul", b.op("Exp", x(b)), b.op("Add", b.graph.inputs[0], 3.0))
        return gelu_erf(b, v)

    assert types(transformed(build, *PATTERNS)) == ["Exp", "Add", "Mul", "Gelu"]


def test_an_inner_value_read_elsewhere_keeps_the_pattern_apart():
    def build(b):
        v = x(b)
        gate = b.op("Sigmoid", v)
        return [b.op("Mul", v, gate), b.op("Exp", gate)]

    assert "Swish" not in types(transformed(build, FuseActivations()))


def test_a_similar_function_is_not_taken():
    def build(b):
        v = x(b)
        return b.op("Mul", b.op("Mul", v, 0.5), b.op("Add", b.op("Erf", b.op("Mul", v, 0.7)), 1.0))

    assert "Gelu" not in types(transformed(build, *PATTERNS))


def test_a_function_that_is_nan_at_an_infinity_keeps_that():
    def build(b):
        v = x(b)
        return b.op("Add", v, b.op("Softplus", b.op("Neg", v)))  # softplus(v), but NaN at -infinity

    assert types(transformed(build, *PATTERNS)) == ["Neg", "Softplus", "Add"]


# -- softmax -----------------------------------------------------------------------------------------------------


def stable_softmax(b, v):
    e = b.op("Exp", b.op("Sub", v, b.op("ReduceMax", v, axes=[-1], keepdims=True)))
    return b.op("Div", e, b.op("ReduceSum", e, axes=[-1], keepdims=True))


def test_softmax_is_recognised():
    assert types(transformed(lambda b: stable_softmax(b, x(b)), FuseSoftmax(), DeadCode())) == ["Softmax"]


def test_log_softmax_is_recognised():
    def build(b):
        v = x(b)
        s = b.op("Sub", v, b.op("ReduceMax", v, axes=[1], keepdims=True))
        return b.op("Sub", s, b.op("Log", b.op("ReduceSum", b.op("Exp", s), axes=[1], keepdims=True)))

    assert types(transformed(build, FuseSoftmax(), DeadCode())) == ["LogSoftmax"]
    assert types(transformed(lambda b: b.op("Log", b.op("Softmax", x(b))), FuseSoftmax())) == ["LogSoftmax"]


def test_softmax_over_other_axes_than_the_maximum_keeps_the_shift():
    def build(b):
        v = x(b)
        e = b.op("Exp", b.op("Sub", v, b.op("ReduceMax", v, axes=[0], keepdims=True)))
        return b.op("Div", e, b.op("ReduceSum", e, axes=[1], keepdims=True))

    assert types(transformed(build, FuseSoftmax(), DeadCode())) == ["ReduceMax", "Sub", "Softmax"]


# -- normalisation -----------------------------------------------------------------------------------------------


def moments(b, v):
    mean = b.op("ReduceMean", v, axes=[-1], keepdims=True)
    return mean, b.op("ReduceMean", b.op("SquaredDifference", v, mean), axes=[-1], keepdims=True)


def by_division(b, v):
    centred = b.op("Sub", v, b.op("ReduceMean", v, axes=[-1], keepdims=True))
    var = b.op("ReduceMean", b.op("Pow", centred, 2.0), axes=[-1], keepdims=True)
    y = b.op("Div", centred, b.op("Sqrt", b.op("Add", var, 1e-5)))
    return b.op("Add", b.op("Mul", y, floats(8)), floats(8, seed=1))


def by_rsqrt(b, v):
    mean, var = moments(b, v)
    y = b.op("Mul", b.op("Sub", v, mean), b.op("Rsqrt", b.op("Add", var, 1e-3)))
    return b.op("Add", b.op("Mul", y, floats(8)), floats(8, seed=1))


def folded_scale(b, v):
    mean, var = moments(b, v)
    s = b.op("Mul", b.op("Rsqrt", b.op("Add", var, 1e-3)), floats(8))
    return b.op("Add", b.op("Mul", v, s), b.op("Sub", b.constant(floats(8, seed=1)), b.op("Mul", mean, s)))


def negated_mean(b, v):
    mean, var = moments(b, v)
    s = b.op("Mul", b.op("Rsqrt", b.op("Add", var, 1e-3)), floats(8))
    shift = b.op("Add", b.op("Mul", b.op("Neg", mean), s), floats(8, seed=1))
    return b.op("Add", b.op("Mul", v, s), shift)


def square_of_mean(b, v):
    mean = b.op("ReduceMean", v, axes=[-1], keepdims=True)
    var = b.op("Sub", b.op("ReduceMean", b.op("Square", v), axes=[-1], keepdims=True), b.op("Square", mean))
    return b.op("Mul", b.op("Sub", v, mean), b.op("Rsqrt", b.op("Add", var, 1e-3)))


@pytest.mark.parametrize("build", [by_division, by_rsqrt, folded_scale, negated_mean, square_of_mean])
def test_layer_norm_is_recognised(build):
    graph = transformed(lambda b: build(b, x(b)), *PATTERNS, tolerance=1e-4)
    assert types(graph) == ["LayerNorm"]


def test_a_norm_of_the_batch_for_each_channel_stays_apart():
    def build(b):
        v = x(b, 4, 5, 5, 8)
        mean = b.op("ReduceMean", v, axes=[0, 1, 2], keepdims=True)
        variance = b.op("ReduceMean", b.op("Square", b.op("Sub", v, mean)), axes=[0, 1, 2], keepdims=True)
        factor = b.op("Mul", b.op("Rsqrt", b.op("Add", variance, 1e-5)), floats(8))
        return b.op("Add", b.op("Mul", v, factor), b.op("Sub", floats(8), b.op("Mul", mean, factor)))

    assert "LayerNorm" not in types(transformed(build, FuseNormalisation()))


def test_rms_norm_is_recognised():
    def build(b):
        v = x(b)
        mean = b.op("ReduceMean", b.op("Pow", v, 2.0), axes=[-1], keepdims=True)
        return b.op("Mul", b.op("Mul", v, b.op("Rsqrt", b.op("Add", mean, 1e-6))), floats(8))

    assert types(transformed(build, *PATTERNS)) == ["RmsNorm"]


def test_a_scale_that_enlarges_the_result_is_left_alone():
    def build(b):
        return b.op("Mul", b.op("LayerNorm", x(b)), floats(3, 4, 8))

    assert types(transformed(build, FuseNormalisation())) == ["LayerNorm", "Mul"]


def test_mean_over_other_axes_is_not_a_norm():
    def build(b):
        v = x(b)
        centred = b.op("Sub", v, b.op("ReduceMean", v, axes=[0], keepdims=True))
        var = b.op("ReduceMean", b.op("Square", centred), axes=[1], keepdims=True)
        return b.op("Div", centred, b.op("Sqrt", b.op("Add", var, 1e-5)))

    assert "LayerNorm" not in types(transformed(build, SimplifyAlgebra(), FuseNormalisation()))
