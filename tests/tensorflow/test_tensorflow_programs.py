"""Random programs of TensorFlow, in processes of their own, against TensorFlow on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ge.conformance.programs import judge
from ge.conformance.programs.hunt import hunt
from ge.conformance.programs.judge import Reference
from ge.conformance.programs.record import Input, Noise, Program, Statement, Value

COUNT = 1000


def test_programs_agree_with_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_DEVICE_COUNT", "2")
    found = hunt("tensorflow", seed=0, count=COUNT, seconds=1e9, short=True)
    assert not found.failures, [f"{f.text}\n" for f in found.failures]
    assert found.statuses["pass"] > 0.85 * COUNT
    assert found.judged > 0.8 * found.elements


def _program(text: str, mode: str, *arrays: np.ndarray, options: tuple[str, ...] = ()) -> tuple[Any, Program]:
    """A program of one sum, and its door."""
    from tf_adapter.conformance.random_programs import TensorFlowDoor

    names = tuple("xyz"[: len(arrays)])
    value = Value("r", "float32", ())
    call = Statement("one", text, names, (value,), (), Noise.ARGUMENTS)
    inputs = tuple(Input.given(n, a) for n, a in zip(names, arrays, strict=True))
    return TensorFlowDoor(), Program(inputs, (call,), (value,), mode, options)


def test_sums_of_a_narrower_type_have_its_tolerance() -> None:
    """Images of float64 are resized in float32."""
    image = np.random.default_rng(0).standard_normal((1, 5, 5, 1))
    door, program = _program("tf.image.resize({0}, [3, 2], 'area')", "eager", image)
    tolerance = Reference(door, program).of(0, 0, judge.MANY_RUNS).tolerance
    assert (tolerance > 1e-7).all() and (tolerance < 1e-5).all()


def test_gradients_of_unread_values_may_be_those_of_functions() -> None:
    """Zero times infinity in a function's loop, and none operator by operator."""
    text = "tf.while_loop(lambda i, a, b: i < 1, lambda i, a, b: (i + 1, a, b * tf.math.log({0})), (0, {0}, {0}))[1]"
    door, program = _program(text, "function", np.float32([-1.0, 2.0]), options=("gradient",))
    assert judge.check(door, program).status == "pass"


@pytest.mark.parametrize(("images", "runs"), [(0, False), (2, True)])
def test_runs_in_which_tensorflow_contradicts_itself_are_left_out(images: int, runs: bool) -> None:
    """Its convolution of an empty batch has the channels of the input."""
    from tf_adapter.conformance.random_programs import TensorFlowDoor

    arrays = np.ones((images, 2, 2, 5), np.float32), np.ones((1, 1, 5, 2), np.float32)
    y = Value("y", "float32", (images, 2, 2, 10))
    text = "tf.nn.depthwise_conv2d({0}, {1}, [1, 1, 1, 1], 'SAME')"
    call = Statement("depthwise_conv2d", text, ("x", "w"), (y,))
    inputs = tuple(Input.given(n, a) for n, a in zip("xw", arrays, strict=True))
    sizes = Statement("shape", "tf.shape({0})", ("y",), (Value("s", "int32", (4,)),))
    for statements in ((call,), (call, sizes)):
        program = Program(inputs, statements, statements[-1].results, "eager")
        reference = Reference(TensorFlowDoor(), program)
        assert reference.shortened() != runs
        assert bool(reference.runs) == runs
