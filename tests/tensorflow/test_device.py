"""The NPU among TensorFlow's devices: names, configuration, placement, threads, errors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import npu_runtime
import tf_adapter
from tf_adapter.device import device_name

NPU, CPU = device_name(), "/job:localhost/replica:0/task:0/device:CPU:0"


def _in_new_process(code: str, **environment: str) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_devices_are_listed() -> None:
    assert [d.name for d in tf.config.list_physical_devices("NPU")] == ["/physical_device:NPU:0"]
    assert tf.config.list_physical_devices("NPU")[0] in tf.config.list_physical_devices()
    assert tf.config.list_physical_devices("NPU")[0] in tf.config.get_visible_devices()
    assert [d.name for d in tf.config.list_logical_devices("NPU")] == ["/device:NPU:0"]
    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("NPU")[0])
    assert details["device_name"].startswith("NPU 0")


@pytest.mark.parametrize("name", ["/GPU:0", "gpu:0", "/device:GPU:1", CPU.replace("CPU", "GPU")])
def test_gpus_that_do_not_exist_are_the_cpu_under_soft_placement(name: str) -> None:
    x = tf.constant([1.0, 2.0]) + 0
    assert x.device == NPU
    with tf.device(name):
        y, v = x * 2, tf.Variable(x)
        assert (tf.function(lambda a: a * v)(x) + v.assign_add(x)).device == CPU
    assert y.device == CPU and y.numpy().tolist() == v.numpy().tolist() == [2.0, 4.0]

    @tf.function
    def function(a: tf.Tensor) -> tf.Tensor:
        with tf.device(name):
            return a * v

    assert function(x).numpy().tolist() == [2.0, 8.0]
    strategy = tf.distribute.OneDeviceStrategy(name)
    with strategy.scope():
        w = tf.Variable(1.0)
        w.assign_add(2.0)
        model = tf.keras.Sequential(
            [tf.keras.Input((2,)), tf.keras.layers.Dense(1, kernel_initializer="ones")]
        )
    assert float(strategy.run(lambda: w * 2)) == float(strategy.run(tf.function(lambda: w * 2))) == 6.0
    assert model.predict(np.ones((1, 2)), verbose=0).tolist() == [[2.0]]
    tf.config.set_soft_device_placement(False)
    try:
        with tf.device(name), pytest.raises(tf.errors.InvalidArgumentError, match="GPU"):
            tf.constant([1.0]) * 2
    finally:
        tf.config.set_soft_device_placement(True)
    with tf.device(name):
        assert (x * 2).device == CPU


def test_strategies_without_devices_take_the_npu() -> None:
    assert tf.distribute.MirroredStrategy().extended.worker_devices == (NPU,)


@pytest.mark.parametrize("name", ["/NPU:0", "/npu:0", "NPU:0", "/device:NPU:0", "/device:npu:0", "NPU", NPU])
def test_names_parse(name: str) -> None:
    with tf.device(CPU), tf.device(name):
        assert (tf.constant([1.0]) + 1).device == NPU


def test_tensors_and_variables_say_where_they_are() -> None:
    x = tf.constant([1.0, 2.0])
    v = tf.Variable([1.0, 2.0])
    assert (x.device, v.device, (x * v).device) == (NPU, NPU, NPU)
    with tf.device("/CPU:0"):
        on_host = tf.identity(x)
        assert on_host.device == CPU
        assert tf.add(x, on_host).device == CPU
    assert (x + on_host).device == NPU
    np.testing.assert_array_equal((x + on_host).numpy(), [2.0, 4.0])


def test_a_scope_without_a_name_is_the_default_device() -> None:
    with tf.device("/CPU:0"), tf.device(None):
        assert (tf.constant(1.0) + 1).device == NPU


def test_the_default_can_be_turned_off() -> None:
    tf_adapter.as_default(False)
    assert not tf_adapter.is_default()
    assert tf.constant(1.0).device == CPU
    with tf.device("/NPU:0"):
        assert tf.constant(1.0).device == NPU
    with tf.device("/CPU:0"), tf.device(None):
        assert tf.constant(1.0).device == CPU
    tf_adapter.as_default()
    assert tf.constant(1.0).device == NPU


def test_the_environment_turns_the_default_off() -> None:
    code = """
        import tensorflow as tf, tf_adapter
        print(tf.constant(1.0).device, tf_adapter.is_default())
    """
    assert _in_new_process(code, NPU_AS_DEFAULT="0").split() == [CPU, "False"]


def test_threads_started_later_have_the_default_too() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(tf.constant(1.0).device))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(2) as pool:
        found += pool.map(lambda _: tf.constant(1.0).device, range(4))
    assert found == [NPU] * 5
    assert threading.Thread._bootstrap_inner.__module__ == "threading"


@pytest.mark.parametrize("context_exists", [False, True])
def test_threads_have_the_default_of_the_time_they_first_use_tensorflow(context_exists: bool) -> None:
    code = f"""
        import threading
        import tensorflow as tf
        if {context_exists}:
            with tf.device("/CPU:0"):
                tf.constant(1.0)

        found, ready, imported = [], threading.Event(), threading.Event()

        def use():
            found.append(tf.constant(1.0).device)
            with tf.device("/CPU:0"):
                found.append(tf.constant(1.0).device)
            found.append(tf.constant(1.0).device)

        def wait():
            ready.set()
            imported.wait()
            use()

        def run(target):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()

        early = threading.Thread(target=wait)
        early.start()
        ready.wait()
        import tf_adapter
        imported.set()
        early.join()
        run(use)
        tf_adapter.as_default(False)
        run(use)
        tf_adapter.as_default()
        with tf.Graph().as_default():
            run(use)
        elements = tf.data.Dataset.range(1).map(
            lambda x: tf.py_function(lambda x: found.append(tf.constant(1.0).device) or x, [x], tf.int64)
        )
        list(elements)
        print(" ".join(name.rpartition(":")[0][-3:] for name in found))
    """
    npu, cpu = ["NPU", "CPU", "NPU"], ["CPU"] * 3
    assert _in_new_process(code).split() == [*npu, *npu, *cpu, *npu, "CPU"]


def test_an_import_while_another_thread_holds_the_state_of_threads_says_so() -> None:
    code = """
        import tensorflow as tf
        from tensorflow.python.eager import context
        held = context.context()._thread_local_data
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import tf_adapter
        print(any("new threads start on the host" in str(w.message) for w in caught), tf.constant(1.0).device)
    """
    assert _in_new_process(code).split() == ["True", NPU]


def test_a_context_that_replaces_another_has_the_npu_and_the_default_too() -> None:
    code = """
        import threading
        import tensorflow as tf
        import tf_adapter
        from tensorflow.python.eager import context

        def places():
            a = tf.constant([1.0, 2.0])
            found = [a.device, tf.function(lambda x: x * 2 + 1)(a).device, tf.Variable(a).device]
            thread = threading.Thread(target=lambda: found.append(tf.constant(1.0).device))
            thread.start()
            thread.join()
            with tf.device("npu:0"):
                found.append((a + 1).device)
            return [name.rpartition(":")[0][-3:] for name in found]

        print(*places())
        old = tf.constant([1.0, 2.0])
        context._reset_context()
        print(*places(), tf.reduce_sum(tf.constant([1.0, 2.0])).numpy(), old.numpy().sum())
        tf_adapter.as_default(False)
        context._reset_context()
        print(*places())
    """
    npu = ["NPU"] * 5
    expected = [*npu, *npu, "3.0", "3.0", *["CPU"] * 4, "NPU"]
    assert _in_new_process(code).split() == expected


def test_an_npu_that_is_not_there() -> None:
    with (
        pytest.raises(tf.errors.InvalidArgumentError, match=r"there is 1 NPU.*NPU_DEVICE_COUNT"),
        tf.device("/NPU:7"),
    ):
        tf.constant(1.0)
    with pytest.raises(ValueError, match="No matching devices"):
        tf.config.experimental.get_memory_info("NPU:7")


def test_memory_info_counts_tensors_of_both_kernels() -> None:
    before = tf.config.experimental.get_memory_info("NPU:0")["current"]
    x = tf.zeros([1 << 18])
    for _ in range(8):
        y = tf.tanh(x)
    held = tf.config.experimental.get_memory_info("/device:NPU:0")["current"] - before
    assert 2 << 20 <= held < 3 << 20
    tf.config.experimental.reset_memory_stats("NPU:0")
    info = tf.config.experimental.get_memory_info("NPU:0")
    assert info["peak"] == info["current"]
    del x, y
    assert tf.config.experimental.get_memory_info("NPU:0")["current"] <= before + 4096


def test_views_do_not_count_twice() -> None:
    x = tf.zeros([1 << 18])
    before = tf.config.experimental.get_memory_info("NPU:0")["current"]
    y = tf.reshape(x, [1 << 9, 1 << 9])
    assert tf.config.experimental.get_memory_info("NPU:0")["current"] == before
    assert y.shape == (512, 512)


def test_out_of_memory_is_resource_exhausted_and_names_the_tensor() -> None:
    x = tf.zeros([1 << 18])
    double = tf.function(lambda a: tf.concat([tf.tanh(a)] * 8, 0))
    npu_runtime.set_memory_limit(npu_runtime.memory_info()["current"] + (1 << 20))
    try:
        with pytest.raises(tf.errors.ResourceExhaustedError, match=r"OOM.*shape\[2097152\] and type float32"):
            tf.concat([x] * 8, 0)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="OOM"):
            double(x)
    finally:
        npu_runtime.set_memory_limit(0)
    assert double(x).shape == (1 << 21,)


def test_memory_growth_and_limits_are_set_as_for_a_gpu() -> None:
    device = tf.config.list_physical_devices("NPU")[0]
    tf.config.experimental.set_memory_growth(device, True)
    assert tf.config.experimental.get_memory_growth(device) is True
    try:
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=512)
        tf.config.set_logical_device_configuration(device, [limit])
        assert npu_runtime.memory_info()["limit"] == 512 << 20
        assert tf.config.get_logical_device_configuration(device) == [limit]
        with pytest.raises(ValueError, match="NPU_DEVICE_COUNT"):
            tf.config.set_logical_device_configuration(device, [limit, limit])
    finally:
        npu_runtime.set_memory_limit(0)


def test_configuration_is_possible_after_the_import_and_hides_devices() -> None:
    printed = _in_new_process("""
        import tensorflow as tf, tf_adapter
        tf.config.threading.set_inter_op_parallelism_threads(2)
        tf.config.set_visible_devices([], "NPU")
        print(tf.constant(1.0).device, tf.config.list_logical_devices("NPU"), tf_adapter.is_default())
    """)
    assert printed.split() == [CPU, "[]", "False"]


def test_placement_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    tf.debugging.set_log_device_placement(True)
    try:
        tf.constant(1.0) + 2.0
    finally:
        tf.debugging.set_log_device_placement(False)
    assert f"Executing op AddV2 in device {NPU}" in capfd.readouterr().err
    tf.constant(1.0) + 2.0
    assert "Executing" not in capfd.readouterr().err


def test_numpy_shares_and_converts() -> None:
    x = tf.constant(np.arange(6, dtype=np.float32).reshape(2, 3)) * 2
    np.testing.assert_array_equal(np.asarray(x), [[0, 2, 4], [6, 8, 10]])
    assert memoryview(x).shape == (2, 3)
    assert [float(row[0]) for row in x] == [0.0, 6.0]
    assert x.shape == (2, 3) and x.dtype == tf.float32 and "NPU" not in repr(x)
    assert float(tf.constant(2.5)) == 2.5 and int(tf.constant(3)) == 3 and bool(tf.constant(True))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float64", "float16", "bfloat16", "complex64"])
def test_element_types(dtype: str) -> None:
    x = tf.cast(tf.constant([[0.0, 1.0], [2.0, 3.0]]), dtype)
    assert x.device == NPU
    for _ in range(5):
        y = tf.transpose(x)
    assert (y.device, y.dtype) == (NPU, x.dtype)
    np.testing.assert_array_equal(y.numpy(), x.numpy().T)


def test_strings_and_other_host_values() -> None:
    words = tf.constant(["a", "bc"])
    assert tf.strings.length(words).numpy().tolist() == [1, 2]
    assert tf.strings.join([words, "d"]).numpy().tolist() == [b"ad", b"bcd"]
    ragged = tf.ragged.constant([[1, 2], [3]])
    assert (ragged * 2).to_list() == [[2, 4], [6]]
    sparse = tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]])
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse * 2.0).numpy(), [[0, 2], [4, 0]])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [7]), -1)
    assert table.lookup(words).numpy().tolist() == [7, -1]


def test_seeds_make_random_numbers_repeat() -> None:
    drawn = []
    for _ in range(2):
        tf.random.set_seed(5)
        drawn.append(np.concatenate([tf.random.normal([3]).numpy(), tf.random.uniform([3]).numpy()]))
    with tf.device("/CPU:0"):
        tf.random.set_seed(5)
        drawn.append(np.concatenate([tf.random.normal([3]).numpy(), tf.random.uniform([3]).numpy()]))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    np.testing.assert_array_equal(drawn[0], drawn[2])


def test_errors_are_tensorflow_s_own() -> None:
    a, b = tf.zeros([2, 3]), tf.zeros([4, 5])
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.matmul(a, b)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.add(tf.constant(1), tf.constant(1.0))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.debugging.assert_equal(tf.constant(1), tf.constant(2))
    np.testing.assert_array_equal(tf.matmul(a, tf.transpose(a)).numpy(), np.zeros([2, 2]))


def test_an_exception_in_a_py_function_is_raised_and_the_next_call_works() -> None:
    fail = [True]

    def python(x: tf.Tensor) -> tf.Tensor:
        if fail[0]:
            raise ValueError("from Python")
        return x + 1

    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        return tf.py_function(python, [x * 2], tf.float32) * 3

    with pytest.raises(tf.errors.InvalidArgumentError, match="from Python"):
        function(tf.constant(1.0))
    fail[0] = False
    assert float(function(tf.constant(1.0))) == 9.0


@pytest.mark.parametrize("place", ["eager", "function", "dataset", "threads"])
def test_python_functions_may_compute_on_the_npu(place: str) -> None:
    """Many calls, with gradients: the results come back to the host operator that called Python."""
    weights = tf.Variable(np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32))
    x = tf.constant(np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32))

    def compute(a: tf.Tensor) -> tf.Tensor:
        return tf.tanh(a @ weights) * a

    def python(a: tf.Tensor) -> tf.Tensor:
        found = compute(a)
        assert found.backing_device == NPU
        return found

    def gradient(call: Callable[[tf.Tensor], tf.Tensor], a: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(a)
            result = call(a)
        return tape.gradient(result, a)

    def through(a: tf.Tensor) -> tf.Tensor:
        return gradient(lambda b: tf.ensure_shape(tf.py_function(python, [b], tf.float32), [4, 4]), a)

    def derived(a: tf.Tensor) -> tf.Tensor:
        return gradient(python, a)

    expected = gradient(compute, x)
    if place == "eager":
        found = [through(x) for _ in range(50)]
    elif place == "function":
        step = tf.function(lambda a: through(a @ a))
        expected, found = gradient(compute, x @ x), [step(x) for _ in range(50)]
    elif place == "dataset":
        rows = tf.data.Dataset.from_tensors(x).repeat(50)
        found = list(rows.map(lambda a: tf.py_function(derived, [a], tf.float32), num_parallel_calls=2))
    else:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: through(x), range(50)))
    for one in found:
        np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-5)


def test_without_tensorflow_the_import_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("raise ImportError('not here')")
    code = "try:\n    import tf_adapter\nexcept ImportError as error:\n    print(error)"
    printed = _in_new_process(code, PYTHONPATH=str(tmp_path))
    assert "pip install" in printed and "tensorflow" in printed


def test_without_soft_placement_what_the_npu_lacks_is_refused_where_the_npu_was_asked_for() -> None:
    def joined() -> str:
        return tf.strings.join(["a", "b"]).numpy().decode()

    def inside(x: tf.Tensor) -> tf.Tensor:
        with tf.device("/NPU:0"):
            return tf.strings.length(tf.strings.as_string(x))

    assert joined() == "ab"
    with tf.device("/NPU:0"):
        assert joined() == "ab"
    assert tf.function(inside)(tf.constant([1])).numpy().tolist() == [1]
    tf.config.set_soft_device_placement(False)
    try:
        assert joined() == "ab"  # nobody asked for a device
        for _ in range(2):
            with (
                tf.device("/NPU:0"),
                pytest.raises(tf.errors.InvalidArgumentError, match="'StringJoin' is not supported"),
            ):
                joined()
        with tf.device("/NPU:0"), tf.device("/CPU:0"):
            assert joined() == "ab"
        with tf.device("/NPU:0"):  # the NPU has these, or they only hand on what others made
            v = tf.Variable([1.0, 2.0])
            v.assign_add(tf.reshape(tf.constant([[1.0, 1.0]]), [2]))
            assert [float(tf.reduce_sum(x)) for x in tf.data.Dataset.from_tensors(v)] == [5.0]
        with pytest.raises(tf.errors.UnimplementedError, match="Op type 'AsString' is not supported on NPU"):
            tf.function(inside)(tf.constant([1]))
        nested = tf.function(lambda x: tf.function(inside)(x) + 1)
        with pytest.raises(tf.errors.UnimplementedError, match="Op type 'AsString' is not supported on NPU"):
            nested(tf.constant([1]))
    finally:
        tf.config.set_soft_device_placement(True)
    with tf.device("/NPU:0"):
        assert joined() == "ab"
