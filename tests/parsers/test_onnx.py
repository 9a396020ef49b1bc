"""The ONNX parser: names, shapes, files, functions, control flow, and every way a model can be wrong."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import ge
from ge.compiler import compile_graph
from ge.errors import GeError, UnsupportedOperatorsError
from ge.ir import facts
from ge.ir.values import desc_of
from ge.ops.interpret import interpret
from ge.options import CompileOptions
from ge.parsers.onnx.parser import parse


def model(text: str, opset: int = 17, extra: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{extra}]>\n{text}')


def run(source: Any, feeds: dict[str, np.ndarray], **options: Any) -> list[np.ndarray]:
    graph = parse(source, **options)
    return interpret(graph, {v.name: feeds[v.name] for v in graph.inputs if v.name})


RELU = "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
X = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)


# -- names and shapes --------------------------------------------------------------------------------------------


def test_names_of_inputs_and_outputs_are_kept() -> None:
    graph = parse(model("g (float[2,3] image) => (float[2,3] scores) { t = Exp(image)  scores = Relu(t) }"))
    assert [v.name for v in graph.inputs] == ["image"]
    assert [v.name for v in graph.outputs] == ["scores"]


def test_an_output_that_is_an_input_gets_a_node() -> None:
    graph = parse(model("g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Identity(x)  z = Relu(x) }"))
    assert [v.name for v in graph.outputs] == ["y", "z"]
    np.testing.assert_array_equal(interpret(graph, [X])[0], X)


def test_every_node_remembers_where_it_comes_from() -> None:
    proto = model(RELU)
    proto.graph.node[0].name = "block/relu"
    assert facts.origin(next(iter(parse(proto)))) == ("block/relu",)


def test_an_open_batch_dimension_is_one_with_a_note() -> None:
    graph = parse(model("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"))
    assert desc_of(graph.inputs[0]).shape == (1, 3)
    assert "taken as 1" in facts.notes(graph)[0]


def test_a_batch_can_be_given() -> None:
    graph = parse(model("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"), batch=5)
    assert desc_of(graph.inputs[0]).shape == (5, 3)
    assert not facts.notes(graph)


def test_a_given_shape_decides_the_same_symbol_elsewhere() -> None:
    text = "g (float[N,L] x, float[N,L] m) => (float[N,L] y) { y = Mul(x, m) }"
    graph = parse(model(text), input_shapes={"x": (2, 7)})
    assert desc_of(graph.inputs[1]).shape == (2, 7)


def test_open_dimensions_are_asked_for() -> None:
    with pytest.raises(GeError, match=r"open dimensions \(\?, \?\)") as caught:
        parse(model("g (float[N,L] x) => (float[N,L] y) { y = Relu(x) }"))
    assert "input_shapes" in caught.value.remedy


@pytest.mark.parametrize(
    ("shapes", "words"),
    [({"z": (1,)}, "no input z"), ({"x": (2,)}, "2 dimensions"), ({"x": (2, 4)}, "dimension of 3 where 4")],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, tuple[int, ...]], words: str) -> None:
    with pytest.raises(GeError, match=words):
        parse(model(RELU), input_shapes=shapes)


def test_compile_options_carry_shapes_and_outputs() -> None:
    text = "g (float[N,3] x) => (float[N,3] y) { t = Exp(x)  y = Relu(t) }"
    graph = parse(model(text), CompileOptions(input_shapes={"x": (4, 3)}, output_nodes=("t",)))
    assert [(v.name, desc_of(v).shape) for v in graph.outputs] == [("t", (4, 3))]


def test_initializers_that_are_inputs_too_are_constants() -> None:
    proto = model("g (float[2,3] x, float[3] w) => (float[2,3] y) { y = Add(x, w) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    graph = parse(proto)
    assert [v.name for v in graph.inputs] == ["x"]
    np.testing.assert_array_equal(interpret(graph, [X])[0], X + 1)


def test_shape_arithmetic_folds_away() -> None:
    text = """g (float[2,3,4] x) => (float[2,12] y) {
        s = Shape(x)  i = Constant <value_ints=[0]> ()  n = Gather(s, i)  m = Constant <value_ints=[-1]> ()
        t = Concat <axis=0> (n, m)  y = Reshape(x, t) }"""
    graph = parse(model(text))
    assert [n.op_type for n in graph] == ["Reshape"]


def test_a_value_that_decides_a_shape_can_be_offered() -> None:
    proto = model("g (float[2,3] x, int64[2] s) => (float[A,B] y) { y = Reshape(x, s) }")
    with pytest.raises(UnsupportedOperatorsError, match="decides a shape"):
        parse(proto)
    graph = parse(proto, values={"s": np.array([3, 2])})
    assert [v.name for v in graph.inputs] == ["x"]
    assert list(facts.specialised(graph)) == ["s"]
    assert desc_of(graph.outputs[0]).shape == (3, 2)


# -- unsupported -------------------------------------------------------------------------------------------------


def test_all_unmapped_operators_are_reported_at_once() -> None:
    text = """g (float[2,3] x) => (float[2,3] y) {
        a = Frobnicate(x)  b = Frobnicate(a)  c = ai.onnx.ml.CastMap (b)  y = Reluu(c) }"""
    with pytest.raises(UnsupportedOperatorsError) as caught:
        parse(model(text, extra=', "ai.onnx.ml" : 3'))
    found = {i.operator: i for i in caught.value.items}
    assert set(found) == {"Frobnicate", "Reluu"}  # CastMap runs on the host
    assert found["Frobnicate"].count == 2
    assert "did you mean Relu" in found["Reluu"].remedy
    assert {row["operator"] for row in caught.value.as_json()} == set(found)


def test_refused_nodes_are_collected_and_what_depends_on_them_is_not() -> None:
    text = """g (float[2,3] x, int64[1] s, int64[1] t) => (float[A] y, float[B] z) {
        a = Reshape(x, s)  b = Relu(a)  y = Exp(b)  z = Tile(x, t) }"""
    with pytest.raises(UnsupportedOperatorsError) as caught:
        parse(model(text))
    assert [i.operator for i in caught.value.items] == ["Reshape", "Tile"]


def test_a_result_of_unknown_size_may_only_be_an_output() -> None:
    graph = parse(model("g (float[2,3] x) => (int64[2,N] y) { y = NonZero(x) }"))
    assert [n.op_type for n in graph] == ["NonZero"]
    with pytest.raises(UnsupportedOperatorsError, match="whose size depends on data"):
        parse(model("g (float[2,3] x) => (int64[N,2] y) { t = NonZero(x)  y = Transpose(t) }"))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("g (float[3,0] x, bool[3] c) => (float[N,0] y) { y = Compress <axis = 0> (x, c) }", [(2, 0)]),
        ("g (float[0,3,2] x, bool[3] c) => (float[0,N,2] y) { y = Compress <axis = 1> (x, c) }", [(0, 2, 2)]),
        ("g (float[0,3] x, bool[3] c) => (int64[2,N] y) { y = NonZero(x) }", [(2, 0)]),
        ("g (float[2,0] x, bool[3] c) => (float[2,N] y) { y = Unique <axis = 1> (x) }", [(2, 0)]),
    ],
)
def test_the_run_tells_the_size_of_a_result_without_elements(
    text: str, shapes: list[tuple[int, ...]]
) -> None:
    compiled = compile_graph(parse(model(text)))
    condition = np.array([True, False, True])
    feeds = [condition if p.name == "c" else np.zeros(p.desc.shape, np.float32) for p in compiled.inputs]
    assert [r.shape for r in compiled.run(feeds)] == shapes


def test_types_that_no_engine_has_are_refused_by_reason() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="no engine accepts complex128"):
        parse(model("g (complex128[2] x) => (complex128[2] y) { y = Identity(x) }"))


# -- files -------------------------------------------------------------------------------------------------------


def external(tmp_path: Path, location: str, data: np.ndarray | None = None) -> Path:
    proto = model("g (float[2,3] x) => (float[2,3] y) { y = Add(x, w) }")
    array = np.ones(3, np.float32) if data is None else data
    tensor = numpy_helper.from_array(array, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    proto.graph.initializer.append(tensor)
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    (path.parent / "w.bin").write_bytes(np.full(3, 2, np.float32).tobytes())
    np.testing.assert_array_equal(run(path, {"x": X})[0], X + 2)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/hostname", "link.bin", "missing.bin", "short.bin", ""]
)
def test_external_data_elsewhere_or_damaged_is_refused(tmp_path: Path, location: str) -> None:
    path = external(tmp_path, location)
    (tmp_path / "secret.bin").write_bytes(bytes(12))
    (path.parent / "short.bin").write_bytes(bytes(5))
    os.symlink(tmp_path / "secret.bin", path.parent / "link.bin")
    with pytest.raises(GeError) as caught:
        parse(path)
    assert caught.value.code == "E10015"


def hub(tmp_path: Path, data: str) -> Path:
    """A model with external data in the form of the Hugging Face hub's cache; `data` is what its data links to."""
    root = tmp_path / "models--a--b"
    folder = root / "snapshots" / "0a1b" / "onnx"
    for made in (folder, root / "blobs"):
        made.mkdir(parents=True)
    external(tmp_path, "w.bin").rename(root / "blobs" / "aa")
    (root / "blobs" / "bb").write_bytes(np.full(3, 2, np.float32).tobytes())
    (tmp_path / "secret.bin").write_bytes(bytes(12))
    (folder / "m.onnx").symlink_to("../../../blobs/aa")
    (folder / "w.bin").symlink_to(data)
    return folder / "m.onnx"


def test_external_data_in_the_cache_of_the_hub_is_read(tmp_path: Path) -> None:
    path = hub(tmp_path, "../../../blobs/bb")
    np.testing.assert_array_equal(run(path, {"x": X})[0], X + 2)
    (tmp_path / "other.onnx").symlink_to(path)
    (tmp_path / "folder").symlink_to(path.parent)
    for way in (tmp_path / "other.onnx", tmp_path / "folder" / "m.onnx"):
        np.testing.assert_array_equal(run(way, {"x": X})[0], X + 2)


@pytest.mark.parametrize("data", ["../../../../secret.bin", "/etc/hostname", "../../../blobs/none"])
def test_external_data_that_leaves_the_cache_of_the_hub_is_refused(tmp_path: Path, data: str) -> None:
    with pytest.raises(GeError) as caught:
        parse(hub(tmp_path, data))
    assert caught.value.code == "E10015"


def test_a_link_to_a_model_has_its_data_beside_the_model(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    (path.parent / "w.bin").write_bytes(np.full(3, 2, np.float32).tobytes())
    (tmp_path / "link.onnx").symlink_to(path)
    np.testing.assert_array_equal(run(tmp_path / "link.onnx", {"x": X})[0], X + 2)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GeError, match="cannot read"):
        parse(tmp_path / "none.onnx")


@pytest.mark.parametrize("data", [b"", b"\x00\xff garbage", b"{}", b"\x08\x08"])
def test_what_is_not_a_model_is_an_error(data: bytes) -> None:
    with pytest.raises(GeError) as caught:
        parse(data)
    assert caught.value.code == "E10011"


def test_versions_are_checked() -> None:
    with pytest.raises(GeError, match="newest known"):
        parse(model(RELU, opset=999))
    old = model(RELU)
    old.ir_version = 2
    with pytest.raises(GeError, match="IR version 2"):
        parse(old)


def test_bytes_protos_and_ir_models_are_the_same() -> None:
    import onnx_ir

    proto = model(RELU)
    for source in (proto, proto.SerializeToString(), onnx_ir.from_proto(proto)):
        np.testing.assert_array_equal(run(source, {"x": X})[0], np.maximum(X, 0))


# -- malformed graphs --------------------------------------------------------------------------------------------


def graph_model(nodes: list[onnx.NodeProto], outputs: list[str]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    ys = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in outputs]
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], ys), opset_imports=[helper.make_opsetid("", 17)]
    )


def test_nodes_may_come_in_any_order() -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
    np.testing.assert_array_equal(run(graph_model(nodes, ["y"]), {"x": X})[0], np.maximum(-X, 0))


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([("Relu", ["b"], ["a"]), ("Neg", ["a"], ["b"])], "cycle"),
        ([("Relu", ["x"], ["a"]), ("Neg", ["x"], ["a"])], "given twice"),
        ([("Relu", ["x"], ["x"])], "given twice"),
        ([("Relu", ["nowhere"], ["a"])], "made by no node"),
        ([("Relu", ["x"], ["b"])], "there is no value a"),
    ],
)
def test_unsound_graphs_are_errors(nodes: list[Any], words: str) -> None:
    made = [helper.make_node(*n) for n in nodes]
    with pytest.raises(GeError, match=words):
        parse(graph_model(made, ["a"]))


def test_absurd_sizes_are_refused() -> None:
    with pytest.raises(GeError, match="larger than"):
        parse(model(f"g (float[{10**12},{10**12}] x) => (float[N] y) {{ y = Relu(x) }}"))
    huge = f"Constant <value_ints=[{10**9},{10**9}]> ()"
    text = f"g (float[2] x) => (float[N,M] y) {{ s = {huge}  y = ConstantOfShape(s) }}"
    with pytest.raises(GeError, match="larger than"):
        parse(model(text))


def test_an_attribute_of_the_wrong_kind_is_an_error() -> None:
    with pytest.raises(GeError):
        parse(model('g (float[2,3] x) => (float[2,3] y) { y = Softmax <axis="one"> (x) }'))
    with pytest.raises(GeError):
        parse(model("g (float[2,3] x) => (float[2,3] y) { y = Transpose <perm=[0,5]> (x) }"))


def test_a_constant_with_two_values_is_refused() -> None:
    text = "g () => (float[1] y) { y = Constant <value_float = 1.0, value_int = 2> () }"
    with pytest.raises(UnsupportedOperatorsError, match="several values: value_float, value_int"):
        parse(model(text))


def test_functions_that_call_themselves_are_refused() -> None:
    text = """g (float[2,3] x) => (float[2,3] y) { y = own.loop(x) }
        <opset_import: ["" : 17, "own" : 1], domain: "own"> loop (a) => (b) { b = own.loop(a) }"""
    with pytest.raises(GeError, match="without end"):
        parse(model(text, extra=', "own" : 1'))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1), change=st.binary(min_size=1, max_size=4), cut=st.booleans())
def test_a_damaged_model_never_does_worse_than_an_error(place: float, change: bytes, cut: bool) -> None:
    text = """g (float[2,3,8,8] x) => (float[N] y) {
        w = Constant <value = float[4,3,3,3] {}> ()  a = Conv <pads=[1,1,1,1]> (x, w)  b = Relu(a)
        s = Constant <value_ints=[-1]> ()  y = Reshape(b, s) }""".replace(
        "{}", "{" + ",".join(["1"] * 108) + "}"
    )
    data = bytearray(model(text).SerializeToString())
    at = int(place * (len(data) - 1))
    data[at : at + len(change)] = change
    with contextlib.suppress(GeError):
        parse(bytes(data[:at]) if cut else bytes(data))


# -- functions and bodies ----------------------------------------------------------------------------------------


def test_functions_of_the_model_are_put_in_place() -> None:
    text = """g (float[2,3] x) => (float[2,3] y) { y = own.shifted <by=2.0> (x) }
        <opset_import: ["" : 17], domain: "own"> shifted <by: float = 1.0> (a) => (b) {
            c = Constant <value_float: float = @by> ()  b = Add(a, c) }"""
    np.testing.assert_array_equal(run(model(text, extra=', "own" : 1'), {"x": X})[0], X + 2)


def test_operators_with_a_function_in_the_standard_need_no_plugin() -> None:
    found = run(
        model("g (float[2,3] x) => (float[2,3] y) { y = MeanVarianceNormalization <axes=[0,1]> (x) }"),
        {"x": X},
    )
    np.testing.assert_allclose(found[0], (X - X.mean()) / X.std(), rtol=1e-5)


CONDITION = """g (float[2,3] x, bool c) => (float[2,3] y) {
    y = If (c) <
        then_branch = t () => (float[2,3] u) { u = Relu(x) },
        else_branch = e () => (float[2,3] v) { v = Neg(x) }>
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_a_branch_is_taken_at_run_time(condition: bool) -> None:
    wanted = np.maximum(X, 0) if condition else -X
    (found,) = run(model(CONDITION), {"x": X, "c": np.asarray(condition)})
    np.testing.assert_array_equal(found, wanted)


def test_a_known_condition_leaves_one_branch() -> None:
    proto = model(CONDITION)
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(True), "c"))
    assert [n.op_type for n in parse(proto)] == ["Relu"]


LOOP = """g (float[3] x, int64 n) => (float[3] y, float[N,3] all) {
    t = Constant <value = bool {1}> ()
    y, all = Loop (n, t, x) <body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2, float[3] o) {
        c2 = Identity(c)  k = Cast <to=1> (i)  s2 = Add(s, k)  o = Identity(s2) }>
}"""


def test_a_loop_stacks_what_its_steps_give() -> None:
    proto = model(LOOP)
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray(12, np.int64), "n"))
    graph = parse(proto)
    assert [n.op_type for n in graph] == ["Loop"]
    last, every = interpret(graph, [np.zeros(3, np.float32)])
    np.testing.assert_array_equal(every[:, 0], np.cumsum(np.arange(12)))
    np.testing.assert_array_equal(last, every[-1])


@pytest.mark.parametrize("declared", ["float[3] o", "float[M] o", "float o"])
@pytest.mark.parametrize("why", ["count", "condition"])
def test_a_loop_of_no_steps_stacks_nothing_in_the_shape_of_its_steps(declared: str, why: str) -> None:
    text = LOOP.replace("float[3] o)", f"{declared})").replace("{1}", "{1}" if why == "count" else "{0}")
    proto = model(text)
    proto.graph.initializer.append(
        numpy_helper.from_array(np.asarray(0 if why == "count" else 5, np.int64), "n")
    )
    if declared == "float o":
        proto.graph.node[1].attribute[0].g.output[2].type.tensor_type.ClearField("shape")
    last, every = interpret(parse(proto), [np.ones(3, np.float32)])
    np.testing.assert_array_equal(last, np.ones(3))
    assert every.shape == (0, 3) and every.dtype == np.float32


def test_a_loop_whose_shapes_change_is_unrolled() -> None:
    text = """g (float[1] x) => (float[N] y) {
        n = Constant <value = int64 {3}> ()  t = Constant <value = bool {1}> ()
        y = Loop (n, t, x) <body = b (int64 i, bool c, float[M] s) => (bool c2, float[K] s2) {
            c2 = Identity(c)  s2 = Concat <axis=0> (s, s) }>
    }"""
    graph = parse(model(text))
    assert all(n.op_type != "Loop" for n in graph)
    assert interpret(graph, [np.ones(1, np.float32)])[0].shape == (8,)


WHILE = """g (float[4,3] x) => (float[N,3] y) {{
    z = Constant <value = int64 {{0}}> ()  t = Constant <value = bool {{1}}> ()
    last, y = Loop ({trip}, t, z) <body = b (int64 i, bool c, int64 k) => (bool c2, int64 k2, float[3] o) {{
        one = Constant <value = int64 {{1}}> ()  four = Constant <value = int64 {{4}}> ()
        axis = Constant <value = int64[1] {{0}}> ()  k2 = Add(k, one)  c2 = {condition}
        from = Unsqueeze(k, axis)  to = Unsqueeze(k2, axis)
        row = Slice(x, from, to, axis)  o0 = Squeeze(row, axis)  o = Neg(o0) }}>
}}"""


@pytest.mark.parametrize("trip", ["", "many"])
def test_a_loop_that_ends_at_a_known_step_is_unrolled(trip: str) -> None:
    """tf2onnx writes loops over the rows of a tensor without a count, and their parts decide shapes."""
    proto = model(WHILE.format(trip=trip, condition="Less(k2, four)"))
    if trip:
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(1 << 62), trip))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_array_equal(run(proto, {"x": x})[0], -x)


def test_a_loop_that_does_not_end_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="decides a shape"):
        parse(model(WHILE.format(trip="", condition="Identity(c)")))


@pytest.mark.parametrize("steps", [3, 20])
def test_a_scan_runs_over_its_steps_forwards_and_backwards(steps: int) -> None:
    text = f"""g (float[2] s, float[{steps},2] x) => (float[2] last, float[{steps},2] y) {{
        last, y = Scan <num_scan_inputs=1, scan_input_directions=[1],
            body = b (float[2] a, float[2] v) => (float[2] c, float[2] o) {{ c = Add(a, v)  o = Identity(c) }}> (s, x)
    }}"""
    x = np.arange(2 * steps, dtype=np.float32).reshape(steps, 2)
    last, y = run(model(text), {"s": np.zeros(2, np.float32), "x": x})
    np.testing.assert_array_equal(y, np.cumsum(x[::-1], axis=0))
    np.testing.assert_array_equal(last, x.sum(0))


def test_sequences_inside_a_model_leave_no_trace() -> None:
    text = """g (float[4,3] x) => (float[2,3] y, int64 n) {
        i = Constant <value = int64 {1}> ()  two = Constant <value = int64 {2}> ()
        s = SplitToSequence <axis=0> (x, two)  y = SequenceAt(s, i)  n = SequenceLength(s) }"""
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    y, n = run(model(text), {"x": x})
    np.testing.assert_array_equal(y, x[2:])
    assert n == 2


# -- operator sets -----------------------------------------------------------------------------------------------


def test_attributes_that_became_inputs_mean_the_same() -> None:
    old = run(
        model("g (float[2,3] x) => (float[2] y) { y = ReduceSum <axes=[1], keepdims=0> (x) }", 11), {"x": X}
    )
    axes = "a = Constant <value_ints=[1]> ()"
    new_text = f"g (float[2,3] x) => (float[2] y) {{ {axes}  y = ReduceSum <keepdims=0> (x, a) }}"
    new = run(model(new_text, 13), {"x": X})
    np.testing.assert_array_equal(old[0], new[0])
    old = run(model("g (float[2,3] x) => (float[2,3] y) { y = Clip <min=-1.0> (x) }", 6), {"x": X})
    np.testing.assert_array_equal(old[0], np.maximum(X, -1))


def test_softmax_before_version_13_flattens() -> None:
    x = np.random.default_rng(0).random((2, 3, 4), np.float32)
    text = "g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis=1> (x) }"
    assert np.allclose(run(model(text, 11), {"x": x})[0].sum((1, 2)), 1)
    assert np.allclose(run(model(text, 13), {"x": x})[0].sum(1), 1)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT4E2M1", "INT4", "UINT4"])
def test_narrow_types_go_there_and_back(kind: str) -> None:
    code = TensorProto.DataType.Value(kind)
    text = f"g (float[6] x) => (float[6] y) {{ t = Cast <to={code}> (x)  y = Cast <to=1> (t) }}"
    x = np.array([0.0, 1.0, 2.0, 3.0, 1.0, 6.0], np.float32)
    np.testing.assert_array_equal(run(model(text, 23), {"x": x})[0], x)


@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16", "int32", "int64"])
def test_floats_without_a_place_among_the_integers_become_those_of_onnxruntime(to):
    x = np.array([300, -5, 127.9, -129, 7e4, -7e4, 3e9, -3e9, 1e30, np.inf, -np.inf, np.nan], np.float32)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    cast = model(f"g (float[12] x) => ({to}[12] y) {{ y = Cast<to = {kind}>(x) }}")
    wanted = onnxruntime.InferenceSession(cast.SerializeToString()).run(None, {"x": x})
    for found in (run(cast, {"x": x}), ge.compile(cast).run([x])):
        np.testing.assert_array_equal(found[0], wanted[0])


# -- results of random programs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, shape",
    [
        ("Conv <group = 4, pads = [1, 1]> (x, w)", (0, 4, 3)),
        ("ConvTranspose <group = 4> (x, w)", (0, 4, 1)),
        ("Hardmax <axis = 1> (x)", (0, 4, 1)),
        ("ArgMax <axis = 1, keepdims = 1> (x)", (0, 1, 1)),
    ],
)
def test_empty_batches_are_interpreted(call: str, shape: tuple[int, ...]) -> None:
    source = model(f"g (float[0,4,1] x, float[4,1,1] w) => (float[] y) {{ y = {call} }}")
    feeds = {"x": np.zeros((0, 4, 1), np.float32), "w": np.ones((4, 1, 1), np.float32)}
    assert run(source, feeds)[0].shape == shape


@pytest.mark.parametrize("call", ["LpPool <kernel_shape = [2]> (x)", "GlobalLpPool (x)"])
def test_powers_in_pools_do_not_overflow_half_precision(call: str) -> None:
    source = model(f"g (float16[1,1,2] x) => (float16[] y) {{ y = {call} }}")
    found = run(source, {"x": np.float16([[[300, 400]]])})[0]
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.float16([[[500]]]))


@pytest.mark.parametrize("operator", ["LeakyRelu", "Selu", "HardSigmoid"])
def test_defaults_of_attributes_are_of_single_precision(operator: str) -> None:
    source = model(f"g (double[4] x) => (double[4] y) {{ y = {operator} (x) }}")
    x = np.array([-1.5, -0.3, 0.2, 2.0])
    expected = ReferenceEvaluator(source).run(None, {"x": x})
    np.testing.assert_allclose(run(source, {"x": x})[0], expected[0], rtol=1e-14)


@pytest.mark.parametrize("constants", [(), ("low",), ("high",), ("low", "high")])
def test_the_upper_bound_of_a_clip_prevails(constants: tuple[str, ...]) -> None:
    source = model("g (float[1] x, float low, float high) => (float[1] y) { y = Clip (x, low, high) }")
    feeds = {"x": np.float32([0]), "low": np.array(1, np.float32), "high": np.array(-1, np.float32)}
    for name in constants:
        source.graph.initializer.append(numpy_helper.from_array(feeds[name], name))
    assert run(source, feeds)[0] == [-1]


@pytest.mark.parametrize(
    ("operator", "x", "w"),
    [
        ("Conv", (1, 3, 5, 5), (4, 3, 3, 3)),
        ("ConvTranspose", (1, 3, 5, 5), (3, 4, 1, 1)),
        ("MatMul", (4, 8), (8, 8)),
    ],
)
def test_a_clip_with_its_bounds_in_reverse_joins_a_product(
    operator: str, x: tuple[int, ...], w: tuple[int, ...]
) -> None:
    sizes = [",".join(map(str, s)) for s in (x, w)]
    source = model(
        f"g (float[{sizes[0]}] x, float[{sizes[1]}] w) => (float[a,b{',c,d' * (len(x) > 2)}] y) "
        f"<float low = {{1}}, float high = {{-1}}> {{ p = {operator} (x, w) y = Clip (p, low, high) }}"
    )
    assert (run(source, {"x": np.ones(x, np.float32), "w": np.ones(w, np.float32)})[0] == -1).all()
