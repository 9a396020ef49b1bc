"""Eager operators whose inputs are on several of four NPUs, from many threads; prints what went wrong."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tf_adapter  # noqa: F401

NPUS, THREADS, ROUNDS = 4, 8, 12


def place(tensor: Any) -> int:
    """The number of a tensor's NPU."""
    name = tensor.device
    assert "NPU:" in name, name
    return int(name.rpartition(":")[2])


def on(npu: int) -> Any:
    return tf.device(f"/NPU:{npu}")


def scalars_are_on_the_current_npu(npu: int, turn: int) -> None:
    with on(npu):
        for number in range(20):
            assert place(tf.convert_to_tensor(float(number))) == npu
            assert place(tf.constant([1.0, 2.0]) * (number + 0.5)) == npu
            assert place(tf.constant([3, 4]) + number) == npu


def operators_run_where_the_scope_says(npu: int, turn: int) -> None:
    values = [None] * NPUS
    for other in range(NPUS):
        with on(other):
            values[other] = tf.constant([[1.0 + other, turn], [0.5, 1.0]])
    first, second, third, fourth = values
    arrays = [v.numpy() for v in values]
    with on(npu):
        found = {
            "binary": first * second + third - fourth,
            "unary": tf.tanh(second),
            "product": tf.matmul(third, fourth, transpose_b=True),
            "list": tf.add_n(values),
            "concat": tf.concat(values, axis=0),
            "where": tf.where(first > 1.0, second, third),
            "einsum": tf.einsum("ij,jk->ik", first, fourth),
            "host": tf.linalg.inv(first + 10.0 * second),
            "number": 2.0 * first - third / 4.0,
        }
    a, b, c, d = arrays
    wanted = {
        "binary": a * b + c - d,
        "unary": np.tanh(b),
        "product": c @ d.T,
        "list": a + b + c + d,
        "concat": np.concatenate(arrays),
        "where": np.where(a > 1.0, b, c),
        "einsum": a @ d,
        "host": np.linalg.inv(a + 10.0 * b),
        "number": 2.0 * a - c / 4.0,
    }
    for name, value in found.items():
        assert place(value) == npu, f"{name}: {value.device}, not NPU:{npu}"
        np.testing.assert_allclose(value.numpy(), wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)


def variables_and_gradients_cross(npu: int, turn: int) -> None:
    with on((npu + 1) % NPUS):
        weights = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    with on((npu + 2) % NPUS):
        rows = tf.constant([[1.0 + turn, -1.0]])
    with on(npu), tf.GradientTape() as tape:
        tape.watch(rows)
        loss = tf.reduce_sum(tf.square(rows @ weights) * 0.5)
    grads = tape.gradient(loss, [weights, rows])
    x, w = rows.numpy(), weights.numpy()
    np.testing.assert_allclose(grads[0].numpy(), x.T @ (x @ w), rtol=1e-5)
    np.testing.assert_allclose(grads[1].numpy(), (x @ w) @ w.T, rtol=1e-5)
    weights.assign_sub(0.5 * grads[0])
    np.testing.assert_allclose(weights.numpy(), w - 0.5 * (x.T @ (x @ w)), rtol=1e-5)


@tf.function
def together(a: Any, b: Any) -> Any:
    return tf.reduce_sum(a * b) * 3.0


def functions_take_inputs_of_several_npus(npu: int, turn: int) -> None:
    with on((npu + 1) % NPUS):
        a = tf.constant([1.0, 2.0, turn])
    with on((npu + 3) % NPUS):
        b = tf.constant([4.0, 5.0, 6.0])
    with on(npu):
        assert float(together(a, b)) == 42.0 + 18.0 * turn


def values_of_replicas(npu: int, turn: int) -> None:
    strategy = tf.distribute.MirroredStrategy()
    values = strategy.experimental_distribute_values_from_function(
        lambda given: tf.constant([1.0, 2.0]) * (1.0 + turn + given.replica_id_in_sync_group)
    )
    local = strategy.experimental_local_results(values)
    assert [float(v[1]) for v in local] == [2.0 * (1 + turn + i) for i in range(NPUS)]


PROGRAMS: tuple[Callable[[int, int], None], ...] = (
    scalars_are_on_the_current_npu,
    operators_run_where_the_scope_says,
    variables_and_gradients_cross,
    functions_take_inputs_of_several_npus,
    values_of_replicas,
)
failures: list[str] = []


def run(number: int) -> None:
    for turn in range(ROUNDS):
        for program in PROGRAMS:
            try:
                program((number + turn) % NPUS, turn)
            except Exception:
                failures.append(f"{program.__name__} in thread {number}:\n{traceback.format_exc()}")
                return


threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failures:
    sys.exit("\n".join(failures[:2]))
print("done")
