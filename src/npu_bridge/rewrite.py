"""Rewrites a run of a version-1 session: parts of the graph become NpuGraph operations, the rest stays.

The parts are added to the user's own graph, next to the operations they replace, so that variables, queues and
iterators remain the session's. Host operations that read a part's results are duplicated to read the part instead;
all others are used unchanged. Reference variables are written in place; resource variables are read before the part
and assigned after it, and parts that use the same one are ordered by control dependencies.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.framework import graph_pb2

from ge.hybrid import Specialiser
from ge.ir.types import TENSORS
from ge.ops.plugins import find
from ge.options import CompileOptions
from ge.parsers.tensorflow.convert import HANDLERS
from npu_bridge.candidates import UNKNOWN_SIZES, CandidatePart, Verdict, judge
from npu_bridge.part_graphs import DROPPED, PartGraph
from npu_bridge.partition import (
    Partition,
    Region,
    classify,
    has_effect,
    is_free,
    may_wait,
    partition,
)
from npu_bridge.resident import keep_resident
from npu_bridge.run_report import RunReport
from npu_bridge.variables import (
    is_resource,
    read_resource,
    read_variable,
    type_of,
    updated_variables,
)
from tf_adapter.graphs import Functions
from tf_adapter.parts import register_part
from tf_adapter.resident import Layout

__all__ = ["Rewriter", "Rewritten", "rewriter_of"]

_SCOPE = "npu"
MOST_RUNS = 256  # cached rewrites per graph: one for each set of fetches and feeds
_FEW = 64  # host operations up to this number run on the calling thread


@dataclass(frozen=True)
class Rewritten:
    """The fetches to run instead, and facts about the rewrite."""

    fetches: tuple[Any, ...]
    targets: tuple[Any, ...]
    report: RunReport
    parts: tuple[int, ...] = ()  # ids of the NpuGraph operations' graphs
    unseen: bool = False  # True if some of them were not compiled ahead
    repeatable: bool = True  # True if a failed run may be repeated: the host has no side effects
    unsized: tuple[tuple[int, tuple[str, ...]], ...] = ()  # parts with unknown input sizes, and those inputs
    inline: bool = False  # True if the calling thread can run everything sequentially


@dataclass
class _Copies:
    """Operations added by a rewrite, by the names of the originals."""

    definition: graph_pb2.GraphDef = field(default_factory=graph_pb2.GraphDef)
    names: dict[str, str] = field(default_factory=dict)  # copied operation -> its name in the definition
    outside: dict[str, Any] = field(default_factory=dict)  # placeholder name -> tensor of the user's graph
    controls: dict[str, list[Any]] = field(default_factory=dict)  # new name -> operations of the user's graph


class Rewriter:
    """Rewrites the runs of one graph, memoised."""

    def __init__(self, graph: Any) -> None:
        self._graph = weakref.ref(graph)
        self._lock = threading.RLock()
        self._done: Specialiser[Any, Rewritten] = Specialiser(MOST_RUNS)
        self._refused: dict[str, str] = {}  # operations that failed to compile
        self._sizes: dict[str, tuple[int, ...]] = {}  # of tensors, observed in a run
        self._count = 0
        self.generation = 0  # incremented when rewrites become invalid

    def rewritten(
        self,
        fetches: Sequence[Any],
        targets: Sequence[Any],
        fed: Mapping[str, np.ndarray | None],
        options: CompileOptions,
    ) -> Rewritten:
        """The rewrite of a run; `fed` are the names of fed tensors, with values if known."""
        names = (tuple(t.name for t in fetches), tuple(o.name for o in targets), frozenset(fed))
        signature = (names, repr(options))
        with self._lock:
            return self._done.program(signature, lambda: self._rewrite(fetches, targets, fed, options))

    def refuse(self, reasons: Mapping[str, str]) -> bool:
        """Keep operations on the host from now on; False if all of them were there already.

        The parser names restored loops and branches by their frame or Merge.
        """
        with self._lock:
            found = {self._operation(name): reason for name, reason in reasons.items()}
            new = {name: reason for name, reason in found.items() if name not in self._refused}
            self._refused.update(new)
            if new:
                self._done.forget()
                self.generation += 1
            return bool(new)

    def learn(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        """Assume the sizes observed in a run for tensors of unknown size."""
        with self._lock:
            new = {name: shape for name, shape in sizes.items() if name not in self._sizes}
            self._sizes.update(new)
            if new:
                self._done.forget()
                self.generation += 1

    def _operation(self, name: str) -> str:
        graph = self._graph()
        assert graph is not None
        for candidate in (name, name.split(".if")[0]):
            try:
                return str(graph.get_operation_by_name(candidate).name)
            except KeyError:
                continue
        frame = name.split(".")[0]
        loops = (o for o in graph.get_operations() if o.type in ("Enter", "RefEnter"))
        return next((o.name for o in loops if o.get_attr("frame_name").decode() == frame), name)

    def _rewrite(
        self,
        fetches: Sequence[Any],
        targets: Sequence[Any],
        fed: Mapping[str, np.ndarray | None],
        options: CompileOptions,
    ) -> Rewritten:
        roots = [*(t.op for t in fetches if t.name not in fed), *targets]
        region = Region.of(roots, fed)
        wanted = {t.name for t in fetches}
        reasons = classify(region, _mapped, TENSORS.__contains__, wanted)
        reasons.update({n: r for n, r in self._refused.items() if n in region.operations})
        work, verdicts = self._divided(region, reasons, wanted, fed, options)
        if not work.cut.parts:
            return Rewritten(tuple(fetches), tuple(targets), RunReport.of(region, work.cut))
        ids = [work.add_part(index, verdict, options) for index, verdict in enumerate(verdicts)]
        work.add_hosts()
        self._count += 1
        made = self._imported(work.copies, f"{_SCOPE}/run{self._count}")
        return Rewritten(
            tuple(work.tensor(t, made) if t.name not in fed else t for t in fetches),
            tuple(dict.fromkeys([*(work.operation(o, made) for o in targets), *work.ends(made)])),
            RunReport.of(
                region,
                work.cut,
                {**self._sizes, **_known_sizes(fed, verdicts)},
                {v.candidate.outputs[j].name for v in verdicts for j in v.candidate.left},
            ),
            tuple(ids),
            any(verdict.lowered is None for verdict in verdicts),
            not any(has_effect(region.operations[name]) for name in work.cut.reasons),
            _unsized(work, verdicts, ids),
            _is_inline(region, work),
        )

    def _divided(
        self,
        region: Region,
        reasons: dict[str, str],
        wanted: set[str],
        fed: Mapping[str, np.ndarray | None],
        options: CompileOptions,
    ) -> tuple[_Work, list[Verdict]]:
        """Partition a region so that all parts that can be compiled ahead do compile."""
        while True:
            work = _Work(region, partition(region, reasons), wanted)
            verdicts = work.verdicts(fed, self._sizes, options)
            refused = {self._operation(n): why for v in verdicts for n, why in v.refused.items()}
            new = {n: why for n, why in refused.items() if n not in reasons}
            if not new:
                return work, verdicts
            reasons.update(new)

    def _imported(self, copies: _Copies, scope: str) -> dict[str, Any]:
        """Add the copies to the user's graph; new operations by name."""
        graph = self._graph()
        assert graph is not None
        finalized = graph.finalized
        if finalized:
            graph._unsafe_unfinalize()
        try:
            with graph.as_default(), tf.control_dependencies(None), tf.device(None):
                copies.definition.versions.CopyFrom(graph.graph_def_versions)
                names = [n.name for n in copies.definition.node if n.name not in copies.outside]
                found = tf.graph_util.import_graph_def(
                    copies.definition,
                    input_map={f"{n}:0": t for n, t in copies.outside.items()},
                    return_elements=names,
                    name=scope,
                )
                made = dict(zip(names, found, strict=True))
                for name, operations in copies.controls.items():
                    made[name]._add_control_inputs(operations)
        finally:
            if finalized:
                graph.finalize()
        return made


def _mapped(op: str) -> bool:
    import ge.ops
    import ge.parsers.tensorflow.parser  # noqa: F401  (declares the handlers)

    return op in HANDLERS or find("tensorflow", op) is not None


class _Work:
    """A rewrite in progress."""

    def __init__(self, region: Region, cut: Partition, wanted: set[str]) -> None:
        self.region = region
        self.cut = cut
        self.wanted = wanted
        self.copies = _Copies()
        self.part_of = cut.part_of()
        self.part_names = [f"geop_{index}" for index in range(len(cut.parts))]
        self.done_names = list(self.part_names)  # operations to wait for until a part's variables are written
        self.results: dict[str, tuple[int, int]] = {}  # tensor name -> part, position among its outputs
        self.consumers = region.consumers()
        self.copied = self._downstream()

    def _downstream(self) -> list[str]:
        """Host operations that depend on a part, directly or indirectly; loops and branches as a whole."""
        unit_of = {name: names for names in self.cut.units for name in names}
        found: dict[str, None] = {}
        todo = list(self.part_of)
        while todo:
            for name in self.consumers.get(todo.pop(), ()):
                for member in unit_of.get(name, (name,)):
                    if member not in found and member not in self.part_of:
                        found[member] = None
                        todo.append(member)
        return list(found)

    # -- parts -----------------------------------------------------------------------------------------------

    def verdicts(
        self,
        fed: Mapping[str, np.ndarray | None],
        learned: Mapping[str, tuple[int, ...]],
        options: CompileOptions,
    ) -> list[Verdict]:
        """Judge each part ahead of the run, propagating sizes from part to part."""
        functions = Functions(_library(self.region))
        sizes, values = dict(learned), dict(fed)
        found: list[Verdict] = []
        for candidate in self._candidate_parts(options):
            verdict = judge(candidate, functions, values, sizes, options, _layout_for(candidate, found))
            if verdict.lowered is not None:
                sizes.update(verdict.sizes)
                values.update(verdict.constants)
            found.append(verdict)
        return found

    def _candidate_parts(self, options: CompileOptions) -> list[CandidatePart]:
        """The candidate parts with their resident tensors (on host devices only)."""
        parts = range(len(self.cut.parts))
        candidates = [PartGraph(self.region, self.cut, index, self.wanted).candidate() for index in parts]
        if options.target.kind == "cuda":
            return candidates
        return keep_resident(self.region, self.cut, candidates, self.wanted)

    def add_part(self, index: int, verdict: Verdict, options: CompileOptions) -> int:
        """Add a part's operation, reads of variables before it and assignments after it; returns its number."""
        candidate = verdict.candidate
        self.results.update({t.name: (index, position) for position, t in enumerate(candidate.outputs)})
        part = register_part(
            candidate.graph,
            Functions(_library(self.region)),
            options,
            host_fallback=not candidate.written and not candidate.has_loops(),
            variables=candidate.written,
            assigned=candidate.assigned,
            ready=verdict.ready(),
            given=candidate.given,
            left=candidate.left,
        )
        waits = [self.done_names[other] for other in range(index) if self._conflict(other, index)]
        handles = [p for p, t in enumerate(candidate.inputs) if is_resource(t)]
        reads = {p: self._add_read(index, candidate, p, waits) for p in handles}
        node = self.copies.definition.node.add(name=self.part_names[index], op="NpuGraph")
        node.attr["graph"].i = part
        results = [*candidate.outputs, *(candidate.inputs[p] for p in candidate.assigned)]
        node.attr["Tin"].list.type.extend(_types(candidate.inputs, candidate.given))
        node.attr["Tout"].list.type.extend(_types(results, candidate.left))
        node.input.extend(
            reads[p] if p in reads else self._reference(t) for p, t in enumerate(candidate.inputs)
        )
        self._add_controls(node, candidate.controls)
        node.input.extend(f"^{name}" for name in waits)
        self._add_assignments(index, candidate)
        return part

    def _conflict(self, first: int, second: int) -> bool:
        """True if a part writes to a variable that another uses."""
        used = [self._used_variables(part) for part in (first, second)]
        return any((one & other) for one, other in ((used[0][1], used[1][0]), (used[0][0], used[1][1])))

    def _used_variables(self, index: int) -> tuple[set[str], set[str]]:
        """Names of the variables that a part uses, and of those it writes."""
        operations = [self.region.operations[name] for name in self.cut.parts[index]]
        written = {t.name for o in operations for t in updated_variables(o)}
        read = {t.name for o in operations for t in (read_resource(o),) if t is not None}
        by_reference = (read_variable(t.op) for o in operations for t in o.inputs)
        return written | read | {t.name for t in by_reference if t is not None}, written

    def _add_read(self, index: int, candidate: CandidatePart, place: int, waits: Sequence[str]) -> str:
        """Read a variable that a part uses, before the part begins."""
        tensor = candidate.inputs[place]
        node = self.copies.definition.node.add(
            name=f"{self.part_names[index]}_read_{place}", op="ReadVariableOp"
        )
        node.attr["dtype"].type = type_of(tensor).as_datatype_enum
        node.input.append(self._reference(tensor))
        self._add_controls(node, candidate.controls)
        node.input.extend(f"^{name}" for name in waits)
        return str(node.name)

    def _add_assignments(self, index: int, candidate: CandidatePart) -> None:
        if not candidate.assigned:
            return
        part = self.part_names[index]
        done = []
        for place, result in candidate.assigned.items():
            tensor = candidate.inputs[place]
            node = self.copies.definition.node.add(name=f"{part}_assign_{place}", op="AssignVariableOp")
            node.attr["dtype"].type = type_of(tensor).as_datatype_enum
            node.input.extend([self._reference(tensor), f"{part}:{result}"])
            done.append(f"^{node.name}")
        self.done_names[index] = f"{part}_done"
        self.copies.definition.node.add(name=self.done_names[index], op="NoOp", input=done)

    # -- host operations -------------------------------------------------------------------------------------

    def add_hosts(self) -> None:
        """Add the host operations that depend on parts."""
        for position, name in enumerate(self.copied):
            self.copies.names[name] = f"host_{position}"
        for name in self.copied:
            operation = self.region.operations[name]
            node = self.copies.definition.node.add(name=self.copies.names[name], op=operation.type)
            for key, value in operation.node_def.attr.items():
                if key not in DROPPED:
                    node.attr[key].CopyFrom(value)
            node.input.extend(self._reference(t) for t in operation.inputs)
            self._add_controls(node, self.region.controls[name])

    def _reference(self, tensor: Any) -> str:
        """Name of an input of an added operation."""
        if tensor.name not in self.region.fed:
            if tensor.name in self.results:
                part, position = self.results[tensor.name]
                return f"{self.part_names[part]}:{position}"
            if tensor.op.name in self.copies.names or tensor.op.name in set(self.copied):
                return f"{self._copy_name(tensor.op.name)}:{tensor.value_index}"
        for name, known in self.copies.outside.items():
            if known is tensor:
                return name
        name = f"outside_{len(self.copies.outside)}"
        self.copies.outside[name] = tensor
        return name

    def _copy_name(self, name: str) -> str:
        return self.copies.names.setdefault(name, f"host_{self.copied.index(name)}")

    def _add_controls(self, node: Any, controls: Any) -> None:
        for name in controls:
            if name in self.part_of:
                node.input.append(f"^{self.done_names[self.part_of[name]]}")
            elif name in set(self.copied):
                node.input.append(f"^{self._copy_name(name)}")
            else:
                self.copies.controls.setdefault(node.name, []).append(self.region.operations[name])

    # -- what stands for what --------------------------------------------------------------------------------

    def tensor(self, tensor: Any, made: Mapping[str, Any]) -> Any:
        """The tensor that replaces a tensor after the rewrite."""
        if tensor.name in self.results:
            part, position = self.results[tensor.name]
            return made[self.part_names[part]].outputs[position]
        copy = self.copies.names.get(tensor.op.name)
        return tensor if copy is None else made[copy].outputs[tensor.value_index]

    def ends(self, made: Mapping[str, Any]) -> list[Any]:
        """Operations that a run must wait for even if not fetched: assignments of variables."""
        return [
            made[done] for done, part in zip(self.done_names, self.part_names, strict=True) if done != part
        ]

    def operation(self, operation: Any, made: Mapping[str, Any]) -> Any:
        """The operation that replaces an operation after the rewrite."""
        if operation.name in self.part_of:
            return made[self.done_names[self.part_of[operation.name]]]
        copy = self.copies.names.get(operation.name)
        return operation if copy is None else made[copy]


def _types(tensors: Sequence[Any], resident: Collection[int]) -> list[int]:
    """Types of a part's inputs or results; a resident value is represented by its arena's number."""
    plain = [int(type_of(t).as_datatype_enum) for t in tensors]
    return [int(tf.int64.as_datatype_enum) if i in resident else kind for i, kind in enumerate(plain)]


def _layout_for(candidate: CandidatePart, verdicts: Sequence[Verdict]) -> Layout | None:
    """Placement of a part's resident inputs; None if not known yet."""
    if not candidate.given:
        return None
    names = {candidate.inputs[i].name for i in candidate.given}
    maker = next(v for v in verdicts if any(t.name in names for t in v.candidate.outputs))
    return maker.lowered.left if maker.lowered is not None else None


def _unsized(
    work: _Work, verdicts: Sequence[Verdict], ids: Sequence[int]
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Parts with unknown input sizes, if these keep updates of variables on the host."""
    if UNKNOWN_SIZES not in work.cut.reasons.values():
        return ()
    unsure = [(part, v.candidate.inputs) for part, v in zip(ids, verdicts, strict=True) if v.lowered is None]
    return tuple((part, tuple(t.name for t in inputs)) for part, inputs in unsure)


def _known_sizes(
    fed: Mapping[str, np.ndarray | None], verdicts: Sequence[Verdict]
) -> dict[str, tuple[int, ...]]:
    """Known sizes of fed tensors and of parts' results."""
    given = {name: value.shape for name, value in fed.items() if value is not None}
    made = [v.sizes for v in verdicts if v.lowered is not None]
    return {**given, **{name: shape for sizes in made for name, shape in sizes.items()}}


def _is_inline(region: Region, work: _Work) -> bool:
    """True if the host has little other work and nothing to wait for."""
    hosts = [o for name, o in region.operations.items() if name not in work.part_of]
    busy = sum(not is_free(o) and not _is_variable(o) for o in hosts)
    return busy <= _FEW and not any(map(may_wait, hosts))


def _is_variable(operation: Any) -> bool:
    return operation.type in ("VariableV2", "VarHandleOp", "Placeholder", "NoOp")


def _library(region: Region) -> list[Any]:
    """The function library of a graph."""
    graph = next(iter(region.operations.values())).graph
    names = graph._functions if hasattr(graph, "_functions") else {}
    return [f.cached_definition if hasattr(f, "cached_definition") else f.definition for f in names.values()]


_rewriters: weakref.WeakKeyDictionary[Any, Rewriter] = weakref.WeakKeyDictionary()
_rewriters_lock = threading.Lock()


def rewriter_of(graph: Any) -> Rewriter:
    """The rewriter of a graph."""
    with _rewriters_lock:
        found = _rewriters.get(graph)
        if found is None:
            found = _rewriters[graph] = Rewriter(graph)
        return found
