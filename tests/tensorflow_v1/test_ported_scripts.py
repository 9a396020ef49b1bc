"""Scripts that `tf-adapter port` has ported to TensorFlow 1 on the NPU: they run, and on the NPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.command_line import run_python

SCRIPTS = Path(__file__).parents[1] / "tools" / "ported"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wanted"), [("sessions", "loss 1.0700\n"), ("estimator", "step 5\n")])
def test_a_ported_script_runs_on_the_npu(name: str, wanted: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text((SCRIPTS / f"{name}.after").read_text())
    printed = run_python(str(script), NPU_EXPLAIN="1")
    assert wanted in printed
    assert "on the NPU in 1 part(s)" in printed
