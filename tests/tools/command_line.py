"""Run `tf-adapter` in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT = 600


def run_command(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`tf-adapter ARGUMENTS` in a process of its own, without colours."""
    return subprocess.run(
        [sys.executable, "-m", "npu_tools", *map(str, arguments)],
        cwd=cwd or ROOT,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "160", "TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )


def run_python(*arguments: str, cwd: Path | None = None, **environment: str) -> str:
    """What Python prints; its errors where it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd or ROOT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
