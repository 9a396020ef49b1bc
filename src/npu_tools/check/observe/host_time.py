"""Time of host operators and input in a session run, from TensorFlow's trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["HostTime", "traced"]

_NPU = "NpuGraph"
_INPUT = ("Iterator", "Dataset", "Queue", "Reader", "MakeIterator")
_FREE = ("_Arg", "_Retval", "_Send", "_Recv", "_HostSend", "_HostRecv", "NoOp", "Const", "unknown")


@dataclass(frozen=True)
class HostTime:
    """Seconds of one step."""

    host: float = 0.0
    input: float = 0.0


def traced(original: Callable[..., Any], graph: Any) -> Callable[..., tuple[Any, HostTime]]:
    """Like `Session.run`, but also returns the time of the host's operators."""
    import tensorflow.compat.v1 as tf

    def run(
        session: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> tuple[Any, HostTime]:
        wanted = tf.RunOptions()
        if options is not None:
            wanted.CopyFrom(options)
        wanted.trace_level = max(wanted.trace_level, tf.RunOptions.SOFTWARE_TRACE)
        metadata = tf.RunMetadata() if run_metadata is None else run_metadata
        result = original(session, fetches, feed_dict, wanted, metadata)
        types = {operation.name: operation.type for operation in graph.get_operations()}
        return result, host_time(
            (types.get(node.node_name, "unknown"), node.op_end_rel_micros - node.op_start_rel_micros)
            for device in metadata.step_stats.dev_stats
            for node in device.node_stats
        )

    return run


def host_time(nodes: Iterable[tuple[str, int]]) -> HostTime:
    """Sum the time of the host's operators from (type, microseconds) pairs.

    >>> host_time([("NpuGraph", 900), ("IteratorGetNext", 200), ("StringJoin", 50), ("NoOp", 3)])
    HostTime(host=5e-05, input=0.0002)
    """
    host = total = 0
    for kind, micros in nodes:
        if kind == _NPU or kind in _FREE:
            continue
        is_input = any(word in kind for word in _INPUT)
        total += micros if is_input else 0
        host += 0 if is_input else micros
    return HostTime(host / 1e6, total / 1e6)
