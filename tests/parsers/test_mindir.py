"""MINDIR models: what the compiled graph gives is what the primitives mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ge
from ge import atc
from ge.compiler import compile_graph
from ge.errors import GeError, UnsupportedOperatorsError
from ge.ops.interpret import interpret
from ge.parsers.mindir.node import primitives
from ge.parsers.mindir.parser import Parsed, parse_model
from tests.support.mindir_models import MindirModel, Name

RANDOM = np.random.default_rng(5)
F = "float32"


def real(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def one_op(type_: str, arguments: list[Any], form: Any, **attrs: Any) -> list[np.ndarray]:
    """The result of one primitive; arrays are inputs of the graph."""
    model, arrays = MindirModel(), []
    names = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            arrays.append(argument)
            argument = model.main.input(f"x{len(arrays)}", argument.shape, argument.dtype.name)
        names.append(argument)
    model.main.output(model.main.op(type_, *names, form=form, **attrs))
    return interpret(parse_model(model.bytes()).graph, arrays)


X, Y, P = real(3, 4), real(3, 4), np.abs(real(3, 4)) + 0.5
IMAGE = real(2, 3, 6, 6)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


ONE: dict[str, tuple[list[Any], Any, dict[str, Any]]] = {
    "Exp": ([X], np.exp(X), {}),
    "ReLU": ([X], np.maximum(X, 0), {}),
    "Rsqrt": ([P], 1 / np.sqrt(P), {}),
    "LogicalNot": ([X > 0], ~(X > 0), {}),
    "Add": ([X, Y], X + Y, {}),
    "Muls": ([X, 3], X * 3, {}),
    "RealDiv": ([X, P], X / P, {}),
    "Less": ([X, Y], X < Y, {}),
    "EqScalar": ([np.arange(4, dtype=np.int32), 2], np.arange(4) == 2, {}),
    "Maximum": ([X, Y], np.maximum(X, Y), {}),
    "FloorMod": ([X, P], np.mod(X, P), {}),
    "Pow": ([P, Y], P**Y, {}),
    "SquaredDifference": ([X, Y], (X - Y) ** 2, {}),
    "ReduceSum": ([X, (1,), True, False], X.sum(1, keepdims=True), {}),
    "ReduceMean": ([X, (), False], X.mean(), {}),
    "SumExt": ([X, None, False, None], X.sum(), {}),
    "Argmax": ([X, 1, 34], X.argmax(1).astype(np.int32), {}),
    "CumSum": ([X, 1, False, False], X.cumsum(1), {}),
    "Softmax": ([X, (-1,)], np.exp(X) / np.exp(X).sum(1, keepdims=True), {}),
    "MatMul": ([X, Y, False, True], X @ Y.T, {}),
    "Dense": ([X, Y, None], X @ Y.T, {}),
    "BiasAdd": ([IMAGE, X[:, 0].copy(), 0], IMAGE + X[:, 0].reshape(1, 3, 1, 1), {}),
    "BiasAddGrad": ([IMAGE, 0], IMAGE.sum((0, 2, 3)), {}),
    "Reshape": ([X, (4, 3)], X.reshape(4, 3), {}),
    "Transpose": ([X, (1, 0)], X.T, {}),
    "Cast": ([X, 34], X.astype(np.int32), {}),
    "Tile": ([X, (2, 1)], np.tile(X, (2, 1)), {}),
    "StridedSlice": ([X, (0, 1), (3, 3), (2, 1), 0, 0, 0, 0, 0], X[0:3:2, 1:3], {}),
    "Slice": ([X, (1, 1), (2, 2)], X[1:3, 1:3], {}),
    "ReverseV2": ([X, (1,)], X[:, ::-1], {}),
    "Select": ([X > 0, X, Y], np.where(X > 0, X, Y), {}),
    "MaskedFill": ([X, X > 0, 7.0], np.where(X > 0, 7, X).astype(np.float32), {}),
    "Gather": ([X, np.array([2, 0], np.int32), 0, 0], X[[2, 0]], {}),
    "GatherD": (
        [X, 1, np.array([[1], [0], [3]], np.int32)],
        np.take_along_axis(X, np.array([[1], [0], [3]]), 1),
        {},
    ),
    "OneHot": ([np.array([1, 0], np.int32), 3, 1.0, 0.0, -1], np.eye(3, dtype=np.float32)[[1, 0]], {}),
    "ReluGrad": ([X, Y], X * (Y > 0), {}),
    "SigmoidGrad": ([P, X], X * P * (1 - P), {}),
    "SqrtGrad": ([P, X], X / 2 / P, {}),
    "RsqrtGrad": ([P, X], -X / 2 * P**3, {}),
    "InvGrad": ([P, X], -X * P**2, {}),
    "AbsGrad": ([X, Y], Y * np.sign(X), {}),
    "ACosGrad": ([P / 8, X], -X / np.sqrt(1 - P**2 / 64), {}),
    "AtanGrad": ([X, Y], Y / (1 + X**2), {}),
    "HSwishGrad": ([Y, 2 * X], Y * np.where(np.abs(2 * X) < 3, 2 * X / 3 + 0.5, X > 0), {}),
    "SiLU": ([X], X * sigmoid(X), {}),
    "SoftmaxBackward": ([X, Y, -1], Y * (X - (X * Y).sum(1, keepdims=True)), {}),
    "LogSoftmaxGrad": ([Y, X], X - np.exp(Y) * X.sum(1, keepdims=True), {}),
    "MSELossExt": ([X, Y, 1], np.mean((X - Y) ** 2), {}),
    "BCEWithLogitsLoss": ([X, P, None, None, 1], np.mean((1 - P) * X + np.log1p(np.exp(-X))), {}),
    "AvgPool": (
        [IMAGE, (2, 2), (2, 2), 2, 0],
        IMAGE.reshape(2, 3, 3, 2, 3, 2).mean((3, 5)),
        {},
    ),
    "MaxPool": (
        [IMAGE],
        IMAGE.reshape(2, 3, 3, 2, 3, 2).max((3, 5)),
        {"kernel_size": (1, 1, 2, 2), "strides": (1, 1, 2, 2), "pad_mode": "VALID", "format": "NCHW"},
    ),
}


@pytest.mark.parametrize("name", list(ONE))
def test_a_primitive_computes_what_it_means(name: str) -> None:
    arguments, wanted, attrs = ONE[name]
    wanted = np.asarray(wanted)
    (found,) = one_op(name, arguments, (wanted.shape, wanted.dtype.name), **attrs)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_a_batch_normalisation(training: bool) -> None:
    dy, x, scale = real(4, 3, 2, 2), real(4, 3, 2, 2), real(3)
    column = lambda v: v.reshape(1, 3, 1, 1)  # noqa: E731
    axes = (0, 2, 3)
    mean, variance = (x.mean(axes), x.var(axes)) if training else (real(3), np.abs(real(3)) + 1)
    normal = (x - column(mean)) / np.sqrt(column(variance) + 1e-5)
    by_scale, total = (dy * normal).sum(axes), dy.sum(axes)
    centred = dy - column(total) / 16 - normal * column(by_scale) / 16 if training else dy
    by_x = centred * column(scale / np.sqrt(variance + 1e-5))
    forms = [(x.shape, F), ((3,), F), ((3,), F)]
    arguments = [dy, x, scale, mean, variance, np.zeros(0, np.float32), training, 1e-5]
    found = one_op("BatchNormGrad", arguments, forms)
    for mine, wanted in zip(found, (by_x, by_scale, total), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5)


def test_two_hundred_primitives_have_a_plugin() -> None:
    assert len(primitives()) >= 200


def lenet() -> tuple[MindirModel, dict[str, np.ndarray]]:
    """A convolution, a pool and a product, with stored weights."""
    model = MindirModel()
    g = model.main
    arrays = {"conv.weight": real(4, 1, 3, 3), "fc.weight": real(5, 36), "fc.bias": real(5)}
    x = g.input("x", (2, 1, 8, 8))
    w, d, b = (g.parameter(name, array) for name, array in arrays.items())
    u = g.constant("umonad")
    w, d, b = (g.op("Load", v, u, form=(arrays[k].shape, F)) for v, k in zip((w, d, b), arrays, strict=True))
    window = {"stride": (1, 1, 1, 1), "dilation": (1, 1, 1, 1), "pad_mode": "valid", "pad_list": (0, 0, 0, 0)}
    y = g.op("Conv2D", x, w, form=((2, 4, 6, 6), F), group=1, format="NCHW", **window)
    y = g.op("ReLU", y, form=((2, 4, 6, 6), F))
    pool = {"kernel_size": (1, 1, 2, 2), "strides": (1, 1, 2, 2), "pad_mode": "VALID", "format": "NCHW"}
    y = g.op("MaxPool", y, form=((2, 4, 3, 3), F), **pool)
    y = g.op("Flatten", y, form=((2, 36), F))
    y = g.op("MatMul", y, d, False, True, form=((2, 5), F))
    g.output(g.op("BiasAdd", y, b, 0, form=((2, 5), F)))
    return model, arrays


def lenet_with_numpy(x: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x[:, 0], (3, 3), axis=(1, 2))
    y = np.maximum(np.einsum("bhwkl,okl->bohw", windows, arrays["conv.weight"][:, 0]), 0)
    y = y.reshape(2, 4, 3, 2, 3, 2).max((3, 5)).reshape(2, 36)
    return y @ arrays["fc.weight"].T + arrays["fc.bias"]


def test_a_file_compiles_and_runs(tmp_path: Path) -> None:
    model, arrays = lenet()
    path = tmp_path / "net.mindir"
    path.write_bytes(model.bytes())
    x = real(2, 1, 8, 8)
    np.testing.assert_allclose(ge.compile(path)(x), lenet_with_numpy(x, arrays), rtol=1e-4, atol=1e-5)


def test_a_parameter_without_dimensions_stays_a_scalar(tmp_path: Path) -> None:
    model = MindirModel()
    g = model.main
    scale = g.op("Load", g.parameter("scale", np.float32(3)), g.constant("umonad"), form=((), F))
    g.output(g.op("Mul", g.input("x", ()), scale, form=((), F)))
    path = tmp_path / "net.mindir"
    path.write_bytes(model.bytes())
    found = ge.compile(path)(np.float32(2))
    assert np.shape(found) == () and found == 6


def test_atc_reads_mindir_as_framework_1(tmp_path: Path) -> None:
    model, arrays = lenet()
    path = tmp_path / "net.mindir"
    path.write_bytes(model.bytes())
    assert atc.run([f"--model={path}", "--framework=1", f"--output={tmp_path / 'net'}"]) == 0
    x = real(2, 1, 8, 8)
    np.testing.assert_allclose(
        ge.compile(tmp_path / "net.om")(x), lenet_with_numpy(x, arrays), rtol=1e-4, atol=1e-5
    )


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    model, arrays = lenet()
    stored = bytearray()
    for message in model.message.graph.parameter:
        place = message.external_data
        place.location, place.offset, place.length = "net_data/data_0", len(stored), len(message.raw_data)
        stored += message.raw_data
        message.ClearField("raw_data")
    (tmp_path / "net_data").mkdir()
    (tmp_path / "net_data" / "data_0").write_bytes(stored)
    (tmp_path / "net.mindir").write_bytes(model.bytes())
    x = real(2, 1, 8, 8)
    np.testing.assert_allclose(
        ge.compile(tmp_path / "net.mindir")(x), lenet_with_numpy(x, arrays), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("location", ["../weights", "/etc/passwd", "absent"])
def test_weights_outside_of_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    model, _ = lenet()
    first = model.message.graph.parameter[0]
    first.ClearField("raw_data")
    first.external_data.location = location
    (tmp_path / "net.mindir").write_bytes(model.bytes())
    with pytest.raises(GeError, match=r"outside of the model's folder|cannot be read"):
        ge.compile(tmp_path / "net.mindir")


def test_damaged_files_raise_typed_errors(tmp_path: Path) -> None:
    data = lenet()[0].bytes()
    path = tmp_path / "net.mindir"
    for cut in range(1, len(data), max(len(data) // 40, 1)):
        path.write_bytes(data[:cut])
        with pytest.raises(GeError):
            ge.compile(path)


def test_everything_unmapped_is_reported_at_once() -> None:
    model = MindirModel()
    x = model.main.input("x", (3,))
    y = model.main.op("Mystery", x, form=((3,), F))
    z = model.main.op("Enigma", x, form=((3,), F))
    model.main.output(model.main.op("Add", y, z, form=((3,), F)))
    with pytest.raises(UnsupportedOperatorsError) as error:
        parse_model(model.bytes())
    assert [item.operator for item in error.value.items] == ["Enigma", "Mystery"]
    assert error.value.items[0].nodes[0].startswith("Default/Enigma")


def test_a_result_of_another_shape_than_mindspore_inferred_is_refused() -> None:
    model = MindirModel()
    x = model.main.input("x", (3, 4))
    model.main.output(model.main.op("Exp", x, form=((4, 3), F)))
    with pytest.raises(UnsupportedOperatorsError, match="where MindSpore has"):
        parse_model(model.bytes())


# -- state -------------------------------------------------------------------------------------------------------


def run(parsed: Parsed, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return compile_graph(parsed.graph).run(arrays)


def test_a_training_step_updates_parameters() -> None:
    model = MindirModel()
    g = model.main
    x = g.input("grad", (3,))
    w, m = g.parameter("w", real(3), False), g.parameter("moments.w", real(3), False)
    u = g.constant("umonad")
    done = g.op("ApplyMomentum", w, m, 0.5, x, 0.9, u, form=((3,), F), use_nesterov=False, gradient_scale=1.0)
    after = g.op("UpdateState", u, done)
    g.output(g.op("Depend", x, after, form=((3,), F)))
    parsed = parse_model(model.bytes(), state=True)
    assert (parsed.inputs, parsed.parameters, parsed.updates) == (
        ("grad",),
        ("w", "moments.w"),
        ("w", "moments.w"),
    )
    grad, weight, moment = real(3), real(3), real(3)
    _, new_weight, new_moment = run(parsed, [grad, weight, moment])
    np.testing.assert_allclose(new_moment, moment * 0.9 + grad, rtol=1e-6)
    np.testing.assert_allclose(new_weight, weight - 0.5 * (moment * 0.9 + grad), rtol=1e-6)


def test_a_load_sees_the_writes_before_it_and_no_others() -> None:
    """The file lists the load of the old value after the write."""
    model = MindirModel()
    g = model.main
    w = g.parameter("w", real(2), False)
    u0 = g.constant("umonad")
    written = g.op("AssignAdd", w, np.ones(2, np.float32), u0, form=((2,), F))
    u1 = g.op("UpdateState", u0, written)
    old = g.op("Load", w, u0, form=((2,), F))
    new = g.op("Load", w, u1, form=((2,), F))
    g.output(g.op("MakeTuple", old, new, form=[((2,), F), ((2,), F)]))
    parsed = parse_model(model.bytes(), state=True)
    value = real(2)
    old_value, new_value, updated = run(parsed, [value])
    np.testing.assert_array_equal(old_value, value)
    np.testing.assert_array_equal(new_value, value + 1)
    np.testing.assert_array_equal(updated, value + 1)


# -- control flow ------------------------------------------------------------------------------------------------


def conditional(write: bool) -> MindirModel:
    """x * 2 where x's sum is positive, else x - 1; with `write` the first branch also adds 1 to a parameter."""
    model = MindirModel()
    g, then, otherwise = model.main, model.function("then"), model.function("otherwise")
    x = g.input("x", (3,))
    w = g.parameter("w", real(3), False) if write else None
    total = g.op("SumExt", x, None, False, None, form=((), F))
    condition = g.op("Greater", total, np.zeros((), np.float32), form=((), "bool"))
    bound = [x] if w is None else [x, w]
    sides = [g.op("Partial", Name(name), *bound) for name in ("then", "otherwise")]
    g.output(g.call(g.op("Switch", condition, *sides), form=((3,), F)))
    for part in (then, otherwise):
        inner = part.input("x", (3,))
        place = part.input("w", (3,)) if write else None
        if part is otherwise:
            part.output(part.op("Sub", inner, np.ones((), np.float32), form=((3,), F)))
            continue
        result = part.op("Muls", inner, 2, form=((3,), F))
        if place is not None:
            u = part.constant("umonad")
            done = part.op("AssignAdd", place, np.ones(3, np.float32), u, form=((3,), F))
            result = part.op("Depend", result, part.op("UpdateState", u, done), form=((3,), F))
        part.output(result)
    return model


@pytest.mark.parametrize("sign", [1, -1])
def test_a_switch_of_the_run_is_a_branch(sign: int) -> None:
    x = np.full(3, 2.0 * sign, np.float32)
    (found,) = run(parse_model(conditional(False).bytes()), [x])
    np.testing.assert_array_equal(found, x * 2 if sign > 0 else x - 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_may_write_parameters(sign: int) -> None:
    x, w = np.full(3, 2.0 * sign, np.float32), real(3)
    parsed = parse_model(conditional(True).bytes(), state=True)
    assert parsed.updates == ("w",)
    found, updated = run(parsed, [x, w])
    np.testing.assert_array_equal(found, x * 2 if sign > 0 else x - 1)
    np.testing.assert_array_equal(updated, w + 1 if sign > 0 else w)


def test_a_header_that_calls_itself_is_a_loop() -> None:
    """while x.sum() < 100: x = x * 2."""
    model = MindirModel()
    g, header, step, end = model.main, model.function("header"), model.function("step"), model.function("end")
    g.output(g.call("header", g.input("x", (3,)), form=((3,), F)))
    x = header.input("x", (3,))
    total = header.op("SumExt", x, None, False, None, form=((), F))
    going = header.op("LessScalar", total, 100, form=((), "bool"))
    sides = [header.op("Partial", Name(name), x) for name in ("step", "end")]
    header.output(header.call(header.op("Switch", going, *sides), form=((3,), F)))
    inner = step.input("x", (3,))
    step.output(step.call("header", step.op("Muls", inner, 2, form=((3,), F)), form=((3,), F)))
    end.output(end.input("x", (3,)))
    parsed = parse_model(model.bytes())
    x_value = np.array([1, 2, 3], np.float32)
    (found,) = run(parsed, [x_value])
    np.testing.assert_array_equal(found, x_value * 2 ** math.ceil(math.log2(100 / 6)))
