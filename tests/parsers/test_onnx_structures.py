"""Strings, sequences, optionals and dictionaries as inputs and outputs of ONNX models."""

from __future__ import annotations

import locale
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import acl
import ge
from ge.interface import Interface, Leaf, identify
from ge.interface.strings import Dictionary
from ge.options import CompileOptions

TEXT = helper.make_tensor_type_proto(TensorProto.STRING, [3])
REAL = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, onnx.TypeProto], outputs: list[str], *constants: Any
) -> Any:
    ports = [helper.make_value_info(name, kind) for name, kind in inputs.items()]
    graph = helper.make_graph(
        nodes, "net", ports, [onnx.ValueInfoProto(name=o) for o in outputs], list(constants)
    )
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 20), ("ai.onnx.ml", 3), ("com.microsoft", 1))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def words(*items: str) -> np.ndarray:
    return np.array(items, object)


def test_strings_are_moved_and_compared(tmp_path: Path) -> None:
    chosen = helper.make_tensor("chosen", TensorProto.STRING, [1], [b"b"])
    nodes = [
        helper.make_node("Equal", ["x", "chosen"], ["same"]),
        helper.make_node("Where", ["same", "x", "y"], ["mixed"]),
        helper.make_node("Concat", ["mixed", "chosen"], ["z"], axis=0),
    ]
    model = ge.compile(model_of(nodes, {"x": TEXT, "y": TEXT}, ["z", "same"], chosen))
    x, y = words("a", "b", "größe"), words("never seen", "c", "d")
    for run in (model, ge.load(model.save(tmp_path / "text.om"))):
        z, same = run(x, y)
        assert z.tolist() == ["never seen", "b", "d", "b"] and same.tolist() == [False, True, False]
        assert run(y=y, x=x)[0].tolist() == z.tolist()


def test_text_is_prepared_before_and_written_after_the_plan(tmp_path: Path) -> None:
    """Words are counted by the host, classified by the plan, and the label is extended by the host again."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [2.0, 0, 0, 1, 0, 1])
    ending = helper.make_tensor("ending", TensorProto.STRING, [1], [b"!"])
    nodes = [
        helper.make_node("StringNormalizer", ["x"], ["low"], case_change_action="LOWER"),
        helper.make_node("Tokenizer", ["low"], ["words"], domain="com.microsoft", mark=0, mincharnum=1,
                         pad_value="#", separators=[" "]),
        helper.make_node("TfIdfVectorizer", ["words"], ["counts"], mode="TF", min_gram_length=1, max_gram_length=1,
                         max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1, 2],
                         pool_strings=["good", "bad", "dull"]),
        helper.make_node("MatMul", ["counts", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["place"], axis=1, keepdims=0),
        helper.make_node("LabelEncoder", ["place"], ["label"], domain="ai.onnx.ml", keys_int64s=[0, 1],
                         values_strings=["praise", "blame"]),
        helper.make_node("StringConcat", ["label", "ending"], ["told"]),
        helper.make_node("ZipMap", ["scores"], ["maps"], domain="ai.onnx.ml", classlabels_strings=["up", "down"]),
    ]  # fmt: skip
    before = locale.setlocale(locale.LC_ALL)
    model = ge.compile(model_of(nodes, {"x": TEXT}, ["label", "told", "maps"], weights, ending))
    x = words("A good GOOD film", "bad and dull", "good or bad or dull or dull")
    for run in (model, ge.load(model.save(tmp_path / "text.om"))):
        label, told, maps = run(x)
        assert label.tolist() == ["praise", "blame", "blame"] and told.tolist() == [
            "praise!",
            "blame!",
            "blame!",
        ]
        assert maps == [{"up": 4.0, "down": 0.0}, {"up": 0.0, "down": 2.0}, {"up": 2.0, "down": 3.0}]
    assert locale.setlocale(locale.LC_ALL) == before, "a model leaves the process as it was"


def test_sequences_and_optionals_at_the_boundary(tmp_path: Path) -> None:
    several = helper.make_sequence_type_proto(REAL)
    maybe = helper.make_optional_type_proto(REAL)
    nodes = [
        helper.make_node("ConcatFromSequence", ["xs"], ["joined"], axis=0),
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("SequenceInsert", ["xs", "joined"], ["ys"]),
    ]
    proto = model_of(nodes, {"xs": several, "o": maybe}, ["ys", "has", "o"])
    shapes = {"xs.0": (2, 3), "xs.1": (1, 3)}
    a, b = np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)
    model = ge.compile(proto, CompileOptions(input_shapes=shapes))
    for run in (model, ge.load(model.save(tmp_path / "sequences.om"))):
        ys, has, o = run([a, b], a)
        assert [y.shape for y in ys] == [(2, 3), (1, 3), (3, 3)] and has and (o == a).all()
        with pytest.raises(ge.GeError, match="sequence of 2 tensors, got 1 elements"):
            run([a], a)
        with pytest.raises(ge.GeError, match="compiled for input 'o' present"):
            run([a, b], None)
    absent = ge.compile(proto, CompileOptions(input_shapes={**shapes, "o.absent": ()}))
    assert absent([a, b], None)[1:] == (False, None)


def test_sequences_and_optionals_are_compiled_for_the_form_of_each_call(tmp_path: Path) -> None:
    rows = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3]))
    maybe = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["m"]))
    nodes = [
        helper.make_node("ConcatFromSequence", ["xs"], ["joined"], axis=0),
        helper.make_node("SequenceLength", ["xs"], ["count"]),
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("Add", ["joined", "y"], ["sum"]),
    ]
    inputs = {"xs": rows, "o": maybe, "y": helper.make_tensor_type_proto(TensorProto.FLOAT, ["k", 3])}
    model = ge.compile(model_of(nodes, inputs, ["sum", "count", "has", "o"]))
    with pytest.raises(ge.GeError, match="xs: any form"):
        model.save(tmp_path / "open.om")
    y = np.ones((1, 3), np.float32)
    for sizes, length in (((2, 1), 4), ((5,), None), ((1, 1, 1), 1), ((2, 1), 4)):
        xs = [np.full((size, 3), i, np.float32) for i, size in enumerate(sizes)]
        o = None if length is None else np.arange(length, dtype=np.float32)
        total, count, has, same = model(xs=xs, o=o, y=y)
        np.testing.assert_array_equal(total, np.concatenate(xs) + 1)
        assert (count, has) == (len(sizes), o is not None)
        assert same is None if o is None else (same == o).all()
    assert model.save(tmp_path / "last.om").exists()


@pytest.mark.parametrize("flag", [True, False])
def test_branches_give_sequences_and_strings_of_one_form(flag: bool) -> None:
    def branch(name: str, sign: str) -> onnx.GraphProto:
        word = helper.make_tensor("v", TensorProto.STRING, [1], [name.encode()])
        nodes = [
            helper.make_node(sign, ["x"], [f"{name}_a"]),
            helper.make_node("SequenceConstruct", [f"{name}_a", "x"], [f"{name}_s"]),
            helper.make_node("Constant", [], [f"{name}_t"], value=word),
        ]
        return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=f"{name}_{k}") for k in "st"])

    node = helper.make_node(
        "If", ["flag"], ["s", "t"], then_branch=branch("yes", "Abs"), else_branch=branch("no", "Neg")
    )
    kinds = {"flag": helper.make_tensor_type_proto(TensorProto.BOOL, []), "x": REAL}
    model = ge.compile(model_of([node], kinds, ["s", "t"]))
    x = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    s, t = model(np.asarray(flag), x)
    np.testing.assert_array_equal(s[0], abs(x) if flag else -x)
    np.testing.assert_array_equal(s[1], x)
    assert t.tolist() == ["yes" if flag else "no"]


def test_computing_on_strings_is_refused_with_a_remedy() -> None:
    with pytest.raises(ge.GeError, match="strings, which can be moved and compared only"):
        ge.compile(model_of([helper.make_node("Add", ["x", "x"], ["y"])], {"x": TEXT}, ["y"]))
    late = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Cast", ["r"], ["t"], to=TensorProto.STRING),
        helper.make_node("Cast", ["t"], ["n"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    with pytest.raises(ge.GeError, match="computed from strings that the plan's results are turned into"):
        ge.compile(model_of(late, {"x": REAL}, ["y"]))


def test_text_whose_size_differs_from_the_trial_is_an_error() -> None:
    nodes = [
        helper.make_node("StringSplit", ["x"], ["parts", "count"]),
        helper.make_node("Equal", ["parts", "parts"], ["same"]),
        helper.make_node("Cast", ["same"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0),
    ]
    model = ge.compile(model_of(nodes, {"x": TEXT}, ["z", "count"]))
    z, count = model(words("a b", "c d", "e f"))
    assert z == 6 and count.tolist() == [2, 2, 2]
    with pytest.raises(ge.GeError, match="E10020"):
        model(words("a b c", "d", "e"))


@pytest.mark.parametrize("inputs", [None, 1, "ab", [], [[["a", "b"], ["c"]]]])
def test_inputs_of_the_wrong_kind_are_refused(inputs: Any) -> None:
    lower = helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")
    model = ge.compile(model_of([lower], {"x": TEXT}, ["y"]))
    with pytest.raises(ge.GeError, match=r"not an array|takes 1 inputs"):
        model.run(inputs)


def test_an_interface_that_does_not_fit_is_refused() -> None:
    interface = Interface(("x",), (Leaf(0),), (Leaf(3),))
    assert Interface.from_json(interface.to_json()) == interface
    with pytest.raises(ge.GeError, match="does not fit its ports"):
        interface.check(1, 1)
    for broken in ({}, {"names": 1}, {**interface.to_json(), "inputs": [7]}):
        with pytest.raises(ge.GeError, match="E11006"):
            Interface.from_json(broken)


def test_identifiers_are_stable_and_known_again() -> None:
    strings = words("", "a", "größe", "a")
    assert identify(strings).tolist()[1] == identify(strings).tolist()[3] != identify(strings).tolist()[2]
    assert Dictionary(strings).look_up(identify(strings)).tolist() == strings.tolist()


def test_acl_tells_how_to_run_such_models(tmp_path: Path) -> None:
    path = ge.compile(model_of([helper.make_node("Identity", ["x"], ["y"])], {"x": TEXT}, ["y"])).save(
        tmp_path / "m"
    )
    assert acl.Model(path)(words("a", "b", "c")).tolist() == ["a", "b", "c"]
    assert acl.init() == 0
    try:
        assert acl.rt.set_device(0) == 0
        assert acl.mdl.load_from_file(str(path))[1] == acl.ACL_ERROR_UNSUPPORTED_DATA_TYPE
        assert "acl.Model" in acl.get_recent_err_msg()
    finally:
        acl.finalize()
