"""Version-1 stacks, which carry a loop's intermediates to the loop of its gradient, as lists of tensors.

A stack is a resource: pushes and pops are ordered by control edges. Once loops are restored, each stack becomes a
list that travels along data edges: the forward loop makes it longer by one item a step, the backward loop takes one
from it. Where the loop that pushes is inside another, all items of one run of it are one item of the outer loop's
list. Any other use of a stack leaves the StackV2 node, with the reason why it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import Context, Outputs, handler
from ge.parsers.tensorflow.graph import Body, GraphNode, Ref
from ge.parsers.tensorflow.lists import ListValue

__all__ = ["SPENT", "with_lists"]

SPENT = "_StackSpent"
_REASON = "_reason"
_PUSH, _POP, _CLOSE, _STACK = "StackPushV2", "StackPopV2", "StackCloseV2", "StackV2"


def with_lists(body: Body) -> Body:
    """The body with lists in place of its stacks; its loops must be restored already."""
    for name in [n.name for n in body.nodes.values() if n.op == _STACK]:
        try:
            body = _threaded(body, name)
        except Unsupported as error:
            node = body.nodes[name]
            refused = replace(node, attrs={**node.attrs, _REASON: error.reason})
            body = replace(body, nodes={**body.nodes, name: refused})
    return body


@dataclass(frozen=True)
class _Use:
    """A node that reads a stack, and at which input; `kind` is what happens to the stack there in the end."""

    node: GraphNode
    index: int
    kind: str


def _uses(body: Body, stack: Ref) -> list[_Use]:
    """Who pushes to a stack or pops from it, directly or in a loop."""
    found = []
    same = [stack]
    for ref in same:
        for node in body.nodes.values():
            for index in (i for i, r in enumerate(node.inputs) if r == ref):
                if node.op == "Identity":
                    same.append((node.name, 0))
                elif node.op == "While":
                    inner = _uses(node.attrs["body"], node.attrs["body"].args[index])
                    found += [_Use(node, index, use.kind) for use in inner]
                elif node.op in (_PUSH, _POP) and index == 0:
                    found.append(_Use(node, index, node.op))
                elif node.op != _CLOSE:
                    raise Unsupported(f"'{node.name}' ({node.op}) decides whether the stack is used")
    return found


def _only(uses: list[_Use], kind: str) -> _Use | None:
    """The one use of a kind; None if there is none."""
    chosen = [use for use in uses if use.kind == kind]
    if len(chosen) > 1:
        verb = "pushed to" if kind == _PUSH else "popped from"
        raise Unsupported(f"the stack is {verb} in {len(chosen)} places")
    return chosen[0] if chosen else None


def _threaded(body: Body, name: str) -> Body:
    stack = body.nodes[name]
    uses = _uses(body, (name, 0))
    push, pop = _only(uses, _PUSH), _only(uses, _POP)
    if any(use.node.op != "While" for use in uses) or (push and pop and push.node is pop.node):
        raise Unsupported("the stack is not filled by one loop and emptied by another")
    if pop is not None and push is None:
        raise Unsupported("the stack is popped from and never filled")
    changed = {name: GraphNode(name, "EmptyTensorList", [], [], {"element_dtype": stack.attrs["elem_type"]})}
    if push is not None and pop is not None and _is_read(pop):
        changed[push.node.name] = _with_body(push, _pushing(push))
        popping = _with_body(pop, _popping(pop))
        popping.inputs[pop.index] = (push.node.name, push.index)
        changed[popping.name] = popping
    return replace(body, nodes={**body.nodes, **changed})


def _is_read(pop: _Use) -> bool:
    """Whether something depends on what is popped; what is popped to order other nodes need not be kept."""
    body, _, use = _inner(pop)
    if use.node.op == "While":
        return _is_read(use)
    same = [(use.node.name, 0)]
    for ref in same:
        readers = [n for n in body.nodes.values() if ref in n.inputs]
        if ref in body.results or any(n.op != "Identity" for n in readers):
            return True
        same += [(n.name, 0) for n in readers]
    return False


def _with_body(use: _Use, body: Body) -> GraphNode:
    """A loop with another body."""
    return replace(use.node, inputs=list(use.node.inputs), attrs={**use.node.attrs, "body": body})


def _inner(loop: _Use) -> tuple[Body, Ref, _Use]:
    """A loop's body, the stack as it sees it, and its use."""
    body: Body = loop.node.attrs["body"]
    stack = body.args[loop.index]
    use = _only(_uses(body, stack), loop.kind)
    assert use is not None
    return body, stack, use


def _changed(body: Body, index: int, result: Ref, nodes: Mapping[str, GraphNode]) -> Body:
    """A body with other nodes, and another result."""
    results = list(body.results)
    results[index] = result
    return replace(body, nodes={**body.nodes, **nodes}, results=results)


def _node(name: str, op: str, *inputs: Ref, **attrs: Any) -> dict[str, GraphNode]:
    return {name: GraphNode(name, op, list(inputs), [], attrs)}


def _pushing(loop: _Use) -> Body:
    """The body of a loop with its pushes in place: its list is one item longer afterwards."""
    body, stack, use = _inner(loop)
    name = use.node.name
    longer = f"{name}.list"
    if use.node.op == _PUSH:
        item = use.node.inputs[1]
        nodes = _node(name, "Identity", item) | _node(longer, "TensorListPushBack", stack, item)
        return _changed(body, loop.index, (longer, 0), nodes)
    whole, empty = f"{longer}.{use.index}.items", f"{longer}.{use.index}.empty"
    nested = _with_body(use, _pushing(use))
    nested.inputs[use.index] = (empty, 0)
    nodes = {name: nested}
    nodes |= _node(empty, "EmptyTensorList", element_dtype=_dtype(use))
    nodes |= _node(whole, "TensorListStack", (name, use.index))
    nodes |= _node(f"{longer}.{use.index}", "TensorListPushBack", stack, (whole, 0))
    return _changed(body, loop.index, (f"{longer}.{use.index}", 0), nodes)


def _popping(loop: _Use) -> Body:
    """The body of a loop with its pops in place: its list is one item shorter afterwards."""
    body, stack, use = _inner(loop)
    name = use.node.name
    if use.node.op == _POP:
        shorter = f"{name}.list"
        nodes = _node(shorter, "TensorListPopBack", stack) | _node(name, "Identity", (shorter, 1))
        return _changed(body, loop.index, (shorter, 0), nodes)
    shorter = f"{name}.list.{use.index}"
    nested = _with_body(use, _popping(use))
    nested.inputs[use.index] = (f"{shorter}.items", 0)
    nodes = {name: nested}
    nodes |= _node(shorter, "TensorListPopBack", stack)
    nodes |= _node(f"{shorter}.items", "TensorListFromTensor", (shorter, 1))
    nodes |= _node(f"{shorter}.rest", SPENT, (shorter, 0), (name, use.index))
    return _changed(body, loop.index, (f"{shorter}.rest", 0), nodes)


def _dtype(use: _Use) -> str:
    """The type of what a loop pushes in the end."""
    while use.node.op == "While":
        use = _inner(use)[2]
    return str(use.node.attrs["T"])


@handler(_STACK)
def _stack(c: Context) -> Outputs:
    reason = c.attr(_REASON, "the stack is not filled by one loop and emptied by another")
    raise Unsupported(str(reason), "write the loop for control flow of version 2 (tf.function)")


@handler(_PUSH, _POP)
def _outside(c: Context) -> Outputs:
    raise Unsupported("a stack is used outside of the loops that fill and empty it")


@handler(_CLOSE)
def _close(c: Context) -> Outputs:
    return []


@handler(SPENT)
def _spent(c: Context) -> Outputs:
    """A list, once another one is seen to be empty."""
    other = c.binding(1)
    if not isinstance(other, ListValue) or other.count:
        raise Unsupported("a loop inside another takes fewer items from a stack than were put there")
    return [c.binding(0)]
