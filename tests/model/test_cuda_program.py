"""Models compiled for a GPU: their plans need none, and kernels run on the simulated driver."""

from __future__ import annotations

import ctypes.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.errors import GeError
from ge.model.cuda.epilogue import epilogue
from ge.model.cuda.tuning import Tuning
from ge.options import CompileOptions
from ge.plan import View
from tests.tbe.simulation import simulate

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
    assert model.program.loaded.nodes == len(model.plan.tasks)
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
    assert [t.attrs["implementation"] for t in tasks] == ["cudnn", "cudnn", "cublaslt"]
    assert [t.attrs["post_ops"] for t in tasks] == [[], ["relu"], ["add", "relu"]]
    assert all(v.strides[1] == 1 for t in tasks for v in (t.inputs[0], t.outputs[0]))  # channels last


def test_products_are_stacks_at_equal_distances() -> None:
    nodes = [helper.make_node("MatMul", ["a", "b"], ["y"])]
    inputs = [("a", TensorProto.FLOAT, [2, 3, 4, 5]), ("b", TensorProto.FLOAT, [2, 3, 5, 6])]
    (task,) = ge.compile(model_of(nodes, inputs, [("y", TensorProto.FLOAT, [2, 3, 4, 6])]), GPU).plan.tasks
    assert task.attrs["implementation"] == "cublaslt"


def encoder_net(mask: str = "") -> onnx.ModelProto:
    """Attention of two heads over eight tokens, its projections and a normalisation, in float16."""
    rng = np.random.default_rng(0)
    half = lambda *shape: (rng.standard_normal(shape) / 4).astype(np.float16)  # noqa: E731
    nodes = []
    for name in "qkv":
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [
            helper.make_node("MatMul", ["x", f"w{name}"], [f"m{name}"]),
            helper.make_node("Add", [f"m{name}", f"b{name}"], [f"a{name}"]),
            helper.make_node("Reshape", [f"a{name}", "heads"], [f"r{name}"]),
            helper.make_node("Transpose", [f"r{name}"], [f"t{name}"], perm=order),
        ]
    nodes += [
        helper.make_node("MatMul", ["tq", "tk"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", mask], ["masked"])
        if mask
        else helper.make_node("Identity", ["scaled"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "tv"], ["o"]),
        helper.make_node("Transpose", ["o"], ["back"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["back", "whole"], ["flat"]),
        helper.make_node("MatMul", ["flat", "wo"], ["out"]),
        helper.make_node("Add", ["out", "bo"], ["biased"]),
        helper.make_node("Add", ["biased", "x"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "gain", "shift"], ["y"]),
    ]
    later = np.triu(np.full((8, 8), np.finfo(np.float16).min, np.float16), 1)
    constants = [
        *((f"w{n}", half(128, 128)) for n in "qkvo"),
        *((f"b{n}", half(128)) for n in "qkvo"),
        ("scale", np.array(0.125, np.float16)),
        ("heads", np.array([2, 8, 2, 64])),
        ("whole", np.array([2, 8, 128])),
        ("gain", half(128)),
        ("shift", half(128)),
        ("later", later),
    ]
    used = {name for node in nodes for name in node.input}
    inputs = [("x", TensorProto.FLOAT16, [2, 8, 128])]
    if mask == "keys":
        inputs.append(("keys", TensorProto.FLOAT16, [2, 1, 1, 8]))
    constants = [(n, a) for n, a in constants if n in used]
    return model_of(nodes, inputs, [("y", TensorProto.FLOAT16, [2, 8, 128])], constants)


@pytest.mark.parametrize(
    ("mask", "operands", "causal"), [("", 3, False), ("keys", 4, False), ("later", 3, True)]
)
def test_an_encoder_layer_is_four_tasks_without_movements(mask, operands, causal) -> None:
    tasks = [t for t in ge.compile(encoder_net(mask), GPU).plan.tasks if "Cast" not in t.name]
    assert [t.kind for t in tasks] == ["matmul", "attention", "matmul", "kernel"]
    projections, attention, output, _ = tasks
    assert projections.outputs[0].shape[-1] == 3 * 128 and projections.attrs["has_bias"]
    assert attention.attrs["implementation"] == "cudnn"
    assert (len(attention.inputs), attention.attrs["causal"]) == (operands, causal)
    assert [v.strides[-2] for v in attention.inputs[:3]] == [
        3 * 128
    ] * 3  # heads are read where the product wrote them
    assert output.attrs["post_ops"] == ["add"] and output.attrs["has_bias"]


def test_tuning_is_kept_for_equal_tasks_and_one_gpu(monkeypatch, tmp_path, simulated) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    plans = [ge.compile(convolution_net(), GPU).plan for _ in range(2)]
    first, last = (next(t for t in plans[0].tasks if t.attrs.get("post_ops") == p) for p in ([], ["relu"]))
    tuning = Tuning(plans[0], 0)
    tuning.keep(first, "cudnn 7 2=1")
    tuning.save()
    assert tuning.choice(first) == "cudnn 7 2=1" and tuning.choice(last) is None
    again = next(t for t in plans[1].tasks if t.attrs.get("post_ops") == [])
    assert Tuning(plans[1], 0).choice(again) == "cudnn 7 2=1"  # from the cache folder
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path / "other"))
    assert Tuning(plans[0], 0).choice(first) == "cudnn 7 2=1"  # from the plan itself
    assert Tuning(plans[1], 0).choice(again) is None


def test_strided_views_are_copied_by_kernels(simulated) -> None:
    model = ge.compile(vector_net(), GPU)
    loaded = model.program.loaded
    source = View(model.plan.tasks[0].inputs[0].buffer, "float32", (5, 3), (40, 7), 3)
    x = np.arange(2400, dtype=np.float32)
    loaded.upload(source.buffer, x)
    target = View.of(next(i for i, b in enumerate(model.plan.buffers) if b.kind == "output"), source.desc)
    loaded._gather(source, target)()
    back = np.empty(15, np.float32)
    loaded.download(target.buffer, back)
    want = np.lib.stride_tricks.as_strided(x[3:], (5, 3), (160, 28))
    np.testing.assert_array_equal(back.reshape(5, 3), want)


def gather_net(computed: bool) -> onnx.ModelProto:
    """A lookup whose indices are an input or computed, and what follows it."""
    nodes = [
        *([helper.make_node("Add", ["i", "one"], ["j"])] if computed else []),
        helper.make_node("Gather", ["table", "j" if computed else "i"], ["rows"], axis=0),
        helper.make_node("Softmax", ["rows"], ["y"], axis=-1),
    ]
    table = np.random.default_rng(3).standard_normal((10, 16)).astype(np.float32)
    inputs, outputs = [("i", TensorProto.INT64, [4])], [("y", TensorProto.FLOAT, [4, 16])]
    numbers = [("one", np.array(1))] if computed else []
    return model_of(nodes, inputs, outputs, [("table", table), *numbers])


@pytest.mark.parametrize("computed", [True, False])
def test_indices_are_checked_without_copies(computed, simulated) -> None:
    model = ge.compile(gather_net(computed), GPU)
    assert not any("on the host" in row.reason for row in ge.explain(model)), str(ge.explain(model))
    places = np.array([0, 8, 3, 3])
    np.testing.assert_allclose(model(places), ge.compile(gather_net(computed))(places), rtol=1e-6)
    with pytest.raises(GeError, match="E10024"):
        model(np.array([0, 12, 3, 3]))
    assert (model.program.copies.to_host, model.program.copies.to_gpu) == (0, 0)


def largest_net() -> onnx.ModelProto:
    """A search for the largest numbers, which the host does, between kernels."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("TopK", ["s", "k"], ["v", "places"], axis=-1),
        helper.make_node("Exp", ["v"], ["y"]),
    ]
    return model_of(
        nodes, [("x", TensorProto.FLOAT, [3, 50])], [("y", TensorProto.FLOAT, [3, 4])], [("k", np.array([4]))]
    )


def test_host_tasks_run_between_graphs_and_their_copies_are_counted(simulated) -> None:
    x = np.random.default_rng(4).standard_normal((3, 50)).astype(np.float32)
    model = ge.compile(largest_net(), GPU)
    assert any("on the host" in row.reason for row in ge.explain(model)), str(ge.explain(model))
    np.testing.assert_allclose(model(x), ge.compile(largest_net())(x), rtol=1e-6)
    copies = model.program.copies
    assert (copies.to_host, copies.to_host_bytes) == (1, 600) and copies.to_gpu >= 1


def test_sizes_that_only_the_host_knows_are_reported(simulated) -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    net = model_of(nodes, [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.INT64, [1, "n"])])
    np.testing.assert_array_equal(ge.compile(net, GPU)(np.array([0, 1, 0, 2], np.float32)), [[1, 3]])


def loop_net(decided: str, stacked: bool = False) -> onnx.ModelProto:
    """v + n in every turn n, until a count or a condition ends it; `stacked` gives the values of all turns too."""
    checks = [helper.make_node("Identity", ["c"], ["d"])]
    if decided == "by a condition":
        checks = [
            helper.make_node("ReduceMax", ["v"], ["top"], keepdims=0),
            helper.make_node("Less", ["top", "limit"], ["d"]),
        ]
    grow = [
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["v", "f"], ["w"]),
        helper.make_node("Exp", ["w"], ["s"]),
    ]
    infos = [("n", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [4])]
    made = [("d", TensorProto.BOOL, []), ("w", TensorProto.FLOAT, [4]), ("s", TensorProto.FLOAT, [4])]
    body = helper.make_graph(
        [*checks, *grow[: 3 if stacked else 2]],
        "body",
        [helper.make_tensor_value_info(*i) for i in infos],
        [helper.make_tensor_value_info(*o) for o in made[: 3 if stacked else 2]],
    )
    count = "" if decided == "by a condition" else "count"
    node = helper.make_node("Loop", [count, "go", "x"], ["y", "all"][: 2 if stacked else 1], body=body)
    inputs = [("x", TensorProto.FLOAT, [4]), ("count", TensorProto.INT64, [])]
    outputs = [("y", TensorProto.FLOAT, [4]), ("all", TensorProto.FLOAT, [5, 4])]
    constants = [("go", np.array(True)), ("limit", np.array(9.5, np.float32)), ("count", np.array(5))]
    return model_of(
        [node],
        inputs[: 2 if decided == "by a count" else 1],
        outputs[: 2 if stacked else 1],
        constants[: 3 if decided == "beforehand" else 2],
    )


@pytest.mark.parametrize(
    ("decided", "stacked", "turns"),
    [
        ("beforehand", False, None),
        ("beforehand", True, None),
        ("by a count", False, 0),
        ("by a count", False, 5),
        ("by a condition", False, None),
    ],
)
def test_loops_turn_as_often_as_on_the_cpu(decided, stacked, turns, simulated) -> None:
    net = loop_net(decided, stacked)
    feeds = [np.arange(4, dtype=np.float32), *([np.array(turns)] if turns is not None else [])]
    model = ge.compile(net, GPU)
    for got, want in zip(model.run(feeds), ge.compile(net).run(feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    parts = [type(part).__name__ for part in model.program.loaded.parts]
    assert ("Loop" in parts) == (decided != "beforehand")  # what is known beforehand is in the graph
    assert len(model.profile(feeds)) == len(model.plan.tasks)


@pytest.mark.parametrize("chosen", [True, False])
def test_branches_run_what_the_condition_says(chosen, simulated) -> None:
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
    net = model_of(
        [node], [("c", TensorProto.BOOL, []), ("x", TensorProto.FLOAT, [4])], [("y", TensorProto.FLOAT, [4])]
    )
    x = np.arange(4, dtype=np.float32)
    want = np.exp(x) if chosen else -x
    np.testing.assert_allclose(ge.compile(net, GPU).run([np.array(chosen), x])[0], want, rtol=1e-6)


def test_a_loop_with_host_tasks_runs_them_in_every_turn(simulated) -> None:
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["d"]),
            helper.make_node("TopK", ["v", "k"], ["w", "places"], axis=-1),
            helper.make_node("Mul", ["w", "w"], ["z"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [2, 6]),
        ],
        [
            helper.make_tensor_value_info("d", TensorProto.BOOL, []),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 6]),
        ],
    )
    nodes = [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)]
    net = model_of(
        nodes,
        [("x", TensorProto.FLOAT, [2, 6])],
        [("y", TensorProto.FLOAT, [2, 6])],
        [("count", np.array(3)), ("k", np.array([6]))],
    )
    x = np.random.default_rng(2).uniform(-1, 1, (2, 6)).astype(np.float32)
    model = ge.compile(net, GPU)
    np.testing.assert_allclose(model(x), ge.compile(net)(x), rtol=1e-6)


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_products_and_kernels(layer) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[layer]
    rng = np.random.default_rng(0)
    shapes = {"w": (1, gates * 8, 6), "r": (1, gates * 8, 8), "b": (1, 16 * gates)}
    net = model_of(
        [helper.make_node(layer, ["x", "w", "r", "b"], ["y"], hidden_size=8)],
        [("x", TensorProto.FLOAT, [40, 3, 6])],
        [("y", TensorProto.FLOAT, [40, 1, 3, 8])],
        [(n, rng.standard_normal(s).astype(np.float32)) for n, s in shapes.items()],
    )
    kinds = {t.kind for t in ge.compile(net, GPU).plan.tasks}
    assert "rnn" not in kinds and {"matmul", "kernel"} <= kinds


def test_integer_products_are_kernels_with_the_reason(simulated) -> None:
    rng = np.random.default_rng(0)
    b = rng.integers(-128, 127, (64, 7)).astype(np.int8)
    nodes = [helper.make_node("MatMulInteger", ["a", "b"], ["p"]), helper.make_node("Abs", ["p"], ["y"])]
    net = model_of(nodes, [("a", TensorProto.INT8, [5, 64])], [("y", TensorProto.INT32, [5, 7])], [("b", b)])
    model = ge.compile(net, GPU)
    assert any("not cublaslt" in row.reason and "kernel" in row.reason for row in ge.explain(model))
    a = rng.integers(-128, 127, (5, 64)).astype(np.int8)
    np.testing.assert_array_equal(model(a), np.abs(a.astype(np.int32) @ b.astype(np.int32)))


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


def test_npu_device_chooses_the_gpu(monkeypatch, simulated) -> None:
    monkeypatch.setenv("NPU_DEVICE", "cuda")
    model = ge.compile(vector_net())
    assert model.plan.report["target"]["name"] == "sm_90"
    x = np.random.default_rng(5).standard_normal((3, 20, 40)).astype(np.float32)
    assert model(x).shape == (3, 10)
    assert CompileOptions(target="portable").target.kind == "cpu"


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a driver")
def test_npu_device_without_a_gpu_says_why(monkeypatch) -> None:
    monkeypatch.delenv("NPU_CUDA_DRIVER", raising=False)
    monkeypatch.setenv("NPU_DEVICE", "cuda")
    with pytest.raises(GeError, match="a model for a GPU: no CUDA driver"):
        ge.compile(vector_net())


def test_addresses_of_the_host_are_inputs_and_outputs(simulated) -> None:
    model = ge.compile(vector_net(), GPU)
    x = np.random.default_rng(6).standard_normal((3, 20, 40)).astype(np.float32)
    y = np.empty((3, 10), np.float32)
    model.run_addresses([x.ctypes.data], [y.ctypes.data])
    np.testing.assert_array_equal(y, model(x))


@pytest.mark.parametrize("activation", ["swish", "gelu_erf", "gelu_tanh"])
def test_sums_beyond_the_range_of_float16_vanish_where_the_activation_does(activation, simulated) -> None:
    inputs, outputs = epilogue("float16", (2, 4), 1, True, False, activation)
    y = np.array([[-np.inf, -60000, 2, np.nan], [np.inf, 0, -1, -8]], np.float16)
    (got,) = simulate(inputs, outputs, dict(zip(inputs, [y, np.zeros(4, np.float16)], strict=True)))
    assert got[0, 0] == got[0, 1] == 0 and np.isnan(got[0, 3]) and np.isposinf(got[1, 0])
