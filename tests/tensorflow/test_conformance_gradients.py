"""Gradients of TensorFlow's operators on the NPU: a part of the sweep, and that it finds what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_adapter")

from tests.support.sampling import one_in  # noqa: E402
from tf_adapter import device  # noqa: E402
from tf_adapter.conformance import gradients, registered  # noqa: E402
from tf_adapter.conformance.programs import PROGRAMS  # noqa: E402
from tf_adapter.conformance.rows import Case, Row, V  # noqa: E402

QUICK = gradients.collect(quick=True)
SHARE = 8  # one case of so many in every run
GOOD = ("npu", "host", "none", "unlike")
OF_PROGRAMS = [n for n, c in QUICK.items() if any(c.row is r for r in PROGRAMS)]


@pytest.fixture(scope="module", autouse=True)
def everything_on_npu():
    device.everything_on_npu(True)
    yield
    device.everything_on_npu(False)


@pytest.mark.parametrize("mode", gradients.MODES)
@pytest.mark.parametrize("name", one_in(4, sorted(QUICK)[::SHARE]))
def test_a_share_of_the_sweep(name: str, mode: str) -> None:
    try:
        result = gradients.check(QUICK[name], mode)
    except LookupError:
        pytest.skip(f"TensorFlow {tf.__version__} has no {QUICK[name].operator}")
    assert result["status"] in GOOD, result["reason"]


@pytest.mark.parametrize("mode", gradients.MODES)
@pytest.mark.parametrize("name", one_in(3, OF_PROGRAMS))
def test_programs(name: str, mode: str) -> None:
    """Control flow, lists, lookups, ragged and sparse values: every one of them has a gradient."""
    try:
        result = gradients.check(QUICK[name], mode)
    except AttributeError as error:
        pytest.skip(f"TensorFlow {tf.__version__}: {error}")
    assert result["status"] in ("npu", "host", "unlike"), result["reason"]


@pytest.mark.slow
def test_every_registered_gradient_is_in_a_case_or_has_a_reason() -> None:
    reached: set[str] = set()
    for case in QUICK.values():
        try:
            reached |= gradients.reached(case)
        except (
            LookupError,
            NotImplementedError,
            TypeError,
        ):  # no gradient, or one that TensorFlow cannot call
            continue
    assert registered.unchecked(reached).get("", []) == []
    assert [n for n in reached if registered.excuse(n)] == []


COMMON = ["Conv2D", "MatMul", "Softmax", "Mul", "Sigmoid", "GatherV2", "MaxPool", "Tanh", "Relu"]


@pytest.mark.parametrize("name", COMMON)
def test_gradients_of_the_common_operators_run_on_the_npu(name: str) -> None:
    case = next(c for c in QUICK.values() if c.operator == name)
    found = gradients.check(case, "function")
    assert (found["status"], found["reason"]) == ("npu", "")
    assert name in found["gradients"]


def test_the_gradient_of_a_diagonal_stays_right() -> None:
    """An index that the result names twice is not one the compiler knows."""
    with tf.device("/NPU:0"):
        found = tf.raw_ops.Einsum(inputs=[tf.constant([1.0, 2.0])], equation="i->ii")
    np.testing.assert_array_equal(found, np.diag(np.float32([1, 2])))


FOUND_WRONG = ["AvgPool/0.0/float64", "SparseDenseCwiseMul/0.1/float32", "ResizeBilinear/0.0/float64"]


@pytest.mark.parametrize("name", FOUND_WRONG)
def test_what_the_whole_sweep_found_stays_right(name: str) -> None:
    assert gradients.check(gradients.collect()[name], "eager")["status"] in GOOD


def test_a_slice_to_the_end_follows_its_start() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    cut = tf.function(lambda v, start: tf.slice(v, tf.stack([0, start]), [-1, -1]) * 1.0)
    with tf.device("/NPU:0"):
        for start in (0, 1, 2, 0):
            found = tf.raw_ops.Slice(input=x, begin=[0, start], size=[-1, -1])
            np.testing.assert_array_equal(found, x[:, start:])
            np.testing.assert_array_equal(cut(tf.constant(x), tf.constant(start)), x[:, start:])


def test_tensorflow_resizes_float64_with_weights_of_float32() -> None:
    """Why gradients of images in float64 are compared as those of float32."""
    up = np.random.default_rng(0).uniform(-1, 1, (1, 9, 1, 1)).astype(np.float32)
    places = np.arange(9) * 6 / 9
    low, share = np.floor(places).astype(int), places % 1
    expected = np.zeros(6)
    np.add.at(expected, low, (1 - share) * up.ravel())
    np.add.at(expected, np.minimum(low + 1, 5), share * up.ravel())
    with tf.device("/CPU:0"):
        found = tf.raw_ops.ResizeBilinearGrad(grads=up, original_image=np.zeros((1, 6, 1, 1)))
    assert found.dtype == tf.float64
    error = np.abs(found.numpy().ravel() - expected).max()
    assert 1e-10 < error < 1e-6


def test_tensorflow_s_infinite_complex_products_depend_on_the_place() -> None:
    """Why gradients at complex infinities are not compared: one value has two gradients in one array."""
    with tf.device("/CPU:0"), tf.GradientTape() as tape:
        x = tf.constant(np.full(9, complex(np.inf, 1), np.complex64))
        tape.watch(x)
        squares = tf.square(x)
    np.testing.assert_array_equal(np.isinf(squares.numpy().real), True)
    with tf.device("/CPU:0"):
        up = tf.fill([9], tf.constant(0.5 + 0.25j, tf.complex64))
        found = tape.gradient(squares, x, output_gradients=up).numpy()
    assert 0 < np.isnan(found.real).sum() < 9


@pytest.mark.exhaustive
def test_the_whole_sweep_finds_nothing_wrong() -> None:
    command = [sys.executable, "-m", "tf_adapter.conformance", "gradients", "--json", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    report = json.loads(done.stdout)
    assert [c for c in report["cases"] if c["status"] in ("wrong", "crash")] == []
    assert report["unchecked"].get("", []) == []
    assert done.returncode == 0


@pytest.mark.slow
def test_the_command_line_runs_some_cases() -> None:
    command = [sys.executable, "-m", "tf_adapter.conformance", "gradients", "--json", "--quick"]
    options = ["--filter", "^(Tanh|Sigmoid)/", "--modes", "function", "--least", "2"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {c["status"] for c in report["cases"]} == {"npu"}
    assert report["on_npu"] == 2


# -- the sweep itself ----------------------------------------------------------------------------------------


def _case(function: Any, **arguments: Any) -> Case:
    return Case(Row("Made", arguments, function=function), "Made/0.0/float32", "float32", arguments)


@tf.custom_gradient
def _other_gradient_on_npu(x: Any) -> Any:
    def backward(upstream: Any) -> Any:
        return upstream * (3.0 if "NPU" in (tf.constant(0.0).device or "") else 2.0)

    return x * 2.0, backward


@tf.custom_gradient
def _not_the_derivative(x: Any) -> Any:
    return x * 2.0, lambda upstream: upstream * 5.0


@pytest.mark.parametrize(
    ("function", "status"),
    [
        (lambda x: _other_gradient_on_npu(x), "wrong"),
        (lambda x: _not_the_derivative(x), "unlike"),
        (lambda x: tf.stop_gradient(x), "none"),
        (lambda x: tf.cast(x, tf.int32), "none"),
        (lambda x: x * x, "npu"),
    ],
)
def test_faults_are_told_apart(function: Any, status: str) -> None:
    assert gradients.check(_case(function, x=V(3)), "eager")["status"] == status


def test_a_gradient_that_is_wrong_by_differences_alone_is_found() -> None:
    case = _case(lambda x: x * x, x=V(3))
    problem = gradients._Problem(case, lambda x: x * x, [np.float32([1, 2, 3])], [0])
    right = [np.asarray(g) for g in problem.gradients(*map(tf.constant, problem.arrays))]
    assert gradients._numerically(problem, right, right) is None
    result = gradients._numerically(problem, [right[0] * 1.01], right)
    assert result is not None and result["status"] == "wrong"
