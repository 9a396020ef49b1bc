"""One operator of each kind, from ONNX, TensorFlow and PyTorch to the result.

Kinds: TBE (Cube), AI CPU in C++ (WeightedSum), an override of a built-in operator (Sign), one operator into many
(Residual), a size known only after the run (KeepPositive), a gradient used in training (KitSwoosh).
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ge
import tbe
from ge import ops
from ge.opp import refresh

X = np.random.default_rng(11).normal(size=(4, 6)).astype(np.float32)
FLAT = X.reshape(-1)


@pytest.fixture(scope="module", autouse=True)
def kit_operators(kit_folder: Path) -> Iterator[None]:
    """The kit's operators, for all tests: a PyTorch operator is defined once in a process."""
    before = os.environ.get("NPU_OPP_PATH")
    os.environ["NPU_OPP_PATH"] = str(kit_folder)
    refresh()
    yield
    if before is None:
        del os.environ["NPU_OPP_PATH"]
    else:
        os.environ["NPU_OPP_PATH"] = before
    refresh()


def swoosh(x: np.ndarray, beta: float) -> np.ndarray:
    return x / (1 + np.exp(-beta * x))


CASES: dict[str, tuple[dict[str, Any], list[np.ndarray], np.ndarray]] = {
    # name in the kit: attributes, inputs, result
    "Cube": ({}, [X], X**3),
    "WeightedSum": ({"weights": [0.5, -2.0], "negate": True}, [X, X + 1], -(0.5 * X - 2 * (X + 1))),
    "Sign": ({}, [X], 2 * np.sign(X)),
    "Residual": ({"scale": 0.25}, [X], X + (2 * X) ** 3 * 0.25),
    "KeepPositive": ({}, [FLAT], FLAT[FLAT > 0]),
    "Swoosh": ({"beta": 1.5}, [X], swoosh(X, 1.5)),
}


def close(got: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(got), expected, rtol=2e-5, atol=1e-5)


# -- ONNX ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_onnx(name: str) -> None:
    attrs, arrays, expected = CASES[name]
    names = [f"x{i}" for i in range(len(arrays))]
    domain = "" if name == "Sign" else "kit"
    given = {k: int(v) if isinstance(v, bool) else v for k, v in attrs.items()}
    node = helper.make_node(name, names, ["y"], domain=domain, **given)
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", *X.shape[1:]][: X.ndim]) for n in names
    ]
    if arrays[0].ndim == 1:
        ports = [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n"])]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", ports, [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("kit", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    shapes = {n: a.shape for n, a in zip(names, arrays, strict=True)}
    close(ge.compile(model, ge.CompileOptions(input_shapes=shapes))(*arrays), expected)
    if name != "KeepPositive":
        half = {n: (2, *s[1:]) for n, s in shapes.items()}
        close(ge.compile(model, ge.CompileOptions(input_shapes=half))(*(a[:2] for a in arrays)), expected[:2])


# -- TensorFlow ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tf() -> Iterator[Any]:
    """TensorFlow with the NPU as the place where functions run, whatever other tests have left."""
    tensorflow = pytest.importorskip("tensorflow")
    tf_adapter = pytest.importorskip("tf_adapter")
    before = tf_adapter.is_default()
    tf_adapter.as_default()
    yield tensorflow
    tf_adapter.as_default(before)


@pytest.mark.parametrize("name", CASES)
def test_tensorflow_graph(tf: Any, name: str, tmp_path: Path) -> None:
    attrs, arrays, expected = CASES[name]
    graph = tf.compat.v1.GraphDef()
    for i, array in enumerate(arrays):
        node = graph.node.add(name=f"x{i}", op="Placeholder")
        node.attr["dtype"].type = tf.float32.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(tf.TensorShape(array.shape).as_proto())
    node = graph.node.add(name="y", op=name if name == "Sign" else f"Kit{name}")
    node.input.extend(f"x{i}" for i in range(len(arrays)))
    node.attr["T"].type = tf.float32.as_datatype_enum
    for key, value in attrs.items():
        if isinstance(value, list):
            node.attr[key].list.f.extend(value)
        elif isinstance(value, bool):
            node.attr[key].b = value
        else:
            node.attr[key].f = value
    path = tmp_path / "graph.pb"
    path.write_bytes(graph.SerializeToString())
    close(ge.compile(path)(*arrays), expected)


def test_tensorflow_saved_model(tf: Any, tmp_path: Path) -> None:
    tf_adapter = pytest.importorskip("tf_adapter")
    operator = tf_adapter.custom_op("KitSwoosh")

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec(X.shape, tf.float32)])
        def serve(self, x: Any) -> dict[str, Any]:
            return {"y": operator(x + 1.0, beta=1.5)}

    module = Module()
    with tf.device("/CPU:0"):
        tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.serve)
    model = ge.compile(tmp_path / "model")
    close(model(X), swoosh(X + 1, 1.5))
    assert any(row.operator == "KitSwoosh" for row in ge.explain(model))


def _declare(tf: Any, name: bytes, attrs: tuple[bytes, ...] = ()) -> None:
    """Make an operator without any kernel known to TensorFlow, as a library of REGISTER_OPs does."""
    library = ctypes.CDLL(str(Path(tf.__file__).parent / "libtensorflow_framework.so.2"))
    library.TF_NewOpDefinitionBuilder.restype = library.TF_NewStatus.restype = ctypes.c_void_p
    builder = ctypes.c_void_p(library.TF_NewOpDefinitionBuilder(name))
    library.TF_OpDefinitionBuilderAddInput(builder, b"x: float")
    library.TF_OpDefinitionBuilderAddOutput(builder, b"y: float")
    for attr in attrs:
        library.TF_OpDefinitionBuilderAddAttr(builder, attr)
    library.TF_OpDefinitionBuilderSetShapeInferenceFunction(
        builder, library.TF_ShapeInferenceContextSetUnknownShape
    )
    status = ctypes.c_void_p(library.TF_NewStatus())
    library.TF_RegisterOpDefinition(builder, status)
    assert library.TF_GetCode(status) == 0


def test_tensorflow_function_with_an_operator_of_a_library(tf: Any) -> None:
    """The operator has no kernel for the host, so only the NPU can have run it."""
    pytest.importorskip("tf_adapter")
    from tensorflow.python.framework import op_def_library, op_def_registry

    if op_def_registry.get("KitCube") is None:
        _declare(tf, b"KitCube")

    @tf.function
    def function(x: Any) -> Any:
        y = op_def_library.apply_op("KitCube", x=x + 1.0)
        y.set_shape(x.shape)
        return y * 2.0

    close(function(tf.constant(X)), (X + 1) ** 3 * 2)


def test_tensorflow_function_with_one_operator_into_many(tf: Any) -> None:
    pytest.importorskip("tf_adapter")
    from tensorflow.python.framework import op_def_library, op_def_registry

    if op_def_registry.get("KitResidual") is None:
        _declare(tf, b"KitResidual", (b"scale: float = 1.0",))

    @tf.function
    def function(x: Any) -> Any:
        y = op_def_library.apply_op("KitResidual", x=x, scale=0.25)
        y.set_shape(x.shape)
        return y * 2.0

    close(function(tf.constant(X)), CASES["Residual"][2] * 2)


def test_tensorflow_function_with_an_override(tf: Any) -> None:
    tf_adapter = pytest.importorskip("tf_adapter")
    function = tf.function(lambda x: tf.sign(x) + 1.0)
    close(function(tf.constant(X)), 2 * np.sign(X) + 1)
    said = str(tf_adapter.explain(function, tf.constant(X)))
    assert "custom TBE computation of package kit" in said and "before the built-in Sign" in said
    wide = tf.constant(X.astype(np.float64))
    close(function(wide), np.sign(X) + 1)
    assert "not the custom operator of package kit" in str(tf_adapter.explain(function, wide))


@pytest.fixture
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own way to run operators is an error."""
    from tf_adapter import custom_ops

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the operator ran on the host")

    monkeypatch.setattr(custom_ops, "run_operator", refuse)


@pytest.mark.parametrize(
    ("type_", "attrs"),
    [("Cube", {}), ("WeightedSum", CASES["WeightedSum"][0]), ("KitSwoosh", {"beta": 1.5})],
)
def test_tensorflow_function(tf: Any, no_host: None, type_: str, attrs: dict[str, Any]) -> None:
    tf_adapter = pytest.importorskip("tf_adapter")
    _, arrays, expected = CASES[type_.removeprefix("Kit")]
    operator = tf_adapter.custom_op(type_)
    function = tf.function(lambda *xs: operator(*xs, **attrs) + 1.0)
    close(function(*map(tf.constant, arrays)), expected + 1)


def test_tensorflow_function_whose_size_is_known_after_the_run(tf: Any) -> None:
    tf_adapter = pytest.importorskip("tf_adapter")
    operator = tf_adapter.custom_op("KeepPositive")
    function = tf.function(lambda x: operator(x * 2.0))
    for array in (FLAT, -FLAT):
        close(function(tf.constant(array)), 2 * array[array > 0])
    after = tf.function(lambda x: tf.reduce_sum(operator(x)))
    close(after(tf.constant(FLAT)), FLAT[FLAT > 0].sum())


def test_tensorflow_without_the_npu(tf: Any) -> None:
    tf_adapter = pytest.importorskip("tf_adapter")
    operator = tf_adapter.custom_op("KitSwoosh")
    with tf.device("/CPU:0"):
        close(tf.function(lambda x: operator(x, beta=1.5))(tf.constant(X)), CASES["Swoosh"][2])


def test_tensorflow_notices_another_operator(tf: Any, no_host: None) -> None:
    tf_adapter = pytest.importorskip("tf_adapter")

    def declared(factor: float) -> type[ops.Operator]:
        class Times(ops.Operator):
            x = ops.Input("T")
            y = ops.Output("T")

            @staticmethod
            def compute(op: ops.NodeView, x: tbe.Tensor) -> tbe.Tensor:
                return x * factor

        return ops.register(Times)

    first = declared(2.0)
    operator = tf_adapter.custom_op("Times")
    function = tf.function(lambda x: operator(x) + 1.0)
    close(function(tf.constant(X)), X * 2 + 1)
    second = declared(3.0)
    close(function(tf.constant(X)), X * 3 + 1)
    ops.unregister(second)
    close(function(tf.constant(X)), X * 2 + 1)
    ops.unregister(first)


def test_tensorflow_training(tf: Any, no_host: None) -> None:
    tf_adapter = pytest.importorskip("tf_adapter")
    operator = tf_adapter.custom_op("KitSwoosh")

    def train(activation: Callable[[Any], Any]) -> tuple[np.ndarray, list[float]]:
        weights = tf.Variable(np.full((6, 3), 0.3, np.float32))

        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((activation(x @ weights) - 1.0) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        losses = [float(step(tf.constant(X))) for _ in range(6)]
        return weights.numpy(), losses

    weights, losses = train(lambda x: operator(x, beta=1.5))
    with tf.device("/CPU:0"):
        expected_weights, expected_losses = train(lambda x: x * tf.sigmoid(1.5 * x))
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-4, atol=1e-5)
    assert losses[-1] < losses[0]


# -- PyTorch -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def compiled(torch: Any) -> Callable[..., Any]:
    torchair = pytest.importorskip("torchair")
    return lambda f, **options: torch.compile(
        f, backend=torchair.get_npu_backend(), fullgraph=True, **options
    )


@pytest.fixture(scope="module")
def kit_torch(torch: Any) -> Any:
    """The kit's operators as a user declares them with torch.library: their host versions must not run."""
    library = torch.library.Library("kit", "DEF")
    schemas = {
        "cube": "(Tensor x) -> Tensor",
        "residual": "(Tensor x, float scale=1.0) -> Tensor",
        "weighted_sum": "(Tensor[] xs, float[] weights, bool negate=False) -> Tensor",
        "swoosh": "(Tensor x, float beta=1.0) -> Tensor",
    }
    for name, schema in schemas.items():
        library.define(name + schema)

        def fake(x: Any, *_: Any, **__: Any) -> Any:
            return torch.empty_like(x[0] if isinstance(x, list | tuple) else x)

        torch.library.register_fake(f"kit::{name}", fake, lib=library)
    yield torch.ops.kit
    library._destroy()


def test_torch_tbe_operator(torch: Any, compiled: Any, kit_torch: Any) -> None:
    close(compiled(lambda x: kit_torch.cube(x + 1.0) * 2.0)(torch.from_numpy(X)), (X + 1) ** 3 * 2)


def test_torch_ai_cpu_operator(torch: Any, compiled: Any, kit_torch: Any) -> None:
    attrs, arrays, expected = CASES["WeightedSum"]
    function = compiled(lambda a, b: kit_torch.weighted_sum([a, b], attrs["weights"], attrs["negate"]))
    close(function(*map(torch.from_numpy, arrays)), expected)


def test_torch_override(torch: Any, compiled: Any) -> None:
    torchair = pytest.importorskip("torchair")
    close(compiled(torch.sign)(torch.from_numpy(X)), 2 * np.sign(X))
    said = str(torchair.explain(torch.sign, torch.from_numpy(X)))
    assert "custom TBE computation of package kit" in said and "before the built-in Sign" in said
    open_size = torch.from_numpy(X.copy())
    torch._dynamo.mark_dynamic(open_size, 0)
    assert "custom TBE computation of package kit" in str(torchair.explain(torch.sign, open_size))
    wide = str(torchair.explain(torch.sign, torch.from_numpy(X.astype(np.float64))))
    assert "not the custom operator of package kit" in wide


def test_torch_one_operator_into_many(torch: Any, compiled: Any, kit_torch: Any) -> None:
    close(compiled(lambda x: kit_torch.residual(x, 0.25))(torch.from_numpy(X)), CASES["Residual"][2])


def test_torch_changing_shapes(torch: Any, compiled: Any, kit_torch: Any) -> None:
    function = compiled(lambda x: kit_torch.swoosh(x, 1.5) * 2, dynamic=True)
    for rows in (4, 3, 2):
        close(function(torch.from_numpy(X[:rows])), swoosh(X[:rows], 1.5) * 2)


def test_torch_training(torch: Any, compiled: Any) -> None:
    torchair = pytest.importorskip("torchair")
    operator = torchair.custom_op("KitSwoosh")

    def train(activation: Callable[[Any], Any], wrap: Callable[[Any], Any]) -> tuple[Any, list[float]]:
        weights = torch.full((6, 3), 0.3, requires_grad=True)
        loss_of = wrap(lambda x, w: ((activation(x @ w) - 1.0) ** 2).mean())
        losses = []
        for _ in range(6):
            loss = loss_of(torch.from_numpy(X), weights)
            loss.backward()
            with torch.no_grad():
                weights -= 0.1 * weights.grad
                weights.grad = None
            losses.append(float(loss.detach()))
        return weights.detach(), losses

    weights, losses = train(lambda x: operator(x, beta=1.5), compiled)
    expected_weights, expected_losses = train(lambda x: x * torch.sigmoid(1.5 * x), lambda f: f)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-4)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-4, atol=1e-5)


def test_torch_operator_whose_size_is_known_after_the_run(torch: Any, compiled: Any) -> None:
    torchair = pytest.importorskip("torchair")
    operator = torchair.custom_op("KeepPositive")
    close(operator(torch.from_numpy(FLAT)), FLAT[FLAT > 0])
    function = compiled(lambda x: operator(x * 2.0) + 1.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "a graph could not be compiled")
        for array in (FLAT, -FLAT):
            close(function(torch.from_numpy(array)), 2 * array[array > 0] + 1)
    said = str(torchair.explain(lambda x: operator(x * 2.0) + 1.0, torch.from_numpy(FLAT)))
    assert "on the NPU" in said  # also where the graph is cut at the operator


def test_torch_eager_operator_with_its_gradient(torch: Any) -> None:
    torchair = pytest.importorskip("torchair")
    x = torch.from_numpy(X).double().requires_grad_()
    operator = torchair.custom_op("KitSwoosh")
    assert torch.autograd.gradcheck(lambda t: operator(t, beta=1.5), (x,))
