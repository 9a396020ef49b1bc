"""What porting tools put into scripts: configurations, hooks, callbacks and sessions made fit for the NPU."""

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
    """A session configuration with the NPU's optimizer in it, and the grappler passes off that fight with it."""
    config = configured(config_proto if isinstance(config_proto, config_pb2.ConfigProto) else None, {})
    config.graph_options.CopyFrom(npu_graph_options(config.graph_options))
    return config


def npu_graph_options(graph_options: Any = None) -> Any:
    """Graph options with remapping and memory optimization off."""
    options = config_pb2.GraphOptions()
    if graph_options is not None:
        options.CopyFrom(graph_options)
    options.rewrite_options.remapping = RewriterConfig.OFF
    options.rewrite_options.memory_optimization = RewriterConfig.OFF
    return options


def npu_optimizer_options(optimizer_options: Any = None) -> Any:
    """Optimizer options with TensorFlow's own just-in-time compilation off."""
    options = config_pb2.OptimizerOptions()
    if optimizer_options is not None:
        options.CopyFrom(optimizer_options)
    options.global_jit_level = config_pb2.OptimizerOptions.OFF
    return options


def npu_run_config_init(run_config: Any = None) -> Any:
    """An Estimator's RunConfig whose sessions run on the NPU."""
    config = run_config if isinstance(run_config, tf.estimator.RunConfig) else tf.estimator.RunConfig()
    return config.replace(session_config=npu_config_proto(config.session_config))


def npu_hooks_append(hooks_list: Any = None) -> list[Any]:
    """Hooks with the broadcast of variables among them when there are several ranks."""
    hooks = list(hooks_list or [])
    return [*hooks, NPUBroadcastGlobalVariablesHook(0)] if get_rank_size() > 1 else hooks


def npu_callbacks_append(callbacks_list: Any = None) -> list[Any]:
    """Callbacks with the broadcast of variables among them when there are several ranks."""
    from npu_bridge.estimator.npu.npu_callbacks import NPUBroadcastGlobalVariablesCallback

    callbacks = list(callbacks_list or [])
    return [*callbacks, NPUBroadcastGlobalVariablesCallback(0)] if get_rank_size() > 1 else callbacks


def set_keras_session_npu_config(config: Any = None) -> Any:
    """Make Keras use a session on the NPU; returns the session."""
    session = tf.Session(config=npu_config_proto(config))
    tf.keras.backend.set_session(session)
    return session


def npu_clear_session(config: Any = None) -> None:
    """Start Keras anew, on the NPU."""
    tf.keras.backend.clear_session()
    set_keras_session_npu_config(config)


def init_resource(config: Any = None) -> tuple[Any, Any]:
    """Prepare the device; returns a session to hand to `shutdown_resource`, and the operation that ends it."""
    graph = tf.Graph()
    with graph.as_default():
        shutdown = tf.no_op(name="npu_shutdown")
    return tf.Session(graph=graph, config=npu_config_proto(config)), shutdown


def shutdown_resource(sess: Any, shutdown_op: Any) -> None:
    """End what `init_resource` prepared."""
    sess.run(shutdown_op)


def close_session(sess: Any) -> None:
    """Close a session."""
    sess.close()


def get_npu_rank_size() -> int:
    """How many ranks there are."""
    return get_rank_size()


def get_npu_rank_id() -> int:
    """This process's rank."""
    from hccl.manage.api import get_rank_id

    return get_rank_id()


def get_npu_local_rank_id() -> int:
    """This process's rank on its machine."""
    from hccl.manage.api import get_local_rank_id

    return get_local_rank_id()
