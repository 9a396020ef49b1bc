"""Kernels as objects: symbols, cache, fingerprints, empty work, the native loader, threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tbe
from tbe import elf
from tbe.kernel import _cache as kernel_cache
from tests.tbe.running import call, run


def softmax(n: int, name: str = "") -> tuple[tbe.Tensor, tbe.Tensor]:
    x = tbe.placeholder((64, n), "float32", name)
    e = tbe.unary("exp", x - tbe.reduce("max", x, 1, True))
    return x, e / tbe.reduce("sum", e, 1, True)


@pytest.mark.parametrize("target", ["host", "portable", "avx2"])
def test_object_stands_alone(target: str) -> None:
    """Functions that tempt a compiler to call a library: remainders, powers, casts, copies of blocks."""
    x, y = tbe.placeholder((100,), "float32"), tbe.placeholder((100,), "float64")
    h = tbe.placeholder((100,), "float16")
    outputs = [
        tbe.binary("fmod", x, x),
        tbe.binary("pow", x, x),
        tbe.cast(y, "float16"),
        tbe.cast(h, "float64"),
    ]
    outputs += [tbe.unary(op, v) for op in ("sin", "lgamma", "exp2", "round") for v in (x, y)]
    outputs += [tbe.broadcast_to(tbe.constant(0.0, "float32"), (100,)), tbe.cast(x, "int64"), x + 0.0]
    for output in outputs:
        kernel = tbe.build([x, y, h], [output], target)
        defined, undefined = elf.symbols(kernel.object)
        assert kernel.symbol in defined and not undefined


def test_same_structure_is_compiled_once() -> None:
    (x, a), (y, b) = softmax(32, "x"), softmax(32, "another name")
    assert tbe.fingerprint([x], [a]) == tbe.fingerprint([y], [b])
    assert tbe.build([x], [a]) is tbe.build([y], [b])
    z, c = softmax(33)
    assert tbe.fingerprint([z], [c]) != tbe.fingerprint([x], [a])


def test_code_is_reproducible() -> None:
    x, a = softmax(50)
    first = tbe.build([x], [a], name="one")
    kernel_cache.clear()
    y, b = softmax(50)
    assert tbe.build([y], [b], name="one").object == first.object


def test_names_that_are_not_symbols_are_refused() -> None:
    x, a = softmax(8)
    with pytest.raises(ValueError, match="symbol"):
        tbe.build([x], [a], name='x" } define')


def test_nothing_to_do() -> None:
    x = tbe.placeholder((0, 5), "float32")
    kernel = tbe.build([x], [x + 1.0])
    assert kernel.total == 0
    call(kernel, [np.zeros((0, 5), np.float32)] * 2, [(0, 0)])
    assert run([x], [x + 1.0], {x: np.zeros((0, 5), np.float32)})[0].shape == (0, 5)


def test_one_number() -> None:
    x = tbe.placeholder((), "float32")
    assert run([x], [tbe.unary("exp", x) * 2.0], {x: np.float32(0.0)})[0] == 2.0


def test_work_is_split_only_when_worth_it() -> None:
    x = tbe.placeholder((1 << 20,), "float32")
    large = tbe.build([x], [x + 1.0])
    assert large.total >= 128 and large.grain * 2 < large.total
    y = tbe.placeholder((1000,), "float32")
    small = tbe.build([y], [y + 1.0])
    assert small.grain >= small.total
    assert large.flops == 1 << 20 and large.bytes_moved == 8 << 20


def test_inputs_must_be_complete() -> None:
    x, y = tbe.placeholder((4,), "float32"), tbe.placeholder((4,), "float32")
    with pytest.raises(ValueError, match="not among the inputs"):
        tbe.build([x], [x + y])
    with pytest.raises(ValueError, match="output"):
        tbe.build([x], [])
    with pytest.raises(ValueError, match="target"):
        tbe.build([x], [x], target="abacus")


def test_deep_graphs_are_refused_not_crashed() -> None:
    x = tbe.placeholder((4,), "float32")
    y = x
    for _ in range(3000):
        y = y + 1.0
    with pytest.raises(tbe.Unfusable, match="deep"):
        tbe.build([x], [y])
    z = x
    for _ in range(60):
        z = z * 1.5 - 0.5
    assert run([x], [z], {x: np.ones(4, np.float32)})[0].tolist() == [1.0] * 4


def test_builds_from_several_threads() -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for n in range(20, 26):
                x, a = softmax(n + seed % 2)
                tbe.build([x], [a])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_native_loader_runs_objects() -> None:
    runtime = pytest.importorskip("npu_runtime")
    x, a = softmax(100)
    for target in ("host", "portable"):
        kernel = tbe.build([x], [a], target)
        assert runtime.load_object(kernel.object, kernel.symbol) is not None
