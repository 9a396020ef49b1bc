"""PyTorch's threads at work for programs: the same answers, errors and all, wherever a program is called."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import npu_runtime as rt

SIZE, ROWS, RUNS = 192, 64, 50


@pytest.fixture(autouse=True)
def guests() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(rt.num_threads())
    assert rt.take_guests_of(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    yield
    torch.set_num_threads(before)


def view(buffer: int, array: np.ndarray) -> tuple[int, str, list[int], list[int], int]:
    strides = [s // array.itemsize for s in array.strides]
    return buffer, array.dtype.name, list(array.shape), strides, 0


class Product:
    """A program that multiplies, with what it reads and writes."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.arrays = [rng.standard_normal((SIZE, SIZE), np.float32) for _ in range(3)]
        self.program = rt.Program("product")
        a, b, y = self.arrays
        inputs = [view(self.program.input(i, x.nbytes), x) for i, x in enumerate((a, b))]
        self.program.task("matmul", "product", inputs, [view(self.program.output(0, y.nbytes), y)], {})
        self.program.finalize(0)
        self.expected = a.astype(np.float64) @ b.astype(np.float64)

    def check(self) -> None:
        a, b, y = self.arrays
        y.fill(np.nan)
        self.program.run_pointers([a.ctypes.data, b.ctypes.data], [y.ctypes.data], guests=True)
        np.testing.assert_allclose(y, self.expected, atol=1e-3)


def test_answers_are_the_same_between_operators_of_pytorch() -> None:
    product, tensor = Product(), torch.ones(1 << 18)
    for _ in range(RUNS):
        product.check()
        tensor.add_(1)
    assert torch.equal(tensor, torch.full_like(tensor, RUNS + 1))


def test_other_threads_run_without_them() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            product = Product()
            for _ in range(RUNS):
                product.check()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    assert not failures


def test_so_do_teams_of_another_size() -> None:
    product = Product()
    for size in (1, rt.num_threads() + 1):
        torch.set_num_threads(size)
        product.check()


def test_errors_come_through() -> None:
    places, rows = np.array([0, ROWS], np.int64), np.ones((2, 4), np.float32)
    table = np.zeros((ROWS, 4), np.float32)
    program = rt.Program("sum")
    inputs = [view(program.input(0, places.nbytes), places), view(program.input(1, rows.nbytes), rows)]
    output = view(program.output(0, table.nbytes), table)
    program.task("aicpu", "sum", inputs, [output], {"op": "scatter_sum"})
    program.finalize(0)
    addresses = [places.ctypes.data, rows.ctypes.data], [table.ctypes.data]
    with pytest.raises(rt.TaskError, match="out of range"):
        program.run_pointers(*addresses, guests=True)
    places[1] = 1
    program.run_pointers(*addresses, guests=True)
    assert table.sum() == rows.sum()


def test_a_child_has_none_of_them() -> None:
    product = Product()
    product.check()
    child = os.fork()
    if not child:
        try:
            product.check()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_library_that_is_not_loaded_has_none() -> None:
    assert not rt.take_guests_of("libnothing-of-this-name.so")
