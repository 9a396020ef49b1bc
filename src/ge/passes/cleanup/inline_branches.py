"""Resolves branches and loops whose conditions are known at compile time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ge.ir.values import desc_of
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, scalar

__all__ = ["InlineBranches", "inline"]


def inline(r: Rewriter, graph: ir.Graph, inputs: Sequence[ir.Value]) -> list[ir.Value]:
    """Inline a closed graph before the rewriter's node with other inputs; return its outputs."""
    here: dict[ir.Value, ir.Value] = dict(zip(graph.inputs, inputs, strict=True))

    def value(inner: ir.Value | None) -> ir.Value | None:
        if inner is None or inner in here:
            return None if inner is None else here[inner]
        assert inner.const_value is not None, f"{inner.name} is not closed over"
        here[inner] = r.constant(inner.const_value.numpy(), inner.name or "")
        return here[inner]

    for node in graph:
        r.stands_for(node)
        results = r.op_like(node, [value(v) for v in node.inputs])
        here.update(zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True))
    return [v for v in map(value, graph.outputs) if v is not None]


def _known_branch(r: Rewriter, node: ir.Node) -> list[ir.Value] | None:
    condition = scalar(node.inputs[0])
    if condition is None:
        return None
    branch = attrs_of(node)["then_branch" if condition else "else_branch"]
    return inline(r, branch, [v for v in node.inputs[1:] if v is not None])


def _short_loop(r: Rewriter, node: ir.Node) -> list[ir.Value] | None:
    attrs: Mapping[str, object] = attrs_of(node)
    count = int(attrs["num_states"])  # type: ignore[call-overload]
    trip, condition = scalar(node.inputs[0]), _start(node)
    states = [v for v in node.inputs[2 : 2 + count] if v is not None]
    body = attrs["body"]
    assert isinstance(body, ir.Graph)
    if condition is False or trip == 0:
        if len(node.outputs) > count:  # collected results would be empty; the plan keeps their size
            return None
        return states
    if trip != 1 or condition is None:
        return None
    captures = [v for v in node.inputs[2 + count :] if v is not None]
    first = r.constant(np.asarray(0, np.int64))
    go_on = r.constant(np.asarray(True))
    results = inline(r, body, [first, go_on, *states, *captures])[1:]
    scans = [r.op("Reshape", v, shape=[1, *desc_of(v).shape]) for v in results[count:]]
    if any(desc_of(a).shape != desc_of(b).shape for a, b in zip(scans, node.outputs[count:], strict=True)):
        return None
    return [*results[:count], *scans]


def _start(node: ir.Node) -> bool | None:
    """The condition before the first iteration: True if there is none, None if it is computed."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return True
    known = scalar(node.inputs[1])
    return None if known is None else bool(known)


class InlineBranches(RewritePass):
    """Resolve control flow at compile time.

    1. An If whose condition is constant is replaced by the taken branch.
    2. A Loop with no iterations is replaced by its initial states (unless it has scan outputs).
    3. A Loop with exactly one iteration is replaced by its body.
    """

    name = "inline_branches"
    rules: ClassVar[Rules] = {"If": (_known_branch,), "Loop": (_short_loop,)}
