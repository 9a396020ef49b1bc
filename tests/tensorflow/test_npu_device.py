"""`npu_device`: devices, the option tree, distribution for one worker, loss scale, version-1 names."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
npu_device = pytest.importorskip("npu_device")

from ge import tensor_dump  # noqa: E402
from ge.options import PrecisionMode  # noqa: E402
from ge.options.table import tell_once  # noqa: E402
from tf_adapter.options import options  # noqa: E402


@pytest.fixture(autouse=True)
def options_as_they_were():
    yield
    options.reset()


def test_an_opened_device_is_the_default() -> None:
    device = npu_device.open().as_default()
    assert tf.constant([1.0]).device.endswith("NPU:0")
    assert (device.workers_num, device.worker_id) == (1, 0)


def test_scope_and_run_context_choose_the_device() -> None:
    with tf.device("/CPU:0"), npu_device.open(0).scope():
        assert (tf.constant(1.0) + 1).device.endswith("NPU:0")
    with tf.device("/CPU:0"), npu_device.npu_run_context(precision_mode="allow_mix_precision_bf16"):
        assert (tf.constant(1.0) + 1).device.endswith("NPU:0")
        assert options.precision_mode is PrecisionMode.MIX_BF16
    assert options.precision_mode is PrecisionMode.KEEP


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="NPU_DEVICE_COUNT"):
        npu_device.open(99)


def test_loop_size_is_checked() -> None:
    with pytest.raises(ValueError):
        npu_device.set_npu_loop_size(0)
    with pytest.raises(ValueError, match="iterations_per_loop"):
        npu_device.global_options().iterations_per_loop = 0


@pytest.mark.parametrize("by_option", [False, True])
def test_loop_size_is_the_number_of_steps_that_keras_makes_at_once(by_option: bool) -> None:
    seen: list[int] = []
    watch = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    x = np.ones((40, 3), np.float32)

    def made(**named: Any) -> list[int]:
        seen.clear()
        model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", **named)
        model.fit(x, x[:, :1], batch_size=4, epochs=1, verbose=0, callbacks=[watch])
        assert int(np.asarray(model.optimizer.iterations)) == 10  # every step was made
        return list(seen)

    try:
        if by_option:
            npu_device.global_options().iterations_per_loop = 4
        else:
            npu_device.set_npu_loop_size(4)
        assert len(made()) == 3  # 4, 4 and the rest
        assert len(made(steps_per_execution=2)) == 5  # what a model says counts
    finally:
        npu_device.set_npu_loop_size(1)
    assert len(made()) == 10


def test_options_with_a_meaning_are_set(tmp_path: Path) -> None:
    switches = tmp_path / "fusion_switch.cfg"
    switches.write_text("fuse_softmax:off")
    given = npu_device.global_options()
    given.precision_mode = "allow_mix_precision"
    given.fusion_switch_file = str(switches)
    given.op_compiler_cache_mode = "enable"
    given.op_compiler_cache_dir = str(tmp_path / "cache")
    given.variable_memory_max_size = str(2 << 30)
    given.graph_memory_max_size = "3 * 1024 * 1024 * 1024"
    given.dump_config.dump_path = str(tmp_path)
    given.dump_config.enable_dump = True
    given.profiling_config.profiling_options = json.dumps({"output": str(tmp_path / "prof")})
    given.profiling_config.enable_profiling = True
    assert options.precision_mode is PrecisionMode.MIX_FP16
    assert options.compile_options().disabled_passes == {"fuse_softmax"}
    assert options.cache_dir == tmp_path / "cache"
    assert options.memory_limit == 5 << 30
    assert tensor_dump.folders()[0].parent == tmp_path == options.dump_path
    assert (options.profiling, options.profiling_dir) == (True, tmp_path / "prof")
    given.dump_config.enable_dump = False
    assert not tensor_dump.folders()
    given.profiling_config.enable_profiling = False


def test_tensors_of_a_function_are_dumped(tmp_path: Path) -> None:
    config = npu_device.global_options().dump_config
    config.dump_path, config.dump_step, config.dump_mode = str(tmp_path), "0|2", "all"
    config.enable_dump = True
    weights = tf.Variable(np.eye(4, dtype=np.float32) * 3)

    @tf.function
    def product(x: Any) -> Any:
        return tf.nn.relu(tf.matmul(x, weights, name="product"), name="activation")

    x = np.arange(-8, 8, dtype=np.float32).reshape(4, 4)
    with npu_device.open().scope():
        results = [product(tf.constant(x)).numpy() for _ in range(4)]
    config.enable_dump = False
    folder = next(tmp_path.glob("*/0/*product*/*"))
    assert sorted(path.name for path in folder.iterdir()) == ["0", "2"]
    (result,) = (folder / "2").glob("*.activation.*.output.0.npy")
    np.testing.assert_array_equal(np.load(result), results[0])
    assert any(np.array_equal(np.load(path), x) for path in (folder / "2").glob("*.input.0.npy"))


@pytest.mark.parametrize(
    ("branch", "name", "value"),
    [
        ("", "precision_mode", "half"),
        ("", "hcom_parallel", "perhaps"),
        ("", "fusion_switch_file", "no/such/file"),
        ("", "graph_memory_max_size", "much"),
        ("dump_config", "dump_step", "all of them"),
        ("dump_config", "dump_mode", "both"),
    ],
)
def test_wrong_values_are_refused(branch: str, name: str, value: object) -> None:
    owner = npu_device.global_options()
    owner = getattr(owner, branch) if branch else owner
    with pytest.raises(ValueError, match=name):
        setattr(owner, name, value)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean enable_dump"):
        npu_device.global_options().dump_config.enable_dumps = True
    with pytest.raises(AttributeError, match="no option 'colour'"):
        _ = npu_device.global_options().colour


def test_options_without_effect_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    tell_once.cache_clear()
    with caplog.at_level(logging.WARNING, "ge.options"):
        for _ in range(2):
            npu_device.global_options().auto_tune_mode = "RL,GA"
            npu_device.global_options().experimental.multi_branches_config.input_shape = "x:-1,3"
    assert [r.getMessage().split()[0].rsplit(".", 1)[-1] for r in caplog.records] == [
        "auto_tune_mode",
        "input_shape",
    ]


# -- one worker ----------------------------------------------------------------------------------------------


def test_one_worker_changes_nothing() -> None:
    distribute = npu_device.distribute
    variable = tf.Variable([1.0, 2.0])
    grads = [tf.constant([3.0]), None]
    assert distribute.all_reduce(grads, "mean") is grads
    distribute.broadcast([variable], root_rank=0)
    assert variable.numpy().tolist() == [1.0, 2.0]
    dataset = tf.data.Dataset.range(5)
    assert distribute.shard_and_rebatch_dataset(dataset, 8) == (dataset, 8)
    optimizer = tf.keras.optimizers.SGD(0.5)
    assert distribute.npu_distributed_keras_optimizer_wrapper(optimizer) is optimizer


def test_wrong_arguments_of_collectives_are_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        npu_device.distribute.all_reduce([], "median")
    with pytest.raises(ValueError, match="root_rank"):
        npu_device.distribute.broadcast([], root_rank=1)


def test_several_workers_share_rows_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setenv("RANK_ID", "1")
    dataset, batch = npu_device.distribute.shard_and_rebatch_dataset(tf.data.Dataset.range(6), 8)
    assert ([int(v) for v in dataset], batch) == ([1, 3, 5], 4)
    with pytest.raises(ValueError, match="evenly"):
        npu_device.distribute.shard_and_rebatch_dataset(dataset, 3)


# -- loss scale ----------------------------------------------------------------------------------------------


def _loop(optimizer, variable, factor: float) -> None:
    @tf.function
    def step(k):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * k)
            scaled = optimizer.get_scaled_loss(loss)
        grads = optimizer.get_unscaled_gradients(tape.gradient(scaled, [variable]))
        optimizer.apply_gradients(zip(grads, [variable], strict=True))

    step(tf.constant(factor))


def test_loss_scale_grows_and_shrinks_and_leaves_out_bad_steps() -> None:
    variable = tf.Variable([1.0, 1.0])
    optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(
        tf.keras.optimizers.SGD(0.5), initial_scale=8.0, dynamic_growth_steps=2
    )
    for _ in range(2):
        _loop(optimizer, variable, 1.0)
    np.testing.assert_allclose(variable.numpy(), [0.0, 0.0])
    assert float(optimizer.loss_scale) == 16.0
    _loop(optimizer, variable, float("inf"))
    np.testing.assert_allclose(variable.numpy(), [0.0, 0.0])
    assert float(optimizer.loss_scale) == 8.0


def test_a_fixed_loss_scale_stays() -> None:
    variable = tf.Variable([1.0])
    optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(
        tf.keras.optimizers.SGD(0.5), dynamic=False, initial_scale=4.0
    )
    _loop(optimizer, variable, 1.0)
    assert float(optimizer.loss_scale) == 4.0
    assert variable.numpy().tolist() == [0.5]
    with pytest.raises(ValueError, match="initial_scale"):
        npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(0.5), dynamic=False)


def test_fit_trains_with_a_loss_scale() -> None:
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(0.1))
    model.compile(optimizer=optimizer, loss="mse")
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    y = x @ np.float32([[1.0], [-2.0], [0.5]])
    losses = model.fit(x, y, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.1 * losses[0]
