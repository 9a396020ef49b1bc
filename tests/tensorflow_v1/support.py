"""What the tests of version-1 style share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.version import Version

SCRIPTS = Path(__file__).parent / "scripts"


def has_keras2() -> bool:
    """Whether TensorFlow comes with Keras 2, and so with estimators and tf.layers."""
    return Version(metadata.version("tensorflow-cpu")) < Version("2.16")


def run_script(script: str, *arguments: str, folder: Path) -> Any:
    """Run a script of `scripts` through `python -m npu_bridge run`; its last line of output is JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "npu_bridge", "run", str(SCRIPTS / script), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
