"""Explain: where each node of a function runs and why, the NPU's share of the work, and how to raise it.

    print(tf_adapter.explain(model, images))
    tf_adapter.explain(train_step, batch).save("report.html")

NPU_EXPLAIN=1 (or tf_adapter.options.explain) prints the same for every function that is compiled.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import ge
from ge.ir.types import TENSORS
from ge.parsers.tensorflow.convert import Refusal
from tf_adapter import functions
from tf_adapter.flops import estimate
from tf_adapter.functions import FunctionReport, HostRun, NpuRun, StepsRun
from tf_adapter.graphs import ARGUMENT
from tf_adapter.partition import Step
from tf_adapter.structure import called_by

__all__ = ["Explanation", "Row", "explain", "report"]

_QUIET = frozenset({"Const", "NoOp"})  # not worth a row
_NAMED = 3  # nodes named for one reason


@dataclass(frozen=True)
class Row:
    """One node: where it runs, in which step, why it is not on the NPU, and which implementation it has there."""

    node: str
    operator: str
    place: str  # "NPU" | "host"
    step: int
    reason: str = ""
    remedy: str = ""
    flops: float = 0.0
    implementation: str = ""  # which one was taken and why not the others, where custom operators were there


@dataclass(frozen=True)
class Explanation:
    """Where the nodes of a function run. Prints as text; a notebook shows it as a table."""

    function: str
    rows: tuple[Row, ...]
    steps: tuple[str, ...]  # place of each step; a loop or branch that the device runs is one of its own

    @property
    def node_share(self) -> float:
        """The share of nodes on the NPU."""
        return _share(1.0 if r.place == "NPU" else 0.0 for r in self.rows)

    @property
    def flops_share(self) -> float:
        """The share of floating-point operations on the NPU."""
        total = sum(r.flops for r in self.rows)
        return sum(r.flops for r in self.rows if r.place == "NPU") / total if total else self.node_share

    @property
    def host_rows(self) -> tuple[Row, ...]:
        """The nodes on the host."""
        return tuple(r for r in self.rows if r.place == "host")

    def reasons(self) -> list[tuple[str, str, str, list[str]]]:
        """Why nodes are on the host: operator, reason, remedy, nodes; what matters most first."""
        found: dict[tuple[str, str, str], list[Row]] = {}
        for row in self.host_rows:
            found.setdefault((row.operator, row.reason, row.remedy), []).append(row)
        ranked = sorted(found.items(), key=lambda item: (-sum(r.flops for r in item[1]), -len(item[1])))
        return [(*key, [r.node for r in rows]) for key, rows in ranked]

    def choices(self) -> list[tuple[str, list[str]]]:
        """Which implementation was taken where custom operators were there, and of which nodes."""
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.implementation:
                found.setdefault(row.implementation, []).append(row.node)
        return list(found.items())

    def text(self) -> str:
        """The explanation for a terminal."""
        on_npu = len(self.rows) - len(self.host_rows)
        lines = [
            f"{self.function}: {on_npu} of {len(self.rows)} nodes ({self.node_share:.1%}) and"
            f" {self.flops_share:.1%} of the arithmetic on the NPU,"
            f" {len(self.steps)} step(s): {' → '.join(self.steps)}"
        ]
        for operator, reason, remedy, nodes in self.reasons():
            lines.append(f"  host: {operator or 'all'} ×{len(nodes)}: {reason} [{_named(nodes)}]")
            if remedy:
                lines.append(f"        → {remedy}")
        for row in self.rows:
            if row.place == "NPU" and row.reason:
                lines.append(f"  NPU: {row.operator}: {row.reason} [{row.node}]")
        for implementation, nodes in self.choices():
            lines.append(f"  NPU: {implementation} [{_named(nodes)}]")
        return "\n".join(lines)

    def json(self) -> str:
        """The explanation as JSON."""
        data = {
            "function": self.function,
            "node_share": self.node_share,
            "flops_share": self.flops_share,
            "steps": self.steps,
            "nodes": [asdict(r) for r in self.rows],
        }
        return json.dumps(data, indent=1)

    def html(self) -> str:
        """The explanation as a page of its own."""
        reasons = "".join(
            f"<tr><td>{_escaped(op or 'all')}</td><td>{len(nodes)}</td><td>{_escaped(reason)}</td>"
            f"<td>{_escaped(remedy)}</td></tr>"
            for op, reason, remedy, nodes in self.reasons()
        )
        rows = "".join(
            f'<tr class="{r.place}"><td>{_escaped(r.node)}</td><td>{_escaped(r.operator)}</td><td>{r.place}</td>'
            f"<td>{r.step}</td><td>{r.flops:,.0f}</td><td>{_escaped(r.reason or r.implementation)}</td></tr>"
            for r in self.rows
        )
        return _PAGE.format(
            title=_escaped(self.function),
            nodes=f"{self.node_share:.1%}",
            flops=f"{self.flops_share:.1%}",
            steps=" → ".join(self.steps),
            reasons=reasons,
            rows=rows,
        )

    def save(self, path: str | Path) -> Path:
        """Write the explanation; the file's ending (.html, .json, other: text) says how."""
        target = Path(path)
        forms = {".html": self.html, ".json": self.json}
        target.write_text(forms.get(target.suffix, self.text)())
        return target

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()


def _share(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 1.0


def _named(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:_NAMED]) + (", …" if len(nodes) > _NAMED else "")


def _escaped(text: str) -> str:
    return html.escape(text)


_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; margin: 1em 0; }}
td, th {{ border: 1px solid #ccc; padding: 2px 8px; text-align: left; }}
tr.host td {{ background: #fde8d8; }}
</style>
<h1>{title}</h1>
<p>{nodes} of the nodes and {flops} of the arithmetic run on the NPU. Steps: {steps}.</p>
<table><tr><th>operator on the host</th><th>nodes</th><th>reason</th><th>remedy</th></tr>{reasons}</table>
<table><tr><th>node</th><th>operator</th><th>place</th><th>step</th><th>operations</th><th>reason</th></tr>{rows}</table>
"""


# -- making one ------------------------------------------------------------------------------------------------


def explain(function: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Say which node of a function or Keras model runs where for given arguments, without running it.

    function: a tf.function, a concrete function, a Keras model, or any function of tensors.

    >>> print(tf_adapter.explain(model, images))     # doctest: +SKIP
    """
    concrete = _concrete(function, args, kwargs)
    name = tf.compat.as_str(concrete.name)
    _register(concrete)
    functions.plan_function(name, _described(concrete, args, kwargs))
    found = report(name)
    assert found is not None, f"{name} has just been planned"
    return found


def _concrete(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if hasattr(function, "captured_inputs"):
        return function
    if isinstance(function, tf.keras.Model):
        model = function
        function = tf.function(lambda *a, **k: model(*a, **k), autograph=False)
    elif not hasattr(function, "get_concrete_function"):
        function = tf.function(function)
    return function.get_concrete_function(*args, **kwargs)


def _register(concrete: Any) -> None:
    """TensorFlow makes a function known to the runtime when it is first called; do it now."""
    add = getattr(concrete, "add_to_graph", None)
    if add is not None:
        add()


@dataclass
class _Given:
    """An input of a call that is not made: a tensor, the description of one, or a variable."""

    value: Any
    held: Any = None  # the variable
    version: int = 1

    @property
    def variable(self) -> int:
        """A number that no other variable has."""
        return id(self.held)

    @property
    def kind(self) -> str:
        if self.held is not None:
            return "variable"
        dense = self.dtype in TENSORS and self.value.shape.is_fully_defined()
        return "tensor" if dense else "host"

    @property
    def dtype(self) -> str:
        return str((self.value if self.held is None else self.held).dtype.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple((self.value if self.held is None else self.held).shape)

    def numpy(self) -> np.ndarray:
        source = self.value if self.held is None else self.held
        if isinstance(source, tf.TensorSpec):
            return np.zeros(self.shape, source.dtype.as_numpy_dtype)
        return np.asarray(source.numpy())


def _described(concrete: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    flat = [
        a
        for a in tf.nest.flatten((args, kwargs), expand_composites=True)
        if isinstance(a, (tf.Tensor, tf.TensorSpec, np.ndarray, tf.Variable)) or np.isscalar(a)
    ]
    own = len(concrete.inputs) - len(concrete.captured_inputs)
    given = [_Given(a if isinstance(a, tf.TensorSpec) else tf.convert_to_tensor(a)) for a in flat]
    if len(given) != own:  # arguments that are not tensors, or composite ones: what the trace knows has to do
        given = [_Given(tf.TensorSpec(p.shape, p.dtype)) for p in concrete.inputs[:own]]
    by_handle = {id(v.handle): v for v in concrete.graph.variables}
    return given + [_Given(c, by_handle.get(id(c))) for c in concrete.captured_inputs]


def report(name: str) -> Explanation | None:
    """What became of a function at its last compile; None when there was none."""
    found = functions.last_report(name)
    if found is None:
        return None
    places, chosen = _places(found), _chosen(found)
    flops = estimate(found.graph, functions.known(name).functions, found.shapes)
    rows = tuple(
        Row(node.name, node.op, *places[node.name], flops.get(node.name, 0.0), chosen.get(node.name, ""))
        for node in found.graph.nodes.values()
        if node.op != ARGUMENT and node.op not in _QUIET
    )
    return Explanation(name, rows, _steps(found))


def _chosen(found: FunctionReport) -> dict[str, str]:
    """Which implementation the nodes have for which there were custom operators."""
    if isinstance(found.plan, StepsRun):
        inner = (
            functions.last_report(s.function)
            for s in found.plan.steps
            if functions.step_of(s.function).on_npu
        )
        return {node: words for one in inner if one is not None for node, words in _chosen(one).items()}
    words: dict[str, list[str]] = {}
    for row in ge.explain(found.plan.lowered.model) if isinstance(found.plan, NpuRun) else ():
        for node in row.origin if row.choice else ():
            words.setdefault(node, []).append(f"{row.operator} on {row.engine}: {row.reason}")
    return {node: " | ".join(dict.fromkeys(said)) for node, said in words.items()}


def _steps(found: FunctionReport) -> tuple[str, ...]:
    if isinstance(found.plan, StepsRun):
        return tuple(_kind(functions.step_of(s.function)) for s in found.plan.steps)
    return ("host",) if isinstance(found.plan, HostRun) else ("NPU",)


def _turns(step: Step) -> str:
    """What the functions of a loop or branch became, as far as they have been called."""
    called = called_by(step.graph.nodes[step.structure])
    found = [(n, functions.last_report(n)) for n in called]
    parts = [f"{name} is {' → '.join(_steps(one))}" for name, one in found if one is not None]
    return "the device calls its functions turn by turn" + (": " + "; ".join(parts) if parts else "")


def _kind(step: Step) -> str:
    if step.structure:
        return "loop" if "While" in step.graph.nodes[step.structure].op else "branch"
    return ("NPU" if step.npu < 0 else f"NPU:{step.npu}") if step.on_npu else "host"


def _places(found: FunctionReport) -> dict[str, tuple[str, int, str, str]]:
    """Place, step, reason and remedy of every node."""
    if isinstance(found.plan, HostRun):
        whole = Refusal("", "nothing in this function is worth a crossing to the NPU")
        why = {n: found.refused.get(n, whole) for n in found.graph.nodes}
        return {n: ("host", 0, w.reason, w.remedy) for n, w in why.items()}
    places = dict.fromkeys(found.graph.nodes, ("NPU", 0, "", ""))
    if isinstance(found.plan, StepsRun):
        for index, called in enumerate(found.plan.steps):
            name = called.function
            step = functions.step_of(name)
            inner = functions.last_report(name) if step.on_npu else None
            late = _places(inner) if inner is not None else {}
            for node in step.graph.nodes:
                if node == step.structure:
                    places[node] = ("NPU", index, _turns(step), "")
                elif node in found.refused:
                    why_not = found.refused[node]
                    places[node] = ("host", index, why_not.reason, why_not.remedy)
                elif node in places:
                    place, _, reason, remedy = late.get(node, ("NPU", 0, "", ""))
                    places[node] = (place, index, reason, remedy)
    return places
