"""Observes a script for `tf-adapter explain`: what was compiled, what ran on the host, and why."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ge.distributions import ascend

__all__ = ["Part", "from_model", "watch"]

Part = dict[str, Any]  # "name", "npu" (nodes there), "host": rows of operator, count, reason, remedy, nodes
_NAMED = 8


@contextlib.contextmanager
def watch(framework: str, result: Path) -> Iterator[None]:
    """Write the parts of a script's run as JSON when it ends."""
    watcher = {"tensorflow": _tensorflow, "tensorflow1": _version1, "torch": _torch}.get(framework, _nothing)
    with watcher() as parts:
        try:
            yield
        finally:
            result.write_text(json.dumps(list(parts())))


def _part(name: str, npu: int, host: Iterable[tuple[str, str, str, str]], **rest: Any) -> Part:
    """Build a part from the (operator, reason, remedy, node) rows of the host."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for operator, reason, remedy, node in host:
        row = rows.setdefault(
            (operator, reason, remedy),
            {"operator": operator, "count": 0, "reason": reason, "remedy": remedy, "nodes": []},
        )
        row["count"] += 1
        if len(row["nodes"]) < _NAMED:
            row["nodes"].append(node)
    return {"name": name, "npu": npu, "host": sorted(rows.values(), key=lambda row: -row["count"]), **rest}


def from_model(model: Any) -> Part:
    """Build the part of a compiled model file: all nodes are on the NPU, by engine."""
    import ge

    explanation = ge.explain(model)
    return _part(
        model.name, len(explanation), (), engines=explanation.counts(), notes=list(explanation.notes)
    )


@contextlib.contextmanager
def _nothing() -> Iterator[Any]:
    yield list


@contextlib.contextmanager
def _tensorflow() -> Iterator[Any]:
    def parts() -> Iterator[Part]:
        from tf_adapter import functions
        from tf_adapter.explanation import report

        for known in functions.compiled():
            made = None if functions.is_step(known.name) else report(known.name)
            if made is not None:
                host = made.host_rows
                yield _part(
                    made.function,
                    len(made.rows) - len(host),
                    ((r.operator, r.reason, r.remedy, r.node) for r in host),
                    share=made.flops_share,
                )

    yield parts


@contextlib.contextmanager
def _version1() -> Iterator[Any]:
    ascend("npu_bridge.version1").install()  # before anything else imports TensorFlow
    observers = ascend("npu_bridge.session").observers

    seen: list[Any] = []
    observers.append(seen.append)

    def parts() -> Iterator[Part]:
        for number, run in enumerate(seen, 1):
            host = [p for p in run.operations if p.side == "host"]
            yield _part(
                f"session run {number}", len(run.on_npu()), ((p.type, p.reason, "", p.name) for p in host)
            )

    try:
        yield parts
    finally:
        observers.remove(seen.append)


@contextlib.contextmanager
def _torch() -> Iterator[Any]:
    from torchair.executable import observe

    with observe() as reports:

        def parts() -> Iterator[Part]:
            for graph in reports:
                refused = [(r.operator, r.reason, "", r.node) for r in graph.refusals]
                if graph.failure:
                    refused.append(("all", graph.failure, "", graph.name))
                yield _part(f"{graph.kind} graph {graph.name}".strip(), graph.npu_calls, refused)

        yield parts
