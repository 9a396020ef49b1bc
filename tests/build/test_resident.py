"""Programs that leave values to each other in the arena: which ports they have, and what may be written over."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ge.build.resident import ResidentValues
from ge.compiler import compile_plan
from ge.errors import GeError
from ge.ir.types import TensorDesc
from ge.ops.builder import GraphBuilder

DESC = TensorDesc((64, 64), "float32")


def graph_of_two() -> ir.Graph:
    """Two results of one input."""
    builder = GraphBuilder("two")
    x = builder.input("x", DESC.shape, DESC.dtype)
    a = builder.op("Tanh", x)
    b = builder.op("Exp", a)
    builder.output(a, "a")
    builder.output(b, "b")
    return builder.graph


def test_what_is_left_is_no_port_and_lives_to_the_end():
    plan = compile_plan(graph_of_two(), resident=ResidentValues(left=(0,)))
    assert [p.name for p in plan.outputs] == ["b"]
    (place,) = plan.left
    assert place + DESC.nbytes <= plan.arena_bytes


def test_what_is_given_lies_where_the_caller_says():
    plan = compile_plan(graph_of_two(), resident=ResidentValues(given={0: 8192}))
    assert plan.inputs == []
    assert [p.name for p in plan.outputs] == ["a", "b"]
    given = plan.tasks[0].inputs[0].buffer
    assert (plan.buffers[given].kind, plan.buffers[given].offset) == ("arena", 8192)
    assert plan.arena_bytes >= 8192 + DESC.nbytes


def test_donated_pairs_are_counted_among_the_ports_that_are_left():
    resident = ResidentValues(given={0: 0, 2: 64}, left=(1,))
    assert resident.ports([(0, 1), (2, 3)]) == ((0, 0), (1, 1))


def test_resident_values_cannot_be_donated():
    with pytest.raises(GeError, match="donated"):
        compile_plan(graph_of_two(), donated=[(0, 0)], resident=ResidentValues(given={0: 0}))
