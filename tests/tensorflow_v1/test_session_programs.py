"""Random programs of TensorFlow 1, in processes of their own, against sessions without the NPU."""

from __future__ import annotations

from ge.conformance.programs.hunt import hunt

COUNT = 100


def test_programs_agree_with_sessions_without_the_npu() -> None:
    found = hunt("tensorflow_v1", seed=0, count=COUNT, seconds=1e9)
    assert not found.failures, [f"{f.text}\n" for f in found.failures]
    assert found.statuses["pass"] > 0.85 * COUNT
    assert found.judged > 0.8 * found.elements
