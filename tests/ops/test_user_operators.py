"""Operators that users declare: choice before the built-in ones, plugins, fusion, gradients, and what goes wrong."""

from __future__ import annotations

import enum
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import ge
import tbe
from ge import ops
from ge.ir.types import numpy_dtype
from ge.ops import FLOATS, NUMBERS, Attr, Input, NodeView, Operator, Output, TensorDesc, fail, plugins
from ge.ops.base import pattern_of, registered_custom


@pytest.fixture(autouse=True)
def clean_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is gone after it; code gets a second."""
    monkeypatch.setenv("NPU_OPP_TIMEOUT", "1")
    operators, before = set(registered_custom()), plugins.declared()
    yield
    for operator in registered_custom():
        if operator not in operators:
            ops.unregister(operator)
    for item in plugins.declared() - before:
        plugins.remove(item)


class Swoosh(Operator):
    """x * sigmoid(beta * x)."""

    x = Input("T", FLOATS)
    y = Output("T")
    beta = Attr(float, 1.0)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x * tbe.unary("sigmoid", x * op.beta)

    @staticmethod
    def gradient(op: NodeView, inputs: list, outputs: list, grads: list) -> list:
        (x,), (dy,) = inputs, grads
        s = ops.sigmoid(x * op.beta)
        return [dy * (s + x * op.beta * s * (1.0 - s))]


def swoosh(x: np.ndarray, beta: float = 1.0) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide / (1 + np.exp(-beta * wide))


def swoosh_gradient(x: np.ndarray, beta: float) -> np.ndarray:
    s = 1 / (1 + np.exp(-beta * x.astype(np.float64)))
    return s + x * beta * s * (1 - s)


def sample(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(numpy_dtype(dtype))


def onnx_model(
    node: onnx.NodeProto, shape: list[int], domain: str = "", version: int = 17
) -> onnx.ModelProto:
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape if n == "x" else None) for n in ("x", "y")
    ]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", version), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets)


# -- the form ------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    dtype=st.sampled_from(sorted(FLOATS)),
    beta=st.floats(-3, 3, width=32),
)
def test_any_shape_and_type(shape: list[int], dtype: str, beta: float) -> None:
    operator = ops.register(Swoosh)
    try:
        x = sample(*shape, dtype=dtype)
        got = ge.run_operator("Swoosh", x, beta=beta)
        assert got.dtype == x.dtype
        tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
        np.testing.assert_allclose(got.astype(np.float64), swoosh(x, beta), rtol=tolerance, atol=tolerance)
    finally:
        ops.unregister(operator)


def test_fused_with_its_neighbours() -> None:
    ops.register(Swoosh)
    graph = ge.Graph("g")
    x = graph.input("x", (16, 32))
    graph.output(ops.swoosh(x + 1.0, beta=2.0) * 3.0)
    model = ge.compile(graph)
    array = sample(16, 32)
    np.testing.assert_allclose(model(array), swoosh(array + 1, 2) * 3, rtol=1e-5)
    assert [task.kind for task in model.plan.tasks] == ["kernel"]
    assert model.plan.kernels[0].isolated


def test_defaults_choices_and_wrong_attributes() -> None:
    class Power(Operator):
        x = Input("T", FLOATS)
        y = Output("T")
        kind = Attr(str, "square", ("square", "cube"))

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
            return x * x if op.kind == "square" else x * x * x

    ops.register(Power)
    x = sample(5)
    np.testing.assert_array_equal(ge.run_operator("Power", x), x * x)
    np.testing.assert_array_equal(ge.run_operator("Power", x, kind="cube"), x * x * x)
    with pytest.raises(ge.GeError, match="use one of 'square', 'cube'"):
        ge.run_operator("Power", x, kind="root")
    with pytest.raises(ge.GeError, match="unknown attribute"):
        ge.run_operator("Power", x, sort="cube")
    with pytest.raises(ge.GeError, match="no engine accepts int32"):
        ge.run_operator("Power", x.astype(np.int32))


def test_optional_and_any_number_of_inputs() -> None:
    class Blend(Operator):
        """The sum of all inputs, scaled."""

        scale = Input("", FLOATS, optional=True)
        xs = Input("T", FLOATS, variadic=True)
        y = Output("T")

        @staticmethod
        def compute(op: NodeView, scale: tbe.Tensor | None, *xs: tbe.Tensor) -> tbe.Tensor:
            total = xs[0]
            for x in xs[1:]:
                total = total + x
            return total if scale is None else total * tbe.broadcast_to(scale, total.shape)

    ops.register(Blend)
    a, b, c = sample(3, 4), sample(3, 4) + 1, sample(3, 4) - 1
    np.testing.assert_allclose(ge.run_operator("Blend", None, a, b, c), a + b + c, rtol=1e-6)
    np.testing.assert_allclose(
        ge.run_operator("Blend", np.array([2.0], np.float32), a, b), (a + b) * 2, rtol=1e-6
    )


def test_several_outputs_and_reductions() -> None:
    class Moments(Operator):
        x = Input("T", FLOATS)
        mean = Output("T")
        spread = Output("T")

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor) -> tuple[tbe.Tensor, tbe.Tensor]:
            size = tbe.constant(float(x.shape[-1]), x.dtype)
            mean = tbe.reduce("sum", x, [-1 % len(x.shape)], keepdims=True) / size
            return mean, tbe.reduce("max", x, [-1 % len(x.shape)], keepdims=True) - mean

    ops.register(Moments)
    x = sample(6, 40)
    mean, spread = ge.run_operator("Moments", x)
    np.testing.assert_allclose(mean, x.mean(-1, keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        spread, x.max(-1, keepdims=True) - x.mean(-1, keepdims=True), rtol=1e-5, atol=1e-6
    )


def test_pattern_is_read_off_the_expression() -> None:
    class Mixed(Operator):
        x = Input("T", FLOATS)
        y = Output("T")
        kind = Attr(str, "plain")
        pattern = ops.Pattern.ELEMENTWISE  # not what all kinds are

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
            if op.kind == "plain":
                return x + x
            return tbe.transpose(x, (1, 0)) if op.kind == "turn" else tbe.reduce("sum", x, [0])

    ops.register(Mixed)
    graph = ge.Graph("g")
    x = graph.input("x", (3, 4))
    found = [pattern_of(graph.op("Mixed", x, kind=k).value.producer()) for k in ("plain", "turn", "sum")]
    assert found == [ops.Pattern.ELEMENTWISE, ops.Pattern.INJECTIVE, ops.Pattern.REDUCE]
    graph.output(graph.op("Mixed", graph.op("Mixed", x, kind="turn") * 2.0, kind="sum") + 1.0)
    array = sample(3, 4)
    np.testing.assert_allclose(ge.compile(graph)(array), (array.T * 2).sum(0) + 1, rtol=1e-5)


def test_inference_agrees_with_computation_for_changing_shapes() -> None:
    class Pairs(Operator):
        """Sums of neighbours: the last dimension is halved."""

        x = Input("T", NUMBERS)
        y = Output("T")

        @staticmethod
        def verify(op: NodeView) -> None:
            if op.input(0).shape[-1] % 2:
                raise fail(op, "the last dimension is odd", "pad it")

        @staticmethod
        def infer(op: NodeView) -> TensorDesc:
            *outer, last = op.input(0).shape
            return TensorDesc((*outer, last // 2), op.input(0).dtype)

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
            pairs = tbe.reshape(x, (*x.shape[:-1], x.shape[-1] // 2, 2))
            return tbe.reduce("sum", pairs, [len(x.shape)])

    ops.register(Pairs)
    for shape in ((2,), (3, 4), (2, 3, 10)):
        x = sample(*shape)
        np.testing.assert_allclose(
            ge.run_operator("Pairs", x), x.reshape(*shape[:-1], -1, 2).sum(-1), rtol=1e-5, atol=1e-6
        )
    with pytest.raises(ge.GeError, match=r"the last dimension is odd.*pad it"):
        ge.run_operator("Pairs", sample(3))


def test_constants_are_folded_and_decide() -> None:
    class Times(Operator):
        x = Input("T", FLOATS)
        count = Input("", frozenset({"int64"}))
        y = Output("T")

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor, count: tbe.Tensor) -> tbe.Tensor:
            times = op.const(1)
            assert times is not None, "count must be a constant"
            return x * float(times)

    ops.register(Times)
    graph = ge.Graph("g")
    x = graph.input("x", (3,))
    graph.output(graph.op("Times", x, np.int64(3)))
    graph.output(graph.op("Times", x, np.int64(4)))
    graph.output(graph.op("Times", graph.constant(np.ones(3, np.float32)), np.int64(5)))
    assert sum(n.op_type == "Times" for n in graph.ir) == 2
    three, four, five = ge.compile(graph)(np.ones(3, np.float32))
    assert [three[0], four[0], five[0]] == [3, 4, 5]


# -- priority ------------------------------------------------------------------------------------------------


class HalfRelu(Operator):
    """A Relu that is no Relu, to be told apart; floats of 32 bits only."""

    type = "Relu"
    x = Input("T", FLOATS)
    y = Output("T")
    combinations = (("float32",),)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.binary("max", x, x * 0.5)


def test_override_of_a_built_in_operator() -> None:
    ops.register(HalfRelu)
    model = ge.compile(onnx_model(helper.make_node("Relu", ["x"], ["y"]), [4]))
    x = np.array([-2, -1, 1, 2], np.float32)
    np.testing.assert_array_equal(model(x), np.maximum(x, x / 2))
    (row,) = ge.explain(model)
    assert row.operator == "Relu"
    assert "custom TBE computation" in row.reason and "before the built-in Relu" in row.reason


def test_no_pass_takes_an_override_for_the_built_in_operator() -> None:
    ops.register(HalfRelu)
    graph = ge.Graph("g")
    x = graph.input("x", (2, 8))
    graph.output(ops.relu(x @ np.eye(8, dtype=np.float32)))
    array = sample(2, 8)
    np.testing.assert_allclose(ge.compile(graph)(array), np.maximum(array, array / 2), rtol=1e-6)


def test_element_types_beyond_the_override_go_to_the_built_in_operator() -> None:
    ops.register(HalfRelu)
    graph = ge.Graph("g")
    graph.output(ops.relu(graph.input("x", (4,), "float64")))
    model = ge.compile(graph)
    np.testing.assert_array_equal(model(np.array([-2.0, -1, 1, 2])), [0, 0, 1, 2])
    (row,) = ge.explain(model)
    assert "not the custom operator" in row.reason and "it takes float32" in row.reason


def test_attributes_that_the_override_lacks_go_to_the_built_in_operator() -> None:
    class OwnSoftmax(HalfRelu):
        type = "Softmax"

    ops.register(OwnSoftmax)
    model = ge.compile(onnx_model(helper.make_node("Softmax", ["x"], ["y"], axis=-1), [2, 3]))
    x = sample(2, 3)
    np.testing.assert_allclose(model(x), np.exp(x) / np.exp(x).sum(-1, keepdims=True), rtol=1e-5)
    assert any("it has no attribute 'axes'" in row.reason for row in ge.explain(model))


def test_an_operator_may_refuse_nodes() -> None:
    class Picky(HalfRelu):
        type = "Relu"

        @staticmethod
        def unsuitable(op: NodeView) -> str:
            return "" if op.input(0).rank == 1 else "only vectors"

    ops.register(Picky)
    np.testing.assert_array_equal(ge.run_operator("Relu", np.array([-2.0], np.float32)), [-1])
    np.testing.assert_array_equal(ge.run_operator("Relu", np.array([[-2.0]], np.float32)), [[0]])


def test_the_newest_of_several_wins_and_leaves() -> None:
    class Third(HalfRelu):
        type = "Relu"

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
            return tbe.binary("max", x, x * 0.25)

    x = np.array([-4.0], np.float32)
    assert ge.run_operator("Relu", x) == 0
    first = ops.register(HalfRelu)
    assert ge.run_operator("Relu", x) == -2
    second = ops.register(Third)
    assert ge.run_operator("Relu", x) == -1
    ops.unregister(second)
    assert ge.run_operator("Relu", x) == -2
    ops.unregister(first)
    assert ge.run_operator("Relu", x) == 0


def test_keys_of_caches_notice_operators() -> None:
    before = ops.fingerprint()
    first = ops.register(HalfRelu)
    with_one = ops.fingerprint()
    assert with_one not in ("", before)
    ops.unregister(first)
    assert ops.fingerprint() == before


# -- plugins -------------------------------------------------------------------------------------------------


def test_plugin_maps_attributes() -> None:
    ops.register(Swoosh)
    ops.simple("Swoosh", onnx="my.domain::Swish2", attrs={"beta": "steepness"})
    node = helper.make_node("Swish2", ["x"], ["y"], domain="my.domain", steepness=3.0)
    x = sample(7)
    np.testing.assert_allclose(ge.compile(onnx_model(node, [7], "my.domain"))(x), swoosh(x, 3), rtol=1e-5)


def test_plugin_of_one_operator_into_many() -> None:
    ops.register(Swoosh)

    @ops.plugin(onnx="my.domain::Residual")
    def residual(n: ops.Node) -> object:
        x = n.inputs[0]
        return n.op("Add", x, n.op("Swoosh", n.op("Mul", x, 2.0), beta=float(n.attr("beta", 1.0))))

    node = helper.make_node("Residual", ["x"], ["y"], domain="my.domain", beta=0.5)
    model = ge.compile(onnx_model(node, [7], "my.domain"))
    x = sample(7)
    np.testing.assert_allclose(model(x), x + swoosh(2 * x, 0.5), rtol=1e-5, atol=1e-6)
    assert len(model.plan.tasks) == 1


def test_plugin_before_the_built_in_one_at_any_version() -> None:
    @ops.plugin(onnx="Softmax")
    def ones(n: ops.Node) -> object:
        return n.op("Mul", n.inputs[0], 0.0)

    for version in (11, 13, 17):
        node = helper.make_node("Softmax", ["x"], ["y"])
        model = ge.compile(onnx_model(node, [2, 3], version=version))
        np.testing.assert_array_equal(model(sample(2, 3)), np.zeros((2, 3)))


def test_plugin_before_a_function_of_the_model() -> None:
    ops.register(Swoosh)
    ops.simple("Swoosh", onnx="my.domain::Swish2")
    body = helper.make_function(
        "my.domain",
        "Swish2",
        ["a"],
        ["b"],
        [helper.make_node("Neg", ["a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    model = onnx_model(helper.make_node("Swish2", ["x"], ["y"], domain="my.domain"), [4], "my.domain")
    model.functions.append(body)
    x = sample(4)
    np.testing.assert_allclose(ge.compile(model)(x), swoosh(x), rtol=1e-5)


def test_plugin_before_what_the_parser_treats_itself() -> None:
    graph_pb2 = pytest.importorskip("tensorflow.core.framework.graph_pb2")
    graph = graph_pb2.GraphDef()
    placeholder = graph.node.add(name="x", op="Placeholder")
    placeholder.attr["dtype"].type = 1
    placeholder.attr["shape"].shape.dim.add(size=3)
    graph.node.add(name="y", op="Identity", input=["x"]).attr["T"].type = 1
    x = sample(3)
    np.testing.assert_array_equal(ge.compile(graph)(x), x)

    @ops.plugin(tensorflow="Identity")
    def twice(n: ops.Node) -> object:
        return n.op("Add", n.inputs[0], n.inputs[0])

    np.testing.assert_array_equal(ge.compile(graph)(x), 2 * x)


def test_plugin_may_refuse() -> None:
    @ops.plugin(onnx="my.domain::Never")
    def never(n: ops.Node) -> object:
        raise ops.Unsupported("it is never right", "leave it out")

    node = helper.make_node("Never", ["x"], ["y"], domain="my.domain")
    with pytest.raises(ge.UnsupportedOperatorsError, match=r"it is never right.*leave it out"):
        ge.compile(onnx_model(node, [4], "my.domain"))


def test_plugin_with_an_error_names_its_line() -> None:
    @ops.plugin(onnx="my.domain::Broken")
    def broken(n: ops.Node) -> object:
        return n.inputs[0] + undefined_name  # type: ignore[name-defined]  # noqa: F821

    node = helper.make_node("Broken", ["x"], ["y"], domain="my.domain")
    line = broken.__code__.co_firstlineno + 2
    with pytest.raises(ge.GeError, match=rf"{os.path.basename(__file__)}:{line} in broken.*NameError"):
        ge.compile(onnx_model(node, [4], "my.domain"))


def test_plugin_that_does_not_end() -> None:
    @ops.plugin(onnx="my.domain::Endless")
    def endless(n: ops.Node) -> object:
        while True:
            pass

    node = helper.make_node("Endless", ["x"], ["y"], domain="my.domain")
    with pytest.raises(ge.GeError, match=r"E10602.*in endless.*did not end within 1 s"):
        ge.compile(onnx_model(node, [4], "my.domain"))


# -- gradients -----------------------------------------------------------------------------------------------


def test_gradient_becomes_an_operator() -> None:
    ops.register(Swoosh)
    x, dy = sample(3, 4), sample(3, 4) + 1
    got = ge.run_operator("SwooshGrad", x, ge.run_operator("Swoosh", x, beta=2.0), dy, beta=2.0)
    np.testing.assert_allclose(got, dy * swoosh_gradient(x, 2.0), rtol=1e-4, atol=1e-5)


def test_gradient_of_a_wrong_shape_is_an_error() -> None:
    class Sloppy(Swoosh):
        type = "Sloppy"

        @staticmethod
        def gradient(op: NodeView, inputs: list, outputs: list, grads: list) -> list:
            return [ops.reduce_sum(grads[0], axes=[0])]

    ops.register(Sloppy)
    x = sample(3, 4)
    with pytest.raises(ge.GeError, match=r"the gradient of input 0 is float32\[4\] where the input is"):
        ge.run_operator("SloppyGrad", x, x, x)


# -- code that goes wrong ------------------------------------------------------------------------------------


class Wrong(Operator):
    """Goes wrong in a chosen way."""

    x = Input("T", FLOATS)
    y = Output("T")
    way = Attr(str)

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return op.input(0)

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> object:
        return WAYS[op.way](x)


def _raises(x: tbe.Tensor) -> tbe.Tensor:
    raise RuntimeError("on purpose")


def _loops(x: tbe.Tensor) -> tbe.Tensor:
    while True:
        x = x


def _crashes(x: tbe.Tensor) -> tbe.Tensor:
    import ctypes

    ctypes.string_at(0)
    return x


def _exits(x: tbe.Tensor) -> tbe.Tensor:
    os._exit(3)


def _fills_memory(x: tbe.Tensor) -> tbe.Tensor:
    kept = []
    while True:
        kept.append(np.empty(1 << 30, np.uint8))


WAYS = {
    "raise": _raises,
    "loop": _loops,
    "crash": _crashes,
    "exit": _exits,
    "memory": _fills_memory,
    "shape": lambda x: tbe.reduce("sum", x, [0]),
    "type": lambda x: tbe.cast(x, "float64"),
    "kind": lambda x: 3,
    "count": lambda x: (x, x),
    "quit": lambda x: exit(),
}


@pytest.mark.parametrize(
    ("way", "code", "words"),
    [
        ("raise", "E10601", r"test_user_operators\.py:\d+ in _raises.*RuntimeError: on purpose"),
        ("loop", "E10602", r"test_user_operators\.py:\d+ in _loops.*did not end within 1 s"),
        ("crash", "E10605", r"test_user_operators\.py:\d+ in _crashes.*broke its process \(SIGSEGV\)"),
        ("exit", "E10605", "ended its process with exit code 3"),
        ("memory", "E10601", r"in _fills_memory.*Unable to allocate|MemoryError"),
        ("shape", "E10603", r"compute returned float32\[4\] where infer says float32\[3,4\]"),
        ("type", "E10603", r"float64\[3,4\] where infer says float32\[3,4\]"),
        ("kind", "E10603", "compute returned 3 where a tensor expression is expected"),
        ("count", "E10603", "compute returned 2 outputs, the prototype has 1"),
        ("quit", "E10601", "SystemExit"),
    ],
)
def test_wrong_code_is_an_error_and_the_process_lives(way: str, code: str, words: str) -> None:
    ops.register(Wrong)
    with pytest.raises(ge.GeError, match=words) as caught:
        ge.run_operator("Wrong", sample(3, 4), way=way)
    assert caught.value.code == code
    np.testing.assert_array_equal(ge.run_operator("Relu", np.array([-1.0], np.float32)), [0])


def test_code_without_a_time_limit_runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_OPP_TIMEOUT", "0")
    seen = []

    class Spy(Swoosh):
        type = "Spy"
        gradient = None

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
            seen.append(os.getpid())
            return x

    ops.register(Spy)
    ge.run_operator("Spy", sample(3))
    assert set(seen) == {os.getpid()}


def _operator(compute: Any) -> type[Operator]:
    members = {"x": Input("T", FLOATS), "y": Output("T"), "compute": staticmethod(compute)}
    return ops.register(type("Local", (Operator,), {"__module__": __name__, **members}))


def test_code_runs_in_a_child_of_a_process_that_is_kept() -> None:
    """This process, which has threads, does not fork; the other one does, and has none."""
    from ge import isolation

    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        raise RuntimeError(f"parent {os.getppid()}")

    for size in (3, 4):
        operator = _operator(compute)
        with pytest.raises(ge.GeError, match=r"parent \d+") as caught:
            ge.run_operator("Local", sample(size))
        process = isolation._WORKER._process
        assert f"parent {process.pid}" in str(caught.value)
        with open(f"/proc/{process.pid}/status", encoding="utf-8") as file:
            assert "Threads:\t1\n" in file.read()
        ops.unregister(operator)


@pytest.mark.parametrize(
    ("script", "limit", "in_time", "death"),
    [("exit 3", 60.0, True, "exit code 3"), ("exec sleep 600", 0.5, False, "SIGKILL")],
)
def test_a_process_that_ends_is_told_from_one_that_hangs(
    script: str, limit: float, in_time: bool, death: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ge import isolation

    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    for name in ("START", "WAITING", "GRACE"):
        monkeypatch.setattr(isolation, name, 0.0)
    monkeypatch.setattr(isolation, "_WORKER", isolation._Worker())
    monkeypatch.setattr(sys, "executable", str(program))
    outcome = isolation.run(b"", limit)
    assert outcome.answer is None
    assert outcome.in_time == in_time
    assert death in outcome.death


def test_code_sees_the_environment_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x * float(os.environ["FACTOR_OF_A_TEST"])

    for factor in (2, 3):
        monkeypatch.setenv("FACTOR_OF_A_TEST", str(factor))
        operator = _operator(compute)
        assert ge.run_operator("Local", np.ones(factor, np.float32))[0] == factor
        ops.unregister(operator)


def test_code_may_use_what_is_around_it() -> None:
    """Closures, globals, recursion and a base class's method reach the process that traces."""
    factor = np.float32(2)

    def power(x: tbe.Tensor, n: int) -> tbe.Tensor:
        return x if n == 1 else x * power(x, n - 1)

    class Base(Operator):
        x = Input("T", FLOATS)
        y = Output("T")

        @classmethod
        def scaled(cls, x: tbe.Tensor) -> tbe.Tensor:
            return x * float(factor)

    class Around(Base):
        @classmethod
        def scaled(cls, x: tbe.Tensor) -> tbe.Tensor:
            return super().scaled(x) + float(sample(1).size)

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
            return Around.scaled(power(x, 3))

    ops.register(Around)
    x = sample(5)
    np.testing.assert_allclose(ge.run_operator("Around", x), 2 * x**3 + 1, rtol=1e-5)


def test_code_may_use_classes_of_its_own() -> None:
    """Enumerations, records, slots and properties reach the process that traces; cloudpickle stays as it was."""
    registry = cloudpickle.list_registry_pickle_by_value()

    class Way(enum.Enum):
        UP = 1
        DOWN = -1

    @dataclass(frozen=True)
    class Line:
        slope: float
        way: Way = Way.UP
        terms: list[float] = field(default_factory=list)

        @property
        def rise(self) -> float:
            return self.slope * self.way.value

    class Slotted:
        __slots__ = ("line",)

        def __init__(self, line: Line) -> None:
            self.line = line

    held = Slotted(Line(2.0, Way.DOWN, [1.0]))

    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        assert held.line.way is Way.DOWN and Line(1.0).way in Way
        return x * held.line.rise + sum(held.line.terms)

    _operator(compute)
    x = sample(5)
    np.testing.assert_allclose(ge.run_operator("Local", x), 1 - 2 * x, rtol=1e-6)
    assert cloudpickle.list_registry_pickle_by_value() == registry


def test_code_that_cannot_be_sent_is_an_error_with_a_remedy() -> None:
    lock = threading.Lock()

    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        with lock:
            return x

    _operator(compute)
    with pytest.raises(ge.GeError, match=r"(?s)E10606.*cannot pickle '_thread.lock'.*NPU_OPP_TIMEOUT=0"):
        ge.run_operator("Local", sample(3))


def test_a_code_generator_that_breaks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from ge import isolation

    class Breaking(Swoosh):
        type = "Breaking"
        gradient = None

    ops.register(Breaking)
    ge.describe_operator(
        "Breaking", [TensorDesc((11, 3), "float32")]
    )  # what its code says is known from here on
    read, started = isolation._WORKER._line, isolation._WORKER._started

    def stopped() -> Any:
        process = started()
        process.send_signal(signal.SIGSTOP)  # it takes the request, and cannot answer
        return process

    def killed(process: Any, seconds: float) -> bytes:
        process.terminate()
        process.send_signal(signal.SIGCONT)
        return read(process, seconds)

    monkeypatch.setattr(isolation._WORKER, "_started", stopped)
    monkeypatch.setattr(isolation._WORKER, "_line", killed)
    with pytest.raises(ge.GeError, match=r"E10604.*the code generator broke \(SIGTERM\)"):
        ge.run_operator("Breaking", sample(11, 3))
    monkeypatch.undo()
    x = sample(11, 3)
    np.testing.assert_allclose(ge.run_operator("Breaking", x), swoosh(x), rtol=1e-5)


@pytest.mark.parametrize("installed", [True, False])
def test_packages_of_any_folder_that_pip_filled_travel_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    from ge.ops.custom import transfer

    (tmp_path / "offered.py").write_text("def twice(x):\n    return 2 * x\n")
    if installed:
        (tmp_path / "offered-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "offered", raising=False)
    import offered  # type: ignore[import-not-found]

    assert transfer.is_installed(offered.__file__) == installed
    sent = transfer.packed(offered.twice)
    assert (b"return" not in sent and len(sent) < 60) == installed
    assert cloudpickle.loads(sent)(4) == 8
    monkeypatch.delitem(sys.modules, "offered")
