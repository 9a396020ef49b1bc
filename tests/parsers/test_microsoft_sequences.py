"""Operators of ONNX Runtime on sequences of tokens and branches, beside ONNX Runtime; and what is refused, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.errors import UnsupportedOperatorsError
from ge.parsers.onnx import sequences  # noqa: F401  (declares the plugins)
from ge.parsers.onnx.host_part import has_text
from ge.parsers.onnx.model import load
from ge.parsers.onnx.scan import unmapped

onnxruntime = pytest.importorskip("onnxruntime")

DOMAIN = "com.microsoft"
Operand = np.ndarray | None


def model_of(
    type_: str, operands: list[Operand], outputs: int, domain: str = DOMAIN, version: int = 20, **attrs: Any
) -> onnx.ModelProto:
    names = ["" if o is None else f"x{i}" for i, o in enumerate(operands)]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(o.dtype), o.shape)
        for name, o in zip(names, operands, strict=True)
        if o is not None
    ]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(type_, names, results, name="node", domain=domain, **attrs)
    graph = helper.make_graph([node], "net", inputs, [onnx.ValueInfoProto(name=r) for r in results])
    opsets = [helper.make_opsetid("", version), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def check(
    type_: str, operands: list[Operand], outputs: int = 1, tolerance: float = 1e-5, **attrs: Any
) -> None:
    model = model_of(type_, operands, outputs, **attrs)
    feeds = {f"x{i}": o for i, o in enumerate(operands) if o is not None}
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, feeds)
    found = ge.compile(model)(*feeds.values())
    for theirs, ours in zip(wanted, found if isinstance(found, tuple | list) else [found], strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(ours, theirs)


def real(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# -- tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_repeated_ngrams_score_minus_infinity(size: int) -> None:
    rng = np.random.default_rng(size)
    check("NGramRepeatBlock", [rng.integers(0, 3, (3, 5)), real(rng, 3, 4)], ngram_size=size)


@pytest.mark.parametrize("seed", range(6))
def test_predicted_tokens_are_kept_up_to_the_first_that_differs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    source, start = rng.integers(0, 3 + seed, 7), int(rng.integers(0, 7))
    predicted: Any = np.append(source[start:], 1)
    predicted[rng.integers(0, len(predicted))] = 2
    operands = [source, rng.integers(0, 3, 3), np.array([start]), None if seed == 5 else predicted]
    check("BifurcationDetector", operands, 2, min_ngram_size=1 + seed % 2, max_ngram_size=3)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (4, 6), (1, 6, 3)])
@pytest.mark.parametrize("levels", [2, 50])
def test_time_warping(shape: tuple[int, ...], levels: int) -> None:
    rng = np.random.default_rng(levels)
    check("DynamicTimeWarping", [rng.integers(0, levels, shape).astype(np.float32)])


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
def test_murmur_hashes(dtype: str) -> None:
    x = (np.random.default_rng(0).standard_normal((3, 4)) * 1e9).astype(dtype)
    check("MurmurHash3", [x])
    check("MurmurHash3", [x], positive=0, seed=77)


@pytest.mark.parametrize("options", range(8))
def test_ngram_hashes(options: int) -> None:
    """With and without earlier tokens, offsets, the end token and segments; products wrap around."""
    rng, dtype = np.random.default_rng(options), ["int32", "int64"][options % 2]
    large = 2**31 if dtype == "int32" else 2**62
    operands: list[Operand] = [
        rng.integers(0, 5, (2, 4)).astype(dtype), rng.integers(1, large, 3).astype(dtype),
        rng.integers(2, 900, 4).astype(dtype),
        rng.integers(0, 5, (2, 2)).astype(dtype) if options & 1 else None,
        rng.integers(0, 900, 4).astype(dtype) if options & 2 else None,
        np.array(3, dtype) if options & 4 else None,
        np.sort(rng.integers(0, 2, (2, 4)), axis=1).astype(np.int32) if options < 6 else None,
    ]  # fmt: skip
    check(
        "NGramHashMapping",
        operands,
        2,
        max_ngram_size=3,
        n_head_per_ngram=2,
        pad_id=1,
        reset_on_eos=options // 4,
    )


@pytest.mark.parametrize("options", range(8))
def test_ngram_hashes_of_packed_texts(options: int) -> None:
    rng = np.random.default_rng(options)
    segments = options & 2
    operands: list[Operand] = [
        rng.integers(0, 5, 9), rng.integers(1, 2**62, 3), rng.integers(2, 900, 2), np.array([0, 2, 3, 9], np.int32),
        rng.integers(0, 5, (3, 2)) if options & 1 else None, None,
        np.array(3) if options & 4 else None,
        np.sort(rng.integers(0, 3, 9)).astype(np.int32) if segments else None,
        rng.integers(0, 3, (3, 2)).astype(np.int32) if segments and options & 1 else None,
        np.array([0, 5, 2], np.int32) if segments else None,
    ]  # fmt: skip
    check(
        "VarlenNGramHashMapping", operands, 4 if segments else 2, max_ngram_size=3, n_head_per_ngram=1, pad_id=1,
        reset_on_eos=options // 4, state_update_capacity=3 if segments else 0,
    )  # fmt: skip


def test_words_are_embedded_by_a_convolution_over_their_characters() -> None:
    rng = np.random.default_rng(0)
    words = np.array([[1, 2, 3, 4], [2, 5, 0, 0], [3, 0, 0, 0]], np.int32)
    check("WordConvEmbedding", [words, real(rng, 3, 1, 2, 6), real(rng, 3), real(rng, 6, 6)])


# -- recurrent cells with attention ------------------------------------------------------------------------

ATTENTION_LSTMS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "context": ("forward", None, {}),
    "layer": ("forward", 2, {3: None}),
    "lengths": ("reverse", 4, {4: np.array([4, 2], np.int32), 12: np.array([3, 6], np.int32)}),
    "both directions": ("bidirectional", 4, {4: np.array([3, 3], np.int32), 12: np.array([1, 5], np.int32)}),
    "states and peepholes": ("bidirectional", None, {5: (2, 2, 5), 6: (2, 2, 5), 7: (2, 15)}),
    "other cells": (
        "forward",
        3,
        {"clip": 0.5, "input_forget": 1, "activations": ["HardSigmoid", "Softsign", "Relu"]},
    ),
}


def attention_lstm(direction: str, layer: int | None, given: dict[Any, Any], steps: int = 4) -> list[Operand]:
    """Operands for two sequences, three inputs, five units, and a memory of six places of three elements."""
    rng = np.random.default_rng(len(given))
    count, seen = 2 if direction == "bidirectional" else 1, layer or 3
    operands: list[Operand] = [
        real(rng, steps, 2, 3), real(rng, count, 20, 3 + seen), real(rng, count, 20, 5), real(rng, count, 40),
        None, None, None, None, real(rng, count, 5, 4), real(rng, count, 3, 4), real(rng, count, 4), real(rng, 2, 6, 3),
        None, None if layer is None else real(rng, count, 8, layer),
    ]  # fmt: skip
    for index, value in given.items():
        if isinstance(index, int):
            operands[index] = real(rng, *value) if isinstance(value, tuple) else value
    while operands[-1] is None:
        operands.pop()
    return operands


@pytest.mark.parametrize("name", ATTENTION_LSTMS)
def test_an_lstm_attends_to_a_memory(name: str) -> None:
    direction, layer, given = ATTENTION_LSTMS[name]
    attrs = {k: v for k, v in given.items() if isinstance(k, str)}
    operands = attention_lstm(direction, layer, given)
    check("AttnLSTM", operands, 3, hidden_size=5, direction=direction, **attrs)


def test_an_lstm_attends_over_many_steps() -> None:
    check("AttnLSTM", attention_lstm("forward", 3, {}, 40), 2, hidden_size=5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({11: None}, "without a memory"),
        ({8: None}, "without a memory"),
        ({1: (1, 20, 7)}, "weights for 4 elements of attention where there are 3"),
    ],
)
def test_an_lstm_without_what_attention_needs_is_refused(given: dict[int, Any], message: str) -> None:
    with pytest.raises(ge.GeError, match=message):
        ge.compile(model_of("AttnLSTM", attention_lstm("forward", None, given), 3, hidden_size=5))


# -- branches and rotations --------------------------------------------------------------------------------


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("features", [False, True])
def test_hyper_connections(flat: bool, features: bool) -> None:
    rng = np.random.default_rng(flat)
    x = real(rng, 2, 3, 20) if flat else real(rng, 2, 3, 4, 5)
    attrs = {"num_branches": 4} if flat else {}
    gates = real(rng, 2, 3, 4, 5) if features else real(rng, 2, 3, 4)
    check("HyperConnectionPreMix", [x, gates], reduction_scale=0.5, **attrs)
    check("HyperConnectionPostMix", [x, real(rng, 2, 3, 5), gates, real(rng, 2, 3, 4, 4)], **attrs)
    check("HyperConnectionPostMix", [x, real(rng, 2, 3, 5), gates], **attrs)
    check("BranchwiseRMSNorm", [x, real(rng, 4, 5) if features else real(rng, 5)], epsilon=1e-3, **attrs)
    check("BranchwiseRMSNorm", [x], **attrs)


def test_engram_gates() -> None:
    rng = np.random.default_rng(0)
    operands: list[Operand] = [
        real(rng, 2, 3, 4, 5),
        real(rng, 2, 3, 4, 5),
        real(rng, 2, 3, 5),
        real(rng, 4, 5),
    ]
    operands += [real(rng, 4, 5)]
    check("EngramGate", operands)
    check("EngramGate", [*operands, real(rng, 4, 5)], 2)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotations_by_time_row_and_column(layout: int, interleaved: int) -> None:
    rng = np.random.default_rng(layout)
    attrs = {"mrope_layout": layout, "interleaved": interleaved, "num_heads": 2}
    tables = [rng.integers(0, 9, (3, 2, 4)), real(rng, 9, 6), real(rng, 9, 6)]
    check("MRotaryEmbedding", [real(rng, 2, 4, 24), *tables], mrope_section=[2, 2, 2], **attrs)
    check("MRotaryEmbedding", [real(rng, 2, 2, 4, 12), *tables], mrope_section=[2, 2, 2], **attrs)


@pytest.mark.parametrize(("tokens", "total"), [(40, 40), (1, 40)])
@pytest.mark.parametrize("rotary", [0, 1])
def test_block_sparse_attention(tokens: int, total: int, rotary: int) -> None:
    """ONNX Runtime updates its cache in place, and is wrong for texts of several lengths: only one is compared."""
    rng = np.random.default_rng(tokens)
    rows = np.array([[0, 1, 2, 4, 6], [0, 1, 3, 5, 7]], np.int32)
    columns = np.array([[0, 1, 0, 2, 1, 3, -1], [0, 0, 1, 1, 2, 0, 3]], np.int32)
    cache = [real(rng, 2, 2, 64, 16) for _ in range(2)]
    operands: list[Operand] = [
        real(rng, 2, tokens, 64), real(rng, 2, tokens, 32), real(rng, 2, tokens, 32), *cache, rows, columns,
        np.array([total], np.int32), np.full(2, total, np.int32),
        *([real(rng, 64, 8), real(rng, 64, 8)] if rotary else []),
    ]  # fmt: skip
    attrs = {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16, "do_rotary": rotary}
    model = model_of("SparseAttention", operands, 3, **attrs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    values = {f"x{i}": onnxruntime.OrtValue.ortvalue_from_numpy(o) for i, o in enumerate(operands)}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y0", "cpu")
    for name, past in (("y1", "x3"), ("y2", "x4")):
        binding.bind_ortvalue_output(name, values[past])
    ours = ge.compile(model_with(model, {5: rows, 6: columns, 7: operands[7]}))(
        *(np.array(o) for i, o in enumerate(operands) if i not in (5, 6, 7))
    )
    session.run_with_iobinding(binding)
    wanted = [binding.get_outputs()[0], values["x3"], values["x4"]]
    for theirs, result in zip(wanted, ours, strict=True):
        np.testing.assert_allclose(result, theirs.numpy(), rtol=1e-4, atol=1e-5)


def model_with(model: onnx.ModelProto, stored: dict[int, Any]) -> onnx.ModelProto:
    """The model with some inputs as constants."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [p for i, p in enumerate(made.graph.input) if i not in stored]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.extend(numpy_helper.from_array(a, f"x{i}") for i, a in stored.items())
    return made


def test_products_of_sparse_matrices() -> None:
    rng = np.random.default_rng(0)
    b = real(rng, 3, 5)
    model = model_of("SparseToDenseMatMul", [real(rng, 3, 4), b], 1, transA=1, alpha=0.5)
    kept = model.graph.input[1]
    del model.graph.input[:]
    model.graph.input.append(kept)
    values = numpy_helper.from_array(np.array([2.0, -3.0], np.float32), "x0")
    places = numpy_helper.from_array(np.array([1, 10], np.int64), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 4]))
    dense = np.zeros((3, 4), np.float32)
    dense[0, 1], dense[2, 2] = 2, -3
    np.testing.assert_allclose(ge.compile(model)(b), 0.5 * dense.T @ b, rtol=1e-6)


# -- experiments of early ONNX -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "attrs"),
    [
        ("Affine", {"alpha": 2.0, "beta": 1.0}),
        ("Scale", {"scale": 3.0}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 3.0}),
        ("ImageScaler", {"scale": 0.5, "bias": [1.0, 2.0, 3.0]}),
        ("Crop", {"border": [1, 0, 2, 1]}),
        ("Crop", {"border": [1, 1, 0, 0], "scale": [2, 3]}),
        ("MeanVarianceNormalization", {}),
        ("MeanVarianceNormalization", {"across_channels": 1}),
        ("MeanVarianceNormalization", {"normalize_variance": 0}),
    ],
)
def test_experiments_of_early_onnx(type_: str, attrs: dict[str, Any]) -> None:
    check(type_, [real(np.random.default_rng(0), 2, 3, 5, 4)], domain="", version=8, **attrs)


def test_a_mean_over_named_axes() -> None:
    x = real(np.random.default_rng(0), 2, 3, 5)
    check("MeanVarianceNormalization", [x], domain="", version=13, axes=[0, -1])


def test_a_crop_beyond_its_image_is_refused() -> None:
    with pytest.raises(UnsupportedOperatorsError, match="does not fit"):
        ge.compile(
            model_of("Crop", [np.zeros((1, 1, 3, 3), "f")], 1, domain="", version=8, border=[2, 0, 2, 0])
        )


@pytest.mark.parametrize("to", ["TO_FLOAT", "TO_INT64", "TO_STRING"])
@pytest.mark.parametrize("form", ["DENSE", "SPARSE"])
def test_dictionaries_become_rows(to: str, form: str) -> None:
    kind = helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    )
    node = helper.make_node(
        "CastMap", ["x"], ["y"], domain="ai.onnx.ml", cast_to=to, map_form=form, max_map=6
    )
    element = {"TO_FLOAT": TensorProto.FLOAT, "TO_INT64": TensorProto.INT64, "TO_STRING": TensorProto.STRING}[
        to
    ]
    result = helper.make_tensor_value_info("y", element, None)
    graph = helper.make_graph([node], "net", [helper.make_value_info("x", kind)], [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = {3: 2.7, 1: -1.5, 5: 0.1}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ours, (theirs,) = ge.compile(model)(x), session.run(None, {"x": x})
    assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist())


# -- what ONNX Runtime knows -------------------------------------------------------------------------------


def test_every_operator_of_onnx_runtime_runs_or_is_refused_for_a_reason_of_its_own() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    general = "is not mapped"
    for schema in {(s.domain, s.name) for s in state.get_all_operator_schema()}:
        domain, name = schema
        if domain not in ("", "ai.onnx.ml", DOMAIN, "com.microsoft.nchwc"):
            continue
        node = helper.make_node(name, ["x"], ["y"], domain=domain)
        ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
        graph = helper.make_graph([node], "net", ports[:1], ports[1:])
        opsets = [
            helper.make_opsetid("", onnx.defs.onnx_opset_version()),
            helper.make_opsetid(domain or DOMAIN, 1),
        ]
        if has_text(graph):
            continue
        for found in unmapped(load(helper.make_model(graph, opset_imports=opsets))):
            assert found.remedy and "write a plugin" not in found.remedy, schema
            assert not found.reason.endswith(f"(domain {domain}) {general}"), schema
