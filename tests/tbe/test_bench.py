"""The workbench: what it prints, errors in units in the last place, tuning that is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tbe
from tbe import bench
from tbe.dsl.running import Runner
from tbe.serialize import structure
from tbe.tuning import Tuning, forget, remember, tuning_file, tuning_of

OPERATORS = Path(__file__).parent / "operators"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_the_command_shows_graph_code_error_and_time(own_cache: Path) -> None:
    command = [sys.executable, "-m", "tbe.bench", str(OPERATORS / "softmax.py")]
    command += ["--input", "64x33:float16", "--attr", "axis=[1]", "--code", "ir"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    for part in (
        "reduce max %0 over (1,)",
        "-> output 0",
        "define void @",
        "ulp at most",
        "GB/s",
        "of the memory's",
    ):
        assert part in done.stdout


def test_the_command_says_what_is_wrong_with_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def broken(x, y, kernel_name='broken'):\n    return 1 / 0\n")
    assert bench.main([str(path)]) == 1
    assert "broken.py:2" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["square_reference", "numpy_reference", "reference"])
def test_a_reference_of_the_file_is_used(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "square.py"
    path.write_text((OPERATORS / "square.py").read_text() + f"\n\ndef {name}(x):\n    return x * x + 1\n")
    assert bench.main([str(path), "--input", "8x8"]) == 0
    printed = capsys.readouterr().out
    assert f"NumPy: {name} of square.py" in printed and " 0.00 ulp at most" not in printed


def test_without_a_reference_numpy_evaluates_the_expression(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([str(OPERATORS / "square.py"), "--input", "8x8", "--code", "none"]) == 0
    assert "error against NumPy: the same expression in double precision" in capsys.readouterr().out


CLASS = """
import numpy as np
import tbe
from ge import ops

@ops.register
class BenchScaled(ops.Operator):
    x = ops.Input("T", ops.FLOATS)
    bias = ops.Input("T", ops.FLOATS, optional=True)
    y = ops.Output("T")
    scale = ops.Attr(float, 2.0)

    @staticmethod
    def compute(op, x, bias=None):
        scaled = x * op.scale
        return scaled if bias is None else scaled + bias

    @staticmethod
    def reference(x, bias=None, scale=1.0):
        return x.astype(np.float64) * scale + (0 if bias is None else bias)
"""


@pytest.mark.parametrize("inputs", [["8x8"], ["8x8", "none"], ["8x8", "8x8"]])
def test_an_operator_class_is_shown_too(
    inputs: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "scaled.py"
    path.write_text(CLASS)
    given = [part for text in inputs for part in ("--input", text)]
    try:
        assert bench.main([str(path), *given, "--attr", "scale=3.0"]) == 0
        printed = capsys.readouterr().out
        assert "BenchScaled of float32[8, 8]" in printed and "constant 3.0" in printed
        assert "NumPy: BenchScaled.reference of scaled.py" in printed
        assert bench.main([str(path), "--input", "8x8:int32"]) == 1
        assert "no engine accepts int32" in capsys.readouterr().err
        path.write_text(CLASS.replace("x * op.scale", "x.nothing"))
        assert bench.main([str(path), "--input", "8x8"]) == 1
        assert capsys.readouterr().err.count("scaled.py:15") == 1
        path.write_text(CLASS)
        x = np.linspace(-1, 1, 6, dtype=np.float32)
        np.testing.assert_array_equal(tbe.run_operator(path, x, scale=4.0), x * 4)
    finally:
        from ge.ops import base

        for loaded in base.registered_custom():
            if loaded.type == "BenchScaled":
                base.unregister(loaded)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "float64"])
def test_errors_are_counted_in_units_in_the_last_place(dtype: str) -> None:
    kind = tbe.numpy_dtype(dtype)
    one = np.ones(1, kind)
    unit = {"float16": 2.0**-10, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float64": 2.0**-52}[dtype]
    assert bench.ulp_errors((one.astype(float) + 3 * unit).astype(kind), one.astype(np.float64)) == [3]
    assert bench.ulp_errors(np.array([np.nan], kind), np.array([1.0])) == [np.inf]
    assert bench.ulp_errors(np.array([np.nan, np.inf], kind), np.array([np.nan, np.inf])).tolist() == [0, 0]


def test_choices_are_kept_used_and_forgotten(own_cache: Path) -> None:
    x = tbe.placeholder((64, 4096), "float32")
    outputs = [x * 2.0 + 1.0]
    hashed = structure([x], outputs)
    plain = tbe.build([x], outputs)
    remember(hashed, Tuning(unroll=2, chunk=1024))
    assert tuning_file() == own_cache / "tuning.json" and tuning_of(hashed) == Tuning(unroll=2, chunk=1024)
    tuned = tbe.build([x], outputs)
    assert tuned.fingerprint != plain.fingerprint and tuned.total > plain.total
    values = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    np.testing.assert_array_equal(Runner([x], outputs)(values)[0], tbe.evaluate(outputs, {x: values})[0])
    forget(hashed)
    assert tbe.build([x], outputs).fingerprint == plain.fingerprint


def test_a_damaged_file_counts_as_empty(own_cache: Path) -> None:
    x = tbe.placeholder((16,), "float32")
    hashed = structure([x], [x + 1.0])
    for content in ("{", "[]", json.dumps({"other": 3})):
        tuning_file().write_text(content)
        remember(hashed, Tuning(unroll=1))
        assert tuning_of(hashed) == Tuning(unroll=1)
    remember(hashed, Tuning(unroll=99))
    assert tuning_of(hashed) == Tuning()


@pytest.mark.parametrize(
    "choice",
    [Tuning(unroll=1), Tuning(unroll=8), Tuning(pairs=True), Tuning(pairs=False), Tuning(streams=True)],
)
def test_every_choice_gives_the_same_answer(choice: Tuning) -> None:
    x = tbe.placeholder((37, 203), "float32")
    shifted = x - tbe.reduce("max", x, 1, keepdims=True)
    outputs = [tbe.unary("exp", shifted)]
    values = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    plan = tbe.schedule([x], outputs)
    kernel = tbe.build([x], outputs, plan=plan, tuning=choice)
    np.testing.assert_array_equal(Runner([x], outputs, [kernel])(values)[0], Runner([x], outputs)(values)[0])


def test_tuning_measures_and_keeps_only_what_is_faster(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = tbe.placeholder((8, 64), "float32")
    outputs = [tbe.unary("exp", x)]
    times = {"unroll": 1.0}

    def pretended(own: Runner, other: Runner, arrays: object, seconds: float) -> tuple[float, float, float]:
        after = times["unroll"] / (2 if "'unroll': 2" in other.kernels[0].fingerprint else 1)
        return times["unroll"], after, after / times["unroll"]

    monkeypatch.setattr(bench, "_compare", pretended)
    ((_, chosen, before, after),) = bench.tune([x], outputs, [np.ones(x.shape, np.float32)])
    assert chosen is not None and chosen.unroll == 2 and (before, after) == (1.0, 0.5)
    assert tuning_of(structure([x], outputs)) == chosen


@pytest.mark.parametrize("tile", [1, 4, 16, 64, 100])
def test_every_tile_gives_the_same_answer(tile: int) -> None:
    x = tbe.placeholder((130, 203), "float32")
    outputs = [tbe.transpose(x, (1, 0)) * 2.0]
    values = np.random.default_rng(0).normal(size=x.shape).astype(np.float32)
    plan = tbe.schedule([x], outputs)
    assert plan.nests[0].tile is not None
    kernel = tbe.build([x], outputs, plan=plan, tuning=Tuning(tile=tile))
    np.testing.assert_array_equal(Runner([x], outputs, [kernel])(values)[0], values.T * 2)
