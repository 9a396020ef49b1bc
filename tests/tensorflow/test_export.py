"""Export: the same model file as atc makes, with the same answers as the framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ge
import tf_adapter
from ge.model import om
from ge.offline import Request, compile_model
from tests.tensorflow.comparing import equal


def _network() -> Any:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            layers.Input((16, 16, 3)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5, activation="softmax"),
        ]
    )


X = np.random.RandomState(0).rand(2, 16, 16, 3).astype(np.float32)


def test_a_keras_model(tmp_path: Path) -> None:
    model = _network()
    path = tf_adapter.export(model, tmp_path / "m.om", tf.TensorSpec([2, 16, 16, 3], name="image"))
    loaded = ge.compile(path)
    assert [p.name for p in loaded.inputs] == ["image"]
    equal(model(X), loaded(X))


def test_an_open_batch_size_is_one(tmp_path: Path) -> None:
    model = _network()
    loaded = ge.compile(tf_adapter.export(model, tmp_path / "m.om"))
    equal(model(X[:1]), loaded(X[:1]))


def test_a_function_with_several_inputs(tmp_path: Path) -> None:
    weights = tf.Variable(np.eye(3, dtype=np.float32) * 2)

    @tf.function
    def function(a: Any, b: Any) -> Any:
        return {"product": a @ weights, "sum": a + b}

    specs = [tf.TensorSpec([2, 3], name="a"), tf.TensorSpec([2, 3], name="b")]
    loaded = ge.compile(tf_adapter.export(function, tmp_path / "f.om", specs))
    a, b = np.ones((2, 3), np.float32), np.full((2, 3), 3, np.float32)
    results = dict(zip((p.name for p in loaded.outputs), loaded(a=a, b=b), strict=True))
    equal(a * 2, results["product"])
    equal(a + b, results["sum"])


def test_the_same_as_atc(tmp_path: Path) -> None:
    model = _network()
    ours = tf_adapter.export(model, tmp_path / "ours.om", tf.TensorSpec([2, 16, 16, 3], name="image"))
    call = tf.function(lambda image: model(image, training=False))
    concrete = call.get_concrete_function(tf.TensorSpec([2, 16, 16, 3], name="image"))
    module = tf.Module()
    module.kept = list(concrete.graph.variables)
    tf.saved_model.save(module, str(tmp_path / "ours"), signatures=concrete)
    theirs = compile_model(Request(tmp_path / "ours", tmp_path / "theirs.om")).path
    one, other = (om.read(p).plans[0] for p in (ours, theirs))
    assert [(t.kind, t.attrs) for t in one.tasks] == [(t.kind, t.attrs) for t in other.tasks]
    for a, b in zip(one.constants, other.constants, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_cannot_be_compiled_is_named(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.UnimplementedError, match="AsString"):
        tf_adapter.export(lambda x: tf.strings.as_string(x), tmp_path / "m.om", tf.TensorSpec([2]))
