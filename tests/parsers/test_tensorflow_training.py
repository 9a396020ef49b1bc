"""Gradients, optimizer steps and random numbers of TensorFlow graphs, compiled and compared with TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import ge

tf = pytest.importorskip("tensorflow")

from tests.support.tf_models import concrete, parse_function  # noqa: E402

raw = tf.raw_ops
RANDOM = np.random.default_rng(11)
GRADIENTS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {}


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def gradient(name: str, function: Callable[..., Any], *arrays: np.ndarray) -> None:
    GRADIENTS[name] = (function, arrays)


for padding in ("SAME", "VALID"):
    for stride in (1, 2):
        by = f"{padding} stride {stride}"
        gradient(
            f"Conv2D {by}",
            lambda x, w, p=padding, s=stride: tf.nn.conv2d(x, w, s, p),
            *(real(2, 9, 8, 3), real(3, 3, 3, 4)),
        )
        gradient(
            f"DepthwiseConv2dNative {by}",
            lambda x, w, p=padding, s=stride: tf.nn.depthwise_conv2d(x, w, [1, s, s, 1], p),
            *(real(2, 9, 8, 3), real(3, 3, 3, 2)),
        )
        gradient(
            f"MaxPool {by}", lambda x, p=padding, s=stride: tf.nn.max_pool2d(x, 3, s, p), real(2, 9, 8, 3)
        )
        gradient(
            f"AvgPool {by}", lambda x, p=padding, s=stride: tf.nn.avg_pool2d(x, 3, s, p), real(2, 9, 8, 3)
        )
    gradient(
        f"Conv3D {padding}",
        lambda x, w, p=padding: tf.nn.conv3d(x, w, [1, 1, 2, 1, 1], p),
        *(real(1, 5, 6, 5, 2), real(3, 3, 3, 2, 4)),
    )
gradient(
    "Conv2D dilated",
    lambda x, w: tf.nn.conv2d(x, w, 1, "SAME", dilations=2),
    real(2, 9, 8, 3),
    real(3, 3, 3, 4),
)
gradient("BiasAdd", tf.nn.bias_add, real(2, 3, 4, 5), real(5))
gradient(
    "FusedBatchNorm",
    lambda x, s, o: raw.FusedBatchNormV3(x=x, scale=s, offset=o, mean=[], variance=[], is_training=True)[0],
    *(real(2, 4, 5, 3), real(3), real(3)),
)
gradient("ResizeBilinear", lambda x: tf.image.resize(x, [7, 3]), real(2, 4, 5, 3))
gradient("ResizeNearestNeighbor", lambda x: tf.image.resize(x, [7, 3], "nearest"), real(2, 4, 5, 3))
gradient(
    "MirrorPad",
    lambda x: tf.pad(tf.pad(x, [[1, 1], [2, 0]], "REFLECT"), [[0, 2], [1, 1]], "SYMMETRIC"),
    real(4, 3),
)
gradient("log_softmax", tf.nn.log_softmax, real(4, 3))
gradient(
    "activations", lambda x: tf.nn.gelu(x) + tf.nn.selu(x) + tf.nn.silu(x) + tf.nn.softplus(x), real(4, 3)
)
gradient("BatchMatMul", lambda x, y: tf.matmul(x, y, transpose_b=True), real(2, 4, 3), real(2, 5, 3))
gradient("Einsum", lambda x, y: tf.einsum("bij,bjk->bik", x, y), real(2, 4, 3), real(2, 3, 5))
gradient("slices", lambda x, y: tf.concat([x, y], 1)[:, 1:4:2], real(4, 3), real(4, 2))
gradient(
    "reductions", lambda x: tf.reduce_max(x, 1) + tf.reduce_prod(x, 1) + tf.cumsum(x, 1)[:, 0], real(4, 3)
)
gradient("TopK", lambda x: tf.math.top_k(x, 2)[0], real(4, 5))
gradient(
    "While",
    lambda x: tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, tf.tanh(y * 1.1)), [0, x])[1],
    real(4, 3),
)
gradient("If", lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: x * x, lambda: tf.exp(x)), real(4, 3))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient(name: str) -> None:
    function, arrays = GRADIENTS[name]

    def gradients(*values: Any) -> Any:
        return tf.gradients(tf.reduce_sum(tf.square(function(*values))), list(values))

    traced = concrete(gradients, arrays)
    expected = [t.numpy() for t in traced(*(tf.constant(a) for a in arrays))]
    found = ge.compile(parse_function(traced).graph).run(list(arrays))
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=5e-4, atol=1e-3)


# -- optimizers ------------------------------------------------------------------------------------------------

PARAMETERS = {"lr": 0.1, "alpha": 0.1, "beta1": 0.9, "beta2": 0.99, "beta1_power": 0.81, "beta2_power": 0.97}
PARAMETERS |= {"epsilon": 1e-3, "rho": 0.9, "momentum": 0.8}
OPTIMIZERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, Any]]] = {
    "ResourceApplyGradientDescent": (("var",), ("alpha", "delta"), {}),
    "ResourceApplyMomentum": (("var", "accum"), ("lr", "grad", "momentum"), {"use_nesterov": True}),
    "ResourceApplyKerasMomentum": (("var", "accum"), ("lr", "grad", "momentum"), {"use_nesterov": True}),
    "ResourceApplyAdam": (
        ("var", "m", "v"),
        ("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon", "grad"),
        {"use_nesterov": True},
    ),
    "ResourceApplyAdamWithAmsgrad": (
        ("var", "m", "v", "vhat"),
        ("beta1_power", "beta2_power", "lr", "beta1", "beta2", "epsilon", "grad"),
        {},
    ),
    "ResourceApplyAdaMax": (
        ("var", "m", "v"),
        ("beta1_power", "lr", "beta1", "beta2", "epsilon", "grad"),
        {},
    ),
    "ResourceApplyRMSProp": (("var", "ms", "mom"), ("lr", "rho", "momentum", "epsilon", "grad"), {}),
    "ResourceApplyCenteredRMSProp": (
        ("var", "mg", "ms", "mom"),
        ("lr", "rho", "momentum", "epsilon", "grad"),
        {},
    ),
    "ResourceApplyAdagrad": (("var", "accum"), ("lr", "grad"), {}),
    "ResourceApplyAdagradV2": (("var", "accum"), ("lr", "epsilon", "grad"), {}),
    "ResourceApplyAdadelta": (("var", "accum", "accum_update"), ("lr", "rho", "epsilon", "grad"), {}),
    "ResourceSparseApplyAdagrad": (("var", "accum"), ("lr", "grad", "indices"), {}),
    "ResourceSparseApplyAdagradV2": (("var", "accum"), ("lr", "epsilon", "grad", "indices"), {}),
    "ResourceSparseApplyMomentum": (("var", "accum"), ("lr", "grad", "indices", "momentum"), {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_step(name: str) -> None:
    slots, operands, attrs = OPTIMIZERS[name]
    sparse = "Sparse" in name
    start = {s: np.abs(real(4, 3)) + np.float32(1) for s in slots}
    variables = {s: tf.Variable(start[s], name=s) for s in slots}
    given = {"grad": real(2, 3) if sparse else real(4, 3), "delta": real(4, 3), "indices": np.int32([3, 1])}

    def step(change: Any) -> Any:
        values = {o: given["indices"] if o == "indices" else PARAMETERS.get(o, change) for o in operands}
        for variable in variables.values():
            variable.value()  # so that the trace knows of it
        handles = {s: v.handle for s, v in variables.items()}
        getattr(raw, name)(**handles, **values, **attrs)
        return change + 0.0

    change = given["grad"] if "grad" in operands else given["delta"]
    traced = concrete(step, [change])
    parsed = parse_function(traced, updates=True)
    reads = [start[n.removesuffix(":0")] for n in parsed.reads]
    _, *written = ge.compile(parsed.graph).run([change, *reads])
    traced(tf.constant(change))
    assert set(parsed.updates) == {f"{s}:0" for s in slots}
    for variable, value in zip(parsed.updates, written, strict=True):
        np.testing.assert_allclose(
            value, variables[variable.removesuffix(":0")].numpy(), rtol=1e-4, atol=1e-5
        )


def test_a_training_step_with_keras_and_adam_is_the_same() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, activation="relu"), tf.keras.layers.Dense(2)])
    x, y = real(4, 3), real(4, 2)
    model(x)
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    traced = concrete(train, [x, y])
    parsed = parse_function(traced, updates=True)
    variables = {v.value.name: v.value for v in (*model.variables, *optimizer.variables)}
    before = [variables[n].numpy() for n in parsed.reads]
    loss, *written = ge.compile(parsed.graph).run([x, y, *before])
    np.testing.assert_allclose(loss, traced(tf.constant(x), tf.constant(y)).numpy(), rtol=1e-5)
    for name, value in zip(parsed.updates, written, strict=True):
        np.testing.assert_allclose(value, variables[name].numpy(), rtol=1e-4, atol=1e-6)


# -- random numbers --------------------------------------------------------------------------------------------

DRAWS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda s: tf.random.stateless_uniform([3, 7], s, 2.0, 5.0),
    "uniform float64": lambda s: tf.random.stateless_uniform([5], s, dtype=tf.float64),
    "uniform float16": lambda s: tf.random.stateless_uniform([5], s, dtype=tf.float16),
    "uniform bfloat16": lambda s: tf.random.stateless_uniform([5], s, dtype=tf.bfloat16),
    "integers": lambda s: tf.random.stateless_uniform([3, 7], s, -3, 11, dtype=tf.int32),
    "long integers": lambda s: tf.random.stateless_uniform([5], s, -3, 11, dtype=tf.int64),
    "all integers": lambda s: tf.random.stateless_uniform([5], s, None, None, dtype=tf.int32),
    "all long integers": lambda s: tf.random.stateless_uniform([5], s, None, None, dtype=tf.uint64),
    "by a seed": lambda s: raw.StatelessRandomUniform(shape=[4], seed=s),
    "by a derived seed": lambda s: tf.random.stateless_uniform(
        [3], tf.random.experimental.stateless_fold_in(s, 3)
    ),
    "dropout": lambda s: tf.nn.experimental.stateless_dropout(tf.ones([4, 5]), 0.3, seed=s),
}


@pytest.mark.parametrize("name", DRAWS)
def test_stateless_numbers_are_tensorflows_to_the_bit(name: str) -> None:
    seed = np.int32([5, -7])
    traced = concrete(DRAWS[name], [seed])
    found = ge.compile(parse_function(traced).graph).run([seed])[0]
    np.testing.assert_array_equal(found, traced(tf.constant(seed)).numpy())


@pytest.mark.parametrize("draw", [tf.random.stateless_normal, tf.random.stateless_truncated_normal])
def test_stateless_normal_numbers_are_tensorflows(draw: Callable[..., Any]) -> None:
    seed = np.int32([1, 2])
    traced = concrete(lambda s: draw([50, 7], s), [seed])
    found = ge.compile(parse_function(traced).graph).run([seed])[0]
    np.testing.assert_allclose(found, traced(tf.constant(seed)).numpy(), atol=1e-5)


def test_numbers_with_state_have_the_right_distribution() -> None:
    def draw(x: Any) -> Any:
        kinds = (
            tf.random.uniform([4000], seed=3),
            tf.random.normal([4000]),
            tf.random.truncated_normal([4000]),
        )
        return [numbers + x for numbers in kinds]

    traced = concrete(draw, [np.float32(0)])
    uniform, normal, truncated = ge.compile(parse_function(traced).graph).run([np.float32(0)])
    assert 0 <= uniform.min() < 0.05 < 0.95 < uniform.max() < 1
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.1
    assert 1.5 < np.abs(truncated).max() <= 2
    assert abs(truncated.std() - 0.88) < 0.05
