"""Function calls on the NPU: how a function runs for inputs of certain types, shapes and values.

A function is one model where everything in it can be compiled, a row of steps where something cannot, and
TensorFlow's own function where nothing is worth it. Variables that a function only reads become part of its
model at first; those that change become inputs, and become part of it again once they have settled.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import npu_runtime
from ge import faults
from ge.errors import OutOfMemoryError, UserCodeError
from ge.hybrid import Patience, Specialiser
from ge.memory_advice import fitting_batch
from ge.parsers.tensorflow.convert import Refusal
from npu_runtime.bounded import BoundedCache
from tf_adapter import over_npus, partition, structure
from tf_adapter.graphs import ARGUMENT, FlatGraph, Functions, read_function, settle
from tf_adapter.lowering import Described, Lowered, Refused, lower
from tf_adapter.options import options
from tf_adapter.shares import Mirrored, Share

__all__ = ["FunctionRun", "HostRun", "NpuRun", "StepsRun", "StructureRun", "forget", "plan_function"]

MOST_FUNCTIONS = 256
PATIENCE = 20  # calls without a change after which variables become part of the model again
MOST_COMPILES = 128  # of one function; more shapes than that run on the host
MOST_CUTS = 16  # of one function
MOST_SETTLING = 8  # rounds in which conditions may become known
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")

# Operators that belong to the host by nature: a mode without host fallback does not complain of them.
_HOST_BY_NATURE = ("Iterator", "Print", "Assert", "Summary", "Dataset")

_log = logging.getLogger("tf_adapter")
_serial = itertools.count(1)


@dataclass(frozen=True)
class NpuRun:
    """The whole function is one model."""

    lowered: Lowered
    watched: tuple[int, ...] = ()  # variables to bind once they have settled
    patience: int = 0


class CalledStep(NamedTuple):
    """A call of a function as a step of another."""

    function: str
    sources: tuple[partition.Source, ...]
    results: int
    npu: int = -1  # the NPU that runs it; -1: the one that runs the whole
    stage: int = -1  # steps of one stage run at the same time; -1: alone
    # What runs instead where all NPUs' variables have the same values: a function, its sources, those variables.
    share: tuple[str, tuple[partition.Source, ...], tuple[Mirrored, ...]] | None = None


@dataclass(frozen=True)
class StepsRun:
    """The function is a row of calls of other functions."""

    name: str
    steps: tuple[CalledStep, ...]
    sources: tuple[partition.Source, ...]
    specialised: tuple[int, ...] = ()  # inputs whose values it is made for


@dataclass(frozen=True)
class HostRun:
    """TensorFlow runs the function, or another in its place."""

    function: str
    keeps: bool = False  # what it makes may use variables after it has returned
    operator: partition.Alone | None = None  # which the function consists of
    other_npus: tuple[str, ...] = ()  # the functions that NPUs 1, 2, ... call in its place


@dataclass(frozen=True)
class StructureRun:
    """The device runs a loop (its condition, its body) or a branch over functions."""

    name: str
    looping: bool
    functions: tuple[str, ...]
    inputs: tuple[tuple[str, Any], ...]  # ("input", argument) or ("constant", array)
    results: tuple[int, ...]  # which of the tensors it makes are returned
    made: int


FunctionRun = NpuRun | StepsRun | HostRun | StructureRun


@dataclass
class Known:
    """What is known of a function whatever its inputs."""

    name: str
    graph: FlatGraph
    functions: Functions
    written: frozenset[int] = frozenset()
    compiles: int = 0
    patience: Patience[tuple[tuple[int, ...], ...]] = field(default_factory=lambda: Patience(PATIENCE))
    cuts: Specialiser[Any, tuple[FunctionRun, Mapping[str, Refusal]]] = field(
        default_factory=lambda: Specialiser(MOST_CUTS)
    )
    report: FunctionReport | None = None  # of the last compile


@dataclass(frozen=True)
class FunctionReport:
    """How a function was compiled for one set of input shapes."""

    function: str
    graph: FlatGraph
    plan: FunctionRun
    refused: Mapping[str, Refusal]
    shapes: tuple[tuple[int, ...] | None, ...] = ()  # of tensors and variables among the inputs


_lock = threading.RLock()
_known: BoundedCache[str, Known] = BoundedCache(MOST_FUNCTIONS)
_steps: dict[str, partition.Step] = {}
_other_npus: dict[str, tuple[str, ...]] = {}  # by step of the host: see HostRun


def known(name: str) -> Known:
    """A function of the eager context, read once."""
    found = _known.get(name)
    if found is not None:
        return found
    functions = Functions()
    graph = read_function(name, functions)
    if name in _steps:  # TensorFlow's form of a step does not say where its nodes are
        placed = _steps[name].graph.nodes
        for node in graph.nodes.values():
            node.npu = placed[node.name].npu if node.name in placed else None
    written = partition.written_arguments(graph, functions)
    made = Known(name, graph, functions, frozenset(graph.args.index(a) for a in written))
    return _known.put(name, made)


def host_step(name: str) -> HostRun | StructureRun | None:
    """How to run a function that was made here for the host, or for a loop or branch; None for others."""
    step = _steps.get(name)
    if step is None or step.on_npu:
        return None
    if step.structure:
        return _structure_run(name, step)
    keeps, operator = partition.keeps_variables(step.graph), partition.single_operator(step.graph)
    return HostRun(name, keeps, operator, _other_npus.get(name, ()))


def _structure_run(name: str, step: partition.Step) -> StructureRun:
    graph, node = step.graph, step.graph.nodes[step.structure]
    inputs = [
        ("input", graph.args.index(n))
        if graph.nodes[n].op == ARGUMENT
        else ("constant", tf.make_ndarray(graph.nodes[n].attr["value"].tensor))
        for n, _ in node.inputs
    ]
    results = tuple(index for _, index in graph.results)
    looping, called = "While" in node.op, structure.called_by(node)
    return StructureRun(name, looping, called, tuple(inputs), results, len(node.types))


def forget() -> None:
    """Forget what is known of functions (their steps stay registered with TensorFlow)."""
    _known.clear()


def plan_function(
    name: str,
    inputs: Sequence[Described],
    changed: Sequence[int] | None = None,
    previous: FunctionRun | None = None,
) -> FunctionRun:
    """How to run a function for given inputs.

    changed: variables of the previous plan whose value changed (an empty list: they have settled); None for the
    first plan.
    """
    function = known(name)
    if function.compiles >= MOST_COMPILES:
        return _host_run(function)
    old = partition.old_control_flow(function.graph)
    if old or _aliased(inputs):
        return _reported(function, _host_run(function), old, inputs)
    bind, watched, patience = _policy(function, inputs, changed, previous)
    settled = Settled(
        function.graph, partition.host_nodes(function.graph, function.functions, _variables(function, inputs))
    )
    if not settled.refused and over_npus.spans(settled.graph):
        return _over_npus(function, settled, inputs)
    for _ in range(MOST_SETTLING):
        found = _lowered(function, settled, inputs, bind)
        fresh = _conditions(settled.graph, found)
        if not isinstance(found, Refused) or not fresh:
            break
        settled = _settled(function, settled, fresh, found.specialised, inputs)
    if isinstance(found, Refused):
        return _mixed(function, settled, {**settled.refused, **found.nodes}, inputs)
    function.compiles += 1
    if not found.ports.outputs:  # nothing to compute
        return _reported(function, _host_run(function), {}, inputs)
    return _reported(function, NpuRun(found, watched, patience), {}, inputs, settled.graph)


@dataclass(frozen=True)
class Settled:
    """A function as it is for some inputs: branches whose conditions they decide are inlined."""

    graph: FlatGraph
    refused: Mapping[str, Refusal]  # nodes that stay on the host whatever the shapes
    choices: tuple[tuple[str, bytes], ...] = ()
    specialised: frozenset[int] = frozenset()  # inputs whose values decided


def _variables(function: Known, inputs: Sequence[Described]) -> set[str]:
    return {function.graph.args[i] for i, d in enumerate(inputs) if d.kind == "variable"}


def _aliased(inputs: Sequence[Described]) -> bool:
    """Whether one variable is given twice."""
    numbers = [d.variable for d in inputs if d.kind == "variable"]
    return len(set(numbers)) < len(numbers)


def _conditions(graph: FlatGraph, found: Lowered | Refused) -> dict[str, np.ndarray]:
    """The conditions that turned out to be known, of nodes that can be settled by them."""
    if isinstance(found, Lowered):
        return {}
    return {
        name: value
        for name, value in found.settled.items()
        if graph.nodes[name].op in _BRANCHES or (graph.nodes[name].op == "Assert" and bool(np.all(value)))
    }


def _settled(
    function: Known,
    before: Settled,
    known: Mapping[str, np.ndarray],
    specialised: frozenset[int],
    inputs: Sequence[Described],
) -> Settled:
    graph = settle(before.graph, function.functions, known)
    refused = partition.host_nodes(graph, function.functions, _variables(function, inputs))
    choices = tuple(sorted((name, value.tobytes()) for name, value in known.items()))
    return Settled(graph, refused, (*before.choices, *choices), before.specialised | specialised)


def _lowered(
    function: Known, settled: Settled, inputs: Sequence[Described], bind: Sequence[int]
) -> Lowered | Refused:
    """The compiled function, or what the host has to run: all of it, should the compiler fail."""
    graph, refused = settled.graph, settled.refused
    chosen = options.compile_options()
    try:
        return lower(
            graph,
            function.functions,
            inputs,
            chosen,
            bind=bind,
            host=refused,
            specialise=settled.specialised,
            name=function.name,
        )
    except OutOfMemoryError as error:
        raise tf.errors.ResourceExhaustedError(
            None, None, f"{error}{_batch_advice(error, inputs)}"
        ) from error
    except tf.errors.OpError:
        raise
    except UserCodeError as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    except faults.REFUSALS as error:
        _log.warning("%s runs on the host, as it could not be compiled: %s", function.name, error)
        why = f"the function could not be compiled: {error}"
    except Exception as error:
        why = str(faults.absorb(f"function {function.name}", error))
    return Refused(dict.fromkeys(_compute(graph), Refusal("", why)))


def _batch_advice(error: OutOfMemoryError, inputs: Sequence[Described]) -> str:
    """The batch that would fit, where the inputs have one."""
    batches = Counter(d.shape[0] for d in inputs if d.kind == "tensor" and d.shape and d.shape[0] > 1)
    if not batches or not error.peak:
        return ""
    batch = batches.most_common(1)[0][0]
    fixed = {tuple(d.shape) for d in inputs if d.kind == "variable"}
    most = fitting_batch(error.peak, error.requested, error.available, batch, fixed)
    if not most:
        return f" Not even a batch of 1 would fit; it is {batch}."
    return f" A batch of about {most} would fit; it is {batch}."


def _host_run(function: Known) -> HostRun:
    return HostRun(function.name, partition.keeps_variables(function.graph))


def _compute(graph: FlatGraph) -> list[str]:
    return [n.name for n in graph.nodes.values() if n.op != ARGUMENT]


# -- variables -------------------------------------------------------------------------------------------------


def _policy(
    function: Known, inputs: Sequence[Described], changed: Sequence[int] | None, previous: FunctionRun | None
) -> tuple[list[int], tuple[int, ...], int]:
    """Which variables become part of the model, which ones may later, and after how many calls."""
    free = [
        i
        for i, given in enumerate(inputs)
        if given.kind == "variable" and i not in function.written and len(given.shape) and given.version
    ]
    shapes = tuple(tuple(d.shape) for d in inputs)
    if changed is None or (not changed and previous is not None):
        return free, (), 0
    patience = function.patience.lengthen(shapes)
    moving = set(changed) | (set(previous.watched) if isinstance(previous, NpuRun) else set())
    return [i for i in free if i not in moving], tuple(sorted(moving & set(free))), patience


# -- mixed computing -------------------------------------------------------------------------------------------


def _mixed(
    function: Known, settled: Settled, refused: Mapping[str, Refusal], inputs: Sequence[Described]
) -> FunctionRun:
    if not options.allow_host_fallback:
        _complain(refused, "Set tf_adapter.options.allow_host_fallback = True to run them on the host.")
    if not context.context().soft_device_placement:
        nodes = settled.graph.nodes
        asked = {name: why for name, why in refused.items() if name in nodes and nodes[name].npu is not None}
        _complain(asked, "Call tf.config.set_soft_device_placement(True) to run them on the host.")
    return _cached_cut(function, settled, refused, inputs, _cut, "mixed")


def _over_npus(function: Known, settled: Settled, inputs: Sequence[Described]) -> FunctionRun:
    """A function whose nodes are on several NPUs: their steps run at the same time."""

    def make(
        function: Known, settled: Settled, refused: Mapping[str, Refusal]
    ) -> tuple[FunctionRun, Mapping[str, Refusal]]:
        shared = options.compile_options().target.kind == "cpu"  # GPUs have memory of their own
        done, shares = over_npus.cut(settled.graph, _bytes_of_variables(inputs) if shared else {})
        return _steps_run(function, settled, done, shares), refused

    return _cached_cut(function, settled, {}, inputs, make, "over NPUs")


def _bytes_of_variables(inputs: Sequence[Described]) -> dict[int, int]:
    return {
        i: math.prod(d.shape) * tf.as_dtype(d.dtype).size
        for i, d in enumerate(inputs)
        if d.kind == "variable"
    }


def _cached_cut(
    function: Known,
    settled: Settled,
    refused: Mapping[str, Refusal],
    inputs: Sequence[Described],
    make: Callable[[Known, Settled, Mapping[str, Refusal]], tuple[FunctionRun, Mapping[str, Refusal]]],
    kind: str,
) -> FunctionRun:
    key = (kind, settled.choices, frozenset(refused), options.fingerprint())
    plan, why = function.cuts.program(key, lambda: make(function, settled, refused))
    return _reported(function, plan, why, inputs, settled.graph)


def _cut(
    function: Known, settled: Settled, refused: Mapping[str, Refusal]
) -> tuple[FunctionRun, Mapping[str, Refusal]]:
    structures = structure.by_the_device(settled.graph, function.functions, refused)
    done = partition.cut(settled.graph, refused, structures)
    on_npu = any(step.on_npu or step.structure for step in done.steps)
    if not on_npu and not structure.worthwhile(settled.graph, function.functions):
        return _host_run(function), done.refused
    return _steps_run(function, settled, done), done.refused


def _steps_run(
    function: Known, settled: Settled, done: partition.Cut, shares: Mapping[int, Share] = MappingProxyType({})
) -> StepsRun:
    steps = []
    for number, step in enumerate(done.steps):
        name = _register(step, function.functions)
        share = shares.get(number)
        instead = None
        if share is not None:
            part = replace(step, graph=share.graph, sources=share.sources)
            instead = (_register(part, function.functions), share.sources, share.mirrored)
        steps.append(CalledStep(name, step.sources, len(step.graph.results), step.npu, step.stage, instead))
    special = tuple(sorted(settled.specialised))
    return StepsRun(function.name, tuple(steps), done.sources, special)


def _register(step: partition.Step, functions: Functions) -> str:
    """Make a step a function that TensorFlow knows."""
    name = f"{step.graph.name}_{next(_serial)}"
    add = context.context().add_function_def
    if step.on_npu or step.structure:
        add(step.graph.function_def(functions, name))
    else:
        others = range(
            1, npu_runtime.device_count() if structure.follows_caller(step.graph, functions) else 1
        )
        names = [name, *(f"{name}_npu{npu}" for npu in others)]
        for npu, called in enumerate(names):
            graph = structure.rewritten(step.graph, functions, structure.Place(npu))
            add(graph.function_def(functions, called))
        with _lock:
            _other_npus[name] = tuple(names[1:])
    with _lock:
        _steps[name] = step
    return name


def _complain(refused: Mapping[str, Refusal], remedy: str) -> None:
    """Raise one error that names every operator that cannot run on the NPU."""
    lines = []
    for name, why in refused.items():
        if not any(word in why.operator for word in _HOST_BY_NATURE):
            hint = f" ({why.remedy})" if why.remedy else ""
            lines.append(f"Op type '{why.operator}' is not supported on NPU: node {name}: {why.reason}{hint}")
    if lines:
        raise tf.errors.UnimplementedError(None, None, "\n".join([*lines, remedy]))


def _reported(
    function: Known,
    plan: FunctionRun,
    refused: Mapping[str, Refusal],
    inputs: Sequence[Described],
    graph: FlatGraph | None = None,
) -> FunctionRun:
    shapes = tuple(None if d.kind == "host" else tuple(d.shape) for d in inputs)
    function.report = FunctionReport(function.name, graph or function.graph, plan, refused, shapes)
    return plan


def is_step(name: str) -> bool:
    """Whether a function was made here, as a step of another."""
    return name in _steps


def step_of(name: str) -> partition.Step:
    """A step that was made here."""
    return _steps[name]


def compiled() -> list[Known]:
    """The functions that have been compiled, least recently used first; steps of others included."""
    return [function for function in _known.values() if function.report is not None]


def last_report(name: str) -> FunctionReport | None:
    """What became of a function at its last compile."""
    return known(name).report
