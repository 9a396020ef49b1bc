"""The names and options that public ported scripts use: what of them is missing, and what is said about it."""

import importlib
import json
from pathlib import Path

import tensorflow as tf

from npu_bridge.npu_init import *

STAR = """
    tf RewriterConfig npu_config_proto close_session init_resource shutdown_resource NPULossScaleOptimizer
    NPUDistributedOptimizer ExponentialUpdateLossScaleManager FixedLossScaleManager npu_tf_optimizer
    npu_distributed_optimizer_wrapper NPUOptimizer npu_keras_optimizer KerasDistributeOptimizer npu_hooks_append
    npu_run_config_init NPUBroadcastGlobalVariablesHook set_keras_session_npu_config npu_callbacks_append
    npu_ops.dropout npu_ops.initialize_system npu_ops.shutdown_system npu_ops.LARS npu_unary_ops.gelu
    npu_unary_ops.npu_unary_ops.gelu npu_cube_ops.deformable_conv2d hccl_ops.broadcast hccl_ops.allreduce
    hccl_ops.allgather get_rank_id get_rank_size get_local_rank_id get_npu_rank_size set_split_strategy_by_idx
    set_split_strategy_by_size create_group npu_scope.without_npu_compile_scope npu_scope.keep_dtype_scope
    npu_scope.npu_variable_scope util.set_iteration_per_loop npu_graph_options DynamicRNN NPURunConfig NPUEstimator
    NPUEstimatorSpec DumpConfig ProfilingConfig NPUBroadcastGlobalVariablesCallback npu_strategy.NPUStrategy
    keras_to_npu.model_to_npu_estimator
"""
ESTIMATOR = "npu_bridge.estimator.npu"
MODULES = {
    f"{ESTIMATOR}.npu_config": "NPURunConfig ProfilingConfig DumpConfig",
    f"{ESTIMATOR}.npu_estimator": "NPUEstimator NPUEstimatorSpec",
    f"{ESTIMATOR}.npu_optimizer": "NPUDistributedOptimizer NPUOptimizer npu_tf_optimizer",
    f"{ESTIMATOR}.npu_loss_scale_optimizer": "NPULossScaleOptimizer",
    f"{ESTIMATOR}.npu_loss_scale_manager": "FixedLossScaleManager ExponentialUpdateLossScaleManager",
    f"{ESTIMATOR}.npu_hook": "NPUBroadcastGlobalVariablesHook",
    f"{ESTIMATOR}.npu_callbacks": "NPUBroadcastGlobalVariablesCallback",
    f"{ESTIMATOR}.npu_strategy": "NPUStrategy",
    f"{ESTIMATOR}.keras_to_npu": "model_to_npu_estimator",
    f"{ESTIMATOR}.npu_dynamic_rnn": "DynamicRNN",
    f"{ESTIMATOR}.npu_scope": "without_npu_compile_scope keep_dtype_scope npu_variable_scope",
    f"{ESTIMATOR}.util": "set_iteration_per_loop",
    "npu_bridge.estimator.npu_ops": "dropout initialize_system shutdown_system LARS",
    "npu_bridge.estimator.npu_unary_ops": "npu_unary_ops gelu",
    "npu_bridge.hccl.hccl_ops": "broadcast allreduce allgather",
    "hccl.manage.api": "get_rank_id get_rank_size get_local_rank_id create_group",
    "hccl.split.api": "set_split_strategy_by_idx set_split_strategy_by_size",
}
GIBIBYTES = str(16 << 30)
PARAMETERS = {
    "precision_mode": "allow_mix_precision", "use_off_line": True, "dynamic_input": True,
    "dynamic_graph_execute_mode": "lazy_recompile", "enable_data_pre_proc": True, "dump_path": "dumps",
    "graph_run_mode": 0, "enable_dump_debug": False, "dump_debug_mode": "all", "profiling_mode": False,
    "profiling_options": '{"output": "profile"}', "hcom_parallel": True, "mix_compile_mode": True,
    "enable_dump": False, "dump_step": "0|5", "dump_mode": "all", "auto_tune_mode": "RL,GA",
    "modify_mixlist": "mix.json", "iterations_per_loop": 1, "graph_memory_max_size": GIBIBYTES,
    "variable_memory_max_size": GIBIBYTES, "fusion_switch_file": "fusion.cfg", "customize_dtypes": "types.cfg",
    "min_group_size": 1, "op_debug_level": 0, "dynamic_inputs_shape_range": "getnext:[128,3~5,-1]",
    "jit_compile": True, "op_select_implmode": "high_precision",
}  # fmt: skip
Path("dumps").mkdir()
Path("mix.json").write_text('{"black-list": {"to-add": ["Softmax"]}}')
Path("fusion.cfg").write_text('{"Switch": {"GraphFusion": {"ALL": "on"}}}')
Path("types.cfg").write_text("")
lacking = {}


def attempt(what, call):
    try:
        call()
    except Exception as error:
        lacking[what] = f"{type(error).__name__}: {error}"


def look_up(name):
    first, *rest = name.split(".")
    found = globals()[first]
    for part in rest:
        found = getattr(found, part)


def load(module, names):
    loaded = importlib.import_module(module)
    for name in names.split():
        getattr(loaded, name)


def run_with(name, value):
    config = tf.ConfigProto()
    custom = config.graph_options.rewrite_options.custom_optimizers.add(name="NpuOptimizer")
    kind = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "s"
    setattr(custom.parameter_map[name], kind, value.encode() if kind == "s" else value)
    with tf.Session(config=config) as sess:
        assert sess.run(total) == 6.0


total = tf.reduce_sum(tf.constant([1.0, 2.0, 3.0]))
for name in STAR.split():
    attempt(name, lambda name=name: look_up(name))
for module, names in MODULES.items():
    attempt(module, lambda module=module, names=names: load(module, names))
for name, value in PARAMETERS.items():
    attempt(name, lambda name=name, value=value: run_with(name, value))
if hasattr(tf, "estimator"):
    options = {
        "save_checkpoints_steps": 10, "session_config": tf.ConfigProto(), "model_dir": "model",
        "precision_mode": "allow_mix_precision", "iterations_per_loop": 1, "keep_checkpoint_max": 2,
        "hcom_parallel": True, "enable_data_pre_proc": True, "log_step_count_steps": 5, "save_summary_steps": 5,
        "dump_config": DumpConfig(enable_dump=False), "tf_random_seed": 1,
        "profiling_config": ProfilingConfig(enable_profiling=False), "auto_tune_mode": None,
    }  # fmt: skip
    for name, value in options.items():
        attempt(f"NPURunConfig({name})", lambda name=name, value=value: NPURunConfig(**{name: value}))
print(json.dumps(lacking))
