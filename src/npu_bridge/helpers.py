"""Helpers that porting tools insert into scripts: adapt configurations, hooks, callbacks and sessions to the NPU."""

from __future__ import annotations

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from hccl.manage.api import get_rank_size
from npu_bridge.estimator.npu.npu_hook import NPUBroadcastGlobalVariablesHook
from npu_bridge.options import configured

__all__ = [
    "close_session",
    "get_npu_local_rank_id",
    "get_npu_rank_id",
    "get_npu_rank_size",
    "init_resource",
    "npu_callbacks_append",
    "npu_clear_session",
    "npu_config_proto",
    "npu_graph_options",
    "npu_hooks_append",
    "npu_optimizer_options",
    "npu_run_config_init",
    "set_keras_session_npu_config",
    "shutdown_resource",
]


def npu_config_proto(config_proto: Any = None) -> Any:
    """Add the NPU's optimizer to a session configuration and disable conflicting grappler passes."""
    config = configured(config_proto if isinstance(config_proto, config_pb2.ConfigProto) else None, {})
    config.graph_options.CopyFrom(npu_graph_options(config.graph_options))
    return config


def npu_graph_options(graph_options: Any = None) -> Any:
    """Disable remapping and memory optimization in graph options."""
    options = config_pb2.GraphOptions()
    if graph_options is not None:
        options.CopyFrom(graph_options)
    options.rewrite_options.remapping = RewriterConfig.OFF
    options.rewrite_options.memory_optimization = RewriterConfig.OFF
    return options


def npu_optimizer_options(optimizer_options: Any = None) -> Any:
    """Disable TensorFlow's own just-in-time compilation in optimizer options."""
    options = config_pb2.OptimizerOptions()
    if optimizer_options is not None:
        options.CopyFrom(optimizer_options)
    options.global_jit_level = config_pb2.OptimizerOptions.OFF
    return options


def npu_run_config_init(run_config: Any = None) -> Any:
    """A RunConfig for an Estimator whose sessions run on the NPU."""
    config = run_config if isinstance(run_config, tf.estimator.RunConfig) else tf.estimator.RunConfig()
    return config.replace(session_config=npu_config_proto(config.session_config))


def npu_hooks_append(hooks_list: Any = None) -> list[Any]:
    """Add the broadcast of variables to hooks if there are several ranks."""
    hooks = list(hooks_list or [])
    return [*hooks, NPUBroadcastGlobalVariablesHook(0)] if get_rank_size() > 1 else hooks


def npu_callbacks_append(callbacks_list: Any = None) -> list[Any]:
    """Add the broadcast of variables to callbacks if there are several ranks."""
    from npu_bridge.estimator.npu.npu_callbacks import NPUBroadcastGlobalVariablesCallback

    callbacks = list(callbacks_list or [])
    return [*callbacks, NPUBroadcastGlobalVariablesCallback(0)] if get_rank_size() > 1 else callbacks


def set_keras_session_npu_config(config: Any = None) -> Any:
    """Make Keras use a session on the NPU; returns the session."""
    session = tf.Session(config=npu_config_proto(config))
    tf.keras.backend.set_session(session)
    return session


def npu_clear_session(config: Any = None) -> None:
    """Reset Keras to a new session on the NPU."""
    tf.keras.backend.clear_session()
    set_keras_session_npu_config(config)


def init_resource(config: Any = None) -> tuple[Any, Any]:
    """Initialise the device; returns a session for `shutdown_resource`, and the shutdown operation."""
    graph = tf.Graph()
    with graph.as_default():
        shutdown = tf.no_op(name="npu_shutdown")
    return tf.Session(graph=graph, config=npu_config_proto(config)), shutdown


def shutdown_resource(sess: Any, shutdown_op: Any) -> None:
    """Shut down after `init_resource`."""
    sess.run(shutdown_op)


def close_session(sess: Any) -> None:
    """Close a session."""
    sess.close()


def get_npu_rank_size() -> int:
    """Number of ranks."""
    return get_rank_size()


def get_npu_rank_id() -> int:
    """This process's rank."""
    from hccl.manage.api import get_rank_id

    return get_rank_id()


def get_npu_local_rank_id() -> int:
    """This process's rank on its machine."""
    from hccl.manage.api import get_local_rank_id

    return get_local_rank_id()
