"""Mixed computing: what the NPU cannot run stays with TensorFlow, in the right order, with the same answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.tensorflow.comparing import NPU, equal, same


def _matrix(*shape: int, seed: int = 0) -> tf.Tensor:
    return tf.constant(np.random.RandomState(seed).rand(*shape).astype(np.float32))


X = _matrix(6, 6)


def _cut(ran: Any) -> bool:
    """Some of it ran on the NPU and some on the host."""
    return ran.on_npu > 0 and ran.on_host > 0


def test_prints_come_in_order(capfd: pytest.CaptureFixture[str]) -> None:
    table = tf.Variable(X)

    @tf.function
    def function(x: Any) -> Any:
        y = x @ x
        tf.print("first", tf.reduce_sum(table))
        table.assign(y)
        tf.print("second", tf.reduce_sum(table))
        return table @ y

    with tf.device("/CPU:0"):
        function(X)
    wanted = capfd.readouterr().err
    table.assign(X)
    with tf.device(NPU):
        function(X)
    assert capfd.readouterr().err == wanted


def test_sizes_known_only_when_run() -> None:
    def function(x: Any) -> Any:
        y = x @ x
        chosen = tf.boolean_mask(y, y > 1.5)
        weighted = chosen * 2.0
        values, places = tf.unique(tf.cast(weighted * 3, tf.int32))
        return (
            values,
            places,
            tf.sort(weighted),
            tf.where(y > 1.5),
            tf.reduce_sum(tf.gather(y, places % 6) @ x),
        )

    assert _cut(same(function, X))


def test_strings() -> None:
    def function(x: Any, words: Any) -> Any:
        lengths = tf.cast(tf.strings.length(words), tf.float32)
        y = x @ x * lengths[:, None]
        upper = tf.strings.upper(words)
        return tf.strings.join([upper, words]), tf.nn.softmax(y @ x), tf.strings.as_string(y[0, 0])

    assert _cut(same(function, X, tf.constant(["a", "bb", "ccc", "d", "ee", "f"])))


def test_python_functions() -> None:
    def double(a: Any) -> Any:
        return a * 2

    def function(x: Any) -> Any:
        y = tf.py_function(double, [x @ x], tf.float32)
        z = tf.numpy_function(lambda a: a + 1, [x], tf.float32)
        return tf.nn.softmax(tf.ensure_shape(y, [6, 6]) @ tf.ensure_shape(z, [6, 6]))

    assert _cut(same(function, X))


def test_an_exception_in_a_python_function_is_tensorflows() -> None:
    def fails(a: Any) -> Any:
        raise ValueError("not this one")

    @tf.function
    def function(x: Any) -> Any:
        return tf.py_function(fails, [x @ x], tf.float32) @ x

    with tf.device(NPU):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not this one"):
            function(X)
        equal(X.numpy() @ X.numpy(), tf.function(lambda x: x @ x)(X))


def test_failed_assertions_raise() -> None:
    @tf.function
    def function(x: Any) -> Any:
        tf.debugging.assert_less(tf.reduce_sum(x), 5.0, message="too much")
        return x @ x

    with tf.device(NPU):
        equal((X.numpy() * 0.01) @ (X.numpy() * 0.01), function(X * 0.01))
        with pytest.raises(tf.errors.InvalidArgumentError, match="too much"):
            function(X)
        equal((X.numpy() * 0.01) @ (X.numpy() * 0.01), function(X * 0.01))


def test_numbers_are_checked() -> None:
    @tf.function
    def function(x: Any) -> Any:
        return tf.debugging.check_numerics(tf.math.log(-(x @ x)), "bad") @ x

    with tf.device(NPU), pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        function(X)


def test_a_wrong_shape_is_reported() -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def function(x: Any) -> Any:
        return tf.ensure_shape(x * 2.0, [2, 2]) + 1.0

    with tf.device(NPU), pytest.raises(tf.errors.InvalidArgumentError):
        function(X)


def test_lookup_tables() -> None:
    keys = tf.constant(["a", "b", "c"])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant([2, 1, 0])), -1)
    rows = tf.Variable(X)

    def function(words: Any) -> Any:
        return tf.gather(rows, table.lookup(words) + 1) @ rows

    assert _cut(same(function, tf.constant(["c", "a", "zz"]), variables=[rows]))


def test_ragged_and_sparse_tensors() -> None:
    def function(x: Any, values: Any, lengths: Any) -> Any:
        ragged = tf.RaggedTensor.from_row_lengths(values, lengths)
        dense = (ragged * 2.0).to_tensor(shape=[3, 6])
        sparse = tf.sparse.from_dense(tf.where(x > 0.5, x, 0.0))
        return dense @ x, tf.reduce_sum(ragged, 1), tf.sparse.sparse_dense_matmul(sparse, x), ragged

    same(function, X, _matrix(7), tf.constant([2, 0, 5]))


def test_iterators_inside() -> None:
    def batches() -> Any:
        return tf.data.Dataset.from_tensor_slices(np.arange(48, dtype=np.float32).reshape(8, 6)).batch(3)

    weights = tf.Variable(X)

    @tf.function
    def step(iterator: Any) -> Any:
        batch = next(iterator)
        weights.assign_sub(0.001 * tf.matmul(batch, batch, transpose_a=True))
        return tf.reduce_sum(batch @ weights)

    results = []
    for device in ("/CPU:0", NPU):
        weights.assign(X)
        with tf.device(device):
            iterator = iter(batches())
            results.append([step(iterator).numpy() for _ in range(3)])
            with pytest.raises(tf.errors.OutOfRangeError):
                step(iterator)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


def test_datasets_inside() -> None:
    def function(x: Any) -> Any:
        total = tf.zeros([6, 6])
        for batch in tf.data.Dataset.range(4):
            total += x @ x * tf.cast(batch, tf.float32)
        return total

    same(function, X)


def test_branch_with_a_print() -> None:
    def function(x: Any) -> Any:
        if tf.reduce_sum(x) > 1.0:
            tf.print("large")
            return tf.nn.softmax(x @ x)
        return x

    same(function, X)


def test_loop_with_a_python_function() -> None:
    table = tf.Variable(X)

    def function(x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.ensure_shape(tf.numpy_function(lambda a: a * 0.5, [x @ table], tf.float32), [6, 6])
            table.assign_add(x)
        return x

    same(function, X, variables=[table])


def test_random_numbers_in_loops() -> None:
    def function(x: Any) -> Any:
        for _ in tf.range(3):
            tf.autograph.experimental.set_loop_options(parallel_iterations=1)  # turns draw in their order
            x = x @ x * tf.random.uniform([])
        return x

    same(function, X)


def test_transforms_and_linear_algebra() -> None:
    def function(x: Any) -> Any:
        spectrum = tf.signal.rfft(x @ x)
        frames = tf.signal.stft(tf.reshape(x, [-1]), 8, 4)
        symmetric = x @ tf.transpose(x) + tf.eye(6)
        values, _ = tf.linalg.eigh(symmetric)
        return tf.abs(spectrum), tf.math.real(frames), values, tf.linalg.inv(symmetric), tf.linalg.svd(x)[0]

    same(function, X, rtol=1e-3, atol=1e-4)


def test_images() -> None:
    def function(image: Any) -> Any:
        image = tf.image.resize(image, [8, 8])
        image = tf.image.adjust_brightness(tf.image.flip_left_right(image), 0.1)
        image = tf.image.adjust_contrast(tf.image.adjust_saturation(image, 0.7), 1.2)
        encoded = tf.io.encode_png(tf.cast(tf.clip_by_value(image, 0, 1) * 255, tf.uint8))
        return image, tf.image.rgb_to_grayscale(tf.cast(tf.io.decode_png(encoded, 3), tf.float32))

    same(function, _matrix(12, 10, 3), atol=1e-4)


def test_queues_and_other_state() -> None:
    queue = tf.queue.FIFOQueue(10, [tf.float32], [[6, 6]])

    def function(x: Any) -> Any:
        queue.enqueue(x @ x)
        return queue.dequeue() @ x

    same(function, X)


def test_complex_numbers() -> None:
    def function(x: Any) -> Any:
        z = tf.complex(x @ x, x)
        return z * tf.math.conj(z), tf.math.angle(z)

    same(function, X)


def test_mode_without_host_fallback() -> None:
    from tf_adapter.options import options

    @tf.function
    def function(x: Any) -> Any:
        return tf.strings.as_string(x @ x), tf.linalg.svd(x)[0]

    with (
        tf.device(NPU),
        options.override(allow_host_fallback=False),
        pytest.raises(tf.errors.UnimplementedError) as raised,
    ):
        function(X)
    assert "Op type 'AsString' is not supported on NPU" in str(raised.value)
    assert "Op type 'Svd'" in str(raised.value)
    with tf.device(NPU):
        function(X)


def test_summaries(tmp_path: Any) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))

    def function(x: Any) -> Any:
        with writer.as_default(step=1):
            tf.summary.write("sum", tf.reduce_sum(x @ x))
        return x @ x

    same(function, X)
    writer.close()
    assert list(tmp_path.iterdir())


def test_heavy_work_in_a_loop_with_host_operators_runs_on_the_npu() -> None:
    weights = tf.Variable(X)

    def function(x: Any) -> Any:
        for i in tf.range(3):
            x = tf.nn.softmax(tf.nn.relu(x @ weights) + 1.0)
            tf.print("step", i, output_stream="file:///dev/null")
        return x

    ran = same(function, X, variables=[weights], calls=2)
    assert max(n for n, _ in ran.counts.values()) >= 6  # every turn of both calls


def test_branches_with_host_operators() -> None:
    weights = tf.Variable(X)

    def function(x: Any, n: Any) -> Any:
        if tf.reduce_sum(x) > 0.0:
            tf.print("above", output_stream="file:///dev/null")
            weights.assign_add(x)
            y = tf.nn.softmax(x @ weights)
        else:
            y = x
        z = tf.switch_case(
            n,
            [lambda: y @ x, lambda: tf.strings.to_number(tf.strings.as_string(y @ weights), tf.float32)],
            default=lambda: y - tf.numpy_function(lambda a: a @ a, [x], tf.float32) @ y,
        )
        return tf.ensure_shape(z, X.shape), 3

    for n in (0, 1, 2, -1):
        same(function, X, tf.constant(n), variables=[weights])
        same(function, -X, tf.constant(n), variables=[weights])


def test_heavy_work_in_a_reduction_of_a_dataset_runs_on_the_npu() -> None:
    from tf_adapter import parts

    before = set(parts._parts)
    weights = tf.Variable(X)

    def function(x: Any) -> Any:
        def turn(y: Any, i: Any) -> Any:
            tf.print("step", i, output_stream="file:///dev/null")
            return tf.nn.softmax(tf.nn.relu(y @ weights) + 1.0)

        return tf.data.Dataset.range(3).reduce(x, turn)

    same(function, X, variables=[weights])
    made = set(parts._parts) - before
    assert len(made) == 1
    assert not parts.refusals_of(made.pop())


def test_a_part_that_cannot_be_compiled_runs_on_the_host() -> None:
    from tf_adapter import parts

    before = set(parts._parts)

    def function(x: Any) -> Any:
        def turn(y: Any, i: Any) -> Any:
            tf.print("step", i, output_stream="file:///dev/null")
            size = tf.cast(tf.reduce_sum(tf.cast(y > 0.5, tf.int32)), tf.int32)  # decides a shape
            return y @ x * tf.reduce_sum(tf.ones([size])) * 0.1

        return tf.data.Dataset.range(3).reduce(x, turn)

    same(function, X)
    made = set(parts._parts) - before
    assert any(parts.refusals_of(number) for number in made)


def test_conditions_that_shapes_decide_need_no_host() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def function(x: Any) -> Any:
        tf.debugging.assert_greater(tf.shape(x)[0], 2, message="few rows")
        if tf.shape(x)[0] > 4:
            tf.debugging.assert_less(tf.shape(x)[1], 100)
            return tf.nn.softmax(x @ tf.transpose(x))
        tf.print("small", output_stream="file:///dev/null")
        return x * 2.0

    from tf_adapter.explanation import explain

    assert explain(function, X).steps == ("NPU",)
    with tf.device(NPU):
        equal(tf.nn.softmax(X.numpy() @ X.numpy().T), function(X))
        equal(X[:3].numpy() * 2, function(X[:3]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="few rows"):
            function(X[:1])


def test_one_variable_given_twice() -> None:
    table = tf.Variable(X)

    @tf.function
    def function(a: Any, b: Any) -> Any:
        a.assign_add(tf.ones_like(a))
        return b @ b

    with tf.device(NPU):
        equal((X.numpy() + 1) @ (X.numpy() + 1), function(table, table))


def test_a_dataset_that_reads_a_variable() -> None:
    table = tf.Variable(X)

    @tf.function
    def make() -> Any:
        return tf.data.Dataset.range(3).map(lambda i: table[0] * tf.cast(i + 1, tf.float32))

    with tf.device(NPU):
        dataset = make()
        equal(X[0], next(iter(dataset)))
        table.assign(X * 3.0)
        equal(X[0].numpy() * 3, next(iter(dataset)))


def test_conditions_that_values_decide_are_asked_again() -> None:
    @tf.function
    def function(x: Any, n: Any) -> Any:
        y = tf.reshape(x, [n, -1])
        if n > 2:
            tf.print("many", output_stream="file:///dev/null")
            return tf.nn.softmax(x @ x) * 2.0, tf.reduce_sum(y, 1)
        return tf.nn.softmax(x @ x), tf.reduce_sum(y, 1)

    product = X.numpy() @ X.numpy()
    with tf.device("/CPU:0"):
        soft = tf.nn.softmax(product).numpy()
    with tf.device(NPU):
        for rows in (2, 3, 2, 6, 3):
            first, second = function(X, tf.constant(rows))
            equal(soft * (2.0 if rows > 2 else 1.0), first)
            equal(X.numpy().reshape(rows, -1).sum(1), second)


def test_training_over_a_dataset_inside() -> None:
    from tf_adapter import parts

    weights = tf.Variable(X)
    before = set(parts._parts)

    def function(x: Any) -> Any:
        total = 0.0
        for batch in tf.data.Dataset.from_tensor_slices(tf.stack([x, x * 2, x * 3])):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.tanh(batch @ weights))
            weights.assign_sub(0.01 * tape.gradient(loss, weights))
            total += loss
        return total

    same(function, X, variables=[weights])
    assert set(parts._parts) - before


def test_gradient_of_a_loop_from_outside() -> None:
    weights = tf.Variable(X)

    @tf.function
    def forward(x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.tanh(x @ weights)
        return tf.reduce_sum(x)

    results = []
    for device in ("/CPU:0", NPU):
        with tf.device(device):
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss = forward(X)
                results.append((loss, tape.gradient(loss, weights)))
    for loss, gradient in results[1:]:
        equal(results[0][0], loss)
        equal(results[0][1], gradient)


def test_reads_stay_before_later_writes() -> None:
    table = tf.Variable(X)

    def function(x: Any) -> Any:
        old = table.read_value()
        table.assign(x @ x)
        y = tf.ensure_shape(tf.numpy_function(lambda a: a + 1, [tf.nn.softmax(x @ x)], tf.float32), [6, 6])
        new = table.read_value()
        table.assign_add(y)
        z = tf.ensure_shape(tf.numpy_function(lambda a: a * 2, [y @ x], tf.float32), [6, 6])
        return tf.nn.softmax(old @ z), tf.nn.softmax(new @ z), tf.nn.softmax(table @ z)

    assert _cut(same(function, X, variables=[table], calls=3))


def test_weights_are_part_of_the_step_that_uses_them() -> None:
    from tf_adapter import functions

    weights = tf.Variable(X)

    @tf.function
    def function(x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), [6, 6]) @ weights

    with tf.device(NPU):
        function(X)
    found = functions.last_report(tf.compat.as_str(function.get_concrete_function(X).name))
    assert found is not None and isinstance(found.plan, functions.StepsRun)
    inner = functions.last_report(found.plan.steps[-1][0])
    assert inner is not None and isinstance(inner.plan, functions.NpuRun)
    assert inner.plan.lowered.ports.bound
