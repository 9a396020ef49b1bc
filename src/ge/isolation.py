"""Kernels of custom operators are compiled in another process, so that a fault of the code generator stays there.

The process is started when first needed and kept. It reads requests as lines of JSON and answers each with one.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tbe
from ge.errors import GeError

__all__ = ["build"]

LIMIT = 120.0  # seconds for one kernel, with the start of the process


def build(inputs: Sequence[tbe.Tensor], outputs: Sequence[tbe.Tensor], target: str, name: str) -> tbe.Kernel:
    """Like tbe.build, in another process."""
    request = {"expression": tbe.to_json(inputs, outputs), "target": target, "name": name}
    answer = _WORKER.ask(request)
    if "error" in answer:
        raise GeError("E10604", f"its code cannot be generated: {answer['error']}", operator=name)
    fields = answer["kernel"]
    fields["object"] = base64.b64decode(fields["object"])
    fields["aliases"] = tuple(tuple(pair) for pair in fields["aliases"])
    return tbe.Kernel(**fields)


class _Worker:
    """The process that compiles; one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; a process that dies or hangs is replaced at the next one."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = self._line(process)
            except BrokenPipeError:
                line = b""
            except BaseException:
                self.close()
                raise
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer
            status = self.close()
            cause = f"the code generator did not end within {LIMIT:g} s"
            if status < 0 and status != -signal.SIGKILL:
                cause = f"the code generator broke ({signal.Signals(-status).name})"
            raise GeError("E10604", cause, operator=request["name"], remedy="compute it in simpler steps")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            environment = dict(os.environ)
            source = str(Path(tbe.__file__).resolve().parents[1])
            paths = [source, *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ge.isolation"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            self._owner = os.getpid()
            atexit.register(self.close)
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        end = time.monotonic() + LIMIT
        data = b""
        handle = process.stdout.fileno()
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([handle], [], [], max(0.0, end - time.monotonic()))
            part = os.read(handle, 1 << 20) if ready else b""
            if not part:
                return b""
            data += part
        return data

    def close(self) -> int:
        """End the process; its exit status."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return 0
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # it ends when there is nothing more to read
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
        process.stdout.close()
        return process.wait()


_WORKER = _Worker()


def _serve() -> None:
    """Answer requests until the other end goes away."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not disturb the answers
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            inputs, outputs = tbe.from_json(request["expression"])
            kernel = tbe.build(inputs, outputs, target=request["target"], name=request["name"])
            fields = {name: getattr(kernel, name) for name in kernel.__dataclass_fields__}
            fields["object"] = base64.b64encode(kernel.object).decode()
            answer: dict[str, Any] = {"kernel": fields}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    _serve()
