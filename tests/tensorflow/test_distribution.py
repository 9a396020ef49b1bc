"""Strategies over several NPUs compute what one NPU and TensorFlow's own logical CPUs compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf_adapter  # noqa: F401
from npu_bridge.launch import reserved_port

SCRIPTS = Path(__file__).parent / "scripts"


def results(folder: Path, devices: int, kind: str, *programs: str) -> dict[str, list[float]]:
    """What the programs of the script compute; one that raises fails the test."""
    path = folder / f"{kind}{devices}.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "mirrored.py"), str(path), str(devices), kind, *programs],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "NPU_DEVICE_COUNT": str(devices)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(path.read_text())
    for name, values in found.items():
        assert isinstance(values, list), f"{name}: {values}"
    return found


def test_training_on_npus_is_training_on_two_cpus(tmp_path: Path) -> None:
    programs = ("fit", "custom_loop", "variables_of_the_first_call")
    ours, theirs = (results(tmp_path, 2, kind, *programs) for kind in ("NPU", "CPU"))
    for name in programs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_weight_decay_leaves_updates_divided() -> None:
    one, two = (on_npus(DECAYED, npus) for npus in (1, 2))
    assert two[0] == "0", "TensorFlow runs operators for the variables of a step"
    numbers = [np.array([float(v) for v in lines[1].split()]) for lines in (one, two)]
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-5)


def test_checkpoints_continue_on_another_number_of_npus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path))
    assert on_npus(RESTORED, 2) == ["True True"]


@pytest.mark.slow
def test_four_npus_compute_what_one_computes(tmp_path: Path) -> None:
    one, four = (results(tmp_path, devices, "NPU") for devices in (1, 4))
    assert len(one) > 10
    for name, values in one.items():
        np.testing.assert_allclose(four[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


PLACES = """
import threading
import tensorflow as tf
import tf_adapter

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    weights, sums = (tf.Variable(tf.ones([4, 4]) / 8) for _ in range(2))
rows = strategy.experimental_distribute_values_from_function(
    lambda given: tf.ones([2, 4]) * (1.0 + given.replica_id_in_sync_group)
)

def replica(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.tanh(x @ weights))
    gradient = tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weights))
    sums.assign(0.9 * sums + gradient)
    weights.assign_sub(0.1 * sums)
    return loss

@tf.function
def step():
    return strategy.run(replica, args=(rows,))

earlier = [v.read_value() for v in weights.values]
losses = strategy.experimental_local_results(step())
assert all((v.numpy() == 1 / 8).all() for v in earlier), "values that were read before the step have changed"
print(" ".join(loss.device[-5:] for loss in losses))
print(" ".join(tf_adapter.explain(step).steps))
first, second = (v.numpy().tobytes() for v in weights.values)
print(first == second)
"""

# Variables are written in place: who reads them before or after, and who assigns them, must not notice.
WRITTEN = """
import tensorflow as tf
import tf_adapter
from npu_runtime import tensorflow as native

strategy = tf.distribute.MirroredStrategy()

def training(count):
    with strategy.scope():
        weights = [tf.Variable(tf.ones([64, 64])) for _ in range(count)]

    def replica(x):
        for w in weights:
            w.assign_add(tf.distribute.get_replica_context().all_reduce("sum", 0.5 * tf.sign(w @ w + x)))

    step, one = tf.function(lambda x: strategy.run(replica, args=(x,))), tf.constant(1.0)
    return weights, lambda: step(one)

def same(tensors, number):
    return all((t.numpy() == number).all() for t in tensors)

def addresses(variable):
    with tf.device("/CPU:0"):
        values = [tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype) for v in variable.values]
    return [value._numpy().__array_interface__["data"][0] for value in values]

(weight,), step = training(1)
step()
step()  # from here on in place
before = addresses(weight)
step()
assert addresses(weight) == before and same(weight.values, 4.0)
held = [v.read_value() for v in weight.values]
step()
assert same(held, 4.0) and same(weight.values, 5.0)
weight.assign(tf.zeros([64, 64]))
step()
assert same(weight.values, 1.0), "an assignment between two steps"
with tf.device("/CPU:0"):  # TensorFlow then copies the variable whenever it is read or assigned
    for v in weight.values:
        tf.raw_ops.ResourceScatterAdd(resource=v.handle, indices=[0], updates=tf.ones([1, 64]))
step()
step()
assert same([v.read_value()[0] for v in weight.values], 4.0) and same([v.read_value()[1] for v in weight.values], 3.0)

doubled = tf.function(lambda: strategy.run(lambda: 2.0 * weight))
for _ in range(3):  # what a function only reads becomes part of its model until it changes
    found = strategy.experimental_local_results(doubled())
    assert same([2.0 * v.read_value() for v in weight.values], found[0].numpy()), "a value of before"
    step()

def operators(count):
    _, step = training(count)
    step()
    step()
    before = native.host_operators()
    step()
    return native.host_operators() - before

print(operators(1), operators(9))
"""


# Each NPU updates a share of the variables once, for all of them, while all have the same values. The arithmetic is
# exact, so every way must give the numbers of the model below.
SHARED = """
import threading
import numpy as np
import tensorflow as tf
import tf_adapter
from npu_runtime import tensorflow as native

strategy = tf.distribute.MirroredStrategy()
count = strategy.num_replicas_in_sync
with strategy.scope():
    weights = [tf.Variable(tf.fill([64, 256], 1.0 + i)) for i in range(4)]
    sums = [tf.Variable(tf.zeros([64, 256])) for _ in weights]
    rate = tf.Variable(0.5)

def replica(x):
    for weight, total in zip(weights, sums):
        total.assign(0.5 * total + tf.distribute.get_replica_context().all_reduce("sum", x * weight))
        weight.assign_sub(rate * total)
    rate.assign(-rate)

rows = strategy.experimental_distribute_values_from_function(
    lambda given: tf.constant(2.0 ** -(2 + given.replica_id_in_sync_group))
)
step = tf.function(lambda: strategy.run(replica, args=(rows,)))

class Model:
    w = np.array([[1.0 + i for i in range(4)]] * count, np.float32)
    s = np.zeros([count, 4], np.float32)
    r = np.full([count, 1], 0.5, np.float32)

    def step(self):
        self.s = np.float32(0.5) * self.s + sum(np.float32(2.0 ** -(2 + k)) * self.w[k] for k in range(count))
        self.w = self.w - self.r * self.s
        self.r = -self.r

model = Model()

def after(times, shared):
    before = native.shared_updates()
    for _ in range(times):
        step()
        model.step()
    ran = native.shared_updates() - before
    assert shared is None or ran == (times if shared else 0), f"{ran} of {times} steps were shared"
    for variables, numbers in ((weights, model.w), (sums, model.s)):
        for i, variable in enumerate(variables):
            for k, value in enumerate(variable.values):
                found = value.numpy()
                assert (found == numbers[k][i]).all(), (i, k, found.ravel()[:2], numbers[k][i])

after(1, True)
step(); model.step()  # those that were read have memory of their own from here on
before = native.host_operators()
step(); model.step()
print(native.host_operators() - before)
after(1, True)
held = [v.read_value() for v in weights[1].values]
old = model.w[:, 1].copy()
after(1, True)
assert all((h.numpy() == o).all() for h, o in zip(held, old)), "a value that was read has changed"
weights[2].assign(tf.fill([64, 256], 4.0))
model.w[:, 2] = 4
after(2, True)
weights[0].values[1].assign(tf.fill([64, 256], 0.5))  # the replicas are not the same any more
model.w[1, 0] = 0.5
after(2, False)
weights[0].assign(tf.ones([64, 256]))
sums[0].assign(tf.ones([64, 256]))
model.w[:, 0] = model.s[:, 0] = 1
after(2, True)
rate.values[0].assign(0.25)  # which is only read
model.r[0] = 0.25
after(1, False)
for v, t in zip(weights, sums):
    v.assign(tf.ones([64, 256])); t.assign(tf.zeros([64, 256]))
rate.assign(0.25)
model.w[:], model.s[:], model.r[:] = 1, 0, 0.25
after(1, True)
with tf.device("/CPU:0"):  # TensorFlow then copies the variable whenever it is read or assigned
    row = weights[3].values[1][:1]
    tf.raw_ops.ResourceScatterUpdate(resource=weights[3].values[1].handle, indices=[0], updates=row)
after(1, None)
after(1, False)
print("right")

done = threading.Event()
torn = []
def look():
    while not done.is_set():
        for v in weights[0].values:
            found = v.read_value().numpy()
            if (found != found[0, 0]).any():
                torn.append(found)
reader = threading.Thread(target=look)
reader.start()
for _ in range(30):
    step()
done.set()
reader.join()
print(len(torn))
"""

# Weight decay reads and writes what the update has written.
DECAYED = """
import numpy as np
import tensorflow as tf
import tf_adapter
from npu_runtime import tensorflow as native

strategy = tf.distribute.MirroredStrategy()
share = 12 // strategy.num_replicas_in_sync
with strategy.scope():
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.layers.Dense(64, "tanh") for _ in range(6)]
    model = tf.keras.Sequential([tf.keras.layers.Input((64,)), *layers, tf.keras.layers.Dense(3)])
    optimizer = tf.keras.optimizers.AdamW(1e-2)
    optimizer.build(model.trainable_variables)
rows = np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32)
given = strategy.experimental_distribute_values_from_function(
    lambda c: tf.constant(rows[c.replica_id_in_sync_group * share:][:share])
)

def replica(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(model(x, training=True))) / 12
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss

step = tf.function(lambda: strategy.reduce("sum", strategy.run(replica, args=(given,)), axis=None))
losses = [float(step()) for _ in range(4)]
operators = native.host_operators()
losses += [float(step()) for _ in range(4)]
print(native.host_operators() - operators)
print(*losses, *[float(tf.reduce_sum(tf.abs(v))) for v in model.trainable_variables])
"""

# A checkpoint of several NPUs continues on them and on one.
RESTORED = """
import os
import numpy as np
import tensorflow as tf
import tf_adapter

x = np.random.default_rng(0).standard_normal((16, 6)).astype(np.float32)
y = np.arange(16) % 3

def compiled(strategy):
    with strategy.scope():
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential(
            [tf.keras.layers.Input((6,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(3)]
        )
        optimizer = tf.keras.optimizers.Adam(0.01)
        model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        optimizer.build(model.trainable_variables)
    return model, tf.train.Checkpoint(model=model, optimizer=optimizer)

def fit(model):
    return model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0).history["loss"][0]

model, checkpoint = compiled(tf.distribute.MirroredStrategy())
first = fit(model)
path = checkpoint.save(os.path.join(os.environ["FOLDER"], "state"))
losses = [fit(model)]
for strategy in (
    tf.distribute.MirroredStrategy(),
    tf.distribute.OneDeviceStrategy("/NPU:1"),
    tf.distribute.get_strategy(),
):
    other, restored = compiled(strategy)
    restored.restore(path).assert_existing_objects_matched()
    losses.append(fit(other))
print(first != losses[0], np.allclose(losses, losses[0], rtol=1e-5))
"""

# What is in use after a thousand steps is what was in use after a hundred.
THOUSAND = """
import os
from pathlib import Path
import numpy as np
import tensorflow as tf
import npu_runtime
import tf_adapter

strategy = tf.distribute.MirroredStrategy()
layers = tf.keras.layers
with strategy.scope():
    model = tf.keras.Sequential([
        layers.Input((8, 8, 3)), layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(),
        layers.Flatten(), layers.Dense(256, "tanh"), layers.Dense(10),
    ])
    optimizer = tf.keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)

def replica(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True)))
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss

step = tf.function(lambda x: strategy.reduce("sum", strategy.run(replica, args=(x,)), axis=None))
rows = np.random.default_rng(0).standard_normal((8, 8, 8, 3)).astype(np.float32)

def used():
    return [npu_runtime.memory_info(i)["current"] for i in range(npu_runtime.device_count())]

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

for number in range(1000):
    loss = float(step(tf.constant(rows)))
    if number == 100:
        early, before = used(), resident()
grown = resident() - before
assert used() == early, (early, used())
assert grown < 16 << 20, f"{grown >> 20} MiB more after 900 steps"
print(npu_runtime.device_count(), np.isfinite(loss))
"""


def on_npus(script: str, npus: int = 2) -> list[str]:
    """The lines that a script prints."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "NPU_DEVICE_COUNT": str(npus)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


def test_replicas_run_at_the_same_time_and_update_their_own_variables() -> None:
    devices, steps, equal = on_npus(PLACES)
    assert devices == "NPU:0 NPU:1"
    assert steps == "NPU:0 NPU:1 NPU:0 NPU:1", "two levels: gradients, then their sum with the update"
    assert equal == "True", "all replicas have the same bits"


def test_variables_are_written_in_place_unless_others_refer_to_their_memory() -> None:
    (counts,) = on_npus(WRITTEN)
    assert counts == "0 0", "TensorFlow runs operators for the variables of a step"


@pytest.mark.parametrize("npus", [2, 3])
def test_npus_update_a_share_each_while_all_have_the_same_values(npus: int) -> None:
    assert on_npus(SHARED, npus) == ["0", "right", "0"]


@pytest.mark.slow
def test_a_thousand_steps_on_four_npus_take_no_more_memory() -> None:
    assert on_npus(THOUSAND, npus=4) == ["4 True"]


def test_eager_operators_copy_inputs_of_other_npus() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "crossing.py")],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "NPU_DEVICE_COUNT": "4"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr[-4000:]


def coordinated(where: str, *given: str, **environment: str) -> dict[str, Any]:
    """What the script of parameter servers computes."""
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "parameter_servers.py"), where, *given],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def same_training(found: dict[str, Any], alone: dict[str, Any]) -> None:
    for part, values in alone.items():
        for name in values if isinstance(values, dict) else ():
            for ours, theirs in zip(found[part][name], values[name], strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=f"{part} {name}")


def test_workers_of_parameter_servers_train_on_their_npus_as_the_cpu_does() -> None:
    alone = coordinated("alone")
    found = coordinated("here", NPU_DEVICE_COUNT="2")
    same_training(found, alone)
    assert alone["runs"] == 0
    assert found["scheduled"]["sums"] == [36.0]
    assert found["scheduled"]["steps"] == found["scheduled"]["scheduled"] == 60
    assert found["scheduled"]["each"] == pytest.approx([60.0], abs=1e-2)
    assert found["runs"] >= 60 + len(found["loop"]["losses"]), "a step of a worker runs on its NPU"


def server(cluster: dict[str, list[str]], job: str, task: int, *program: str) -> subprocess.Popen[str]:
    """A server of a cluster, or its coordinator."""
    told = json.dumps({"cluster": cluster, "task": {"type": job, "index": task}})
    return subprocess.Popen(
        [sys.executable, *program],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_CONFIG": told},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if job == "chief" else subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.slow
def test_a_worker_of_parameter_servers_that_died_comes_back(tmp_path: Path) -> None:
    program = (str(SCRIPTS / "parameter_servers.py"), "cluster", str(tmp_path))
    with ExitStack() as stack:
        ports = [f"localhost:{stack.enter_context(reserved_port())}" for _ in range(4)]
        cluster = {"worker": ports[:2], "ps": ports[2:3], "chief": ports[3:]}
        running = [
            server(cluster, job, task, *program)
            for job in ("worker", "ps", "chief")
            for task in range(len(cluster[job]))
        ]
        try:
            chief = running[-1]
            assert chief.stdout is not None
            for line in chief.stdout:
                if line == "40 steps\n":
                    running[0].kill()
                    running[0].wait()
                    (tmp_path / "worker0").unlink()
                    running.append(server(cluster, "worker", 0, *program))
                back = tmp_path / "worker0"
                if (
                    line.endswith("steps\n")
                    and len(running) > 4
                    and back.exists()
                    and back.read_text() not in ("", "0")
                ):
                    (tmp_path / "enough").touch()
                if line.startswith("{"):
                    found = json.loads(line)
            _, errors = chief.communicate(timeout=60)
        finally:
            for process in running:
                process.kill()
    assert chief.returncode == 0, errors[-4000:]
    same_training(found, coordinated("alone"))
    assert found["runs"] == 0, "the coordinator computes nothing"
    assert found["scheduled"]["steps"] >= found["scheduled"]["scheduled"]
    assert int((tmp_path / "worker1").read_text()) and (tmp_path / "ps0").read_text() == "0"


SERVER = """
import tensorflow as tf
given = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tf.distribute.Server(given.cluster_spec(), job_name=given.task_type, task_index=given.task_id).join()
"""


@pytest.mark.slow
def test_a_worker_without_the_adapter_is_named() -> None:
    with ExitStack() as stack:
        ports = [f"localhost:{stack.enter_context(reserved_port())}" for _ in range(3)]
        cluster = {"worker": ports[:1], "ps": ports[1:2], "chief": ports[2:]}
        running = [server(cluster, job, 0, "-c", SERVER) for job in ("worker", "ps")]
        running.append(server(cluster, "chief", 0, str(SCRIPTS / "parameter_servers.py"), "cluster"))
        try:
            _, errors = running[-1].communicate(timeout=300)
        finally:
            for process in running:
                process.kill()
    assert "the worker /job:worker/replica:0/task:0 does not know the NPU: import tf_adapter" in errors, (
        errors[-4000:]
    )


LOOPS = """
import tensorflow as tf
import npu_runtime
import tf_adapter
from npu_runtime import tensorflow as native

made, new_part = [], native.new_part
native.new_part = lambda npu=0, **given: (made.append(npu), new_part(npu, **given))[1]
strategy = tf.distribute.MirroredStrategy()

def loop(x):  # TensorFlow runs data sets, and what they call
    return tf.data.Dataset.range(3).reduce(x, lambda state, _: tf.tanh(state @ tf.eye(64)) + 1.0)

rows = strategy.experimental_distribute_values_from_function(lambda _: tf.ones([64, 64]))
step = tf.function(lambda: strategy.run(loop, args=(rows,)))
print(" ".join(f"{value.numpy().mean():.5f}" for value in strategy.experimental_local_results(step())))
print(sorted(made))

called = tf.function(loop)  # once traced, it is called on either
for npu in (1, 0, 1):
    with tf.device(f"/NPU:{npu}"):
        made.clear()
        given = tf.ones([64, 64])
        npu_runtime.reset_peak(1 - npu)
        before = npu_runtime.memory_info(1 - npu)["peak"]
        print(f"{called(given).numpy().mean():.5f}", npu_runtime.memory_info(1 - npu)["peak"] == before)
"""


def test_loops_of_the_host_use_the_npu_of_their_replica() -> None:
    assert on_npus(LOOPS, 2) == ["1.95975 1.95975", "[0, 1]", *["1.95975 True"] * 3]


def worker(cluster: list[str], index: int) -> subprocess.Popen[str]:
    """A worker of a cluster; of no cluster, the only one."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if cluster:
        task = {"type": "worker", "index": index}
        environment["TF_CONFIG"] = json.dumps({"cluster": {"worker": cluster}, "task": task})
    return subprocess.Popen(
        [sys.executable, str(SCRIPTS / "workers.py")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_workers_train_on_their_npus_as_one_does() -> None:
    with reserved_port() as first, reserved_port() as second:
        cluster = [f"127.0.0.1:{port}" for port in (first, second)]
        running = [worker(cluster, 0), worker(cluster, 1), worker([], 0)]
        try:
            done = [process.communicate(timeout=900) for process in running]
        finally:
            for process in running:
                process.kill()
    for process, (_, errors) in zip(running, done, strict=True):
        assert process.returncode == 0, errors[-4000:]
    *two, one = (json.loads(printed) for printed, _ in done)
    for index, found in enumerate(two):
        assert found["device"] == f"/job:worker/replica:0/task:{index}/device:NPU:0"
        assert found["steps"] == ["NPU", "host", "NPU"], (
            "collectives are the host's, between two parts of the NPU"
        )
        np.testing.assert_allclose(found["losses"], one["losses"], rtol=1e-5, atol=1e-5)


def resumed(folder: Path, *killed_in: str) -> subprocess.CompletedProcess[str]:
    """A training over two NPUs whose state is kept in a folder."""
    return subprocess.run(
        [sys.executable, str(SCRIPTS / "resumed.py"), str(folder), *killed_in],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "NPU_DEVICE_COUNT": "2"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.slow
def test_a_training_that_was_killed_resumes_with_the_same_losses(tmp_path: Path) -> None:
    whole = resumed(tmp_path / "undisturbed")
    assert whole.returncode == 0, whole.stderr[-4000:]
    assert resumed(tmp_path / "kept", "3").returncode == -9
    rest = resumed(tmp_path / "kept")
    assert rest.returncode == 0, rest.stderr[-4000:]
    losses = json.loads(rest.stdout)
    assert len(losses) == 2, "the last two of five epochs are left"
    np.testing.assert_allclose(losses, json.loads(whole.stdout)[3:], rtol=1e-5)
