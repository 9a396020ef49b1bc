"""The library as a whole: every operator says what it is and can be run."""

from __future__ import annotations

import pytest

from ge.ops import registered
from ge.ops.base import NodeView, Operator
from ge.ops.builder import GraphBuilder, make_attribute

OPERATORS = sorted(registered().items())


@pytest.mark.parametrize(("type_", "operator"), OPERATORS)
def test_operator_is_described_and_runs_somewhere(type_: str, operator: type[Operator]) -> None:
    assert operator.__doc__, f"{type_} has no description"
    assert operator.engine is not None or operator.expand is not None, f"{type_} has no engine"
    assert operator.prototype.outputs, f"{type_} gives nothing"


@pytest.mark.parametrize(
    ("type_", "operator"), [(t, o) for t, o in OPERATORS if o.aicpu and o.task_kind == "aicpu"]
)
def test_kernel_named_by_an_operator_exists(type_: str, operator: type[Operator]) -> None:
    import npu_runtime

    names = npu_runtime.aicpu_kernels()
    assert operator.aicpu in names, f"{type_} names the kernel {operator.aicpu}"


def test_a_view_of_a_node_follows_its_attributes() -> None:
    b = GraphBuilder()
    node = b.op("LeakyRelu", b.input("x", (2,), "float32"), alpha=0.5).producer()
    assert NodeView.of(node).attrs is NodeView.of(node).attrs  # completed once
    node.attributes.add(make_attribute("alpha", 0.25))
    assert NodeView.of(node).attrs == {"alpha": 0.25}
    del node.attributes["alpha"]
    assert NodeView.of(node).attrs == {"alpha": 0.01}
