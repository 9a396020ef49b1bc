"""Variables by reference and by handle: read and updated inside the parts, as TensorFlow does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tensorflow_v1.support import Worker, has_keras2


@pytest.fixture(scope="module")
def trained(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return worker.run("variables.py", folder=tmp_path_factory.mktemp("variables"))


def test_every_optimizer_is_one_part_and_equals_tensorflow(trained: Any) -> None:
    assert len(trained) == 40
    for name, rows, resource, ours, plain in trained:
        case = f"{name}, rows {rows}, resource {resource}"
        np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-5, err_msg=case)
        for got, wanted in zip(ours["values"], plain["values"], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=case)
        assert ours["step"] == plain["step"] == 4, case
        assert ours["parts"] == 1, case
        others = [h for h in ours["host"] if not h.endswith("it belongs to the host")]
        assert others == [], case


def test_values_are_those_that_tensorflow_shows(run_v1_shared: Callable[..., Any]) -> None:
    """Snapshots, orders of reads and updates, branches with effects, tables too large to copy."""
    found = run_v1_shared("states.py")
    for kind in ("reference", "resource"):
        ours, plain = found[kind]
        for name, wanted in plain["values"].items():
            np.testing.assert_allclose(ours["values"][name], wanted, rtol=1e-6, err_msg=f"{kind} {name}")
        assert ours["parts"]["branch"] == 1, kind
    assert "ResourceScatterAdd" in found["large"]["host"]
    assert "ScatterSub" in found["large_reference"]["npu"]
    for size in ("large", "large_reference"):
        np.testing.assert_allclose(found[size]["row"], found[size]["expected"], rtol=1e-6)


@pytest.mark.skipif(not has_keras2(), reason="session-mode Keras needs TensorFlow 2.15")
def test_every_keras_optimizer_is_one_part_and_equals_tensorflow(run_v1: Callable[..., Any]) -> None:
    found = run_v1("keras_optimizers.py")
    assert len(found) == 8
    for name, (ours, plain) in found.items():
        np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(ours["metric"], plain["metric"], rtol=1e-5, err_msg=name)
        assert ours["parts"] == 1, name
        assert [h for h in ours["host"] if not h.endswith("it belongs to the host")] == [], name


@pytest.mark.skipif(not has_keras2(), reason="session-mode Keras needs TensorFlow 2.15")
def test_newer_keras_optimizers_are_what_they_are_in_tensorflow(run_v1: Callable[..., Any]) -> None:
    """TensorFlow refuses them in sessions: the words are its own. `tf.keras.optimizers` of version 1 has the others."""
    ours, plain = run_v1("keras_optimizers.py", "newer")
    assert ours == plain
    assert "eager execution" in ours
