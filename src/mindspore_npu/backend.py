"""Compiles MindSpore's graphs for the native back end; None leaves a graph to MindSpore's own back end."""

from __future__ import annotations

import logging
import re
import secrets
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import ge
from ge.compiler import compile_graph
from ge.errors import GeError, UnsupportedOperatorsError
from ge.faults import absorb
from ge.options import CompileOptions
from ge.parsers.mindir.parser import Parsed, parse_model
from ge.parsers.mindir.protos import TYPE_IDS
from ge.parsers.mindir.values import RANDOM
from npu_runtime import environment

__all__ = ["Compiled", "Counts", "Fallback", "build", "counts", "explain", "fallbacks", "reset_counts"]

_log = logging.getLogger(__name__)
_NUMBERS = {name: number for number, name in TYPE_IDS.items()}


class FallbackWarning(UserWarning):
    """A graph that runs on MindSpore's own back end."""


@dataclass(frozen=True)
class Counts:
    """Numbers of compiled graphs, their runs, and graphs left to MindSpore."""

    compiled: int = 0
    runs: int = 0
    fallbacks: int = 0


@dataclass(frozen=True)
class Fallback:
    """A graph that MindSpore runs, and the reason."""

    graph: str
    reason: str


@dataclass(frozen=True)
class Compiled:
    """A compiled graph in the native back end's form (see `backend.cc`).

    parameters: positions among the graph's parameters, in the order of the program's inputs. results: MindSpore's type
    number, shape, and the input whose memory the output takes or -1.
    """

    run: Callable[[Sequence[int], Sequence[int]], Any]
    parameters: list[int]
    results: list[tuple[int, list[int], int]]
    returned: tuple[str, Any]
    model: ge.Model


class _State:
    """Counters and graphs of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts = Counts()
        self.fallbacks: list[Fallback] = []
        self.models: list[ge.Model] = []

    def count(self, **changes: int) -> None:
        with self.lock:
            now = {name: getattr(self.counts, name) + more for name, more in changes.items()}
            self.counts = replace(self.counts, **now)


_STATE = _State()


def counts() -> Counts:
    """Numbers of compiled graphs, runs and fallbacks since the last reset."""
    return _STATE.counts


def reset_counts() -> None:
    """Reset the counters and the list of fallbacks."""
    with _STATE.lock:
        _STATE.counts = Counts()
        _STATE.fallbacks.clear()
        _STATE.models.clear()


def fallbacks() -> list[Fallback]:
    """The graphs that MindSpore's own back end runs, with reasons."""
    return list(_STATE.fallbacks)


def explain() -> str:
    """Report of the compiled graphs with the placement of their nodes, and of the fallbacks."""
    parts = [str(ge.explain(model)) for model in _STATE.models]
    parts += [f"{f.graph} runs on MindSpore: {f.reason}" for f in _STATE.fallbacks]
    return "\n\n".join(parts) or "no graph was compiled with backend='npu'"


def build(
    data: bytes, names: Sequence[str], sources: Callable[[str], list[str]] = lambda name: []
) -> Compiled | None:
    """Compile a graph given as MINDIR; None, with a warning, if MindSpore has to run it.

    sources: the lines of Python source that MindSpore knows of a node, innermost first.
    """
    graph = "graph"
    try:
        parsed = parse_model(data, state=True, name="the MindSpore graph")
        graph = parsed.graph.name or graph
        compiled = _compiled(parsed, list(names))
    except UnsupportedOperatorsError as error:
        _fall_back(graph, f"{error}{_listed(error, sources)}", error)
        return None
    except GeError as error:
        _fall_back(graph, str(error), error)
        return None
    except Exception as error:
        _fall_back(graph, str(absorb("a MindSpore graph", error)), error)
        return None
    with _STATE.lock:
        _STATE.models.append(compiled.model)
    _STATE.count(compiled=1)
    return compiled


def _listed(error: UnsupportedOperatorsError, sources: Callable[[str], list[str]]) -> str:
    """The nodes of each operator with the user's line of code."""
    import mindspore

    package = f"{Path(mindspore.__file__).parent}/"
    lines = []
    for item in error.items:
        found = dict.fromkeys(_described(node, sources(node), package) for node in item.nodes)
        lines += [f"\n  {item.operator}: {text}" for text in found]
    return "".join(lines)


def _described(node: str, lines: Sequence[str], package: str = "") -> str:
    """A node, and the innermost line of source outside of MindSpore's own package.

    >>> lines = ["In file /env/mindspore/ops/x.py:7, 4~9", "In file /home/train.py:12, 8~20"]
    >>> _described("Default/Print-op0", lines, "/env/mindspore/")
    '/home/train.py:12 (Default/Print-op0)'
    """
    places = [match for line in lines for match in re.findall(r"In file (.+?:\d+)", line)]
    own = [place for place in places if not place.startswith(package)] if package else places
    return f"{(own or places)[0]} ({node})" if places else node


def _fall_back(graph: str, reason: str, error: Exception) -> None:
    if environment.text("NPU_MINDSPORE_FALLBACK") == "raise":
        raise error
    with _STATE.lock:
        _STATE.fallbacks.append(Fallback(graph, reason))
    _STATE.count(fallbacks=1)
    warnings.warn(f"MindSpore's own back end runs {graph}: {reason}", FallbackWarning, stacklevel=2)


def _compiled(parsed: Parsed, names: list[str]) -> Compiled:
    ports = [*parsed.inputs, *parsed.parameters]
    places = _places(parsed.inputs, names)
    draws = RANDOM.name in parsed.updates
    given = ports[:-1] if draws else ports
    missing = [name for name in given if name not in places]
    if missing:
        raise GeError("E10501", f"the graph names parameters {missing} that MindSpore does not pass")
    plain = len(parsed.graph.outputs) - len(parsed.updates)
    donated = [(plain + i, ports.index(name)) for i, name in enumerate(parsed.updates)]
    options = CompileOptions.from_environment()
    model = compile_graph(parsed.graph, options, parsed.graph.name or "mindspore", donated)
    over = dict(donated)
    results = [
        (_NUMBERS[port.desc.dtype], list(port.desc.shape), over.get(index, -1))
        for index, port in enumerate(model.outputs)
    ]
    run = _drawing(model) if draws else _runner(model)
    kept = results[:-1] if draws else results
    return Compiled(run, [places[n] for n in given], kept, _form(parsed.returned, places), model)


def _places(inputs: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    """Positions at which MindSpore passes the named inputs of a graph. Unnamed arguments (in gradients taken eagerly)
    follow the order of the graph's inputs.

    >>> _places(["Parameter_4", "x", "Parameter_5"], ["", "x", "", "weight"])
    {'x': 1, 'weight': 3, 'Parameter_4': 0, 'Parameter_5': 2}
    """
    places = {name: index for index, name in enumerate(names) if name}
    unnamed = [index for index, name in enumerate(names) if not name]
    return places | dict(zip((name for name in inputs if name not in places), unnamed, strict=False))


def _runner(model: ge.Model) -> Callable[[Sequence[int], Sequence[int]], Any]:
    def run(inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        _STATE.count(runs=1)
        return model.run_addresses(inputs, outputs)

    return run


def _drawing(model: ge.Model) -> Callable[[Sequence[int], Sequence[int]], Any]:
    """Add the state of random operators as an input and output after MindSpore's own.

    After `mindspore.set_seed` the graphs of a process draw the same numbers in every run.
    """
    import mindspore

    seed = mindspore.get_seed()
    key = secrets.randbits(62) if seed is None else (int(seed) << 20) + _STATE.counts.compiled
    state = np.array([key, 0], np.int64)
    run = _runner(model)

    def draw(inputs: Sequence[int], outputs: Sequence[int]) -> Any:
        return run([*inputs, state.ctypes.data], [*outputs, state.ctypes.data])

    return draw


def _form(returned: Any, places: dict[str, int]) -> tuple[str, Any]:
    """The structure of the graph's results in the native back end's form."""
    if isinstance(returned, tuple):
        return "tuple", tuple(_form(part, places) for part in returned)
    return returned.kind, places[returned.value] if returned.kind == "parameter" else returned.value
