"""Evaluates a recording: time by kernel and operator, rates relative to the roofline, a trace for Perfetto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["SCHEMA", "Kernel", "Profile", "operators_of", "trace_events"]

SCHEMA = "tf-adapter-profile/1"


@dataclass(frozen=True)
class Kernel:
    """A task of a program, over all its calls; flops and bytes are per call."""

    program: str
    name: str
    engine: str
    kind: str
    implementation: str
    dtype: str
    shape: tuple[int, ...]
    calls: int
    seconds: float
    flops: float
    nbytes: float

    @property
    def flops_rate(self) -> float:
        return self.flops * self.calls / self.seconds if self.seconds else 0.0

    @property
    def bytes_rate(self) -> float:
        return self.nbytes * self.calls / self.seconds if self.seconds else 0.0

    @property
    def intensity(self) -> float:
        """Operations per byte of memory traffic."""
        return self.flops / self.nbytes if self.nbytes else 0.0

    @property
    def operator(self) -> str:
        """Operators computed by the kernel."""
        return operators_of(self.name, self.kind)

    @property
    def runs_as(self) -> str:
        """The implementation, or the task kind if there is only one."""
        return self.implementation or self.kind


def operators_of(name: str, kind: str) -> str:
    """The operators of a task: its name up to the node, else its kind.

    >>> operators_of("MatMul+relu:dense/Relu", "matmul"), operators_of("x", "copy")
    ('MatMul+relu', 'copy')
    """
    found, colon, _ = name.partition(":")
    return found if colon else kind


_SAME = ("name", "engine", "kind", "implementation", "dtype", "calls", "seconds", "flops", "nbytes")


@dataclass(frozen=True)
class Profile:
    """Summary of a recording."""

    framework: str
    target: str
    wall: float
    busy: float  # seconds in programs, all threads together
    host: float  # seconds of calls on the host
    flops_roof: float
    bytes_roof: float
    kernels: tuple[Kernel, ...]  # the longest first
    dropped: int

    @classmethod
    def of(cls, recorded: dict[str, Any]) -> Profile:
        kernels = [
            Kernel(
                program=program["name"],
                shape=tuple(task["shape"]),
                **{key: task[key] for key in _SAME},
            )
            for program in recorded["programs"]
            for task in program["tasks"]
            if task["calls"]
        ]
        host = sum(end - start for _, start, end in recorded["host"])
        host += sum(end - start for _, on_npu, _, start, end in recorded["calls"] if not on_npu)
        return cls(
            recorded["framework"],
            recorded["target"],
            (recorded["ended"] - recorded["began"]) / 1e9,
            sum(program["seconds"] for program in recorded["programs"]),
            host / 1e9,
            recorded["roof"]["flops"],
            recorded["roof"]["bytes"],
            tuple(sorted(kernels, key=lambda kernel: -kernel.seconds)),
            recorded["dropped"],
        )

    def roof(self, kernel: Kernel) -> float:
        """Share of the roofline that this kernel reaches."""
        if not kernel.seconds:
            return 0.0
        least = max(kernel.flops / self.flops_roof, kernel.nbytes / self.bytes_roof) * kernel.calls
        return least / kernel.seconds

    def operators(self) -> list[tuple[str, str, int, float]]:
        """Engine, operator, calls and seconds by kind of kernel, most expensive first."""
        found: dict[tuple[str, str], tuple[int, float]] = {}
        for kernel in self.kernels:
            calls, seconds = found.get((kernel.engine, kernel.operator), (0, 0.0))
            found[kernel.engine, kernel.operator] = (calls + kernel.calls, seconds + kernel.seconds)
        rows = [(*key, *value) for key, value in found.items()]
        return sorted(rows, key=lambda row: -row[3])

    def data(self) -> dict[str, Any]:
        """The summary for other programs."""
        return {
            "schema": SCHEMA,
            "framework": self.framework,
            "target": self.target,
            "wall_seconds": self.wall,
            "npu_seconds": self.busy,
            "host_seconds": self.host,
            "roof": {"flops": self.flops_roof, "bytes": self.bytes_roof},
            "operators": [
                {"engine": engine, "operator": operator, "calls": calls, "seconds": seconds}
                for engine, operator, calls, seconds in self.operators()
            ],
            "kernels": [
                {
                    "program": k.program, "name": k.name, "operator": k.operator, "engine": k.engine,
                    "implementation": k.runs_as,
                    "dtype": k.dtype, "shape": list(k.shape), "calls": k.calls, "seconds": k.seconds,
                    "flops": k.flops, "bytes": k.nbytes, "share_of_roof": self.roof(k),
                }
                for k in self.kernels
            ],
            "spans_left_out": self.dropped,
        }  # fmt: skip


_RUNS, _CALLS, _HOST = 1, 2, 3  # processes of the trace: Perfetto takes 0 for the idle thread


def trace_events(recorded: dict[str, Any]) -> list[dict[str, Any]]:
    """Events of a Chrome trace: runs with their tasks inside, framework calls, calls on the host."""
    first = recorded["began"]
    names = {program["number"]: program for program in recorded["programs"]}
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((_RUNS, "NPU"), (_CALLS, "framework calls"), (_HOST, "host"))
    ]

    def span(pid: int, tid: int, name: str, kind: str, start: int, end: int, args: dict[str, Any]) -> None:
        times = {"ts": (start - first) / 1e3, "dur": (end - start) / 1e3}
        events.append({"ph": "X", "pid": pid, "tid": tid, "name": name, "cat": kind, **times, "args": args})

    for number, index, thread, start, end in recorded["spans"]:
        program = names[number]
        if index < 0:
            span(_RUNS, thread, program["name"], "run", start, end, {})
        elif index < len(program["tasks"]):
            task = program["tasks"][index]
            keys = ("engine", "implementation", "dtype", "shape", "layout", "flops", "nbytes")
            span(_RUNS, thread, task["name"], task["kind"], start, end, {key: task[key] for key in keys})
    for name, on_npu, thread, start, end in recorded["calls"]:
        span(_CALLS, thread + 1, name, "NPU" if on_npu else "host", start, end, {})
    for name, start, end in recorded["host"]:
        span(_HOST, 1, name, "host", start, end, {})
    return events
