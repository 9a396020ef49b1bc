"""Clean-up passes, rule by rule."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ge.errors import GeError
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.passes.cleanup.common_subexpressions import CommonSubexpressions
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.cleanup.fold_constants import FoldConstants
from ge.passes.cleanup.inline_branches import InlineBranches
from ge.passes.cleanup.merge_movements import MergeMovements, holds_exactly
from ge.passes.cleanup.remove_identities import RemoveIdentities
from ge.passes.cleanup.simplify_algebra import SimplifyAlgebra
from ge.passes.cleanup.verify import Verify
from tests.passes.pass_support import floats, transformed, types


def x(b: GraphBuilder, *shape: int, dtype: str = "float32", name: str = "x"):
    return b.input(name, shape or (2, 3), dtype)


# -- dead code ---------------------------------------------------------------------------------------------------


def test_dead_code_removes_what_reaches_no_output():
    def build(b):
        v = x(b)
        b.op("Exp", b.op("Neg", v))
        return b.op("Relu", v)

    graph = transformed(build, DeadCode())
    assert types(graph) == ["Relu"] and not graph.initializers


def test_dead_code_keeps_unread_inputs():
    graph = transformed(lambda b: (x(b, name="unread"), b.op("Relu", x(b)))[1], DeadCode())
    assert len(graph.inputs) == 2


# -- identities --------------------------------------------------------------------------------------------------

IDENTITIES = {
    "identity": lambda b: b.op("Relu", b.op("Identity", x(b))),
    "reshape": lambda b: b.op("Relu", b.op("Reshape", x(b), shape=[2, 3])),
    "transpose": lambda b: b.op("Relu", b.op("Transpose", x(b), perm=[0, 1])),
    "slice": lambda b: b.op("Relu", b.op("Slice", x(b), starts=[0, 0], ends=[2, 3])),
    "concat": lambda b: b.op("Relu", b.op("Concat", x(b), axis=0)),
    "cast": lambda b: b.op("Relu", b.op("Cast", x(b), to="float32")),
    "broadcast": lambda b: b.op("Relu", b.op("BroadcastTo", x(b), shape=[2, 3])),
    "sum of one": lambda b: b.op("Relu", b.op("ReduceSum", x(b, 2, 1, 3), axes=[1], keepdims=True)),
}


@pytest.mark.parametrize("build", IDENTITIES.values(), ids=IDENTITIES)
def test_what_changes_nothing_is_removed(build):
    assert types(transformed(build, RemoveIdentities())) == ["Relu"]


def test_identity_between_input_and_output_stays():
    assert types(transformed(lambda b: b.op("Identity", x(b)), RemoveIdentities())) == ["Identity"]


def test_reversing_slice_stays():
    def build(b):
        return b.op("Slice", x(b, 4), starts=[3], ends=[-1], steps=[-1])

    assert types(transformed(build, RemoveIdentities())) == ["Slice"]


def test_an_output_keeps_its_name_when_its_node_goes():
    def build(b):
        y = b.op("Relu", x(b))
        return b.op("Reshape", y, shape=[2, 3])

    assert types(transformed(build, RemoveIdentities())) == ["Relu"]


# -- movements ---------------------------------------------------------------------------------------------------

MOVEMENTS = {
    "reshapes": (
        lambda b: b.op("Reshape", b.op("Reshape", x(b), shape=[6]), shape=[3, 2]),
        ["Reshape"],
    ),
    "transposes": (
        lambda b: b.op("Transpose", b.op("Transpose", x(b, 2, 3, 4), perm=[1, 2, 0]), perm=[1, 0, 2]),
        ["Transpose"],
    ),
    "unit transpose": (lambda b: b.op("Transpose", x(b, 2, 1, 3), perm=[1, 0, 2]), ["Reshape"]),
    "reverses": (lambda b: b.op("Reverse", b.op("Reverse", x(b), axes=[0, 1]), axes=[-1]), ["Reverse"]),
    "there and back": (
        lambda b: b.op("Neg", b.op("Reverse", b.op("Reverse", x(b), axes=[0]), axes=[0])),
        ["Neg"],
    ),
    "sums of one": (lambda b: b.op("ReduceMean", x(b, 2, 1, 3), axes=[1]), ["Reshape"]),
    "casts": (lambda b: b.op("Cast", b.op("Cast", x(b), to="float64"), to="float32"), ["Identity"]),
    "lossy casts": (lambda b: b.op("Cast", b.op("Cast", x(b), to="float16"), to="float32"), ["Cast", "Cast"]),
    "slices": (
        lambda b: b.op(
            "Slice", b.op("Slice", x(b, 9), starts=[1], ends=[9], steps=[2]), starts=[1], ends=[4], steps=[2]
        ),
        ["Slice"],
    ),
    "slice of concat": (
        lambda b: b.op(
            "Slice", b.op("Concat", x(b), b.op("Neg", b.graph.inputs[0]), axis=0), starts=[2, 1], ends=[4, 3]
        ),
        ["Neg", "Slice"],
    ),
    "slice across parts": (
        lambda b: b.op(
            "Slice", b.op("Concat", x(b), b.op("Neg", b.graph.inputs[0]), axis=0), starts=[1, 0], ends=[3, 3]
        ),
        ["Neg", "Concat", "Slice"],
    ),
    "concats": (
        lambda b: b.op("Concat", b.op("Concat", x(b), b.graph.inputs[0], axis=0), b.graph.inputs[0], axis=0),
        ["Concat"],
    ),
    "broadcast": (lambda b: b.op("Add", b.op("BroadcastTo", x(b, 3), shape=[2, 3]), x(b, name="y")), ["Add"]),
    "broadcast before a number": (
        lambda b: b.op("Cast", b.op("Div", b.op("BroadcastTo", x(b, 3), shape=[2, 3]), 49.0), to="float16"),
        ["Div", "Cast", "BroadcastTo"],
    ),
    "broadcast of all": (
        lambda b: b.op("Add", b.op("BroadcastTo", x(b, 3), shape=[2, 3]), b.graph.inputs[0]),
        ["BroadcastTo", "Add"],
    ),
}


@pytest.mark.parametrize(("build", "wanted"), MOVEMENTS.values(), ids=MOVEMENTS)
def test_movements_merge(build, wanted):
    assert types(transformed(build, MergeMovements(), RemoveIdentities(), DeadCode())) == wanted


def test_concat_of_split_is_the_whole():
    def build(b):
        pieces = b.op("Split", x(b, 4, 2), axis=0, sizes=[1, 3])
        return b.op("Relu", b.op("Concat", *pieces, axis=0))

    assert types(transformed(build, MergeMovements(), DeadCode())) == ["Relu"]


@pytest.mark.parametrize(
    ("narrow", "wide", "exact"),
    [
        ("uint8", "int16", True),
        ("int8", "uint16", False),
        ("uint32", "int32", False),
        ("bool", "int8", True),
        ("float16", "bfloat16", False),
        ("bfloat16", "float32", True),
        ("int16", "float32", True),
        ("int64", "float64", False),
        ("float32", "int64", False),
    ],
)
def test_which_types_hold_which(narrow, wide, exact):
    assert holds_exactly(narrow, wide) == exact


# -- common subexpressions ---------------------------------------------------------------------------------------


def test_equal_nodes_merge():
    def build(b):
        v = x(b)
        return b.op("Add", b.op("Exp", b.op("Mul", v, 2.0)), b.op("Exp", b.op("Mul", v, 2.0)))

    assert types(transformed(build, CommonSubexpressions(), DeadCode())) == ["Mul", "Exp", "Add"]


def test_nodes_with_other_attributes_do_not_merge():
    def build(b):
        v = x(b)
        return b.op("Add", b.op("LeakyRelu", v, alpha=0.1), b.op("LeakyRelu", v, alpha=0.2))

    assert len(types(transformed(build, CommonSubexpressions()))) == 3


def test_equal_nodes_merge_behind_one_with_other_attributes():
    def build(b):
        v = x(b)
        first, second, third = (b.op("LeakyRelu", v, alpha=alpha) for alpha in (0.1, 0.2, 0.2))
        return b.op("Sub", b.op("Mul", first, second), third)

    graph = transformed(build, CommonSubexpressions())
    assert types(graph) == ["LeakyRelu", "LeakyRelu", "Mul", "Sub"]
    assert graph.node(3).inputs[1] is graph.node(2).inputs[1]


def test_two_outputs_stay_two():
    graph = transformed(lambda b: [b.op("Exp", x(b)), b.op("Exp", b.graph.inputs[0])], CommonSubexpressions())
    assert types(graph) == ["Exp", "Exp"]


# -- algebra -----------------------------------------------------------------------------------------------------

ALGEBRA = {
    "x + 0": (lambda b, v: b.op("Add", v, 0.0), []),
    "0 + x": (lambda b, v: b.op("Add", b.constant(np.float32(0)), v), []),
    "x - 0": (lambda b, v: b.op("Sub", v, 0.0), []),
    "x * 1": (lambda b, v: b.op("Mul", v, np.ones((2, 3), np.float32)), []),
    "x / 1": (lambda b, v: b.op("Div", v, 1.0), []),
    "x + 0 broadcast": (lambda b, v: b.op("Add", v, np.zeros((4, 2, 3), np.float32)), ["Add"]),
    "x - c": (lambda b, v: b.op("Sub", v, 3.0), ["Add"]),
    "x + -y": (lambda b, v: b.op("Add", v, b.op("Neg", b.op("Exp", v))), ["Exp", "Sub"]),
    "x - -y": (lambda b, v: b.op("Sub", v, b.op("Neg", b.op("Exp", v))), ["Exp", "Add"]),
    "x / 4": (lambda b, v: b.op("Div", v, 4.0), ["Mul"]),
    "x / 3": (lambda b, v: b.op("Div", v, 3.0), ["Div"]),
    "1 / x": (lambda b, v: b.op("Div", b.constant(np.float32(1)), v), ["Reciprocal"]),
    "x * x": (lambda b, v: b.op("Mul", v, v), ["Square"]),
    "x ** 2": (lambda b, v: b.op("Pow", v, 2.0), ["Square"]),
    "x ** 3": (lambda b, v: b.op("Pow", v, 3.0), ["Square", "Mul"]),
    "positive ** 0.5": (lambda b, v: b.op("Pow", v, 0.5), ["Sqrt"]),
    "unknown ** 0.5": (lambda b, v: b.op("Pow", b.op("Elu", v), 0.5), ["Elu", "Pow"]),
    "square ** 0.5": (lambda b, v: b.op("Pow", b.op("Square", v), 0.5), ["Square", "Sqrt"]),
    "x * 2 * 3": (lambda b, v: b.op("Mul", b.op("Mul", v, 2.0), 3.0), ["Mul"]),
    "--x": (lambda b, v: b.op("Neg", b.op("Neg", v)), []),
    "||x||": (lambda b, v: b.op("Abs", b.op("Abs", v)), ["Abs"]),
    "max(x, 0)": (lambda b, v: b.op("Maximum", v, 0.0), ["Relu"]),
    "min(max(x, 0), 6)": (lambda b, v: b.op("Minimum", b.op("Maximum", v, 0.0), 6.0), ["Clip"]),
    "clip of clip": (
        lambda b, v: b.op("Clip", b.op("Clip", v, min=-1.0, max=1.0), min=0.0, max=3.0),
        ["Clip"],
    ),
    "disjoint clips": (
        lambda b, v: b.op("Clip", b.op("Clip", v, min=-1.0, max=0.0), min=1.0, max=3.0),
        ["Clip", "Clip"],
    ),
    "clip with its bounds in reverse": (lambda b, v: b.op("Clip", v, min=2.0, max=1.0), ["Clip"]),
    "clip from 0": (lambda b, v: b.op("Clip", v, min=0.0), ["Relu"]),
    "1 / sqrt": (lambda b, v: b.op("Reciprocal", b.op("Sqrt", b.op("Square", v))), ["Square", "Rsqrt"]),
    "select": (lambda b, v: b.op("Select", b.constant(np.ones((2, 3), bool)), v, b.op("Neg", v)), []),
}


@pytest.mark.parametrize(("build", "wanted"), ALGEBRA.values(), ids=ALGEBRA)
def test_algebra(build, wanted):
    graph = transformed(lambda b: b.op("Neg", build(b, b.op("Exp", x(b)))), SimplifyAlgebra(), DeadCode())
    assert types(graph)[1:-1] == wanted or types(graph)[1:] == wanted + ["Neg"]


@pytest.mark.parametrize("value", [0, 1])
def test_integers_keep_their_arithmetic(value):
    graph = transformed(lambda b: b.op("Div", x(b, dtype="int32"), value + 2), SimplifyAlgebra())
    assert types(graph) == ["Div"]


# -- constants and branches --------------------------------------------------------------------------------------


def test_constants_that_appear_are_folded():
    def build(b):
        v = x(b)
        return b.op("Add", v, b.op("Identity", b.constant(floats(2, 3))))

    assert types(transformed(build, RemoveIdentities(), FoldConstants(), DeadCode())) == ["Add"]


def branch(b: GraphBuilder, condition, captured):
    then, otherwise = b.subgraph("then"), b.subgraph("else")
    then.output(then.op("Exp", captured))
    otherwise.output(otherwise.op("Neg", captured))
    captures = list(dict.fromkeys([*then.captures(), *otherwise.captures()]))
    return b.op("If", condition, *captures, then_branch=then.graph, else_branch=otherwise.graph)


@pytest.mark.parametrize(("condition", "wanted"), [(True, "Exp"), (False, "Neg")])
def test_a_known_branch_is_taken(condition, wanted):
    graph = transformed(lambda b: branch(b, b.constant(np.asarray(condition)), x(b)), InlineBranches())
    assert types(graph) == [wanted]


def loop(b: GraphBuilder, trip: int, start):
    body = b.subgraph("body")
    body.input("i", (), "int64")
    going = body.input("going", (), "bool")
    state = body.input("state", (2, 3), "float32")
    body.output(going)
    body.output(body.op("Add", state, 1.0))
    return b.op("Loop", b.constant(np.asarray(trip, np.int64)), None, start, body=body.graph, num_states=1)


@pytest.mark.parametrize(("trip", "wanted"), [(0, ["Relu"]), (1, ["Relu", "Add"]), (3, ["Relu", "Loop"])])
def test_short_loops_are_inlined(trip, wanted):
    graph = transformed(lambda b: loop(b, trip, b.op("Relu", x(b))), InlineBranches(), DeadCode())
    assert types(graph) == wanted


def test_a_pass_can_be_switched_off():
    options = CompileOptions(disabled_passes=frozenset({"simplify_algebra"}))
    assert types(transformed(lambda b: b.op("Mul", x(b), 1.0), SimplifyAlgebra(), options=options)) == ["Mul"]


# -- verification ------------------------------------------------------------------------------------------------


def test_values_without_shape_are_inferred_and_nodes_sorted():
    b = GraphBuilder("test")
    first = ir.Node("ge", "Exp", [x(b)], num_outputs=1, name="first")
    second = ir.Node("ge", "Neg", first.outputs, num_outputs=1, name="second")
    b.graph.extend([second, first])
    b.graph.outputs.append(second.outputs[0])
    Verify().apply(b.graph, CompileOptions())
    assert types(b.graph) == ["Exp", "Neg"]
    assert desc_of(second.outputs[0]).shape == (2, 3)


def test_foreign_nodes_are_refused():
    b = GraphBuilder("test")
    node = ir.Node("", "Exp", [x(b)], num_outputs=1)
    b.graph.append(node)
    b.graph.outputs.append(node.outputs[0])
    with pytest.raises(GeError, match="domain"):
        Verify().apply(b.graph, CompileOptions())


def test_an_input_as_output_is_refused():
    b = GraphBuilder("test")
    b.graph.outputs.append(x(b))
    with pytest.raises(GeError, match="output of graph"):
        Verify().apply(b.graph, CompileOptions())
