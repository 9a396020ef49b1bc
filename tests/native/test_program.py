"""Programs: building, running from several threads, memory, errors."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import npu_runtime as rt
from npu_runtime import _native
from tests.native.native_support import BF16, Array, constant, randn, single, view


@pytest.fixture(autouse=True)
def _default_limits() -> Iterator[None]:
    yield
    rt.set_memory_limit(0)


def _chain(width: int = 16, name: str = "chain") -> tuple[rt.Program, Array, Array]:
    """relu(x @ w) @ w with the value in between in the arena."""
    w = np.eye(width, dtype=np.float32)
    x = randn(4, width)
    program = rt.Program(name)
    source, out = program.input(0, x.nbytes), program.output(0, x.nbytes)
    weights, middle = program.constant(w), program.arena(0, x.nbytes)
    attrs = {"post_ops": ["relu"]}
    program.task("matmul", "first", [view(source, x), view(weights, w)], [view(middle, x)], attrs)
    program.task("matmul", "second", [view(middle, x), view(weights, w)], [view(out, x)], {})
    program.finalize(x.nbytes)
    return program, x, np.maximum(x, 0)


def test_values_pass_through_the_arena() -> None:
    program, x, expected = _chain()
    y = np.zeros_like(x)
    assert program.run([x], [y]) == {}
    np.testing.assert_array_equal(y, expected)


def test_new_addresses_are_followed() -> None:
    program, x, expected = _chain()
    for _ in range(4):
        fresh, y = x.copy(), np.zeros_like(x)
        program.run([fresh], [y])
        np.testing.assert_array_equal(y, expected)


def test_raw_addresses() -> None:
    program, x, expected = _chain()
    y = np.zeros_like(x)
    program.run_pointers([x.ctypes.data], [y.ctypes.data])
    np.testing.assert_array_equal(y, expected)
    with pytest.raises(ValueError, match="1 input addresses are needed, 0 given"):
        program.run_pointers([], [y.ctypes.data])


def test_many_threads_run_one_program() -> None:
    program, x, _ = _chain(64)
    start = threading.Barrier(4)

    def work(seed: int) -> bool:
        own = randn(*x.shape, seed=seed)
        y = np.zeros_like(own)
        start.wait()
        for _ in range(200):
            y[:] = -1
            program.run([own], [y])
            if not np.array_equal(y, np.maximum(own, 0)):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_the_observer_of_tasks_changes_while_threads_run() -> None:
    """Each run is told as a whole or not at all; nobody calls an observer that is gone."""
    program, x, expected = _chain(16)
    stop = threading.Event()

    def work(_: int) -> bool:
        y, right = np.zeros_like(x), True
        while not stop.is_set():
            program.run([x], [y])
            right = right and np.array_equal(y, expected)
        return right

    with ThreadPoolExecutor(2) as pool:
        found = pool.map(work, range(2))
        try:
            for _ in range(40):
                seen: list[int] = []
                _native.set_observer(lambda *told, seen=seen: seen.append(len(told)))
                program.run([x], [np.zeros_like(x)])
                _native.set_observer(None)
                assert len(seen) >= 4  # two tasks, before and after each
        finally:
            _native.set_observer(None)
            stop.set()
        assert all(found)


def test_programs_run_at_once_on_different_threads() -> None:
    programs = [_chain(16 * (i + 1), f"p{i}") for i in range(4)]

    def work(i: int) -> bool:
        program, x, expected = programs[i]
        y = np.zeros_like(x)
        for _ in range(100):
            y[:] = -1
            program.run([x], [y])
        return np.array_equal(y, expected)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_task_info_and_profile() -> None:
    program, x, _ = _chain()
    first, second = program.task_info()
    assert (first["name"], first["kind"], second["name"]) == ("first", "matmul", "second")
    assert first["flops"] == 2 * 4 * 16 * 16
    assert first["bytes"] == 2 * x.nbytes + 16 * 16 * 4
    assert first["impl"] and first["layout"]
    seconds = program.profile([x], [np.zeros_like(x)], 3)
    assert len(seconds) == 2 and all(0 < s < 1 for s in seconds)


def test_number_of_threads_belongs_to_the_program() -> None:
    before = rt.num_threads()
    try:
        rt.set_num_threads(1)
        program, x, expected = _chain(256)
    finally:
        rt.set_num_threads(before)
    y = np.zeros_like(x)
    program.run([x], [y])
    np.testing.assert_array_equal(y, expected)
    with pytest.raises(ValueError, match="threads"):
        rt.set_num_threads(0)


# arguments


def test_arrays_are_checked() -> None:
    program, x, _ = _chain()
    y = np.zeros_like(x)
    with pytest.raises(ValueError, match="1 inputs are needed, 2 given"):
        program.run([x, x], [y])
    with pytest.raises(ValueError, match="input 0 holds 4 bytes, 256 are needed"):
        program.run([x[0, :1]], [y])
    with pytest.raises(ValueError, match="input 0 is not a C-contiguous"):
        program.run([np.asfortranarray(x)], [y])
    y.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        program.run([x], [y])


def test_bfloat16_and_bytes_are_arrays_too() -> None:
    x = np.arange(8).astype(BF16)
    program, _, fills = single("copy", [x], [np.zeros_like(x)])
    program.run([x], fills)
    np.testing.assert_array_equal(fills[0], x)
    program.run([x.tobytes()], fills)
    np.testing.assert_array_equal(fills[0], x)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [
        ((5,), (1,), 0),
        ((4,), (1,), 1),
        ((2, 2), (3, 1), 0),
        ((4,), (-1,), 2),
        ((2, 2), (2**62, 1), 0),
        ((2**40, 2**40), (1, 1), 0),
        ((-1,), (1,), 0),
        ((2,), (1, 1), 0),
        ((2,), (1,), -1),
        ((1,) * 13, (1,) * 13, 0),
    ],
)
def test_views_outside_their_buffer_are_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    program = rt.Program("views")
    source, out = program.input(0, 16), program.output(0, 16)
    good = (out, "float32", (4,), (1,), 0)
    with pytest.raises(ValueError, match=r"task 'bad' \(reorder\) input 0"):
        program.task("reorder", "bad", [(source, "float32", shape, strides, offset)], [good], {})


def test_malformed_tasks_are_refused() -> None:
    program = rt.Program("tasks")
    source, out = program.input(0, 16), program.output(0, 16)
    frozen = program.constant(np.zeros(4, np.float32))
    good = (source, "float32", (4,), (1,), 0)
    target = (out, "float32", (4,), (1,), 0)
    with pytest.raises(ValueError, match="unknown task kind"):
        program.task("nothing", "t", [good], [target], {})
    with pytest.raises(ValueError, match="buffer 99 does not exist"):
        program.task("copy", "t", [(99, "float32", (4,), (1,), 0)], [target], {})
    with pytest.raises(ValueError, match="writes to a constant"):
        program.task("copy", "t", [good], [(frozen, "float32", (4,), (1,), 0)], {})
    with pytest.raises(ValueError, match="writes to an input"):
        program.task("copy", "t", [good], [good], {})
    with pytest.raises(ValueError, match="unknown dtype 'float23'"):
        program.task("copy", "t", [(source, "float23", (4,), (1,), 0)], [target], {})
    with pytest.raises(ValueError, match="block 7 does not exist"):
        program.task("copy", "t", [good], [target], {}, 7)
    with pytest.raises(ValueError, match="a view is"):
        program.task("copy", "t", [(source, "float32")], [target], {})  # type: ignore[list-item]
    with pytest.raises(ValueError, match="attribute 'odd' has a type"):
        program.task("copy", "t", [good], [target], {"odd": object()})


def test_attributes_are_checked_when_the_program_is_built() -> None:
    x = randn(1, 1, 4, 4)
    with pytest.raises(ValueError, match=r"task 'the_task' \(pool\): attribute 'kernel' is missing"):
        single("pool", [x], [x], {"kind": "max"})
    with pytest.raises(ValueError, match="attribute 'strides' must be a list of integers"):
        single("pool", [x], [x], {"kind": "max", "kernel": [1, 1], "strides": "two"})


def test_a_program_is_built_once_and_run_after() -> None:
    program = rt.Program("order")
    with pytest.raises(ValueError, match="not finalized"):
        program.run([], [])
    program.finalize(0)
    assert program.run([], []) == {}
    for change in (lambda: program.input(0, 4), lambda: program.block(), lambda: program.finalize(0)):
        with pytest.raises(ValueError, match="is finalized"):
            change()


def test_a_failed_build_can_be_repeated() -> None:
    program = rt.Program("again")
    program.arena(0, 1 << 20)
    with pytest.raises(ValueError, match="reaches outside the arena"):
        program.finalize(16)
    program.finalize(1 << 20)
    program.run([], [])


# memory


def test_memory_comes_back() -> None:
    gc.collect()
    rt.trim()
    before = rt.memory_info()
    program, x, _ = _chain(512)
    program.run([x], [np.zeros_like(x)])
    during = rt.memory_info()
    assert during["constants"] - before["constants"] >= 512 * 512 * 4
    assert during["arenas"] > before["arenas"]
    assert during["current"] == during["constants"] + during["arenas"] + during["buffers"]
    del program
    gc.collect()
    rt.trim()  # an idle arena is kept while programs of other tests live
    assert rt.memory_info()["current"] == before["current"]
    assert rt.memory_info()["peak"] >= during["current"]
    rt.reset_peak()
    assert rt.memory_info()["peak"] == before["current"]


def test_programs_share_arenas() -> None:
    def build() -> rt.Program:
        program = rt.Program("large")
        program.arena(0, 8 << 20)
        program.finalize(8 << 20)
        program.run([], [])
        return program

    before = rt.memory_info()["arenas"]
    kept = [build() for _ in range(5)]
    assert rt.memory_info()["arenas"] - before <= 9 << 20
    del kept


def test_memory_limit_names_who_asked() -> None:
    rt.trim()
    rt.set_memory_limit(rt.memory_info()["current"] + (1 << 20))
    program = rt.Program("greedy")
    program.arena(0, 4 << 20)
    with pytest.raises(rt.OutOfDeviceMemory, match="the arena of program 'greedy'") as caught:
        program.finalize(4 << 20)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.requested >= 4 << 20
    assert caught.value.available <= 1 << 20
    with pytest.raises(rt.OutOfDeviceMemory, match="the constants of program 'matmul'"):
        single("matmul", [randn(1, 1024), constant(randn(1024, 1024))], [randn(1, 1024)])
    with pytest.raises(rt.OutOfDeviceMemory, match="image"):
        rt.DeviceBuffer(4 << 20, "image")
    rt.set_memory_limit(0)
    program.finalize(4 << 20)


def test_threads_take_turns_when_only_one_arena_fits() -> None:
    x = randn(64, 8192)  # 2 MiB
    program = rt.Program("turns")
    source, out, middle = program.input(0, x.nbytes), program.output(0, x.nbytes), program.arena(0, x.nbytes)
    program.task("copy", "in", [view(source, x)], [view(middle, x)], {})
    program.task("copy", "out", [view(middle, x)], [view(out, x)], {})
    program.finalize(x.nbytes)
    rt.set_memory_limit(rt.memory_info()["current"] + (1 << 20))

    def work(seed: int) -> bool:
        own = randn(*x.shape, seed=seed)
        y = np.zeros_like(own)
        for _ in range(10):
            program.run([own], [y])
        return np.array_equal(own, y)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_device_buffers_are_accounted() -> None:
    before = rt.memory_info()["buffers"]
    buffer = rt.DeviceBuffer(1000, "x")
    assert buffer.nbytes >= 1000 and buffer.address % 64 == 0
    assert rt.memory_info()["buffers"] - before == buffer.nbytes
    del buffer
    assert rt.memory_info()["buffers"] == before


def test_constants_read_in_place_stay_alive() -> None:
    class Owned(np.ndarray):  # arrays of the base class take no weak references
        pass

    w = np.arange(8, dtype=np.float32).view(Owned)
    alive = weakref.ref(w)
    program = rt.Program("in place")
    source, out = program.constant(w, copy=False), program.output(0, w.nbytes)
    program.task("copy", "c", [view(source, w)], [view(out, w)], {})
    program.finalize(0)
    assert program.constant_bytes == 0
    del w
    gc.collect()
    y = np.zeros(8, np.float32)
    program.run([], [y])
    np.testing.assert_array_equal(y, np.arange(8))
    assert alive() is not None
    del program
    gc.collect()
    assert alive() is None


def test_copied_constants_are_let_go() -> None:
    class Owned(np.ndarray):
        pass

    w = np.arange(8, dtype=np.float32).view(Owned)
    alive = weakref.ref(w)
    program = rt.Program("copied")
    source, out = program.constant(w), program.output(0, w.nbytes)
    program.task("copy", "c", [view(source, w)], [view(out, w)], {})
    program.finalize(0)
    del w
    gc.collect()
    assert alive() is None
    y = np.zeros(8, np.float32)
    program.run([], [y])
    np.testing.assert_array_equal(y, np.arange(8))


def test_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device 64 does not exist"):
        rt.Program("x", device=64)


def test_version_and_kernels_are_listed() -> None:
    assert rt.version()["onednn"].startswith("3.")
    assert "topk" in rt.aicpu_kernels()
    assert rt.device_count() >= 1
