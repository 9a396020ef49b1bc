"""Options of sessions and run configurations that cannot be: their errors."""

import json

import tensorflow as tf

from npu_bridge.npu_init import *


def message(call):
    try:
        call()
    except (AttributeError, TypeError, ValueError, ImportError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def session(**parameters):
    config = tf.ConfigProto()
    custom = config.graph_options.rewrite_options.custom_optimizers.add(name="NpuOptimizer")
    for name, value in parameters.items():
        field = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "s"
        setattr(custom.parameter_map[name], field, value.encode() if field == "s" else value)
    return lambda: tf.Session(config=config).close()


mixed = tf.ConfigProto()
mixed.graph_options.rewrite_options.custom_optimizers.add(name="NpuOptimizer").parameter_map[
    "mix_compile_mode"
].b = True

found = {
    "unknown": message(session(precison_mode="force_fp32")),
    "type": message(session(precision_mode=True)),
    "value": message(session(precision_mode="no_such_mode")),
    "mixed_loop": message(session(mix_compile_mode=True, iterations_per_loop=4)),
    "fine": message(session(precision_mode="allow_mix_precision", hcom_parallel=True, use_off_line=True)),
    "run_config": message(lambda: NPURunConfig(save_checkpoint_step=3)),
    "mixed_repeats": message(lambda: util.set_iteration_per_loop(tf.Session(config=mixed), tf.no_op(), 4)),
    "profile": message(session(profiling_mode=True, profiling_options="{")),
    "lacking": message(lambda: npu_cube_ops.deformable_conv2d(None)),
    "scale": message(lambda: FixedLossScaleManager(0.5)),
    "keep_prob": message(lambda: npu_ops.dropout(tf.ones([3]), 1.5)),
}
print(json.dumps(found))
