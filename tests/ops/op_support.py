"""Running single operators three ways: folded while the graph is built, interpreted, and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.compiler import compile_graph
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of
from ge.ops.base import NodeView, lookup
from ge.ops.builder import GraphBuilder
from ge.ops.interpret import interpret

__all__ = ["check", "folded", "graph_of", "task_of"]


def _name(array: np.ndarray) -> str:
    return array.dtype.name


def graph_of(type_: str, arrays: Sequence[np.ndarray | None], **attrs: Any) -> Any:
    """A graph of one operator, its operands as inputs."""
    b = GraphBuilder(type_)
    values = [None if a is None else b.input(f"x{i}", a.shape, _name(a)) for i, a in enumerate(arrays)]
    for index, value in enumerate(b.ops(type_, values, **attrs)):
        b.output(value, f"y{index}")
    return b.graph


def folded(type_: str, arrays: Sequence[np.ndarray | None], **attrs: Any) -> list[np.ndarray]:
    """The operator on constants, as the builder folds it."""
    results = GraphBuilder(type_).ops(type_, list(arrays), **attrs)
    found = [constant_of(v) for v in results]
    assert all(f is not None for f in found), f"{type_} was not folded"
    return found  # type: ignore[return-value]


def check(
    type_: str,
    arrays: Sequence[np.ndarray | None],
    expected: Any,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **attrs: Any,
) -> None:
    """The operator, interpreted and compiled, gives what is expected."""
    wanted = expected if isinstance(expected, (list, tuple)) else [expected]
    graph = graph_of(type_, arrays, **attrs)
    given = [a for a in arrays if a is not None]
    for way, results in (
        ("interpreted", interpret(graph, given)),
        ("compiled", compile_graph(graph).run(given)),
    ):
        assert len(results) == len(wanted), f"{type_} {way}: {len(results)} results"
        for found, want in zip(results, wanted, strict=True):
            want = np.asarray(want)
            assert found.shape == want.shape, f"{type_} {way}: {found.shape}, expected {want.shape}"
            np.testing.assert_allclose(
                found.astype(np.float64), want.astype(np.float64), rtol, atol, err_msg=f"{type_} {way}"
            )


def task_of(type_: str, shapes: Sequence[tuple[int, ...]], **attrs: Any) -> Any:
    """The runtime task of an AI Core operator on float32 tensors."""
    from ge.plan import View

    b = GraphBuilder(type_)
    values = [b.input(f"x{i}", s, "float32") for i, s in enumerate(shapes)]
    made = b.ops(type_, values, **attrs)
    node = made[0].producer()
    assert node is not None
    op = NodeView.of(node)
    views = [View.of(i, TensorDesc(s, "float32")) for i, s in enumerate(shapes)]
    outputs = [View.of(len(shapes) + i, d) for i, d in enumerate(op.outputs)]
    task = lookup(type_).task
    assert task is not None
    return task(op, views, outputs)
