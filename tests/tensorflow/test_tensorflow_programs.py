"""Random programs of TensorFlow, in processes of their own, against TensorFlow on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from ge.conformance.programs.hunt import hunt
from ge.conformance.programs.judge import Reference
from ge.conformance.programs.record import Input, Program, Statement, Value

COUNT = 1000


def test_programs_agree_with_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_DEVICE_COUNT", "2")
    found = hunt("tensorflow", seed=0, count=COUNT, seconds=1e9, short=True)
    assert not found.failures, [f"{f.text}\n" for f in found.failures]
    assert found.statuses["pass"] > 0.85 * COUNT
    assert found.judged > 0.8 * found.elements


@pytest.mark.parametrize(("images", "runs"), [(0, False), (2, True)])
def test_runs_in_which_tensorflow_contradicts_itself_are_left_out(images: int, runs: bool) -> None:
    """Its convolution of an empty batch has the channels of the input."""
    from tf_adapter.conformance.random_programs import TensorFlowDoor

    arrays = np.ones((images, 2, 2, 5), np.float32), np.ones((1, 1, 5, 2), np.float32)
    y = Value("y", "float32", (images, 2, 2, 10))
    text = "tf.nn.depthwise_conv2d({0}, {1}, [1, 1, 1, 1], 'SAME')"
    call = Statement("depthwise_conv2d", text, ("x", "w"), (y,))
    inputs = tuple(Input.given(n, a) for n, a in zip("xw", arrays, strict=True))
    reference = Reference(TensorFlowDoor(), Program(inputs, (call,), (y,), "eager"))
    assert reference.shortened() != runs
    assert bool(reference.runs) == runs
