"""Vector operators against NumPy and PyTorch, interpreted and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ge
from ge.errors import GeError
from ge.ops.builder import GraphBuilder
from ge.ops.image.resize import resize_gradient
from ge.ops.interpret import interpret
from ge.ops.tensor import movement
from ge.passes.cleanup import merge_movements
from tests.ops.op_support import check, folded, graph_of

RNG = np.random.default_rng(7)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def torch_of(function: Any) -> Any:
    return lambda *a: function(*(torch.from_numpy(x) for x in a)).numpy()


F = torch.nn.functional
ACTIVATIONS = [
    ("LeakyRelu", {"alpha": 0.1}, lambda x: F.leaky_relu(x, 0.1)),
    ("Elu", {"alpha": 1.5}, lambda x: F.elu(x, 1.5)),
    ("Selu", {}, F.selu),
    ("Celu", {"alpha": 2.0}, lambda x: F.celu(x, 2.0)),
    ("Gelu", {}, F.gelu),
    ("Gelu", {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh")),
    ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}, F.hardsigmoid),
    ("HardSwish", {}, F.hardswish),
    ("Mish", {}, F.mish),
    ("Swish", {}, F.silu),
    ("Softsign", {}, F.softsign),
    ("Softplus", {}, F.softplus),
    ("Clip", {"min": -0.5, "max": 0.25}, lambda x: x.clip(-0.5, 0.25)),
]


@pytest.mark.parametrize(("type_", "attrs", "function"), ACTIVATIONS)
def test_activation_gives_what_torch_gives(type_: str, attrs: dict[str, Any], function: Any) -> None:
    x = real(3, 37) * 3
    check(type_, [x], torch_of(function)(x), atol=2e-6, **attrs)


@pytest.mark.parametrize(
    ("type_", "function", "dtype"),
    [
        ("Add", np.add, "float32"),
        ("Div", np.divide, "float32"),
        ("Mod", np.mod, "int32"),
        ("FMod", np.fmod, "float32"),
        ("Maximum", np.maximum, "float64"),
        ("Atan2", np.arctan2, "float32"),
        ("Equal", np.equal, "int64"),
        ("LessEqual", np.less_equal, "float32"),
        ("BitwiseXor", np.bitwise_xor, "uint8"),
        ("ShiftLeft", np.left_shift, "uint32"),
    ],
)
def test_binary_operators_broadcast(type_: str, function: Any, dtype: str) -> None:
    a = (RNG.random((4, 1, 5)) * 9 + 1).astype(dtype)
    b = (RNG.random((3, 1)) * 4 + 1).astype(dtype)
    check(type_, [a, b], function(a, b))


@settings(max_examples=15, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    keepdims=st.booleans(),
    data=st.data(),
)
def test_reductions_fold_over_any_axes(shape: list[int], keepdims: bool, data: Any) -> None:
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True, min_size=1))
    x = real(*shape)
    for type_, function in (("ReduceSum", np.sum), ("ReduceMax", np.max), ("ReduceMean", np.mean)):
        (found,) = folded(type_, [x], axes=axes, keepdims=keepdims)
        np.testing.assert_allclose(
            found, function(x, axis=tuple(axes), keepdims=keepdims), rtol=1e-5, atol=1e-6
        )


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1, 6),
    low=st.integers(0, 14),
    high=st.integers(0, 14),
    mode=st.sampled_from(["edge", "symmetric", "wrap", "reflect"]),
)
def test_borders_are_numpys_for_any_width(size: int, low: int, high: int, mode: str) -> None:
    x = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
    (found,) = folded("Pad", [x], mode=mode, low=[low, 0], high=[high, 0])
    np.testing.assert_array_equal(found, np.pad(x, [(low, high), (0, 0)], mode))


def test_normalisations_give_what_torch_gives() -> None:
    x, scale, bias = real(2, 6, 5, 4), real(6), real(6)
    t = [torch.from_numpy(v) for v in (x, scale, bias)]
    check("GroupNorm", [x, scale, bias], F.group_norm(t[0], 3, t[1], t[2]).numpy(), groups=3, atol=1e-5)
    check("InstanceNorm", [x, scale, bias], F.instance_norm(t[0], weight=t[1], bias=t[2]).numpy(), atol=1e-5)
    width = real(4)
    wanted = F.layer_norm(t[0], (4,), torch.from_numpy(width)).numpy()
    check("LayerNorm", [x, width], wanted, axes=[-1], atol=1e-5)
    check("Softmax", [x], F.softmax(t[0], 1).numpy(), axes=[1])
    mean, var = real(6), np.abs(real(6)) + 0.1
    stats = [torch.from_numpy(v) for v in (mean, var)]
    wanted = F.batch_norm(t[0], *stats, t[1], t[2]).numpy()
    check("BatchNorm", [x, scale, bias, mean, var], wanted, atol=1e-5)


def test_movements_give_what_numpy_gives() -> None:
    x = real(3, 4, 5)
    check("Transpose", [x], x.transpose(2, 0, 1), perm=[2, 0, 1])
    check("Slice", [x], x[::-1, 1:3, ::2], starts=[2, 1, 0], ends=[-1, 3, 5], steps=[-1, 1, 2])
    check("Tile", [x], np.tile(x, (2, 1, 3)), repeats=[2, 1, 3])
    check("Roll", [x], np.roll(x, (2, -1), (0, 2)), shifts=[2, -1], axes=[0, 2])
    check("Split", [x], np.split(x, [1], axis=1), axis=1, sizes=[1, 3])
    check("Concat", [x, x * 2], np.concatenate([x, x * 2], 2), axis=2)
    check("Trilu", [x], np.tril(x, 1), upper=False, k=1)


def test_gathers_count_negative_indices_from_the_end() -> None:
    x = real(4, 5)
    check("Gather", [x, np.array([[0, -1], [2, 1]])], x[[[0, -1], [2, 1]]], axis=0)
    where = np.array([[0, -1, 2], [4, 3, -5]])
    check("GatherElements", [x[:2], where], np.take_along_axis(x[:2], where % 5, 1), axis=1)
    check("GatherNd", [x, np.array([[0, 1], [-1, -2]])], np.array([x[0, 1], x[-1, -2]]))


def test_scatter_combines_at_repeated_places() -> None:
    x, updates = real(5, 3), real(4, 3)
    where = np.array([[0], [2], [0], [-1]])
    wanted = x.copy()
    np.add.at(wanted, where[:, 0], updates)
    check("ScatterNd", [x, where, updates], wanted, reduction="add")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_gives_what_torch_gives(mode: str) -> None:
    x = real(1, 2, 7, 8)
    names = {"nearest": "nearest-exact", "linear": "bilinear", "cubic": "bicubic"}
    wanted = F.interpolate(torch.from_numpy(x), size=(5, 13), mode=names[mode]).numpy()
    rounding = "round_prefer_ceil"
    check("Resize", [x], wanted, axes=[2, 3], sizes=[5, 13], mode=mode, rounding=rounding, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_the_gradient_of_resize_is_that_of_torch(mode: str) -> None:
    x = torch.from_numpy(real(1, 2, 7, 8)).requires_grad_()
    names = {"nearest": "nearest-exact", "linear": "bilinear", "cubic": "bicubic"}
    incoming = real(1, 2, 5, 13)
    F.interpolate(x, size=(5, 13), mode=names[mode]).backward(torch.from_numpy(incoming))
    (found,) = interpret(_resize_gradient(mode, incoming.shape), [incoming])
    assert x.grad is not None
    np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-4, atol=1e-5)


def test_nan_in_a_gradient_of_resize_reaches_its_own_pixels_only() -> None:
    incoming = np.zeros((1, 1, 5, 13), np.float32)
    incoming[0, 0, 2, 6] = np.nan
    (found,) = interpret(_resize_gradient("linear", incoming.shape), [incoming])
    assert 1 <= np.isnan(found).sum() <= 4


def _resize_gradient(mode: str, shape: tuple[int, ...]) -> Any:
    builder = GraphBuilder("gradient")
    rounding = {"rounding": "round_prefer_ceil"} if mode == "nearest" else {}
    g = builder.input("g", shape, "float32")
    builder.output(resize_gradient(builder, g, {2: 7, 3: 8}, mode=mode, **rounding), "dx")
    return builder.graph


EQUATIONS = ["ij,jk->ik", "bij,bjk->bik", "ii->i", "ii", "i,j->ij", "bij->bji", "abc,cd,be->ade", "...i->..."]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_gives_what_numpy_gives(equation: str) -> None:
    terms = equation.split("->")[0].replace("...", "xy").split(",")
    arrays = [real(*(3 if c != "y" else 2 for c in term)) for term in terms]
    (found,) = interpret(graph_of("Einsum", arrays, equation=equation), arrays)
    np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-5)


def test_sorting_is_stable_and_any_axis() -> None:
    x = RNG.integers(0, 4, (5, 6)).astype(np.float32)
    order = np.argsort(-x, axis=0, kind="stable")[:3]
    check("TopK", [x], [np.take_along_axis(x, order, 0), order], k=3, axis=0)
    check("Sort", [x], np.sort(x, axis=1), axis=1)


def test_quantisation_rounds_half_to_even_and_saturates() -> None:
    x = np.array([-300, -0.5, 0.5, 1.5, 2.5, 300], np.float32)
    scale, zero = np.float32(1).reshape(()), np.uint8(3).reshape(())
    check("Quantize", [x, scale, zero], np.array([0, 3, 3, 5, 5, 255]), dtype="uint8")


def test_a_tensor_without_elements_is_a_constant() -> None:
    x = np.zeros((0, 3), np.float32)
    graph = graph_of("ReduceSum", [x], axes=[0])
    np.testing.assert_array_equal(interpret(graph, [x])[0], np.zeros(3))


@pytest.mark.parametrize(
    ("type_", "shapes", "attrs", "words"),
    [
        ("Reshape", [(2, 3)], {"shape": [4]}, "6 against 4"),
        ("Transpose", [(2, 3)], {"perm": [0, 0]}, "does not permute"),
        ("ReduceSum", [(2, 3)], {"axes": [2]}, "out of range"),
        ("Conv", [(1, 4, 5, 5), (8, 3, 3, 3)], {}, "4 channels"),
        ("MatMul", [(2, 3), (4, 5)], {}, "3 columns against 4 rows"),
        ("Add", [(2, 3), (4,)], {}, "broadcast"),
        ("MaxPool", [(1, 1, 2, 2)], {"kernel": [3, 3]}, "larger than the space"),
        ("GroupNorm", [(1, 5, 2), (5,), (5,)], {"groups": 2}, "do not divide"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    type_: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], words: str
) -> None:
    with pytest.raises(GeError, match=words) as caught:
        graph_of(type_, [np.zeros(s, np.float32) for s in shapes], **attrs)
    assert caught.value.operator == type_


@pytest.mark.parametrize(
    ("x", "y", "dtype"), [(2.5, -1e4, "float32"), (3, -7, "int64"), (True, False, "bool")]
)
def test_numbers_beside_a_condition_keep_their_own_type(x: Any, y: Any, dtype: str) -> None:
    b = GraphBuilder("net")
    b.output(b.op("Select", b.input("c", (2,), "bool"), x, y))
    (found,) = interpret(b.graph, [np.asarray([True, False])])
    assert found.dtype == dtype and list(found) == [x, y]


@pytest.mark.parametrize("count", [11, pytest.param(1300, marks=pytest.mark.slow)])
def test_more_inputs_than_one_kernel_joins_are_joined_in_groups(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if count < movement.MAX_JOINED:
        monkeypatch.setattr(movement, "MAX_JOINED", 4)
        monkeypatch.setattr(merge_movements, "MAX_JOINED", 4)
    parts = [np.full((2, 1 + i % 3), i, np.float32) for i in range(count)]
    g = ge.Graph("join")
    inputs = [g.input(f"x{i}", part.shape, "float32") for i, part in enumerate(parts)]
    g.output(g.op("Concat", *inputs, axis=1))
    np.testing.assert_array_equal(ge.compile(g).run(parts)[0], np.concatenate(parts, 1))
