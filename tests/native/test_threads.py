"""The pool of threads: who uses it, what a busy machine does to it, and children of the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import thread_time

import numpy as np
import pytest

import npu_runtime as rt
from npu_runtime import _native
from tests.native.native_support import (
    HAS_BF16_VECTORS,
    channels_last,
    constant,
    needs_bf16_vectors,
    randn,
    single,
)

SIZE = 192
RUNS = 100


Work = tuple[rt.Program, list[np.ndarray], list[np.ndarray], np.ndarray]


def product(device: int = 0) -> Work:
    """A matrix product that oneDNN shares out among threads."""
    x, w = randn(SIZE, SIZE), randn(SIZE, SIZE, seed=1)
    y = np.zeros((SIZE, SIZE), np.float32)
    return *single("matmul", [x, constant(w)], [y], device=device), x @ w


def gradient(device: int = 0) -> Work:
    """The gradient of few weights by many pixels, which threads add up together."""
    x, dy = randn(4, 3, 40, 40), randn(4, 16, 40, 40, seed=1)
    dw = np.zeros((16, 3, 1, 1), np.float32)
    operands = [channels_last(x), channels_last(dy)]
    program, feeds, fills = single(
        "conv_grad_weights", operands, [dw], {"implementation": "onednn_shares"}, device=device
    )
    return program, feeds, fills, np.einsum("nchw,nkhw->kc", x, dy).reshape(dw.shape)


def steps(device: int = 0) -> Work:
    """An LSTM layer: each step needs what all threads made of the step before."""
    count, hidden = 20, 128
    x, state = randn(count, 1, 8), np.zeros((1, 1, 1, hidden), np.float32)
    w, r = randn(8, 4, hidden, seed=1) / 4, randn(hidden, 4, hidden, seed=2) / 16
    y = np.zeros((count, 1, hidden), np.float32)
    weights = [constant(a[None, None]) for a in (w, r, np.zeros((4, hidden), np.float32))]
    made = single(
        "rnn",
        [x, state, state, *weights],
        [y],
        {"cell": "lstm", "direction": "forward", "implementation": "small_batch"},
        device,
    )
    wanted, h, c = [], np.zeros(hidden), np.zeros(hidden)
    for value in x[:, 0]:
        i, f, g, o = np.einsum("i,igh->gh", value, w) + np.einsum("i,igh->gh", h, r)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        wanted.append(h)
    return *made, np.stack(wanted)[:, None]


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
@pytest.mark.parametrize("work", [product, gradient, pytest.param(steps, marks=needs_bf16_vectors)])
def test_a_worker_that_does_not_run_is_not_waited_for(work: Callable[[], Work], two_threads: None) -> None:
    program, feeds, fills, wanted = work()
    run_often(program, feeds, fills)
    rt.set_num_threads(1)
    serial = work()[:3]
    begun = thread_time()
    run_often(*serial)
    alone = thread_time() - begun
    (worker,) = workers()[:1]
    shares = []
    with starved(worker):
        for _ in range(4):  # where other processes hold up the caller too, the worker comes to more
            before = processor_time(worker)
            run_often(program, feeds, fills)
            shares.append((processor_time(worker) - before) / alone)
            if shares[-1] < 0.4:
                break
    np.testing.assert_allclose(fills[0], wanted, rtol=1e-4, atol=1e-4)
    assert min(shares) < 0.4  # a caller that waits leaves it a half each time


def test_many_callers_share_the_pool(two_threads: None) -> None:
    made = [product() for _ in range(6)]
    start = threading.Barrier(len(made))

    def work(case: Work) -> bool:
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


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"NPU_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"NPU_NUM_THREADS": "1", "OMP_NUM_THREADS": "3"}, 1),
        ({"NPU_NUM_THREADS": "0", "OMP_NUM_THREADS": "3"}, 3),
        ({"NPU_NUM_THREADS": "3", "NPU_DEVICE_COUNT": "2"}, 3),
        ({}, 1),
    ],
)
def test_the_environment_says_how_many(settings: dict[str, str], count: int) -> None:
    one_core = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
    command = f"{one_core}; import npu_runtime as rt; print(rt.num_threads())"
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run(
        [sys.executable, "-c", command], env=others | settings, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [str(count)]


@pytest.mark.parametrize(
    ("cores", "threads"),
    [
        ("{0}", [1]),
        ("{0};{0}", [1, 1]),
        ("{0},{0};{0}", [2, 1]),
        ("{0}-{0};{0}", [1, 1]),
        ("", [1, 1, 1]),
        ("nosuch", [1, 1, 1]),
        ("{0};-1", [1, 1, 1]),
        ("{0};", [1]),
        ("100000", [1, 1, 1]),
        ("{0};;{0}", [1, 1, 1]),
    ],
)
def test_devices_are_sets_of_cores(cores: str, threads: list[int]) -> None:
    """A text that is not a list of sets is not used, with a warning."""
    core = min(os.sched_getaffinity(0))
    one_core = f"import os; os.sched_setaffinity(0, {{{core}}})"
    command = (
        f"{one_core}; import npu_runtime as rt; print([rt.num_threads(i) for i in range(rt.device_count())])"
    )
    settings = {"NPU_DEVICE_CORES": cores.format(core), "NPU_DEVICE_COUNT": "3"}
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", command],
        env=others | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    if cores and len(threads) == 3:
        assert "NPU_DEVICE_CORES" in found.stderr and found.returncode
    else:
        assert found.stdout.strip() == str(threads), found.stderr


@pytest.mark.parametrize(
    ("visible", "threads"),
    [
        ("", [1, 2, 1]),
        ("1", [2]),
        ("2,1", [1, 2]),
        ("3", None),
        ("1,1", None),
        ("x", None),
        ("NoDevFiles", [1, 2, 1]),
    ],
)
def test_a_process_sees_the_devices_that_it_is_shown(visible: str, threads: list[int] | None) -> None:
    core = min(os.sched_getaffinity(0))
    command = "import npu_runtime as rt; print([rt.num_threads(i) for i in range(rt.device_count())])"
    settings = {"NPU_DEVICE_CORES": f"{core};{core},{core};{core}", "ASCEND_RT_VISIBLE_DEVICES": visible}
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", command],
        env=others | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    if threads is None:
        assert "ASCEND_RT_VISIBLE_DEVICES" in found.stderr and "below 3" in found.stderr
    else:
        assert found.stdout.strip() == str(threads), found.stderr


def step_on_every_device() -> None:
    """Two callers of each of the devices run the same programs at the same time; called in a process of its own."""
    kinds = [product, gradient, *([steps] if HAS_BF16_VECTORS else [])]
    made = {device: [make(device) for make in kinds] for device in range(rt.device_count())}
    start = threading.Barrier(2 * len(made))

    def caller(device: int) -> None:
        start.wait()
        for _ in range(RUNS // 10):
            for program, feeds, fills, wanted in made[device]:
                own = [np.full_like(array, -1) for array in fills]
                program.run(feeds, own)
                np.testing.assert_allclose(own[0], wanted, rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(2 * len(made)) as pool:
        for done in [pool.submit(caller, device) for device in [*made, *made]]:
            done.result()
    used = [rt.memory_info(device)["peak"] for device in made]
    assert all(used), f"a device whose memory nothing was charged to: {used}"
    print("done", len(made))


def test_devices_run_steps_at_the_same_time() -> None:
    command = "from tests.native.test_threads import step_on_every_device; step_on_every_device()"
    settings = {"NPU_DEVICE_COUNT": "3", "NPU_NUM_THREADS": "2"}
    found = subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | settings,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.split() == ["done", "3"], found.stderr[-4000:]


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000"}, None),
        ("0::/\n", {"cpu.max": "100000 100000"}, 1),
        ("0::/user/job\n", {"user/job/cpu.max": "max 100000", "user/cpu.max": "50000 100000"}, 1),
        ("0::/user\n", {"user/cpu.max": "900000 100000"}, 9),
        (
            "4:memory:/user\n3:cpu,cpuacct:/user\n",
            {"cpu,cpuacct/user/cpu.cfs_quota_us": "80000", "cpu,cpuacct/user/cpu.cfs_period_us": "100000"},
            1,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_quotas_of_control_groups_count_as_cores(
    groups: str, files: dict[str, str], quota: int | None, tmp_path: Path
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    cores = len(os.sched_getaffinity(0))
    found = rt.processors(str(tmp_path / "groups"), str(tmp_path / "root"))
    assert found == min(cores, quota or cores)


def test_memory_nodes_are_read_with_the_cores_that_the_process_may_use(tmp_path: Path) -> None:
    mine = sorted(os.sched_getaffinity(0))
    (tmp_path / "online").write_text("0,2-3\n")
    for node, cores in ((0, f"{mine[0]}\n"), (2, ",".join(map(str, mine[1:])) + "\n"), (3, "\n")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cores)
    found = _native.memory_nodes(str(tmp_path))
    assert found == {node: cores for node, cores in ((0, mine[:1]), (2, mine[1:])) if cores}
    (tmp_path / "node0" / "cpulist").write_text("0-1023\n")
    assert _native.memory_nodes(str(tmp_path))[0] == mine
    assert _native.memory_nodes(str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("count", "nodes", "cores"),
    [
        (2, {0: [0, 1, 2], 1: [3, 4, 5]}, [[0, 1, 2], [3, 4, 5]]),
        (4, {0: [0, 2, 4, 6], 1: [1, 3, 5, 7]}, [[0, 2], [4, 6], [1, 3], [5, 7]]),
        (3, {0: [0, 1], 1: [2, 3]}, [[0, 1], [2], [3]]),
        (2, {0: [0], 1: [1], 4: [2], 5: [3]}, [[0, 1], [2, 3]]),
        (2, {0: [0, 1, 2, 3]}, []),
        (1, {0: [0], 1: [1]}, []),
        (8, {0: [0, 1], 1: [2, 3]}, []),
    ],
)
def test_devices_keep_to_memory_nodes(
    count: int, nodes: dict[int, list[int]], cores: list[list[int]]
) -> None:
    found = _native.cores_by_node(count, nodes)
    assert found == cores
    owners = {core: node for node, all_cores in nodes.items() for core in all_cores}
    for device in found:
        places = {owners[core] for core in device}
        assert _native.node_of(device, nodes) == (places.pop() if len(places) == 1 else -1)
