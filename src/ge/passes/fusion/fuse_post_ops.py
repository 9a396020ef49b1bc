"""Fuses elementwise work on the result of a product into the primitive's epilogue (post-ops)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from ge.engines import placement_of
from ge.engines.algorithms import precision_attrs
from ge.implementations import Operation, choose, fuses_epilogues
from ge.ir.types import TensorDesc
from ge.ir.values import constant_of, desc_of
from ge.ops.base import Engine, NodeView, Pattern, lookup, pattern_of
from ge.ops.nn.spatial import weight_perm
from ge.ops.nn.tasks import operation_of
from ge.options import CompileOptions
from ge.passes.rewrite import (
    RewritePass,
    Rewriter,
    Rule,
    Rules,
    attrs_of,
    only_use,
    producer,
    product_of,
    scalar,
    weight_axes_of,
)
from ge.target import Target

__all__ = ["FusePostOps"]

_MAX_POST_OPS = 4
# With one number; a sum with -0 is the other summand, also for zeros of either sign.
_LINEAR = {"add": "linear,1.0,{!r}", "mul": "linear,{!r},-0.0"}


def _open_cube(value: ir.Value | None, target: Target) -> ir.Node | None:
    """The AI Core product that produces a value with one reader, if it can take another post-op."""
    cube = product_of(value)
    if (
        cube is None
        or value is None
        or not only_use(value)
        or len(attrs_of(cube)["post_ops"]) >= _MAX_POST_OPS
        or placement_of(cube, target)[0] is not Engine.AI_CORE
    ):
        return None
    return cube


def _operation(
    cube: ir.Node, options: CompileOptions, post_ops: Sequence[str], *operands: ir.Value | None
) -> Operation:
    """The operation of a product with these post-ops."""
    now, operator = NodeView.of(cube), lookup(cube.op_type)
    values = [*cube.inputs, *[None] * (3 - len(cube.inputs)), *operands]
    op = NodeView(now.type, now.name, values, {**now.attrs, "post_ops": tuple(post_ops)}, now.outputs)
    operation = operation_of(operator, op, [1] if _is_packed_once(cube) else [])
    return replace(operation, attrs={**operation.attrs, **precision_attrs(cube, options)})


def _stays_fast(cube: ir.Node, options: CompileOptions, post_op: str, *operands: ir.Value | None) -> bool:
    """True if another post-op does not slow the product down.

    Our own implementations, which are chosen where they are faster, support few epilogues. The library's transposed
    convolutions apply most of them element by element.
    """
    if options.target.kind == "cuda":
        return bool(
            choose(
                _operation(cube, options, [*attrs_of(cube)["post_ops"], post_op], *operands), options.target
            ).name
        )
    if cube.op_type == "Conv" and not _is_plain_3x3(cube):
        return True
    before = attrs_of(cube)["post_ops"]
    changed = _operation(cube, options, [*before, post_op], *operands)
    if not choose(changed, options.target).is_library:
        return True
    if not fuses_epilogues(changed, options.target):
        return False
    now = choose(_operation(cube, options, before), options.target)
    return now.is_library or (post_op == "add" and _accumulates_fast(changed, options.target))


def _accumulates_fast(op: Operation, target: Target) -> bool:
    """True if our implementation still runs the operation once its last post-op, an addition, accumulates in place."""
    if op.inputs[-1].shape != op.outputs[0].shape:
        return False
    sums = {**op.attrs, "post_ops": [*op.post_ops[:-1], "sum"]}
    return not choose(replace(op, inputs=op.inputs[:-1], attrs=sums), target).is_library


def _is_packed_once(cube: ir.Node) -> bool:
    """True if the weight of a product is constant or loop-invariant."""
    weight = cube.inputs[1]
    assert weight is not None
    return constant_of(weight) is not None or (weight.is_graph_input() and _is_body(cube.graph))


def _is_body(graph: ir.Graph | ir.Function | None) -> bool:
    """True if a graph has the inputs of a loop body: the iteration number, and the condition."""
    first = [] if graph is None else [desc_of(value) for value in graph.inputs[:2]]
    return first == [TensorDesc((), "int64"), TensorDesc((), "bool")]


def _is_plain_3x3(convolution: ir.Node) -> bool:
    """True if Winograd's algorithm could compute a convolution; a cheap test before asking for implementations."""
    weight, attrs = desc_of(convolution.inputs[1]), attrs_of(convolution)  # type: ignore[arg-type]
    kernel = [weight.shape[axis] for axis in weight_perm(weight.rank, attrs["weight_format"])[2:]]
    return kernel == [3, 3] and attrs["groups"] == 1 and set(attrs["strides"] or [1]) == {1}


def _extended(r: Rewriter, cube: ir.Node, post_op: str, *operands: ir.Value | None) -> ir.Value | None:
    if not _stays_fast(cube, r.options, post_op, *operands):
        return None
    inputs = [*cube.inputs, *[None] * (3 - len(cube.inputs)), *operands]
    r.stands_for(cube)
    return r.op_like(cube, inputs, post_ops=[*attrs_of(cube)["post_ops"], post_op])


def _unary(r: Rewriter, node: ir.Node) -> ir.Value | None:
    cube = _open_cube(node.inputs[0], r.options.target)
    post_op = "" if cube is None else _post_op(node)
    return _extended(r, cube, post_op) if cube is not None and post_op else None


def _post_op(node: ir.Node) -> str:
    epilogue = lookup(node.op_type).epilogue
    return "" if epilogue is None else epilogue.of(attrs_of(node))


def _binary(r: Rewriter, node: ir.Node) -> ir.Value | None:
    sides = [(0, 1), (1, 0)] if lookup(node.op_type).commutative else [(0, 1)]
    found = [(a, b) for a, b in sides if _fits(node, a, b, r.options.target)]
    if not found:
        return None
    # Of two products the later one takes the other's result, which is then available.
    mine, other = max(found, key=lambda pair: _effort(node.inputs[pair[0]]))
    cube, operand = product_of(node.inputs[mine]), node.inputs[other]
    assert cube is not None
    number, post_op = scalar(operand), _post_op(node)
    if number is not None and post_op in _LINEAR:
        return _extended(r, cube, _LINEAR[post_op].format(number))
    return _extended(r, cube, post_op, operand)


def _effort(value: ir.Value | None) -> int:
    """The distance of a value from the inputs: the length of the shortest chain above it, up to a bound."""
    steps = 0
    while value is not None and steps < 32:
        node = value.producer()
        if node is None or not node.inputs:
            break
        value = node.inputs[0]
        steps += 1
    return steps


def _fits(node: ir.Node, mine: int, other: int, target: Target) -> bool:
    value, operand = node.inputs[mine], node.inputs[other]
    cube = _open_cube(value, target)
    if cube is None or value is None or operand is None or operand is value:
        return False
    desc, whole = desc_of(operand), desc_of(value)
    if whole != desc_of(node.outputs[0]) or desc.dtype != whole.dtype:
        return False
    if desc.size > 1 and desc.shape == whole.shape:
        return not _belongs_to_a_kernel(node, operand)
    return desc.size == 1 or _varies_by_channel(cube, desc.shape, whole.shape)


def _belongs_to_a_kernel(node: ir.Node, operand: ir.Value) -> bool:
    """True if the kernel that computes the operand for this node only can fuse with a reader of its result."""
    maker, result = operand.producer(), node.outputs[0]
    if maker is None or not only_use(operand) or not _is_elementwise(maker) or only_use(result):
        return False
    return any(_is_elementwise(use.node) for use in result.uses())


def _is_elementwise(node: ir.Node) -> bool:
    return node.domain == "ge" and pattern_of(node) in (Pattern.ELEMENTWISE, Pattern.BROADCAST)


def _varies_by_channel(cube: ir.Node, shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    rank, axes = len(whole), weight_axes_of(cube)
    if axes is None:
        return False
    axis = axes.data % rank
    aligned = (1,) * (rank - len(shape)) + shape
    return all(n == 1 for i, n in enumerate(aligned) if i != axis) and aligned[axis] == whole[axis]


def _split_bias(r: Rewriter, node: ir.Node) -> ir.Value | None:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if (
        bias is None
        or attrs_of(node)["post_ops"]
        or placement_of(node, r.options.target)[0] is not Engine.AI_CORE
    ):
        return None
    operation, target = _operation(node, r.options, ()), r.options.target
    if not choose(operation, target).is_library or fuses_epilogues(operation, target):
        return None
    whole = desc_of(node.outputs[0])
    if desc_of(bias).dtype != whole.dtype:
        bias = r.op("Cast", bias, to=whole.dtype)
    if attrs_of(node)["data_format"] == "channels_first":
        bias = r.op("Reshape", bias, shape=[whole.shape[1], *[1] * (whole.rank - 2)])
    return r.op("Add", r.op_like(node, node.inputs[:2]), bias)


# -- reshapes in between ---------------------------------------------------------------------------------------


def _reshaped_cube(value: ir.Value | None, target: Target) -> ir.Node | None:
    """The Reshape between a product and its only reader."""
    move = producer(value, "Reshape")
    if move is None or value is None or not only_use(value) or _open_cube(move.inputs[0], target) is None:
        return None
    return move


def _unary_after_reshape(r: Rewriter, node: ir.Node) -> ir.Value | None:
    move = _reshaped_cube(node.inputs[0], r.options.target)
    if move is None or not _post_op(node):
        return None
    return r.op("Reshape", r.op_like(node, [move.inputs[0]]), shape=desc_of(node.outputs[0]).shape)


def _binary_after_reshape(r: Rewriter, node: ir.Node) -> ir.Value | None:
    for mine, other in ((0, 1), (1, 0)):
        move = _reshaped_cube(node.inputs[mine], r.options.target)
        operand = node.inputs[other]
        if move is None or operand is None or (mine == 1 and not lookup(node.op_type).commutative):
            continue
        source = move.inputs[0]
        assert source is not None
        inner, outer, desc = desc_of(source).shape, desc_of(move.outputs[0]).shape, desc_of(operand)
        if outer != desc_of(node.outputs[0]).shape:
            continue
        if desc.shape == outer:
            operand = r.op("Reshape", operand, shape=inner)
        elif desc.size != 1 and not (inner[-1] == outer[-1] == desc.size == desc.shape[-1]):
            continue
        elif desc.size > 1:
            operand = r.op("Reshape", operand, shape=[desc.size])
        elif desc.rank > len(inner):
            operand = r.op("Reshape", operand, shape=[])
        pair = [source, operand] if mine == 0 else [operand, source]
        return r.op("Reshape", r.op_like(node, pair), shape=outer)
    return None


class FusePostOps(RewritePass):
    """Fuse elementwise work into products.

    1. An activation that a primitive supports (its operator declares an `epilogue`) becomes a post-op of the product it
       reads (its operator `takes_epilogues`), if the AI Core runs the product and it has no other reader.
    2. So does an addition, multiplication, … of an operand of the result's full shape, of one value per channel, or of
       a scalar; Sub and Div only with the product as first operand. It does not where the kernels on both sides could
       fuse instead: only this node reads the operand, and several nodes read the result, elementwise ones among them
       (the momentum of a gradient).
    3. A Reshape between the two moves behind the elementwise node.
    4. At most four post-ops; they are applied in the order of the graph.
    5. If one of our own algorithms (Winograd, Strassen, few rows) computes the product, only post-ops that it supports
       are fused. Transposed convolutions whose primitives apply post-ops element by element (most with strides or
       several groups) take none, and their bias becomes an addition.
    """

    name = "fuse_post_ops"
    rules: ClassVar[Rules] = {"ConvTranspose": (_split_bias,)}

    def rules_of(self, node: ir.Node) -> Sequence[Rule]:
        operator = lookup(node.op_type)
        if operator.epilogue is None:
            return self.rules.get(node.op_type, ())
        alone = len(operator.prototype.inputs) == 1
        return (_unary, _unary_after_reshape) if alone else (_binary, _binary_after_reshape)
