"""Whole scripts, written the way ported ones are, run unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

FOLDER = Path(__file__).parent / "scripts"
SCRIPTS = {
    "keras_fit": [[], ["--precision_mode=allow_mix_precision_bf16", "--profiling"]],
    "converted_dropout": [[]],
    "training_loop": [[]],
    "resnet50": [[]],
    "session": [[]],
}
RUNS = [
    pytest.param(name, given, id=" ".join([name, *given])) for name, all_ in SCRIPTS.items() for given in all_
]


@pytest.mark.parametrize(("name", "arguments"), RUNS)
def test_script(name: str, arguments: list[str], tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
