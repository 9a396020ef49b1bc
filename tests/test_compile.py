"""The compile driver end to end: precision, switches, threads, dumps, profiles, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import onnx
import pytest

import ge
import tbe.target
from ge import faults
from ge.compiler import compile_graph, compile_plan
from ge.explanation import explain
from ge.ops.builder import GraphBuilder
from ge.ops.custom import guard
from ge.ops.interpret import interpret
from ge.options import CompileOptions, PrecisionMode
from ge.passes import pass_names
from ge.profile import lines, table, trace
from ge.target import host
from npu_runtime import environment
from tests.support.small_graphs import assert_close, compiled, feeds_of, floats, graph_of, kinds

needs_bfloat16 = pytest.mark.skipif(
    "bfloat16" not in host().narrow_floats, reason="this processor has no products of bfloat16"
)


def convnet(b: GraphBuilder):
    """Convolutions, norms, residuals, pooling, concat, a classifier."""
    v = b.input("x", (2, 3, 16, 16), "float32")
    v = b.op("Conv", v, floats(8, 3, 3, 3), strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1])
    v = b.op("Relu", b.op("BatchNorm", v, *(floats(8, seed=i, low=0.5) for i in range(4))))
    w = b.op("Conv", v, floats(8, 1, 3, 3), groups=8, pads_begin=[1, 1], pads_end=[1, 1])
    w = b.op("Mul", w, b.op("Sigmoid", w))
    v = b.op("Concat", b.op("Add", v, w), b.op("MaxPool", v, kernel=[1, 1]), axis=1)
    gate = b.op("Sigmoid", b.op("ReduceMean", v, axes=[2, 3], keepdims=True))
    v = b.op("Mul", v, gate)
    v = b.op("AvgPool", v, kernel=[2, 2], strides=[2, 2])
    v = b.op("Reshape", v, shape=[2, 16 * 16])
    return b.op("Softmax", b.op("MatMul", v, floats(256, 10), floats(10)))


def encoder(b: GraphBuilder):
    """One layer of a transformer, spelled out."""
    v, mask = b.input("x", (2, 6, 16), "float32"), b.input("mask", (2, 1, 1, 6), "float32")

    def linear(y, n, seed):
        return b.op("Add", b.op("MatMul", y, floats(int(y.shape[-1]), n, seed=seed)), floats(n, seed=seed))

    def heads(y):
        return b.op("Transpose", b.op("Reshape", y, shape=[2, 6, 4, 4]), perm=[0, 2, 1, 3])

    def norm(y):
        centred = b.op("Sub", y, b.op("ReduceMean", y, axes=[-1], keepdims=True))
        var = b.op("ReduceMean", b.op("Pow", centred, 2.0), axes=[-1], keepdims=True)
        y = b.op("Div", centred, b.op("Sqrt", b.op("Add", var, 1e-5)))
        return b.op("Add", b.op("Mul", y, floats(16)), floats(16, seed=9))

    q, k, w = (heads(linear(v, 16, i)) for i in range(3))
    scores = b.op("MatMul", b.op("Mul", q, 0.5), b.op("Transpose", k, perm=[0, 1, 3, 2]))
    p = b.op("Softmax", b.op("Add", scores, mask))
    y = b.op("Reshape", b.op("Transpose", b.op("MatMul", p, w), perm=[0, 2, 1, 3]), shape=[2, 6, 16])
    v = norm(b.op("Add", linear(y, 16, 3), v))
    h = linear(v, 32, 4)
    h = b.op("Mul", b.op("Mul", h, 0.5), b.op("Add", b.op("Erf", b.op("Div", h, np.float32(2**0.5))), 1.0))
    return norm(b.op("Add", linear(h, 16, 5), v))


MODELS = {"convnet": convnet, "encoder": encoder}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_models_give_the_interpreters_answers(build):
    compiled(build)


def test_an_encoder_layer_is_nine_tasks():
    model = compiled(encoder)
    assert kinds(model) == [
        "matmul",
        "matmul",
        "kernel",
        "matmul",
        "matmul",
        "kernel",
        "matmul",
        "matmul",
        "kernel",
    ]
    assert model.plan.report["arena_ratio"] == 1.0


@pytest.mark.parametrize("name", [*pass_names(), "vector_fusion", "strided_views", "in_place"])
def test_every_pass_can_be_switched_off(name):
    options = CompileOptions(disabled_passes=frozenset({name}))
    for build in MODELS.values():
        compiled(build, options)


def test_all_passes_can_be_switched_off_together():
    everything = frozenset({*pass_names(), "vector_fusion", "strided_views", "in_place"})
    for build in MODELS.values():
        compiled(build, CompileOptions(disabled_passes=everything))


# -- precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    "mode",
    [PrecisionMode.MIX_BF16, PrecisionMode.MIX_FP16, PrecisionMode.FORCE_FP16, PrecisionMode.CUBE_FP16],
)
def test_lower_precision_stays_close_and_keeps_the_ports(build, mode):
    model = compiled(build, CompileOptions(precision_mode=mode), tolerance=0.06)
    assert all(p.desc.dtype == "float32" for p in (*model.inputs, *model.outputs))
    if mode is PrecisionMode.MIX_BF16 and "bfloat16" in host().narrow_floats:
        assert "bfloat16" in {v.dtype for t in model.plan.tasks for v in t.inputs}


def test_the_default_lowers_nothing():
    dtypes = {v.dtype for t in compiled(encoder).plan.tasks for v in (*t.inputs, *t.outputs)}
    assert dtypes == {"float32"}


def test_mixed_precision_adds_no_tasks_to_an_encoder():
    wide = compiled(encoder)
    narrow = compiled(encoder, CompileOptions(precision_mode=PrecisionMode.MIX_BF16), tolerance=0.06)
    assert len(narrow.plan.tasks) <= len(wide.plan.tasks) + 1  # one cast of the input


@needs_bfloat16
def test_a_residual_stream_is_not_rounded_at_every_sum():
    """A value that is normalised for each layer and added to by each layer stays float32 from end to end."""
    layers, width = 6, 32

    def build(b):
        stream = b.input("x", (4, width), "float32")
        for i in range(layers):
            normal = b.op("LayerNorm", stream, axes=[-1])
            inner = b.op("Relu", b.op("MatMul", normal, floats(width, 64, seed=i)))
            stream = b.op("Add", stream, b.op("MatMul", inner, floats(64, width, seed=i) / 8))
        return b.op("MatMul", b.op("LayerNorm", stream, axes=[-1]), floats(width, 8))

    model = compiled(build, CompileOptions(precision_mode=PrecisionMode.MIX_BF16), tolerance=0.06)
    products = [t for t in model.plan.tasks if t.kind == "matmul"]
    assert all(v.dtype == "bfloat16" for t in products for v in t.inputs[:2])
    sums = [t.outputs[0].dtype for t in products if "MatMul+add" in t.name]
    assert sums == ["float32"] * layers


def test_one_operator_can_keep_its_precision():
    options = CompileOptions(
        precision_mode=PrecisionMode.MIX_BF16, op_precision={"MatMul": "must_keep_origin_dtype"}
    )
    model = compiled(encoder, options, tolerance=0.06)
    products = [t for t in model.plan.tasks if t.kind == "matmul"]
    assert all(v.dtype == "float32" for t in products for v in (*t.inputs[:2], *t.outputs))


def test_force_fp32_widens_what_the_user_gave_in_half():
    def build(b):
        v = b.input("x", (4, 8), "bfloat16")
        return b.op("Tanh", b.op("MatMul", v, floats(8, 8).astype(ml_dtypes.bfloat16)))

    model = compiled(build, CompileOptions(precision_mode=PrecisionMode.FORCE_FP32), tolerance=0.02)
    assert {v.dtype for t in model.plan.tasks if t.kind == "matmul" for v in t.outputs} == {"float32"}
    assert model.outputs[0].desc.dtype == "bfloat16"


# -- running -----------------------------------------------------------------------------------------------------


def test_calls_from_several_threads_do_not_mix():
    graph = graph_of(encoder)
    model = compile_graph(graph)
    feeds = [feeds_of(graph, seed) for seed in range(4)]
    wanted = [interpret(graph, f) for f in feeds]
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            for _ in range(25):
                assert_close(model.run(feeds[index]), wanted[index], 2e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_inputs_by_name_and_results_into_given_arrays():
    graph = graph_of(lambda b: b.op("Sub", b.input("a", (3,), "float32"), b.input("b", (3,), "float32")))
    model = compile_graph(graph)
    one, two = floats(3), floats(3, seed=1)
    np.testing.assert_array_equal(model(b=two, a=one), one - two)
    place = np.zeros(3, np.float32)
    assert model.run([one, two], into=[place])[0] is place
    np.testing.assert_array_equal(place, one - two)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ([], "takes 1 inputs"),
        ([np.zeros((3, 2), np.float64)], "the model takes float32"),
        ([np.zeros((2, 2), np.float32)], r"float32\[2,2\]"),
    ],
)
def test_wrong_inputs_are_named(feeds, message):
    model = compile_graph(graph_of(lambda b: b.op("Exp", b.input("x", (3, 2), "float32"))))
    with pytest.raises(ge.GeError, match=message):
        model.run(feeds)


def test_the_callers_graph_is_left_as_it_was():
    graph = graph_of(convnet)
    before = [n.op_type for n in graph]
    compile_graph(graph)
    assert [n.op_type for n in graph] == before


def test_non_contiguous_inputs_are_taken():
    model = compile_graph(graph_of(lambda b: b.op("Neg", b.input("x", (3, 2), "float32"))))
    array = floats(2, 3).T
    np.testing.assert_array_equal(model(array), -array)


# -- looking inside ----------------------------------------------------------------------------------------------


def test_every_stage_can_be_dumped(tmp_path):
    options = CompileOptions(dump_stages=frozenset({"clean", "place", "plan"}), dump_dir=tmp_path)
    compile_plan(graph_of(encoder), options, "net")
    names = sorted(p.name.split("_", 1)[1] for p in tmp_path.iterdir())
    assert names == ["net_clean.onnx", "net_clean.txt", "net_place.onnx", "net_place.txt", "net_plan.txt"]
    model = onnx.load(next(tmp_path.glob("*_place.onnx")))
    assert {n.domain for n in model.graph.node} == {"ge"}
    assert "MatMul" in next(tmp_path.glob("*_clean.txt")).read_text()


def test_explain_names_engine_and_reason():
    model = compiled(convnet)
    rows = {row.operator: row for row in explain(model)}
    assert rows["Conv"].engine == "AI Core" and rows["Softmax"].engine == "vector"
    assert all(row.reason for row in rows.values())
    assert "Conv" in str(ge.explain(model))


def test_profile_has_a_line_a_task(tmp_path):
    model = compiled(encoder)
    tasks = model.profile(repeats=2)
    assert len(lines(tasks)) == len(model.plan.tasks) and "total" in table(tasks)
    assert {len(line.split(",")) for line in lines(tasks)} == {7}
    events = json.loads(trace(tmp_path / "t.json", tasks, "net").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" for e in events) == len(tasks)


def test_profile_is_printed_when_asked_for(monkeypatch, capsys):
    monkeypatch.setenv("NPU_PROFILE", "1")
    model = compile_graph(graph_of(lambda b: b.op("Exp", b.input("x", (3, 2), "float32"))))
    model(floats(3, 2))
    model(floats(3, 2))
    assert capsys.readouterr().out.count("total") == 1


def test_a_trace_is_what_perfetto_reads(tmp_path):
    """The trace-event format: metadata and complete events, times in microseconds, one after another.

    Perfetto takes process and thread 0 for the system's idle thread, and works in whole nanoseconds.
    """
    model = compiled(encoder)
    tasks = model.profile(repeats=2)
    document = json.loads(trace(tmp_path / "t.json", tasks, "net").read_text())
    assert document["displayTimeUnit"] in ("ms", "ns")
    named = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    spans = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert {e["ph"] for e in document["traceEvents"]} == {"M", "X"}
    assert all(isinstance(e["pid"], int) and e["pid"] > 0 for e in document["traceEvents"])
    assert all(isinstance(tid, int) and tid > 0 for tid in named)
    clock = 0
    for event, task in zip(spans, tasks, strict=True):
        assert {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"} <= event.keys()
        assert named[event["tid"]] == task.engine and abs(event["dur"] - task.seconds * 1e6) < 1e-3
        assert round(event["ts"] * 1000) == clock
        clock += round(event["dur"] * 1000)


def test_profile_is_written_where_asked_for(tmp_path, monkeypatch, capsys):
    path = tmp_path / "trace.json"
    monkeypatch.setenv("NPU_PROFILE", str(path))
    model = compile_graph(graph_of(lambda b: b.op("Exp", b.input("x", (3, 2), "float32"))))
    model(floats(3, 2))
    assert "total" in capsys.readouterr().out
    assert json.loads(path.read_text())["traceEvents"]


def test_profile_counts_all_steps_of_a_batch(monkeypatch):
    """What a step reads and writes, times the steps, is what the whole batch does."""

    def build(b):
        return b.op("Conv", b.input("x", (8, 16, 20, 20), "float32"), floats(16, 16, 3, 3))

    whole = compile_graph(graph_of(build), CompileOptions(disabled_passes=frozenset({"split_batch"})))
    monkeypatch.setenv("NPU_CACHE_BYTES", "100000")
    split = compile_graph(graph_of(build))
    assert split.plan.steps > 1
    flops = [sum(t.flops for t in m.profile(repeats=1) if t.kind == "conv") for m in (whole, split)]
    assert flops[0] == flops[1] > 0


def test_unknown_files_are_refused(tmp_path):
    with pytest.raises(ge.GeError, match="no file"):
        ge.compile(tmp_path / "missing.onnx")
    other = tmp_path / "model.txt"
    other.write_text("")
    with pytest.raises(ge.GeError):
        ge.compile(other)


@pytest.mark.parametrize("into", [[], 3, [np.ones(3, np.float32)], [np.ones((2, 3), np.float64)]])
def test_arrays_to_fill_that_do_not_fit_are_refused(into):
    model = compile_graph(graph_of(lambda b: b.op("Exp", b.input("x", (2, 3), "float32"))))
    with pytest.raises(ge.GeError) as caught:
        model.run([np.ones((2, 3), np.float32)], into)
    assert caught.value.code == "E10020"


@pytest.mark.parametrize("source", [None, 3, object(), b"x", "a\0b.onnx", "none.onnx", "none.om", "/proc"])
def test_whatever_cannot_be_compiled_or_loaded_is_a_ge_error(source):
    for use in (ge.compile, ge.load, ge.explain):
        with pytest.raises(ge.GeError):
            use(source)


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("NPU_DISABLE_PASSES", "dead_code,nosuch", "fuse_softmax"),
        ("NPU_DUMP", "nosuch", "all, .*place"),
        ("NPU_DUMP_DIR", "/proc/nosuch", "folders that can be written"),
        ("NPU_PROFILE", "/proc/nosuch", "1, and paths that can be written"),
        ("NPU_OP_SELECT_IMPLMODE", "nosuch", "high_performance"),
        ("NPU_CACHE_BYTES", "nosuch", "positive numbers"),
        ("NPU_COMPILE_GC", "nosuch", "paused"),
        ("NPU_INTERNAL_ERRORS", "nosuch", "raise"),
        ("NPU_MAX_ISA", "nosuch", "avx2"),
        ("NPU_NUM_THREADS", "nosuch", "whole numbers"),
        ("NPU_DEVICE_COUNT", "nosuch", "whole numbers"),
        ("NPU_OPP_PATH", "/proc/nosuch", "folders that exist"),
        ("NPU_OPP_TIMEOUT", "nosuch", "positive numbers"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named_with_its_choices(name, value, choices, monkeypatch):
    monkeypatch.setattr(environment, "_told", set())
    monkeypatch.setenv(name, value)
    if name == "NPU_DUMP_DIR":
        monkeypatch.setenv("NPU_DUMP", "parse")
    with pytest.warns(
        environment.InvalidVariableWarning, match=f"{name}: '.*nosuch' is not used; .*{choices}"
    ):
        graph = graph_of(lambda b: b.op("Exp", b.input("x", (2,), "float32")))
        np.testing.assert_allclose(ge.compile(graph)(np.zeros(2, np.float32)), 1)
        if name == "NPU_INTERNAL_ERRORS":
            with pytest.warns(faults.InternalErrorWarning):
                faults.absorb("a test", KeyError(name))
        tbe.target.instruction_limit()
        guard._limit()
        environment.check_native()


@pytest.mark.parametrize("name", ["NPU_MAX_ISA", "NPU_NUM_THREADS"])
def test_what_native_code_reads_is_checked_as_it_loads(name):
    environ = {**os.environ, name: "nosuch"}
    done = subprocess.run(
        [sys.executable, "-c", "import npu_runtime"], env=environ, capture_output=True, text=True
    )
    assert f"{name}: 'nosuch' is not used; choices are" in done.stderr


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 16), (3, 7), (64, 130)])
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("reduction", ["ReduceMin", "ReduceMax"])
def test_differences_are_of_products_as_they_are_rounded(
    reduction: str, squared: bool, shape: tuple[int, ...], dtype: str
) -> None:
    """z - min(z) with z = x * y: no element is negative, as the rounding error of a contracted product would be."""
    b = GraphBuilder("difference")
    x, y = b.input("x", shape, dtype), b.input("y", shape, dtype)
    z = b.op("Mul", x, x if squared else y)
    bound = b.op(reduction, z, axes=(1,), keepdims=1)
    b.output(b.op("Sqrt", b.op("Sub", *((z, bound) if reduction == "ReduceMin" else (bound, z)))))
    rng = np.random.default_rng(0)
    (found,) = compile_graph(b.graph).run([rng.standard_normal(shape).astype(dtype) for _ in range(2)])
    assert not np.isnan(found).any() and (found.min(1) == 0).all()
