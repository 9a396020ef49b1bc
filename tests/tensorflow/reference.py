"""Runs the plans of functions from Python, to test them without the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_adapter.functions import HostRun, NpuRun, StepsRun, host_step, plan_function


@dataclass
class Given:
    """An input as the device describes it."""

    tensor: Any  # an eager tensor, or a variable's handle with its variable
    variable: tf.Variable | None = None

    @property
    def kind(self) -> str:
        if self.variable is not None:
            return "variable"
        plain = (
            self.tensor.dtype not in (tf.string, tf.resource, tf.variant) and not self.tensor.dtype.is_complex
        )
        return "tensor" if plain else "host"

    @property
    def dtype(self) -> str:
        return (self.variable if self.variable is not None else self.tensor).dtype.name

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple((self.variable if self.variable is not None else self.tensor).shape)

    @property
    def version(self) -> int:
        return 1

    def numpy(self) -> np.ndarray:
        return (self.variable if self.variable is not None else self.tensor).numpy()


class Log(list):
    """The kinds of plans that ran."""


def call(
    concrete: Any, args: Sequence[Any], variables: Sequence[tf.Variable] = (), log: Log | None = None
) -> list[Any]:
    """Call a concrete function through its plans; flat results."""
    by_handle = {id(v.handle): v for v in variables}
    given = [Given(tf.convert_to_tensor(a)) for a in args]
    given += [Given(c, by_handle.get(id(c))) for c in concrete.captured_inputs]
    return _run(tf.compat.as_str(concrete.name), given, log if log is not None else Log())


def _run(name: str, given: list[Given], log: Log) -> list[Any]:
    plan = host_step(name) or plan_function(name, given)
    if isinstance(plan, HostRun):
        log.append("host")
        return _host(plan.function, given)
    if isinstance(plan, StepsRun):
        log.append("steps")
        made: list[list[Any]] = []

        def source(ref: Any) -> Given:
            kind, first, second = ref
            return given[first] if kind == "input" else made[first][second]

        for step, sources, count in plan.steps:
            results = _run(step, [source(s) for s in sources], log)
            assert len(results) == count
            made.append([Given(r) for r in results])
        return [source(s).tensor for s in plan.sources]
    assert isinstance(plan, NpuRun)
    log.append("npu")
    return _npu(plan, given)


def _host(name: str, given: list[Given]) -> list[Any]:
    from tensorflow.python.eager import context, execute

    definition = context.context().get_function_def(name)
    with tf.device("/CPU:0"):
        results = execute.execute(
            name, len(definition.signature.output_arg), [g.tensor for g in given], None, context.context()
        )
    return list(results)


def _npu(plan: NpuRun, given: list[Given]) -> list[Any]:
    ports = plan.lowered.ports
    feeds = []
    for kind, index in ports.inputs:
        if kind == "random":
            low, high, _ = ports.random[index]
            feeds.append(np.asarray([low, high], np.uint64))
        else:
            feeds.append(given[index].numpy())
    made = plan.lowered.model.run(feeds)
    results: list[Any] = [None] * plan.lowered.result_count
    for (kind, index), array in zip(ports.outputs, made, strict=True):
        if kind == "output":
            results[index] = tf.constant(array)
    for result, (kind, index) in ports.others:
        results[result] = (
            tf.constant(ports.constants[index])
            if kind == "constant"
            else (given[index].tensor if given[index].variable is None else tf.constant(given[index].numpy()))
        )
    for (kind, index), array in zip(ports.outputs, made, strict=True):
        if kind == "variable":
            given[index].variable.assign(array)
    return results
