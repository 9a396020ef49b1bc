"""Dumps: the graph after any stage as text and as a file for Netron; the finished plan as text.

`NPU_DUMP=stage,…` (or `all`) enables them, `NPU_DUMP_DIR` sets the folder. Constants beyond a few elements become
inputs of the dumped graph, so that a dump stays small.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from ge.options import CompileOptions
from ge.plan import Plan, View
from npu_runtime import environment

__all__ = ["dump_graph", "dump_plan", "plan_text"]

_IR_VERSION = 10
_MAX_CONSTANT_BYTES = 1024

_serial = itertools.count()


def dump_graph(graph: ir.Graph, stage: str, options: CompileOptions, name: str = "") -> None:
    """Write a graph as `NNN_model_stage.txt` and `.onnx` if the stage is enabled."""
    if not _wanted(stage, options):
        return
    model = _without_weights(ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION, producer_name="ge")))
    with _writable(options):
        base = _base(stage, options, name)
        onnx.save(model, f"{base}.onnx")
        Path(f"{base}.txt").write_text(onnx.printer.to_text(model))


def dump_plan(plan: Plan, options: CompileOptions) -> None:
    """Write a plan as `NNN_model_plan.txt` if the stage "plan" is enabled."""
    if _wanted("plan", options):
        with _writable(options):
            Path(f"{_base('plan', options, plan.name)}.txt").write_text(plan_text(plan))


@contextlib.contextmanager
def _writable(options: CompileOptions) -> Iterator[None]:
    """An unwritable folder does not fail the compile."""
    try:
        yield
    except OSError as error:
        environment.warn(
            "NPU_DUMP_DIR", str(options.dump_dir), f"folders that can be written ({error.strerror})"
        )


def plan_text(plan: Plan) -> str:
    """A plan as text: ports, then one line per task."""
    lines = [
        f"model {plan.name}: arena {plan.arena_bytes} bytes, {len(plan.tasks)} tasks, {len(plan.kernels)} kernels"
    ]
    lines += [f"input  {p.name}: {p.desc}" for p in plan.inputs]
    lines += [f"output {p.name}: {p.desc}" for p in plan.outputs]
    for number, task in enumerate(plan.tasks):
        inputs = ", ".join(_view_text(v, plan) for v in task.inputs)
        outputs = ", ".join(_view_text(v, plan) for v in task.outputs)
        extra = " ".join(f"{k}={v}" for k, v in task.attrs.items() if v not in (None, [], "", False))
        lines.append(
            f"{number:4d} [{task.block}] {task.engine} {task.kind} {task.name}: {inputs} -> {outputs} {extra}"
        )
    return "\n".join(lines) + "\n"


def _view_text(view: View, plan: Plan) -> str:
    buffer = plan.buffers[view.buffer]
    place = f"@{buffer.offset}" if buffer.kind == "arena" else f"{buffer.kind}{buffer.index}"
    strides = "" if view.contiguous else f" strides {list(view.strides)}"
    return f"{view.desc}{strides} {place}" + (f"+{view.offset}" if view.offset else "")


def _wanted(stage: str, options: CompileOptions) -> bool:
    return bool(options.dump_stages & {stage, "all"})


def _base(stage: str, options: CompileOptions, name: str) -> Path:
    options.dump_dir.mkdir(parents=True, exist_ok=True)
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name) or "model"
    return options.dump_dir / f"{next(_serial):03d}_{safe}_{stage}"


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = model.graph
    small = [t for t in graph.initializer if t.ByteSize() <= _MAX_CONSTANT_BYTES]
    for tensor in graph.initializer:
        if tensor.ByteSize() > _MAX_CONSTANT_BYTES:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    del graph.initializer[:]
    graph.initializer.extend(small)
    return model
