"""The pool of threads: who uses it, what a busy machine does to it, and children of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import thread_time

import numpy as np
import pytest
from native_support import constant, randn, single

import npu_runtime as rt

SIZE = 192
RUNS = 100


def product() -> tuple[rt.Program, list[np.ndarray], list[np.ndarray], np.ndarray]:
    """A matrix product that oneDNN shares out among threads."""
    x, w = randn(SIZE, SIZE), randn(SIZE, SIZE, seed=1)
    y = np.zeros((SIZE, SIZE), np.float32)
    return *single("matmul", [x, constant(w)], [y]), x @ w


def run_often(program: rt.Program, feeds: list[np.ndarray], fills: list[np.ndarray]) -> None:
    for _ in range(RUNS):
        program.run(feeds, fills)


def workers() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread of somebody else that has ended meanwhile
            if (task / "comm").read_text() == "npu\n":
                found.append(int(task.name))
    return found


def test_onednn_runs_on_the_pool(two_threads: None) -> None:
    before = len(os.listdir("/proc/self/task")) - len(workers())
    program, feeds, fills, wanted = product()
    program.run(feeds, fills)
    np.testing.assert_allclose(fills[0], wanted, rtol=1e-4, atol=1e-4)
    assert workers()
    assert len(os.listdir("/proc/self/task")) - len(workers()) == before


def processor_time(task: int) -> float:
    """Seconds that a thread has run."""
    return int(Path(f"/proc/self/task/{task}/schedstat").read_text().split()[0]) / 1e9


@contextmanager
def starved(worker: int) -> Iterator[None]:
    """A worker that hardly ever runs: idle priority on a core that another process keeps busy."""
    core = min(os.sched_getaffinity(0))
    code = "print(flush=True)\nwhile True: pass"
    hog = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert hog.stdout is not None
        hog.stdout.readline()  # before it runs, the core is free
        os.sched_setaffinity(hog.pid, {core})
        os.sched_setaffinity(worker, {core})
        os.sched_setscheduler(worker, os.SCHED_IDLE, os.sched_param(0))
        yield
    finally:
        os.sched_setscheduler(worker, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(worker, os.sched_getaffinity(0))
        hog.kill()
        hog.wait()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_worker_that_does_not_run_is_not_waited_for(two_threads: None) -> None:
    program, feeds, fills, wanted = product()
    run_often(program, feeds, fills)
    rt.set_num_threads(1)
    begun = thread_time()
    run_often(program, feeds, fills)
    work = thread_time() - begun
    rt.set_num_threads(2)
    (worker,) = workers()[:1]
    with starved(worker):
        before = processor_time(worker)
        run_often(program, feeds, fills)
        share = (processor_time(worker) - before) / work
    np.testing.assert_allclose(fills[0], wanted, rtol=1e-4, atol=1e-4)
    assert share < 0.25  # a caller that waits leaves it a half


def test_many_callers_share_the_pool(two_threads: None) -> None:
    made = [product() for _ in range(6)]
    start = threading.Barrier(len(made))

    def work(case: tuple[rt.Program, list[np.ndarray], list[np.ndarray], np.ndarray]) -> bool:
        program, feeds, fills, wanted = case
        start.wait()
        for _ in range(RUNS):
            fills[0][:] = -1
            program.run(feeds, fills)
            if not np.allclose(fills[0], wanted, rtol=1e-4, atol=1e-4):
                return False
        return True

    before = set(workers())  # of tests on all cores
    with ThreadPoolExecutor(len(made)) as pool:
        assert all(pool.map(work, made))
    assert len(set(workers()) - before) < len(made)


def test_a_child_of_the_process_has_workers_of_its_own(two_threads: None) -> None:
    program, feeds, fills, wanted = product()
    program.run(feeds, fills)
    child = os.fork()
    if not child:
        fills[0][:] = -1
        program.run(feeds, fills)
        right = np.allclose(fills[0], wanted, rtol=1e-4, atol=1e-4) and bool(workers())
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("count", ["1", "2", "3"])
def test_the_environment_says_how_many(count: str) -> None:
    command = "import npu_runtime as rt; print(rt.num_threads())"
    environment = {**os.environ, "OMP_NUM_THREADS": count}
    found = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [count]
