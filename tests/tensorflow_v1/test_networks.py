"""Networks in version-1 style train on the NPU as they do in plain TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tensorflow_v1.support import Worker, has_keras2

NAMES = ["lenet", "resnet", "word2vec", "seq2seq", "ctr", "gan", "dqn"] + ["lstm"] * has_keras2()


@pytest.fixture(scope="module")
def trained(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return worker.run("networks.py", *NAMES, folder=tmp_path_factory.mktemp("networks"))


@pytest.mark.parametrize("name", NAMES)
def test_losses_equal_plain_tensorflow(name: str, trained: Any) -> None:
    ours, plain = trained[name]
    assert ours["parts"] >= 1
    assert ours["npu"] > 10
    np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-3)
    assert ours["losses"][0] != ours["losses"][-1]


def test_only_the_retained_operators_are_on_the_host(run_v1_shared: Callable[..., Any]) -> None:
    found = run_v1_shared("retained.py")
    assert found["host"] == ["AddV2", "Mul"]
    assert found["cost"] == pytest.approx(found["expected"], rel=1e-6)
    assert found["parts"] == 2


def test_gradients_of_loops(run_v1_shared: Callable[..., Any]) -> None:
    """Stacks are on the NPU unless a branch decides what is kept; assertions fail on either side."""
    found = run_v1_shared("loops.py")
    for name, on_npu in (("lengths", True), ("branches", False), ("inside", False), ("unequal", True)):
        ours, plain = found[name]
        np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-5)
        assert ("StackPopV2" in ours["kinds"]) == on_npu, name
    assert [side["failed"] for side in found["unequal"]] == ["InvalidArgumentError"] * 2


@pytest.mark.parametrize("name", [n for n in NAMES if n in ("lstm", "seq2seq")])
def test_loops_train_on_the_npu(name: str, trained: Any) -> None:
    ours, plain = trained[name]
    assert ours["npu"] > 140
    np.testing.assert_allclose(ours["losses"], plain["losses"], rtol=1e-5)
