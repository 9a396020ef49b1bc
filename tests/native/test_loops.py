"""Blocks and shares of our own kernels follow the caches and the price of a thread that a program was compiled for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import npu_runtime as rt
from ge.compiler import compile_graph
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.target import host
from tests.native.native_support import Array, close, needs_own_kernels, needs_wide_vectors, randn, view

WAKE = 20_000.0


def _program(
    kind: str,
    inputs: list[Array],
    outputs: list[Array],
    attrs: dict[str, object],
    l2: int = 1 << 20,
    wake: float = WAKE,
) -> rt.Program:
    program = rt.Program(kind)
    sources = [view(program.input(i, a.nbytes), a) for i, a in enumerate(inputs)]
    targets = [view(program.output(i, a.nbytes), a) for i, a in enumerate(outputs)]
    program.task(kind, "task", sources, targets, attrs)
    program.set_loops(32 << 10, l2, 32 << 20, wake)
    program.finalize(0)
    program.run(inputs, outputs)
    return program


@needs_wide_vectors
def test_blocks_of_a_product_follow_the_second_level_cache() -> None:
    a, b = randn(512, 2048), randn(2048, 512, seed=1)
    sizes = set()
    for l2 in (256 << 10, 1 << 20, 4 << 20):
        y = np.zeros((512, 512), np.float32)
        program = _program("matmul", [a, b], [y], {"implementation": "strassen"}, l2)
        close(y, a.astype(np.float64) @ b, 1e-4)
        sizes.add(program.scratch_bytes)
    assert len(sizes) == 3


@needs_own_kernels
@pytest.mark.skipif(rt.num_threads() < 2, reason="one thread has nothing to share")
def test_a_dear_thread_is_woken_for_more_work() -> None:
    dy, x, ones = randn(64, 512), randn(64, 512, seed=1), np.ones((64, 1), np.float32)
    made = []
    for wake in (WAKE, 100 * WAKE):
        dx = np.zeros_like(x)
        attrs = {"columns": 512, "wanted": [1, 0, 0], "has_scale": False}
        made.append((_program("layer_norm_grad", [dy, x, 0 * ones, ones], [dx], attrs, wake=wake), dx))
    (shared, first), (alone, second) = made
    assert alone.scratch_bytes < shared.scratch_bytes
    np.testing.assert_array_equal(first, second)


def test_sizes_are_positive() -> None:
    program = rt.Program("empty")
    with pytest.raises(ValueError, match="positive"):
        program.set_loops(0, 1, 1, 1.0)
    with pytest.raises(ValueError, match="positive"):
        program.set_loops(1, 1, 1, float("nan"))


@needs_wide_vectors
def test_a_plan_brings_the_caches_of_its_target() -> None:
    sizes = []
    for l2 in (256 << 10, 4 << 20):
        b = GraphBuilder("net")
        x, w = b.input("x", (2048, 2048), "float32"), b.input("w", (2048, 2048), "float32")
        b.output(b.op("MatMul", x, w))
        model = compile_graph(b.graph, CompileOptions(target=replace(host(), l2_bytes=l2)))
        assert [t["impl"] for t in model.program.task_info()] == ["strassen:avx512"]
        sizes.append(model.program.scratch_bytes)
    assert sizes[0] != sizes[1]
