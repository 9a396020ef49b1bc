"""Sessions, estimators and Keras in version-1 style, on the NPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ge.target import host
from tests.tensorflow_v1.support import has_keras2

needs_keras2 = pytest.mark.skipif(
    not has_keras2(), reason="estimators and session-mode Keras need TensorFlow 2.15"
)


def test_sessions_do_what_tensorflow_documents(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("sessions.py")
    assert found["totals"] == [84.0, 276.0, 468.0]
    assert (found["end"], found["wrong"]) == ("OutOfRangeError", "InvalidArgumentError")
    assert found["v"] == found["restored"] == [1.75] * 3
    assert found["nine"] == [18.0] * 3
    assert (found["step"], found["iterations"]) == (1, 5)
    assert found["queue"] == [56.0, 504.0]
    np.testing.assert_allclose(found["then"], [math.exp(0.5) + 1, math.exp(2) + 1], rtol=1e-6)
    assert found["else"] == [-0.75, 3.0]
    assert found["power"] == found["callable"] == [0.5**5, 32.0]
    assert found["longer"] == [1.0] * 7
    assert (found["fed_middle"], found["after"]) == (6.0, 2.5)


def test_random_operators_go_on_from_run_to_run(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("random_state.py")
    sessions = found.pop("unseeded")
    assert len({tuple(values) for values in sessions}) == len(sessions)
    assert ("keras" in found) == has_keras2()
    for case, (ours, plain) in found.items():
        assert len({tuple(values) for values in plain}) > 2, case
        for one, other in zip(ours, plain, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=case)


def test_loops_stay_on_the_host_if_an_input_does_not_fit(run_v1_shared: Callable[..., Any]) -> None:
    for case, (ours, plain) in run_v1_shared("boundaries.py").items():
        assert ours == plain, case


def test_iterators_give_every_element_once(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("iterators.py")
    data = np.arange(48, dtype="f").reshape(12, 4) / 24
    squares = [float(np.sum(np.square(data[k : k + 5]))) for k in (0, 5, 10)]
    shot = found["one_shot"]
    np.testing.assert_allclose(
        [shot["first"], *shot["pair"]], [squares[0], squares[1], squares[1]], rtol=1e-6
    )
    np.testing.assert_allclose(shot["rest"], squares[2:], rtol=1e-6)
    totals = [k * float(np.sum(data[4 * (k % 3) : 4 * (k % 3) + 4])) for k in range(6)]
    assert found["two"]["first"] == [0.0, "0"]
    np.testing.assert_allclose(found["two"]["rest"], totals[1:], rtol=1e-6)
    rows = data.sum(1)
    np.testing.assert_allclose(found["feedable"]["chosen"], rows[[0, 2, 1, 3, 0]], rtol=1e-6)
    np.testing.assert_allclose(found["feedable"]["ends"][0], rows[10:], rtol=1e-6)
    np.testing.assert_allclose(found["feedable"]["ends"][1], rows[11:], rtol=1e-6)
    ours, plain = found["trained"]
    assert len(ours["losses"]) == 8
    np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-5)
    assert ours["update"] == "npu"


def test_what_porting_tools_add_changes_no_number(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("helpers.py")
    for name, trained in found["trained"].items():
        np.testing.assert_allclose(trained["losses"], found["reference"], rtol=1e-5, err_msg=name)
        assert (trained["parts"], trained["kept"]) == (1, []), name
    scales, weights = zip(*found["scales"], strict=True)
    assert scales == (16.0, 32.0, 32.0, 32.0, 16.0, 16.0, 16.0)
    assert weights == (0.5, 0.0, 0.0, -0.5, -0.5, -0.5, -1.0)  # steps with infinite gradients are left out
    np.testing.assert_allclose(found["monitored"], found["reference"], rtol=1e-5)
    assert found["collectives"] == [[1.0, 2.0]] * 3
    assert found["operators"]["lars"] < 1e-5
    assert found["operators"]["kept"] == pytest.approx(0.75, abs=0.05)
    assert found["operators"]["scale"] == pytest.approx(4 / 3)
    assert found["strategy"] == 6.0
    assert found["run_config"]
    losses, profiles = found["dumped"]
    assert losses >= 1 and profiles > 2


def test_sizes_that_a_run_shows_are_learned(run_v1_shared: Callable[..., Any]) -> None:
    """Updates move to the NPU once the sizes around them are known; batches of another size are right too."""
    found = run_v1_shared("sizes.py")
    for source, resource, ours, plain in found["trained"]:
        np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-5, err_msg=f"{source} {resource}")
        assert ours["update"] == "npu", (source, resource)
    assert found["kept"] < 1e-5
    assert found["coarse"] > 1e-4 or "bfloat16" not in host().narrow_floats
    one, e = [1.0, math.e], math.e
    np.testing.assert_allclose(
        found["partial"], [one, [1.0, e * e], [2.0, 2 * e], one, [6.0, 6.0]], rtol=1e-6
    )


def test_mixed_computing_cuts_where_the_host_is_needed(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("mixed.py")
    assert found["loss"] == pytest.approx(found["expected"], rel=1e-5)
    assert found["summary"] == pytest.approx(found["mean"], rel=1e-5)
    assert found["parts"] == 2  # one on either side of the Python function
    sides = {o["type"]: o["side"] for o in found["report"]["operations"]}
    assert sides["MatMul"] == sides["Tanh"] == "npu"
    assert (
        sides["PyFunc"] == sides["Substr"] == sides["LookupTableFindV2"] == sides["ScalarSummary"] == "host"
    )
    assert found["report"]["crossing"] > 0
    assert "on the NPU in 2 part(s)" in found["text"]


def test_tensors_between_parts_stay_in_the_devices_memory(run_v1: Callable[..., Any]) -> None:
    found = run_v1("resident.py")
    for ours, plain in found["trained"]:
        np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-4)
        assert ours["parts"] == 4
        assert ours["left"] >= 6
        assert ours["grown"] < 1 << 20  # of 200 steps
    assert found["calls"] == 160
    assert found["worst"] < 2e-3  # the last bit of float16
    assert max(found["refused"]) < 2e-3  # also where the host runs the part that leaves or takes something


@needs_keras2
@pytest.mark.parametrize(
    ("mode", "iterations"), [pytest.param("mixed", "1", marks=pytest.mark.slow), ("full", "10")]
)
def test_estimators_train_evaluate_predict_and_export(
    mode: str, iterations: str, run_v1: Callable[..., Any]
) -> None:
    found = run_v1("estimator.py", mode, iterations)
    assert found["step"] == 80
    assert found["checkpoint"] == "80"
    assert found["accuracy"] > 0.9
    assert found["agreement"] == pytest.approx(found["accuracy"])
    assert found["exported"]


@needs_keras2
@pytest.mark.parametrize("mode", ["mixed", pytest.param("full", marks=pytest.mark.slow)])
def test_keras_in_a_session(mode: str, run_v1: Callable[..., Any]) -> None:
    found = run_v1("keras_mode.py", mode)
    assert found["losses"][-1] < 0.5 * found["losses"][0]
    assert found["accuracy"] > 0.9
    assert found["error"] < 1e-5


@needs_keras2
def test_keras_models_as_estimators_and_recurrent_layers(run_v1: Callable[..., Any]) -> None:
    found = run_v1("keras_estimator.py")
    ours, plain = found["fit"]
    np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-5)
    assert ours["parts"] == 1
    assert {h.split(":")[0] for h in ours["host"]} == {"NoOp", "VarHandleOp"}
    estimator = found["estimator"]
    assert estimator["step"] == 40
    assert estimator["after"] < 0.5 * estimator["before"]
    assert estimator["error"] == pytest.approx(estimator["after"], rel=1e-4)


@needs_keras2
def test_contrib_by_its_equivalents(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("contrib.py")
    assert found["losses"][-1] < 0.5 * found["losses"][0]
    assert found["width"] == 16
    assert "tf.contrib.layers.no_such_layer has no equivalent" in found["missing"]


def test_recurrent_layers_equal_numpy(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("recurrent.py")
    assert max(found["errors"]) < 1e-6
    assert found["gradients"] == [[10, 24], [24]]


def test_variants_do_not_cross_between_parts_and_host(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("variants.py")
    assert found == {key: [[8.0, 0.0, 0.0, 8.0], [1.0, 3.0, 5.0, 7.0]] for key in ("known", "unknown")}
