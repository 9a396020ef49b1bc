"""The names of `from npu_bridge.npu_init import *`; importing it makes sessions offload."""

# ruff: noqa: E402, F401  (v2 behaviour must be off before anything else looks at TensorFlow)
from __future__ import annotations

from npu_bridge.version1 import disable_v2_behavior, tensorflow_v1

disable_v2_behavior()

from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from hccl.manage.api import (
    create_group,
    destroy_group,
    get_local_rank_id,
    get_local_rank_size,
    get_rank_id,
    get_rank_size,
)
from hccl.split.api import set_split_strategy_by_idx, set_split_strategy_by_size
from npu_bridge.compatibility import patch_sessions as _patch_sessions
from npu_bridge.estimator import npu_cube_ops, npu_ops, npu_unary_ops
from npu_bridge.estimator.npu import npu_scope, util
from npu_bridge.estimator.npu.npu_dynamic_rnn import DynamicGRUV2, DynamicRNN
from npu_bridge.estimator.npu.npu_hook import (
    NPUBroadcastGlobalVariablesHook,
    NPUCheckpointSaverHook,
    NPUOutputTensorHook,
)
from npu_bridge.estimator.npu.npu_loss_scale_manager import (
    ExponentialUpdateLossScaleManager,
    FixedLossScaleManager,
)
from npu_bridge.estimator.npu.npu_loss_scale_optimizer import NPULossScaleOptimizer
from npu_bridge.estimator.npu.npu_optimizer import (
    KerasDistributeOptimizer,
    NPUDistributedOptimizer,
    NPUOptimizer,
    npu_distributed_optimizer_wrapper,
    npu_keras_optimizer,
    npu_tf_optimizer,
)
from npu_bridge.hccl import hccl_ops
from npu_bridge.helpers import (
    close_session,
    get_npu_local_rank_id,
    get_npu_rank_id,
    get_npu_rank_size,
    init_resource,
    npu_callbacks_append,
    npu_clear_session,
    npu_config_proto,
    npu_graph_options,
    npu_hooks_append,
    npu_optimizer_options,
    npu_run_config_init,
    set_keras_session_npu_config,
    shutdown_resource,
)
from npu_bridge.lazy import estimator_names

tf = tensorflow_v1()
_patch_sessions()

globals().update(estimator_names())

_OURS = ("annotations", "estimator_names", "disable_v2_behavior", "tensorflow_v1")
__all__ = [name for name in list(globals()) if not name.startswith("_") and name not in _OURS]
