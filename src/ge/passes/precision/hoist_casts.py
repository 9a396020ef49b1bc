"""Cast hoisting: casts loop invariants to the compute type once, before the loop."""

from __future__ import annotations

from typing import ClassVar

import onnx_ir as ir

from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.passes.rewrite import Replacement, RewritePass, Rewriter, Rules, attrs_of, remove_dead

__all__ = ["HoistCasts"]


def _hoisted(r: Rewriter, node: ir.Node) -> Replacement:
    attrs = attrs_of(node)
    first = 2 + attrs["num_states"]
    outside = {id(inner) for inner in attrs["body"].inputs[first:]}
    if not any(n.op_type == "Cast" and id(n.inputs[0]) in outside for n in attrs["body"]):
        return None
    body = attrs["body"].clone()
    given = list(node.inputs)
    for cast in [n for n in body if n.op_type == "Cast"]:
        if cast.inputs[0] in body.inputs[first:]:
            _move(r, body, cast, given)
    for place in range(len(given) - 1, first - 1, -1):
        inner = body.inputs[place]
        if not inner.uses() and not inner.is_graph_output():
            del body.inputs[place], given[place]
    return list(r.ops("Loop", given, **{**attrs, "body": body}))


def _move(r: Rewriter, body: ir.Graph, cast: ir.Node, given: list[ir.Value | None]) -> None:
    """Cast a captured value outside the loop and capture the result."""
    captured = cast.inputs[0]
    assert captured is not None
    outer = given[body.inputs.index(captured)]
    assert outer is not None
    wanted = desc_of(cast.outputs[0])
    given.append(r.op("Cast", outer, to=wanted.dtype))
    name = f"{outer.name}.{wanted.dtype}.{len(given)}"
    inner = GraphBuilder(graph=body).input(name, wanted.shape, wanted.dtype)
    cast.outputs[0].replace_all_uses_with(inner, replace_graph_outputs=True)
    remove_dead(body, [cast])


class HoistCasts(RewritePass):
    """Hoist casts out of loops.

    1. A cast of a captured value in the body of a loop moves before the loop.
    2. A captured value that the body no longer reads is no longer an input of the loop.
    3. Casts of states and of values computed in the body stay.
    """

    name = "hoist_casts"
    rules: ClassVar[Rules] = {"Loop": (_hoisted,)}
