"""Integer products on the simulated GPU: the library's sums, and kernels for scales, equal the CPU's results."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.options import CompileOptions


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def model_of(nodes, inputs, constants) -> onnx.ModelProto:
    ports = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    result = [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)]
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "net", ports, result, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def agree(net: onnx.ModelProto, feeds: dict[str, np.ndarray], steps: float = 0.0) -> ge.Model:
    """The models of the GPU and the CPU give the same, up to so much; the model of the GPU."""
    model, cpu = ge.compile(net, CompileOptions(target="sm_90")), ge.compile(net)
    got, want = (m.run(list(feeds.values()))[0].astype(np.float64) for m in (model, cpu))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=steps)
    return model


def products(model: ge.Model) -> list[str]:
    return [t.attrs["implementation"] for t in model.plan.tasks if t.kind == "matmul"]


def quantised_net(
    shape: tuple[int, ...], columns: int, kind: str, zero: int, *, rounded: bool
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A layer between quantisations, with scales for each column, a bias and a ReLU."""
    r = np.random.default_rng(0)
    depth = shape[-1]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1),
        helper.make_node("MatMul", ["xd", "wd"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r" if rounded else "y"]),
        *([helper.make_node("QuantizeLinear", ["r", "ys", "xz"], ["y"])] if rounded else []),
    ]
    constants = {
        "xs": np.float32(0.02),
        "xz": np.array(zero, kind),
        "w": r.integers(-127, 128, (depth, columns)).astype(np.int8),
        "ws": (r.random(columns) * 0.01 + 0.001).astype(np.float32),
        "wz": np.zeros(columns, np.int8),
        "b": r.standard_normal(columns).astype(np.float32),
        "ys": np.float32(0.1),
    }
    feeds = {"x": r.standard_normal(shape).astype(np.float32)}
    return model_of(nodes, feeds, constants), feeds


@pytest.mark.parametrize(("kind", "zero"), [("int8", 0), ("int8", -7), ("uint8", 0), ("uint8", 131)])
@pytest.mark.parametrize("rounded", [True, False])
def test_layers_are_products_of_the_library(kind, zero, rounded) -> None:
    net, feeds = quantised_net((2, 5, 32), 48, kind, zero, rounded=rounded)
    model = agree(net, feeds, 1.0 if rounded else 1e-5)
    assert products(model) == ["cublaslt"]
    assert all(c.describe(c.chosen).startswith("cublaslt ") for c in model.program.loaded.calls)


def test_depths_that_the_library_lacks_stay_kernels() -> None:
    net, feeds = quantised_net((5, 20), 48, "int8", 0, rounded=False)
    assert not products(agree(net, feeds, 1e-5))


@pytest.mark.parametrize("shape", [(7, 32), (2, 3, 32)])
def test_exact_integer_products(shape) -> None:
    r = np.random.default_rng(1)
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "xz"], ["y"])]
    feeds = {"x": r.integers(0, 256, shape).astype(np.uint8)}
    held = {"w": r.integers(-128, 128, (32, 16)).astype(np.int8), "xz": np.array(3, np.uint8)}
    assert products(agree(model_of(nodes, feeds, held), feeds)) == ["cublaslt"]


def test_computed_weights_are_multiplied_by_a_kernel() -> None:
    r = np.random.default_rng(1)
    nodes = [helper.make_node("MatMulInteger", ["x", "w"], ["y"])]
    feeds = {n: r.integers(-128, 128, s).astype(np.int8) for n, s in (("x", (7, 32)), ("w", (32, 16)))}
    model = agree(model_of(nodes, feeds, {}), feeds)
    assert all("generated" in c.describe(c.chosen) for c in model.program.loaded.calls)


def test_tuning_compares_integers(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    net, feeds = quantised_net((8, 32), 48, "int8", 5, rounded=False)
    model = agree(net, feeds, 1e-5)
    model.program.tune()
    assert not model.program.loaded.wrong
    agree(net, feeds, 1e-5)
