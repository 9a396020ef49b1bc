"""Offline compile: turns a request (of atc) into a model file, or into a description of one."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ge import aipp, singleop
from ge.compiler import compile_plan
from ge.errors import GeError
from ge.gears import Gears
from ge.ir import facts
from ge.ir.types import TensorDesc
from ge.ir.values import desc_of, make_value
from ge.model import om
from ge.model.codec import ConstantPool, KernelPool, encode_json, encode_plan
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions, compile_options
from ge.parsers.files import Framework, framework_of, parse_file
from ge.plan import Plan
from ge.versions import versions

__all__ = ["Request", "Result", "compile_model", "compile_operators", "describe", "to_json"]

Progress = Callable[[str, int, int], None]  # current action, steps done, total steps


def _silent(what: str, done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Request:
    """What to compile and how."""

    model: Path
    output: Path
    framework: Framework | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    gears: Gears | None = None
    input_format: str = ""
    output_types: Mapping[str, str] = field(default_factory=dict)
    half_inputs: tuple[str, ...] = ()  # inputs that take float16
    aipp_file: Path | None = None
    soc_version: str = "cpu"
    given: Mapping[str, Any] = field(default_factory=dict)  # options of the table by name, parsed

    def options(self, shapes: Mapping[str, tuple[int, ...]]) -> CompileOptions:
        """The compile options of one set of input shapes."""
        return compile_options({**self.given, "input_shapes": dict(shapes)})


@dataclass(frozen=True)
class Result:
    """A file that was written."""

    path: Path
    nbytes: int
    seconds: float
    package: om.Package

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages for the user about how the model was read and compiled."""
        return tuple(dict.fromkeys(note for plan in self.package.plans for note in plan.report["notes"]))


def compile_model(request: Request, progress: Progress = _silent) -> Result:
    """Compile a model file to an `.om` file."""
    start = time.perf_counter()
    variants = _variants(request)
    total = 2 * len(variants) + 1
    shared = _SharedConstants()
    plans: list[Plan] = []
    for index, shapes in enumerate(variants):
        label = f" (gear {index + 1} of {len(variants)})" if len(variants) > 1 else ""
        progress(f"reading the model{label}", 2 * index, total)
        options = request.options(shapes)
        graph = parse(request, options)
        progress(f"compiling{label}", 2 * index + 1, total)
        plan = compile_plan(graph, options, request.model.stem)
        if facts.aipp(graph):
            plan.report["aipp"] = facts.aipp(graph)
        _set_formats(plan, request.input_format or _default_format(request), request.aipp_file is not None)
        plans.append(shared.apply(plan))
    progress("writing", total - 1, total)
    package = om.Package(plans, request.gears, _properties(request))
    path = om.write(package, request.output)
    progress("done", total, total)
    return Result(path, path.stat().st_size, time.perf_counter() - start, package)


def parse(request: Request, options: CompileOptions) -> ir.Graph:
    """The graph of a model file with the changes of the request."""
    graph = parse_file(request.model, options, request.framework)
    if request.half_inputs:
        halve_inputs(graph, request.half_inputs)
    if request.output_types:
        cast_outputs(graph, request.output_types)
    if request.aipp_file is not None:
        input_format = request.input_format or _default_format(request)
        records = aipp.insert(graph, aipp.parse(request.aipp_file), input_format)
        if request.gears is not None and any(r["mode"] == "dynamic" for r in records):
            raise GeError("E13002", "dynamic AIPP and gears do not go together", remedy="use static AIPP")
        facts.set_aipp(graph, records)
    return graph


def _variants(request: Request) -> list[Mapping[str, tuple[int, ...]]]:
    gears = request.gears
    if gears is None:
        open_shapes = [name for name, shape in request.shapes.items() if -1 in shape]
        if open_shapes:
            raise GeError(
                "E12005",
                f"the shape of input '{open_shapes[0]}' has a dimension of -1",
                remedy="give every dimension, or gears with --dynamic_batch_size or --dynamic_dims",
            )
        return [request.shapes]
    return [gears.shapes(i) for i in range(len(gears.choices))]


def _default_format(request: Request) -> str:
    framework = request.framework or framework_of(request.model)
    return "NHWC" if framework is Framework.TENSORFLOW else "NCHW"


def _set_formats(plan: Plan, input_format: str, raw: bool) -> None:
    """Set the format of inputs that can be images; raw pixels are channels-last."""
    for index, port in enumerate(plan.inputs):
        pixels = raw and port.desc.dtype == "uint8"
        image = "NHWC" if pixels else input_format
        plan.inputs[index] = replace(port, format=image if port.desc.rank == 4 else "ND")


def _properties(request: Request) -> dict[str, Any]:
    options = request.options(request.shapes)
    return {
        "source": request.model.name,
        "framework": (request.framework or framework_of(request.model)).name.lower(),
        "soc_version": request.soc_version,
        "target": options.target.name,
        "versions": versions(),
        "options": {
            "precision_mode": options.precision_mode.value,
            "input_shape": {name: list(shape) for name, shape in request.shapes.items()},
            "out_nodes": list(options.output_nodes),
            "output_type": dict(request.output_types),
            "input_format": request.input_format,
            "aipp": request.aipp_file is not None,
        },
    }


class _SharedConstants:
    """Constants of several plans: equal ones are stored once."""

    def __init__(self) -> None:
        self._arrays: dict[bytes, np.ndarray] = {}

    def apply(self, plan: Plan) -> Plan:
        """The plan with its constants replaced by equal ones stored before."""
        plan.constants = [self._share(array) for array in plan.constants]
        return plan

    def _share(self, array: np.ndarray) -> np.ndarray:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b""
        key = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
        key.update(raw)
        return self._arrays.setdefault(key.digest(), array)


# -- changes to a parsed graph ----------------------------------------------------------------------


def cast_outputs(graph: ir.Graph, types: Mapping[str, str]) -> None:
    """Cast outputs to another element type; the empty name means all of them."""
    names = [value.name or "" for value in graph.outputs]
    known = facts.output_names(graph)
    unknown = [n for n in types if n and not any(_is_output(n, same) for same in known)]
    if unknown:
        listed = ", ".join(" or ".join(sorted(same)) for same in known)
        raise GeError("E12007", f"the model has no output '{unknown[0]}'", remedy=f"its outputs are {listed}")
    builder = GraphBuilder(graph=graph)
    for index, value in enumerate(list(graph.outputs)):
        name = names[index]
        wanted = next((t for n, t in types.items() if n and _is_output(n, known[index])), types.get("", ""))
        if not wanted or desc_of(value).dtype == wanted:
            continue
        value.name = f"{name}.before_cast"
        result = builder.op("Cast", value, to=wanted)
        result.name = name
        graph.outputs[index] = result


def _is_output(given: str, names: Collection[str]) -> bool:
    """True if a name on the command line refers to an output; ":0" is optional."""
    return given in names or f"{given}:0" in names or given.removesuffix(":0") in names


def halve_inputs(graph: ir.Graph, names: Sequence[str]) -> None:
    """Change inputs to float16, and cast them to their original type."""
    for name in names:
        index = next((i for i, v in enumerate(graph.inputs) if v.name == name), None)
        if index is None:
            known = ", ".join(str(v.name) for v in graph.inputs)
            raise GeError("E12007", f"the model has no input '{name}'", remedy=f"its inputs are {known}")
        old = graph.inputs[index]
        desc = desc_of(old)
        new = make_value(name, TensorDesc(desc.shape, "float16"))
        cast = GraphBuilder(graph=graph, before=next(iter(graph), None)).op("Cast", new, to=desc.dtype)
        ir.convenience.replace_all_uses_with(old, cast)
        graph.inputs[index] = new


# -- single operators -------------------------------------------------------------------------------


def compile_operators(
    path: Path, output: Path, options: CompileOptions, progress: Progress = _silent
) -> list[Result]:
    """Compile the operators of a description file, each to an `.om` file in the output folder."""
    operators = singleop.read_descriptions(path)
    results = []
    for index, operator in enumerate(operators):
        start = time.perf_counter()
        progress(f"compiling {operator.type}", index, len(operators))
        plan = compile_plan(operator.graph(), options, operator.type)
        properties = {"singleop": operator.key, "operator": operator.type, "versions": versions()}
        package = om.Package([plan], None, properties)
        file = om.write(package, output / f"{index}_{operator.file_name}")
        results.append(Result(file, file.stat().st_size, time.perf_counter() - start, package))
    return results


# -- descriptions -----------------------------------------------------------------------------------


def describe(path: Path) -> dict[str, Any]:
    """The figures of an `.om` file."""
    info = dict(om.summary(path))
    package = om.read(path)
    plan = package.largest
    engines: dict[str, int] = {}
    for task in plan.tasks:
        engines[task.engine or task.kind] = engines.get(task.engine or task.kind, 0) + 1
    info["tasks"] = len(plan.tasks)
    info["engines"] = engines
    info["kernels"] = len(plan.kernels)
    info["packages"] = dict(plan.report.get("packages", {}))  # operator packages that the model needs
    info["arena_bytes"] = plan.arena_bytes
    info["weight_bytes"] = info["sections"].get("weights", 0)
    info["gflop"] = sum(task.flops for task in plan.tasks) * plan.steps / 1e9
    return info


def to_json(source: Path, target: Path, request: Request | None = None) -> Path:
    """Write a model as JSON: an `.om` file's plans, or the graph of a model file. Weights are omitted."""
    if source.suffix == ".om":
        package = om.read(source)
        data: Any = {
            "properties": dict(om.summary(source)),
            "plans": [encode_plan(plan, ConstantPool(), KernelPool()) for plan in package.plans],
        }
    else:
        options = request.options(request.shapes) if request is not None else CompileOptions()
        data = graph_as_data(parse_file(source, options, request.framework if request is not None else None))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(json.loads(encode_json(data)), indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise GeError(
            "E11010", f"{target} cannot be written: {error.strerror}", remedy="choose another --json"
        ) from error
    return target


def graph_as_data(graph: ir.Graph) -> dict[str, Any]:
    """A GE graph as plain data."""
    return {
        "name": graph.name,
        "inputs": [_value(v) for v in graph.inputs],
        "outputs": [_value(v) for v in graph.outputs],
        "constants": [_value(v) for v in graph.initializers.values()],
        "nodes": [
            {
                "name": node.name,
                "type": node.op_type,
                "inputs": [None if v is None else v.name for v in node.inputs],
                "outputs": [_value(v) for v in node.outputs],
                "attributes": {a.name: _attribute(a) for a in node.attributes.values()},
            }
            for node in graph
        ],
    }


def _value(value: ir.Value) -> dict[str, Any]:
    desc = desc_of(value)
    return {"name": value.name, "dtype": desc.dtype, "shape": list(desc.shape)}


def _attribute(attr: Any) -> Any:
    return graph_as_data(attr.value) if attr.type == ir.AttributeType.GRAPH else attr.value
