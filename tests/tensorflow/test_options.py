"""Options: values are checked, the environment counts, changes reach the compiler and its keys."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

from tensorflow.python.eager import context  # noqa: E402

from ge.options import PrecisionMode  # noqa: E402
from ge.target import host  # noqa: E402
from tf_adapter.options import Options, options, tell_of_precision  # noqa: E402


@pytest.fixture
def fresh() -> Options:
    return Options({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision_mode", "half"),
        ("allow_host_fallback", "perhaps"),
        ("memory_limit", "a lot"),
        ("memory_limit", -1),
        ("device_count", 0),
        ("fusion_switch_file", "there/is/no/such.cfg"),
        ("target", "moon"),
        ("op_precision", {"MatMul": "half"}),
        ("op_precision", 3),
        ("op_precision", "MatMul"),
        ("num_threads", "many"),
        ("num_threads", None),
        ("eager_threshold", "soon"),
        ("memory_limit", "G"),
        ("loop_size", "a"),
        ("disabled_passes", 3),
        ("cache_dir", 3),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_leaves_the_old_one(
    fresh: Options, name: str, value: object
) -> None:
    before = getattr(fresh, name)
    with pytest.raises(ValueError, match=rf"options\.{name} cannot be .*: .*(use|there is no)"):
        setattr(fresh, name, value)
    assert getattr(fresh, name) == before


@pytest.mark.parametrize("native", [True, False])
def test_a_mode_without_effect_on_this_machine_says_so(native: bool) -> None:
    target = replace(host(), isa="avx512_core_fp16" if native else "avx2")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        tell_of_precision.__wrapped__(PrecisionMode.MIX_FP16, target)
        tell_of_precision.__wrapped__(PrecisionMode.FORCE_FP16, target)
    assert [str(w.message).split(":")[0] for w in said] == (
        [] if native else ["precision mode 'allow_mix_precision_fp16' changes nothing"]
    )


def test_operators_of_the_host_are_errors_where_it_may_not_run_them() -> None:
    x = tf.constant([[4.0, 1.0], [1.0, 3.0]])
    with options.override(allow_host_fallback=False):
        for op, call in {
            "StringJoin": lambda: tf.strings.join(["a", "b"]),
            "AddV2": lambda: tf.constant(1j) + tf.constant(2j),
        }.items():
            with pytest.raises(tf.errors.UnimplementedError, match=f"'{op}'.*allow_host_fallback = True"):
                call()
            with tf.device("/CPU:0"):
                call()
        v = tf.Variable(x)
        v.assign_add(x)
        assert float(tf.reduce_sum(tf.matmul(tf.reshape(x, [2, 2]), v))) == 82.0
    assert tf.strings.join(["a", "b"]) == b"ab"


def test_an_unknown_name_is_refused_with_the_nearest(fresh: Options) -> None:
    with pytest.raises(AttributeError, match="did you mean precision_mode"):
        fresh.precison_mode = "force_fp32"  # type: ignore[attr-defined]


def test_several_are_set_together_or_not_at_all(fresh: Options) -> None:
    with pytest.raises(ValueError):
        fresh.set(deterministic=True, target="moon")
    assert fresh.deterministic is False


def test_the_environment_is_read() -> None:
    given = Options(
        {
            "NPU_PRECISION_MODE": "allow_mix_precision_bf16",
            "NPU_MEMORY_LIMIT": "1.5G",
            "NPU_ALLOW_HOST_FALLBACK": "0",
            "NPU_OP_PRECISION": "MatMul=must_keep_origin_dtype",
        }
    )
    assert given.precision_mode is PrecisionMode.MIX_BF16
    assert given.memory_limit == 3 << 29
    assert given.allow_host_fallback is False
    assert given.op_precision == {"MatMul": "must_keep_origin_dtype"}


def test_an_override_ends_with_its_block_even_after_an_error(fresh: Options) -> None:
    with pytest.raises(KeyError), fresh.override(precision_mode="force_fp32", deterministic=True):
        assert fresh.precision_mode is PrecisionMode.FORCE_FP32
        raise KeyError
    assert (fresh.precision_mode, fresh.deterministic) == (PrecisionMode.KEEP, False)


def test_files_reach_the_compiler(fresh: Options, tmp_path: Path) -> None:
    switches, lists = tmp_path / "switch.cfg", tmp_path / "lists.json"
    switches.write_text("fuse_softmax:off\n")
    lists.write_text(json.dumps({"black-list": {"to-add": ["MatMul"]}}))
    fresh.set(fusion_switch_file=switches, modify_mixlist=lists, disabled_passes="split_batch")
    compiled = fresh.compile_options()
    assert compiled.disabled_passes == {"fuse_softmax", "split_batch"}
    assert compiled.op_precision == {"MatMul": "must_keep_origin_dtype"}


def test_what_decides_a_compile_changes_the_fingerprint_and_nothing_else_does(fresh: Options) -> None:
    seen = {fresh.fingerprint()}
    for values in ({"precision_mode": "force_fp32"}, {"target": "portable"}, {"allow_host_fallback": False}):
        fresh.set(**values)
        assert fresh.fingerprint() not in seen
        seen.add(fresh.fingerprint())
    fresh.set(cache_dir="somewhere", explain=True, memory_limit="1G", num_threads=2)
    assert fresh.fingerprint() in seen


def test_listeners_hear_of_changes_only(fresh: Options) -> None:
    heard = []
    fresh.subscribe(lambda: heard.append(fresh.target))
    fresh.target = "host"
    fresh.target = "portable"
    assert heard == ["portable"]


def test_the_number_of_devices_is_fixed_once_they_are_there(fresh: Options) -> None:
    fresh.device_count = 2
    fresh.freeze_start()
    with pytest.raises(RuntimeError, match="NPU_DEVICE_COUNT"):
        fresh.device_count = 3


@pytest.fixture
def mixed_precision_of_tensorflow():
    """TensorFlow's switches, as they were before once the test is over: it has no way to say "not set"."""
    given = context.context()._optimizer_experimental_options
    before = dict(given)
    yield tf.config.optimizer.set_experimental_options
    given.clear()
    given.update(before)
    options.changed()


def test_tensorflows_switches_allow_and_forbid_narrow_types(mixed_precision_of_tensorflow) -> None:
    given = Options({})
    mixed_precision_of_tensorflow({"auto_mixed_precision": True})
    assert given.effective_precision is PrecisionMode.MIX_FP16
    mixed_precision_of_tensorflow({"auto_mixed_precision_onednn_bfloat16": True})
    assert given.effective_precision is PrecisionMode.MIX_BF16
    mixed_precision_of_tensorflow({"auto_mixed_precision": False})
    given.precision_mode = "allow_mix_precision_bf16"
    assert given.effective_precision is PrecisionMode.KEEP


def test_tensorfloat_32_changes_nothing_on_this_device() -> None:
    before = options.fingerprint()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        assert options.fingerprint() == before
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


def test_limits_reach_the_runtime_and_end_with_the_override() -> None:
    import npu_runtime

    pytest.importorskip("tf_adapter")
    before = npu_runtime.memory_info()["limit"], npu_runtime.num_threads()
    with options.override(memory_limit="1G", num_threads=1):
        assert (npu_runtime.memory_info()["limit"], npu_runtime.num_threads()) == (1 << 30, 1)
    assert (npu_runtime.memory_info()["limit"], npu_runtime.num_threads()) == before


def test_a_change_of_options_is_seen_by_a_function_that_ran_before() -> None:
    pytest.importorskip("tf_adapter")
    weights = tf.random.stateless_normal([64, 64], [1, 2])
    inputs = tf.random.stateless_normal([64, 64], [3, 4])
    function = tf.function(lambda x: tf.nn.relu(x @ weights) @ weights)
    exact = function(inputs).numpy()
    with options.override(precision_mode="force_fp16"):
        narrow = function(inputs).numpy()
    assert 0 < abs(narrow - exact).max() < 2.0
    assert (function(inputs).numpy() == exact).all()


def test_the_switch_is_there_under_the_guides_name_too(mixed_precision_of_tensorflow) -> None:
    pytest.importorskip("tf_adapter")
    heard = []
    options.subscribe(lambda: heard.append(1))
    tf.config.set_optimizer_experimental_options({"auto_mixed_precision": False})
    assert heard


def test_the_same_inputs_give_the_same_bits() -> None:
    """Training with sums by many threads and rows added to the same places, whatever `deterministic` says."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Input((16, 16, 3)), layers.Conv2D(32, 3), layers.GlobalAveragePooling2D(), layers.Dense(5)]
    )
    table = tf.Variable(tf.random.stateless_normal([50, 5], [1, 2]))
    x = tf.random.stateless_normal([16, 16, 16, 3], [3, 4])
    rows = tf.random.stateless_uniform([16, 20], [5, 6], 0, 50, tf.int32)
    variables = [*model.trainable_variables, table]
    start = [v.numpy() for v in variables]

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            found = tf.reduce_sum(tf.nn.embedding_lookup(table, rows), 1)
            loss = tf.reduce_mean(tf.square(model(x, training=True) - found))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * tf.convert_to_tensor(gradient))
        return loss

    def trained() -> list[bytes]:
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        losses = [step().numpy().tobytes() for _ in range(3)]
        return [*losses, *(v.numpy().tobytes() for v in variables)]

    first = trained()
    assert all(trained() == first for _ in range(4))
    with options.override(deterministic=True):
        assert trained() == first
