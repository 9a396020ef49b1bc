"""Traits: what a user's operator declares, passes know of it as of a built-in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import tbe
from ge import ops
from ge.engines.algorithms import implementation_of, unknown_names
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops import FLOATS, Attr, Input, NodeView, Operator, Output
from ge.ops.base import lookup
from ge.ops.builder import GraphBuilder
from ge.ops.dataflow import Aligned
from ge.ops.differentiate import differentiate
from ge.ops.interpret import interpret
from ge.ops.plugins import Unsupported
from ge.ops.traits import Epilogue, Formula, Precision, Sign, WeightAxes
from ge.ops.views import Same, Views, piece_view
from ge.options import CompileOptions, Implementation, PrecisionMode
from ge.passes.cleanup.merge_movements import MergeMovements
from ge.passes.cleanup.remove_identities import RemoveIdentities
from ge.passes.cleanup.simplify_algebra import SimplifyAlgebra
from ge.passes.fusion.fold_weights import FoldWeights
from ge.passes.fusion.fuse_activations import FuseActivations
from ge.passes.fusion.fuse_post_ops import FusePostOps
from ge.passes.fusion.fuse_quantised import FuseQuantised
from ge.passes.fusion.merge_matmuls import MergeMatmuls
from ge.passes.precision.lower_precision import LowerPrecision
from ge.passes.precision.rounding import WeightLayout, round_weights, typical_means
from ge.passes.precision.sink_casts import SinkCasts
from ge.passes.precision.widen_unsupported import WidenUnsupported
from ge.passes.recurrence.fission import Fission
from ge.passes.recurrence.raise_loops import RaiseLoops
from ge.plan import View
from tests.passes.pass_support import floats, transformed, types
from tests.support.small_graphs import compiled


class Mine(Operator):
    """max(x, 0), of which nothing is declared."""

    x = Input("T", FLOATS)
    y = Output("T")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.binary("max", x, 0.0)


class Fused(Mine):
    type, epilogue = "Mine", Epilogue("relu")


class Positive(Mine):
    type, sign = "Mine", Sign.NON_NEGATIVE


class Turned(Mine):
    """x with its last axis reversed."""

    x = Input("T", FLOATS | {"int8"})
    type, moves = "Mine", True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.slice(x, [0, x.shape[1] - 1], [1, -1], x.shape)


class TurnedWide(Turned):
    x = Input("T", frozenset({"float32"}))
    type, moves = "Mine", True


class Largest(Mine):
    """The larger of x and x with its last axis reversed."""

    x = Input("T", FLOATS | {"int8"})
    type, selects = "Mine", True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.binary("max", x, tbe.slice(x, [0, x.shape[1] - 1], [1, -1], x.shape))


class Tripled(Mine):
    type, precision, algorithm_names = "Mine", Precision(widens=True), ("Treble",)


class Sum(Mine):
    """x + z."""

    z = Input("T", FLOATS)
    type, dataflow = "Mine", Aligned()

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, z: tbe.Tensor) -> tbe.Tensor:
        return x + z


class Plain(Sum):
    type, dataflow = "Mine", None


class SumAndDifference(Sum):
    """x + z and x - z."""

    type, dataflow = "Mine", Aligned()
    difference = Output("T")

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, z: tbe.Tensor) -> tuple[tbe.Tensor, ...]:  # type: ignore[override]
        return x + z, x - z


class Grown(Mine):
    """exp(x)."""

    type, formula = "Mine", Formula.CURVE

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.unary("exp", x)


class Looked(Mine):
    """x itself."""

    type, views = "Mine", Same()

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x


class Smoothed(Mine):
    type, keeps_means = "Mine", True


class Peak(Mine):
    """The largest element of each row."""

    type, nests = "Mine", True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.reduce("max", x, len(x.shape) - 1)


class Heap(Peak):
    type, nests = "Mine", False


class Scaled(Mine):
    """x with each column times its weight, plus a bias."""

    w = Input("T", FLOATS)
    bias = Input("T", FLOATS, optional=True)
    post_ops = Attr(list, (), item=str)
    type, takes_epilogues = "Mine", True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, w: tbe.Tensor, bias: tbe.Tensor | None = None) -> tbe.Tensor:
        return x * w if bias is None else x * w + bias


class ScaledByColumn(Scaled):
    type, takes_epilogues = "Mine", True

    @staticmethod
    def weight_axes(op: NodeView) -> WeightAxes:
        return WeightAxes(data=-1, outputs=0, inputs=None)


class Multiplied(Mine):
    """x times the transpose of a matrix."""

    w = Input("T", FLOATS)
    type, precision, dataflow = "Mine", Precision(narrows=True, product=True), None

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, w: tbe.Tensor) -> tbe.Tensor:
        (m, k), (n, _) = x.shape, w.shape
        return tbe.reduce("sum", tbe.reshape(x, (m, 1, k)) * tbe.reshape(w, (1, n, k)), 2)


class MultipliedBySums(Multiplied):
    type, precision = "Mine", Precision(narrows=True, product=True)

    @staticmethod
    def weight_axes(op: NodeView) -> WeightAxes:
        return WeightAxes(data=-1, outputs=0, inputs=1, summed=(1,))


class Added(Sum):
    type, epilogue = "Mine", Epilogue("add")


class Doubled(Mine):
    """2 x."""

    type, linear = "Mine", True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return x * 2.0


class DoubledHere(Doubled):
    type = "Mine"

    @staticmethod
    def linear(op: NodeView) -> bool:
        return op.inputs[0].rank == 2  # type: ignore[union-attr]


class DoubledThere(Doubled):
    type = "Mine"

    @staticmethod
    def linear(op: NodeView) -> bool:
        return op.inputs[0].rank == 3  # type: ignore[union-attr]


class Under(Sum):
    """The rows of z, then those of x."""

    type, dataflow = "Mine", None

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor, z: tbe.Tensor) -> tbe.Tensor:
        return tbe.concat([z, x], 0)


class _Rows(Views):
    def backward(self, op: NodeView, index: int, view: View) -> View | None:
        return piece_view(view, 0, [d.shape[0] for d in reversed(op.inputs) if d], 1 - index)

    def part(self, op: NodeView, index: int, whole: tbe.Tensor) -> tbe.Tensor:
        shape = op.inputs[index].shape  # type: ignore[union-attr]
        start = 0 if index else op.inputs[1].shape[0]  # type: ignore[union-attr]
        return tbe.slice(whole, [start, 0], [1, 1], shape)


class Settled(Mine):
    """Nothing changes when it is applied again with the same attributes."""

    least = Attr(float, 0.0)
    type, idempotent = "Mine", True


class Opposite(Mine):
    """-x."""

    type, involution = "Mine", True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.unary("neg", x)


class Flat(Mine):
    """The sign of x."""

    type, piecewise_constant = "Mine", True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.unary("sign", x)


class Wider(Mine):
    """Four rows, each of them x."""

    type, broadcasts = "Mine", True

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.broadcast_to(x, (4, x.shape[-1]))


class WiderByKernel(Wider):
    type, broadcasts = "Mine", False


class UnderInPlace(Under):
    type, views = "Mine", _Rows()


class _Columns(Views):
    def forward(self, op: NodeView, index: int, view: View) -> View | None:
        return view.permute((1, 0))


class _ColumnsInAnotherOrder(_Columns):
    permutes = True


class Flipped(Mine):
    """The transpose of x."""

    type, views = "Mine", _Columns()

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return TensorDesc(op.inputs[0].shape[::-1], op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def compute(op: NodeView, x: tbe.Tensor) -> tbe.Tensor:
        return tbe.transpose(x, (1, 0))


class FlippedOrder(Flipped):
    type, views = "Mine", _ColumnsInAnotherOrder()


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> Iterator[type[Operator]]:
    yield ops.register(request.param, custom=True)
    ops.unregister(request.param)


def _with(*operators: type[Operator]) -> Any:
    return pytest.mark.parametrize("operator", operators, indirect=True)


@_with(Fused, Mine)
def test_an_epilogue_is_done_by_the_product(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        product = b.op("MatMul", b.input("x", (64, 32), "float32"), b.input("w", (32, 48), "float32"))
        return b.op("Mine", product)

    wanted = ["MatMul"] if operator is Fused else ["MatMul", "Mine"]
    assert types(transformed(build, FusePostOps())) == wanted


@_with(Positive, Mine)
def test_a_root_of_what_cannot_be_negative(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Pow", b.op("Mine", b.input("x", (3, 4), "float32")), 0.5)

    assert types(transformed(build, SimplifyAlgebra())) == ["Mine", "Sqrt" if operator is Positive else "Pow"]


@_with(Turned, TurnedWide, Mine)
def test_casts_sink_through_movements_that_take_the_narrow_type(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Mine", b.op("Cast", b.input("x", (3, 4), "bfloat16"), to="float32"))

    wanted = ["Mine", "Cast"] if operator is Turned else ["Cast", "Mine"]
    assert types(transformed(build, SinkCasts())) == wanted


@_with(Turned, TurnedWide, Largest)
def test_a_movement_or_choice_between_quantised_values_takes_integers(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        wide = b.op("Dequantize", b.input("x", (3, 4), "int8"), np.float32(0.5), np.int8(0))
        return b.op("Quantize", b.op("Mine", wide), np.float32(0.5), np.int8(0), dtype="int8")

    wanted = ["Mine"] if operator is not TurnedWide else ["Dequantize", "Mine", "Quantize"]
    assert types(transformed(build, FuseQuantised())) == wanted


@_with(Sum, Plain)
def test_an_operator_that_broadcasts_needs_no_broadcast_before_it(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        row = b.op("BroadcastTo", b.input("row", (4,), "float32"), shape=[3, 4])
        return b.op("Mine", b.input("x", (3, 4), "float32"), row)

    assert types(transformed(build, MergeMovements())) == ["BroadcastTo"][operator is Sum :] + ["Mine"]


@_with(Tripled, Mine)
def test_an_operator_may_run_in_float32_where_primitives_lack_its_type(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Mine", b.input("x", (3, 4), "bfloat16"))

    options = CompileOptions(target="avx2")  # type: ignore[arg-type]
    graph = transformed(build, WidenUnsupported(), options=options, tolerance=1e-2)
    assert types(graph) == (["Cast", "Mine", "Cast"] if operator is Tripled else ["Mine"])


@_with(Tripled)
def test_algorithms_are_chosen_by_the_names_that_an_operator_declares(operator: type[Operator]) -> None:
    b = GraphBuilder()
    b.output(b.op("Mine", b.input("x", (3, 4), "float32")))
    (node,) = b.graph
    options = CompileOptions(
        op_implementation={"Treble": Implementation.PRECISE, "Bass": Implementation.FAST}
    )
    assert implementation_of(node, options) is Implementation.PRECISE
    assert unknown_names(b.graph, options) == ["Bass"]


@_with(Grown, Mine)
def test_activations_are_recognised_through_parts_of_formulas(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        grown = b.op("Mine", b.op("Neg", b.input("x", (3, 4), "float32")))
        return b.op("Reciprocal", b.op("Add", grown, 1.0))

    wanted = ["Sigmoid"] if operator is Grown else ["Neg", "Mine", "Add", "Reciprocal"]
    assert types(transformed(build, FuseActivations())) == wanted


@_with(Looked, Mine)
def test_products_are_merged_where_their_readers_take_views(operator: type[Operator]) -> None:
    rng = np.random.default_rng(0)

    def build(b: GraphBuilder) -> list[ir.Value]:
        x = b.input("x", (5, 8), "float32")
        weights = [rng.standard_normal((8, n), np.float32) for n in (4, 6)]
        return [b.op("Mine", b.op("MatMul", x, w)) for w in weights]

    products = types(transformed(build, MergeMatmuls())).count("MatMul")
    assert products == (1 if operator is Looked else 2)


@_with(Peak, Heap)
def test_a_reduction_of_one_element_is_that_element(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Relu", b.op("Mine", b.input("x", (3, 1), "float32")))

    wanted = ["Reshape" if operator is Peak else "Mine", "Relu"]
    assert types(transformed(build, RemoveIdentities())) == wanted


@_with(Smoothed, Mine)
def test_what_is_known_of_channels_goes_through_operators_that_keep_their_means(
    operator: type[Operator],
) -> None:
    b = GraphBuilder()
    taps = np.arange(18, dtype=np.float32).reshape(2, 1, 3, 3)
    x = b.op("Conv", b.input("x", (1, 2, 6, 6), "float32"), taps, groups=2)
    b.output(b.op("Conv", b.op("Mine", x), np.ones((4, 2, 1, 1), np.float32)))
    means = typical_means(list(b.graph)[-1])
    if operator is Mine:
        assert means is None
    else:
        np.testing.assert_array_equal(means, [taps.sum((1, 2, 3))])


@_with(ScaledByColumn, Scaled)
def test_factors_go_into_the_weights_of_products_that_name_their_axes(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        y = b.op("Mine", b.input("x", (2, 3), "float32"), np.ones(3, np.float32))
        return b.op("Add", b.op("Mul", y, np.arange(3, dtype=np.float32)), np.float32(1))

    wanted = ["Mine"] if operator is ScaledByColumn else ["Mine", "Mul", "Add"]
    assert types(transformed(build, FoldWeights())) == wanted


@_with(MultipliedBySums, Multiplied)
def test_weights_are_rounded_by_the_sums_that_an_operator_declares(operator: type[Operator]) -> None:
    weight = floats(6, 64)

    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Add", b.op("Mine", b.input("x", (5, 64), "float32"), weight), 1.0)

    options = CompileOptions(precision_mode=PrecisionMode.MIX_BF16, target="avx512_bf16")  # type: ignore[arg-type]
    graph = transformed(build, LowerPrecision(), options=options, tolerance=5e-2)
    (node,) = [n for n in graph if n.op_type == "Mine"]
    narrow, summed = constant_of(node.inputs[1]), round_weights(weight, "bfloat16", WeightLayout(64))
    assert narrow is not None and narrow.dtype == summed.dtype
    assert (narrow == summed).all() == (operator is MultipliedBySums)


@_with(Added, Sum)
def test_a_residual_stream_goes_through_sums_of_users(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        stream = b.op("MatMul", b.input("x", (4, 8), "float32"), floats(8, 8))
        ones = np.ones(8, np.float32)
        normal = b.op("LayerNorm", stream, ones, ones)
        return b.op("MatMul", b.op("Mine", stream, normal), floats(8, 8))

    options = CompileOptions(precision_mode=PrecisionMode.MIX_BF16, target="avx512_bf16")  # type: ignore[arg-type]
    graph = transformed(build, LowerPrecision(), options=options, tolerance=5e-2)
    first = next(n for n in graph if n.op_type == "MatMul")
    assert desc_of(first.outputs[0]).dtype == ("float32" if operator is Added else "bfloat16")


@_with(Sum, Plain)
def test_a_broadcast_waits_for_operators_that_broadcast(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        rows = b.op("BroadcastTo", b.input("row", (4,), "float32"), shape=[3, 4])
        return b.op("Mine", rows, np.float32(2))

    wanted = ["Mine", "BroadcastTo"]
    assert types(transformed(build, MergeMovements())) == (wanted if operator is Sum else wanted[::-1])


@_with(SumAndDifference)
def test_a_broadcast_stays_before_operators_of_several_results(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> Any:
        rows = b.op("BroadcastTo", b.input("row", (4,), "float32"), shape=[3, 4])
        return b.ops("Mine", [rows, np.float32(2)])

    assert types(transformed(build, MergeMovements())) == ["BroadcastTo", "Mine"]


def _sums_over_steps(b: GraphBuilder, columns: int, between: Callable[[Any, Any], Any]) -> Any:
    """A loop that adds a function of a product of rows, of shape (4, 5), to its state."""
    x, w = b.input("x", (6, 3, 4), "float32"), b.input("w", (6, 3, 5), "float32")
    initial, body = b.input("s", (4, columns), "float32"), b.subgraph("body")
    count = body.input("i", (), "int64")
    body.input("c", (), "bool")
    state = body.input("state", (4, columns), "float32")
    left, right = (body.op("Gather", v, count, axis=0) for v in (x, w))
    product = body.op("MatMul", left, right, transpose_a=True)
    body.output(body.op("Identity", body.constant(np.bool_(True))))
    body.output(body.op("Add", state, between(body, product)))
    inputs = (b.constant(np.int64(6)), None, initial, *body.captures())
    return b.op("Loop", *inputs, body=body.graph, num_states=1, max_trip=6)


@_with(Doubled, DoubledHere, DoubledThere, Mine)
def test_sums_over_steps_go_through_linear_operators(operator: type[Operator]) -> None:
    """A state to which each step adds a product is one product behind the loop, if what is between is linear."""

    def build(b: GraphBuilder) -> Any:
        return _sums_over_steps(b, 5, lambda body, product: body.op("Mine", product))

    graph = transformed(build, RaiseLoops(), Fission(), tolerance=1e-4)
    assert ("Scan" in types(graph)) == (operator in (DoubledThere, Mine))


@pytest.mark.parametrize("border", [{}, {"value": 1.0}, {"mode": "reflect"}])
def test_sums_over_steps_go_through_borders_of_zeros(border: dict[str, Any]) -> None:
    def build(b: GraphBuilder) -> Any:
        sizes = {"low": [0, 1], "high": [0, 0]}
        return _sums_over_steps(b, 6, lambda body, product: body.op("Pad", product, **sizes, **border))

    graph = transformed(build, RaiseLoops(), Fission(), tolerance=1e-4)
    assert ("ReduceSum" in types(graph)) == bool(border)


@_with(UnderInPlace, Under)
def test_products_write_their_rows_where_an_operator_joins_them(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        x = b.input("x", (16, 32), "float32")
        return b.op("Mine", b.op("MatMul", x, floats(32, 48)), b.op("MatMul", x, floats(32, 48, seed=1)))

    kinds = [task.kind for task in compiled(build, tolerance=1e-4).plan.tasks]
    assert kinds == ["matmul"] * 2 + ["kernel"] * (operator is Under)


@_with(FlippedOrder, Flipped)
def test_kernels_share_a_copy_in_another_order_instead_of_a_view(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> Any:
        y = b.op("Mine", b.input("x", (16, 32), "float32"))
        return b.op("Softmax", y), b.op("Softmax", b.op("Mul", y, 2.0), axes=[0])

    kernels = compiled(build, tolerance=1e-4).plan.tasks
    shared = (32, 16) if operator is FlippedOrder else (16, 32)
    assert [kernel.inputs[0].shape for kernel in kernels] == [(16, 32), shared]


@_with(Settled, Opposite, Mine)
def test_operators_that_are_applied_twice(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Exp", b.op("Mine", b.op("Mine", b.input("x", (3, 4), "float32"))))

    count = {Settled: 1, Opposite: 0}.get(operator, 2)
    assert types(transformed(build, SimplifyAlgebra())) == ["Mine"] * count + ["Exp"]


@_with(Settled)
def test_operators_of_other_attributes_are_applied_again(operator: type[Operator]) -> None:
    def build(b: GraphBuilder) -> ir.Value:
        return b.op("Mine", b.op("Mine", b.input("x", (3, 4), "float32")), least=1.0)

    assert types(transformed(build, SimplifyAlgebra())) == ["Mine", "Mine"]


@_with(Flat, Mine)
def test_steps_pass_no_gradient_on(operator: type[Operator]) -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float32")
    y = b.op("Mul", b.op("Mine", x), x)
    if operator is Mine:
        with pytest.raises(Unsupported, match="Mine has no gradient rule"):
            differentiate(b, y, [x])
    else:
        b.output(differentiate(b, y, [x])[0])
        numbers = np.array([-2, 0, 3], np.float32)
        np.testing.assert_array_equal(interpret(b.graph, [numbers])[0], np.sign(numbers))


@_with(Wider, WiderByKernel)
def test_broadcasts_of_invariants_stay_in_the_loop(operator: type[Operator]) -> None:
    """A kernel of the step reads the smaller tensor."""

    def build(b: GraphBuilder) -> Any:
        initial, row, body = (
            b.input("s", (4, 5), "float32"),
            b.input("row", (1, 5), "float32"),
            b.subgraph("body"),
        )
        body.input("i", (), "int64")
        body.input("c", (), "bool")
        state = body.input("state", (4, 5), "float32")
        body.output(body.op("Identity", body.constant(np.bool_(True))))
        body.output(body.op("Tanh", body.op("Add", state, body.op("Mine", row))))
        inputs = (b.constant(np.int64(6)), None, initial, *body.captures())
        return b.op("Loop", *inputs, body=body.graph, num_states=1, max_trip=6)

    graph = transformed(build, RaiseLoops(), Fission())
    assert ("Mine" in types(graph)) == (operator is WiderByKernel)


def test_traits_of_the_library_are_not_inherited_by_users() -> None:
    class MyRelu(lookup("Relu")):  # type: ignore[misc]
        type = "Relu"

    ops.register(MyRelu, custom=True)
    try:
        assert MyRelu.epilogue is None and MyRelu.sign is Sign.ANY and MyRelu.formula is Formula.NONE
        assert lookup("Relu").epilogue == Epilogue("relu")
    finally:
        ops.unregister(MyRelu)
