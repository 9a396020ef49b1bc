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


class Worker:
    """A process that runs scripts of `scripts` one after another; what starting TensorFlow takes is paid once."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tensorflow_v1.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def run(self, script: str, *arguments: str, folder: Path) -> Any:
        """The JSON that a script prints last."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(
            json.dumps([str(SCRIPTS / script), arguments, str(folder)]), file=self._process.stdin, flush=True
        )
        answer = json.loads(self._process.stdout.readline() or '{"error": "the process ended"}')
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=900)


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
