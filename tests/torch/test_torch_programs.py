"""Random programs of PyTorch, in processes of their own, against PyTorch on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from ge.conformance.programs import load_door
from ge.conformance.programs.hunt import hunt
from ge.conformance.programs.judge import MANY_RUNS, Reference, check
from ge.conformance.programs.record import Input, Noise, Program, Role, Statement, Value
from ge.conformance.programs.sampling import feeds

COUNT = 1000


def test_programs_agree_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_DEVICE_COUNT", "2")
    found = hunt("torch", seed=0, count=COUNT, seconds=1e9, short=True)
    assert not found.failures, [f"{f.text}\n" for f in found.failures]
    assert found.statuses["pass"] > 0.85 * COUNT
    assert found.judged > 0.8 * found.elements


def test_the_second_opinion_is_without_the_kernels_of_onednn() -> None:
    """Their gelu of infinity may be NaN in tensors of many elements."""
    y = Value("y", "float32", (40,))
    gelu = Statement("gelu", "torch.nn.functional.gelu({0})", ("x",), (y,))
    given = Input.given("x", np.full(40, np.inf, np.float32))
    door, program = load_door("torch"), Program((given,), (gelu,), (y,), "compiled")
    runs = feeds(program)
    assert np.isposinf(door.second_opinion(program, runs)[0][0]).all()
    assert check(door, program).status == "pass"


def test_a_constant_that_is_written_in_place_is_a_state() -> None:
    tripled = Value("y", "float32", (2,))
    write = Statement("write", "{0}.mul_(3)", ("x",), (tripled,), (), Noise.RESULT)
    constant = Input.given("x", np.ones(2, np.float32), Role.CONSTANT)
    reference = Reference(load_door("torch"), Program((constant,), (write,), (tripled,), "eager"))
    assert [int(results[0][0]) for results in reference.exact][:2] == [3, 9]


def test_the_order_of_equal_elements_and_the_bits_of_nan_do_not_count() -> None:
    """PyTorch's topk names any of equal elements; a gradient goes to the one that is named."""
    given = Input.given("x", np.float32([2.0, 2.0, 1.0, np.nan]))
    best, number = Value("y", "float32", (2,)), Value("z", "int32", (4,))
    statements = (
        Statement("topk", "{0}.gather(-1, largest({0}, 2))", ("x",), (best,), (), Noise.NONE),
        Statement("bits", "bits({0})", ("x",), (number,), (), Noise.NONE),
    )
    program = Program((given,), statements, (best, number), "traced", ("gradient",))
    reference = Reference(load_door("torch"), program)
    elements, numbers, slopes = (reference.of(0, position, MANY_RUNS) for position in range(3))
    assert elements.stable.all() and elements.tolerance.max() < 1e-4
    assert numbers.stable.tolist() == [True, True, True, False]
    assert (slopes.tolerance > 1).tolist() == [True, True, False, False]
