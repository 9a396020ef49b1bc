"""What porting tools put around a script's own sessions, optimizers and hooks: the same losses as without it."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf

from npu_bridge.npu_init import *
from npu_bridge.session import partition_report

data = np.random.default_rng(0).normal(size=(16, 6)).astype("f")
adam = tf.train.AdamOptimizer
OPTIMIZERS = {
    "plain": lambda: adam(0.05),
    "npu_tf_optimizer": lambda: npu_tf_optimizer(adam(0.05)),
    "NPUDistributedOptimizer": lambda: NPUDistributedOptimizer(adam(0.05)),
    "wrapper": lambda: npu_distributed_optimizer_wrapper(adam(0.05)),
    "fixed": lambda: NPULossScaleOptimizer(adam(0.05), FixedLossScaleManager(1024.0)),
    "unchecked": lambda: NPULossScaleOptimizer(
        adam(0.05), FixedLossScaleManager(8.0, enable_overflow_check=False)
    ),
    "NPUOptimizer": lambda: NPUOptimizer(
        adam(0.05), ExponentialUpdateLossScaleManager(2.0**15, 1000), is_distributed=True, is_loss_scale=True
    ),
}


def network():
    x = tf.placeholder(tf.float32, [None, 6])
    with npu_scope.npu_variable_scope("host"):
        w = tf.get_variable("w", [6, 3], initializer=tf.random_normal_initializer(seed=1))
    return x, tf.reduce_mean(tf.square(npu_unary_ops.gelu(tf.matmul(x, w)) - 1.0))


def host_config():
    config = npu_config_proto()
    config.graph_options.rewrite_options.custom_optimizers[0].parameter_map["use_off_line"].b = False
    return config


def losses(name, config=None):
    with tf.Graph().as_default():
        x, loss = network()
        update = OPTIMIZERS[name]().minimize(loss, global_step=tf.train.get_or_create_global_step())
        with tf.Session(config=config) as sess:  # after the star import sessions need no configuration
            sess.run(tf.global_variables_initializer())
            found = [float(sess.run([loss, update], {x: data})[0]) for _ in range(5)]
            report = partition_report(sess, [loss, update], [x])
            kept = [p.type for p in report.operations if p.type.startswith("ApplyAdam") and p.side != "npu"]
            return {"losses": found, "kept": kept, "parts": report.parts}


def scales():
    """The loss scale of each step, and whether the weights moved, when some gradients are infinite."""
    with tf.Graph().as_default():
        factor = tf.placeholder(tf.float32, [])
        v = tf.get_variable("v", [], initializer=tf.ones_initializer())
        manager = ExponentialUpdateLossScaleManager(16.0, 2, decr_every_n_nan_or_inf=2, decr_ratio=0.5)
        update = NPULossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), manager).minimize(v * factor)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            found = []
            for value in (1.0, 1.0, np.inf, 1.0, np.nan, np.inf, 1.0):
                sess.run(update, {factor: value})
                found.append([float(n) for n in sess.run([manager.get_loss_scale(), v])])
            return found


class Seen(tf.train.SessionRunHook):
    """Counts runs and keeps what it asked for."""

    def __init__(self, tensor):
        self.tensor, self.values, self.ended = tensor, [], False

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.tensor)

    def after_run(self, run_context, run_values):
        self.values.append(float(run_values.results))

    def end(self, session):
        self.ended = True


def monitored():
    """A monitored session with hooks of all kinds, begun again from its checkpoint."""
    folder, found = Path("monitored"), []
    for last in (3, 5):
        with tf.Graph().as_default():
            x, loss = network()
            step = tf.train.get_or_create_global_step()
            update = adam(0.05).minimize(loss, global_step=step)
            seen = Seen(loss)
            hooks = npu_hooks_append(
                [seen, tf.train.StopAtStepHook(last_step=last), NPUBroadcastGlobalVariablesHook(0)]
            )
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(folder), hooks=hooks, config=npu_config_proto(), save_checkpoint_steps=1
            ) as sess:
                while not sess.should_stop():
                    sess.run(update, {x: data})
            found += seen.values
            assert seen.ended
    return found


def collectives():
    """One process is the world; the system's operations and sessions of its own do nothing wrong."""
    with tf.Graph().as_default():
        a = tf.constant([1.0, 2.0])
        results = [hccl_ops.allreduce(a, "sum"), *hccl_ops.broadcast([a], 0), hccl_ops.allgather(a, 1)]
        own, shutdown = init_resource()
        with tf.Session() as sess:
            sess.run(npu_ops.initialize_system())
            values = [v.tolist() for v in sess.run(results)]
            sess.run(npu_ops.shutdown_system())
        shutdown_resource(own, shutdown)
        close_session(own)
        return values


def operators():
    """Operators of npu_ops beside NumPy."""
    with tf.Graph().as_default():
        w, g = data[:4], data[4:8]
        scaled = npu_ops.LARS([tf.constant(w)], [tf.constant(g)], 0.01)[0]
        dropped = npu_ops.dropout(tf.ones([2000]), 0.75, seed=3)
        with tf.Session() as sess:
            ours, mask = sess.run([scaled, dropped])
        norms = np.linalg.norm(w), np.linalg.norm(g)
        rate = 0.001 * norms[0] / (norms[1] + 0.01 * norms[0] + 1e-5)
        expected = (g + 0.01 * w) * rate
        return {
            "lars": float(np.abs(ours / expected - 1).max()),
            "kept": float((mask > 0).mean()),
            "scale": float(mask.max()),
        }


def strategy():
    with tf.Graph().as_default(), npu_strategy.NPUStrategy().scope():
        v = tf.get_variable("v", initializer=np.float32(2.0))
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            return float(sess.run(v * 3.0))


def dumped():
    """Profiles and dumps of a session's own."""
    with tf.Graph().as_default():
        x, loss = network()
        config = tf.ConfigProto()
        parameters = config.graph_options.rewrite_options.custom_optimizers.add(
            name="NpuOptimizer"
        ).parameter_map
        parameters["enable_dump"].b = True
        parameters["dump_path"].s = b"dumps"
        parameters["profiling_mode"].b = True
        parameters["profiling_options"].s = b'{"output": "profile"}'
        Path("dumps").mkdir()
        with tf.Session(config=config) as sess:
            sess.run(tf.global_variables_initializer())
            value = sess.run(loss, {x: data})
        arrays = [np.load(path) for path in Path("dumps").rglob("*.output.0.npy")]
        profiles = len(list(Path("profile").rglob("*")))
        return [sum(a.size == 1 and float(a.reshape(())) == float(value) for a in arrays), profiles]


found = {name: losses(name) for name in OPTIMIZERS}
print(
    json.dumps(
        {
            "trained": found,
            "reference": losses("plain", host_config())["losses"],
            "scales": scales(),
            "monitored": monitored(),
            "collectives": collectives(),
            "operators": operators(),
            "strategy": strategy(),
            "run_config": bool(
                not hasattr(tf, "estimator")
                or npu_run_config_init().session_config.graph_options.rewrite_options.custom_optimizers
            ),
            "dumped": dumped(),
        }
    )
)
