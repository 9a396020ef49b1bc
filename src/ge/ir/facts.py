"""GE's annotations of nodes, values and graphs: typed accessors over onnx_ir's metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.values import desc_of

__all__ = [
    "OpenShape",
    "add_note",
    "add_origin",
    "aipp",
    "choice",
    "engine",
    "implementation",
    "interface",
    "keep_dtype",
    "narrow",
    "notes",
    "open_inputs",
    "origin",
    "output_names",
    "passed_over",
    "reason",
    "recomputed",
    "set_aipp",
    "set_choice",
    "set_engine",
    "set_implementation",
    "set_interface",
    "set_keep_dtype",
    "set_narrow",
    "set_open_inputs",
    "set_output_names",
    "set_passed_over",
    "set_reason",
    "set_recomputed",
    "set_specialised",
    "set_steps",
    "set_storage_dtype",
    "specialised",
    "steps",
    "storage_dtype",
]

_AIPP = "ge.aipp"
_ORIGIN = "ge.origin"
_ENGINE = "ge.engine"
_REASON = "ge.reason"
_IMPLEMENTATION = "ge.implementation"
_INTERFACE = "ge.interface"
_OPEN_INPUTS = "ge.open_inputs"
_KEEP_DTYPE = "ge.keep_dtype"
_NARROW = "ge.narrow"
_CHOICE = "ge.choice"
_NOTES = "ge.notes"
_PASSED_OVER = "ge.passed_over"
_SPECIALISED = "ge.specialised"
_STEPS = "ge.steps"
_STORAGE_DTYPE = "ge.storage_dtype"
_RECOMPUTED = "ge.recomputed"
_OUTPUT_NAMES = "ge.output_names"
_SEPARATOR = "\n"


def origin(node: ir.Node) -> tuple[str, ...]:
    """Names of the framework nodes that this node stands for."""
    text = node.metadata_props.get(_ORIGIN, "")
    return tuple(text.split(_SEPARATOR)) if text else ()


def add_origin(node: ir.Node, names: Iterable[str]) -> None:
    """Record the framework nodes behind this node (kept through fusion, for errors, profiles and dumps)."""
    merged = dict.fromkeys((*origin(node), *(n for n in names if n)))
    if merged:
        node.metadata_props[_ORIGIN] = _SEPARATOR.join(merged)


def engine(node: ir.Node) -> str:
    """The engine that runs this node, once placed."""
    return node.metadata_props.get(_ENGINE, "")


def set_engine(node: ir.Node, name: str) -> None:
    """Place the node."""
    node.metadata_props[_ENGINE] = name


def reason(node: ir.Node) -> str:
    """Why the node was placed where it is."""
    return node.metadata_props.get(_REASON, "")


def set_reason(node: ir.Node, text: str) -> None:
    """Record why the node was placed where it is."""
    node.metadata_props[_REASON] = text


def implementation(node: ir.Node) -> str:
    """The implementation chosen for a cube node, "" for others."""
    return node.metadata_props.get(_IMPLEMENTATION, "")


def set_implementation(node: ir.Node, name: str, why: str) -> None:
    """Record the implementation of a cube node and append the reason for it to that of its engine."""
    node.metadata_props[_IMPLEMENTATION] = name
    set_reason(node, "; ".join(part for part in (reason(node), f"implementation {why}") if part))


def choice(node: ir.Node) -> str:
    """The implementation of a loop and the reasons against others, "" for other nodes."""
    return node.metadata_props.get(_CHOICE, "")


def set_choice(node: ir.Node, text: str) -> None:
    """Record how a loop runs; nodes that replace it inherit the record."""
    node.metadata_props[_CHOICE] = text


def recomputed(node: ir.Node) -> bool:
    """True if the node recomputes another node's result, so that this result need not be kept."""
    return _RECOMPUTED in node.metadata_props


def set_recomputed(node: ir.Node) -> None:
    """Mark a node that recomputes another node's result."""
    node.metadata_props[_RECOMPUTED] = "1"


def passed_over(node: ir.Node) -> str:
    """Why custom operators of this node's type did not accept it."""
    return node.metadata_props.get(_PASSED_OVER, "")


def set_passed_over(node: ir.Node | None, text: str) -> None:
    """Record why custom operators did not accept the node."""
    if node is not None:
        node.metadata_props[_PASSED_OVER] = text


def keep_dtype(node: ir.Node) -> bool:
    """True if precision modes must not change this node's element types."""
    return _KEEP_DTYPE in node.metadata_props


def set_keep_dtype(node: ir.Node) -> None:
    """Exempt the node from precision modes."""
    node.metadata_props[_KEEP_DTYPE] = "1"


def storage_dtype(value: ir.Value) -> str:
    """The element type in which a value is stored; its own unless a precision mode narrows it."""
    return value.metadata_props.get(_STORAGE_DTYPE) or desc_of(value).dtype


def set_storage_dtype(value: ir.Value, dtype: str) -> None:
    """Store the value in another element type."""
    value.metadata_props[_STORAGE_DTYPE] = dtype


def narrow(value: ir.Value | None) -> str:
    """The narrow element type ("float8e4m3fn", "int4", …) whose codes a value of bytes holds, if any."""
    return "" if value is None else value.meta.get(_NARROW, "")


def set_narrow(value: ir.Value, name: str) -> None:
    """Record that a value of bytes holds codes of a narrow element type."""
    value.meta[_NARROW] = name


def notes(graph: ir.Graph) -> tuple[str, ...]:
    """Messages for the user about how the graph was made."""
    text = graph.metadata_props.get(_NOTES, "")
    return tuple(text.split(_SEPARATOR)) if text else ()


def add_note(graph: ir.Graph, text: str) -> None:
    """Add a message for the user."""
    graph.metadata_props[_NOTES] = _SEPARATOR.join(dict.fromkeys((*notes(graph), text)))


def steps(graph: ir.Graph) -> int:
    """The number of steps that a run repeats the graph for, each on the next rows of the batch; 1: the whole batch."""
    return int(graph.meta.get(_STEPS, 1))


def set_steps(graph: ir.Graph, count: int) -> None:
    """Record that the graph holds one of several steps of its batch."""
    graph.meta[_STEPS] = count


def specialised(graph: ir.Graph) -> Mapping[str, np.ndarray]:
    """Model inputs that became constants because they determine shapes, with their values."""
    return graph.meta.get(_SPECIALISED, {})


def set_specialised(graph: ir.Graph, values: Mapping[str, np.ndarray]) -> None:
    """Record the inputs that became constants."""
    if values:
        graph.meta[_SPECIALISED] = dict(values)


def output_names(graph: ir.Graph) -> tuple[frozenset[str], ...]:
    """For each output, all its names in the framework: of the tensor, of the node ("node:1")."""
    names: tuple[frozenset[str], ...] = graph.meta.get(_OUTPUT_NAMES, ())
    return names or tuple(frozenset({v.name or ""}) for v in graph.outputs)


def set_output_names(graph: ir.Graph, names: Iterable[Iterable[str]]) -> None:
    """Record the names of the outputs."""
    graph.meta[_OUTPUT_NAMES] = tuple(frozenset(n) for n in names)


def interface(graph: ir.Graph) -> Mapping[str, Any] | None:
    """How a caller's values map to inputs and outputs, as JSON; None if they are plain tensors."""
    found: Mapping[str, Any] | None = graph.meta.get(_INTERFACE)
    return found


def set_interface(graph: ir.Graph, record: Mapping[str, Any]) -> None:
    """Record structured inputs and outputs."""
    graph.meta[_INTERFACE] = record


# A shape with -1 for open dimensions; None for any shape; a word for a sequence or optional of any form.
OpenShape = tuple[int, ...] | str | None


def open_inputs(graph: ir.Graph) -> Mapping[str, OpenShape]:
    """The inputs of a model with open sizes, -1 for each open dimension; empty if all sizes are fixed."""
    found: Mapping[str, OpenShape] = graph.meta.get(_OPEN_INPUTS, {})
    return found


def set_open_inputs(graph: ir.Graph, inputs: Mapping[str, OpenShape]) -> None:
    """Record the inputs of a model with open sizes."""
    if any(not isinstance(shape, tuple) or -1 in shape for shape in inputs.values()):
        graph.meta[_OPEN_INPUTS] = dict(inputs)


def aipp(graph: ir.Graph) -> list[Any]:
    """The records of image pre-processing, one per input."""
    return list(graph.meta.get(_AIPP, ()))


def set_aipp(graph: ir.Graph, records: Iterable[Mapping[str, Any]]) -> None:
    """Record the image pre-processing."""
    graph.meta[_AIPP] = [dict(r) for r in records]
