"""Version-1 scripts need a process without version-2 behaviour: they run in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def run_v1(tmp_path: Path) -> Callable[..., Any]:
    """Run a script of `scripts` through `python -m npu_bridge run`; its last line of output is JSON."""

    def run(script: str, *arguments: str, bridge: bool = True, **environment: str) -> Any:
        path = SCRIPTS / script
        start = ["-m", "npu_bridge", "run", str(path)] if bridge else [str(path)]
        done = subprocess.run(
            [sys.executable, *start, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return json.loads(done.stdout.strip().splitlines()[-1])

    return run
