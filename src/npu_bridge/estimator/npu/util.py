"""Helpers for sessions."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow.compat.v1 as tf

__all__ = [
    "create_iteration_per_loop_var",
    "load_iteration_per_loop_var",
    "set_graph_exec_config",
    "set_iteration_per_loop",
    "variable_initializer_in_host",
]

_iterations: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def set_iteration_per_loop(sess: Any, train_op: Any, iterations_per_loop: int = 1) -> Any:
    """An operation that runs `train_op` this many times in one `sess.run`.

    train_op = util.set_iteration_per_loop(sess, train_op, 10)
    """
    _check_session(sess, iterations_per_loop)
    return repeated(train_op, iterations_per_loop)


def create_iteration_per_loop_var(train_op: Any) -> Any:
    """An operation that runs `train_op` as often as set by `load_iteration_per_loop_var`."""
    return repeated(train_op, 1)


def load_iteration_per_loop_var(sess: Any, train_op: Any, iterations_per_loop: int = 1) -> None:
    """Set how often an operation of `create_iteration_per_loop_var` runs, starting with the next run."""
    _check_session(sess, iterations_per_loop)
    _check(iterations_per_loop)
    _iterations[_operation(train_op)] = iterations_per_loop


def repeated(train_op: Any, iterations: int) -> Any:
    """Mark an operation to run several times per call."""
    _check(iterations)
    operation = _operation(train_op)
    with operation.graph.as_default(), tf.control_dependencies([operation]):
        marked = tf.no_op(name=f"{operation.name}/iterations")
    _iterations[marked] = iterations
    return marked


def iterations_of(operation: Any) -> int:
    """Number of times an operation runs per session call."""
    return _iterations.get(operation, 1)


def set_graph_exec_config(
    fetch: Any,
    dynamic_input: bool = False,
    dynamic_graph_execute_mode: str = "dynamic_execute",
    dynamic_inputs_shape_range: str | None = None,
    is_train_graph: bool = False,
    experimental_config: Any = None,
) -> Any:
    """Execution mode of graphs with dynamic shapes; no effect, since models are compiled for the actual shapes."""
    del (
        dynamic_input,
        dynamic_graph_execute_mode,
        dynamic_inputs_shape_range,
        is_train_graph,
        experimental_config,
    )
    return fetch


def variable_initializer_in_host(var_list: Any) -> Any:
    """An initializer of variables on the host; host and device share memory."""
    return tf.initializers.variables(var_list)


def _check_session(sess: Any, iterations: int) -> None:
    options = getattr(sess, "_npu_options", None)
    if options is not None and options.mixed and iterations > 1:
        raise ValueError(
            f"iterations_per_loop={iterations} cannot be used with mix_compile_mode: host operators run once per "
            "sess.run; leave iterations_per_loop at 1 or switch mix_compile_mode off"
        )


def _operation(fetch: Any) -> Any:
    if isinstance(fetch, tf.Tensor):
        return fetch.op
    if isinstance(fetch, tf.Operation):
        return fetch
    raise ValueError(f"train_op must be an operation or a tensor, not {type(fetch).__name__}")


def _check(iterations: int) -> None:
    if not isinstance(iterations, int) or iterations < 1:
        raise ValueError(f"iterations_per_loop must be a positive integer, not {iterations!r}")
