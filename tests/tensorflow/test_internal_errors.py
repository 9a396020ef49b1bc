"""A defect of the compiler sends work to the host: with the framework's answer, one warning and a line in `explain`."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tensorflow as tf

import tf_adapter
import tf_adapter.eager
import tf_adapter.lowering
from ge import faults
from ge.ops import plugins
from ge.parsers.tensorflow.convert import Converter


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(tf_adapter.lowering, "compile_plan", fail)
    monkeypatch.setattr(tf_adapter.eager, "compile_graph", fail)
    monkeypatch.setattr(faults, "_shown", set())
    monkeypatch.setenv("NPU_INTERNAL_ERRORS", "warn")


@pytest.mark.usefixtures("broken_compiler")
def test_a_function_runs_on_the_host_with_one_warning() -> None:
    double = tf.function(lambda x: x * 2.0 + 1.0)
    before = len(faults.recorded())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for size in (2, 3):
            assert double(tf.ones([size])).numpy().tolist() == [3.0] * size
    told = [w for w in seen if issubclass(w.category, faults.InternalErrorWarning)]
    assert len(told) == 1 and "a defect" in str(told[0].message)
    assert len(faults.recorded()) - before == 2
    assert "internal error in the compiler: KeyError" in str(tf_adapter.explain(double, tf.ones([2])))


@pytest.mark.usefixtures("broken_compiler")
def test_an_eager_operator_runs_on_the_host_with_a_warning() -> None:
    a = tf.reshape(tf.range(49 * 51, dtype=tf.float32), [49, 51])
    with pytest.warns(faults.InternalErrorWarning, match="a defect"):
        for _ in range(tf_adapter.options.eager_threshold + 1):
            product = tf.matmul(a, a, transpose_b=True)
    with tf.device("/CPU:0"):
        tf.debugging.assert_near(product, tf.matmul(a, a, transpose_b=True))


@pytest.mark.usefixtures("broken_compiler")
def test_tests_fail_on_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_INTERNAL_ERRORS", "raise")
    with pytest.raises(tf.errors.OpError, match="a defect"):
        tf.function(lambda x: x * 3.0)(tf.ones([2]))


@pytest.mark.parametrize("error", [ValueError, RuntimeError, ZeroDivisionError])
def test_any_untyped_error_of_a_plugin_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def stumble(converter: Any, context: Any) -> Any:
        raise error("a defect")

    monkeypatch.setattr(Converter, "dispatch", stumble)
    monkeypatch.setattr(faults, "_shown", set())
    monkeypatch.setenv("NPU_INTERNAL_ERRORS", "warn")
    with pytest.warns(faults.InternalErrorWarning, match="a defect"):
        assert tf.function(lambda x: x * 2.0)(tf.ones([2])).numpy().tolist() == [2.0] * 2


def test_the_error_of_a_users_plugin_reaches_the_user() -> None:
    @plugins.plugin(tensorflow="Softsign")
    def convert(node: plugins.Node) -> Any:
        raise ValueError("on purpose")

    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"E10601.*ValueError: on purpose"):
            tf.function(tf.nn.softsign)(tf.ones([2]))
    finally:
        for item in plugins.custom():
            plugins.remove(item)
