"""Version-1 sessions on the NPU: every run is rewritten before it reaches TensorFlow."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.client import pywrap_tf_session as tf_session

from npu_bridge.estimator.npu.util import iterations_of
from npu_bridge.options import OPTIMIZER, SessionOptions
from npu_bridge.rewrite import Rewritten, rewriter_of
from npu_bridge.run_report import RunReport
from npu_runtime import tensorflow as native
from tf_adapter.options import options
from tf_adapter.parts import refusals_of, shapes_of

__all__ = [
    "observers",
    "offloaded_callable",
    "offloaded_run",
    "partition_report",
    "run_by_callable",
    "with_options",
]

_log = logging.getLogger("npu_bridge")
_ATTEMPTS = 16
_INLINE = config_pb2.RunOptions(inter_op_thread_pool=-1)
observers: list[Callable[[RunReport], object]] = []  # called for every new run


def partition_report(session: Any, fetches: Any, feeds: Sequence[Any] = ()) -> RunReport:
    """Placement of a run's operations, with reasons.

    print(partition_report(sess, [train_op, loss], [x, y]))
    """
    flat = tf.nest.flatten(fetches)
    elements = [session.graph.as_graph_element(f) for f in flat]
    tensors = [e for e in elements if isinstance(e, tf.Tensor)]
    operations = [e for e in elements if not isinstance(e, tf.Tensor)]
    fed = [session.graph.as_graph_element(f) for f in feeds]
    return _rewritten(session, tensors, operations, fed).report


def with_options(original: Callable[..., None]) -> Callable[..., None]:
    """Store the options in the session and hide them from TensorFlow's own optimizer."""

    def __init__(self: Any, target: str = "", graph: Any = None, config: Any = None) -> None:
        self._npu_options = SessionOptions.of(config)
        self._npu_options.start()
        self._npu_runs = {}
        self._npu_state = native.SessionState()
        original(self, target, graph, _plain(config))

    return __init__


def _plain(config: Any) -> Any:
    if config is None:
        return None
    plain = config_pb2.ConfigProto()
    plain.CopyFrom(config)
    optimizers = plain.graph_options.rewrite_options.custom_optimizers
    kept = [o for o in optimizers if o.name != OPTIMIZER]
    del optimizers[:]
    optimizers.extend(kept)
    return plain


def _rewritten(
    session: Any,
    fetches: Sequence[Any],
    targets: Sequence[Any],
    fed: Sequence[Any],
    values: Sequence[Any] = (),
) -> Rewritten:
    """The rewrite of a run, memoised by the identity of its fetches; `values` are those of the feeds, if known."""
    key = (tuple(map(id, fetches)), tuple(map(id, targets)), frozenset(map(id, fed)))
    rewriter = rewriter_of(session.graph)
    found = session._npu_runs.get(key)
    if found is not None and found[0] == rewriter.generation:
        return found[1]
    known = [v if isinstance(v, np.ndarray) else None for v in values]
    if len(known) != len(fed):  # unknown or invalid: TensorFlow reports it
        known = [None] * len(fed)
    given = {t.name: v for t, v in zip(fed, known, strict=True)}
    done = rewriter.rewritten(fetches, targets, given, session._npu_options.compile_options)
    session._npu_runs[key] = (rewriter.generation, done, (*fetches, *targets, *fed))
    if options.explain:
        print(done.report)
    for observer in observers:
        observer(done.report)
    return done


def offloaded_run(original: Callable[..., Any]) -> Callable[..., Any]:
    def _do_run(
        self: Any,
        handle: Any,
        target_list: Any,
        fetch_list: Any,
        feed_dict: Any,
        options: Any,
        run_metadata: Any,
    ) -> Any:
        if handle is not None or not self._npu_options.offload:
            return original(self, handle, target_list, fetch_list, feed_dict, options, run_metadata)

        def rewritten() -> Rewritten:
            fed = [_tensor(key) for key in feed_dict]
            return _rewritten(self, fetch_list, target_list, fed, list(feed_dict.values()))

        def run(done: Rewritten, metadata: Any) -> Any:
            chosen = _inline_options() if done.inline and _is_empty(options) else options
            with self._npu_state:
                return original(
                    self, None, list(done.targets), list(done.fetches), feed_dict, chosen, metadata
                )

        for _ in range(_iterations((*target_list, *(t.op for t in fetch_list))) - 1):
            _until_compiled(self.graph, rewritten, lambda done: run(done, None))
        return _until_compiled(self.graph, rewritten, lambda done: run(done, run_metadata))

    return _do_run


@functools.cache
def _inline_options() -> Any:
    """Options that run everything on the calling thread.

    A part then starts immediately instead of waiting for one of TensorFlow's threads to wake up, and always on the same
    thread, whose workers are still awake.
    """
    return tf_session.TF_NewBufferFromString(_INLINE.SerializeToString())


def _is_empty(options: Any) -> bool:
    """True if a run has no options, or empty ones as passed by monitored sessions."""
    return options is None or not tf_session.TF_GetBuffer(options)


def _tensor(key: Any) -> Any:
    """The tensor of a feed key, which TensorFlow may have wrapped."""
    return key.deref() if hasattr(key, "deref") else key


def _iterations(operations: Iterable[Any]) -> int:
    """Number of repetitions of a run, set by `set_iteration_per_loop` on one of its targets."""
    return max((iterations_of(o) for o in operations if o.type == "NoOp"), default=1)


def _until_compiled(graph: Any, rewritten: Callable[[], Rewritten], run: Callable[[Rewritten], Any]) -> Any:
    """Run. Parts that fail to compile at run time stay on the host from the next run on.

    The host runs such a part in place. If it cannot, the whole run is repeated, unless it has side effects.
    """
    for _ in range(_ATTEMPTS):
        done = rewritten()
        try:
            result = run(done)
        except tf.errors.UnimplementedError:
            if not _learn(graph, done) or not done.repeatable:
                raise
            continue
        if done.unseen:
            _learn(graph, done)
        for part, names in done.unsized:
            rewriter_of(graph).learn(dict(zip(names, shapes_of(part), strict=False)))
        return result
    raise RuntimeError("a graph could not be divided between host and NPU: please report it with the graph")


def _learn(graph: Any, done: Rewritten) -> bool:
    """Keep parts that could not be compiled on the host; True if there are new ones."""
    reasons = {name: why for part in done.parts for name, why in refusals_of(part).items()}
    if not reasons or not rewriter_of(graph).refuse(reasons):
        return False
    _log.info("kept on the host: %s", "; ".join(f"{name} ({why})" for name, why in reasons.items()))
    return True


def run_by_callable(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make callables run the session, so that their runs are rewritten too; TensorFlow checks the fetches."""

    def make_callable(self: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Any:
        made = original(self, fetches, feed_list, accept_options)
        if feed_list is not None or not self._npu_options.offload:
            return made
        return functools.partial(self.run, fetches) if accept_options else lambda: self.run(fetches)

    return make_callable


def offloaded_callable(original: Callable[..., Any]) -> Callable[..., Any]:
    def _make_callable_from_options(self: Any, callable_options: Any) -> Any:
        if not self._npu_options.offload:
            return original(self, callable_options)
        element = self.graph.as_graph_element
        fetches = [element(name) for name in callable_options.fetch]
        targets = [element(name) for name in callable_options.target]
        fed = [element(name) for name in callable_options.feed]
        made: dict[int, Any] = {}

        def callable_of(done: Rewritten) -> Any:
            if id(done) not in made:
                options = config_pb2.CallableOptions()
                options.CopyFrom(callable_options)
                options.fetch[:] = [t.name for t in done.fetches]
                options.target[:] = [o.name for o in done.targets]
                if done.inline and options.run_options == config_pb2.RunOptions():
                    options.run_options.CopyFrom(_INLINE)
                with self._npu_state:
                    made[id(done)] = (done, original(self, options))
            return made[id(done)][1]

        def call(*feeds: Any, **named: Any) -> Any:
            return _until_compiled(
                self.graph,
                lambda: _rewritten(self, fetches, targets, fed, feeds),
                lambda done: callable_of(done)(*feeds, **named),
            )

        return call

    return _make_callable_from_options
