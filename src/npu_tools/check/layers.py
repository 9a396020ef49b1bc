"""Compares every layer of compiled graphs with float64 and with the framework, in each precision mode.

1. The reference is the graph before any optimisation, evaluated operator by operator in float64; an operator that reads
   bits, or has no float64 form, is evaluated in its own type.
2. The framework computes the same nodes from the same inputs. "float32 by itself" is the evaluation of rule 1 in
   float32: the cost of rounding in any implementation.
3. The NPU runs the graph with the result of every layer as an additional output. This prevents some fusions, as
   tensor dumps do on every device.
4. A layer departs where its error is ten times that of the framework and of float32 by itself.
5. Where these have lost their digits too, the reference itself is unstable: such a layer departs only by what it
   computes from the values that it reads on the NPU, relative to the terms that it sums, and has no part in the verdict
   otherwise.
"""

from __future__ import annotations

import csv
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

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
from ge.options.values import PrecisionMode
from npu_tools.check.assemble import errors
from npu_tools.check.request import Request

__all__ = [
    "Drawn",
    "Framework",
    "Piece",
    "analyse",
    "exact_outputs",
    "exact_values",
    "layers_of",
    "origin_of",
    "widened",
]

MOST_LAYERS = 1000  # in total
DEPARTS = 10.0  # times the error of a float32 evaluation
ROUNDING = 1e-5  # errors below this are rounding
UNSTABLE = 1e-3  # errors of the framework above this are more than rounding
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
_SAME_ELEMENTS = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Constant"})
_MOST_WORK = 2e10  # multiplications; NumPy does about 1.4e9 per second
_SUMS = frozenset({"ReduceSum", "ReduceMean"})
_KEEP = "must_keep_origin_dtype"
_BITS = frozenset(  # operators on bits, whose results depend on the type
    {"Bitcast", "BitCast", "PhiloxNormal", "RandomUniform", "RandomNormal", "Multinomial"}
)


Drawn = Callable[[str], np.ndarray | None]


class Framework(Protocol):
    """A second implementation of a graph's nodes: the framework of a script, the reference of a model file."""

    name: str

    def values(self, nodes: Sequence[str], drawn: Drawn) -> Mapping[str, np.ndarray]:
        """Results by name of the known nodes that have one result.

        `drawn` supplies the values of random nodes.
        """


@dataclass(frozen=True)
class Piece:
    """A graph that the NPU runs as one program, with the inputs of its first call."""

    graph: ir.Graph
    arrays: Sequence[np.ndarray]
    framework: Framework | None = None
    location_of: Callable[[str], str] = lambda node: ""  # the user's line of a node
    options: CompileOptions = field(default_factory=CompileOptions.from_environment)  # the user's own


@dataclass(frozen=True)
class _Known:
    """The layers of a piece by position, and their values: in float64, in float32, by the framework."""

    piece: Piece
    layers: list[int]
    exact: list[np.ndarray]
    plain: list[np.ndarray]
    theirs: list[np.ndarray | None]
    note: str = ""


@dataclass(frozen=True)
class _Dump:
    """Dump of layer values for other tools: one `.npz` per source, and a table."""

    folder: Path
    values: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def add(self, source: str, index: int, layer: str, value: np.ndarray | None) -> None:
        if value is not None:
            self.values.setdefault(source, {})[f"{index:03d} {layer.replace('/', '.')}"] = np.asarray(value)

    def write(self, modes: Mapping[str, Any]) -> None:
        """Write the files of this dump."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for source, arrays in self.values.items():
            given: dict[str, Any] = dict(arrays)
            np.savez_compressed(self.folder / f"{source}.npz", **given)
        with open(self.folder / "layers.csv", "w", newline="") as file:
            table = csv.writer(file)
            columns = ("layer", "operator", "location", "error", "framework", "to_framework", "reference",
                       "largest", "not_finite")  # fmt: skip
            table.writerow(["mode", *columns])
            for mode, found in modes.items():
                table.writerows([mode, *(row[c] for c in columns)] for row in found["layers"])


Tell = Callable[[str, int, int], None]  # stage, steps done, total steps


def analyse(pieces: Sequence[Piece], request: Request, tell: Tell = lambda *_: None) -> dict[str, Any]:
    """Analyse the layers in each precision mode, and search a mixlist on request."""
    try:
        return _analysed(pieces, request, tell)
    except (GeError, TypeError, ValueError, KeyError) as error:
        why = f"the layers could not be compared: {type(error).__name__}: {error}"
        return {"incomplete": why, "trace": traceback.format_exc()}


def _analysed(pieces: Sequence[Piece], request: Request, tell: Tell) -> dict[str, Any]:
    if sum(_work(piece.graph) for piece in pieces) > _MOST_WORK:
        why = "the model is too large to be evaluated in float64; check it with a smaller batch or image"
        return {"precision": {"modes": {}, "verdict": f"Not compared with float64: {why}."}}
    found: dict[str, Any] = {}
    if request.layers:
        found["precision"] = _precision(pieces, request, tell)
    if request.mixlist:
        from npu_tools.check import mixlist

        found["mixlist"] = mixlist.search(pieces, request, tell)
    return found


def _precision(pieces: Sequence[Piece], request: Request, tell: Tell) -> dict[str, Any]:
    tell("layers in float64", 0, 1 + len(request.modes))
    known = [_evaluate(piece, MOST_LAYERS // len(pieces)) for piece in pieces]
    name = next((p.framework.name for p in pieces if p.framework is not None), "")
    dump = _Dump(Path(request.dump)) if request.dump else None
    modes = {}
    for done, mode in enumerate(request.modes, 1):
        tell(f"layers in {mode}", done, 1 + len(request.modes))
        rows = [row for k in known for row in _compared(k, mode, dump)]
        modes[mode] = {"layers": rows, **_judged(rows, mode, request.tolerance, name)}
    if dump is not None:
        dump.write(modes)
    kept = modes.get(_KEEP)
    return {
        "modes": modes,
        "framework": name,
        "notes": list(dict.fromkeys(k.note for k in known if k.note)),
        "verdict": kept["verdict"] if kept else "",
    }


def exact_outputs(graph: ir.Graph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs of a graph computed in float64; empty if that would take too long."""
    if _work(graph) > _MOST_WORK:
        return []
    values = exact_values(graph, arrays)
    return [_value(output, values) for output in graph.outputs]


def _work(graph: ir.Graph) -> float:
    """Approximate number of multiplications in a graph."""
    total = 0.0
    for node in graph:
        if lookup(node.op_type).precision.product and len(node.inputs) > 1:
            weights = [v for v in node.inputs[1:2] if v is not None]
            size = math.prod(desc_of(node.outputs[0]).shape)
            total += size * math.prod(desc_of(weights[0]).shape[1:] or (1,)) if weights else size
    return total


# -- layers -------------------------------------------------------------------------------------------------------


def layers_of(graph: ir.Graph, most: int = MOST_LAYERS) -> list[int]:
    """Positions of the nodes to compare: those with floating-point results; products first if there are too many."""
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
    if len(found) <= most:
        return found
    others = [p for p in found if p not in set(products)]
    room = max(0, most - len(products))
    every = max(1, len(others) // room) if room else len(others) + 1
    return sorted([*products[:most], *others[::every][:room]])


def origin_of(node: ir.Node) -> str:
    """The framework's node that a node originates from."""
    return (*facts.origin(node), node.name or "")[0]


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
    """A copy of the graph that computes in float64 instead of float32 or narrower types."""
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
    """Evaluate a node in float64 if possible, else in its own type."""
    if plain_type(node.op_type) not in _BITS:
        try:
            return evaluate_node(twin, read)
        except (GeError, TypeError, ValueError):
            pass  # evaluate in its own type
    return _in_own_type(node, read)


def _in_own_type(node: ir.Node, read: list[np.ndarray | None]) -> list[np.ndarray]:
    own = [
        None if array is None or value is None else np.asarray(array, numpy_dtype(desc_of(value).dtype))
        for array, value in zip(read, node.inputs, strict=True)
    ]
    return evaluate_node(node, own)


def _interpreted(graph: ir.Graph, layers: Sequence[int], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    copy, places = _observed(graph, layers)
    results = interpret(copy, list(arrays))
    return [results[place] for place in places]


def _evaluate(piece: Piece, most: int) -> _Known:
    """Values of a piece's layers from all sources except the NPU."""
    layers = layers_of(piece.graph, most)
    nodes = list(piece.graph)
    values = exact_values(piece.graph, piece.arrays)
    exact = [values[nodes[position].outputs[0]] for position in layers]
    plain = _interpreted(piece.graph, layers, piece.arrays)
    theirs, note = _by_framework(piece, nodes, layers, values)
    every = len(layers_of(piece.graph, len(nodes)))
    if len(layers) < every:
        note += f" {len(layers)} of {every} layers are compared: products first, of the others every few."
    return _Known(piece, layers, exact, plain, theirs, note.strip())


def _by_framework(
    piece: Piece, nodes: Sequence[ir.Node], layers: Sequence[int], values: Mapping[ir.Value, np.ndarray]
) -> tuple[list[np.ndarray | None], str]:
    """The framework's values of the layers that correspond to exactly one of its nodes."""
    if piece.framework is None:
        return [None] * len(layers), ""
    whole = _whole_nodes(nodes)
    position_of = {origin: position for position, origin in whole.items()}
    wanted = {p: origin for p, origin in whole.items() if p in set(layers)}

    def drawn(node: str) -> np.ndarray | None:
        return values[nodes[position_of[node]].outputs[0]] if node in position_of else None

    try:
        found = piece.framework.values(list(wanted.values()), drawn)
    except Exception as error:  # whatever a framework raises: the comparison with float64 stays
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        return [None] * len(layers), f"{piece.framework.name} could not compute the layers by itself: {why}"
    theirs: list[np.ndarray | None] = []
    for position in layers:
        wide = values[nodes[position].outputs[0]]
        value = found.get(wanted.get(position, ""))
        fits = value is not None and value.size == wide.size
        theirs.append(value.reshape(wide.shape) if fits and value is not None else None)
    return theirs, ""


def _whole_nodes(nodes: Sequence[ir.Node]) -> dict[int, str]:
    """Nodes whose result is that of one framework node: the last one that computes it, and views of it."""
    found: dict[str, int | None] = {}
    for position, node in enumerate(nodes):
        origin = origin_of(node)
        if plain_type(node.op_type) not in _SAME_ELEMENTS:
            found[origin] = None if plain_type(node.op_type) in _VIEWS - {"Cast"} else position
    return {position: origin for origin, position in found.items() if origin and position is not None}


def _compared(known: _Known, mode: str, dump: _Dump | None) -> list[dict[str, Any]]:
    """Errors of a piece's layers in one mode: NPU, framework and float32 against float64."""
    piece = known.piece
    copy, places = _observed(piece.graph, known.layers)
    options = replace(piece.options, precision_mode=PrecisionMode(mode))
    model = compile_graph(copy, options, f"layers in {mode}")
    results = model.run(list(piece.arrays))
    nodes = list(piece.graph)
    observed = {nodes[n]: np.asarray(results[p]) for n, p in zip(known.layers, places, strict=True)}
    on_npu = _OnNpu(piece, observed)
    rows = []
    values = zip(known.layers, places, known.exact, known.plain, known.theirs, strict=True)
    for layer, place, wanted, rounded, theirs in values:
        node, got = nodes[layer], np.asarray(results[place])
        origin = origin_of(node)
        measured = errors(wanted, got)
        if dump is not None:
            name = piece.framework.name.split()[0] if piece.framework else ""
            for source, value in (("float64", wanted), (name, theirs), (mode, got)):
                dump.add(source, layer, origin, value)
        row = {
            "layer": origin,
            "operator": plain_type(node.op_type),
            "location": piece.location_of(origin),
            "error": math.inf if measured["not_finite"] else measured["error"],
            "framework": None if theirs is None else errors(wanted, theirs)["error"],
            "to_framework": None if theirs is None else errors(theirs, got)["error"],
            "reference": errors(wanted, rounded)["error"],
            "largest": float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)),
            "not_finite": measured["not_finite"],
        }
        suspect = _own_error(row) > UNSTABLE and row["error"] > DEPARTS * _own_error(row)
        row["local"], row["local_reference"] = on_npu.local_errors(node) if suspect else (None, None)
        rows.append(row)
    return rows


class _OnNpu:
    """Inputs that the nodes of a piece read on the NPU, from observed layers."""

    def __init__(self, piece: Piece, observed: Mapping[ir.Node, np.ndarray]) -> None:
        self._graph, self._observed = piece.graph, observed
        inputs = zip(piece.graph.inputs, piece.arrays, strict=True)
        self._values = {value: _wide(np.asarray(array)) for value, array in inputs}
        self._values |= {node.outputs[0]: _wide(array) for node, array in observed.items()}

    @cached_property
    def _twins(self) -> dict[ir.Node, ir.Node]:
        """The nodes in float64."""
        return dict(zip(self._graph, widened(self._graph), strict=True))

    def local_errors(self, node: ir.Node) -> tuple[float, float]:
        """The errors of the NPU and of float32 in one node, from what it reads on the NPU, relative to its terms."""
        read = [None if value is None else self._read(value) for value in node.inputs]
        wanted = _evaluated(node, self._twins[node], read)[0]
        size = float(np.linalg.norm(wanted))
        if lookup(node.op_type).precision.product or plain_type(node.op_type) in _SUMS:
            terms = [np.abs(a) if a is not None and a.dtype.kind == "f" else a for a in read]
            size = max(size, float(np.linalg.norm(_evaluated(node, self._twins[node], terms)[0])))
        found = (self._observed[node], _in_own_type(node, read)[0])
        return cast(tuple[float, float], tuple(_absolute(wanted, array) / (size or 1.0) for array in found))

    def _read(self, value: ir.Value) -> np.ndarray:
        """A value on the NPU; unobserved values are computed from observed ones."""
        constant = constant_of(value)
        if constant is not None:
            return _wide(constant)
        if value not in self._values:
            node = value.producer()
            assert node is not None, f"{value.name} is neither an input nor computed"
            read = [None if v is None else self._read(v) for v in node.inputs]
            for output, array in zip(node.outputs, _evaluated(node, self._twins[node], read), strict=True):
                self._values.setdefault(output, _wide(array))
        return self._values[value]


def _absolute(wanted: np.ndarray, found: np.ndarray) -> float:
    """The 2-norm of a difference; infinite where values are lost."""
    measured = errors(wanted, found)
    return math.inf if measured["not_finite"] else measured["error"] * (float(np.linalg.norm(wanted)) or 1.0)


def _own_error(row: Mapping[str, Any]) -> float:
    """Error of a layer without the NPU: the framework's, or that of rounding to float32."""
    return max(row["reference"], row["framework"] or 0.0)


def _departs(row: Mapping[str, Any], allowed: float) -> bool:
    """Rules 4 and 5 of the module."""
    if row["error"] <= max(DEPARTS * _own_error(row), allowed):
        return False
    return row["local"] is None or row["local"] > max(DEPARTS * row["local_reference"], allowed)


def _judged(rows: Sequence[dict[str, Any]], mode: str, tolerance: float, name: str) -> dict[str, Any]:
    """The first layers that overflow, depart or are unstable, and the verdict as text.

    A layer departs if its error exceeds rounding; in lowered modes, the tolerance of results.
    """
    allowed = ROUNDING if mode == _KEEP else tolerance
    unstable = [row for row in rows if _own_error(row) > UNSTABLE]
    return {
        "first_overflow": next((row for row in rows if row["not_finite"]), None),
        "first_departing": next((row for row in rows if _departs(row, allowed)), None),
        "first_unstable": next(iter(unstable), None),
        "verdict": f"{mode}: {_verdict(rows, name)}{_instability(unstable, len(rows))}",
        "worst": max((row["error"] for row in rows), default=0.0),
    }


def _verdict(rows: Sequence[dict[str, Any]], name: str) -> str:
    """Verdict on the NPU's accuracy, from layers with a stable reference and those that depart."""
    overflow = next((row for row in rows if row["not_finite"]), None)
    if overflow:
        return f"values overflow, first in {overflow['layer']}."
    shared = [row for row in rows if row["framework"] is not None]
    key, who = ("framework", name) if shared else ("reference", "float32 by itself")
    departing = next((row for row in rows if _departs(row, ROUNDING)), None)
    stable = [row for row in shared or rows if _own_error(row) <= UNSTABLE]
    worst = max((row["error"] for row in stable), default=0.0)
    theirs = max((row[key] for row in stable), default=0.0)
    figures = f"greatest relative error {worst:.1e}, {who} {theirs:.1e}"
    if departing and departing["local"] is not None:
        figures += f", by itself {departing['local']:.1e} there"
    if departing:
        return f"farther from float64 than {who} is, first in {departing['layer']} ({figures})."
    if not stable:
        return "no layer has a stable reference."
    if _is_as_near(stable, key):
        return f"as near to float64 as {who} is ({figures})."
    return f"farther from float64 than {who} is on the average ({figures})."


def _is_as_near(rows: Sequence[dict[str, Any]], key: str) -> bool:
    """True if the errors are rounding or, on average, at most twice the reference's."""
    if all(row["error"] <= ROUNDING for row in rows):
        return True
    tiny = np.finfo(np.float32).eps / 16
    ratios = [math.log((row["error"] + tiny) / (row[key] + tiny)) for row in rows]
    return float(np.mean(ratios)) <= math.log(2)


def _instability(unstable: Sequence[Mapping[str, Any]], count: int) -> str:
    if not unstable:
        return ""
    return (
        f" The reference itself is unstable in {len(unstable)} of {count} layers, first in {unstable[0]['layer']}: "
        f"without the NPU the error there is {_own_error(unstable[0]):.1e}. Such layers count only by what "
        "they compute themselves."
    )
