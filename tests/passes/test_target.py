"""Plans follow the target that the options name, not the machine they are made on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ge
from ge.compiler import compile_plan
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions, PrecisionMode
from ge.passes.fusion.split_reductions import SplitReductions
from ge.target import Target, host, named

SMALL = Target("small", code="portable", isa="avx2", cores=1, cache_bytes=1 << 20)


def test_cores_decide_from_how_many_rows_a_reduction_stays_whole() -> None:
    def nodes(cores: int) -> int:
        b = GraphBuilder()
        x = b.input("x", (6, 64, 64, 16), "float32")
        b.output(b.op("ReduceSum", x, axes=[1, 2]), "y")
        SplitReductions().run(b.graph, CompileOptions(target=replace(SMALL, cores=cores)))
        return len(list(b.graph))

    assert nodes(1) == 1
    assert nodes(2) == 2


def test_a_type_that_the_target_lacks_runs_in_float32() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 16), "float32")
    b.output(b.op("MatMul", x, np.ones((16, 16), np.float32)), "y")

    def products(target: Target) -> list[str]:
        options = CompileOptions(precision_mode=PrecisionMode.MIX_BF16, target=target)
        return [t.inputs[0].dtype for t in compile_plan(b.graph, options).tasks if t.kind == "matmul"]

    assert products(SMALL) == ["float32"]
    if "bfloat16" in host().narrow_floats:
        assert products(host()) == ["bfloat16"]


def test_the_cache_decides_how_a_batch_is_split() -> None:
    b = GraphBuilder()
    x = b.input("x", (64, 32, 32, 8), "float32")
    y = b.op("Conv", x, np.ones((3, 3, 8, 8), np.float32), data_format="channels_last", weight_format="IO")
    b.output(
        b.op("Conv", y, np.ones((3, 3, 8, 8), np.float32), data_format="channels_last", weight_format="IO")
    )

    def steps(cache: int) -> int:
        return compile_plan(b.graph, CompileOptions(target=replace(SMALL, cache_bytes=cache))).steps

    assert steps(1 << 30) == 1
    assert steps(1 << 20) > 1


def test_an_unknown_target_is_refused_with_the_choices() -> None:
    assert CompileOptions(target="portable").target == named("portable")  # type: ignore[arg-type]
    with pytest.raises(ge.GeError, match=r"target 'moon' is unknown.*host, portable"):
        named("moon")
