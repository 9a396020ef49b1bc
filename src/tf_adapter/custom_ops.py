"""Operators of the library as TensorFlow functions: in tf.function graphs they run on the NPU, with their gradients.

    swoosh = tf_adapter.custom_op("Swoosh")
    y = swoosh(x, beta=2.0)

In a graph such a call is a function that says which operator it stands for; the Graph Engine takes the operator,
TensorFlow on its own runs the same operator through the function's body.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ge.ir.types import FLOATS, TensorDesc
from ge.ops.base import candidates
from ge.ops.gradients import gradient_type
from ge.parsers.tensorflow.graph import with_absent
from ge.running import describe_operator, run_operator

__all__ = ["custom_op"]


def custom_op(type_: str) -> Callable[..., Any]:
    """The TensorFlow function of an operator: tensors in the order of its inputs, attributes by name.

    An absent optional input is None, several tensors of one input may be a list.

    >>> custom_op("Swoosh")(tf.ones(3), beta=2.0)      # doctest: +SKIP
    """
    from ge.opp import refresh

    refresh()
    candidates(type_)  # an error now when there is no such operator

    def call(*inputs: Any, **attrs: Any) -> Any:
        return _call(type_, json.dumps(attrs, sort_keys=True), _flat(inputs))

    call.__name__ = type_
    call.__doc__ = candidates(type_)[0].__doc__
    return call


def _flat(inputs: Sequence[Any]) -> list[Any]:
    return [x for i in inputs for x in (i if isinstance(i, list | tuple) else [i])]


def _call(type_: str, attributes: str, inputs: Sequence[Any]) -> Any:
    """Call the function of an operator with the inputs that are there."""
    absent = tuple(n for n, x in enumerate(inputs) if x is None)
    given = [tf.convert_to_tensor(x) for x in inputs if x is not None]
    return _function(type_, attributes, absent)(*given)


@functools.lru_cache(maxsize=1024)
def _function(type_: str, attributes: str, absent: tuple[int, ...] = ()) -> Callable[..., Any]:
    attrs = json.loads(attributes)

    @tf.function(autograph=False)
    def operator(*inputs: tf.Tensor) -> Any:
        return _differentiable(type_, attributes, absent)(*inputs)

    label = json.dumps({"ge": type_, "attrs": attrs, "absent": absent}, sort_keys=True)

    @tf.function(autograph=False, experimental_implements=label)
    def implementation(*inputs: tf.Tensor) -> Any:
        return _on_host(type_, attrs, absent, inputs)

    operator.implementation = implementation
    return operator


def _differentiable(type_: str, attributes: str, absent: tuple[int, ...]) -> Callable[..., Any]:
    implementation = _function(type_, attributes, absent).implementation  # type: ignore[attr-defined]
    if candidates(type_)[0].gradient is None:
        return implementation

    @tf.custom_gradient
    def run_both(*inputs: tf.Tensor) -> Any:
        outputs = implementation(*inputs)

        def gradient(*grads: tf.Tensor, variables: Any = None) -> Any:
            results = outputs if isinstance(outputs, list | tuple) else (outputs,)
            everything = [*with_absent(inputs, absent), *results, *grads]
            made = _call(gradient_type(type_), attributes, everything)
            made = made if isinstance(made, list | tuple) else (made,)
            present = [g for n, g in enumerate(made) if n not in absent]
            found = [g if x.dtype.name in FLOATS else None for g, x in zip(present, inputs, strict=True)]
            return found if variables is None else (found, [None] * len(variables))

        return outputs, gradient

    return run_both


def _on_host(type_: str, attrs: dict[str, Any], absent: tuple[int, ...], inputs: Sequence[tf.Tensor]) -> Any:
    """The operator where TensorFlow runs the function itself."""
    known = all(x.shape.is_fully_defined() for x in inputs) and not candidates(type_)[0].dynamic_outputs
    descs = describe_operator(type_, with_absent([_desc(x) for x in inputs], absent), **attrs)

    def compute(*arrays: np.ndarray) -> Any:
        made = run_operator(type_, *with_absent(arrays, absent), **attrs)
        return list(made) if isinstance(made, tuple) else [made]

    results = tf.numpy_function(compute, inputs, [tf.as_dtype(d.dtype) for d in descs], stateful=False)
    results = list(results) if isinstance(results, list | tuple) else [results]
    for result, desc in zip(results, descs, strict=True):
        if known:
            result.set_shape(desc.shape)
    return results[0] if len(results) == 1 else results


def _desc(x: tf.Tensor) -> TensorDesc:
    """The description of a tensor; open dimensions are taken as 1, which tells the element types of results."""
    shape = x.shape.as_list() if x.shape.rank is not None else [1]
    return TensorDesc(tuple(1 if d is None else int(d) for d in shape), x.dtype.name)
