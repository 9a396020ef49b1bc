"""Sessions: graphs by id, compiled once, run directly or in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ge import tensor_dump
from ge.errors import GeError
from ge.ops.custom import search
from ge.options import CompileOptions, compile_options
from ge.options.table import tell_idle, unknown, view

if TYPE_CHECKING:
    from ge.model.model import Model

__all__ = ["Session", "parse_options"]


@dataclass
class _Entry:
    source: Any
    options: CompileOptions
    lock: threading.Lock = field(default_factory=threading.Lock)
    model: Model | None = None


class Session:
    """Compiles and runs graphs.

    >>> import numpy as np, ge
    >>> g = ge.Graph("double")
    >>> _ = g.output(g.input("x", (3,)) * 2.0)
    >>> with Session({"ge.exec.precision_mode": "must_keep_origin_dtype"}) as session:
    ...     session.add_graph(1, g)
    ...     session.run_graph(1, [np.ones(3, np.float32)])
    [array([2., 2., 2.], dtype=float32)]
    """

    def __init__(self, options: CompileOptions | Mapping[str, Any] | None = None) -> None:
        self.options = parse_options(options)
        search.add_paths(self.options.opp_path)
        self._graphs: dict[int, _Entry] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def add_graph(self, graph_id: int, graph: Any, options: Mapping[str, Any] | None = None) -> None:
        """Add a graph (or the path of a model file) under an id; it is compiled on first use."""
        with self._lock:
            if graph_id in self._graphs:
                raise GeError("E10041", f"the session has a graph {graph_id}", remedy="remove_graph it first")
            self._graphs[graph_id] = _Entry(graph, parse_options(options, self.options))

    def build_graph(self, graph_id: int) -> Model:
        """Compile a graph now, unless it is already compiled."""
        from ge.front_door import compile

        entry = self._entry(graph_id)
        with entry.lock:
            if entry.model is None:
                entry.model = compile(entry.source, entry.options)
            return entry.model

    compile_graph = build_graph

    def run_graph(self, graph_id: int, inputs: Sequence[Any]) -> list[np.ndarray]:
        """Run a graph on arrays, in the order of its inputs."""
        return self.build_graph(graph_id).run(list(inputs))

    def run_graph_async(
        self,
        graph_id: int,
        inputs: Sequence[Any],
        callback: Callable[[list[np.ndarray]], Any] | None = None,
    ) -> Future[list[np.ndarray]]:
        """Run a graph in the background. The future's result is what run_graph returns."""
        self._entry(graph_id)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="ge-session")
            future = self._pool.submit(self.run_graph, graph_id, inputs)
        if callback is not None:
            future.add_done_callback(
                lambda done: callback(done.result()) if done.exception() is None else None
            )
        return future

    def remove_graph(self, graph_id: int) -> None:
        """Remove a graph and release its memory."""
        self._entry(graph_id)
        with self._lock:
            self._graphs.pop(graph_id, None)

    def is_graph_need_rebuild(self, graph_id: int) -> bool:
        """True if a graph is not compiled yet."""
        return self._entry(graph_id).model is None

    def close(self) -> None:
        """Wait for background runs and remove all graphs."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._graphs.clear()
        if pool is not None:
            pool.shutdown()

    def _entry(self, graph_id: int) -> _Entry:
        with self._lock:
            if graph_id not in self._graphs:
                known = ", ".join(map(str, self._graphs)) or "none"
                raise GeError(
                    "E10041", f"the session has no graph {graph_id}", remedy=f"its graphs are: {known}"
                )
            return self._graphs[graph_id]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- options ----------------------------------------------------------------------------------------


def parse_options(
    given: CompileOptions | Mapping[str, Any] | None, base: CompileOptions | None = None
) -> CompileOptions:
    """Options from a record or from names in the style of programs ("ge.exec.precision_mode").

    >>> parse_options({"ge.exec.precision_mode": "force_fp16"}).precision_mode.value
    'force_fp16'
    """
    if isinstance(given, CompileOptions):
        return given
    known = {_short(name): option for name, option in view("ge").items()}
    values: dict[str, Any] = {}
    for name, value in (given or {}).items():
        option = known.get(_short(name))
        if option is None:
            raise unknown(name.rpartition(".")[2], view("ge"), "a session")
        spelling = f"option '{name}'"
        parsed = option.parse(value, spelling)
        tell_idle(option, "ge", spelling)
        if not option.idle_at("ge"):
            values[option.name] = parsed
    if any(name in values for name in tensor_dump.NAMES):
        tensor_dump.apply(values)
    return compile_options(values, base)


def _short(name: str) -> str:
    """A name without "ge.exec." and underscores: programs write precision_mode, precisionMode and PrecisionMode."""
    return name.lower().rpartition(".")[2].replace("_", "")
