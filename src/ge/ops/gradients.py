"""Gradients of operators: `gradient(op, inputs, outputs, grads)` of a class becomes the operator `<Type>Grad`.

    @staticmethod
    def gradient(op, inputs, outputs, grads):
        (x,), (dy,) = inputs, grads
        return [dy * ops.sigmoid(x)]

The function receives tensors of the graph API and returns the gradient of every input, None if there is none. The
operator `<Type>Grad` takes the operator's inputs (None for absent ones), its outputs and their gradients, has its
attributes, and returns the gradients of its inputs. Front doors call it for differentiation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ops.base import Input, NodeView, Operator, Output, Prototype, fail, source_of

__all__ = ["gradient_operator", "gradient_type"]


def gradient_type(type_: str) -> str:
    """The type of the operator that computes gradients."""
    return f"{type_}Grad"


def gradient_operator(operator: type[Operator]) -> type[Operator]:
    """The operator that computes the gradients of another."""
    ports = operator.prototype
    many = [any(p.variadic for p in side.values()) for side in (ports.inputs, ports.outputs)]
    if all(many):
        raise ValueError(
            f"{operator.type} takes and gives any number of tensors: declare its gradient as an operator"
        )
    made: type[Operator] = type(
        gradient_type(operator.type),
        (Operator,),
        {
            "__module__": operator.__module__,
            "__doc__": f"The gradients of {operator.type}'s inputs.",
            "type": gradient_type(operator.type),
            "source": source_of(operator),
            "expand": staticmethod(lambda builder, op, *values: _expand(operator, builder, op, values)),
        },
    )
    inputs = {name: Input("", port.dtypes, port.optional) for name, port in ports.inputs.items()}
    outputs = {name: Input() for name in ports.outputs}
    grads = {f"grad_{name}": Input() for name in ports.outputs}
    results = {f"grad_{name}": Output() for name in ports.inputs}
    if any(many):
        every = {"values": Input(optional=True, variadic=True)}
        made.prototype = Prototype(every, {"grads": Output(variadic=True)}, dict(ports.attrs))
    else:
        made.prototype = Prototype({**inputs, **outputs, **grads}, results, dict(ports.attrs))
    return made


def _counts(operator: type[Operator], given: int) -> tuple[int, int]:
    """The number of inputs and of outputs among the tensors that a gradient receives."""
    ports = operator.prototype
    if any(p.variadic for p in ports.inputs.values()):
        return given - 2 * len(ports.outputs), len(ports.outputs)
    return len(ports.inputs), (given - len(ports.inputs)) // 2


def _expand(operator: type[Operator], builder: Any, op: NodeView, values: Any) -> list[Any]:
    from ge.ops.graph import Graph, Tensor

    assert operator.gradient is not None
    graph = Graph.over(builder)
    tensors = [None if v is None else Tensor(graph, v) for v in values]
    count, results = _counts(operator, len(tensors))
    inputs, outputs = tensors[:count], tensors[count : count + results]
    with graph:
        made = operator.gradient(op, inputs, outputs, tensors[count + results :])
    found = list(made) if isinstance(made, list | tuple) else [made]
    if len(found) != count:
        raise fail(op, f"gradient of {operator.type} gives {len(found)} tensors for {count} inputs")
    return [_fitting(op, i, graph, x) for i, x in enumerate(found)]


def _fitting(op: NodeView, index: int, graph: Any, gradient: Any) -> Any:
    """A gradient, or zeros if there is none."""
    desc = op.input(index)
    if desc is None:
        desc = TensorDesc((), "float32")
    if gradient is None:
        return graph.builder.constant(np.zeros(desc.shape, numpy_dtype(desc.dtype)))
    if desc.dtype in FLOATS and (gradient.shape, gradient.dtype) != (desc.shape, desc.dtype):
        made = TensorDesc(gradient.shape, gradient.dtype)
        raise fail(op, f"the gradient of input {index} is {made} where the input is {desc}")
    return gradient.value
