"""Models on a real GPU against the CPU; skipped where there is none (`make test-cuda`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.options import CompileOptions
from npu_runtime import cuda


def _architecture() -> str:
    try:
        return "" if cuda.is_simulated() else str(cuda.describe(0)["architecture"])
    except cuda.CudaUnavailable:
        return ""


pytestmark = pytest.mark.skipif(not _architecture(), reason="this machine has no GPU")
TOLERANCES = {np.float32: 1e-5, np.float16: 2e-3}


def model_of(nodes, inputs, output, constants=()) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs
        ],
        [helper.make_tensor_value_info(output, TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def same(
    nodes, inputs: Sequence[tuple[str, np.ndarray]], output, constants=(), tolerance: float = 2e-3
) -> ge.Model:
    """Compare with the same model in float32 on the CPU, before and after tuning."""
    arrays = [a for _, a in inputs]
    wide = [(n, a.astype(np.float32) if a.dtype == np.float16 else a) for n, a in inputs]
    weights = [(n, a.astype(np.float32) if a.dtype == np.float16 else a) for n, a in constants]
    want = ge.compile(model_of(nodes, wide, output, weights)).run([a for _, a in wide])[0].astype(np.float64)
    model = ge.compile(model_of(nodes, inputs, output, constants), CompileOptions(target=_architecture()))
    for tuned in (False, True):
        if tuned:
            model.program.tune()
        got = model.run(arrays)[0].astype(np.float64)
        assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want), f"tuned: {tuned}"
    return model


def random(*shape: int, dtype=np.float16, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed + len(shape)).standard_normal(shape) * scale).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("activation", ["", "Relu", "Sigmoid", "Tanh", "Swish", "Clip", "Gelu"])
@pytest.mark.parametrize("groups", [1, 32])
def test_convolutions_with_epilogues(dtype, activation, groups) -> None:
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], group=groups)]
    after = {
        "": [helper.make_node("Identity", ["c"], ["y"])],
        "Swish": [helper.make_node("Sigmoid", ["c"], ["s"]), helper.make_node("Mul", ["c", "s"], ["y"])],
        "Clip": [helper.make_node("Clip", ["c", "low", "high"], ["y"])],
        "Gelu": [
            helper.make_node("Div", ["c", "root"], ["d"]),
            helper.make_node("Erf", ["d"], ["e"]),
            helper.make_node("Add", ["e", "one"], ["f"]),
            helper.make_node("Mul", ["c", "f"], ["g"]),
            helper.make_node("Mul", ["g", "half"], ["y"]),
        ],
    }.get(activation, [helper.make_node(activation, ["c"], ["y"])])
    numbers = {"low": 0, "high": 6, "root": 2**0.5, "one": 1, "half": 0.5}
    used = {name for node in after for name in node.input}
    constants = [
        ("w", random(64, 32 // groups if groups > 1 else 32, 3, 3, dtype=dtype, scale=0.1)),
        ("b", random(64, dtype=dtype)),
        *((n, np.array(v, dtype)) for n, v in numbers.items() if n in used),
    ]
    same([*nodes, *after], [("x", random(2, 32, 14, 14, dtype=dtype))], "y", constants, TOLERANCES[dtype] * 2)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_pointwise_convolutions_with_residuals(dtype) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["z"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["z", "w", "b"], ["c"]),
        helper.make_node("Add", ["c", "z"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    constants = [
        ("v", random(64, 16, 3, 3, dtype=dtype, scale=0.1)),
        ("w", random(64, 64, 1, 1, dtype=dtype, scale=0.1)),
        ("b", random(64, dtype=dtype)),
    ]
    model = same(nodes, [("x", random(4, 16, 28, 28, dtype=dtype))], "y", constants, TOLERANCES[dtype])
    assert [t.attrs["implementation"] for t in model.plan.tasks if t.kind == "conv"] == ["cudnn", "cublaslt"]


def attention_nodes(mask: str) -> list[onnx.NodeProto]:
    masked = {
        "": [helper.make_node("Identity", ["t"], ["m"])],
        "added": [helper.make_node("Add", ["t", "mask"], ["m"])],
        "selected": [helper.make_node("Where", ["mask", "low", "t"], ["m"])],
        "causal": [helper.make_node("Add", ["t", "later"], ["m"])],
    }[mask]
    return [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["t"]),
        *masked,
        helper.make_node("Softmax", ["m"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]


@pytest.mark.parametrize("mask", ["", "added", "selected", "causal"])
@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (64, 96), (1, 100)])
def test_attention_with_masks(mask, queries, keys) -> None:
    if mask == "causal" and queries != keys:
        pytest.skip("as many keys as queries")
    inputs = [
        ("q", random(2, 4, queries, 64)),
        ("k", random(2, 4, 64, keys, seed=1)),
        ("v", random(2, 4, keys, 64, seed=2)),
    ]
    constants = [("scale", np.array(0.125, np.float16))]
    hidden = np.random.default_rng(5).random((2, 1, 1, keys)) < 0.3
    hidden[..., 0] = False
    if mask == "added":
        inputs.append(("mask", np.where(hidden, -65504, 0).astype(np.float16)))
    elif mask == "selected":
        inputs.append(("mask", hidden))
        constants.append(("low", np.array(-np.inf, np.float16)))
    elif mask == "causal":
        later = np.triu(np.full((queries, keys), -np.inf, np.float16), 1)
        constants.append(("later", later))
    model = same(attention_nodes(mask), inputs, "y", constants)
    kinds = [t.kind for t in model.plan.tasks]
    assert "attention" in kinds, kinds


def test_tuned_choices_go_with_the_model(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path / "cache"))
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    a, b = random(512, 512), random(512, 512, seed=1)
    model = ge.compile(model_of(nodes, [("a", a), ("b", b)], "y"), CompileOptions(target=_architecture()))
    model.run([a, b])
    model.program.tune()
    chosen = [call.describe(call.chosen) for call in model.program.loaded.calls]
    loaded = ge.load(model.save(tmp_path / "net.om"))
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path / "other"))
    np.testing.assert_array_equal(loaded.run([a, b])[0], model.run([a, b])[0])
    assert [call.describe(call.chosen) for call in loaded.program.loaded.calls] == chosen


@pytest.mark.parametrize(("batch", "height", "width"), [(1, 224, 224), (3, 224, 224), (13, 64, 96)])
def test_the_stem_of_residual_networks(batch, height, width) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[3, 3, 3, 3], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    constants = [("w", random(64, 3, 7, 7, scale=0.1)), ("b", random(64))]
    model = same(nodes, [("x", random(batch, 3, height, width))], "y", constants)
    assert "stem" in [t.kind for t in model.plan.tasks]


def bottlenecks(blocks: int, last: int) -> tuple[list[onnx.NodeProto], list[tuple[str, np.ndarray]]]:
    """Residual blocks of 64 and 256 channels, the first with weights in its shortcut, and a 1x1 convolution."""
    nodes, constants = [], []

    def convolution(x: str, y: str, cin: int, cout: int, size: int, add: str = "", relu: bool = True) -> str:
        scale = (2 / (cin * size * size)) ** 0.5
        constants.append((f"{y}.w", random(cout, cin, size, size, seed=len(constants), scale=scale)))
        constants.append((f"{y}.b", random(cout, seed=len(constants), scale=0.1)))
        made = [helper.make_node("Conv", [x, f"{y}.w", f"{y}.b"], [f"{y}.0"], pads=[size // 2] * 4)]
        if add:
            made.append(helper.make_node("Add", [made[-1].output[0], add], [f"{y}.1"]))
        if relu:
            made.append(helper.make_node("Relu", [made[-1].output[0]], [f"{y}.2"]))
        made[-1].output[0] = y
        nodes.extend(made)
        return y

    x, channels = "x", 64
    for n in range(blocks):
        t = convolution(convolution(x, f"a{n}", channels, 64, 1), f"b{n}", 64, 64, 3)
        short = convolution(x, f"s{n}", 64, 256, 1, relu=False) if n == 0 else x
        x, channels = convolution(t, f"c{n}", 64, 256, 1, add=short), 256
    convolution(x, "y", 256, last, 1)
    return nodes, constants


@pytest.mark.parametrize(("batch", "height", "width"), [(6, 56, 56), (9, 56, 56), (52, 16, 20)])
@pytest.mark.parametrize("last", [64, 128])
def test_bottlenecks_of_residual_networks(batch, height, width, last) -> None:
    if _architecture() != "sm_90":
        pytest.skip("only Hopper has its instructions")
    nodes, constants = bottlenecks(3, last)
    model = same(nodes, [("x", random(batch, 64, height, width))], "y", constants)
    assert [t.kind for t in model.plan.tasks].count("bottleneck") == 3


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("steps", [3, 40])
def test_recurrent_layers(layer, direction, steps) -> None:
    gates, hidden, width = {"LSTM": 4, "GRU": 3, "RNN": 1}[layer], 32, 16
    directions = 2 if direction == "bidirectional" else 1
    constants = [
        ("w", random(directions, gates * hidden, width, dtype=np.float32, scale=0.3)),
        ("r", random(directions, gates * hidden, hidden, dtype=np.float32, seed=1, scale=0.2)),
        ("b", random(directions, 2 * gates * hidden, dtype=np.float32)),
    ]
    node = helper.make_node(layer, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, direction=direction)
    same([node], [("x", random(steps, 4, width, dtype=np.float32))], "y", constants, 1e-5)


def loop_body(condition: list[onnx.NodeProto]) -> onnx.GraphProto:
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("v", "w")]
    return helper.make_graph(
        [
            *condition,
            helper.make_node("MatMul", ["v", "m"], ["p"]),
            helper.make_node("Add", ["p", "v"], ["w"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            floats[0],
        ],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), floats[1]],
    )


@pytest.mark.parametrize("decided", ["beforehand", "by a count", "by a condition"])
def test_loops(decided) -> None:
    grown = [helper.make_node("ReduceMax", ["v"], ["t"]), helper.make_node("Less", ["t", "limit"], ["d0"])]
    condition = {"by a condition": [*grown, helper.make_node("Squeeze", ["d0"], ["d"])]}.get(
        decided, [helper.make_node("Identity", ["c"], ["d"])]
    )
    count = "" if decided == "by a condition" else "count"
    nodes = [helper.make_node("Loop", [count, "go", "x"], ["y"], body=loop_body(condition))]
    inputs = [("x", np.abs(random(4, 8, dtype=np.float32)))]
    constants = [
        ("m", np.abs(random(8, 8, dtype=np.float32, scale=0.2))),
        ("go", np.array(True)),
        ("limit", np.array(50, np.float32)),
    ]
    if decided == "by a count":
        inputs.append(("count", np.array(5)))
    elif decided == "beforehand":
        constants.append(("count", np.array(5)))
    same(nodes, inputs, "y", constants, 1e-5)


@pytest.mark.parametrize("chosen", [True, False])
def test_branches(chosen) -> None:
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], [op])],
            op,
            [],
            [helper.make_tensor_value_info(op, TensorProto.FLOAT, [4])],
        )
        for op in ("Exp", "Neg")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    same([node], [("c", np.array(chosen)), ("x", random(4, dtype=np.float32))], "y", (), 1e-5)


def test_integer_products() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 127, shape).astype(np.int8) for shape in ((5, 64), (64, 7)))
    nodes = [helper.make_node("MatMulInteger", ["a", "b"], ["p"]), helper.make_node("Abs", ["p"], ["y"])]
    same(nodes, [("a", a)], "y", [("b", b)], 0.0)


def test_nan_passes_kernels_of_our_own() -> None:
    nodes, constants = bottlenecks(2, 64)
    x = np.zeros((6, 64, 56, 56), np.float16)
    x[4, 3, 10, 20] = np.nan
    model = ge.compile(model_of(nodes, [("x", x)], "y", constants), CompileOptions(target=_architecture()))
    spoiled = np.isnan(model.run([x])[0].astype(np.float32)).all(1)
    assert not spoiled[[0, 1, 2, 3, 5]].any()
    spoiled = spoiled[4]
    assert spoiled[8:13, 18:23].all() and not spoiled[:7].any() and not spoiled[14:].any()
