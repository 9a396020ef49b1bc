"""Random programs: ONNX's through all modes; that faults are found, shrunk and written down; the comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser

from ge.conformance.programs import hunt, judge, load_door
from ge.conformance.programs.generate import generate
from ge.conformance.programs.judge import Reference, difference
from ge.conformance.programs.onnx_reference import Evaluator
from ge.conformance.programs.record import Input, Noise, Program, Statement, Value
from ge.conformance.programs.shrink import shrink

ROOT = Path(__file__).parents[2]
FAULTY = "tests.support.faulty_door"


def test_onnx_programs_agree_with_the_reference(tmp_path: Path) -> None:
    found = hunt.hunt("onnx", seed=0, count=COUNT, seconds=1e9, out=tmp_path)
    assert not found.failures, [f"{f.text}\n" for f in found.failures]
    assert found.statuses["pass"] > 0.95 * COUNT
    assert found.judged > 0.9 * found.elements
    assert len(found.operators) > 110


COUNT = 1000


def test_a_seed_makes_the_same_program() -> None:
    door = load_door("onnx")
    assert generate(door, "5/3") == generate(door, "5/3")
    assert generate(door, "5/3") != generate(door, "5/4")
    assert Program.from_json(generate(door, "5/3").as_json()) == generate(door, "5/3")


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))


@pytest.mark.usefixtures("faulty")
def test_a_wrong_operator_is_found_and_shrunk_to_one_line(tmp_path: Path) -> None:
    found = hunt.hunt(FAULTY, seed=0, count=20, seconds=1e9, out=tmp_path, most_failures=2)
    assert found.statuses["wrong"] > 2
    record = [json.loads(line) for line in (tmp_path / hunt.RECORD).read_text().splitlines()]
    assert len(record) == found.statuses["wrong"]
    again = hunt.shrunk(FAULTY, record, None, most=1)
    assert [f.program.operators() for f in again] == [["Neg"]]
    assert not hunt.shrunk(FAULTY, record, None, seconds=-1)
    for failure in found.failures:
        assert failure.program.operators() == ["Neg"]
        assert (
            failure.program.inputs[0].value.shape in ((), (1,)) or 1 in failure.program.inputs[0].value.shape
        )
    # The file fails where the fault is, and passes where it is not.
    path = found.failures[0].path
    for plugins, status in (((), 0), (("-p", FAULTY), 1)):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugins, path], cwd=ROOT, capture_output=True
        )
        assert done.returncode == status, done.stdout.decode()


@pytest.mark.usefixtures("faulty")
@pytest.mark.parametrize("fault", ["crash", "hang"])
def test_programs_that_crash_or_hang_are_reported(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULT", fault)
    monkeypatch.setattr(hunt, "LIMIT", 6.0)
    monkeypatch.setattr(hunt, "SHRINKING", 0.0)
    found = hunt.hunt(FAULTY, seed=0, count=4, seconds=1e9, most_failures=1)
    assert found.statuses["crash"] and found.statuses["pass"]
    assert found.failures[0].verdict.status == "crash"
    assert "Neg" in found.failures[0].program.operators()


# -- comparison ----------------------------------------------------------------------------------------------


def _program(text: str, *arrays: np.ndarray) -> Program:
    """A model of one statement after another, x0, x1 … being the arrays."""
    statements = []
    for line in text.splitlines():
        name, _, call = line.strip().partition(" = ")
        arguments = tuple(a.strip() for a in call[call.index("(") + 1 : -1].split(","))
        places = ", ".join(f"{{{i}}}" for i in range(len(arguments)))
        operator = call.split()[0]
        statements.append(
            Statement(
                operator, f"{operator} ({places})", arguments, (Value(name, "float32", ()),), (), Noise.RESULT
            )
        )
    inputs = tuple(Input.given(f"x{i}", a) for i, a in enumerate(arrays))
    return Program(inputs, tuple(statements), (statements[-1].results[0],), "compiled")


def _expected(text: str, *arrays: np.ndarray) -> judge.Expected:
    program = _program(text, *arrays)
    return Reference(load_door("onnx"), program).expected[0][0]


def test_small_errors_count_where_the_result_is_stable() -> None:
    expected = _expected("y = Exp (x0)", np.float32([1.0, 2.0]))
    assert not difference(np.exp(np.float32([1.0, 2.0])), expected)
    assert "1 of 2 elements" in difference(
        np.exp(np.float32([1.0, 2.0])) * np.float32([1, 1 + 1e-5]), expected
    )


def test_cancelled_digits_do_not_count() -> None:
    x = np.float32([1e6])
    expected = _expected("a = Exp (x0)\nb = Add (a, x1)\ny = Sub (b, x1)", np.float32([0.1]), x)
    assert not difference(expected.array + np.float32(0.05), expected)
    assert difference(expected.array + np.float32(100), expected)


def test_decisions_on_rounded_values_do_not_count_and_others_do() -> None:
    unstable = _expected("a = Exp (x0)\ny = Greater (a, x1)", np.float32([1.0]), np.exp(np.float32([1.0])))
    assert not difference(~unstable.array, unstable)
    exact = _expected("y = Greater (x0, x1)", np.float32([1.0]), np.float32([1.0]))
    assert difference(~exact.array, exact)


def _settled(text: str, *arrays: np.ndarray) -> list[bool]:
    """Which elements count before a result is called wrong."""
    expected = Reference(load_door("onnx"), _program(text, *arrays)).of(0, 0, judge.MANY_RUNS)
    return [bool(b) for b in expected.stable.ravel()]


def test_equality_of_numbers_that_differ_in_their_last_digits_does_not_count() -> None:
    x = np.float32([1.0, 1.0, 1.0])
    text = "a = Mul (x0, x2)\nb = Mul (x1, x2)\ny = Equal (a, b)"
    assert _settled(text, x, x + np.float32([2e-7, 1e-3, 1.0]), x) == [False, True, True]


def test_what_an_overflow_decides_does_not_count() -> None:
    x = np.float32([[1e19], [1e10]])
    assert _settled("a = MatMul (x0, x1)\ny = IsInf (a)", x, np.float32([[1e19]])) == [False, False]
    assert _settled("a = MatMul (x0, x1)\ny = IsInf (a)", x, np.float32([[1e10]])) == [False, True]


def test_what_the_sign_of_a_computed_zero_decides_does_not_count() -> None:
    zero, ones = np.float32([0.0, 2.0]), np.float32([1.0, 1.0])
    assert _settled("a = Mul (x0, x1)\ny = Reciprocal (a)", zero, ones) == [False, True]
    assert _settled("y = Reciprocal (x0)", zero) == [True, True]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_runs_without_denormals_or_largest_numbers(dtype: str) -> None:
    """What a framework flushes is seen without other noise: 0 / 0 where an operand is flushed, 0 for a reciprocal."""
    kind = np.finfo(dtype)
    x = np.array([kind.smallest_subnormal, -kind.tiny / 2, 0, 1, kind.max, np.inf], dtype)
    places = list(judge.Place)
    ordinary = judge._ordinary(x)
    assert (np.abs(ordinary[:2]) >= kind.tiny).all() and ordinary[1] < 0
    np.testing.assert_array_equal(ordinary[2:], x[2:])
    with np.errstate(all="ignore"):
        for place in places:
            smaller = (x * judge._rounding(judge.SMALLER)(x, place)).astype(dtype)
            assert np.isfinite(smaller[4]) and 1 / smaller[4] >= kind.tiny
            np.testing.assert_array_equal(smaller[:4], x[:4])


def test_channels_with_infinite_weights_do_not_count() -> None:
    """Where a kernel reaches over the border, an implementation may multiply it with zero."""
    x, w = np.ones((1, 1, 1, 1), np.float32), np.float32([[[[np.inf, 2.0]], [[1.0, 2.0]]]])
    assert _settled("y = ConvTranspose (x0, x1)", x, w) == [False, False, True, True]


def test_what_some_of_the_overflowing_terms_decide_does_not_count() -> None:
    """One sum is infinite if the positive terms meet before the negative one, and finite if they do not."""
    x = np.float32([[3e38, -3e38, 3e38]])
    assert _settled("a = MatMul (x0, x1)\ny = IsInf (a)", x, np.float32([[2.0], [1.5], [0.1]])) == [False]


@pytest.mark.parametrize("decision", ["IsInf ({0})", "LessOrEqual ({0}, {0})", "Hardmax <axis = 2> ({0})"])
def test_what_products_with_the_border_decide_does_not_count(decision: str) -> None:
    x, w = np.ones((1, 1, 3), np.float32), np.float32([[[np.inf, 1.0]], [[1.0, 1.0]]])
    program = _program("a = Conv (x0, x1)\ny = Relu (a)", x, w)
    conv, last = program.statements
    conv = replace(conv, text="Conv <pads = [1, 0]> ({0}, {1})")
    decided = replace(last, operator=decision.split()[0], text=decision, noise=Noise.NONE)
    program = replace(program, statements=(conv, decided))
    stable = Reference(load_door("onnx"), program).of(0, 0, judge.MANY_RUNS).stable
    assert not stable[0, 0, :2].any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_infinity_in_a_window_does_not_count_where_a_bound_hides_it(dtype: str) -> None:
    """Its product with the border is NaN, or left out: a bound makes 0 of that, or infinity."""
    x, w = np.ones((1, 1, 1, 3), dtype), np.array([[[[np.inf, np.inf, -1]]]], dtype)
    text = "a = Conv (x0, x1)\ny = ThresholdedRelu (a)"
    program = _program(text, x, w)
    padded = replace(program.statements[0], text="Conv <pads = [0, 1, 0, 1]> ({0}, {1})")
    program = replace(program, statements=(padded, *program.statements[1:]))
    expected = Reference(load_door("onnx"), program).of(0, 0, judge.MANY_RUNS)
    assert expected.array.ravel()[0] == 0 and not expected.stable.ravel()[0]


@pytest.mark.parametrize("found", [np.float32([np.inf]), np.float32([1.0]), np.float32([-np.nan])])
def test_nan_must_be_nan(found: np.ndarray) -> None:
    expected = _expected("y = Log (x0)", np.float32([-1.0]))
    assert bool(difference(found, expected)) != bool(np.isnan(found[0]))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_infinity_may_be_a_number_near_the_largest_one_and_no_other(dtype: str) -> None:
    largest = np.finfo(dtype).max
    expected = judge.Expected(np.array([np.inf], dtype), np.zeros(1), np.ones(1, bool))
    assert not difference(np.array([largest], dtype), expected)
    assert difference(np.array([-largest], dtype), expected)
    assert difference(np.array([largest / 64], dtype), expected)


def test_types_and_shapes_must_be_the_same() -> None:
    expected = _expected("y = Relu (x0)", np.float32([1.0]))
    assert "float64" in difference(np.float64([1.0]), expected)
    assert "[1, 1]" in difference(np.float32([[1.0]]), expected)


def test_elements_may_be_those_of_either_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    door, program = load_door("onnx"), _program("y = Relu (x0)", np.float32([1.0, 2.0]))

    def runs(*elements: float) -> list[list[np.ndarray]]:  # the third run has the inputs in another order
        return [[np.roll(np.float32(elements), shift)] for shift in (0, 0, 1)]

    monkeypatch.setattr(type(door), "second_opinion", lambda *_: runs(7.0, 5.0))
    for found, status in (((1.0, 5.0), "pass"), ((7.0, 5.0), "pass"), ((1.0, 7.0), "wrong")):
        monkeypatch.setattr(type(door), "run", lambda *_, found=found: runs(*found))
        assert judge.check(door, program).status == status


def test_gradients_have_a_second_opinion_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come after the results, as do inputs that are written to."""
    door, program = load_door("onnx"), _program("y = Relu (x0)", np.float32([1.0, 2.0]))
    runs = [[np.roll(np.float32([1, 2]), shift), np.float32([5])] for shift in (0, 0, 1)]
    monkeypatch.setattr(type(door), "reference", lambda *_: [[r[0], np.float32([7])] for r in runs[1:]])
    monkeypatch.setattr(type(door), "run", lambda *_: runs)
    for opinion, status in ((None, "wrong"), (runs, "pass")):
        monkeypatch.setattr(type(door), "second_opinion", lambda *_, opinion=opinion: opinion)
        assert judge.check(door, program).status == status


def test_perturbed_runs_with_other_results_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    door, program = load_door("onnx"), _program("y = Exp (x0)", np.float32([1.0, 2.0]))
    reference = Reference(door, program)
    monkeypatch.setattr(type(door), "reference", lambda *_: [[]] * 2)
    assert not reference.expected[0][0].stable.any()


def test_tolerances_are_measured_only_for_results_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    door, program = load_door("onnx"), _program("y = Exp (x0)", np.float32([1.0, 2.0]))
    measured: list[int] = []
    rounding = judge._rounding
    monkeypatch.setattr(judge, "_rounding", lambda seed: measured.append(seed) or rounding(seed))
    assert judge.check(door, program).status == "pass" and not measured
    monkeypatch.setattr(type(door), "run", lambda *_: [[np.float32([2.7, 7.4])]] * 3)
    assert judge.check(door, program).status == "wrong"
    assert sorted(set(measured)) == list(range(judge.MANY_RUNS))


def test_zero_stays_zero_whatever_the_slope() -> None:
    expected = _expected("y = PRelu (x0, x1)", np.float32([0.0, -1.0]), np.float32([np.inf, 2.0]))
    np.testing.assert_array_equal(expected.array, np.float32([0.0, -2.0]))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("text", ["CumSum (x0, x1)", "Sign (x0)"])
def test_zero_has_no_sign(text: str, dtype: type) -> None:
    (found,) = _evaluated(text, [np.array([-0.0, -0.0], dtype), np.array(0)])
    assert found.dtype == dtype
    assert not np.signbit(found).any()


@pytest.mark.parametrize(
    ("text", "arrays", "wanted"),
    [
        (
            "MaxPool <pads = [0, 1, 0, 0], kernel_shape = [1, 2]> (x0)",
            [np.float32([[[[1, 2, 0]]]])],
            [[[[1, 2, 2]]]],
        ),
        (
            "MaxPool <strides = [2], kernel_shape = [2], ceil_mode = 1> (x0)",
            [np.float32([[[1, 2, 0]]])],
            [[[2, 0]]],
        ),
        (
            "AveragePool <pads = [1, 0], kernel_shape = [2]> (x0)",
            [np.float32([[[np.nan, 2, 4]]])],
            [[[np.nan, np.nan, 3]]],
        ),
        (
            "AveragePool <pads = [1, 0], kernel_shape = [2], count_include_pad = 1> (x0)",
            [np.float32([[[2, 4]]])],
            [[[1, 3]]],
        ),
        ("LpPool <kernel_shape = [2]> (x0)", [np.float32([[[3, 4, 0]]])], [[[5, 4]]]),
        (
            "OneHot (x0, x1, x2)",
            [np.int64([1]), np.int64(2), np.float32([-0.77647, 0.0223279])],
            [[-0.77647, 0.0223279]],
        ),
        ("Clip (x0, x1, x2)", [np.array(3, np.float16)] * 3, 3),
        ("LogSoftmax <axis = 0> (x0)", [np.float32([-1e5, 0])], [-1e5, 0]),
        ("ReduceSum <keepdims = 0> (x0)", [np.full(4096, 1, np.float16)], 4096),
    ],
)
def test_the_reference_follows_the_definition(text: str, arrays: list[np.ndarray], wanted: object) -> None:
    (found,) = _evaluated(text, arrays)
    np.testing.assert_array_equal(found, np.array(wanted, found.dtype))


@pytest.mark.parametrize(
    ("text", "arrays"),
    [
        ("Split (x0, x1)", [np.zeros(3, np.float32), np.int64([1, 1])]),
        ("ReverseSequence <time_axis = 0, batch_axis = 1> (x0, x1)", [np.zeros((1, 1)), np.int64([2])]),
        ("ScatterElements (x0, x1, x2)", [np.zeros(3), np.int64([0]), np.zeros(2)]),
        ("ScatterND (x0, x1, x2)", [np.zeros(3), np.int64([[0]]), np.zeros(2)]),
        ("OneHot (x0, x1, x2)", [np.int64([0]), np.int64(2), np.zeros(4)]),
        ("InstanceNormalization (x0, x1, x2)", [np.zeros((1, 2, 3)), np.ones(1), np.ones(1)]),
        ("ReduceLogSumExp (x0)", [np.uint64([2**64 - 1])]),
        ("Shrink <bias = 2.0, lambd = 1.0> (x0)", [np.int64([2**63 - 1])]),
    ],
)
def test_the_reference_refuses_what_is_not_defined(text: str, arrays: list[np.ndarray]) -> None:
    with pytest.raises(ValueError):
        _evaluated(text, arrays)


def _evaluated(text: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    names = ["y", "z"] if text.startswith("Split") else ["y"]
    node = parser.parse_node(f"{', '.join(names)} = {text}")
    graph = onnx.helper.make_graph([node], "one", [], [onnx.ValueInfoProto(name=n) for n in names])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    return list(Evaluator(model).run(names, {f"x{i}": a for i, a in enumerate(arrays)}))


# -- shrinking -----------------------------------------------------------------------------------------------


def test_shrinking_keeps_what_fails_and_nothing_else() -> None:
    door = load_door("onnx")
    program = next(p for p in (generate(door, f"7/{i}") for i in range(99)) if "MatMul" in p.operators())

    def fails(candidate: Program) -> bool:
        return "MatMul" in candidate.operators()

    small = shrink(program, fails, lambda p: {})
    assert fails(small)
    assert len(small.statements) <= 3
    assert small.mode == program.mode
