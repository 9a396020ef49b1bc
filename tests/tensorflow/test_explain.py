"""Explanations: what runs where, why, and how much of the work that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_adapter
from tests.tensorflow.comparing import NPU
from tf_adapter.explanation import explain
from tf_adapter.options import options

X = tf.constant(np.random.RandomState(0).rand(8, 8).astype(np.float32))


@tf.function
def mixed(x: Any) -> Any:
    y = tf.nn.relu(x @ x)
    z = tf.numpy_function(lambda a: a + 1, [y], tf.float32)
    return tf.nn.softmax(tf.ensure_shape(z, [8, 8]) @ x)


def test_a_function_that_is_wholly_on_the_npu() -> None:
    found = explain(lambda x: tf.nn.softmax(x @ x), X)
    assert found.steps == ("NPU",)
    assert found.node_share == found.flops_share == 1.0
    assert not found.host_rows


def test_host_nodes_have_reasons_and_remedies() -> None:
    found = explain(mixed, X)
    assert found.steps == ("NPU", "host", "NPU")
    (row,) = found.host_rows
    assert "PyFunc" in row.operator
    assert row.reason == "it calls Python"
    assert "TensorFlow's operators" in row.remedy
    assert 0.9 < found.flops_share < 1.0


def test_arithmetic_is_counted() -> None:
    kernel = tf.ones([3, 3, 2, 4])

    def function(x: Any) -> Any:
        image = tf.reshape(tf.tile(x, [1, 2]), [1, 8, 8, 2])
        return tf.nn.conv2d(image, kernel, 1, "SAME"), x @ x, tf.einsum("ij,kj->ik", x, x)

    flops = {r.operator: r.flops for r in explain(function, X).rows if r.flops}
    assert flops["Conv2D"] == 2 * 8 * 8 * 4 * 3 * 3 * 2
    assert flops["MatMul"] == 2 * 8 * 8 * 8
    assert flops["Einsum"] == 2 * 8 * 8 * 8


def test_nothing_is_run() -> None:
    count = tf.Variable(0)

    @tf.function
    def function(x: Any) -> Any:
        count.assign_add(1)
        tf.print("never")
        return x @ x

    explain(function, X)
    assert count.numpy() == 0


def test_models_and_descriptions() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input((8,)), tf.keras.layers.Dense(4)])
    assert explain(model, tf.TensorSpec([2, 8])).flops_share == 1.0


def test_text_json_and_html(tmp_path: Path) -> None:
    found = explain(mixed, X)
    assert "it calls Python" in str(found)
    data = json.loads(found.save(tmp_path / "a.json").read_text())
    assert data["steps"] == ["NPU", "host", "NPU"]
    assert {n["place"] for n in data["nodes"]} == {"NPU", "host"}
    page = found.save(tmp_path / "a.html").read_text()
    assert page.count("<tr") > len(found.rows)
    assert "it calls Python" in page


def test_printed_at_every_compile(capsys: pytest.CaptureFixture[str]) -> None:
    with tf.device(NPU), options.override(explain=True):
        tf.function(lambda x: tf.sin(x) @ x)(X)
    assert "of the arithmetic on the NPU" in capsys.readouterr().out


def test_public_name() -> None:
    assert tf_adapter.explain is explain
