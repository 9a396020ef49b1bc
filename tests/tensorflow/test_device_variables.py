"""Variables on the NPU: one value for programs, host kernels, checkpoints and threads, whoever wrote it last."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from npu_runtime import tensorflow as native

SIZES = [4, 100_000]  # copied back into place, and handed over to TensorFlow


def _step(v: tf.Variable) -> Any:
    return tf.function(lambda x: v.assign_add(x * tf.sigmoid(x)) * 2.0)


@pytest.mark.parametrize("size", SIZES)
def test_programs_and_host_kernels_see_the_same_value(size: int) -> None:
    v = tf.Variable(tf.zeros([size]))
    x = tf.ones([size])
    step = _step(v)
    gain = float(tf.sigmoid(1.0))
    native.take_counts()
    for i in range(4):
        np.testing.assert_allclose(step(x)[:3].numpy(), 2 * (gain + 1) * (i + 1) - 2, rtol=1e-5)
        v.assign_add(x)  # the host's kernel
        np.testing.assert_allclose(v.numpy()[:3], (gain + 1) * (i + 1), rtol=1e-5)
    assert any(name.startswith("__inference") and n == 4 for name, (n, _) in native.take_counts().items())


@pytest.mark.parametrize("size", SIZES)
def test_values_handed_out_do_not_change(size: int) -> None:
    v = tf.Variable(tf.zeros([size]))
    x = tf.ones([size])
    step = _step(v)
    step(x)
    kept = [v.read_value(), v.value(), tf.identity(v), v.numpy(), np.asarray(v.read_value())]
    before = float(kept[0][0])
    with tf.device("/CPU:0"):
        kept.append(tf.identity(v))
    reader = tf.function(lambda: v.read_value())
    kept.append(reader())
    for _ in range(3):
        step(x)
    for value in kept:
        np.testing.assert_array_equal(np.asarray(value), np.full(size, before, np.float32))
    assert float(v[0]) > before


@pytest.mark.parametrize("size", SIZES)
def test_what_a_variable_was_made_from_does_not_change(size: int) -> None:
    whole = np.zeros(size + 16, np.float32)
    first = (-whole.ctypes.data // 4) % 16  # aligned so that TensorFlow takes the memory itself
    array = whole[first : first + size]
    with tf.device("/CPU:0"):
        on_host = tf.zeros([size]) + 0.0
    sources = [array, on_host, tf.zeros([size]) + 0.0]
    variables = [tf.Variable(source) for source in sources]
    for v, source in zip(variables, sources, strict=True):
        _step(v)(tf.ones([size]))
        v.assign(source)
        _step(v)(tf.ones([size]))
        np.testing.assert_array_equal(np.asarray(source), np.zeros(size, np.float32))
        assert float(v[0]) > 0


def test_the_host_never_sees_a_value_being_claimed() -> None:
    v = tf.Variable(tf.zeros([256]))
    step = tf.function(lambda: v.assign_add(tf.ones([256])))
    total = tf.function(lambda: tf.reduce_sum(v * 0.0 + 1.0))
    seen: list[Any] = []

    def watch() -> None:
        with tf.device("/CPU:0"):
            for _ in range(150):
                seen.append((float(total()), tf.raw_ops.VariableShape(input=v.handle).numpy().tolist()))

    def work() -> None:
        for _ in range(150):
            v.assign(tf.zeros([256]))  # by the host: the next step claims the value
            step()

    threads = [threading.Thread(target=f) for f in (watch, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(256.0, [256])] * 150 and float(v[0]) == 1.0


def test_every_way_to_assign() -> None:
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    read = tf.function(lambda: v * 1.0)
    wanted = v.numpy()
    read()

    def check() -> None:
        np.testing.assert_allclose(read().numpy(), wanted)
        np.testing.assert_allclose(v.numpy(), wanted)

    v.assign([[5.0, 6.0], [7.0, 8.0]])
    wanted = np.array([[5.0, 6.0], [7.0, 8.0]], np.float32)
    check()
    v[0].assign([1.0, 1.0])
    wanted[0] = 1
    check()
    v.scatter_nd_update([[1, 1]], [9.0])
    wanted[1, 1] = 9
    check()
    v.batch_scatter_update(tf.IndexedSlices(tf.constant([[3.0], [3.0]]), tf.constant([[0], [0]])))
    wanted[:, 0] = 3
    check()
    v.assign_sub(tf.ones([2, 2]))
    wanted -= 1
    check()
    with tf.device("/CPU:0"):
        v.assign(v * 2.0)
    wanted *= 2
    check()
    tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=0.5, delta=tf.ones([2, 2]))
    wanted -= 0.5
    check()


def test_a_bound_variable_that_changes_is_noticed_again_and_again() -> None:
    w = tf.Variable(np.eye(8, dtype=np.float32))
    function = tf.function(lambda x: tf.matmul(x, w))
    x = np.random.RandomState(0).rand(3, 8).astype(np.float32)
    for i in range(60):
        if i % 7 == 0:
            w.assign(np.eye(8, dtype=np.float32) * (i + 1))
        np.testing.assert_allclose(function(x).numpy(), x @ w.numpy(), rtol=1e-5)


def test_datasets_that_capture_a_variable_see_later_values() -> None:
    v = tf.Variable(1.0)
    step = tf.function(lambda: v.assign_add(1.0))
    dataset = tf.data.Dataset.range(6).map(lambda i: tf.cast(i, tf.float32) * 0 + v)
    seen = []
    for value in dataset:
        seen.append(float(value))
        step()
    assert seen[0] == 1.0 and seen == sorted(seen) and float(v) == 7.0


def test_variables_without_a_fixed_shape() -> None:
    v = tf.Variable([1.0], shape=tf.TensorShape([None]))
    total = tf.function(lambda: tf.reduce_sum(v * 2.0))
    for n in (1, 3, 2, 3):
        v.assign(tf.ones([n]))
        assert float(total()) == 2.0 * n


def test_uninitialised_and_deleted_variables() -> None:
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="never written")
    with pytest.raises(tf.errors.FailedPreconditionError):
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant([1.0, 2.0]))
    again = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="never written")
    tf.raw_ops.AssignAddVariableOp(resource=again, value=tf.constant([1.0, 1.0]))
    assert tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32).numpy().tolist() == [2.0, 3.0]
    before = tf.config.experimental.get_memory_info("NPU:0")["current"]
    v = tf.Variable(tf.zeros([1 << 18]))
    v.read_value()
    assert tf.config.experimental.get_memory_info("NPU:0")["current"] >= before + (1 << 20)
    del v
    gc.collect()
    assert tf.config.experimental.get_memory_info("NPU:0")["current"] <= before + 4096


def test_anonymous_variables_have_no_value_before_they_are_assigned() -> None:
    handle = resource_variable_ops.eager_safe_variable_handle(tf.zeros([2]), [2], None, "v", False)
    with pytest.raises(tf.errors.FailedPreconditionError, match="no value"):
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)

    @tf.function
    def first_or_more() -> tf.Tensor:
        known = tf.raw_ops.VarIsInitializedOp(resource=handle)
        if not known:
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones([2]))
        tf.raw_ops.AssignAddVariableOp(resource=handle, value=tf.ones([2]))
        return known

    assert [bool(first_or_more()) for _ in range(3)] == [False, True, True]
    assert tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32).numpy().tolist() == [4.0, 4.0]


def test_checkpoints_hold_what_programs_wrote(tmp_path: Path) -> None:
    v = tf.Variable(tf.zeros([3]))
    step = tf.function(lambda: v.assign_add([1.0, 2.0, 3.0]))
    step()
    path = tf.train.Checkpoint(v=v).save(str(tmp_path / "c"))
    step()
    other = tf.Variable(tf.zeros([3]))
    tf.train.Checkpoint(v=other).restore(path)
    np.testing.assert_array_equal(other.numpy(), [1.0, 2.0, 3.0])
    tf.train.Checkpoint(v=v).restore(path)
    np.testing.assert_array_equal(step().numpy(), [2.0, 4.0, 6.0])


def test_threads_that_write_one_variable_lose_nothing() -> None:
    v = tf.Variable(tf.zeros([64], tf.float64))
    step = tf.function(lambda x: v.assign_add(x))
    one = tf.ones([64], tf.float64)
    step(one)
    torn: list[Any] = []

    def write() -> None:
        for _ in range(100):
            step(one)

    def read() -> None:
        for _ in range(100):
            value = v.read_value().numpy()
            if not (value == value[0]).all():
                torn.append(value)

    threads = [threading.Thread(target=f) for f in (write, write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert float(v[0]) == 201.0 and not torn


def test_random_generators_keep_their_state() -> None:
    drawn = []
    for device in ("/NPU:0", "/CPU:0"):
        with tf.device(device):
            generator = tf.random.Generator.from_seed(3)
            drawn.append([generator.normal([2]).numpy().tolist() for _ in range(3)])
            assert drawn[-1][0] != drawn[-1][1]
    assert drawn[0] == drawn[1]


def test_two_npus() -> None:
    code = """
        import numpy as np, tensorflow as tf, tf_adapter
        print([d.name for d in tf.config.list_logical_devices("NPU")])
        strategy = tf.distribute.MirroredStrategy(devices=["/NPU:0", "/NPU:1"])
        with strategy.scope():
            v = tf.Variable(1.0)
        @tf.function
        def step():
            def replica():
                v.assign_add(1.0)
                return v * 2
            return strategy.reduce("SUM", strategy.run(replica), axis=None)
        print(float(step()), float(v.values[0]), float(v.values[1]))
        with tf.device("/NPU:1"):
            w = tf.Variable([1.0, 2.0])
            f = tf.function(lambda x: x * w + w.assign_add([1.0, 1.0]))
            for _ in range(3):
                y = f(tf.constant([1.0, 1.0]))
            print(y.device[-5:], y.numpy().tolist(), w.numpy().tolist())
        print(len(tf.distribute.MirroredStrategy().extended.worker_devices))
    """
    lines = _with_two_npus(code)
    assert lines[-4:] == [
        "['/device:NPU:0', '/device:NPU:1']",
        "8.0 2.0 2.0",
        "NPU:1 [7.0, 9.0] [4.0, 5.0]",
        "2",
    ]


def test_values_of_another_npu_are_copied_for_programs() -> None:
    code = """
        import numpy as np, tensorflow as tf, tf_adapter
        a, v = tf.constant([[1.0, 2.0], [3.0, 4.0]]) + 0, tf.Variable([[1.0, 0.0], [0.0, 1.0]])
        assert "NPU:0" in a.device, a.device
        square = tf.function(lambda x: tf.matmul(x, x) + 1)

        @tf.function
        def loop(x):
            def body(n, y):
                return n + 1, tf.matmul(y, tf.ensure_shape(tf.py_function(lambda z: z, [x], tf.float32), [2, 2]))
            return tf.while_loop(lambda n, _: n < tf.cast(x[1, 0], tf.int32), body, [0, x])[1]

        class Pair(tf.experimental.ExtensionType):
            x: tf.Tensor

        ragged = tf.RaggedTensor.from_row_splits(a[0], tf.constant([0, 1, 2], tf.int64))
        items = iter(tf.data.Dataset.from_tensors(np.ones((2, 2), "f")).repeat())
        cases = {
            "argument": lambda: square(a),
            "captured": tf.function(lambda: tf.matmul(a, a) + 1),
            "passed on": lambda: tf.function(lambda x: (x, x + 1))(a)[0],
            "identity": lambda: tf.identity(a),
            "operator": lambda: [tf.matmul(a, a) for _ in range(6)][-1],
            "loop": lambda: loop(a),
            "nested": lambda: tf.function(lambda d: square(d["x"]) + d["y"][0])({"x": a, "y": [a]}),
            "extension": lambda: tf.function(lambda p: p.x * 2)(Pair(a)),
            "ragged": lambda: tf.function(lambda r: (r * 2).flat_values)(ragged),
            "variable": lambda: tf.function(lambda x: tf.matmul(v, x))(a),
            "assigned": lambda: tf.function(lambda x: v.assign_add(x) + 0)(a),
            "iterator": lambda: tf.function(lambda i: square(next(i)) + a)(items),
            "strategy": lambda: tf.distribute.OneDeviceStrategy("/NPU:1").run(square, (a,)),
        }
        for name, case in cases.items():
            v.assign([[1.0, 0.0], [0.0, 1.0]])
            found = []
            for device in ("/NPU:1", "/NPU:0"):
                with tf.device(device):
                    y = case()
                assert name == "strategy" or device[1:] in y.device, (name, y.device)
                found.append((y.numpy(), v.numpy()))
                v.assign([[1.0, 0.0], [0.0, 1.0]])
            for one, other in zip(*found):
                np.testing.assert_allclose(one, other, err_msg=name)
        with tf.device("/NPU:1"), tf.GradientTape() as tape:
            tape.watch(a)
            y = square(a)
        assert "NPU:1" in y.device
        with tf.device("/NPU:1"):
            np.testing.assert_allclose(tape.gradient(y, a), [[7.0, 11.0], [9.0, 13.0]])
        print("equal", square(y).device[-5:])
    """
    assert _with_two_npus(code)[-1] == "equal NPU:0"


def test_operators_and_gradients_copy_inputs_of_another_npu() -> None:
    code = """
        import tensorflow as tf, tf_adapter
        def on(index, make):
            with tf.device(f"/NPU:{index}"):
                return make()
        a, b = on(0, lambda: tf.constant([1.0, 2.0])), on(1, lambda: tf.constant([3.0, 4.0]))
        v, w = on(0, lambda: tf.Variable([1.0, 2.0])), on(1, lambda: tf.Variable([5.0, 7.0]))
        plus = tf.function(lambda x, y: x + y)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(a)
            x = on(1, lambda: a * a * b)
            y = on(0, lambda: tf.reduce_sum(x * a) + tf.reduce_sum(plus(v * a, w * b)))
        made = [a + b, on(1, lambda: a + b), tf.stack([b, a]), tf.add_n([b, a]), v * b, w * a, plus(a, b), plus(b, a)]
        made += [on(1, lambda: plus(a, b)), tf.concat([a, w], 0)]
        with tf.device("/CPU:0"):
            made.append(a * b)
        made += [tape.gradient(y, t) for t in (a, v, w)]
        for t in made:
            print(t.device[-5:], t.numpy().tolist())
        tf_adapter.as_default(False)
        print((b + a).device[-5:])
    """
    assert _with_two_npus(code) == [
        "NPU:0 [4.0, 6.0]", "NPU:1 [4.0, 6.0]", "NPU:0 [[3.0, 4.0], [1.0, 2.0]]", "NPU:0 [4.0, 6.0]",
        "NPU:0 [3.0, 8.0]", "NPU:0 [5.0, 14.0]", "NPU:0 [4.0, 6.0]", "NPU:0 [4.0, 6.0]", "NPU:1 [4.0, 6.0]",
        "NPU:0 [1.0, 2.0, 5.0, 7.0]", "CPU:0 [3.0, 8.0]",
        "NPU:0 [10.0, 50.0]", "NPU:0 [1.0, 2.0]", "NPU:0 [3.0, 4.0]", "NPU:1",
    ]  # fmt: skip


def _with_two_npus(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "NPU_DEVICE_COUNT": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()


def test_variables_of_the_host_are_read_and_written_by_programs() -> None:
    with tf.device("/CPU:0"):
        w, count = tf.Variable(np.eye(8, dtype=np.float32)), tf.Variable(0, dtype=tf.int64)
    assert "CPU" in w.device

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        count.assign_add(1)
        return tf.matmul(x, w) * 2.0

    x = np.random.RandomState(0).rand(3, 8).astype(np.float32)
    native.take_counts()
    for i in range(12):
        if i % 5 == 4:
            with tf.device("/CPU:0"):
                w.assign_add(np.eye(8, dtype=np.float32))
        np.testing.assert_allclose(function(x).numpy(), 2 * x @ w.numpy(), rtol=1e-5)
    assert int(count) == 12
    assert [n for name, n in native.take_counts().items() if name.startswith("__inference")] == [(12, 0)]


def test_after_a_checkpoint_variables_still_become_part_of_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tf_adapter import functions

    versions: list[int] = []
    original = functions.plan_function

    def watch(name: str, inputs: Any, *rest: Any) -> Any:
        versions.extend(given.version for given in inputs if given.kind == "variable")
        return original(name, inputs, *rest)

    monkeypatch.setattr(functions, "plan_function", watch)
    w = tf.Variable(np.eye(4, dtype=np.float32))
    tf.train.Checkpoint(w=w).save(str(tmp_path / "c"))
    doubled = tf.function(lambda x: tf.matmul(x, w) * 2.0)
    np.testing.assert_array_equal(doubled(tf.ones([2, 4])).numpy(), 2 * np.ones([2, 4], np.float32))
    assert versions and all(versions)


def test_variables_of_types_the_npu_has_not() -> None:
    word, wave = tf.Variable("a"), tf.Variable([1 + 2j])
    function = tf.function(lambda: (word + "b", wave * 2.0))
    for _ in range(2):
        joined, doubled = function()
        assert joined.numpy() == b"ab" and doubled.numpy().tolist() == [2 + 4j]
        word.assign("a")
        wave.assign_add([0j])
    assert word.numpy() == b"a"


def test_the_host_sees_what_programs_write_after_a_scatter() -> None:
    """After a scatter TensorFlow copies what a variable is assigned: memory written in place would not be its own."""
    v = tf.Variable(tf.zeros([4, 4]))
    add = tf.function(lambda: v.assign_add(tf.sign(v * v + 1.0)))
    wanted = np.zeros((4, 4), np.float32)
    for _ in range(3):
        for _ in range(2):
            add()
            wanted += 1
        tf.raw_ops.ResourceScatterAdd(resource=v.handle, indices=[0], updates=tf.ones([1, 4]))
        wanted[0] += 1
        np.testing.assert_array_equal(v.numpy(), wanted)


def test_functions_that_read_what_the_other_writes_do_not_wait_for_each_other() -> None:
    first, second = (tf.Variable(tf.zeros([64, 64])) for _ in range(2))
    functions = [
        tf.function(lambda a=a, b=b: a.assign(tf.tanh(b @ b) + 1.0))
        for a, b in ((first, second), (second, first))
    ]
    for function in functions:
        function()

    def repeat(function: Any) -> None:
        for _ in range(300):
            function()

    threads = [threading.Thread(target=repeat, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
