"""Fuses chains of convolutions, and a convolution with its pooling, if the target has a kernel for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from ge.engines import placement_of
from ge.engines.aicore import has_implementation
from ge.ir.values import constant_of, desc_of
from ge.ops.base import NodeView
from ge.ops.nn.spatial import FORMATS, Window, weight_perm
from ge.passes.rewrite import RewritePass, Rewriter, Rules, attrs_of, only_use, producer, replace_node

__all__ = ["FuseChains"]

_LAST = FORMATS[1]
_POOL = Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))


def _square(size: int, stride: int = 1) -> Window:
    """The window of a convolution that keeps the image size, or divides it by the stride."""
    return Window((size,) * 2, (stride,) * 2, (1, 1), (size // 2,) * 2, (size // 2,) * 2)


def _weights(node: ir.Node) -> np.ndarray | None:
    """The constant weights of a convolution, (O, I, kernel)."""
    array = constant_of(node.inputs[1])
    return (
        None if array is None else array.transpose(weight_perm(array.ndim, attrs_of(node)["weight_format"]))
    )


def _constants(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights and bias of a convolution, None if they are not constant."""
    weights = _weights(node)
    if weights is None:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return weights, np.zeros(len(weights), weights.dtype)
    known = constant_of(bias)
    return None if known is None or known.dtype != weights.dtype else (weights, known)


def _convolution(value: ir.Value | None, window: Window, post_ops: Sequence[str]) -> ir.Node | None:
    """The channels-last convolution that produces a value, if it has this window and these post-ops."""
    node = producer(value, "Conv")
    if node is None:
        return None
    attrs = attrs_of(node)
    plain = (
        attrs["data_format"] == _LAST
        and attrs["groups"] == 1
        and not attrs["gated"]
        and list(attrs["post_ops"]) == list(post_ops)
    )
    if not plain:
        return None
    weight = desc_of(node.inputs[1])  # type: ignore[arg-type]
    kernel = [weight.shape[axis] for axis in weight_perm(weight.rank, attrs["weight_format"])[2:]]
    return node if Window.of(kernel, NodeView.of(node)) == window else None


def _stem(r: Rewriter, node: ir.Node) -> ir.Value | None:
    attrs, value = attrs_of(node), node.inputs[0]
    if attrs["data_format"] != _LAST or value is None or not only_use(value):
        return None
    convolution = _convolution(value, _square(7, 2), ["relu"])
    if convolution is None or Window.of(attrs["kernel"], NodeView.of(node)) != _POOL:
        return None
    known = _constants(convolution)
    if known is None:
        return None
    images, given = convolution.inputs[0], {"data_format": _LAST}
    move = producer(images, "Transpose")
    if move is not None and tuple(attrs_of(move)["perm"]) == (0, 2, 3, 1):
        images, given = move.inputs[0], {"data_format": FORMATS[0]}
    return _made(r, "Stem", [images, *known], given, [convolution, node])


def _made(
    r: Rewriter, type_: str, operands: Sequence[Any], attrs: dict[str, Any], nodes: Sequence[ir.Node]
) -> Any:
    """Create the operator that replaces nodes; None if the target does not have it."""
    values = [r.constant(v) if isinstance(v, np.ndarray) else v for v in operands]
    if any(placement_of(n, r.options.target)[0] is None for n in nodes):
        return None
    if not has_implementation(r.options.target, type_, values, attrs):
        return None
    r.stands_for(*nodes)
    return r.op(type_, *values, **attrs)


def _bottleneck(r: Rewriter, node: ir.Node) -> ir.Value | None:
    """`node` is the convolution that adds the residual."""
    y = node.outputs[0]
    wide = _convolution(y, _square(1), ["add", "relu"])
    middle = None if wide is None else _convolution(node.inputs[0], _square(3), ["relu"])
    if wide is None or middle is None or not only_use(middle.outputs[0]):
        return None
    onward = [use.node for use in y.uses() if use.node.inputs[0] is y and use.node.op_type == "Conv"]
    fitting = [n for n in onward if _convolution(n.outputs[0], _square(1), ["relu"]) is not None]
    residual = node.inputs[3]
    short = _convolution(residual, _square(1), [])
    if len(fitting) != 1 or residual is None:
        return None
    chain = [middle, wide, fitting[0]]
    if short is not None and only_use(residual):
        residual = short.inputs[0]
        chain.append(short)
    known = [_constants(n) for n in chain]
    if any(pair is None for pair in known):
        return None
    operands = [middle.inputs[0], residual, *(array for pair in known if pair is not None for array in pair)]
    made = _made(r, "Bottleneck", operands, {}, chain)
    if made is None:
        return None
    result, following = made
    replace_node(node.graph, fitting[0], [following])  # type: ignore[arg-type]
    return result


class FuseChains(RewritePass):
    """Fuse convolutions that one kernel of the target computes together.

    1. A 7x7 convolution of stride 2 with ReLU whose only reader is a 3x3 max pool of stride 2 becomes a Stem; a
       Transpose of its images to channels last goes.
    2. A 3x3 convolution with ReLU, the 1x1 convolution with residual and ReLU that is its only reader, and the one 1x1
       convolution with ReLU that reads the sum become a Bottleneck; a 1x1 convolution whose result is the residual and
       has no other reader joins it.
    3. Images are channels-last, weights and biases are constant, and the target has an implementation for the operands
       (`ge.implementations`). Anything else stays as it is.
    """

    name = "fuse_chains"
    rules: ClassVar[Rules] = {"MaxPool": (_stem,), "Conv": (_bottleneck,)}
