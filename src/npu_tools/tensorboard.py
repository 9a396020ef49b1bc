"""Exports a profile to TensorBoard: an XSpace for the profile plug-in, an event file for the graph plug-in.

The required parts of the messages are declared here, so that neither TensorFlow nor TensorBoard is needed.
"""

from __future__ import annotations

import re
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ge.parsers.schema import declare
from ge.parsers.tensorflow.crc import crc32c, mask
from ge.parsers.tensorflow.protos import MESSAGES
from npu_tools.profile_data import Kernel, Profile, operators_of, trace_events

__all__ = ["event_file", "graph_of", "write", "xspace"]

_TRACE: Mapping[str, Any] = declare(
    "ge.xplane",
    {
        "XSpace": ("1 planes XPlane*", "4 hostnames string*"),
        "XPlane": (
            "1 id int64",
            "2 name string",
            "3 lines XLine*",
            "4 event_metadata EventEntry*",  # a map in the original: the same bytes
            "5 stat_metadata StatEntry*",
        ),
        "XLine": ("1 id int64", "2 name string", "3 timestamp_ns int64", "4 events XEvent*"),
        "XEvent": ("1 metadata_id int64", "2 offset_ps int64", "3 duration_ps int64", "4 stats XStat*"),
        "XStat": ("1 metadata_id int64", "2 double_value double @value", "5 str_value string @value"),
        "EventEntry": ("1 key int64", "2 value XEventMetadata"),
        "XEventMetadata": ("1 id int64", "2 name string", "4 display_name string"),
        "StatEntry": ("1 key int64", "2 value XStatMetadata"),
        "XStatMetadata": ("1 id int64", "2 name string"),
    },
)
_EVENT: Mapping[str, Any] = declare(
    "ge.event",
    {"Event": ("1 wall_time double", "3 file_version string @what", "4 graph_def bytes @what")},
)
# The plane whose events the plug-in sums up by operator, which it does for names such as "dense/MatMul:MatMul" there
# and on planes of GPUs and TPUs. The device shares the host's processor, so its tasks are in place there.
_PLANE = "/host:CPU"
_LINES = {1: "NPU", 2: "calls of the framework", 3: "calls on the host"}
_NPU = 1  # the process of the NPU in traces
_DEVICE = "/job:localhost/device:NPU:0"


def write(folder: Path, recorded: dict[str, Any], profile: Profile) -> list[Path]:
    """Write both files into a log folder; their paths."""
    host = socket.gethostname()
    run = folder / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    run.mkdir(parents=True, exist_ok=True)
    trace = run / f"{host}.xplane.pb"
    trace.write_bytes(xspace(recorded, host))
    events = folder / f"events.out.tfevents.{int(time.time())}.{host}"
    events.write_bytes(event_file(graph_of(recorded, profile), time.time()))
    return [trace, events]


# -- the profile plug-in --------------------------------------------------------------------------------------------


def xspace(recorded: dict[str, Any], host: str) -> bytes:
    """The spans of a recording as a serialised XSpace: lines for the NPU, the framework's calls and the host's."""
    spans = [event for event in trace_events(recorded) if event["ph"] == "X"]
    space = _TRACE["XSpace"](hostnames=[host])
    if spans:
        _plane(space.planes.add(id=1, name=_PLANE), spans, recorded["began"])
    return bytes(space.SerializeToString())


def _plane(plane: Any, spans: Sequence[Mapping[str, Any]], began: int) -> None:
    names: dict[str, int] = {}
    facts: dict[str, int] = {}
    lines: dict[tuple[int, int, bool], Any] = {}
    for span in spans:
        task = span["pid"] == _NPU and span["cat"] != "run"
        key = (span["pid"], span["tid"], task)  # runs have a line of their own above those of their tasks
        if key not in lines:
            kind = f"{_LINES[span['pid']]}{(': tasks' if task else ': runs') if span['pid'] == _NPU else ''}"
            lines[key] = plane.lines.add(
                id=len(lines) + 1, name=f"{kind}, thread {span['tid']}", timestamp_ns=began
            )
        name = operator_name(span["name"], span["cat"]) if task else span["name"]
        number = names.setdefault(name, len(names) + 1)
        event = lines[key].events.add(
            metadata_id=number, offset_ps=round(span["ts"] * 1e6), duration_ps=round(span["dur"] * 1e6)
        )
        for fact, value in span["args"].items():
            at = facts.setdefault(fact, len(facts) + 1)
            if isinstance(value, float):
                event.stats.add(metadata_id=at, double_value=value)
            elif value:
                event.stats.add(metadata_id=at, str_value=str(value))
    for name, number in names.items():
        plane.event_metadata.add(key=number).value.MergeFrom(_TRACE["XEventMetadata"](id=number, name=name))
    for fact, number in facts.items():
        plane.stat_metadata.add(key=number).value.MergeFrom(_TRACE["XStatMetadata"](id=number, name=fact))


def operator_name(name: str, kind: str) -> str:
    """A task by node and operator, as the profile plug-in tells operators by.

    >>> operator_name("MatMul+relu:dense/Relu", "matmul"), operator_name("x", "copy")
    ('dense/Relu:MatMul_relu', 'x:Copy')
    """
    operator = re.sub(r"\W", "_", operators_of(name, kind))
    node = re.sub(r"[^\w./>-]", "_", name.partition(":")[2] or name).lstrip("_./>-") or "task"
    return f"{node}:{operator[:1].upper()}{operator[1:]}"


# -- the graph plug-in ----------------------------------------------------------------------------------------------


def graph_of(recorded: dict[str, Any], profile: Profile) -> Any:
    """The tasks of all programs as a GraphDef: a scope a program, a node a task, its engine as device, its figures."""
    kernels = {(kernel.program, kernel.name): kernel for kernel in profile.kernels}
    graph: Any = MESSAGES["GraphDef"](versions={"producer": 1})
    for program in recorded["programs"]:
        names = _unique(f"{_scope(program['name'])}/{_scope(task['name'])}" for task in program["tasks"])
        for name, task in zip(names, program["tasks"], strict=True):
            inputs = [names[index] for index in task.get("feeds", ())]
            node = graph.node.add(
                name=name, op=operators_of(task["name"], task["kind"]), input=inputs,
                device=f"{_DEVICE}/{_scope(task['engine'])}",
            )  # fmt: skip
            _describe(node, task, kernels.get((program["name"], task["name"])))
    return graph


def _describe(node: Any, task: Mapping[str, Any], kernel: Kernel | None) -> None:
    result = f"{task['dtype']}[{'x'.join(map(str, task['shape']))}]"
    texts = {"implementation": task["implementation"] or task["kind"], "result": result}
    if kernel is not None:
        texts |= {"calls": str(kernel.calls), "milliseconds": f"{kernel.seconds * 1e3:.3f}"}
    for name, text in texts.items():
        node.attr[name].s = text.encode()


def _scope(name: str) -> str:
    """A name that TensorBoard accepts unchanged.

    >>> _scope("MatMul+relu:dense/Relu"), _scope("AI Core")
    ('MatMul_relu/dense/Relu', 'AI_Core')
    """
    kept = "".join(c if c.isalnum() or c in "/_.-" else "/" if c == ":" else "_" for c in name)
    return kept.strip("/") or "unnamed"


def _unique(names: Iterable[str]) -> list[str]:
    """Number repeated names.

    >>> _unique(["a", "b", "a"])
    ['a', 'b', 'a_1']
    """
    seen: dict[str, int] = {}
    found = []
    for name in names:
        again = seen.get(name, 0)
        seen[name] = again + 1
        found.append(f"{name}_{again}" if again else name)
    return found


def event_file(graph: Any, when: float) -> bytes:
    """An event file of TensorBoard with one graph."""
    events = (
        _EVENT["Event"](wall_time=when, file_version="brain.Event:2"),
        _EVENT["Event"](wall_time=when, graph_def=graph.SerializeToString()),
    )
    return b"".join(_entry(event.SerializeToString()) for event in events)


def _entry(data: bytes) -> bytes:
    """A TFRecord record: length and data, each with its checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", mask(crc32c(length))) + data + struct.pack("<I", mask(crc32c(data)))
