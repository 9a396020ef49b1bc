"""Child process that runs and observes a script or model file once: `python -m npu_tools.check.child REQUEST`.

It writes `record.json` and `outputs.npz` into the request's folder, even if the script fails or is interrupted.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from npu_tools.check.locations import Roots
from npu_tools.check.observe import dumps
from npu_tools.check.observe.batch_sizes import attempt
from npu_tools.check.recorder import Enough, Recorder
from npu_tools.check.request import Request

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1  # of Linux


class _Late(Enough):
    """The run exceeded its time limit."""


def main(arguments: list[str]) -> int:
    """Execute a request; exit status 0 if a record was written."""
    _end_with_parent()
    request = Request.load(arguments[0])
    if request.trial:
        _end_first()
    folder = Path(request.result)
    if request.kind == "script":
        record, outputs = _run_script(request)
    else:
        from npu_tools.check import model_files

        record, outputs = model_files.run(request)
    arrays: dict[str, Any] = {f"a{i}": a for i, a in enumerate(outputs.values())}
    np.savez(folder / "outputs.npz", **arrays)
    record["output_names"] = list(outputs)
    partial = folder / "record.tmp"
    partial.write_text(json.dumps(record, allow_nan=True))
    partial.rename(folder / "record.json")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads of the script must not keep the process alive


def _end_with_parent() -> None:
    """End this process when its parent is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_first() -> None:
    """Let the system kill this process first if memory runs out."""
    Path("/proc/self/oom_score_adj").write_text("1000")


def _run_script(request: Request) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    recorder = Recorder(Roots(request.roots), request.steps, Path(request.result) / "progress")
    if request.other_kernels:
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    watcher = _watcher(request, recorder)
    sys.argv = [request.path, *request.arguments]
    sys.path[0] = str(Path(request.path).parent)
    signal.signal(signal.SIGALRM, _too_late)
    signal.setitimer(signal.ITIMER_REAL, request.seconds)
    recorder.start()
    fault: dict[str, Any] = {}
    interrupted = False
    try:
        watcher.run(request.path)
    except _Late:
        recorder.stopped = f"after {request.seconds:g} s, the most that was allowed"
    except Enough:
        pass
    except KeyboardInterrupt:
        interrupted = True
    except SystemExit as end:
        if end.code not in (None, 0):
            fault = {"type": "SystemExit", "message": str(end.code), "location": "", "traceback": ""}
    except BaseException as error:  # an exception of the script is a finding
        fault = _fault(error, recorder.roots)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        recorder.end()
    record = recorder.record() | {"side": request.side, "error": fault, "interrupted": interrupted}
    if request.side == "npu":
        record["npus_used"] = _npus_used()
    if request.dumps:
        record["dump"] = dumps.collected(watcher.location)
    if request.trial and not interrupted and not fault:
        with recorder.inside():
            record["trial"] = attempt(watcher.repeatable(), request.trial)
    if not request.brief:
        with recorder.inside():
            _finish(watcher, record, request.side)
    return record, recorder.outputs


def _npus_used() -> int:
    """Number of NPUs that this process used; 0 if other processes did all the work."""
    import npu_runtime

    return sum(npu_runtime.memory_info(device)["peak"] > 0 for device in range(npu_runtime.device_count()))


def _too_late(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _Late


def _finish(watcher: Any, record: dict[str, Any], side: str) -> None:
    """Add the watcher's results after the run; an error or interruption keeps what was recorded before.

    After an interrupted run nothing further is measured.
    """
    try:
        if not record["interrupted"]:
            watcher.finish(record)
        elif side == "npu":
            record |= watcher.seen()
    except KeyboardInterrupt:
        record["interrupted"] = True
    except Exception as error:
        record |= {"incomplete": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _fault(error: BaseException, roots: Roots) -> dict[str, Any]:
    """Describe an exception of the script with the innermost line of user code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if roots.owns(f.filename)]
    text = "".join(traceback.format_list(own) if own else traceback.format_list(frames[-3:]))
    for seen, known in roots.folders:
        text = text.replace(seen, known)
    return {
        "type": type(error).__name__,
        "message": str(error)[:4000],
        "location": f"{roots.name(own[-1].filename)}:{own[-1].lineno}" if own else "",
        "traceback": text,
    }


def _watcher(request: Request, recorder: Recorder) -> Any:
    if not request.dumps:
        dumps.suspend()
    random.seed(request.seed)
    np.random.seed(request.seed)
    if request.framework == "torch":
        from npu_tools.check.observe.watch_torch import TorchWatcher

        return TorchWatcher(request, recorder)
    if request.framework == "tensorflow1":
        from npu_tools.check.observe.watch_sessions import SessionWatcher

        return SessionWatcher(request, recorder)
    from npu_tools.check.observe.watch_tensorflow import TensorFlowWatcher

    return TensorFlowWatcher(request, recorder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
