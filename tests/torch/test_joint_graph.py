"""Joint graphs: equal calls are one, random ones and results of the user's stay apart."""

from __future__ import annotations

import torch
from torch import fx

from torchair.joint_graph import _merge_equal_calls

aten = torch.ops.aten


def merged(function: object) -> fx.Graph:
    graph = fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(torch.ones(4)).graph
    _merge_equal_calls(graph)
    graph.lint()
    return graph


def count(graph: fx.Graph, target: object) -> int:
    return sum(node.target is target for node in graph.nodes)


def test_equal_calls_become_one() -> None:
    graph = merged(lambda x: (aten.sin.default(x) + 1) * (aten.sin.default(x) + 1))
    assert count(graph, aten.sin.default) == 1
    assert count(graph, aten.add.Tensor) == 1


def test_numbers_of_other_types_are_other_arguments() -> None:
    graph = merged(lambda x: aten.mul.Tensor(x, 1) + aten.mul.Tensor(x, 1.0))
    assert count(graph, aten.mul.Tensor) == 2


def test_random_numbers_are_drawn_as_often_as_before() -> None:
    graph = merged(lambda x: aten.bernoulli.p(x, 0.5) + aten.bernoulli.p(x, 0.5))
    assert count(graph, aten.bernoulli.p) == 2


def test_results_of_the_user_stay_apart() -> None:
    graph = merged(lambda x: [aten.sin.default(x), aten.sin.default(x)])
    assert count(graph, aten.sin.default) == 2


def test_results_of_a_compiled_step_may_be_written_one_by_one() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.sin()

    x = torch.ones(4, requires_grad=True)
    first, second = torch.compile(step, backend="npu")(x)
    with torch.no_grad():
        first.zero_()
    torch.testing.assert_close(second.detach(), x.detach().sin())
