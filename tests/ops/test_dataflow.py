"""Dataflow: what operators promise of parts of their inputs, and of inputs in another order, holds for their values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import ge
import tbe
from ge import ops
from ge.compiler import compile_graph, compile_plan
from ge.errors import GeError
from ge.ir.values import desc_of
from ge.ops import FLOATS, Input, NodeView, Operator, Output
from ge.ops.base import dataflow_of
from ge.ops.builder import GraphBuilder
from ge.ops.dataflow import Aligned, Order, OverAxes, Part, Rows
from ge.ops.interpret import interpret
from ge.ops.traits import Precision
from ge.options import CompileOptions, PrecisionMode
from ge.passes.cleanup.merge_movements import MergeMovements
from ge.passes.cleanup.remove_identities import RemoveIdentities
from ge.passes.layout.sink_slices import SinkSlices
from ge.passes.layout.sink_transposes import SinkTransposes
from ge.passes.precision.lower_precision import LowerPrecision
from tests.passes.pass_support import transformed, types

Shapes = Sequence[tuple[int, ...] | None]

# Operator, shapes of its inputs, attributes.
CASES: list[tuple[str, Shapes, dict[str, Any]]] = [
    ("Tanh", [(4, 6)], {}),
    ("Add", [(4, 6), (6,)], {}),
    ("Mul", [(4, 1, 6), (2, 1)], {}),
    ("Softmax", [(4, 2, 6)], {"axes": [1]}),
    ("Hardmax", [(4, 2, 6)], {"axis": 1}),
    ("LpNormalize", [(4, 2, 6)], {"axis": 0}),
    ("LayerNorm", [(4, 2, 6), (6,), (6,)], {"axes": [-1]}),
    ("RmsNorm", [(4, 2, 6), (2, 6)], {"axes": [1, 2]}),
    ("ReduceSum", [(4, 2, 6)], {"axes": [1]}),
    ("ReduceMax", [(4, 2, 6)], {"axes": [0, 2], "keepdims": True}),
    ("ReduceMean", [(4, 2)], {}),
    ("ArgMax", [(4, 2, 6)], {"axis": 1, "keepdims": False}),
    ("CumSum", [(4, 6)], {"axis": 1}),
    ("BatchNorm", [(4, 2, 6), (2,), (2,), (2,), (2,)], {}),
    ("InstanceNorm", [(4, 2, 6), (2,), (2,)], {}),
    ("GroupNorm", [(4, 2, 6), (2,), (2,)], {"groups": 2}),
    ("Conv", [(4, 2, 6, 6), (3, 2, 3, 3), (3,)], {}),
    ("ConvTranspose", [(4, 2, 6, 6), (2, 3, 3, 3)], {}),
    ("MaxPool", [(4, 2, 6, 6)], {"kernel": [2, 2]}),
    ("AvgPool", [(4, 2, 6, 6)], {"kernel": [2, 2], "strides": [2, 2]}),
    ("Lrn", [(4, 2, 6, 6)], {"size": 3}),
    ("DepthToSpace", [(2, 4, 2, 2)], {"block": 2}),
    ("SpaceToDepth", [(2, 2, 4, 4)], {"block": 2}),
    ("MatMul", [(4, 6), (6, 2)], {}),
    ("MatMul", [(6, 4), (6, 2), (2,)], {"transpose_a": True}),
    ("MatMul", [(4, 2, 6), (6, 2)], {}),
    ("MatMul", [(4, 2, 6), (4, 6, 2)], {}),
    ("MatMul", [(4, 2, 6), (1, 6, 2)], {}),
    ("MatMul", [(4, 6), (6, 2), None, (4, 2)], {"post_ops": ["add"]}),
    ("Attention", [(4, 2, 32, 16), (4, 2, 16, 16), (4, 2, 16, 16)], {"scale": 0.5}),
    ("Attention", [(4, 2, 32, 16), (4, 2, 16, 16), (4, 2, 16, 16), (32, 16)], {"scale": 0.5}),
    ("Attention", [(4, 2, 32, 16)] * 3, {"scale": 0.5, "causal": True}),
    ("Reshape", [(4, 2, 6)], {"shape": [8, 6]}),
    ("Reshape", [(8, 6)], {"shape": [4, 2, 6]}),
    ("Reshape", [(4, 6)], {"shape": [4, 2, 3]}),
    ("Transpose", [(4, 2, 6)], {"perm": [2, 0, 1]}),
    ("Slice", [(4, 2, 6)], {"starts": [0, 1, 2], "ends": [4, 2, 6]}),
    ("Concat", [(4, 2), (4, 6)], {"axis": 1}),
    ("Split", [(4, 2, 6)], {"axis": 2, "sizes": [2, 4]}),
    ("Pad", [(4, 2, 6)], {"low": [0, 1, 0], "high": [0, 0, 0]}),
    ("Reverse", [(4, 6)], {"axes": [1]}),
    ("Quantize", [(4, 2, 6), (1,)], {"axis": 1}),
    ("Quantize", [(4, 2, 6), (2,)], {"axis": 1}),
]


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE_BYTES", "4096")


def _node(type_: str, descs: Sequence[tuple[tuple[int, ...], str] | None], attrs: dict[str, Any]) -> ir.Node:
    b = GraphBuilder()
    inputs = [None if d is None else b.input(f"x{i}", *d) for i, d in enumerate(descs)]
    node = b.ops(type_, inputs, **attrs)[0].producer()
    assert node is not None
    return node


def _results(type_: str, arrays: Sequence[np.ndarray | None], attrs: dict[str, Any]) -> list[np.ndarray]:
    b = GraphBuilder()
    inputs = [None if a is None else b.input(f"x{i}", a.shape, a.dtype.name) for i, a in enumerate(arrays)]
    for value in b.ops(type_, inputs, **attrs):
        b.output(value)
    return interpret(b.graph, [a for a in arrays if a is not None])


def _arrays(shapes: Shapes) -> list[np.ndarray | None]:
    rng = np.random.default_rng(3)
    return [None if s is None else (rng.random(s) + 0.1).astype(np.float32) for s in shapes]


def _taken(array: np.ndarray, part: Part | None) -> np.ndarray:
    if part is None:
        return array
    places = np.arange(array.shape[part.axis]) % part.period - part.start
    return array.compress((places >= 0) & (places < part.length), axis=part.axis)


def _asked(shape: Sequence[int]) -> Iterator[Part]:
    for axis, extent in enumerate(shape):
        if extent > 1:
            yield Part(axis, extent, extent // 2, extent // 2)
            yield Part(axis, extent, extent - 1, 1)
            yield Part(axis, 2, 0, 1)


@pytest.mark.parametrize(("type_", "shapes", "attrs"), CASES)
def test_parts_of_the_outputs_come_from_the_parts_that_are_named(
    type_: str, shapes: Shapes, attrs: dict[str, Any]
) -> None:
    arrays = _arrays(shapes)
    node = _node(type_, [None if a is None else (a.shape, a.dtype.name) for a in arrays], attrs)
    view, flow = NodeView.of(node), dataflow_of(node)
    assert flow is not None and node.op_type == type_
    whole = _results(type_, arrays, attrs)
    answered = 0
    for part in _asked(whole[0].shape):
        if whole[0].shape[part.axis] % part.period:
            continue
        sliced = flow.slice(view, part)
        if sliced is None or len({a.shape[part.axis : part.axis + 1] for a in whole}) > 1:
            continue
        answered += 1
        given = [None if a is None else _taken(a, sliced.parts.get(i)) for i, a in enumerate(arrays)]
        for made, wanted in zip(_results(type_, given, {**attrs, **sliced.attrs}), whole, strict=True):
            np.testing.assert_allclose(made, _taken(wanted, part), rtol=1e-5, atol=1e-6)
    assert answered or (type_ == "ReduceMean" and not attrs)


@pytest.mark.parametrize(("type_", "shapes", "attrs"), CASES)
def test_operators_work_in_the_orders_that_they_accept(
    type_: str, shapes: Shapes, attrs: dict[str, Any]
) -> None:
    arrays = _arrays(shapes)
    node = _node(type_, [None if a is None else (a.shape, a.dtype.name) for a in arrays], attrs)
    flow, rank = dataflow_of(node), len(shapes[0] or ())
    assert flow is not None
    whole = _results(type_, arrays, attrs)
    for perm in itertools.permutations(range(rank)):
        order = Order(perm)
        moved = flow.reorder(NodeView.of(node), order)
        if moved is None:
            continue
        given = []
        for index, array in enumerate(arrays):
            if array is None or (index and moved.first_only):
                given.append(array)
            else:
                full = array.reshape((1,) * (rank - array.ndim) + array.shape)
                given.append(np.ascontiguousarray(full.transpose(order.inverse)))
        for made, wanted in zip(_results(type_, given, {**attrs, **moved.attrs}), whole, strict=True):
            np.testing.assert_allclose(made.transpose(moved.perm), wanted, rtol=1e-5, atol=1e-6)


def test_embeddings_depend_on_their_indices() -> None:
    node = _node("Gather", [((5, 3), "float32"), ((4, 2), "int64")], {"axis": 0})
    flow = dataflow_of(node)
    assert flow is not None
    of_indices, of_table = (flow.slice(NodeView.of(node), Part(axis, 1, 0, 1)) for axis in (1, 2))
    assert of_indices is not None and of_indices.parts == {1: Part(1, 1, 0, 1)}
    assert of_table is not None and of_table.parts == {0: Part(1, 1, 0, 1)}


# -- operators of users ------------------------------------------------------------------------------------------


class Swoosh(Operator):
    """x * sigmoid(x)."""

    x = Input("T", FLOATS)
    y = Output("T")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x * tbe.unary("sigmoid", x)


class Declared(Swoosh):
    """The same, with its dataflow."""

    type = "Swoosh"
    dataflow = Aligned()


class Centred(Swoosh):
    """x minus its mean along the last axis."""

    type = "Swoosh"
    dataflow = Rows((0, 1))

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x - tbe.reduce("sum", x, (2,), True) * (1 / x.shape[2])


class Narrowing(Swoosh):
    """The same, in 16 bits where a precision mode asks for them."""

    type = "Swoosh"
    precision = Precision(narrows=True)


class Lying(Swoosh):
    """Sums over the batch, and says otherwise."""

    type = "Swoosh"
    dataflow = Rows()

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.reduce("sum", x, (0,), False)


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[type[Operator]]:
    yield ops.register(request.param, custom=True)
    ops.unregister(request.param)


def _network(b: GraphBuilder) -> ir.Value:
    x = b.input("x", (8, 8, 16), "float32")
    return b.op("Swoosh", b.op("MatMul", x, np.full((16, 16), 0.1, np.float32)))


@pytest.mark.parametrize("operator", [Declared, Centred], indirect=True)
def test_a_users_operator_is_split_with_its_batch(operator: type[Operator]) -> None:
    b = GraphBuilder()
    b.output(_network(b), "y")
    assert compile_plan(b.graph).steps > 1
    x = np.random.default_rng(0).standard_normal((8, 8, 16)).astype(np.float32)
    whole = CompileOptions(disabled_passes=frozenset({"split_batch"}))
    wanted = compile_graph(b.graph, whole).run([x])[0]
    np.testing.assert_allclose(compile_graph(b.graph).run([x])[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("operator", [Swoosh], indirect=True)
def test_a_users_operator_without_a_dataflow_keeps_its_batch(operator: type[Operator]) -> None:
    b = GraphBuilder()
    b.output(_network(b), "y")
    assert compile_plan(b.graph).steps == 1


@pytest.mark.parametrize("operator", [Declared, Centred], indirect=True)
def test_slices_sink_through_a_users_operator(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Slice", _network(b), starts=[0, 0, 0], ends=[8, 1, 16])

    graph = transformed(build, SinkSlices())
    (product,) = (n for n in graph if n.op_type == "MatMul" and desc_of(n.outputs[0]).shape[1] == 1)
    assert product.outputs[0].uses()


@pytest.mark.parametrize("operator", [Declared], indirect=True)
def test_transposes_sink_through_a_users_operator(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        x = b.op("Transpose", b.input("x", (2, 3, 4), "float32"), perm=[0, 2, 1])
        return b.op("Tanh", b.op("Transpose", b.op("Swoosh", x), perm=[0, 2, 1]))

    graph = transformed(build, SinkTransposes(), MergeMovements(), RemoveIdentities())
    assert "Transpose" not in types(graph)


@pytest.mark.parametrize("operator", [Narrowing], indirect=True)
def test_precision_modes_narrow_a_users_operator_that_allows_it(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Swoosh", b.input("x", (2, 3), "float32"))

    options = CompileOptions(precision_mode=PrecisionMode.FORCE_FP16)
    graph = transformed(build, LowerPrecision(), options=options, tolerance=1e-2)
    assert types(graph) == ["Cast", "Swoosh", "Cast"]
    assert types(transformed(build, LowerPrecision())) == ["Swoosh"]


@pytest.mark.parametrize("operator", [Lying], indirect=True)
def test_a_dataflow_that_contradicts_the_inference_is_an_error(operator: type[Operator]) -> None:
    def sliced(b: GraphBuilder) -> ir.Value:
        x = b.input("x", (8, 8), "float32")
        y = b.op("Swoosh", b.op("MatMul", x, np.ones((8, 8), np.float32)))
        return b.op("Slice", y, starts=[0], ends=[1])

    with pytest.raises(GeError, match="its dataflow promises an output of shape"):
        transformed(sliced, SinkSlices())


def test_declarations_of_the_library_are_not_inherited_by_users() -> None:
    class MySoftmax(ge.ops.lookup("Softmax")):  # type: ignore[misc]
        type = "Softmax"

    ops.register(MySoftmax, custom=True)
    try:
        assert dataflow_of(_node("Softmax", [((2, 3), "float32")], {})) is None
    finally:
        ops.unregister(MySoftmax)
    assert isinstance(dataflow_of(_node("Softmax", [((2, 3), "float32")], {})), OverAxes)


def test_an_attribute_may_have_the_name_of_a_trait() -> None:
    class Priced(Operator):
        x = Input("T", FLOATS)
        y = Output("T")
        cost = ops.Attr(float, 2.0)

        @staticmethod
        def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
            return x * op.cost

    ops.register(Priced, custom=True)
    try:
        np.testing.assert_array_equal(ge.run_operator("Priced", np.ones(3, np.float32), cost=3.0), [3, 3, 3])
    finally:
        ops.unregister(Priced)
