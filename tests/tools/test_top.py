"""`tf-adapter top`: counters of running processes, in files that vanish with them."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import ge
import npu_runtime
from npu_runtime import activity
from npu_tools.counters import Process, Sample, rates, read_all
from npu_tools.main import main
from npu_tools.top import _table
from tests.tools.command_line import ROOT, run_command, run_python

SCRIPT = """
import sys
import numpy as np
import ge
import npu_runtime
for name in ("small", "large"):
    g = ge.Graph(name)
    size = 4 if name == "small" else 64
    g.output(ge.ops.relu(ge.ops.matmul(g.input("a", (size, size)), g.input("b", (size, size)))), "y")
    model = ge.compile(g, name=name)
    ones = np.ones((size, size), np.float32)
    for _ in range(3 if name == "small" else 40):
        model(ones, ones)
npu_runtime.count_host_call()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        model(ones, ones)
    print("done", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return activity.folder()


@pytest.fixture
def worker(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with two models that waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_process_publishes_its_counters(worker: subprocess.Popen[str], folder: Path) -> None:
    (seen,) = read_all(folder)
    assert seen.pid == worker.pid and seen.command.startswith("-c")
    sample = seen.sample
    assert {name: runs for name, (runs, _) in sample.programs.items()} == {"small": 3, "large": 40}
    assert sample.compiles == 2 and sample.last_compile == "large" and sample.compile_seconds > 0
    assert sample.host_calls == 1
    ((current, peak, limit),) = sample.memory
    assert 0 < current <= peak < limit
    assert worker.stdin and worker.stdout
    print(10, file=worker.stdin, flush=True)
    worker.stdout.readline()
    (later,) = read_all(folder)
    found = rates(seen, later)
    assert found.program == "large" and found.steps_per_second > 0 and found.busy > 0
    elapsed = later.sample.when - seen.sample.when
    assert found.steps_per_second == pytest.approx(10 / elapsed)

    shown = run_command("top", "--once", "--interval", "0.1", "--json", XDG_RUNTIME_DIR=str(folder.parent))
    (row,) = json.loads(shown.stdout)["processes"]
    assert row["pid"] == worker.pid and row["compiles"] == 2 and row["programs"][0]["name"] == "large"

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    assert read_all(folder) == [], "a killed process vanishes"
    activity.remove_dead(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "wanted"), [("1", "True"), pytest.param("0", "False", marks=pytest.mark.slow)]
)
def test_a_process_that_ends_removes_its_file_and_may_publish_none(
    setting: str, wanted: str, folder: Path
) -> None:
    code = (
        "import ge, npu_runtime._native as n\ng = ge.Graph('g')\ng.output(ge.ops.relu(g.input('x', (4,))), 'y')\n"
        "ge.compile(g)\nprint(n.is_published())"
    )
    assert run_python("-c", code, NPU_TOP=setting).strip() == wanted
    assert not folder.exists() or list(folder.iterdir()) == []


def test_files_of_others_are_passed_over(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "notes").write_text("text")
    (folder / f"{os.getpid()}-1").write_bytes(b"\0" * 10)
    (folder / f"{os.getpid()}-{activity.started(os.getpid())}").write_bytes(b"\0" * 10)
    assert read_all(folder) == []


def test_no_process_is_no_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", "0.1"]) == 0
    assert "no process uses an NPU" in capsys.readouterr().out
    assert main(["top", "--once", "--interval", "0.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"processes": []}


def test_steps_are_the_runs_of_the_program_that_takes_the_most_time() -> None:
    before = Process(
        1, "a", Sample(10.0, 1, 0.5, 3, "n", ((5, 6, 9),), {"step": (10, 1.0), "eager": (50, 0.1)})
    )
    after = Process(
        1, "a", Sample(12.0, 1, 0.5, 7, "n", ((5, 6, 9),), {"step": (30, 2.5), "eager": (950, 0.3)})
    )
    found = rates(before, after)
    assert (found.steps_per_second, found.program, found.host_calls_per_second) == (10.0, "step", 2.0)
    assert found.busy == pytest.approx(0.85)
    assert rates(None, after).steps_per_second == 0.0


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_keeps_its_figures_on_every_terminal(width: int) -> None:
    sample = Sample(12.0, 1, 0.5, 7, "net", ((5 << 20, 6 << 20, 9 << 30),), {"step": (30, 2.5)})
    found = rates(None, Process(4711, "train.py " + "--option " * 40, sample))
    screen = Console(width=width, color_system=None)
    with screen.capture() as shown:
        screen.print(_table([found], width))
    lines = shown.get().splitlines()
    assert max(map(len, lines)) <= width
    for figure in ("4711", "0.0", "5 MiB", "train.py", *(["6 MiB", "0.5 s in all"] if width == 140 else [])):
        assert figure in lines[1]


def test_a_fork_does_not_count() -> None:
    g = ge.Graph("forked")
    g.output(ge.ops.relu(g.input("x", (4,))), "y")
    model = ge.compile(g)
    if not npu_runtime._native.is_published():
        pytest.skip("this process publishes nothing")
    child = os.fork()
    if child == 0:
        os._exit(0 if not npu_runtime._native.is_published() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert npu_runtime._native.is_published() and model(np.ones(4, np.float32)).sum() == 4


@pytest.mark.parametrize("options", [[], ["--json"], ["--once"]])
def test_ctrl_c_is_status_130(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("npu_tools.top.time", types.SimpleNamespace(sleep=interrupted))
    assert main(["top", *options]) == 130
