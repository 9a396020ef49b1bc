"""Networks on the simulated GPU: what tasks mean and what libraries are told is the same."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import ge
from ge.options import CompileOptions
from tests.model.test_cuda_program import convolution_net, encoder_net, model_of

TOLERANCE = {np.float32: 1e-5, np.float16: 1e-2}


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def check(net: onnx.ModelProto, dtype: type, *shapes: tuple[int, ...], scale: float = 1.0) -> ge.Model:
    """Compile for both; the model of the GPU."""
    rng = np.random.default_rng(1)
    feeds = [(rng.standard_normal(shape) * scale).astype(dtype) for shape in shapes]
    model = ge.compile(net, CompileOptions(target="sm_90"))
    for got, want in zip(model.run(feeds), ge.compile(net).run(feeds), strict=True):
        size = np.abs(want.astype(np.float64)).max()
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=TOLERANCE[dtype] * size)
    return model


def image_net(dtype: type, nodes: list, weights: dict[str, tuple[int, ...]], x: list[int], y: list[int]):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    constants = [
        (n, (rng.standard_normal(s) / max(np.prod(s[1:]), 1) ** 0.5).astype(dtype))
        for n, s in weights.items()
    ]
    return model_of(nodes, [("x", kind, x)], [("y", kind, y)], constants)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_residual_blocks(dtype: type) -> None:
    check(convolution_net(dtype), dtype, (2, 8, 12, 12))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("batch", [1, 2])
def test_squeeze_and_excitation(dtype: type, batch: int) -> None:
    """The gate of EfficientNet's blocks, before a 1x1 convolution with a bias and a residual."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "up", "b"], ["a"]),
        node("Sigmoid", ["a"], ["s"]),
        node("Mul", ["a", "s"], ["swish"]),
        node("Conv", ["swish", "deep"], ["d"], group=16, pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["d"], ["mean"]),
        node("Conv", ["mean", "squeeze"], ["q"]),
        node("Relu", ["q"], ["r"]),
        node("Conv", ["r", "excite"], ["e"]),
        node("Sigmoid", ["e"], ["gate"]),
        node("Mul", ["gate", "d"], ["gated"]),
        node("Conv", ["gated", "down", "c"], ["o"]),
        node("Add", ["o", "x"], ["y"]),
    ]
    shape = [batch, 8, 6, 5]
    weights = {
        "up": (16, 8, 1, 1),
        "b": (16,),
        "deep": (16, 1, 3, 3),
        "squeeze": (4, 16, 1, 1),
        "excite": (16, 4, 1, 1),
        "down": (8, 16, 1, 1),
        "c": (8,),
    }
    check(image_net(dtype, nodes, weights, shape, shape), dtype, tuple(shape))


@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "pads", "group"),
    [
        (3, [2, 2], [1, 1], [1, 1, 1, 1], 1),
        (3, [1, 1], [2, 1], [2, 0, 1, 1], 1),
        (5, [2, 1], [1, 1], [0, 2, 1, 2], 2),
        (3, [1, 1], [1, 1], [1, 1, 1, 1], 8),
        (1, [2, 2], [1, 1], [0, 0, 0, 0], 1),
        (1, [1, 1], [1, 1], [0, 0, 0, 0], 1),
    ],
)
@pytest.mark.parametrize("after", ["", "Relu", "Sigmoid", "Tanh", "Clip", "Add", "Add Relu"])
def test_convolutions_and_what_follows_them(kernel, strides, dilations, pads, group, after) -> None:
    node = helper.make_node
    outputs = [
        (n + a + b - (kernel - 1) * d - 1) // s + 1
        for n, a, b, d, s in zip((9, 8), pads[:2], pads[2:], dilations, strides, strict=True)
    ]
    weights = {"w": (8, 8 // group, kernel, kernel), "b": (8,), "r": (2, 8, *outputs)}
    geometry = {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    nodes = [node("Conv", ["x", "w", "b"], ["v0"], **geometry)]
    for number, name in enumerate(after.split()):
        others = {"Add": ["r"], "Clip": ["low", "high"]}.get(name, [])
        nodes.append(node(name, [f"v{number}", *others], [f"v{number + 1}"]))
    nodes.append(node("Neg", [f"v{len(after.split())}"], ["y"]))
    weights = {n: s for n, s in weights.items() if any(n in each.input for each in nodes)}
    net = image_net(np.float32, nodes, weights, [2, 8, 9, 8], [2, 8, *outputs])
    for name, number in (("low", 0.0), ("high", 6.0)):
        net.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number, np.float32), name))
    check(net, np.float32, (2, 8, 9, 8))


@pytest.mark.parametrize("mask", ["", "later", "keys"])
def test_encoder_layers(mask: str) -> None:
    shapes = [(2, 8, 128), *([(2, 1, 1, 8)] if mask == "keys" else [])]
    check(encoder_net(mask), np.float16, *shapes)


@pytest.mark.parametrize(
    ("a", "b"), [((5, 7), (7, 3)), ((2, 5, 7), (7, 3)), ((2, 3, 5, 7), (2, 3, 7, 4)), ((4, 1, 7), (4, 7, 1))]
)
@pytest.mark.parametrize("turned", [*itertools.product([False, True], repeat=2)])
def test_products_of_transposed_operands(a, b, turned) -> None:
    node, kind = helper.make_node, helper.np_dtype_to_tensor_dtype(np.dtype(np.float32))
    nodes, given = [], []
    for name, shape, turn in (("a", a, turned[0]), ("b", b, turned[1])):
        axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        given.append(tuple(shape[i] for i in axes) if turn else shape)
        if turn:
            nodes.append(node("Transpose", [name], [f"{name}t"], perm=axes))
    names = [f"{n}t" if t else n for n, t in zip("ab", turned, strict=True)]
    result = np.matmul(np.zeros(a), np.zeros(b)).shape
    nodes += [node("MatMul", names, ["m"]), node("Add", ["m", "c"], ["s"]), node("Relu", ["s"], ["y"])]
    net = model_of(
        nodes,
        [(n, kind, list(s)) for n, s in zip("ab", given, strict=True)],
        [("y", kind, list(result))],
        [("c", np.linspace(-1, 1, result[-1]).astype(np.float32))],
    )
    check(net, np.float32, *given)


@pytest.mark.parametrize("rows", [3, 600])
@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_products_with_gelu_by_erf(rows: int, constant: bool, residual: bool, dtype: type) -> None:
    """Few rows of a 16-bit product with constant weights are cuDNN's in one call, others have a kernel after them."""
    node, kind = helper.make_node, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    half, root = np.array(0.5, dtype), np.array(2**0.5, dtype)
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Add", ["p", "b"], ["biased"]),
        *([node("Add", ["biased", "r"], ["s"])] if residual else []),
    ]
    s = "s" if residual else "biased"
    nodes += [
        node("Div", [s, "root"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["f"]),
        node("Mul", [s, "f"], ["g"]),
        node("Mul", ["g", "half"], ["y"]),
    ]
    given = [("x", kind, [rows, 16]), *([] if constant else [("w", kind, [16, 24])])]
    given += [("r", kind, [rows, 24])] if residual else []
    weights = [("w", rng.standard_normal((16, 24)).astype(dtype) / 4)] if constant else []
    constants = [
        *weights,
        ("b", rng.standard_normal(24).astype(dtype)),
        ("half", half),
        ("root", root),
        ("one", np.array(1, dtype)),
    ]
    shapes = [(rows, 16), *([] if constant else [(16, 24)]), *([(rows, 24)] if residual else [])]
    model = check(model_of(nodes, given, [("y", kind, [rows, 24])], constants), dtype, *shapes)
    (product,) = model.program.plan.tasks
    assert product.attrs["post_ops"][-1] == "gelu_erf"
    fused = dtype is np.float16 and rows == 3
    assert product.attrs["implementation"] == ("cudnn" if fused else "cublaslt")
    assert model.program.task_info()[0]["impl"].startswith(
        "cudnn" if fused and constant else "cublaslt+kernel"
    )


@pytest.mark.parametrize(
    "constant", [np.array(np.nan, np.float32), np.zeros((1, 0), np.float32), np.array([1.0, 2.0], np.float32)]
)
def test_constants_beside_a_loop_are_no_conditions(constant: np.ndarray) -> None:
    """Copies of constants of any kind, while the loop's own condition is looked for among them."""
    body = onnx.parser.parse_graph(
        "body (int64 n, bool c, float[3] v) => (bool d, float[3] w) { d = Identity (c) w = Neg (v) }"
    )
    nodes = [
        helper.make_node("Loop", ["turns", "go", "x"], ["y"], body=body),
        helper.make_node("Identity", ["k"], ["z"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(np.float32))
    net = model_of(
        nodes,
        [("x", kind, [3])],
        [("y", kind, [3]), ("z", kind, list(constant.shape))],
        [("turns", np.array(3)), ("go", np.array(True)), ("k", constant)],
    )
    x = np.arange(3, dtype=np.float32)
    y, z = ge.compile(net, CompileOptions(target="sm_90")).run([x])
    np.testing.assert_array_equal(y, -x)
    np.testing.assert_array_equal(z, constant)


def test_residual_streams_in_mixed_precision() -> None:
    """Products whose results stay float32 are the library's; what it cannot add to them is a kernel."""
    node, kind = helper.make_node, onnx.TensorProto.FLOAT
    nodes = [
        node("Gemm", ["x", "w", "b"], ["p"]),
        node("Add", ["p", "x"], ["stream"]),
        node("LayerNormalization", ["stream", "s"], ["n"]),
        node("Gemm", ["n", "v", "b"], ["q"]),
        node("Add", ["q", "stream"], ["y"]),
    ]
    rng = np.random.default_rng(0)
    shapes = {"w": (32, 32), "v": (32, 32), "b": (32,), "s": (32,)}
    constants = [(n, (rng.standard_normal(s) / 6).astype(np.float32)) for n, s in shapes.items()]
    net = model_of(nodes, [("x", kind, [16, 32])], [("y", kind, [16, 32])], constants)
    options = CompileOptions(target="sm_90", precision_mode=ge.PrecisionMode.MIX_BF16)
    model = ge.compile(net, options)
    assert [t.kind for t in model.plan.tasks].count("matmul") == 2
    x = rng.standard_normal((16, 32), np.float32)
    (want,) = ge.compile(net).run([x])
    (got,) = model.run([x])
    assert np.abs(got - want).max() < 1e-2 * np.abs(want).max()
