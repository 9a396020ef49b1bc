"""Gates of squeeze-and-excitation blocks fused into the convolution that follows."""

from __future__ import annotations

import pytest

from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions, PrecisionMode
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.fusion.fuse_gates import FuseGates
from ge.passes.fusion.fuse_post_ops import FusePostOps
from ge.passes.rewrite import attrs_of
from tests.passes.pass_support import floats, transformed, types
from tests.support.small_graphs import compiled

_LAST = {"data_format": "channels_last", "weight_format": "IO"}


def gated(b: GraphBuilder, batch: int = 2, kernel: int = 1, dtype: str = "float32", **attrs):
    x = b.input("x", (batch, 5, 6, 8), dtype)
    gate = b.op("Sigmoid", b.op("ReduceMean", x, axes=[1, 2], keepdims=True))
    weights, bias = (w.astype(dtype) for w in (floats(kernel, kernel, 8, 4), floats(4)))
    return b.op("Conv", b.op("Mul", x, gate), weights, bias, **_LAST, **attrs)


def test_the_gate_becomes_an_operand():
    graph = transformed(gated, FuseGates(), DeadCode())
    assert types(graph) == ["ReduceMean", "Sigmoid", "Conv"]
    assert attrs_of(list(graph)[-1])["gated"]


def test_the_gate_stands_before_the_operands_of_post_ops():
    def build(b):
        return b.op("Relu", b.op("Add", gated(b), b.input("r", (2, 5, 6, 4), "float32")))

    graph = transformed(build, FusePostOps(), FuseGates(), DeadCode())
    assert types(graph) == ["ReduceMean", "Sigmoid", "Conv"]
    assert attrs_of(list(graph)[-1])["post_ops"] == ("add", "relu")


@pytest.mark.parametrize(
    "attrs", [{"kernel": 3}, {"strides": [2, 2]}, {"pads_begin": [1, 1], "pads_end": [0, 0]}]
)
def test_other_convolutions_keep_their_product(attrs):
    assert "Mul" in types(transformed(lambda b: gated(b, **attrs), FuseGates()))


def test_a_product_read_twice_stays():
    def build(b):
        x, gate = b.input("x", (2, 5, 6, 8), "float32"), b.input("g", (2, 1, 1, 8), "float32")
        y = b.op("Mul", x, gate)
        return [b.op("Conv", y, floats(1, 1, 8, 4), **_LAST), b.op("Relu", y)]

    assert "Mul" in types(transformed(build, FuseGates()))


def test_a_gate_for_all_images_stays():
    def build(b):
        x, gate = b.input("x", (2, 5, 6, 8), "float32"), b.input("g", (1, 1, 1, 8), "float32")
        return b.op("Conv", b.op("Mul", x, gate), floats(1, 1, 8, 4), **_LAST)

    assert "Mul" in types(transformed(build, FuseGates()))


@pytest.mark.parametrize(("mode", "limit"), [(PrecisionMode.KEEP, 1e-5), (PrecisionMode.MIX_BF16, 1e-2)])
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_compiled(batch: int, mode: PrecisionMode, limit: float):
    model = compiled(lambda b: gated(b, batch), CompileOptions(precision_mode=mode), tolerance=limit)
    assert [task.kind for task in model.plan.tasks].count("conv") == 1
    assert any(task.attrs.get("has_gate") for task in model.plan.tasks)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_target_without_gated_convolutions_multiplies_before(dtype: str) -> None:
    graph = transformed(
        lambda b: gated(b, dtype=dtype), FuseGates(), DeadCode(), options=CompileOptions(target="sm_90")
    )
    assert types(graph) == ["ReduceMean", "Sigmoid", "Mul", "Conv"]
