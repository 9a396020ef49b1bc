"""The sweep over TensorFlow's operators: a part of it, and that it finds what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf_adapter")

from ge.conformance.pool import run_cases  # noqa: E402
from tests.support.sampling import one_in  # noqa: E402
from tf_adapter import device  # noqa: E402
from tf_adapter.conformance import coverage, worker  # noqa: E402
from tf_adapter.conformance.rows import Case, Row, V  # noqa: E402

QUICK = worker.collect(quick=True)
SHARE = 5  # one case of so many in every run


@pytest.fixture(scope="module", autouse=True)
def everything_on_npu():
    device.everything_on_npu(True)
    yield
    device.everything_on_npu(False)


@pytest.mark.parametrize("mode", worker.MODES)
@pytest.mark.parametrize("name", one_in(4, sorted(QUICK)[::SHARE]))
def test_a_share_of_the_sweep(name: str, mode: str) -> None:
    try:
        result = worker.check(QUICK[name], mode)
    except LookupError:
        pytest.skip(f"TensorFlow {tf.__version__} has no {QUICK[name].operator}")
    assert result["status"] in ("npu", "host", "refused"), result["reason"]


@pytest.mark.parametrize(
    "name", ["Conv2D", "MatMul", "Softmax", "AddV2", "Mean", "GatherV2", "ResizeBilinear", "Einsum"]
)
@pytest.mark.parametrize("mode", worker.MODES)
def test_the_common_operators_run_on_the_npu(name: str, mode: str) -> None:
    case = next(c for c in QUICK.values() if c.operator == name)
    assert worker.check(case, mode)["status"] == "npu"


def test_every_operator_is_swept_or_excepted_with_a_reason() -> None:
    assert coverage.left_out() == []


@pytest.mark.exhaustive
def test_the_whole_sweep_finds_nothing_wrong_and_three_hundred_types_on_the_npu() -> None:
    command = [sys.executable, "-m", "tf_adapter.conformance", "--json", "--jobs", "2", "--least", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    report = json.loads(done.stdout)
    assert [c for c in report["cases"] if c["status"] in ("wrong", "crash")] == []
    assert done.returncode == 0


# -- the sweep itself ----------------------------------------------------------------------------------------


def _case(function, **arguments: object) -> Case:
    return Case(Row("Made", arguments, function=function), "Made/0.0/float32", "float32", arguments)


def _fault_of_device(x):
    """Another result where the NPU is the current device."""
    return x + 1 if "NPU" in (tf.constant(0.0).device or "") else x


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_a_wrong_result_is_found(mode: str) -> None:
    result = worker.check(_case(_fault_of_device, x=V(3)), mode)
    if mode == "eager":
        assert result["status"] == "wrong"
    assert result["status"] in ("wrong", "npu", "host")


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (np.float32([1, 2, 3]), ""),
        (np.float32([1, 2, 3.001]), "1 of 3 elements differ"),
        (np.float32([1, 2, np.nan]), "1 of 3 elements differ"),
        (np.float32([1, 2]), "float32[2], expected float32[3]"),
        (np.float64([1, 2, 3]), "float64[3], expected float32[3]"),
    ],
)
def test_differences_are_told(found: np.ndarray, fault: str) -> None:
    told = worker._difference(Row("Made", {}), [found], [np.float32([1, 2, 3])])
    assert (fault in told) if fault else told == ""


def test_not_a_number_equals_itself_and_infinities_their_like() -> None:
    special = np.float32([np.nan, np.inf, -np.inf])
    assert worker._difference(Row("Made", {}), [special], [special.copy()]) == ""
    assert worker._difference(Row("Made", {}), [-special], [special]) != ""


def test_a_call_that_tensorflow_refuses_must_be_refused() -> None:
    def refused(x):
        return tf.raw_ops.Reshape(tensor=x, shape=[7])

    assert worker.check(_case(refused, x=V(3)), "eager")["status"] == "refused"


def test_a_worker_that_dies_is_a_crash_and_the_rest_goes_on() -> None:
    cases = [Case(Row("Made", {}), name, "float32", {}, "eager") for name in ("good", "bad", "good")]
    results: list[str] = []
    run_cases(cases, {}, 1, 30.0, lambda c, r: results.append(r["status"]), "tests.support.dying_worker")
    assert results == ["npu", "crash", "npu"]
