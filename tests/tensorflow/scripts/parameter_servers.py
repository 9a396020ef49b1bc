"""Training with a `ParameterServerStrategy`; prints what it computes as JSON.

The first argument says where: `alone` (TensorFlow's CPU, no cluster), `here` (two workers and two parameter servers in
this process) or `cluster` (servers of their own, which TF_CONFIG names). A process that TF_CONFIG calls a worker or a
parameter server serves until it is killed; a second argument is a folder where it says how much its NPU ran.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_adapter
from npu_bridge.launch import reserved_port
from npu_runtime import tensorflow as native

BATCH, WORDS, WIDTH = 8, 12, 6
STEPS = 12
RNG = np.random.default_rng(0)
TABLE, HIDDEN, LAST = (
    RNG.standard_normal(shape).astype(np.float32) / 2 for shape in ((WORDS, WIDTH), (WIDTH, 8), (8, 1))
)
ROWS = RNG.integers(0, WORDS, (STEPS, BATCH, 3))
TARGETS = RNG.standard_normal((STEPS, BATCH, 1)).astype(np.float32)


def serve(given: Any, folder: str) -> None:
    """Run a server, and write how often its NPU ran."""
    server = tf.distribute.Server(
        given.cluster_spec(), job_name=given.task_type, task_index=given.task_id, protocol="grpc"
    )
    native.set_timeline(True)

    def report() -> None:
        path, count = Path(folder) / f"{given.task_type}{given.task_id}", 0
        while True:
            count += sum(on_npu for _, on_npu, *_ in native.take_timeline())
            written = path.with_suffix(".new")
            written.write_text(str(count))
            written.replace(path)  # whoever reads it finds a whole number
            time.sleep(0.05)

    threading.Thread(target=report, daemon=True).start()
    server.join()


def servers_of_this_process(stack: ExitStack) -> Any:
    """The resolver of a cluster whose servers all run here."""
    names = {"worker": 2, "ps": 2}
    ports = {
        job: [f"localhost:{stack.enter_context(reserved_port())}" for _ in range(n)]
        for job, n in names.items()
    }
    cluster = tf.train.ClusterSpec(ports)
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=4)  # TensorFlow waits in them for others
    for job, count in names.items():
        for task in range(count):
            tf.distribute.Server(cluster, job_name=job, task_index=task, protocol="grpc", config=config)
    return tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")


def shards(variable: Any) -> list[Any]:
    """The parts of a variable that parameter servers keep."""
    return list(getattr(variable, "variables", [variable]))


def step_of(strategy: Any, weights: list[Any], momenta: list[Any]) -> Any:
    """A step that trains an embedding and two layers."""

    def replica(rows: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            table, hidden, last = (tf.concat(shards(weight), 0) for weight in weights)
            found = tf.reduce_mean(tf.gather(table, rows), 1)
            loss = tf.reduce_mean(tf.square(tf.tanh(found @ hidden) @ last - targets))
        trained, states = ([v for w in given for v in shards(w)] for given in (weights, momenta))
        for weight, momentum, gradient in zip(trained, states, tape.gradient(loss, trained), strict=True):
            momentum.assign(0.9 * momentum + gradient)
            weight.assign_sub(0.1 * momentum)
        return loss

    return tf.function(lambda rows, targets: strategy.run(replica, args=(rows, targets)))


def custom_loop(coordinator: Any, strategy: Any) -> dict[str, Any]:
    """Steps that are scheduled one after the other: their losses, and the weights in the end."""
    with strategy.scope():
        weights = [tf.Variable(value) for value in (TABLE, HIDDEN, LAST)]
        momenta = [tf.Variable(np.zeros_like(value)) for value in (TABLE, HIDDEN, LAST)]
    step, losses = step_of(strategy, weights, momenta), []
    for rows, targets in zip(ROWS, TARGETS, strict=True):
        given = tf.constant(rows), tf.constant(targets)
        if coordinator is None:
            losses.append(float(step(*given)))
            continue
        loss = coordinator.schedule(step, args=given)
        coordinator.join()
        losses.append(float(coordinator.fetch(loss)))
    return {
        "losses": losses,
        "weights": [np.concatenate([v.numpy() for v in shards(w)]).tolist() for w in weights],
    }


def scheduled(coordinator: Any, strategy: Any, enough: Path | None) -> dict[str, Any]:
    """Steps that workers run at the same time, each with a data set of its own, until there is a file."""
    with strategy.scope():
        weight = tf.Variable(tf.zeros([WIDTH, WIDTH]))
        steps = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def step(iterator: Any) -> Any:
        def replica(x: Any) -> Any:
            weight.assign_add(tf.tanh(x @ tf.eye(WIDTH)))
            steps.assign_add(1)
            return tf.reduce_sum(x)

        return strategy.run(replica, args=(next(iterator),))

    def rows() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(tf.ones([WIDTH, WIDTH])).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(rows))
    results: list[Any] = []
    while len(results) < 60 or (enough is not None and not enough.exists()):
        results += [coordinator.schedule(step, args=(iterator,)) for _ in range(20)]
        coordinator.join()
        print(f"{len(results)} steps", flush=True)
    sums = {float(coordinator.fetch(result)) for result in results[-20:]}
    each = np.unique(np.concatenate([v.numpy() for v in shards(weight)]) / np.tanh(1.0)).round(3).tolist()
    return {"sums": sorted(sums), "each": each, "steps": int(steps.numpy()), "scheduled": len(results)}


def fitted(strategy: Any) -> dict[str, Any]:
    """Losses of Keras 2's `fit`; Keras 3 has none over servers."""
    with strategy.scope():
        layers, start = tf.keras.layers, tf.keras.initializers.Constant(0.1)
        hidden = layers.Dense(8, "tanh", kernel_initializer=start)
        model = tf.keras.Sequential(
            [layers.Input((WIDTH,)), hidden, layers.Dense(1, kernel_initializer=start)]
        )
        model.compile(tf.keras.optimizers.Adam(0.01), "mse", steps_per_execution=4)
    rows = np.ones([4, WIDTH], np.float32)
    data = tf.data.Dataset.from_tensors((rows, rows[:, :1])).repeat()
    return {"losses": model.fit(data, epochs=3, steps_per_epoch=4, verbose=0).history["loss"]}


def main(where: str, folder: str = "") -> None:
    given = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if where == "cluster" and given.task_type in ("worker", "ps"):
        serve(given, folder)
        return
    with ExitStack() as stack:
        coordinator, strategy = None, tf.distribute.get_strategy()
        if where == "alone":
            tf_adapter.as_default(False)
        else:
            resolver = given if where == "cluster" else servers_of_this_process(stack)
            partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
            strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
            coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        native.set_timeline(True)
        found = {"loop": custom_loop(coordinator, strategy)}
        if tf.__version__ < "2.16":
            found["fit"] = fitted(strategy)
        if coordinator is not None:
            found["scheduled"] = scheduled(coordinator, strategy, Path(folder) / "enough" if folder else None)
        found["runs"] = sum(on_npu for _, on_npu, *_ in native.take_timeline())
    print(json.dumps(found))


main(*sys.argv[1:])
