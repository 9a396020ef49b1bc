"""Scripts for Ascend, unchanged: the same output as on MindSpore's CPU back end, every graph on the NPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mindspore", reason="MindSpore has an environment of its own: make test-mindspore")

SCRIPT = Path(__file__).parent / "scripts" / "lenet_ascend.py"


def output(arguments: list[str], folder: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"GLOG_v": "3"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout, done.stderr


def test_an_ascend_script_trains_as_on_mindspore(tmp_path: Path) -> None:
    found, summary = output(["-m", "mindspore_npu", "run", str(SCRIPT)], tmp_path)
    assert "2 graphs on the NPU, run 12 times; 0 graphs on MindSpore" in summary
    assert "device Ascend" in found
    plain = re.sub(
        r"^(init|assert).*\n", "", SCRIPT.read_text().replace('"Ascend"', '"CPU"'), flags=re.MULTILINE
    )
    (tmp_path / "plain.py").write_text(plain)
    wanted, _ = output(["plain.py"], tmp_path)
    numbers = [[float(v) for v in re.findall(r"(?:loss|accuracy) (\S+)", text)] for text in (found, wanted)]
    assert len(numbers[0]) == 9
    np.testing.assert_allclose(numbers[0], numbers[1], rtol=1e-5)


def test_levels_of_mixed_precision_run_on_the_engine(tmp_path: Path) -> None:
    script = SCRIPT.with_name("levels_ascend.py")
    found, summary = output(["-m", "mindspore_npu", "run", str(script)], tmp_path)
    assert "; 0 graphs on MindSpore" in summary
    losses = re.findall(r"level (\S+) before (\S+) after (\S+)", found)
    assert [level for level, _, _ in losses] == ["O0", "O2", "O3"]
    assert all(float(after) < float(before) for _, before, after in losses)


@pytest.mark.parametrize("arguments", [[], ["walk"], ["run"], ["run", "absent.py"]])
def test_a_wrong_command_line_shows_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from mindspore_npu.__main__ import main

    assert main(arguments) == 2
    assert "usage: python -m mindspore_npu" in capsys.readouterr().err
