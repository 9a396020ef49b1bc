"""The sandbox process for code that may crash: custom operators and the code generator on their expressions.

The process is spawned on first use and kept. It has one thread. It compiles kernels itself; user code runs in a child
that it forks for each call, with limits on time and memory. Requests are lines of JSON, each followed by the number of
bytes it announces; each is answered with one line.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import dataclasses
import faulthandler
import gc
import importlib
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import tbe
from ge.errors import GeError

__all__ = ["Outcome", "TimeUp", "build", "is_child", "run"]

LIMIT = 120.0  # seconds for one kernel, including the start of the process
START = 60.0  # seconds for the start of the process, on a busy machine
WAITING = (
    90.0  # additional seconds of wall time, for code that waits instead of computing, and for busy machines
)
GRACE = 3.0  # seconds between asking code to stop and killing its process
MEMORY_BYTES = 8 << 30  # beyond what the process uses

_child = False


class TimeUp(BaseException):
    """Raised in code that exceeds its time limit."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: its answer, or how its process ended, with the trace of a crash."""

    answer: dict[str, Any] | None
    in_time: bool = True
    death: str = ""
    trace: str = ""


def is_child() -> bool:
    """True in a process that only runs user code."""
    return _child


def run(work: bytes, limit: float, modules: Sequence[str] = ()) -> Outcome:
    """Unpickle `work` and call it, in a child that has imported some modules; it returns plain data.

    `limit` is in seconds of processor time.
    """
    request = {"run": limit, "modules": list(modules), "path": sys.path, "environment": dict(os.environ)}
    found, status = _WORKER.ask(request, work, START + limit + WAITING + 2 * GRACE)
    if found is None:
        hung = status == -signal.SIGKILL  # by `close`; one that ends has a status of its own
        return Outcome(None, in_time=not hung, death=_death(status))
    data = found.pop("data")
    return Outcome(json.loads(data) if data else None, **found)


def build(
    inputs: Sequence[tbe.Tensor],
    outputs: Sequence[tbe.Tensor],
    target: str,
    name: str,
    processor: tbe.Processor,
) -> tbe.Kernel:
    """Like tbe.build, but in another process."""
    loops = dataclasses.asdict(processor)
    request = {"expression": tbe.to_json(inputs, outputs), "target": target, "name": name, "loops": loops}
    answer, status = _WORKER.ask(request, b"", LIMIT)
    if answer is None:
        cause = f"the code generator did not end within {LIMIT:g} s"
        if status < 0 and status != -signal.SIGKILL:
            cause = f"the code generator broke ({signal.Signals(-status).name})"
        raise GeError("E10604", cause, operator=name, remedy="compute it in simpler steps")
    if "error" in answer:
        raise GeError("E10604", f"its code cannot be generated: {answer['error']}", operator=name)
    fields = answer["kernel"]
    fields["object"] = base64.b64decode(fields["object"])
    fields["aliases"] = tuple(tuple(pair) for pair in fields["aliases"])
    return tbe.Kernel(**fields)


class _Worker:
    """The worker process; handles one request at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(
        self, request: dict[str, Any], payload: bytes, seconds: float
    ) -> tuple[dict[str, Any] | None, int]:
        """The answer to a request; None, with the exit status, if the process dies or hangs and must be replaced."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps({**request, "bytes": len(payload)}).encode() + b"\n" + payload)
                process.stdin.flush()
                line = self._line(process, seconds)
            except BrokenPipeError:
                line = b""
            except BaseException:
                self.close()
                raise
            if line:
                answer: dict[str, Any] = json.loads(line)
                return answer, 0
            return None, self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            environment = dict(os.environ)
            source = str(Path(tbe.__file__).resolve().parents[1])
            # Packages are found where this process finds them.
            environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, sys.path), source]))
            # A library that starts threads when it is imported must not: the process forks.
            environment.update(
                dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
            )
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ge.isolation"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            self._owner = os.getpid()
            atexit.register(self.close)
        return self._process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        assert process.stdout is not None
        return _received(process.stdout.fileno(), seconds, b"\n")[0]

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


def _received(handle: int, seconds: float, end: bytes = b"") -> tuple[bytes, bool]:
    """Read until the other side closes, or until an end mark; b"" and False on a timeout."""
    last = time.monotonic() + seconds
    data = b""
    while (left := last - time.monotonic()) > 0:
        ready, _, _ = select.select([handle], [], [], left)
        part = os.read(handle, 1 << 20) if ready else None
        if part == b"":
            return (b"" if end else data), True
        data += part or b""
        if end and data.endswith(end):
            return data, True
    return b"", False


def _death(status: int) -> str:
    """How a process ended, from `subprocess`'s return code."""
    if status < 0:
        return f"broke its process ({signal.Signals(-status).name})"
    return f"ended its process with exit code {status}"


# -- inside the process --------------------------------------------------------------------------------------


def _serve() -> None:
    """Answer requests until the other end closes."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not disturb the answers
    source = sys.stdin.buffer
    while line := source.readline():
        request = json.loads(line)
        payload = source.read(request["bytes"])
        answer = _tried(request, payload) if "run" in request else _built(request)
        out.write(json.dumps(answer).encode() + b"\n")
        out.flush()


def _built(request: dict[str, Any]) -> dict[str, Any]:
    try:
        inputs, outputs = tbe.from_json(request["expression"])
        processor = tbe.Processor(**request["loops"])
        kernel = tbe.build(inputs, outputs, request["target"], request["name"], processor=processor)
        fields = {name: getattr(kernel, name) for name in kernel.__dataclass_fields__}
        fields["object"] = base64.b64encode(kernel.object).decode()
        return {"kernel": fields}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _tried(request: dict[str, Any], work: bytes) -> dict[str, Any]:
    """The fields of an Outcome."""
    limit = request["run"]
    for name in request["modules"]:
        importlib.import_module(name)  # once, for all children
    gc.freeze()  # the garbage collector of a child does not visit, and so copy, inherited objects
    read, write = os.pipe()
    log = os.memfd_create("opp")
    child = os.fork()
    if child == 0:
        os.close(read)
        sys.path[:] = request["path"]
        os.environ.clear()
        os.environ.update(request["environment"])
        _work(work, write, log, limit)
    os.close(write)
    data, in_time = _received(read, limit + WAITING + GRACE)
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    trace = os.pread(log, 1 << 16, 0).decode(errors="replace")
    os.close(log)
    return {"data": data.decode(), "in_time": in_time, "death": _death(status), "trace": trace}


def _work(work: bytes, write: int, log: int, limit: float) -> NoReturn:
    """Do the work, report, and exit without any clean-up."""
    global _child
    _child = True
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        faulthandler.enable(file=log)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        for timer in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(timer, partial(_stop, limit))
        call = pickle.loads(work)
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.setitimer(signal.ITIMER_REAL, limit + WAITING)
        data = json.dumps(call()).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.flush()
        while data:
            data = data[os.write(write, data) :]
        code = 0
    except BaseException as error:  # not from user code, whose errors `call` catches
        print(f"a child of the process for users' code failed: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _stop(limit: float, _signal: int, _frame: Any) -> None:
    raise TimeUp(f"the code did not end within {limit:g} s")


if __name__ == "__main__":
    from ge import isolation

    isolation._serve()  # of the module by its name, whose TimeUp others import
