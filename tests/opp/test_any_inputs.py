"""An operator with an absent input before others and any number of them, and its gradient, from every front door."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import ge
from ge.opp import refresh
from ge.ops.custom import search

OPERATOR = """
from ge import ops


class AnyMix(ops.Operator):
    bias = ops.Input("T", ops.FLOATS, optional=True)
    xs = ops.Input("T", ops.FLOATS, variadic=True)
    y = ops.Output("T")
    weights = ops.Attr(list, (), item=float)

    @staticmethod
    def compute(op, bias, *xs):
        total = xs[0] * op.weights[0]
        for x, weight in zip(xs[1:], op.weights[1:]):
            total = total + x * weight
        return total if bias is None else total + bias

    @staticmethod
    def gradient(op, inputs, outputs, grads):
        bias, *xs = inputs
        return [None if bias is None else grads[0], *(grads[0] * w for w in op.weights)]


ops.simple("AnyMix", onnx="any::Mix", aten="any_inputs.mix", attrs=["weights"])
"""
WEIGHTS = [2.0, 3.0]
A, B, BIAS = np.float32([0, 1, 2]), np.float32([1, 1, 1]), np.float32([1, 0, 1])
BIASES = pytest.mark.parametrize("bias", [None, BIAS], ids=["absent", "present"])


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("any_inputs")
    (path / "any_mix.py").write_text(OPERATOR)
    search.add_paths([path])
    refresh()
    yield str(path)
    (path / "any_mix.py").unlink()
    refresh()


def expected(bias: np.ndarray | None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The result, and the gradients of the sum of its squares."""
    y = 2 * A + 3 * B + (0 if bias is None else bias)
    return y, [4 * y, 6 * y, *([] if bias is None else [2 * y])]


@BIASES
def test_onnx(bias: np.ndarray | None) -> None:
    names = ["" if bias is None else "bias", "a", "b"]
    node = helper.make_node("Mix", names, ["y"], domain="any", weights=WEIGHTS)
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in [*filter(None, names), "y"]]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("any", 1)]
    graph = helper.make_graph([node], "g", ports[:-1], ports[-1:])
    arrays = [x for x in (bias, A, B) if x is not None]
    got = ge.compile(helper.make_model(graph, opset_imports=opsets))(*arrays)
    np.testing.assert_array_equal(got, expected(bias)[0])


@BIASES
@pytest.mark.parametrize("compiled", [False, True])
def test_pytorch(bias: np.ndarray | None, compiled: bool) -> None:
    torch = pytest.importorskip("torch")
    torchair = pytest.importorskip("torchair")
    mix = torchair.custom_op("AnyMix")
    a, b, c = (None if x is None else torch.tensor(x, requires_grad=True) for x in (A, B, bias))

    def loss_of(c: Any, a: Any, b: Any) -> Any:
        return (mix(c, [a, b], weights=WEIGHTS) ** 2).sum()

    function = torch.compile(loss_of, backend=torchair.get_npu_backend()) if compiled else loss_of
    function(c, a, b).backward()
    for tensor, gradient in zip([a, b, c], expected(bias)[1], strict=False):
        np.testing.assert_array_equal(tensor.grad.numpy(), gradient)


def test_pytorch_operator_of_a_library() -> None:
    torch = pytest.importorskip("torch")
    torchair = pytest.importorskip("torchair")
    library = torch.library.Library("any_inputs", "FRAGMENT")
    library.define("mix(Tensor? bias, Tensor[] xs, *, float[] weights) -> Tensor")
    torch.library.register_fake(
        "any_inputs::mix", lambda bias, xs, weights: torch.empty_like(xs[0]), lib=library
    )
    for bias in (None, BIAS):
        given = None if bias is None else torch.tensor(bias)
        function = torch.compile(
            lambda c, a, b: torch.ops.any_inputs.mix(c, [a, b], weights=WEIGHTS) + 1.0,
            backend=torchair.get_npu_backend(),
        )
        got = function(given, torch.tensor(A), torch.tensor(B))
        np.testing.assert_array_equal(got.numpy(), expected(bias)[0] + 1)


@BIASES
def test_tensorflow(bias: np.ndarray | None) -> None:
    tf = pytest.importorskip("tensorflow")
    tf_adapter = pytest.importorskip("tf_adapter")
    before = tf_adapter.is_default()
    tf_adapter.as_default()
    mix = tf_adapter.custom_op("AnyMix")
    variables = [tf.Variable(x) for x in (A, B, bias) if x is not None]

    @tf.function
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            a, b, *c = variables
            loss = tf.reduce_sum(mix(c[0] if c else None, [a, b], weights=WEIGHTS) ** 2)
        return tape.gradient(loss, variables)

    try:
        for got, gradient in zip(gradients(), expected(bias)[1], strict=True):
            np.testing.assert_array_equal(got, gradient)
    finally:
        tf_adapter.as_default(before)
