"""Observes a TensorFlow 1 script: a session run is a step.

The plain run has TensorFlow 1's names too (`npu_bridge.version1`), but TensorFlow runs its sessions. Runs are
distinguished by their fetches; the most expensive one is the step. Its loss is the first scalar among its results.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ge.distributions import ascend
from npu_tools.check.drawing import DrawnNode, draw
from npu_tools.check.observe.batch_sizes import Repeatable, common_batch, resized
from npu_tools.check.observe.host_time import HostTime, traced
from npu_tools.check.observe.patching import around
from npu_tools.check.observe.watcher import Watcher
from npu_tools.check.recorder import Recorder
from npu_tools.check.request import Request

__all__ = ["SessionWatcher"]

_LINE = "_npu_check_line"
_NAMED = 8
_TRACED = 2  # the step that is timed node by node


class SessionWatcher(Watcher):
    """Sets up TensorFlow 1's names for one side, runs the script and collects the reports of its sessions."""

    def __init__(self, request: Request, recorder: Recorder) -> None:
        super().__init__(request, recorder)
        self.reports: dict[int, tuple[Any, int]] = {}
        self.graphs: list[Any] = []
        self._steps: dict[str, Repeatable] = {}  # runs by what they fetch
        self._host: dict[str, HostTime] = {}  # of one step of each
        self._closed: set[int] = set()  # sessions that the script has closed
        self._open: list[Any] = []  # closed sessions, kept open so that ids are not reused
        ascend("npu_bridge.version1").install()
        import tensorflow as tf

        if request.side == "npu":
            import npu_bridge.npu_init  # noqa: F401  (sessions offload from here on)
            from npu_bridge import session
            from npu_tools.check.observe import recorded
            from npu_tools.check.observe.capture import Capture

            around(session, "_rewritten", self._rewritten)
            recorded.start()
            self.captured = Capture(request).watch_tensorflow()
        else:
            _stay_on_host()
        tf.compat.v1.set_random_seed(request.seed)
        self._watch()

    def _watch(self) -> None:
        from tensorflow.python.client import session
        from tensorflow.python.framework import ops

        around(session.BaseSession, "run", self._run)
        around(session.BaseSession, "close", self._close)
        around(ops.Graph, "_create_op_internal", self._op_made)

    def _rewritten(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rewritten(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            count = self.reports.get(id(made.report), (None, 0))[1]
            self.reports[id(made.report)] = (made.report, count + 1)
            return made

        return rewritten

    def _op_made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def create(graph: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(graph, *args, **kwargs)
            if not hasattr(graph, _LINE):
                setattr(graph, _LINE, {})
                self.graphs.append(graph)
            line = recorder.roots.here()
            if line:
                getattr(graph, _LINE)[made.name] = line
            return made

        return create

    def _run(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorder = self.recorder

        def run(session: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
            location = recorder.roots.here()
            if recorder.busy or not location:
                return original(session, fetches, *args, **kwargs)
            if id(session) in self._closed:
                raise RuntimeError("Attempted to use a closed Session.")
            name = _name(fetches)
            recorder.check_limit("session", name)
            begin = recorder.now()
            with recorder.inside():
                if self._traces(name):
                    run_traced = traced(original, session.graph)
                    result, self._host[name] = run_traced(session, fetches, *args, **kwargs)
                else:
                    result = original(session, fetches, *args, **kwargs)
                found = _floats(result)
                recorder.output(name, found)
            scalars = [a for a in found if a.size == 1]
            recorder.step(
                "session", name, begin, float(scalars[0].reshape(())) if scalars else None, location
            )
            if name not in self._steps:
                feeds = (args[0] if args else kwargs.get("feed_dict")) or {}
                self._steps[name] = _repeatable(session, fetches, feeds)
            return result

        return run

    def _traces(self, name: str) -> bool:
        """True if TensorFlow shall time the next run node by node; it is in the half that is not measured."""
        done = self.recorder.series.get(("session", name))
        return self.request.side == "npu" and done is not None and len(done.steps) == _TRACED

    def _close(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Keep sessions open for later measurements; to the script they are closed."""
        del original

        def close(session: Any) -> None:
            self._closed.add(id(session))
            self._open.append(session)

        return close

    def run(self, path: str) -> None:
        """Run the script as `python -m npu_bridge run` would."""
        sys.path.insert(0, str(Path(path).parent))
        ascend("npu_bridge.version1").run_main(path)

    def location(self, node: str) -> str:
        """The user's line of a node."""
        return self.line(node)

    def repeatable(self) -> Repeatable | None:
        """The step in a form that can be repeated with another batch."""
        series = self.recorder.main_series()
        return None if series is None else self._steps.get(series.name)

    def seen(self) -> dict[str, Any]:
        """The NPU's work so far: devices, operators, memory, times."""
        import npu_runtime
        from npu_tools.check.observe.recorded import Recorded

        done = Recorded(self.recorder)
        reports = [(report, calls) for report, calls in self.reports.values() if report.operations]
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        for report, calls in reports:
            for placed in report.operations:
                self._add(rows, placed, calls)
        largest = max(reports, key=lambda item: len(item[0].operations), default=None)
        return {
            "devices": ["/device:CPU:0", "/device:NPU:0"],
            "operators": sorted(rows.values(), key=lambda row: (row["place"] == "NPU", -row["count"])),
            "graph": [] if largest is None else _parts(largest[0]),
            "drawing": {} if largest is None else self._drawing(largest[0]),
            "npu_memory": dict(npu_runtime.memory_info()),
            "kernels": done.kernels(),
            "spans": done.last_steps(),
            "spent": self._spent(done),
        }

    def _spent(self, done: Any) -> dict[str, float]:
        """Breakdown of the seconds of the later half of the steps.

        The times of host operators and input come from one step that TensorFlow traced; they may overlap, so their sum
        is limited to the time of a step outside the NPU.
        """
        series = self.recorder.main_series()
        if series is None or len(series.steps) < 2:
            return {}
        steps, begin = self.recorder.later_steps(series)
        end = steps[-1].end
        inside, npu = sum(s.end - s.begin for s in steps), done.seconds(begin, end)
        timed = self._host.get(series.name, HostTime())
        known = len(steps) * (timed.host + timed.input)
        share = min(1.0, max(0.0, inside - npu) / known) if known else 0.0
        return {
            "total": end - begin,
            "NPU": npu,
            "input": share * len(steps) * timed.input,
            "host": share * len(steps) * timed.host,
            "between": max(0.0, end - begin - inside),
            "steps": float(len(steps)),
        }

    def _add(self, rows: dict[tuple[str, str, str], dict[str, Any]], placed: Any, calls: int) -> None:
        place = "NPU" if placed.side == "npu" else "host"
        key = (placed.type, place, placed.reason)
        row = rows.setdefault(
            key,
            {"operator": placed.type, "place": place, "reason": placed.reason, "remedy": "", "count": 0,
             "flops": 0.0, "eager": False, "calls": 0, "nodes": [], "locations": []},
        )  # fmt: skip
        row["count"] += 1
        row["calls"] = max(row["calls"], calls)
        if len(row["nodes"]) < _NAMED:
            row["nodes"].append(placed.name)
        line = self.line(placed.name)
        if line and line not in row["locations"] and len(row["locations"]) < _NAMED:
            row["locations"].append(line)

    def _drawing(self, report: Any) -> dict[str, Any]:
        """The layers of a run and how they are connected, in the order in which the script made them."""
        placed = {operation.name: operation for operation in report.operations}
        return draw(
            DrawnNode(
                made.name, made.type, "NPU" if found.side == "npu" else "host",
                tuple(tensor.op.name for tensor in made.inputs), found.part,
                location=self.line(made.name) if found.side != "npu" else "",
            )
            for graph in self.graphs
            for made in graph.get_operations()
            if (found := placed.get(made.name)) is not None
        )  # fmt: skip

    def line(self, name: str) -> str:
        for graph in self.graphs:
            found: str = getattr(graph, _LINE).get(name, "")
            if found:
                return found
        return ""


def _name(fetches: Any) -> str:
    """Describe the fetches of a run."""
    names = [str(getattr(item, "name", item)).removesuffix(":0") for item in _leaves(fetches)]
    return f"run({', '.join(names[:4])}{', …' if len(names) > 4 else ''})"


def _leaves(structure: Any) -> list[Any]:
    """Leaves of a fetch or its result; dictionary keys may be of any type, such as hooks."""
    if isinstance(structure, Mapping):
        return [leaf for value in structure.values() for leaf in _leaves(value)]
    if isinstance(structure, (list, tuple)):
        return [leaf for value in structure for leaf in _leaves(value)]
    return [structure]


def _repeatable(session: Any, fetches: Any, feeds: Mapping[Any, Any]) -> Repeatable:
    """A run of a session whose placeholders are fed with more or fewer rows."""
    arrays = {key: np.asarray(value) for key, value in feeds.items()}

    def step(batch: int) -> Callable[[], Any]:
        given = {key: resized(array, batch) for key, array in arrays.items()}
        return lambda: session.run(fetches, given)

    return Repeatable(lambda: common_batch([a.shape for a in arrays.values()]), step)


def _floats(result: Any) -> list[np.ndarray]:
    arrays = [
        np.asarray(item) for item in _leaves(result) if isinstance(item, (np.ndarray, np.generic, float))
    ]
    return [a.astype(np.float32) for a in arrays if a.dtype.kind == "f" and a.size]


def _parts(report: Any) -> list[dict[str, Any]]:
    """The parts of the largest run: those of the NPU by number, and the host's operations."""
    groups: dict[int, Counter[str]] = {}
    for placed in report.operations:
        groups.setdefault(placed.part, Counter())[placed.type] += 1
    return [
        {
            "step": part,
            "place": "host" if part < 0 else "NPU",
            "nodes": sum(found.values()),
            "operators": found.most_common(8),
            "scopes": found.most_common(8),
            "locations": [],
        }
        for part, found in sorted(groups.items())
    ]


def _stay_on_host() -> None:
    """A script's own import of the adapter must not take its sessions to the NPU."""
    from npu_bridge import options

    around(
        options.SessionOptions,
        "start",
        lambda original: lambda self: object.__setattr__(self, "offload", False),
    )
