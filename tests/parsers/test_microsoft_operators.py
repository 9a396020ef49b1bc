"""Operators of ONNX Runtime: each beside ONNX Runtime itself, whose kernels are the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge

onnxruntime = pytest.importorskip("onnxruntime")

DOMAIN = "com.microsoft"
RNG = np.random.default_rng(0)


def real(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def levels(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


class Fixed:
    """An operand that is stored in the model."""

    def __init__(self, array: Any, dtype: Any = None) -> None:
        self.array = np.asarray(array, dtype)


Operand = np.ndarray | Fixed | None


def model_of(
    type_: str, operands: Sequence[Operand], outputs: int | Sequence[bool], **attrs: Any
) -> onnx.ModelProto:
    """A model of one node."""
    wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
    names = [f"x{i}" if o is not None else "" for i, o in enumerate(operands)]
    inputs, stored = [], []
    for name, operand in zip(names, operands, strict=True):
        if isinstance(operand, Fixed):
            stored.append(numpy_helper.from_array(operand.array, name))
        elif operand is not None:
            kind = helper.np_dtype_to_tensor_dtype(operand.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, operand.shape))
    results = [f"y{i}" if w else "" for i, w in enumerate(wanted)]
    domain = attrs.pop("domain", DOMAIN)
    node = helper.make_node(type_, names, results, name="node", domain=domain, **attrs)
    ports = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in results if name]
    for port in ports:
        port.type.Clear()
    graph = helper.make_graph([node], "net", inputs, ports, stored)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def both(model: onnx.ModelProto, operands: Sequence[Operand]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The results of ONNX Runtime and of the engine."""
    feeds = {f"x{i}": o for i, o in enumerate(operands) if isinstance(o, np.ndarray)}
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    wanted = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    ).run(None, feeds)
    found = ge.compile(model)(*feeds.values())
    return wanted, list(found) if isinstance(found, tuple | list) else [found]


def check(
    type_: str,
    operands: Sequence[Operand],
    outputs: Any = 1,
    *,
    levels: int = 1,
    rtol: float = 1e-4,
    **attrs: Any,
) -> None:
    """The engine's results are ONNX Runtime's: real numbers to rounding, quantised ones to `levels` levels."""
    wanted, found = both(model_of(type_, operands, outputs, **attrs), operands)
    assert len(wanted) == len(found)
    for theirs, ours in zip(wanted, found, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind in "iub" and theirs.dtype.itemsize == 1 and theirs.dtype != bool:
            assert np.abs(ours.astype(int) - theirs.astype(int)).max(initial=0) <= levels
        else:
            size = np.abs(theirs).max(initial=0).item()
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * max(size, 1e-3))


# -- products, convolutions, activations -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Relu", []),
        ("Tanh", []),
        ("Sigmoid", []),
        ("LeakyRelu", [0.1]),
        ("Clip", [-0.5, 0.5]),
        ("HardSigmoid", [0.3, 0.4]),
    ],
)
def test_fused_convolutions(name: str, parameters: list[float]) -> None:
    operands = [real(1, 3, 6, 5), Fixed(real(4, 3, 3, 3)), Fixed(real(4))]
    check(
        "FusedConv",
        operands,
        activation=name,
        **({"activation_params": parameters} if parameters else {}),
        pads=[1, 1, 1, 1],
        strides=[2, 1],
    )


def test_a_fused_convolution_adds_a_residual_before_its_activation() -> None:
    operands = [real(1, 3, 5, 5), Fixed(real(4, 3, 1, 1)), Fixed(real(4)), real(1, 4, 5, 5)]
    check("FusedConv", operands, activation="Relu")


@pytest.mark.parametrize(
    "attrs",
    [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}, {"transBatchA": 1}, {"transBatchB": 1, "transB": 1}],
)
def test_fused_products(attrs: dict[str, Any]) -> None:
    a = (3, 2, 4, 5) if not attrs.get("transA") else (3, 2, 5, 4)
    b = (3, 2, 5, 6) if not attrs.get("transB") else (3, 2, 6, 5)
    if attrs.get("transBatchA"):
        a = (4, 3, 2, 5)
    if attrs.get("transBatchB"):
        b = (6, 3, 2, 5)
    check("FusedMatMul", [real(*a), real(*b)], **attrs)


def test_fused_gemm() -> None:
    check(
        "FusedGemm",
        [real(3, 4), real(4, 5), real(5)],
        activation="LeakyRelu",
        activation_alpha=0.2,
        alpha=0.5,
        beta=2.0,
    )


@pytest.mark.parametrize("bias", [True, False])
def test_gelus(bias: bool) -> None:
    x, b = real(2, 3, 8), real(8)
    check("FastGelu", [x, b] if bias else [x])
    check("BiasGelu", [x, b])
    check("Gelu", [x])
    check("QuickGelu", [x], alpha=1.3)


def test_small_functions() -> None:
    check("Inverse", [real(2, 4, 4) + 4 * np.eye(4, dtype=np.float32)])
    check("Trilu", [real(2, 4, 5), Fixed(1, np.int64)], upper=0)
    check("ExpandDims", [real(2, 3), Fixed(-1, np.int32)])
    check("Pad", [real(2, 3), Fixed([0, 1, 2, 0], np.int64), Fixed(1.5, np.float32)])
    check("CDist", [real(4, 3), real(5, 3)], metric="euclidean")
    check("GatherND", [real(3, 4), Fixed([[0, 1], [2, 3]], np.int64)])
    check("UnfoldTensor", [real(2, 9)], dim=1, size=3, step=2)
    check("Range", [Fixed(1.0, np.float32), Fixed(4.0, np.float32), Fixed(0.5, np.float32)])


# -- normalisations ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("simplified", [False, True])
def test_skip_normalisation(simplified: bool, with_sum: bool) -> None:
    x, skip, gamma, beta, bias = real(2, 3, 8), real(2, 3, 8), real(8), real(8), real(8)
    outputs = [True, False, False, True] if with_sum else [True]
    name = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    check(name, [x, skip, gamma, bias] if simplified else [x, skip, gamma, beta, bias], outputs, epsilon=1e-5)
    check(name, [x, skip, gamma] if simplified else [x, skip, gamma, beta], outputs, epsilon=1e-5)


def test_skips_broadcast() -> None:
    check("SkipLayerNormalization", [real(2, 3, 8), real(1, 3, 8), real(8), real(8)], epsilon=1e-5)


@pytest.mark.parametrize("segments", [True, False])
def test_embeddings(segments: bool) -> None:
    ids = RNG.integers(0, 10, (2, 5)).astype(np.int32)
    mask = np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    kinds = [RNG.integers(0, 2, (2, 5)).astype(np.int32), real(2, 8)] if segments else [None, None]
    operands = [
        ids,
        kinds[0],
        Fixed(real(10, 8)),
        Fixed(real(7, 8)),
        None if not segments else Fixed(kinds[1]),
    ]
    check("EmbedLayerNormalization", [*operands, Fixed(real(8)), Fixed(real(8)), mask], 2)
    check("EmbedLayerNormalization", [*operands, Fixed(real(8)), Fixed(real(8))], [True, True, True])


# -- attention ---------------------------------------------------------------------------------------------

MASKS = {
    "none": None,
    "lengths": np.asarray([3, 5], np.int32),
    "ends and starts": np.asarray([5, 4, 1, 0], np.int32),
    "keys": np.asarray([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32),
    "queries and keys": RNG.integers(0, 2, (2, 5, 5)).astype(np.int32) | np.eye(5, dtype=np.int32),
}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS, ids=lambda m: m.replace(" ", "_"))
def test_self_attention(mask: str, causal: int) -> None:
    operands = [real(2, 5, 8), Fixed(real(8, 24)), Fixed(real(24)), MASKS[mask]]
    check("Attention", operands, num_heads=2, unidirectional=causal)


def test_self_attention_with_a_state() -> None:
    operands = [real(2, 1, 8), Fixed(real(8, 24)), Fixed(real(24)), None, real(2, 2, 2, 4, 4)]
    check("Attention", operands, 2, num_heads=2, unidirectional=1)


def test_self_attention_with_a_bias_of_scores_and_other_widths() -> None:
    operands = [real(2, 5, 8), Fixed(real(8, 28)), Fixed(real(28)), None, None, real(1, 2, 5, 5)]
    check("Attention", operands, num_heads=2, qkv_hidden_sizes=[8, 8, 12], scale=0.3)


def test_quantised_self_attention() -> None:
    operands = [levels("uint8", 2, 5, 8), Fixed(levels("int8", 8, 24)), Fixed(real(24))]
    scales = [
        Fixed(0.02, np.float32),
        Fixed(0.01, np.float32),
        MASKS["keys"],
        Fixed(127, np.uint8),
        Fixed(0, np.int8),
    ]
    check("QAttention", [*operands, *scales], num_heads=2, rtol=1e-3)


@pytest.mark.parametrize("form", ["apart", "bias", "cross", "state", "mask"])
def test_multi_head_attention(form: str) -> None:
    q, k, v = real(2, 3, 8), real(2, 5, 8), real(2, 5, 8)
    operands: list[Operand] = [q, k, v]
    outputs = 1
    attrs: dict[str, Any] = {"num_heads": 2}
    if form == "bias":
        operands = [q, k, v, Fixed(real(24))]
    elif form == "cross":
        operands = [q, real(2, 2, 5, 4), real(2, 2, 5, 4)]
    elif form == "state":
        operands = [
            q,
            real(2, 3, 8),
            real(2, 3, 8),
            None,
            None,
            real(1, 2, 3, 7),
            real(2, 2, 4, 4),
            real(2, 2, 4, 4),
        ]
        outputs = 3
    elif form == "mask":
        operands = [q, k, v, None, np.asarray([[1, 1, 0, 0, 1], [1, 1, 1, 1, 0]], np.int32)]
    check("MultiHeadAttention", operands, outputs, **attrs)


def test_packed_heads_are_the_heads_apart() -> None:
    q, k, v = (real(2, 5, 2, 4) for _ in range(3))
    flat = [x.reshape(2, 5, 8) for x in (q, k, v)]
    (wanted,), _ = both(model_of("MultiHeadAttention", flat, 1, num_heads=2), flat)
    for packed in (
        [np.stack([q, k, v], 3)],
        [flat[0], np.stack([k, v], 3)],
    ):  # ONNX Runtime has them on GPUs only
        model = model_of("MultiHeadAttention", packed, 1, num_heads=2)
        np.testing.assert_allclose(ge.compile(model)(*packed), wanted, rtol=1e-4, atol=1e-5)


def angles(length: int, half: int) -> tuple[Fixed, Fixed]:
    turn = np.outer(np.arange(length), 1 / 10 ** (np.arange(half) / half))
    return Fixed(np.cos(turn), np.float32), Fixed(np.sin(turn), np.float32)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embeddings(interleaved: int) -> None:
    cos, sin = angles(9, 2)
    positions = np.asarray([[0, 1, 2], [4, 5, 8]], np.int64)
    check("RotaryEmbedding", [real(2, 3, 8), positions, cos, sin], interleaved=interleaved)
    check("RotaryEmbedding", [real(2, 2, 3, 4), positions, cos, sin], interleaved=interleaved)
    check("RotaryEmbedding", [real(2, 3, 8), np.asarray([3], np.int64), cos, sin], interleaved=interleaved)
    partial = {"num_heads": 1, "rotary_embedding_dim": 4, "interleaved": interleaved}
    check("RotaryEmbedding", [real(2, 3, 8), positions, cos, sin], **partial)


@pytest.mark.parametrize(
    "options", [{}, {"local_window_size": 2}, {"softcap": 2.0}, {"do_rotary": 1}, {"scale": 0.2}]
)
@pytest.mark.parametrize("case", ["prompt", "step", "packed step", "shared length"])
def test_group_query_attention(case: str, options: dict[str, Any]) -> None:
    cos, sin = angles(16, 8)
    tables = [cos, sin] if options.get("do_rotary") else [None, None]
    attrs = {"num_heads": 4, "kv_num_heads": 2, **options}
    if case == "prompt":
        operands: list[Operand] = [real(2, 5, 64), real(2, 5, 32), real(2, 5, 32), None, None]
        operands += [np.asarray([4, 4], np.int32), Fixed(5, np.int32), *tables]
    else:
        past = 7 if case == "shared length" else 6
        q: list[Operand] = [real(2, 1, 64), real(2, 1, 32), real(2, 1, 32)]
        if case == "packed step":
            q = [real(2, 1, 128), None, None]
        operands = [*q, real(2, 2, past, 16), real(2, 2, past, 16)]
        operands += [np.asarray([6, 6], np.int32), Fixed(7, np.int32), *tables]
    check("GroupQueryAttention", operands, 3, **attrs)


def test_sequences_of_different_lengths_grow_where_they_end() -> None:
    operands: list[Operand] = [
        real(2, 1, 64),
        real(2, 1, 32),
        real(2, 1, 32),
        real(2, 2, 8, 16),
        real(2, 2, 8, 16),
    ]
    operands += [np.asarray([6, 3], np.int32), Fixed(7, np.int32)]
    model = model_of("GroupQueryAttention", operands, 3, num_heads=4, kv_num_heads=2)
    (y, k, v), (ours, our_k, our_v) = both(model, operands)
    np.testing.assert_allclose(ours, y, rtol=1e-4, atol=1e-5)
    for row, length in enumerate((7, 4)):  # what comes after is not defined
        np.testing.assert_allclose(our_k[row, :, :length], k[row, :, :length], rtol=1e-6)
        np.testing.assert_allclose(our_v[row, :, :length], v[row, :, :length], rtol=1e-6)


# -- quantised ---------------------------------------------------------------------------------------------


def scale_and_zero(dtype: str, scale: float = 0.05) -> list[Fixed]:
    return [Fixed(scale, np.float32), Fixed(3 if dtype == "int8" else 130, dtype)]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_functions_of_quantised_values(dtype: str) -> None:
    a, b = (
        [levels(dtype, 2, 3, 4), *scale_and_zero(dtype)],
        [levels(dtype, 3, 1), *scale_and_zero(dtype, 0.02)],
    )
    y = scale_and_zero(dtype, 0.07)
    check("QLinearAdd", [*a, *b, *y])
    check("QLinearMul", [*a, *b, *y])
    check("QLinearSigmoid", [*a, Fixed(1 / 256, np.float32), Fixed(-128 if dtype == "int8" else 0, dtype)])
    check("QLinearLeakyRelu", [*a, *y], alpha=0.1)
    check(
        "QLinearSoftmax",
        [*a, Fixed(1 / 256, np.float32), Fixed(-128 if dtype == "int8" else 0, dtype)],
        opset=13,
        axis=-1,
    )
    check("QLinearConcat", [*y, *a, levels(dtype, 2, 3, 2), *scale_and_zero(dtype, 0.1)], axis=2)
    check(
        "QLinearWhere",
        [np.asarray([True, False, True, True]), *a, levels(dtype, 2, 1, 4), *scale_and_zero(dtype, 0.1), *y],
    )


@pytest.mark.parametrize("last", [0, 1])
def test_quantised_averages(last: int) -> None:
    x = levels("uint8", 1, 4, 6, 6) if not last else levels("uint8", 1, 6, 6, 4)
    operands = [x, *scale_and_zero("uint8"), *scale_and_zero("uint8", 0.04)]
    check(
        "QLinearAveragePool",
        operands,
        kernel_shape=[3, 3],
        pads=[1, 1, 1, 1],
        strides=[2, 2],
        channels_last=last,
    )
    check("QLinearGlobalAveragePool", operands, channels_last=last)


@pytest.mark.parametrize("right", ["int8", "uint8"])
def test_integer_products(right: str) -> None:
    a, b = levels("uint8", 2, 3, 16), Fixed(levels(right, 16, 5))
    zeros = [Fixed(120, np.uint8), Fixed(4 if right == "int8" else 127, right)]
    scales = [Fixed(0.02, np.float32), Fixed(np.linspace(0.01, 0.03, 5), np.float32)]
    columns = Fixed(np.arange(5) + (0 if right == "int8" else 125), right)
    check("MatMulIntegerToFloat", [a, b, *scales, *zeros, Fixed(real(5))])
    check("MatMulIntegerToFloat", [a, b, *scales, zeros[0], columns])
    check("DynamicQuantizeMatMul", [real(2, 3, 16), b, scales[1], columns, Fixed(real(5))])
    flat = [levels("uint8", 3, 16), scales[0], zeros[0], b, scales[0], zeros[1]]
    check("QGemm", flat)
    c = Fixed(RNG.integers(-99, 99, 5), np.int32)
    check("QGemm", [*flat, c, Fixed(0.5, np.float32), Fixed(100, np.uint8)], alpha=0.5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", ["none", "packed"])
def test_weights_of_few_bits(bits: int, zeros: str) -> None:
    depth, columns, block = 40, 6, 16
    blocks = 3
    packed = levels("uint8", columns, blocks, block * bits // 8)
    operands: list[Operand] = [
        real(2, 3, depth),
        Fixed(packed),
        Fixed(real(columns, blocks, scale=0.1).reshape(-1)),
    ]
    if zeros == "packed":
        operands.append(Fixed(levels("uint8", columns * -(-blocks * bits // 8))))
    check("MatMulNBits", operands, K=depth, N=columns, block_size=block, bits=bits, rtol=1e-3)


@pytest.mark.parametrize("kind", [0, 1])
def test_weights_of_bitsandbytes(kind: int) -> None:
    operands = [real(3, 32), Fixed(levels("uint8", 32 * 6 // 2)), Fixed(np.abs(real(32 * 6 // 16)))]
    check("MatMulBnb4", operands, K=32, N=6, block_size=16, quant_type=kind, rtol=1e-3)


def test_quantised_tables() -> None:
    operands = [
        Fixed(levels("uint8", 6, 16)),
        np.asarray([[0, 5], [2, 2]], np.int64),
        Fixed(np.abs(real(6, 2))),
    ]
    check("GatherBlockQuantized", operands, block_size=16, quantize_axis=1, gather_axis=0, bits=4)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("middle", [False, True])
def test_quantised_tables_of_narrow_types(kind: str, axis: int, middle: bool) -> None:
    lowest, shape = -8 if kind == "int4" else 0, (20, 40)
    blocks = tuple(-(-size // 16) if i == axis else size for i, size in enumerate(shape))
    table, zeros = (
        RNG.integers(lowest, lowest + 16, s).astype(getattr(ml_dtypes, kind)) for s in (shape, blocks)
    )
    operands = [Fixed(table), np.asarray([[0, 5], [2, 2]], np.int64), Fixed(np.abs(real(*blocks)))]
    operands += [Fixed(zeros)] if middle else []
    check("GatherBlockQuantized", operands, block_size=16, quantize_axis=axis, gather_axis=1 - axis)


def test_an_lstm_with_weights_of_8_bits() -> None:
    x, w, r = real(3, 2, 8), Fixed(levels("int8", 1, 8, 16)), Fixed(levels("int8", 1, 4, 16))
    scales = [Fixed([0.004], np.float32), Fixed([0], np.int8)] * 2
    operands = [x, w, r, Fixed(real(1, 32)), None, None, None, None, *scales]
    check(
        "DynamicQuantizeLSTM", operands, 3, hidden_size=4, rtol=0.02
    )  # there x is rounded to 8 bits as well


# -- refusals ----------------------------------------------------------------------------------------------


def test_what_is_not_mapped_is_named_with_a_remedy() -> None:
    operands = [real(2, 3)]
    with pytest.raises(ge.GeError, match=r"com.microsoft.PagedAttention.*no kernel.*CPU provider"):
        ge.compile(model_of("PagedAttention", operands, 1))


def test_a_quantised_cache_is_refused_by_name() -> None:
    operands: list[Operand] = [
        real(1, 1, 8),
        real(1, 1, 8),
        real(1, 1, 8),
        real(1, 2, 4, 4),
        real(1, 2, 4, 4),
    ]
    operands += [Fixed([4], np.int32), Fixed(5, np.int32)]
    model = model_of(
        "GroupQueryAttention", operands, 3, num_heads=2, kv_num_heads=2, k_quant_type="PER_TENSOR"
    )
    with pytest.raises(ge.GeError, match="a quantised cache"):
        ge.compile(model)


# -- mixtures of experts -----------------------------------------------------------------------------------


def _fused(activation: str) -> int:
    return 2 if activation == "swiglu" else 1  # the gate is in fc1


@pytest.mark.parametrize("tokens", [1, 5, 150])  # expert by expert, then blocks of tokens
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("normalise", [0, 1])
def test_mixtures_of_experts(tokens: int, activation: str, normalise: int) -> None:
    hidden, inner, experts = 16, 24, 4
    rows = inner * _fused(activation)
    operands = [
        *(real(tokens, hidden), real(tokens, experts)),
        *(Fixed(real(experts, rows, hidden, scale=0.2)), Fixed(real(experts, rows))),
        *(Fixed(real(experts, hidden, inner, scale=0.2)), Fixed(real(experts, hidden))),
    ]
    attrs: dict[str, Any] = {
        "swiglu_fusion": 1,
        "activation_alpha": 1.7,
        "activation_beta": 1.0,
        "swiglu_limit": 0.5,
    }
    attrs = attrs if activation == "swiglu" else {}
    check("MoE", operands, k=2, activation_type=activation, normalize_routing_weights=normalise, **attrs)


def test_weights_of_experts_can_be_inputs() -> None:
    for tokens in (3, 90):
        operands = [real(1, tokens, 8), real(tokens, 3), real(3, 16, 8), None, real(3, 8, 16)]
        check("MoE", operands, k=1)


def test_gates_of_experts_in_a_layer_of_their_own_or_behind_the_first() -> None:
    """ONNX Runtime's CPU kernel has neither form: both equal the interleaved one, which it has."""
    tokens, hidden, inner, experts = 6, 8, 12, 3
    gate, linear = real(experts, inner, hidden), real(experts, inner, hidden)
    woven = np.stack([gate, linear], 2).reshape(experts, 2 * inner, hidden)
    x, router, last = real(tokens, hidden), real(tokens, experts), Fixed(real(experts, hidden, inner))
    forms: dict[int, list[Operand]] = {
        1: [x, router, Fixed(woven), None, last],
        2: [x, router, Fixed(np.concatenate([gate, linear], 1)), None, last],
        0: [x, router, Fixed(gate), None, last, None, Fixed(linear)],
    }
    found = {
        fusion: ge.compile(model_of("MoE", operands, 1, k=2, activation_type="swiglu", swiglu_fusion=fusion))(
            x, router
        )
        for fusion, operands in forms.items()
    }
    wanted, _ = both(model_of("MoE", forms[1], 1, k=2, activation_type="swiglu", swiglu_fusion=1), forms[1])
    for answer in found.values():
        np.testing.assert_allclose(answer, wanted[0], rtol=1e-5, atol=1e-5)


def mixture(
    x: np.ndarray, router: np.ndarray, weights: Sequence[np.ndarray], biases: Sequence[np.ndarray]
) -> np.ndarray:
    """Two experts a token with relu, in float64."""
    best = np.argsort(-router, axis=1, kind="stable")[:, :2]
    total = np.zeros_like(x, np.float64)
    for row, experts in enumerate(best):
        shares = np.exp(router[row, experts].astype(np.float64))
        for share, e in zip(shares / shares.sum(), experts, strict=True):
            inner = np.maximum(weights[0][e] @ x[row].astype(np.float64) + biases[0][e], 0)
            total[row] += share * (weights[1][e] @ inner + biases[1][e])
    return total


@pytest.mark.parametrize("tokens", [1, 6, 150])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_quantised_mixtures_of_experts(tokens: int, bits: int, block: int, asymmetric: bool) -> None:
    hidden, inner, experts = 64, 32, 4

    def levels_of(packed: np.ndarray, count: int) -> np.ndarray:
        parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
        return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)[..., :count].astype(np.float64)

    def layer(outputs: int, inputs: int) -> tuple[list[Fixed | None], np.ndarray]:
        groups = inputs // (block or inputs)
        shape = (experts, outputs, groups) if block else (experts, outputs)
        bytes_ = (experts, outputs, -(-groups * bits // 8)) if block else (experts, outputs * bits // 8)
        middles, packed = levels("uint8", *bytes_), levels("uint8", experts, outputs, inputs * bits // 8)
        scales = (RNG.random(shape) * 0.02 + 0.01).astype(np.float32)
        zero = levels_of(middles, shape[-1]) if asymmetric else np.full(shape, 1 << (bits - 1))
        grouped = levels_of(packed, inputs).reshape(experts, outputs, groups, -1)
        weight = (grouped - zero.reshape(experts, outputs, groups, 1)) * scales.reshape(
            experts, outputs, groups, 1
        )
        return [Fixed(packed), Fixed(scales), Fixed(middles) if asymmetric else None], weight.reshape(
            experts, outputs, inputs
        )

    ((w1, s1, z1), first), ((w2, s2, z2), second) = layer(inner, hidden), layer(hidden, inner)
    biases = real(experts, inner), real(experts, hidden)
    x, router = real(tokens, hidden), real(tokens, experts)
    operands = [x, router, w1, s1, Fixed(biases[0]), w2, s2, Fixed(biases[1]), None, None, None, z1, z2]
    attrs: dict[str, Any] = {"k": 2, "expert_weight_bits": bits, "normalize_routing_weights": 1}
    attrs |= {"block_size": block} if block else {}
    if bits == 8 and block:  # ONNX Runtime rounds the activations to 8 bits there
        found = ge.compile(model_of("QMoE", operands, 1, **attrs))(x, router)
    else:
        (theirs,), (found,) = both(model_of("QMoE", operands, 1, **attrs), operands)
        np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    wanted = mixture(x, router, (first, second), biases)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())


def test_refusals_of_mixtures_name_the_way_out() -> None:
    operands = [real(2, 8), real(2, 3), real(3, 16, 8), None, real(3, 8, 16)]
    with pytest.raises(ge.GeError, match="use relu, gelu, silu, swiglu or identity"):
        ge.compile(model_of("MoE", operands, 1, activation_type="tanh"))
    with pytest.raises(ge.GeError, match="plain routing"):
        ge.compile(model_of("MoE", operands, 1, use_sparse_mixer=1))


# -- linear attention --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 5, 40])  # unrolled, then a loop
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (2, 4)])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention(tokens: int, heads: int, groups: int, rule: str) -> None:
    keys = min(heads, groups)
    operands: list[Operand] = [
        *(real(2, tokens, heads * 8), real(2, tokens, keys * 8, scale=0.3), real(2, tokens, groups * 12)),
        real(2, groups, 8, 12),
        -np.abs(real(2, tokens, groups)) if "gated" in rule else None,
        np.abs(real(2, tokens, groups, scale=0.3)) if "delta" in rule else None,
    ]
    while operands[-1] is None:
        operands.pop()
    check("LinearAttention", operands, 2, q_num_heads=heads, kv_num_heads=groups, update_rule=rule)


def test_linear_attention_without_a_past_and_with_a_decay_for_every_key() -> None:
    decay, beta = -np.abs(real(1, 5, 16)), np.abs(real(1, 5, 1, scale=0.3))
    operands = [real(1, 5, 16), real(1, 5, 16, scale=0.3), real(1, 5, 24), None, decay, beta]
    check("LinearAttention", operands, 2, q_num_heads=2, kv_num_heads=2, scale=0.5)


def test_gates_and_norms_of_linear_attention() -> None:
    check("LinearAttentionGate", [real(1, 4, 3), real(3), real(3), real(1, 4, 3)], 2)
    check("LinearAttentionGate", [real(1, 4, 3), real(3), real(3)])
    for activation in ("silu", "swish", "sigmoid"):
        check("GatedRMSNorm", [real(2, 4, 24), real(8), real(2, 4, 24)], activation=activation, epsilon=1e-5)
    check("GatedAdd", [real(2, 4, 24), real(2, 4, 24), real(2, 4, 1)])


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolutions_with_a_state(dilation: int, activation: str) -> None:
    attrs: dict[str, Any] = {"activation": activation, "dilation": dilation}
    weight, bias, held = real(6, 1, 4), real(6), 3 * dilation
    check("CausalConvWithState", [real(2, 6, 9), weight, bias, real(2, 6, held)], 2, **attrs)
    check("CausalConvWithState", [real(2, 6, 1), weight, bias, real(2, 6, held)], 2, **attrs)
    check("CausalConvWithState", [real(2, 6, 9), weight], 2, **attrs)
    last = [real(2, 9, 2, 3), weight, bias, real(2, held, 2, 3)]
    check("CausalConvWithState", last, 2, channels_last=1, **attrs)


# -- operators under other names ---------------------------------------------------------------------------


def test_distinct_elements_keep_their_order() -> None:
    check("Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], 3)


@pytest.mark.parametrize("bias", [None, Fixed(real(4))])
def test_transposed_convolutions_whose_pads_are_an_operand(bias: Operand) -> None:
    operands = [real(1, 3, 5, 4), Fixed(real(3, 4, 3, 3)), Fixed([1, 0, 2, 1], np.int64), bias]
    check("ConvTransposeWithDynamicPads", operands, strides=[2, 1])


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_crops_of_images(mode: str) -> None:
    boxes = np.array([[0, 0, 1, 1], [0.1, 0.8, 0.75, 0.2], [-0.5, 0.2, 1.3, 0.9]], np.float32)
    operands = [real(2, 3, 6, 5), boxes, np.array([0, 1, 1], np.int32), Fixed([4, 3], np.int32)]
    check("CropAndResize", operands, mode=mode, extrapolation_value=0.5)
