"""python -m tbe.conformance: counts of operator files and TIK programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tbe.conformance.__main__ import app
from tbe.conformance.cases import load
from tbe.conformance.operators import outcomes as of_operators
from tbe.conformance.tik_programs import outcomes as of_programs

HERE = Path(__file__).resolve().parent
STYLES = "add_dynamic|round_to_steps|reduce_sum_d|epsilon_norm|square_either|old_relu|scale_by|masked_scale|min_max"


def test_files_in_the_public_style_pass_in_both_modes() -> None:
    found = list(of_operators(HERE / "operators", load(HERE / "operator_references.py"), STYLES))
    assert [o for o in found if o.status != "pass"] == []
    assert {o.mode for o in found} == {"static", "dynamic"}
    assert any("(8, 128) (128,)" in o.name and o.mode == "dynamic" for o in found)


@pytest.mark.slow
def test_all_files_pass() -> None:
    found = list(of_operators(HERE / "operators", load(HERE / "operator_references.py")))
    assert [o for o in found if o.status != "pass"] == []
    assert sum(o.mode == "static" for o in found) >= 262 and sum(o.mode == "dynamic" for o in found) >= 210


def test_programs_pass_interpreted_and_as_machine_code() -> None:
    cases = load(HERE / "tik_references.py").CASES
    found = list(of_programs(HERE / "tik_operators", cases))
    assert [o for o in found if o.status != "pass"] == []
    assert {c.name for c in cases} == {p.stem for p in (HERE / "tik_operators").glob("*.py")}


def test_the_command_prints_counts_and_says_what_is_wrong(tmp_path: Path) -> None:
    for name in ("square_either", "old_relu"):
        (tmp_path / f"{name}.py").write_text((HERE / f"operators/{name}.py").read_text())
    (tmp_path / "references.py").write_text(
        "import numpy as np\n"
        "from types import SimpleNamespace as Case\n"
        "def array(shape, dtype, low, high, seed):\n"
        "    return np.full(shape, 3, dtype)\n"
        "both = dict(shapes=((4,),), dtypes=('float32',), ulp=0, attrs={}, scale=0, low=0, high=1, kinds=())\n"
        "both['outputs'] = None\n"
        "REFERENCES = {'square_either': Case(function=lambda x: x * x, **both),\n"
        "              'old_relu': Case(function=lambda x: -x, **both)}\n"
    )
    arguments = ["operators", str(tmp_path), "--references", str(tmp_path / "references.py")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert "wrong: old_relu float32 (4,) (static): output 0 differs" in done.output
    passing = CliRunner().invoke(app, [*arguments, "--filter", "square"])
    assert passing.exit_code == 0 and "dynamic" in passing.output
