"""Convolutions that become one operator on a GPU: which patterns, and that the operator computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.ops.base import NodeView, lookup
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions


def convolution(
    nodes: list, constants: list, x: str, y: str, shape: tuple[int, ...], stride: int = 1, add: str = ""
) -> str:
    """A convolution with bias, and with a residual where one is named; ReLU unless the name begins with "s"."""
    rng = np.random.default_rng(len(constants))
    weights = rng.standard_normal(shape) * (2 / np.prod(shape[1:])) ** 0.5
    constants += [(f"{y}.w", weights), (f"{y}.b", rng.standard_normal(shape[0]) * 0.1)]
    border = [shape[2] // 2] * 4
    made = [helper.make_node("Conv", [x, f"{y}.w", f"{y}.b"], [f"{y}.0"], pads=border, strides=[stride] * 2)]
    if add:
        made.append(helper.make_node("Add", [made[-1].output[0], add], [f"{y}.1"]))
    if not y.startswith("s"):
        made.append(helper.make_node("Relu", [made[-1].output[0]], [f"{y}.2"]))
    made[-1].output[0] = y
    nodes += made
    return y


def residual_net(dtype: type = np.float16, last: int = 128, side: int = 96) -> onnx.ModelProto:
    """A stem, two bottlenecks, and the 1x1 convolution that begins the next stage."""
    nodes: list = []
    constants: list = []
    stem = convolution(nodes, constants, "x", "first", (64, 3, 7, 7), 2)
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    x = "pool"
    nodes.append(helper.make_node("MaxPool", [stem], [x], **pool))
    for n in range(2):
        channels = 64 if n == 0 else 256
        t = convolution(nodes, constants, x, f"a{n}", (64, channels, 1, 1))
        t = convolution(nodes, constants, t, f"b{n}", (64, 64, 3, 3))
        short = convolution(nodes, constants, x, f"s{n}", (256, 64, 1, 1)) if n == 0 else x
        x = convolution(nodes, constants, t, f"c{n}", (256, 64, 1, 1), add=short)
    convolution(nodes, constants, x, "y", (last, 256, 1, 1))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, [2, 3, side * 4, side * 4])],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(np.asarray(a, dtype), n) for n, a in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kinds(model: onnx.ModelProto, target: str) -> list[str]:
    return [t.kind for t in ge.compile(model, CompileOptions(target=target)).plan.tasks]


def test_a_stem_and_bottlenecks_become_one_task_each() -> None:
    plan = ge.compile(residual_net(), CompileOptions(target="sm_90")).plan
    assert [t.kind for t in plan.tasks][:4] == ["stem", "conv", "bottleneck", "bottleneck"]
    stem, _, first, second = plan.tasks[:4]
    assert stem.attrs["channels_first"]  # the transpose to channels last is gone
    assert (len(first.inputs), len(second.inputs)) == (10, 8)  # with and without weights for the shortcut
    assert {t.attrs["implementation"] for t in (stem, first, second)} == {"own"}
    assert second.inputs[1].buffer == first.outputs[0].buffer


@pytest.mark.parametrize(
    ("target", "dtype", "last", "side", "wanted"),
    [
        ("sm_80", np.float16, 128, 96, {"stem"}),  # no wgmma
        ("sm_89", np.float16, 128, 96, set()),  # too little shared memory
        ("sm_90", np.float32, 128, 96, set()),
        ("sm_90", np.float16, 96, 96, {"stem", "bottleneck"}),  # the last bottleneck hands on 96 channels
        ("sm_90", np.float16, 128, 32, {"stem"}),  # too few pixels for all multiprocessors
        ("sm_90", np.float16, 128, 12, set()),  # 144 pixels are no multiple of 64, 48 in a row none of 32
        ("portable", np.float32, 128, 8, set()),
    ],
)
def test_what_a_target_has_no_kernel_for_stays_apart(target, dtype, last, side, wanted) -> None:
    found = kinds(residual_net(dtype, last, side), target)
    assert {k for k in found if k in ("stem", "bottleneck")} == wanted
    assert found.count("bottleneck") == (0 if "bottleneck" not in wanted else 1 if last == 96 else 2)


def test_a_result_that_others_read_keeps_its_convolution() -> None:
    model = residual_net()
    model.graph.output.append(helper.make_tensor_value_info("b0", TensorProto.UNDEFINED, None))
    assert kinds(model, "sm_90").count("bottleneck") == 1


def evaluate(type_: str, arrays: list[np.ndarray], **attrs: object) -> list[np.ndarray]:
    builder = GraphBuilder()
    values = [builder.input(f"x{n}", a.shape, a.dtype.name) for n, a in enumerate(arrays)]
    operator = lookup(type_)
    view = NodeView(type_, type_, values, operator.complete(attrs))
    operator.check(view)
    found = operator.evaluate(view, arrays)
    assert found is not None
    assert [d.shape for d in operator.describe(view)] == [a.shape for a in found]
    return found


def test_the_operators_compute_what_the_convolutions_do() -> None:
    model = residual_net(np.float32, 64, 8)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    x = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    want = ge.compile(model).run([x])[0]

    def of(*names: str) -> list[np.ndarray]:
        return [weights[f"{n}.{part}"] for n in names for part in "wb"]

    (pool,) = evaluate("Stem", [x, *of("first")], data_format="channels_first")
    (same,) = evaluate("Stem", [x.transpose(0, 2, 3, 1), *of("first")], data_format="channels_last")
    np.testing.assert_array_equal(pool, same)
    first = np.maximum(np.einsum("nhwc,oc->nhwo", pool, weights["a0.w"][..., 0, 0]) + weights["a0.b"], 0)
    y, t = evaluate("Bottleneck", [first.astype(np.float32), pool, *of("b0", "c0", "a1", "s0")])
    _, last = evaluate("Bottleneck", [t, y, *of("b1", "c1", "y")])
    np.testing.assert_allclose(last.transpose(0, 3, 1, 2), want, rtol=1e-4, atol=1e-4)


def test_operands_that_do_not_go_together_are_refused() -> None:
    x = np.zeros((1, 3, 32, 32), np.float32)
    with pytest.raises(ge.GeError, match="do not go together"):
        evaluate("Stem", [x, np.zeros((64, 4, 7, 7), np.float32), np.zeros(64, np.float32)])
    t, wide = np.zeros((1, 8, 8, 64), np.float32), np.zeros((1, 8, 8, 128), np.float32)
    shapes = [(64, 64, 3, 3), (64,), (256, 64, 1, 1), (256,), (64, 256, 1, 1), (64,)]
    with pytest.raises(ge.GeError, match="do not match weights"):
        evaluate("Bottleneck", [t, wide, *(np.zeros(s, np.float32) for s in shapes)])
