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
