"""The compile driver: takes a graph through passes, placement and build to a model in memory."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

import npu_runtime
from ge import compile_cache
from ge.build.assemble import build_plan
from ge.build.donate import Donation
from ge.build.resident import NOTHING, ResidentValues
from ge.collection import compile_scope
from ge.compile_cache import counters
from ge.dump import dump_graph, dump_plan
from ge.engines import place
from ge.engines.algorithms import unknown_names
from ge.errors import GeError, OpenSizesError
from ge.explanation import placements
from ge.graph_key import graph_key
from ge.hybrid.cuts import Halves, halves
from ge.identity import compile_identity
from ge.ir import facts
from ge.ir.values import desc_of
from ge.memory_advice import out_of_memory
from ge.model.model import Model
from ge.open_model import OpenModel
from ge.ops.base import Engine, lookup
from ge.ops.custom import search
from ge.options import CompileOptions
from ge.parsers.files import PARSERS, Framework, first_stage, parse_file
from ge.passes import STAGES, optimize, switch_names, switched_off
from ge.passes.layout.split_batch import is_leading_part
from ge.plan import Plan
from ge.staged_model import StagedModel
from ge.target import Target
from npu_runtime import UnsupportedTask, activity, environment

__all__ = ["compile_graph", "compile_plan", "compile_source"]

_log = logging.getLogger(__name__)
_MOST_LIGHT = 1 << 20  # result elements up to which a stage is interpreted


def compile_source(source: Any, options: CompileOptions, name: str, key: str | None = None) -> Model:
    """Compile a path, an ONNX ModelProto or a graph; a model without open sizes is cached under `key`."""
    search.add_paths(options.opp_path)
    if isinstance(source, ir.Graph):
        return compile_graph(source, options, name or source.name or "model")
    if isinstance(source, (str, os.PathLike)):
        name = name or Path(source).stem
    return _compile_model(source, options, name, key)


def _compile_model(source: Any, options: CompileOptions, name: str, key: str | None) -> Model:
    """Compile a framework's model; one with open sizes is compiled for the sizes of each call."""
    parse = parse_file if isinstance(source, (str, os.PathLike)) else _parse_object

    @functools.cache
    def staged() -> StagedModel:
        return _in_stages(source, options, name or "model")

    def compiled(shapes: Mapping[str, tuple[int, ...]]) -> Model:
        given = replace(options, input_shapes=shapes)
        try:
            return compile_graph(parse(source, given), given, name or "model")
        except GeError as error:
            if not error.later:
                raise
            return staged()

    try:
        graph = parse(source, options)
    except OpenSizesError as error:
        if not error.inputs:
            raise
        return OpenModel(compiled, error.inputs, name or "model")
    except GeError as error:
        if not error.later:
            raise
        return staged()
    sizes = facts.open_inputs(graph)
    model = compile_graph(graph, options, name or graph.name or "model", key=None if sizes else key)
    return OpenModel(compiled, sizes, model.name, model) if sizes else model


def _in_stages(source: Any, options: CompileOptions, name: str) -> StagedModel:
    """A model with data-dependent sizes, compiled stage by stage when it is called."""
    first, outputs, sizes = first_stage(source, options)

    return StagedModel(
        first, outputs, sizes, name, lambda g: compile_graph(g, options, name), _Judge(options.target)
    )


@dataclass(frozen=True)
class _Judge:
    """The compiler's answers about the graphs of a staged model."""

    target: Target

    def light(self, graph: ir.Graph) -> bool:
        place(graph, self.target)
        return (
            all(map(_is_light, graph))
            and sum(desc_of(v).size for n in graph for v in n.outputs) < _MOST_LIGHT
        )

    def halves(self, graph: ir.Graph) -> Halves:
        place(graph, self.target)
        return halves(graph, lambda node: not _is_light(node))

    covers = staticmethod(is_leading_part)


def _is_light(node: ir.Node) -> bool:
    engine = facts.engine(node)
    return engine in (Engine.VECTOR.value, Engine.VIEW.value) or lookup(node.op_type).light


def compile_graph(
    graph: ir.Graph,
    options: CompileOptions | None = None,
    name: str = "model",
    donated: Sequence[Donation] = (),
    key: str | None = None,
) -> Model:
    """Compile a GE graph (which is not changed) and load it, unless the compile cache has it.

    donated: pairs (output, input) of positions. The output is the input's new value and takes its memory: callers that
    pass addresses pass the same one for both.
    key: the key that the caller's lookup missed, instead of the graph's own.
    """
    options = options if options is not None else CompileOptions.from_environment()
    try:
        if not compile_cache.keeps(options):
            return Model(compile_plan(graph, options, name, donated))
        found = None
        if key is None:
            key = _graph_key(graph, options, name, donated)
            found = key and compile_cache.find(key, lambda plan: _with_names(plan, graph))
        if found:
            return found
        plan = compile_plan(graph, options, name, donated)
        model = Model(plan)
    except UnsupportedTask as error:
        raise GeError("E10506", f"the runtime refuses {name}: {error}") from error
    if key is not None:
        compile_cache.keep(key, plan)
    return model


def _graph_key(
    graph: ir.Graph, options: CompileOptions, name: str, donated: Sequence[Donation]
) -> str | None:
    off = sorted(switched_off(options.disabled_passes))
    settings = (compile_identity(options), npu_runtime.num_threads(), name, tuple(donated), off)
    return graph_key(graph, settings, named=bool(options.op_precision or options.op_implementation))


def _with_names(plan: Plan, graph: ir.Graph) -> Plan:
    """The plan with the names of this graph's inputs and outputs, which may differ from those of the compiled graph."""
    for ports, values in ((plan.inputs, graph.inputs), (plan.outputs, graph.outputs)):
        ports[:] = [
            replace(port, name=value.name or port.name) for port, value in zip(ports, values, strict=True)
        ]
    return plan


@compile_scope()
def compile_plan(
    graph: ir.Graph,
    options: CompileOptions | None = None,
    name: str = "model",
    donated: Sequence[Donation] = (),
    resident: ResidentValues = NOTHING,
) -> Plan:
    """Compile a GE graph (which is not changed) to a plan; `donated` as in `compile_graph`.

    resident: inputs and outputs that stay in the arena between this program and others, and are not ports.
    """
    with activity.compiling(name):
        return _plan(graph, options, name, donated, resident)


def _plan(
    graph: ir.Graph,
    options: CompileOptions | None,
    name: str,
    donated: Sequence[Donation],
    resident: ResidentValues,
) -> Plan:
    options = options if options is not None else CompileOptions.from_environment()
    options = replace(options, disabled_passes=switched_off(options.disabled_passes))
    interface = facts.interface(graph)
    graph = graph.clone()
    for unknown in _check_names(options):
        facts.add_note(graph, f"there is no pass '{unknown}' to switch off")
    dump_graph(graph, "parse", options, name)
    whole = [
        [desc_of(v) for i, v in enumerate(values) if i not in in_arena]
        for values, in_arena in ((graph.inputs, resident.given), (graph.outputs, resident.left))
    ]
    fixed = {"split_batch"} if donated or resident else set()  # shared memory holds the whole batch
    optimize(graph, replace(options, disabled_passes=options.disabled_passes | fixed), name)
    place(graph, options.target)
    for unknown in unknown_names(graph, options):
        facts.add_note(graph, f"the implementation of '{unknown}' has no effect: no product is called so")
    dump_graph(graph, "place", options, name)
    plan = build_plan(graph, options, name, donated, resident)
    plan.report["placement"] = placements(graph)
    _check_memory(plan, options.target)
    plan.report["packages"] = _packages(plan)
    plan.report["target"] = options.target.report()
    if interface is not None:
        plan.report["interface"] = dict(interface)
    plan.report["notes"] = list(facts.notes(graph))
    plan.steps = facts.steps(graph)
    for ports, descs in zip((plan.inputs, plan.outputs), whole, strict=True):
        ports[:] = [replace(port, desc=desc) for port, desc in zip(ports, descs, strict=True)]
    dump_plan(plan, options)
    _log_plan(plan)
    counters.compiled += 1
    return plan


def _check_names(options: CompileOptions) -> list[str]:
    """The names of disabled passes that do not exist; warns about those from the environment."""
    stages = ("all", "parse", *(stage.name for stage in STAGES), "place", "plan")
    environment.check_names("NPU_DUMP", stages)
    environment.check_names("NPU_DISABLE_PASSES", switch_names())
    return sorted(options.disabled_passes - set(switch_names()))


def _check_memory(plan: Plan, target: Target) -> None:
    """Reject a plan that does not fit the target's memory, before the system kills the process."""
    donated = {output for output, _ in plan.donated}
    results = sum(p.desc.nbytes for i, p in enumerate(plan.outputs) if not p.dynamic and i not in donated)
    needed = plan.arena_bytes + int(plan.report["constant_bytes"]) + results
    if target.memory_bytes and needed > target.memory_bytes:
        raise out_of_memory(
            f"{plan.name} needs {needed} bytes of memory, target {target.name} has {target.memory_bytes}",
            *(plan.report.get("peak", []), needed, target.memory_bytes),
            "a smaller batch, in training the option recompute, or a target with more memory",
        )


def _log_plan(plan: Plan) -> None:
    report = plan.report
    _log.info(
        "%s: %d tasks, %d bytes of memory (at least %d, by %s), %d bytes of constants",
        *(plan.name, len(plan.tasks), plan.arena_bytes),
        *(report["arena_lower_bound"], report["arena_strategy"], report["constant_bytes"]),
    )
    for task in plan.tasks:
        _log.debug("task %s: %s on %s", task.name, task.kind, task.engine)


def _packages(plan: Plan) -> dict[str, str]:
    """The operator packages whose kernels a plan runs, with their versions."""
    kernels = {str(t.attrs.get("op", "")) for t in plan.tasks if t.kind == "aicpu"}
    names = {kernel[4:].partition("/")[0] for kernel in kernels if kernel.startswith("opp:")}
    if not names:
        return {}
    return {spec.name: spec.version for _, spec in search.installed() if spec.name in names}


def _parse_object(source: Any, options: CompileOptions) -> ir.Graph:
    if type(source).__name__ == "Graph" and isinstance(getattr(source, "ir", None), ir.Graph):
        return source.ir  # a graph of the public API
    if isinstance(source, ir.Model) or type(source).__name__ == "ModelProto":
        return PARSERS[Framework.ONNX](source, options)
    if type(source).__name__ in ("GraphDef", "MetaGraphDef", "SavedModel"):
        return PARSERS[Framework.TENSORFLOW](source, options)
    raise GeError(
        "E10021", f"cannot compile a {type(source).__name__}", remedy="give a path, a ModelProto or a graph"
    )
