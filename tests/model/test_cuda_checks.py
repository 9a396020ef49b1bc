"""Checks of indices and divisors on the simulated GPU: the error is the CPU's, and nothing of a failed run is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ge
from ge.compiler import compile_graph
from ge.model.cuda import checks
from ge.model.cuda.arrays import GpuArray
from ge.model.cuda.control import Guard, Steps
from ge.model.cuda.host import HostPart
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from npu_runtime import cuda

Make = Callable[..., Any]


@pytest.fixture(autouse=True)
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CUDA_DRIVER", "simulated")


def models(
    make: Make, feeds: Sequence[np.ndarray], donated: Sequence[tuple[int, int]] = ()
) -> list[ge.Model]:
    """A graph compiled for the GPU and for the CPU."""

    def graph() -> Any:
        b = GraphBuilder("net")
        results = make(b, *[b.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(feeds)])
        for value in results if isinstance(results, tuple) else (results,):
            b.output(value)
        return b.graph

    return [
        compile_graph(graph(), options, "net", donated) for options in (CompileOptions(target="sm_90"), None)
    ]


def agree(make: Make, *feeds: np.ndarray, donated: Sequence[tuple[int, int]] = ()) -> ge.Model:
    """Both give the same results, or the same error; the model of the GPU."""
    gpu, cpu = models(make, feeds, donated)
    outcomes = []
    for model in (gpu, cpu):
        try:
            outcomes.append([np.array(r) for r in model.run([a.copy() for a in feeds])])
        except ge.GeError as error:
            outcomes.append(str(error).partition("): ")[2])  # names of nodes are numbered
    if isinstance(outcomes[1], str):
        assert outcomes[0] == outcomes[1]
    else:
        for got, want in zip(*outcomes, strict=True):
            np.testing.assert_array_equal(got, want)
    return gpu


def checked(**rule: Any) -> Make:
    return lambda b, x: b.op("Add", b.op("Checked", x, **rule), np.array(1, x.dtype.numpy()))


def fails(model: ge.Model, text: str, *feeds: np.ndarray) -> None:
    with pytest.raises(ge.GeError, match=text):
        model.run(list(feeds))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ({"limits": [9]}, [0, 8, 3]),
        ({"limits": [9]}, [0, 9, 3]),
        ({"limits": [9], "least": 2}, [2, 8, 1]),
        ({"limits": [9], "from_end": True}, [8, 0, 9]),
        ({"limits": []}, [1, 3, 0]),
        ({"limits": []}, [1, 3, 2]),
        ({"limits": [9, 2, 4]}, [8, 1, 3]),
        ({"limits": [9, 2, 4]}, [8, 2, 3]),
    ],
)
def test_rules(dtype: str, rule: dict[str, Any], given: list[int]) -> None:
    agree(checked(**rule), np.array([given, given], dtype))


@pytest.mark.parametrize("limits", [[5], [5, 5, 5]])
def test_negative_indices_count_from_the_end(limits: list[int]) -> None:
    for last in (-5, -6):
        agree(checked(limits=limits, from_end=True), np.array([[4, -5, 0], [1, 2, last]]))


@pytest.mark.parametrize("shape", [(0,), (1,), (), (9000,), (4096, 3), (3, 5000, 1)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 7, shape)
    model = agree(checked(limits=[7]), x)
    if x.size:
        wrong = x.copy()
        wrong.reshape(-1)[[-1, x.size // 2]] = 7
        where = ",".join(str(int(n)) for n in np.unravel_index(x.size // 2, shape))
        fails(model, rf"indices\[{where}\] = 7 ", wrong)


def columns(count: int = 4) -> Make:
    """A table for each column of indices, as recommenders have."""

    def make(b: GraphBuilder, places: Any, *tables: Any) -> Any:
        rows = [b.op("Slice", places, starts=[0, n], ends=[6, n + 1], steps=[1, 1]) for n in range(count)]
        found = []
        for number, (table, row) in enumerate(zip(tables, rows, strict=True)):
            column = b.op("Reshape", row, shape=[6])
            seen = b.op("Checked", column, limits=[5], what=f"column {number}")
            found.append(b.op("Gather", table, seen, axis=0))
        return b.op("Concat", *found, axis=1)

    return make


def test_columns_of_one_matrix_share_a_kernel() -> None:
    places = np.random.default_rng(0).integers(0, 5, (6, 4))
    tables = [np.random.default_rng(n).standard_normal((5, 2)).astype(np.float32) for n in range(4)]
    model = agree(columns(), places, *tables)
    assert len(model.program.loaded.checks.made) == 1
    places[[4, 2], [1, 3]] = 5, -1
    fails(model, r"column 1\[4\] = 5 ", places, *tables)
    places[4, 1] = 0
    fails(model, r"column 3\[2\] = -1 ", places, *tables)
    places[2, 3] = 0
    assert np.isfinite(model.run([places, *tables])[0]).all()


def gathered(b: GraphBuilder, table: Any, places: Any) -> Any:
    """Indices that the run computes, whose memory later results take."""
    y = b.op("Gather", table, b.op("Checked", b.op("Mul", places, np.array(2)), limits=[9]), axis=0)
    return b.op("MatMul", b.op("Exp", y), y, transpose_a=True)


def test_computed_indices_are_checked_in_the_graph() -> None:
    table = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
    model, _ = models(gathered, [table, np.array([3, 4])])
    model.run([table, np.array([3, 4])])
    assert [type(part) for part in model.program.loaded.parts] == [Steps]
    fails(model, r"indices\[1\] = 10 is not in \[0, 9\)", table, np.array([1, 5]))


def test_runs_on_gpu_memory_fail_before_they_return() -> None:
    table = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
    model, cpu = models(gathered, [table, np.array([3, 4])])
    stream = cuda.Stream(0)
    places = GpuArray(0, (2,), "int64")
    given = GpuArray(0, (9, 2), "float32")
    given._memory.upload(stream, table.reshape(-1).view(np.uint8))
    result = GpuArray(0, (2, 2), "float32")
    for number in (3, 5, 4):
        places._memory.upload(stream, np.array([1, number]).view(np.uint8))
        if number == 5:
            with pytest.raises(ge.GeError, match=r"indices\[1\] = 10"):
                model.run_on_gpu([given.address, places.address], [result.address], stream)
            continue
        model.run_on_gpu([given.address, places.address], [result.address], stream)
        stream.synchronize()
        np.testing.assert_allclose(result.numpy(), cpu.run([table, np.array([1, number])])[0], rtol=1e-5)


def test_failed_runs_leave_donated_memory_as_it_was() -> None:
    def step(b: GraphBuilder, weights: Any, places: Any) -> Any:
        seen = b.op("Checked", places, limits=[4])
        return b.op("Sub", weights, b.op("Gather", weights, seen, axis=0))

    weights = np.arange(4, dtype=np.float32)
    model, _ = models(step, [weights, np.arange(4)], [(0, 0)])
    model.run([weights, np.arange(4)])
    assert [type(part) for part in model.program.loaded.parts] == [Guard, Steps]
    stream, held = cuda.Stream(0), GpuArray(0, (4,), "float32")
    held._memory.upload(stream, weights.view(np.uint8))
    places = GpuArray(0, (4,), "int64")
    places._memory.upload(stream, np.array([0, 1, 2, 4]).view(np.uint8))
    with pytest.raises(ge.GeError, match=r"indices\[3\] = 4"):
        model.run_on_gpu([held.address, places.address], [held.address], stream)
    stream.synchronize()
    np.testing.assert_array_equal(held.numpy(), weights)


def test_host_tasks_do_not_see_what_a_check_rejects(monkeypatch: pytest.MonkeyPatch) -> None:
    def scattered(b: GraphBuilder, x: Any, places: Any) -> Any:
        return b.op("ScatterElements", b.op("Exp", x), b.op("Checked", places, limits=[4]), x, axis=0)

    x = np.ones((4, 1), np.float32)
    model, _ = models(scattered, [x, np.arange(4)[:, None]])
    model.run([x, np.arange(4)[:, None]])
    assert any(isinstance(part, HostPart) for part in model.program.loaded.parts)
    monkeypatch.setattr(HostPart, "run", lambda *_: pytest.fail("it ran"))
    fails(model, r"indices\[1,0\] = 7", x, np.array([[0], [7], [2], [3]]))


def test_a_run_after_a_failed_one_is_checked_anew() -> None:
    model, _ = models(checked(limits=[9]), [np.arange(3)])
    for given in ([0, 1, 2], [0, 9, 2], [0, 1, 2], [-1, 0, 0]):
        if max(given) > 8 or min(given) < 0:
            fails(model, r"is not in \[0, 9\)", np.array(given))
        else:
            np.testing.assert_array_equal(model.run([np.array(given)])[0], np.array(given) + 1)


def test_rows_of_large_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row repeats its last element."""
    monkeypatch.setattr(checks, "_ROW", 4)
    x = np.zeros((5, 3), np.int32)
    model = agree(checked(limits=[1]), x)
    assert len(model.program.loaded.checks.made[0].positions) == 4
    for place in ((4, 2), (1, 0), (3, 1)):
        wrong = x.copy()
        wrong[place] = 1
        fails(model, rf"indices\[{place[0]},{place[1]}\] = 1", wrong)
