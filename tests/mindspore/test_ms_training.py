"""Whole training steps on the engine: the losses of MindSpore's own back end, parameters updated in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ms = pytest.importorskip("mindspore", reason="MindSpore has an environment of its own: make test-mindspore")

import mindspore_npu  # noqa: E402
from tests.mindspore import ms_networks  # noqa: E402

STEPS = 20
SETTINGS: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 4, "make": lambda parameters: ms.nn.Momentum(parameters, 1e-3, 0.9)}
}


def losses(name: str, backend: str) -> np.ndarray:
    step, arguments = ms_networks.TRAINING[name](**SETTINGS.get(name, {}))
    jitted = ms.jit(step, backend=backend)
    return np.array([float(jitted(*arguments).asnumpy()) for _ in range(STEPS)])


@pytest.mark.parametrize("name", list(ms_networks.TRAINING))
def test_twenty_steps_have_the_losses_of_mindspore(name: str) -> None:
    wanted = losses(name, "ms_backend")
    mindspore_npu.reset_counts()
    found = losses(name, "npu")
    assert mindspore_npu.counts() == mindspore_npu.Counts(compiled=1, runs=STEPS, fallbacks=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_the_benchmark_runs() -> None:
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "mindspore.py"
    command = [sys.executable, str(script), "--quick", "--models", "lstm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert not done.returncode, done.stderr[-3000:]
    assert "geometric mean" in done.stdout
