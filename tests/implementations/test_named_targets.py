"""A plan for a named target is the same whatever this machine has; answers are right with every instruction set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ge.compiler import compile_graph, compile_plan
from ge.errors import GeError
from ge.explanation import explain
from ge.model import kernels as machine_code
from ge.model import om
from ge.ops.builder import GraphBuilder
from ge.options import CompileOptions
from ge.target import Target, costs_file, host, named
from ge.target.costs import shipped
from npu_runtime.environment import INSTRUCTION_SETS
from tests.implementations.plans_of_targets import GRAPHS, graph_of
from tests.support.small_graphs import compiled, floats

CAPS = ("", *INSTRUCTION_SETS)
_BEYOND = ("", "_vnni", "_bf16", "_fp16", "_amx", "_amx_fp16")
FAMILIES = {
    "avx2": ("avx2", "avx2_vnni", "avx2_vnni_2"),
    "avx512": tuple(f"avx512_core{more}" for more in _BEYOND),
}


@cache
def _made_under(cap: str) -> dict[str, Any]:
    environment = {**os.environ, "NPU_MAX_ISA": cap}
    if cap:  # another machine in every respect
        environment |= {"NPU_NUM_THREADS": "1", "NPU_CACHE_BYTES": str(1 << 20)}
    command = [sys.executable, "-m", "tests.implementations.plans_of_targets"]
    command += [] if cap in CAPS[:2] else ["--answers"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_a_plan_for_a_named_target_does_not_depend_on_the_machine() -> None:
    plain, capped = _made_under(""), _made_under(CAPS[1])
    assert plain["plans"].keys() == capped["plans"].keys()
    for name, plan in plain["plans"].items():
        assert plan == capped["plans"][name], name


def test_targets_differ_in_their_implementations() -> None:
    plans = _made_under("")["plans"]

    def used(name: str) -> set[str]:
        return {dict(task[3]).get("implementation", "") for task in plans[name][0]}

    assert used("images portable must_keep_origin_dtype") == {"", "onednn"}
    for name in ("avx2", "avx512", "avx512_bf16"):
        assert {"winograd", "depthwise", "pointwise"} <= used(f"images {name} must_keep_origin_dtype")
        assert {"narrow", "fused"} <= used(f"products {name} must_keep_origin_dtype")
        assert "rows" in used(f"training {name} must_keep_origin_dtype")


@pytest.mark.parametrize("name", sorted(GRAPHS))
@pytest.mark.parametrize("family", FAMILIES)
def test_float32_plans_do_not_depend_on_narrow_types(family: str, name: str) -> None:
    """Products of bytes, half floats and tiles change no choice, of those with shipped costs, for float32."""

    def tasks(isa: str) -> list[Any]:
        target = replace(named(family), isa=isa, costs=shipped(isa))
        plan = compile_plan(graph_of(name), CompileOptions(target=target))
        return [(t.kind, t.inputs, t.outputs, sorted(t.attrs.items())) for t in plan.tasks]

    plain, *others = map(tasks, FAMILIES[family])
    assert all(other == plain for other in others)


@pytest.mark.parametrize("cap", CAPS)
def test_answers_are_right_with_every_instruction_set(cap: str) -> None:
    assert max(_made_under(cap)["errors"].values()) < 1e-4


# -- files -------------------------------------------------------------------------------------------------------


def _conv(b: GraphBuilder) -> Any:
    x = b.input("x", (1, 32, 40, 40), "float32")
    return b.op("Conv", x, floats(32, 32, 3, 3), pads_begin=[1, 1], pads_end=[1, 1])


def test_kernels_of_a_file_for_other_caches_are_generated_with_the_loops_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(host(), l1_bytes=1 << 12)
    x = floats(1 << 16)
    b = GraphBuilder("net")
    b.output(b.op("Exp", b.input("x", x.shape, "float32")))
    model = compile_graph(b.graph, CompileOptions(target=small))
    (kernel,) = model.plan.kernels
    assert kernel.total == x.size // small.processor.chunk
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("ge.model.kernels.machine", lambda: "host:elsewhere")
        path = om.save(model, tmp_path / "model")
    loaded = om.load(path)
    np.testing.assert_allclose(loaded.run([x])[0], np.exp(x), rtol=1e-6)
    machine_code.regenerate([loaded.plan])  # as of a file that is not trusted: with those of this machine
    assert loaded.plan.tasks[0].attrs["total"] == x.size // host().processor.chunk


def test_a_file_for_a_better_machine_runs_with_what_this_one_has(tmp_path: Path) -> None:
    """The file names an implementation for instructions that this machine does not have, as far as it can tell."""
    model = compiled(_conv, tolerance=1e-4)
    path = om.save(model, tmp_path / "model")
    code = (
        "import sys, numpy as np; from ge.model import om; m = om.load(sys.argv[1], trust=True);"
        "print([t.attrs['implementation'] for t in m.plan.tasks if t.kind == 'conv'], m.run("
        "[np.ones((1, 32, 40, 40), np.float32)])[0].shape)"
    )
    environment = {**os.environ, "NPU_MAX_ISA": "sse4"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "['onednn'] (1, 32, 40, 40)", done.stderr[-2000:]


def test_a_file_that_names_no_implementations_gets_those_of_the_machine(tmp_path: Path) -> None:
    model = compiled(_conv, tolerance=1e-4)
    (before,) = (t for t in model.plan.tasks if t.kind == "conv")
    name = before.attrs.pop("implementation")
    loaded = om.load(om.save(model, tmp_path / "old"))
    (task,) = (t for t in loaded.plan.tasks if t.kind == "conv")
    assert task.attrs["implementation"] == name


# -- what is chosen, and what is said of it ----------------------------------------------------------------------


def test_explain_shows_the_choice_and_the_reasons_against_the_others() -> None:
    model = compiled(_conv, tolerance=1e-4)
    (row,) = (r for r in explain(model) if r.operator == "Conv")
    (task,) = (t for t in model.plan.tasks if t.kind == "conv")
    assert row.implementation == task.attrs["implementation"]
    assert f"implementation {row.implementation}; " in row.reason
    assert "not pointwise: " in row.reason


def test_operators_that_a_target_takes_apart_are_explained() -> None:
    b = GraphBuilder("attention")
    q, k, v = (b.input(name, (2, 20, 16), "float32") for name in "qkv")
    b.output(b.op("Attention", q, k, v, scale=0.25)[0])
    assert next(iter(b.graph)).op_type == "Attention"  # a builder without a target leaves it whole
    plan = compile_plan(b.graph, CompileOptions(target="portable"))  # type: ignore[arg-type]
    assert plan.report["notes"] == ["Attention runs as smaller operators; not fused: the target has no AVX2"]
    assert {t.kind for t in plan.tasks} == {"matmul", "kernel"}
    whole = compile_plan(b.graph, CompileOptions(target="avx2"))  # type: ignore[arg-type]
    assert [t.attrs["implementation"] for t in whole.tasks] == ["fused"] and not whole.report["notes"]


def test_nodes_in_the_bodies_of_loops_have_their_implementation_explained() -> None:
    model = compile_graph(graph_of("loop"))
    (row,) = (r for r in explain(model) if r.operator == "MatMul")
    assert row.implementation == "onednn"
    assert "not narrow: " in row.reason


def test_profiles_name_the_implementation() -> None:
    model = compiled(_conv, tolerance=1e-4)
    (task,) = (t for t in model.profile(repeats=1) if t.kind == "conv")
    (planned,) = (t for t in model.plan.tasks if t.kind == "conv")
    assert task.implementation.startswith(planned.attrs["implementation"])


def test_an_implementation_that_this_machine_lacks_is_refused_by_name() -> None:
    server = Target("big", code="portable", isa="avx512_core_amx_fp16", cores=2, cache_bytes=1 << 20)
    if server.features <= host().features:
        pytest.skip("this machine has everything")
    b = GraphBuilder("few rows")
    b.output(b.op("MatMul", b.input("x", (2, 512), "float32"), b.input("w", (512, 512), "float32")))
    options = CompileOptions(target=server)
    if "avx512" in host().features:
        assert compile_graph(b.graph, options).plan.tasks[0].attrs["implementation"] == "narrow"
    else:
        with pytest.raises(GeError, match="need AVX-512"):
            compile_graph(b.graph, options)


def test_measured_costs_replace_the_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPU_CACHE_DIR", str(tmp_path))
    path = costs_file(host().isa)
    path.write_text('{"winograd_tiles": 10000}')
    assert host().costs is not None and host().costs.winograd_tiles == 10000
    path.write_text('{"winograd_tiles": "many"}')
    with pytest.raises(GeError, match=r"remove the file"):
        host()


def test_named_targets_are_fixed() -> None:
    assert named("avx512_bf16") == named("avx512_bf16") and named("amx").onednn == named("avx2").onednn
