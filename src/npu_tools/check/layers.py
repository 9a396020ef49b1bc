"""Every layer of a compiled graph against float64, in each precision mode, and the operators to keep in float32.

1. The reference is the graph before any optimisation, evaluated operator by operator in float64; an operator that reads
   bits, or has no float64 form, is evaluated in its own type.
2. "float32 by itself" is the same evaluation in float32: what rounding alone costs, whoever does it.
3. The NPU runs the graph with the result of every layer as an additional output. That keeps some fusions from
   happening, as dumps of tensors do on every device.
4. The search begins with every operator in float32 and lowers groups of them, halving a group that costs too much
   accuracy, until those are left that cannot be lowered one by one.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.compiler import compile_graph
from ge.errors import GeError
from ge.ir import facts
from ge.ir.graphs import subgraphs_of
from ge.ir.types import TensorDesc, numpy_dtype
from ge.ir.values import constant_of, desc_of, set_desc
from ge.ops.base import lookup, plain_type
from ge.ops.interpret import evaluate_node, interpret
from ge.options import CompileOptions
from npu_tools.check.assemble import errors
from npu_tools.check.request import Request

__all__ = ["analyse", "exact_values", "layers_of", "search", "widened"]

MOST_LAYERS = 240
DEPARTS = 10.0  # times the error of float32 by itself
ROUNDING = 1e-5  # errors below this are rounding
_VIEWS = frozenset(
    {
        "Identity",
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Slice",
        "Split",
        "Cast",
        "Constant",
    }
)
_MOST_WORK = 2e9  # multiplications that the evaluation in NumPy may take
_KEEP = "must_keep_origin_dtype"
_BITS = frozenset({"Bitcast", "BitCast"})


def analyse(
    graph: ir.Graph, arrays: Sequence[np.ndarray], request: Request, location_of: Callable[[str], str]
) -> dict[str, Any]:
    """The layers in each precision mode, and the search for a mixlist where it was asked for."""
    try:
        return _analysed(graph, arrays, request, location_of)
    except (GeError, TypeError, ValueError, KeyError) as error:
        why = f"the layers could not be compared: {type(error).__name__}: {error}"
        return {"incomplete": why, "trace": traceback.format_exc()}


def _analysed(
    graph: ir.Graph, arrays: Sequence[np.ndarray], request: Request, location_of: Callable[[str], str]
) -> dict[str, Any]:
    if _work(graph) > _MOST_WORK:
        why = "the model is too large to be evaluated in float64; check it with a smaller batch or image"
        return {"precision": {"modes": {}, "verdict": f"Not compared with float64: {why}."}}
    layers = layers_of(graph)
    nodes = list(graph)
    values = exact_values(graph, arrays)
    exact = [values[nodes[position].outputs[0]] for position in layers]
    plain = _interpreted(graph, layers, arrays)
    found: dict[str, Any] = {"exact_outputs": [_value(output, values) for output in graph.outputs]}
    if request.layers:
        modes = {
            mode: _compared(graph, layers, arrays, mode, exact, plain, request.tolerance, location_of)
            for mode in request.modes
        }
        kept = modes.get(_KEEP)
        found["precision"] = {"modes": modes, "verdict": kept["verdict"] if kept else ""}
    if request.mixlist:
        mode = next((m for m in request.modes if m != _KEEP), "force_fp16")
        found["mixlist"] = search(graph, arrays, mode, request.tolerance, Path(request.mixlist))
    return found


def _work(graph: ir.Graph) -> float:
    """Multiplications of the products of a graph, roughly."""
    total = 0.0
    for node in graph:
        if lookup(node.op_type).precision.product and len(node.inputs) > 1:
            weights = [v for v in node.inputs[1:2] if v is not None]
            size = math.prod(desc_of(node.outputs[0]).shape)
            total += size * math.prod(desc_of(weights[0]).shape[1:] or (1,)) if weights else size
    return total


# -- layers -------------------------------------------------------------------------------------------------------


def layers_of(graph: ir.Graph) -> list[int]:
    """Positions of the nodes that are compared: those that compute floating-point values, products first if many."""
    found, products = [], []
    for position, node in enumerate(graph):
        desc = desc_of(node.outputs[0])
        if desc.dtype not in ("float32", "float16", "bfloat16") or plain_type(node.op_type) in _VIEWS:
            continue
        if not math.prod(desc.shape):
            continue
        found.append(position)
        if lookup(node.op_type).precision.product:
            products.append(position)
    if len(found) <= MOST_LAYERS:
        return found
    others = [p for p in found if p not in set(products)]
    room = max(0, MOST_LAYERS - len(products))
    every = max(1, len(others) // room) if room else len(others) + 1
    return sorted([*products[:MOST_LAYERS], *others[::every][:room]])


def _observed(graph: ir.Graph, layers: Sequence[int]) -> tuple[ir.Graph, list[int]]:
    """A copy whose outputs include the layers; the positions of the layers among its outputs."""
    copy = graph.clone()
    nodes = list(copy)
    places = []
    for position in layers:
        value = nodes[position].outputs[0]
        known = [index for index, output in enumerate(copy.outputs) if output is value]
        if not known:
            copy.outputs.append(value)
        places.append(known[0] if known else len(copy.outputs) - 1)
    return copy, places


def widened(graph: ir.Graph) -> ir.Graph:
    """A copy that computes in float64 what the graph computes in float32 or narrower."""
    copy = graph.clone()
    _widen(copy)
    return copy


def _widen(graph: ir.Graph) -> None:
    values = [*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)]
    for value in values:
        desc = desc_of(value)
        if desc.dtype in _NARROW:
            array = constant_of(value)
            if array is not None:
                value.const_value = ir.Tensor(np.asarray(array, np.float64), name=value.name)
            set_desc(value, TensorDesc(desc.shape, "float64"))
    for node in graph:
        for name, attribute in list(node.attributes.items()):
            if attribute.type == ir.AttributeType.STRING and attribute.value in _NARROW:
                node.attributes[name] = ir.AttrString(name, "float64")
    for inner in subgraphs_of(graph):
        _widen(inner)


_NARROW = ("float32", "float16", "bfloat16")


def exact_values(graph: ir.Graph, arrays: Sequence[np.ndarray]) -> dict[ir.Value, np.ndarray]:
    """Every value of a graph, computed in float64."""
    wide = widened(graph)
    values: dict[ir.Value, np.ndarray] = {}
    for value, array in zip(graph.inputs, arrays, strict=True):
        values[value] = _wide(np.asarray(array))
    for node, twin in zip(graph, wide, strict=True):
        read = [None if v is None else _value(v, values) for v in node.inputs]
        for value, array in zip(node.outputs, _evaluated(node, twin, read), strict=True):
            values[value] = _wide(array)
    return values


def _value(value: ir.Value, values: dict[ir.Value, np.ndarray]) -> np.ndarray:
    constant = constant_of(value)
    return values[value] if constant is None else _wide(constant)


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if str(array.dtype) in _NARROW else array


def _evaluated(node: ir.Node, twin: ir.Node, read: list[np.ndarray | None]) -> list[np.ndarray]:
    """A node in float64 if it has such a form, else in its own type."""
    if plain_type(node.op_type) not in _BITS:
        try:
            return evaluate_node(twin, read)
        except (GeError, TypeError, ValueError):
            pass  # its own type is what it is written for
    own = [
        None if array is None or value is None else np.asarray(array, numpy_dtype(desc_of(value).dtype))
        for array, value in zip(read, node.inputs, strict=True)
    ]
    return evaluate_node(node, own)


def _interpreted(graph: ir.Graph, layers: Sequence[int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    copy, places = _observed(graph, layers)
    results = interpret(copy, list(arrays))
    return [results[place] for place in places]


def _compared(
    graph: ir.Graph,
    layers: Sequence[int],
    arrays: Sequence[np.ndarray],
    mode: str,
    exact: Sequence[np.ndarray],
    plain: Sequence[np.ndarray],
    tolerance: float,
    location_of: Callable[[str], str],
) -> dict[str, Any]:
    """The layers in one mode: error against float64, that of float32 by itself, the first ones that fail."""
    copy, places = _observed(graph, layers)
    model = compile_graph(copy, CompileOptions.from_environment(precision_mode=mode), f"layers in {mode}")
    results = model.run(list(arrays))
    nodes = list(graph)
    rows = []
    for layer, place, wanted, rounded in zip(layers, places, exact, plain, strict=True):
        node = nodes[layer]
        origin = (*facts.origin(node), node.name or "")[0]
        measured = errors(wanted, np.asarray(results[place]))
        largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
        rows.append(
            {
                "layer": origin,
                "operator": plain_type(node.op_type),
                "location": location_of(origin),
                "error": math.inf if measured["not_finite"] else measured["error"],
                "reference": errors(wanted, rounded)["error"],
                "largest": largest,
                "not_finite": measured["not_finite"],
            }
        )
    return {"layers": rows, **_judged(rows, mode, tolerance)}


def _judged(rows: Sequence[dict[str, Any]], mode: str, tolerance: float) -> dict[str, Any]:
    """The first layers that overflow or depart, and the verdict in words.

    A layer departs where its error is beyond rounding, in lowered modes beyond what results may differ by.
    """
    allowed = ROUNDING if mode == _KEEP else tolerance
    overflow = next((row for row in rows if row["not_finite"]), None)
    departs = next((row for row in rows if row["error"] > max(DEPARTS * row["reference"], allowed)), None)
    worst = max((row["error"] for row in rows), default=0.0)
    reference = max((row["reference"] for row in rows), default=0.0)
    if overflow:
        verdict = f"{mode}: values overflow, first in {overflow['layer']}."
    elif worst <= max(2.0 * reference, ROUNDING):
        verdict = (
            f"{mode}: as near to float64 as float32 by itself is (greatest relative error {worst:.1e}, "
            f"float32 {reference:.1e})."
        )
    else:
        verdict = (
            f"{mode}: greatest relative error {worst:.1e} against float64, float32 by itself {reference:.1e}."
        )
    return {"first_overflow": overflow, "first_departing": departs, "verdict": verdict, "worst": worst}


# -- the search for a mixlist -------------------------------------------------------------------------------------


def search(
    graph: ir.Graph, arrays: Sequence[np.ndarray], mode: str, tolerance: float, path: Path
) -> dict[str, Any]:
    """Find the operators to keep in float32 and write them as a mixlist."""
    values = exact_values(graph, arrays)
    exact = [_value(output, values) for output in graph.outputs]
    names = _candidates(graph)
    whole, took = _tried(graph, arrays, mode, [], exact)
    lowered: set[str] = set()
    rows: list[dict[str, Any]] = []

    def lower(group: list[str]) -> None:
        error, _ = _tried(
            graph, arrays, mode, [n for n in names if n not in lowered and n not in group], exact
        )
        if error <= tolerance:
            lowered.update(group)
        elif len(group) == 1:
            rows.append({"keep": group[0], "error": error})
        else:
            lower(group[: len(group) // 2])
            lower(group[len(group) // 2 :])

    if whole <= tolerance:
        lowered.update(names)
    elif names:
        lower(names)
    kept = [name for name in names if name not in lowered]
    error, after = _tried(graph, arrays, mode, kept, exact)
    path.write_text(json.dumps({"black-list": {"to-add": kept}}, indent=1))
    return {
        "mode": mode,
        "keep": kept,
        "rows": rows,
        "operators": len(names),
        "error_before": whole,
        "error": error,
        "seconds_before": took,
        "seconds": after,
        "verdict": _found(mode, kept, len(names), error, tolerance),
    }


def _found(mode: str, kept: list[str], count: int, error: float, tolerance: float) -> str:
    if not kept:
        return f"Nothing has to be kept: the error in {mode} is {error:.1e}."
    if error <= tolerance:
        said = f"Keep {len(kept)} of {count} operators: the error in {mode} is then {error:.1e}."
        return f"{said} Load the list with modify_mixlist."
    return f"The error in {mode} is {error:.1e} even with all {count} operators in float32."


def _candidates(graph: ir.Graph) -> list[str]:
    """Operators that a precision mode lowers, by the framework's node where it has one."""
    lowered = [node for node in graph if lookup(node.op_type).precision.narrows]
    names = [(*facts.origin(node), node.name or "")[0] for node in lowered]
    return list(dict.fromkeys(name for name in names if name))


def _tried(
    graph: ir.Graph, arrays: Sequence[np.ndarray], mode: str, kept: Sequence[str], exact: Sequence[np.ndarray]
) -> tuple[float, float]:
    """The greatest error of the outputs with some operators in float32, and the time of a run."""
    options = CompileOptions.from_environment(precision_mode=mode, op_precision=dict.fromkeys(kept, _KEEP))
    try:
        model = compile_graph(graph, options, "search")
    except GeError:
        return math.inf, math.inf
    results = model.run(list(arrays))
    begin = time.perf_counter()
    model.run(list(arrays))
    took = time.perf_counter() - begin
    worst = 0.0
    for wanted, found in zip(exact, results, strict=True):
        if wanted.dtype.kind == "f" and wanted.size:
            measured = errors(wanted, np.asarray(found))
            worst = max(worst, math.inf if measured["not_finite"] else measured["error"])
    return worst, took
