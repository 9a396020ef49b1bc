"""Products, convolutions, pooling and recurrent layers against PyTorch; their tasks and their expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tbe
from ge.compiler import compile_graph
from ge.ir.types import numpy_dtype
from ge.ops.base import NodeView, lookup
from ge.ops.interpret import interpret
from tests.ops.op_support import check, folded, graph_of, task_of

RNG = np.random.default_rng(11)
F = torch.nn.functional


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def by_expression(type_: str, arrays: list[np.ndarray], **attrs: Any) -> np.ndarray:
    """The operator by its tensor expression, as the vector engine would run it."""
    node = graph_of(type_, arrays, **attrs).outputs[0].producer()
    places, outputs = lookup(type_).expression(NodeView.of(node))
    return tbe.evaluate(outputs, dict(zip(places, arrays, strict=True)))[0]


@settings(max_examples=12, deadline=None)
@given(
    rank=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    low=st.integers(0, 2),
    high=st.integers(0, 2),
    last=st.booleans(),
)
def test_convolution_in_all_layouts(
    rank: int, groups: int, stride: int, dilation: int, low: int, high: int, last: bool
) -> None:
    x, w, bias = real(2, 4, *[7] * rank), real(6, 4 // groups, *[2] * rank), real(6)
    padded = F.pad(torch.from_numpy(x), [low, high] * rank)
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    wanted = function(
        padded, torch.from_numpy(w), torch.from_numpy(bias), stride, 0, dilation, groups
    ).numpy()
    attrs: dict[str, Any] = {
        "strides": [stride] * rank,
        "dilations": [dilation] * rank,
        "pads_begin": [low] * rank,
        "pads_end": [high] * rank,
        "groups": groups,
    }
    if last:
        x, wanted = np.moveaxis(x, 1, -1).copy(), np.moveaxis(wanted, 1, -1)
        w = w.transpose(*range(2, 2 + rank), 1, 0).copy()
        attrs |= {"data_format": "channels_last", "weight_format": "IO"}
    (found,) = folded("Conv", [x, w, bias], **attrs)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)
    np.testing.assert_allclose(by_expression("Conv", [x, w, bias], **attrs), wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("last", [False, True])
def test_compiled_convolution(last: bool) -> None:
    x, w, bias = real(2, 8, 9, 9), real(16, 8, 3, 3), real(16)
    t = [torch.from_numpy(v) for v in (x, w, bias)]
    wanted = F.conv2d(*t, stride=2, padding=1).numpy()
    attrs: dict[str, Any] = {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}
    if last:
        x, w, wanted = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), wanted.transpose(0, 2, 3, 1)
        attrs |= {"data_format": "channels_last", "weight_format": "IO"}
    check("Conv", [x.copy(), w.copy(), bias], wanted, rtol=1e-4, atol=1e-4, **attrs)


@pytest.mark.parametrize(("stride", "padding", "extra", "groups"), [(1, 0, 0, 1), (2, 1, 1, 2), (3, 0, 2, 1)])
def test_transposed_convolution(stride: int, padding: int, extra: int, groups: int) -> None:
    x, w, bias = real(1, 4, 5, 6), real(4, 6 // groups, 3, 3), real(6)
    t = [torch.from_numpy(v) for v in (x, w, bias)]
    wanted = F.conv_transpose2d(*t, stride, padding, extra, groups).numpy()
    attrs: dict[str, Any] = {
        "strides": [stride] * 2,
        "pads_begin": [padding] * 2,
        "pads_end": [padding] * 2,
        "output_padding": [extra] * 2,
        "groups": groups,
    }
    check("ConvTranspose", [x, w, bias], wanted, rtol=1e-4, atol=1e-4, **attrs)
    np.testing.assert_allclose(by_expression("ConvTranspose", [x, w, bias], **attrs), wanted, 1e-4, 1e-4)


def test_rows_beyond_the_last_window_hold_the_bias() -> None:
    x, w, bias = real(1, 2, 3), real(2, 2, 2), real(2)
    graph = graph_of("ConvTranspose", [x, w, bias], strides=[2], output_shape=[11])
    (found,) = interpret(graph, [x, w, bias])
    np.testing.assert_allclose(found[0, :, 6:], np.broadcast_to(bias[:, None], (2, 5)))


@pytest.mark.parametrize("type_", ["MaxPool", "AvgPool"])
def test_pooling_leaves_borders_out(type_: str) -> None:
    x = real(2, 3, 8, 7)
    t = torch.from_numpy(x)
    wanted = (
        F.max_pool2d(t, 3, 2, 1) if type_ == "MaxPool" else F.avg_pool2d(t, 3, 2, 1, count_include_pad=False)
    ).numpy()
    attrs: dict[str, Any] = {"kernel": [3, 3], "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}
    check(type_, [x], wanted, atol=1e-5, **attrs)
    np.testing.assert_allclose(by_expression(type_, [x], **attrs), wanted, 1e-5, 1e-5)


def test_pooling_tells_where_the_maximum_was() -> None:
    x = real(2, 3, 8, 7)
    wanted = F.max_pool2d(torch.from_numpy(x), (3, 2), (2, 1), (1, 1), return_indices=True)
    attrs: dict[str, Any] = {"kernel": [3, 2], "strides": [2, 1], "pads_begin": [1, 1], "pads_end": [1, 1]}
    check("MaxPoolIndices", [x], [v.numpy() for v in wanted], **attrs)


@settings(max_examples=12, deadline=None)
@given(
    batch=st.sampled_from([((), ()), ((3,), ()), ((2, 1), (3,)), ((2,), (2,))]),
    ta=st.booleans(),
    tb=st.booleans(),
    biased=st.booleans(),
)
def test_matrix_products_broadcast_and_transpose(batch: Any, ta: bool, tb: bool, biased: bool) -> None:
    a = real(*batch[0], *((5, 4) if ta else (4, 5)))
    b = real(*batch[1], *((6, 5) if tb else (5, 6)))
    bias = real(6) if biased else None
    wanted = np.matmul(np.swapaxes(a, -1, -2) if ta else a, np.swapaxes(b, -1, -2) if tb else b)
    wanted = wanted if bias is None else wanted + bias
    (found,) = folded("MatMul", [a, b, bias], transpose_a=ta, transpose_b=tb)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)
    arrays = [v for v in (a, b, bias) if v is not None]
    found = by_expression("MatMul", arrays, transpose_a=ta, transpose_b=tb)
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16"])
def test_products_of_other_types_run_too(dtype: str) -> None:
    a, b = (RNG.integers(-4, 5, s).astype(dtype) for s in ((4, 5), (5, 3)))
    check("MatMul", [a, b], a @ b)


def test_a_stack_of_products_with_one_matrix_is_one_product() -> None:
    task = task_of("MatMul", [(2, 3, 4), (4, 5), (5,)])
    assert [v.shape for v in task.inputs] == [(6, 4), (4, 5), (1, 5)]
    assert task.outputs[0].shape == (6, 5)
    assert task.attrs["has_bias"]


def test_a_channels_last_convolution_is_handed_over_by_strides() -> None:
    attrs: dict[str, Any] = {"data_format": "channels_last", "weight_format": "IO"}
    task = task_of("Conv", [(1, 8, 8, 3), (3, 3, 3, 16)], **attrs)
    x, w = task.inputs
    assert x.shape == (1, 3, 8, 8) and x.strides == (192, 1, 24, 3)
    assert w.shape == (16, 3, 3, 3) and w.strides[:2] == (1, 16)
    assert task.outputs[0].shape == (1, 16, 6, 6)


def _torch_weights(layer: Any, gates: int, order: list[int], hidden: int) -> list[np.ndarray]:
    """PyTorch's weights (G * H, I) of each direction as the library's (D, I, G, H), and the biases."""
    parts: dict[str, list[np.ndarray]] = {"w": [], "r": [], "b": []}
    for suffix in ["", "_reverse"] if layer.bidirectional else [""]:
        for key, name in (("w", "weight_ih_l0"), ("r", "weight_hh_l0")):
            value = getattr(layer, name + suffix).detach().numpy()
            parts[key].append(value.reshape(gates, hidden, -1)[order].transpose(2, 0, 1))
        names = [f"{n}_l0{suffix}" for n in ("bias_ih", "bias_hh")]
        both = [getattr(layer, n).detach().numpy().reshape(gates, hidden)[order] for n in names]
        parts["b"].append(
            np.stack([*(both[0] + both[1])[:2], both[0][2], both[1][2]]) if gates == 3 else sum(both)
        )
    return [np.stack(parts[k]).astype(np.float32) for k in "wrb"]


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("type_", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_give_what_torch_gives(type_: str, direction: str) -> None:
    gates, order = {"LSTM": (4, [0, 1, 2, 3]), "GRU": (3, [1, 0, 2]), "RNN": (1, [0])}[type_]
    torch.manual_seed(0)
    layer = getattr(torch.nn, type_)(5, 6, bidirectional=direction == "bidirectional")
    x, d = real(7, 3, 5), 2 if direction == "bidirectional" else 1
    states = [real(d, 3, 6) for _ in range(2 if type_ == "LSTM" else 1)]
    given = tuple(torch.from_numpy(s) for s in states)
    with torch.no_grad():
        y, last = layer(torch.from_numpy(x), given if type_ == "LSTM" else given[0])
    wanted = [y.numpy(), *(v.numpy() for v in (last if type_ == "LSTM" else [last]))]
    attrs: dict[str, Any] = {"direction": direction}
    if type_ == "GRU":
        attrs["linear_before_reset"] = True
    arrays = [x, *_torch_weights(layer, gates, order, 6), *states]
    check(type_, arrays, wanted, rtol=1e-4, atol=1e-5, **attrs)


def test_recurrent_layers_in_double_precision_go_step_by_step() -> None:
    arrays = [
        a.astype(np.float64) for a in (real(10, 2, 3), real(1, 3, 4, 5), real(1, 5, 4, 5), real(1, 4, 5))
    ]
    states = [np.zeros((1, 2, 5)), np.zeros((1, 2, 5))]
    wide = interpret(graph_of("LSTM", [*arrays, *states]), [*arrays, *states])
    narrow = [a.astype(np.float32) for a in (*arrays, *states)]
    for found, wanted in zip(wide, interpret(graph_of("LSTM", narrow), narrow), strict=True):
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-5)


def test_integer_products_are_exact() -> None:
    x = RNG.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8)
    w = RNG.integers(-128, 128, (5, 4, 3, 3)).astype(np.int8)
    wanted = F.conv2d(
        torch.from_numpy(x.astype(np.float64) - 7), torch.from_numpy(w.astype(np.float64)), padding=1
    )
    check("QConv", [x, w], wanted.numpy(), src_zero_point=7, pads_begin=[1, 1], pads_end=[1, 1])
    a, b = x.reshape(4, 36), RNG.integers(-128, 128, (36, 5)).astype(np.int8)
    check("QMatMul", [a, b], a.astype(np.int64) @ b.astype(np.int64))


OTHER_TYPES: list[tuple[str, list[tuple[int, ...]], dict[str, Any]]] = [
    ("LSTM", [(10, 2, 3), (1, 3, 4, 5), (1, 5, 4, 5), (1, 4, 5), (1, 2, 5), (1, 2, 5)], {}),
    ("GRU", [(10, 2, 3), (1, 3, 3, 5), (1, 5, 3, 5), (1, 3, 5), (1, 2, 5)], {}),
    ("Conv", [(1, 4, 6, 6), (8, 4, 3, 3), (8,)], {}),
    ("ConvTranspose", [(1, 4, 6, 6), (4, 8, 3, 3), (8,)], {"strides": [2, 2]}),
    ("MaxPool", [(1, 4, 6, 6)], {"kernel": [3, 3]}),
    ("AvgPool", [(1, 4, 6, 6)], {"kernel": [3, 3], "pads_begin": [1, 1], "pads_end": [1, 1]}),
    ("Lrn", [(1, 8, 6, 6)], {"size": 5}),
    ("GridSample", [(1, 2, 5, 5), (1, 3, 3, 2)], {}),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("type_", "shapes", "attrs"), OTHER_TYPES, ids=[t for t, _, _ in OTHER_TYPES])
def test_every_float_type_is_compiled(
    type_: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], dtype: str
) -> None:
    arrays = [(RNG.standard_normal(s) * 0.5).astype(numpy_dtype(dtype)) for s in shapes]
    graph = graph_of(type_, arrays, **attrs)
    rtol = {"bfloat16": 2**-6, "float16": 2**-9, "float64": 1e-12}[dtype]
    for found, want in zip(compile_graph(graph).run(arrays), interpret(graph, arrays), strict=True):
        assert found.dtype == want.dtype
        np.testing.assert_allclose(found.astype(np.float64), want.astype(np.float64), rtol, rtol)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("channels", "results", "groups", "kernel"),
    [(2, 4, 2, 3), (6, 6, 2, 1), (3, 8, 1, 1), (3, 8, 1, 3), (5, 16, 1, 3), (4, 4, 4, 3), (8, 8, 2, 3)],
)
def test_infinity_stays_in_its_window(
    dtype: str, channels: int, results: int, groups: int, kernel: int
) -> None:
    """oneDNN's convolutions of bfloat16 multiply a neighbour of an odd number of channels with zero."""
    rng = np.random.default_rng(0)
    kind = numpy_dtype(dtype)
    x = rng.standard_normal((2, channels, 5, 6)).astype(kind)
    w = rng.standard_normal((results, channels // groups, kernel, kernel)).astype(kind)
    x[0, 0, 2, 3] = np.inf
    ends = {"pads_begin": [kernel // 2] * 2, "pads_end": [kernel // 2] * 2}
    (y,) = compile_graph(graph_of("Conv", [x, w], groups=groups, **ends)).run([x, w])
    spread = ~np.isfinite(y.astype(np.float32))
    reached = np.zeros(y.shape, bool)
    near = kernel // 2
    reached[0, : results // groups, 2 - near : 3 + near, 3 - near : 4 + near] = True
    np.testing.assert_array_equal(spread, reached)
