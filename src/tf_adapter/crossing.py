"""Eager operators whose inputs are on several NPUs.

TensorFlow copies inputs of its own devices to the device of the operator, but refuses an operator with inputs on two
custom devices before either of them is asked. Such a call is repeated here with its inputs copied: to the NPU whose
handles variables are, if it takes any, else to the device of the scope, else to the NPU of the first input. The copies
are operators themselves, so gradients pass through them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, core
from tensorflow.python.framework import ops
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

import npu_runtime

__all__ = ["by_arguments", "by_list"]

_REFUSAL = "at least one input in a different custom device"  # of TensorFlow's own error
_REFUSED = (core._NotOkStatusException, tf.errors.InvalidArgumentError)

Function = Callable[..., Any]


def by_arguments(original: Function) -> Function:
    """Run an operator that is given inputs and attributes one by one."""
    if npu_runtime.device_count() == 1:
        return original

    def execute(current: Any, op: str, name: Any, *args: Any) -> Any:
        try:
            return original(current, op, name, *args)
        except _REFUSED as error:
            if _REFUSAL not in error.message:
                raise
        return original(current, op, name, *_gathered(args, current.device_name))

    return execute


def by_list(original: Function) -> Function:
    """Run an operator that is given a list of inputs."""
    if npu_runtime.device_count() == 1:
        return original

    crossed: dict[str, tuple[str, list[int]]] = {}  # by function: the device that which inputs were copied to

    def execute(handle: Any, device: str, op: str, inputs: Any, *rest: Any) -> Any:
        if op in crossed:  # refusals cost more than copies
            inputs = _moved(inputs, *crossed[op])
        try:
            return original(handle, device, op, inputs, *rest)
        except _REFUSED as error:
            if _REFUSAL not in error.message:
                raise
        gathered = _gathered(inputs, device)
        moved = [i for i, pair in enumerate(zip(inputs, gathered, strict=True)) if pair[0] is not pair[1]]
        if moved and context.context().has_function(op):
            crossed[op] = gathered[moved[0]].device, moved
        return original(handle, device, op, gathered, *rest)

    return execute


def _gathered(args: Any, device: str) -> Any:
    """The arguments of an operator with all tensors on one device."""
    tensors = list(_tensors(args))
    handles = (item.device for item in tensors if item.dtype == tf.resource and "NPU" in item.device)
    target = next(handles, device) or next(item.device for item in tensors if "NPU" in item.device)
    with context.device(target):
        return [_copied(item, target) for item in args]


def _moved(inputs: Any, target: str, which: list[int]) -> list[Any]:
    inputs = list(inputs)
    with context.device(target):
        for i in which:
            inputs[i] = _copied(inputs[i], target)
    return inputs


def _tensors(args: Any) -> Iterator[Any]:
    for item in args:
        if isinstance(item, (list, tuple)):
            yield from _tensors(item)
        elif isinstance(item, (ops.EagerTensor, BaseResourceVariable)):
            yield item


def _copied(item: Any, target: str) -> Any:
    if isinstance(item, (list, tuple)):
        return [_copied(part, target) for part in item]
    if isinstance(item, BaseResourceVariable):
        item = tf.convert_to_tensor(item)
    if not isinstance(item, ops.EagerTensor) or item.dtype == tf.resource or item.device == target:
        return item
    return tf.identity(item)
