"""Models compiled for a GPU: their plans need none, and kernels run on the simulated driver."""

from __future__ import annotations

import ctypes.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.errors import GeError, UnsupportedOperatorsError
from ge.options import CompileOptions

GPU = CompileOptions(target="sm_90")


def model_of(nodes, inputs, outputs, constants=()) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def vector_net() -> onnx.ModelProto:
    """Everything here is a generated kernel."""
    nodes = [
        helper.make_node("Add", ["x", "b"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("Transpose", ["p"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MaxPool", ["t"], ["m"], kernel_shape=[3], strides=[2], pads=[1, 1]),
        helper.make_node("ReduceMean", ["m"], ["y"], axes=[1], keepdims=0),
    ]
    bias = np.linspace(-1, 1, 40).astype(np.float32)
    return model_of(
        nodes, [("x", TensorProto.FLOAT, [3, 20, 40])], [("y", TensorProto.FLOAT, [3, 10])], [("b", bias)]
    )


def convolution_net(dtype=np.float16) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    weights = [
        ("u", rng.standard_normal((8, 8, 1, 1))),
        ("w", rng.standard_normal((16, 8, 3, 3))),
        ("v", rng.standard_normal((8, 16, 1, 1))),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "u"], ["z"]),
        helper.make_node("Conv", ["z", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["c"]),
        helper.make_node("Add", ["c", "z"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    shape = [2, 8, 12, 12]
    return model_of(
        nodes, [("x", kind, shape)], [("y", kind, shape)], [(n, a.astype(dtype)) for n, a in weights]
    )


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def test_kernels_of_a_plan_run_as_one_graph(simulated) -> None:
    x = np.random.default_rng(1).standard_normal((3, 20, 40)).astype(np.float32)
    want = ge.compile(vector_net())(x)
    model = ge.compile(vector_net(), GPU)
    for _ in range(2):
        np.testing.assert_allclose(model(x), want, rtol=1e-5, atol=1e-6)
    assert model.program.loaded.graph.nodes == len(model.plan.tasks)
    assert model.program.seconds(3) > 0


def test_a_model_file_holds_ptx_and_runs_where_the_driver_is(simulated, tmp_path: Path) -> None:
    model = ge.compile(vector_net(), GPU)
    assert all(b".target sm_90" in image.objects["sm_90"] for image in model.plan.kernels)
    loaded = ge.compile(model.save(tmp_path / "net.om"))
    assert loaded.plan.report["target"]["name"] == "sm_90"
    assert all(b".target sm_90" in image.objects["sm_90"] for image in loaded.plan.kernels)
    x = np.random.default_rng(2).standard_normal((3, 20, 40)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), model(x))


def test_convolutions_take_bias_residual_and_activation_in_one_call() -> None:
    tasks = [t for t in ge.compile(convolution_net(), GPU).plan.tasks if t.kind == "conv"]
    assert [t.attrs["implementation"] for t in tasks] == ["cudnn"] * 3
    assert [t.attrs["post_ops"] for t in tasks] == [[], ["relu"], ["add", "relu"]]
    assert all(v.strides[1] == 1 for t in tasks for v in (t.inputs[0], t.outputs[0]))  # channels last


def test_products_are_stacks_at_equal_distances() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    inputs = [("a", TensorProto.FLOAT, [2, 3, 4, 5]), ("b", TensorProto.FLOAT, [2, 3, 5, 6])]
    (task,) = ge.compile(model_of(nodes, inputs, [("y", TensorProto.FLOAT, [2, 3, 4, 6])]), GPU).plan.tasks
    assert task.attrs["implementation"] == "cublaslt"


def test_what_a_gpu_does_not_have_is_refused_with_the_reason() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    net = model_of(nodes, [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.INT64, [1, "n"])])
    with pytest.raises(UnsupportedOperatorsError, match="AI CPU kernels run on the host"):
        ge.compile(net, GPU)


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
def test_a_run_without_a_driver_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPU_CUDA_DRIVER", raising=False)
    model = ge.compile(vector_net(), GPU)
    with pytest.raises(GeError, match="compiled for sm_90: no CUDA driver"):
        model(np.zeros((3, 20, 40), np.float32))


@pytest.mark.parametrize("name", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100"])
def test_every_architecture_is_a_target(name) -> None:
    plan = ge.compile(vector_net(), CompileOptions(target=name)).plan
    assert plan.report["target"]["name"] == name
    assert all(f".target {name}".encode() in image.objects[name] for image in plan.kernels)
