"""Runs a model file on the NPU or with its reference, ONNX Runtime or TensorFlow."""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np

from npu_tools.check.assemble import EXACT
from npu_tools.check.drawing import of_graph, of_plan
from npu_tools.check.locations import Roots
from npu_tools.check.observe.batch_sizes import Repeatable, attempt
from npu_tools.check.recorder import Recorder
from npu_tools.check.request import Request

__all__ = ["run"]

Outputs = dict[str, np.ndarray]
_NAMED = 8
_BATCHES = (1, 8, 32)
_BUDGET = 4.0  # seconds for the batches beyond the first


class NoReference(Exception):
    """This machine has no reference for the model."""


def run(request: Request) -> tuple[dict[str, Any], Outputs]:
    """Run a model file for the requested steps; returns a record as for scripts, and its outputs."""
    recorder = Recorder(Roots(()), request.steps, Path(request.result) / "progress")
    recorder.start()
    record: dict[str, Any] = {}
    error: dict[str, Any] = {}
    interrupted = False
    try:
        if request.side == "npu":
            _on_npu(request, recorder, record)
        else:
            record |= {"reference": _reference(request, recorder)}
    except NoReference as missing:
        record = {"reference": "", "no_reference": str(missing)}
    except KeyboardInterrupt:
        interrupted = True
    except Exception as fault:
        items = getattr(fault, "as_json", None)
        record |= {"operators": [] if items is None else [_unsupported(i) for i in items()]}
        error = {
            "type": type(fault).__name__,
            "message": str(fault)[:4000],
            "location": "",
            "traceback": traceback.format_exc()[-4000:],
        }
    finally:
        recorder.end()
    exact = {f"{EXACT}{i}": np.asarray(a) for i, a in enumerate(record.pop("exact_outputs", ()))}
    outputs = recorder.outputs | exact
    return recorder.record() | record | {
        "side": request.side,
        "error": error,
        "interrupted": interrupted,
    }, outputs


def _unsupported(item: dict[str, Any]) -> dict[str, Any]:
    """Operator table row of an unmapped operator."""
    kept = {key: item[key] for key in ("operator", "count", "reason", "remedy")}
    lists = {"nodes": list(item["nodes"])[:_NAMED], "locations": []}
    return kept | lists | {"place": "none", "flops": 0.0, "eager": False, "calls": 1}


# -- the NPU ------------------------------------------------------------------------------------------------------


def _on_npu(request: Request, recorder: Recorder, found: dict[str, Any]) -> None:
    """Run the model and add the measurements, the longest last."""
    import ge
    import npu_runtime
    from ge.options import CompileOptions
    from ge.parsers.files import parse_file

    if request.trial:
        found["trial"] = attempt(Repeatable(lambda: 0, lambda batch: _step(request, batch)), request.trial)
        return
    begin = recorder.now()
    options = CompileOptions.from_environment(input_shapes=request.shapes)
    graph = None if request.kind == "om" else parse_file(request.path, options)
    model = ge.load(request.path) if graph is None else ge.compile(graph, options, Path(request.path).stem)
    feeds = _feeds(request, [(p.name, p.desc.shape, p.desc.dtype) for p in model.inputs])
    arrays = list(feeds.values())
    _steps(request, recorder, lambda: model.run(arrays), [p.name for p in model.outputs], begin)
    peak = dict(npu_runtime.memory_info())
    explanation = ge.explain(cast(Any, model))
    found |= {
        "devices": ["/device:CPU:0", "NPU:0"],
        "inputs": {n: [list(a.shape), str(a.dtype)] for n, a in feeds.items()},
        "operators": _operators(explanation, request.steps),
        "notes": list(explanation.notes),
        "graph": _graph(explanation),
        "kernels": _kernels(model, arrays, request.steps),
        "npu_memory": peak,
        "arena": int(model.plan.arena_bytes),
    }
    if graph is None:
        found["drawing"] = of_plan(model.plan)
        if request.layers or request.mixlist:
            why = (
                "the layers of a compiled model are joined in tasks; check the file that it was compiled from"
            )
            found["precision"] = {"modes": {}, "verdict": f"Not compared with float64: {why}."}
    else:
        found["drawing"] = of_graph(graph, _engines(explanation))
        recorder.tell("batch sizes", 0, 1)
        found["batches"] = _batches(request, graph)
        if request.layers or request.mixlist:
            from npu_tools.check import layers
            from npu_tools.check.file_references import nodes_of

            piece = layers.Piece(graph, arrays, nodes_of(request.path, request.kind, arrays))
            found |= layers.analyse([piece], request, recorder.tell)
            found["exact_outputs"] = layers.exact_outputs(graph, arrays)


def _operators(explanation: Any, steps: int) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for placed in explanation:
        row = rows.setdefault(
            (placed.operator, placed.engine),
            {"operator": placed.operator, "place": "NPU", "engine": placed.engine, "reason": placed.reason,
             "remedy": "", "count": 0, "flops": 0.0, "eager": False, "calls": steps,
             "nodes": [], "locations": []},
        )  # fmt: skip
        row["count"] += 1
        if len(row["nodes"]) < _NAMED:
            row["nodes"].append(placed.node)
    return sorted(rows.values(), key=lambda r: -r["count"])


def _engines(explanation: Any) -> dict[str, str]:
    """Engine of every original node of a compiled node."""
    return {name: placed.engine for placed in explanation for name in (placed.node, *placed.origin)}


def _graph(explanation: Any) -> list[dict[str, Any]]:
    """Runs of nodes on one engine, in the order of the graph."""
    groups: list[dict[str, Any]] = []
    for placed in explanation:
        if not groups or groups[-1]["engine"] != placed.engine:
            groups.append(
                {
                    "step": len(groups),
                    "place": "NPU",
                    "engine": placed.engine,
                    "nodes": 0,
                    "scopes": {},
                    "locations": [],
                }
            )
        groups[-1]["nodes"] += 1
        scopes = groups[-1]["scopes"]
        scopes[placed.operator] = scopes.get(placed.operator, 0) + 1
    for group in groups:
        group["operators"] = sorted(group["scopes"].items(), key=lambda item: -item[1])[:8]
        group["scopes"] = group["operators"]
    return groups


def _kernels(model: Any, arrays: list[np.ndarray], calls: int) -> list[dict[str, Any]]:
    tasks = model.profile(arrays, 3)
    rows = [
        {"name": t.name, "engine": t.engine, "kind": t.kind, "implementation": t.implementation or t.kind,
         "shape": list(t.shape), "dtype": t.dtype, "seconds": t.seconds, "calls": calls, "flops": t.flops,
         "bytes": t.nbytes}
        for t in tasks
    ]  # fmt: skip
    return sorted(rows, key=lambda r: -r["seconds"])[:64]


def _batches(request: Request, graph: Any) -> list[dict[str, Any]]:
    """Throughput at other batch sizes, if the first dimensions of all inputs are the batch."""
    from ge.ir.values import desc_of

    first = {desc_of(v).shape[0] for v in graph.inputs if desc_of(v).shape}
    if len(first) != 1 or request.kind == "om":
        return []
    rows, spent = [], 0.0
    for batch in request.batches or _BATCHES:
        begin = time.perf_counter()
        try:
            model, feeds = _sized(request, graph, batch)
            model.run(feeds)
            times = []
            for _ in range(5):
                start = time.perf_counter()
                model.run(feeds)
                times.append(time.perf_counter() - start)
        except Exception as error:  # a model of one fixed batch, or one that does not fit
            rows.append({"batch": batch, "refused": str(error)[:300]})
            continue
        rows.append(
            {
                "batch": batch,
                "seconds": statistics.median(times),
                "arena": int(model.plan.arena_bytes) + _ports(model),
            }
        )
        spent += time.perf_counter() - begin
        if spent > _BUDGET:
            break
    return rows


def _sized(request: Request, graph: Any, batch: int) -> tuple[Any, list[np.ndarray]]:
    """The model compiled for a batch, and its inputs."""
    import ge
    from ge.ir.values import desc_of
    from ge.options import CompileOptions
    from ge.parsers.files import parse_file

    shapes = {v.name: (batch, *desc_of(v).shape[1:]) for v in graph.inputs if desc_of(v).shape}
    options = CompileOptions.from_environment(input_shapes=shapes)
    model = ge.compile(parse_file(request.path, options), CompileOptions.from_environment(), f"batch{batch}")
    inputs = [(p.name, p.desc.shape, p.desc.dtype) for p in model.inputs]
    return model, list(_feeds(request, inputs).values())


def _step(request: Request, batch: int) -> Callable[[], Any]:
    """A run of the model with a batch."""
    from ge.options import CompileOptions
    from ge.parsers.files import parse_file

    options = CompileOptions.from_environment(input_shapes=request.shapes)
    model, feeds = _sized(request, parse_file(request.path, options), batch)
    return lambda: model.run(feeds)


def _ports(model: Any) -> int:
    """Bytes of a model's inputs and outputs."""
    from ge.ir.types import numpy_dtype

    ports = [*model.inputs, *model.outputs]
    return sum(math.prod(p.desc.shape) * np.dtype(numpy_dtype(p.desc.dtype)).itemsize for p in ports)


# -- references ---------------------------------------------------------------------------------------------------


def _reference(request: Request, recorder: Recorder) -> str:
    """Run the model with its own framework; returns the framework's name."""
    if request.kind == "onnx":
        return _onnx_runtime(request, recorder)
    if request.kind in ("pb", "saved_model"):
        return _tensorflow(request, recorder)
    raise NoReference(f"nothing but the NPU runs .{request.kind} files")


def _onnx_runtime(request: Request, recorder: Recorder) -> str:
    if importlib.util.find_spec("onnxruntime") is None:
        return _onnx_reference(request, recorder)
    import onnxruntime

    begin = recorder.now()
    session = onnxruntime.InferenceSession(request.path, providers=["CPUExecutionProvider"])
    inputs = [(i.name, _sizes(request, i.name, i.shape), _ort_type(i.type)) for i in session.get_inputs()]
    feeds = _feeds(request, inputs)
    names = [o.name for o in session.get_outputs()]
    _steps(request, recorder, lambda: session.run(names, feeds), names, begin)
    return f"ONNX Runtime {onnxruntime.__version__}"


def _onnx_reference(request: Request, recorder: Recorder) -> str:
    """ONNX's evaluator: slow, but always installed."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    begin = recorder.now()
    model = onnx.load(request.path)
    evaluator = ReferenceEvaluator(model)
    constants = {i.name for i in model.graph.initializer}
    inputs = []
    for value in model.graph.input:
        if value.name not in constants:
            tensor = value.type.tensor_type
            shape = [d.dim_value or d.dim_param for d in tensor.shape.dim]
            kind = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
            inputs.append((value.name, _sizes(request, value.name, shape), kind))
    feeds = _feeds(request, inputs)
    names = [o.name for o in model.graph.output]
    _steps(request, recorder, lambda: evaluator.run(names, feeds), names, begin)
    return f"onnx.reference {onnx.__version__}"


def _ort_type(text: str) -> str:
    """NumPy name of an element type of ONNX Runtime.

    >>> _ort_type("tensor(float)"), _ort_type("tensor(int64)")
    ('float32', 'int64')
    """
    inner = text.removeprefix("tensor(").removesuffix(")")
    return {"float": "float32", "double": "float64"}.get(inner, inner)


def _tensorflow(request: Request, recorder: Recorder) -> str:
    if importlib.util.find_spec("tensorflow") is None:
        raise NoReference("TensorFlow is not installed")
    import tensorflow as tf

    begin = recorder.now()
    if request.kind == "saved_model":
        loaded = tf.saved_model.load(request.path)
        signature = loaded.signatures["serving_default"]
        specs = signature.structured_input_signature[1]
        inputs = [(n, _sizes(request, n, s.shape.as_list()), s.dtype.name) for n, s in specs.items()]
        feeds = _feeds(request, inputs)
        tensors = {n: tf.constant(a) for n, a in feeds.items()}
        names = sorted(signature.structured_outputs)
        _steps(request, recorder, lambda: _flat(signature(**tensors), names), names, begin)
        return f"TensorFlow {tf.__version__}"
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(Path(request.path).read_bytes())
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
    holders = [o for o in graph.get_operations() if o.type == "Placeholder"]
    read = {t.op.name for o in graph.get_operations() for t in o.inputs}
    ends = [o for o in graph.get_operations() if o.outputs and o.name not in read and o.type != "Placeholder"]
    shapes = [o.outputs[0].shape.as_list() if o.outputs[0].shape.rank is not None else [] for o in holders]
    kinds = [o.outputs[0].dtype.name for o in holders]
    feeds = _feeds(
        request,
        [(o.name, _sizes(request, o.name, s), k) for o, s, k in zip(holders, shapes, kinds, strict=True)],
    )
    fetches = [t for o in ends for t in o.outputs]
    with tf.compat.v1.Session(graph=graph) as session:
        given = {f"{name}:0": array for name, array in feeds.items()}
        _steps(request, recorder, lambda: session.run(fetches, given), [t.op.name for t in fetches], begin)
    return f"TensorFlow {tf.__version__}"


def _flat(found: Any, names: list[str]) -> list[np.ndarray]:
    return [found[name].numpy() for name in names]


# -- shared ----------------------------------------------------------------------------------------


def _sizes(request: Request, name: str, shape: Any) -> tuple[int, ...]:
    """A shape with unknown sizes taken from the request, else 1."""
    if name in request.shapes:
        return request.shapes[name]
    return tuple(d if isinstance(d, int) and d > 0 else 1 for d in shape)


def _feeds(request: Request, inputs: list[tuple[str, tuple[int, ...], str]]) -> Outputs:
    """Inputs for both sides, seeded by position: normally distributed floats or small integers."""
    feeds = {}
    for index, (name, shape, dtype) in enumerate(inputs):
        source = np.random.default_rng((request.seed, index))
        if dtype.startswith(("float", "bfloat", "complex")):
            feeds[name] = source.standard_normal(shape).astype(_numpy(dtype))
        else:
            feeds[name] = source.integers(0, 2, shape).astype(_numpy(dtype))
    return feeds


def _numpy(dtype: str) -> Any:
    from ge.ir.types import numpy_dtype

    return numpy_dtype(dtype)


def _steps(
    request: Request, recorder: Recorder, call: Callable[[], Any], names: list[str], begin: float
) -> None:
    """Run the requested steps; the first one includes everything since `begin`."""
    until = time.perf_counter() + request.seconds
    for number in range(request.steps):
        start = begin if not number else recorder.now()
        results = call()
        if not number:
            for position, (name, value) in enumerate(zip(names, results, strict=True)):
                recorder.output(f"output {position} ({name})", [np.asarray(value)])
        recorder.step("call", "model", start)
        if time.perf_counter() > until:
            recorder.stopped = f"after {request.seconds:g} s, the most that was allowed"
            return
