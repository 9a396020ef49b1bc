"""Recurrent layers recognised in loops."""

from __future__ import annotations

import numpy as np
import pytest

from ge.compiler import compile_graph
from ge.explanation import explain
from ge.implementations import Operation, choose_from
from ge.implementations.recurrent import SCANS
from ge.ir.types import TensorDesc
from ge.ops.builder import GraphBuilder
from ge.passes.cleanup.dead_code import DeadCode
from ge.passes.cleanup.merge_movements import MergeMovements
from ge.passes.cleanup.remove_identities import RemoveIdentities
from ge.passes.recurrence.fuse_recurrent import FuseRecurrent
from ge.passes.recurrence.raise_loops import RaiseLoops
from ge.plan import View
from ge.target import named
from tests.passes.pass_support import floats, transformed, types

STEPS, BATCH, FEATURES, UNITS = 5, 3, 4, 6


def layer(b, states, step, stacked=True, trip=STEPS, back=False):
    """A loop over the rows of x; `step(body, row, states)` gives the new states, the first of which is stacked."""
    x = b.input("x", (STEPS, BATCH, FEATURES), "float32")
    body = b.subgraph("body")
    count = body.input("i", (), "int64")
    going = body.input("going", (), "bool")
    inner = [body.input(f"s{i}", (BATCH, UNITS), "float32") for i in range(states)]
    place = body.op("Sub", np.asarray(STEPS - 1, np.int64), count) if back else count
    row = body.op("Gather", x, body.op("Cast", place, to="int32"), axis=0)
    results = step(body, row, inner)
    body.output(going)
    for value in results:
        body.output(value)
    if stacked:
        body.output(results[0])
    starts = [b.op("Tanh", b.input(f"start{i}", (BATCH, UNITS), "float32")) for i in range(states)]
    limit = b.constant(np.asarray(trip, np.int64))
    return b.ops(
        "Loop", [limit, None, *starts, *body.captures()], body=body.graph, num_states=states, max_trip=trip
    )


def lstm_step(order="ifgo", last=None):
    def step(body, row, states):
        h, c = states
        z = body.op(
            "Add",
            body.op("MatMul", row, floats(FEATURES, 4 * UNITS)),
            body.op("MatMul", h, floats(UNITS, 4 * UNITS)),
        )
        z = body.op("Add", z, floats(4 * UNITS))
        parts = dict(zip(order, body.op("Split", z, axis=1, sizes=[UNITS] * 4), strict=True))
        gate = {k: body.op("Tanh" if k == "g" else "Sigmoid", v) for k, v in parts.items()}
        new = body.op("Add", body.op("Mul", gate["f"], c), body.op("Mul", gate["i"], gate["g"]))
        return [body.op("Mul", gate["o"], body.op(last or "Tanh", new)), new]

    return step


def gru_step(body, row, states):
    (h,) = states
    left = body.op("Add", body.op("MatMul", row, floats(FEATURES, 3 * UNITS)), floats(3 * UNITS))
    right = body.op("Add", body.op("MatMul", h, floats(UNITS, 3 * UNITS)), floats(3 * UNITS, seed=1))
    xs, hs = (body.op("Split", v, axis=1, sizes=[UNITS] * 3) for v in (left, right))
    z, r = (body.op("Sigmoid", body.op("Add", xs[k], hs[k])) for k in range(2))
    new = body.op("Tanh", body.op("Add", xs[2], body.op("Mul", r, hs[2])))
    kept = body.op("Mul", body.op("Sub", body.constant(np.float32(1)), z), new)
    return [body.op("Add", body.op("Mul", z, h), kept)]


PASSES = (RaiseLoops(), FuseRecurrent(), RemoveIdentities(), MergeMovements(), DeadCode())


@pytest.mark.parametrize("order", ["ifgo", "iogf", "fgio"])
def test_an_lstm_is_recognised_whatever_the_order_of_its_gates(order):
    graph = transformed(lambda b: layer(b, 2, lstm_step(order)), *PASSES)
    assert "LSTM" in types(graph) and not {"Loop", "Scan"} & set(types(graph))


def test_a_gru_is_recognised():
    graph = transformed(lambda b: layer(b, 1, gru_step), *PASSES)
    assert "GRU" in types(graph) and not {"Loop", "Scan"} & set(types(graph))


def test_a_loop_without_stacked_values_is_recognised():
    assert "LSTM" in types(transformed(lambda b: layer(b, 2, lstm_step(), stacked=False), *PASSES))


def test_another_cell_stays_a_scan():
    assert "Scan" in types(transformed(lambda b: layer(b, 2, lstm_step(last="Sigmoid")), *PASSES))


def masked(step):
    """The step, where a row of a mask says so; else states stay."""

    def changed(body, row, states):
        keep = body.op(
            "Greater", body.op("Reshape", body.op("ReduceSum", row, axes=[1]), shape=[BATCH, 1]), 0.0
        )
        return [
            body.op("Select", keep, new, old)
            for new, old in zip(step(body, row, states), states, strict=True)
        ]

    return changed


@pytest.mark.parametrize(("states", "step"), [(2, lstm_step()), (1, gru_step)])
def test_a_masked_cell_stays_a_scan(states, step):
    assert "Scan" in types(transformed(lambda b: layer(b, states, masked(step)), *PASSES))


def test_a_mask_that_is_given_stays():
    """True on some rows: the step alone would be right on the others."""

    def build(b):
        mask = b.input("mask", (STEPS, BATCH, 1), "bool")

        def step(body, row, states):
            index = body.op("Cast", body.graph.inputs[0], to="int32")
            keep = body.op("Gather", mask, index, axis=0)
            made = lstm_step()(body, row, states)
            return [body.op("Select", keep, new, old) for new, old in zip(made, states, strict=True)]

        return layer(b, 2, step)

    assert "Scan" in types(transformed(build, *PASSES))


def test_gates_that_are_slices_are_recognised():
    def step(body, row, states):
        h, c = states
        left, right = (body.op("MatMul", v, floats(n, 4 * UNITS)) for v, n in ((row, FEATURES), (h, UNITS)))
        z = body.op("Add", left, right)
        parts = [
            body.op("Slice", z, starts=[0, k * UNITS], ends=[BATCH, (k + 1) * UNITS], steps=[1, 1])
            for k in range(4)
        ]
        i, f, g, o = (body.op("Tanh" if k == 2 else "Sigmoid", v) for k, v in enumerate(parts))
        new = body.op("Add", body.op("Mul", f, c), body.op("Mul", i, g))
        return [body.op("Mul", o, body.op("Tanh", new)), new]

    assert "LSTM" in types(transformed(lambda b: layer(b, 2, step), *PASSES))


def test_a_loop_over_part_of_the_sequence_is_recognised():
    graph = transformed(lambda b: layer(b, 2, lstm_step(), trip=STEPS - 1), *PASSES)
    assert "LSTM" in types(graph) and "Slice" in types(graph)


@pytest.mark.parametrize(("states", "step", "found"), [(2, lstm_step(), "LSTM"), (1, gru_step, "GRU")])
def test_a_loop_back_through_the_sequence_is_recognised(states, step, found):
    graph = transformed(lambda b: layer(b, states, step, back=True), *PASSES)
    (node,) = (n for n in graph if n.op_type == found)
    assert node.attributes["direction"].value == "reverse"


# -- why a loop stays one ----------------------------------------------------------------------------------------


def plain_step(body, row, states):
    """Its products have one gate."""
    (h,) = states
    both = [body.op("MatMul", v, floats(n, UNITS)) for v, n in ((row, FEATURES), (h, UNITS))]
    return [body.op("Tanh", body.op("Add", *both))]


def twice(body, row, states):
    """A second product of the state."""
    h, c = lstm_step()(body, row, states)
    return [body.op("Tanh", body.op("MatMul", h, floats(UNITS, UNITS))), c]


@pytest.mark.parametrize(
    ("states", "step", "lstm", "gru"),
    [
        (2, lstm_step(last="Sigmoid"), "its step is another formula", "three gates"),
        (2, masked(lstm_step()), "its step is another formula", "three gates"),
        (1, masked(gru_step), "four gates", "its step is another formula"),
        (1, plain_step, "four gates", "three gates"),
        (2, twice, "products beside those of one row", "products beside those of one row"),
    ],
)
def test_explain_tells_why_a_loop_is_no_layer(states, step, lstm, gru):
    b = GraphBuilder("net")
    for value in layer(b, states, step):
        b.output(value)
    (row,) = [r for r in explain(compile_graph(b.graph)) if r.operator == "Loop"]
    assert row.implementation == "loop"
    against = dict(part.removeprefix("not ").split(": ", 1) for part in row.reason.split("; ")[2:])
    assert lstm in against["lstm"] and gru in against["gru"]


def test_a_layer_is_the_cheaper_implementation_of_its_loop():
    attrs = {"steps": 5, "tasks": 12, "flops": 1000, "lstm": "", "gru": "no"}
    sequence = View.of(0, TensorDesc((5, 3, 4), "float32"))
    for target in ("portable", "avx512_bf16", "sm_90"):
        choice = choose_from(SCANS, Operation("scan", (sequence,), (sequence,), attrs), named(target))
        assert choice.name == "lstm" and dict(choice.against)["gru"] == "no"
        refused = Operation("scan", (sequence,), (sequence,), {**attrs, "lstm": "it is none"})
        assert choose_from(SCANS, refused, named(target)).name == "loop"
