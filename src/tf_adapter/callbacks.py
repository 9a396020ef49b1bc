"""Callbacks of the native device for functions and graph parts that have no plan yet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from ge.collection import compile_scope
from npu_runtime import tensorflow as native
from tf_adapter import functions, profiling
from tf_adapter.functions import FunctionRun, HostRun, NpuRun, StepsRun, StructureRun
from tf_adapter.gpu import program_of
from tf_adapter.lowering import Described, Ports
from tf_adapter.options import options
from tf_adapter.resident import number_of

__all__ = ["function_compile", "npu_plan"]

_compiling = threading.RLock()


@compile_scope()
def function_compile(
    name: str, attrs: bytes, inputs: Sequence[Described], previous: Any, changed: Sequence[int]
) -> Any:
    """The device's plan for a call of a function."""
    before: FunctionRun | None = getattr(previous, "run", None)
    host = functions.host_step(name)
    if host is not None:
        return _plan(host, inputs)
    with _compiling:  # of equal functions on several NPUs, one is compiled and the others find its model
        run = functions.plan_function(name, inputs, None if before is None else list(changed), before)
    if options.explain and not functions.is_step(name):
        _explain(name)
    plan = _plan(run, inputs)
    plan.run = run
    return plan


def _explain(name: str) -> None:
    from tf_adapter.explanation import report

    found = report(name)
    if found is not None:
        print(found.text(), flush=True)


def _plan(run: FunctionRun, inputs: Sequence[Described]) -> Any:
    if isinstance(run, HostRun):
        return native.FunctionPlan.host(
            run.function, escapes=run.keeps, operator=run.operator, other_npus=list(run.other_npus)
        )
    if isinstance(run, StructureRun):
        return _structure(run)
    if isinstance(run, StepsRun):
        return native.FunctionPlan.steps(
            list(run.steps), list(run.sources), specialised=list(run.specialised), name=run.name
        )
    return npu_plan(run, inputs)


def _structure(run: StructureRun) -> Any:
    if run.looping:
        condition, body = run.functions
        return native.FunctionPlan.loop(condition, body, list(run.inputs), run.results, name=run.name)
    return native.FunctionPlan.branch(
        list(run.functions), list(run.inputs), run.results, run.made, name=run.name
    )


def npu_plan(run: NpuRun, inputs: Sequence[Described]) -> Any:
    """The device's form of a plan that is one model."""
    model, ports = run.lowered.model, run.lowered.ports
    profiling.tasks_of(model, ports, inputs)
    donated = {output for output, _ in model.plan.donated}
    return native.FunctionPlan(
        program_of(model),
        [*ports.inputs],
        [
            (kind, index, port.desc.dtype, port.desc.shape, k in donated)
            for k, ((kind, index), port) in enumerate(zip(ports.outputs, model.outputs, strict=True))
        ],
        others=_others(ports),
        bound=[(i, inputs[i].version) for i in ports.bound],
        specialised=[*ports.specialised],
        watched=[*run.watched],
        patience=run.patience,
        random=[*ports.random],
        name=model.name,
        layout=number_of(run.lowered.left),
    )


def _others(ports: Ports) -> dict[int, tuple[str, Any]]:
    return {
        result: ("constant", ports.constants[index]) if kind == "constant" else (kind, index)
        for result, (kind, index) in ports.others
    }
