"""Random programs of TensorFlow, in processes of their own, against TensorFlow on the CPU."""

from __future__ import annotations

import pytest

from ge.conformance.programs.hunt import hunt

COUNT = 100


def test_programs_agree_with_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_DEVICE_COUNT", "2")
    found = hunt("tensorflow", seed=0, count=COUNT, seconds=1e9)
    assert not found.failures, [f"{f.text}\n" for f in found.failures]
    assert found.statuses["pass"] > 0.85 * COUNT
    assert found.judged > 0.8 * found.elements
