"""Training graphs in ONNX files: gradients of named values, steps of optimizers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ge
from ge.errors import UnsupportedOperatorsError

TRAINING = "ai.onnx.preview.training"
DOMAINS = [
    helper.make_opsetid("", 18),
    helper.make_opsetid(TRAINING, 1),
    helper.make_opsetid("com.microsoft", 1),
]


def with_gradients(
    body: str, inputs: dict[str, np.ndarray], by: list[str], weights: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """A model of the nodes in ONNX's text form, which give y; its outputs are y and the gradients of y."""
    kinds = {np.dtype(np.float64): "double", np.dtype(np.float32): "float", np.dtype(np.int64): "int64"}
    ports = ", ".join(f"{kinds[v.dtype]}[{','.join(map(str, v.shape))}] {k}" for k, v in inputs.items())
    text = f'<ir_version: 8, opset_import: ["" : 18]> net ({ports}) => (float[n] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    graph = model.graph
    for name, array in (weights or {}).items():
        graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    names = [f"d{name}" for name in by]
    graph.node.append(helper.make_node("Gradient", by, names, domain=TRAINING, xs=by, y="y"))
    del graph.output[:]
    kind = TensorProto.DOUBLE if all(v.dtype != np.float32 for v in inputs.values()) else TensorProto.FLOAT
    graph.output.extend(helper.make_tensor_value_info(name, kind, None) for name in ("y", *names))
    del model.opset_import[:]
    model.opset_import.extend(DOMAINS)
    return model


def numeric(run: object, inputs: dict[str, np.ndarray], name: str, step: float) -> np.ndarray:
    """Central differences of the sum of y's elements."""
    found = np.zeros(inputs[name].shape)
    for at in np.ndindex(inputs[name].shape):
        sums = []
        for sign in (1, -1):
            moved = dict(inputs)
            moved[name] = inputs[name].copy()
            moved[name][at] += sign * step
            sums.append(float(np.sum(run(**moved)[0], dtype=np.float64)))  # type: ignore[operator]
        found[at] = (sums[0] - sums[1]) / (2 * step)
    return found


def check(
    body: str, inputs: dict[str, np.ndarray], by: list[str], step: float = 1e-6, near: float = 1e-6
) -> None:
    model = ge.compile(with_gradients(body, inputs, by))
    results = model(**inputs)
    for name, gradient in zip(by, results[1:], strict=True):
        expected = numeric(model, inputs, name, step)
        scale = max(np.abs(expected).max(), 1.0)
        np.testing.assert_allclose(gradient, expected, atol=near * scale, rtol=0, err_msg=f"{body}: d{name}")


def draw(
    *shape: int, seed: int = 0, low: float = -1.5, high: float = 1.5, dtype: type = np.float64
) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


# fmt: off
ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "HardSigmoid",
    "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus",
    "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
)
# fmt: on


@pytest.mark.parametrize("type_", ELEMENTWISE)
def test_gradients_of_functions_of_one_number(type_: str) -> None:
    bounds = {"Acos": (-0.9, 0.9), "Asin": (-0.9, 0.9), "Atanh": (-0.9, 0.9), "Acosh": (1.2, 3.0)}
    low, high = bounds.get(type_, (0.2, 3.0) if type_ in ("Log", "Sqrt", "Reciprocal") else (-1.4, 1.4))
    check(
        f"z = {type_}(x) y = Mul(z, s)",
        {"x": draw(7, low=low, high=high), "s": draw(7, seed=1)},
        ["x"],
        near=1e-5,
    )


EXPRESSIONS = {
    "binary operators that broadcast": ("a = Add(x, w) b = Sub(a, w) c = Mul(b, w) y = Div(c, x)", [(2, 3), (3,)]),
    "Pow": ("a = Exp(x) y = Pow(a, w)", [(2, 3), (2, 1)]),
    "Max and Min": ("a = Max(x, w) b = Min(x, w) y = Mul(a, b)", [(2, 3), (3,)]),
    "Where": ("c = Greater(x, w) a = Where(c, x, w) y = Mul(a, a)", [(2, 3), (3,)]),
    "MatMul, batches that broadcast": ("a = MatMul(x, w) y = Mul(a, a)", [(2, 3, 4), (4, 5)]),
    "Gemm": ("a = Gemm<transA=1, transB=1, alpha=0.5>(x, w) y = Tanh(a)", [(4, 2), (3, 4)]),
    "softmax": ("a = MatMul(x, w) s = Softmax<axis=1>(a) y = Mul(s, s)", [(2, 3), (3, 4)]),
    "log-softmax": ("a = MatMul(x, w) s = LogSoftmax<axis=0>(a) y = Mul(s, s)", [(2, 3), (3, 4)]),
    "movements": (
        "a = Transpose<perm=[1,0]>(x) b = Concat<axis=0>(a, w) c = Reshape(b, shape) "
        "d, e = Split<axis=0, num_outputs=2>(c) f = Mul(d, e) y = Tile(f, twice)",
        [(2, 3), (3, 2)],
    ),
    "slices": (
        "a = Slice(x, one, five, axis, step) b = Slice(x, one, three, axis) c = MatMul(a, w) d = MatMul(b, w) "
        "y = Mul(c, d)",
        [(6, 3), (3, 2)],
    ),
    "reductions": (
        "a = ReduceMean<keepdims=0>(x, axis) b = ReduceMax<keepdims=0>(x, axis) c = ReduceSum<keepdims=0>(w, axis) "
        "d = ReduceProd<keepdims=0>(w, axis) e = Mul(a, b) f = Mul(c, d) g = ReduceL2<keepdims=0>(w, axis) "
        "h = Mul(e, f) y = Mul(g, h)",
        [(4, 3), (2, 3)],
    ),
    "LayerNormalization": ("a = LayerNormalization<axis=-1>(x, w, w) y = Mul(a, x)", [(3, 4), (4,)]),
    "GroupNormalization": ("z = GroupNormalization<num_groups=2>(x, w, w) y = Mul(z, x)", [(2, 4, 3), (2,)]),
    "InstanceNormalization": ("z = InstanceNormalization(x, w, w) y = Mul(z, x)", [(2, 4, 3), (4,)]),
    "a value read twice": ("a = Sin(x) b = Mul(a, w) c = Mul(a, b) y = Add(a, c)", [(5,), (5,)]),
    "Clip and PRelu": ("a = Clip(x, low, high) b = PRelu(a, w) y = Mul(b, b)", [(2, 3), (3,)]),
    "CumSum": ("a = CumSum<exclusive=1>(x, axis0) b = Mul(a, w) y = Mul(b, b)", [(4, 3), (3,)]),
}  # fmt: skip


@pytest.mark.parametrize("what", EXPRESSIONS)
def test_gradients_of_expressions(what: str) -> None:
    body, (x, w) = EXPRESSIONS[what]
    numbers = {
        "one": [1],
        "three": [3],
        "five": [5],
        "step": [2],
        "axis": [0],
        "shape": [4, 3],
        "twice": [2, 1],
    }
    constants = {k: np.asarray(v, np.int64) for k, v in numbers.items()}
    constants |= {"axis0": np.asarray(0, np.int64), "low": np.asarray(-0.7), "high": np.asarray(0.9)}
    given = "".join(
        f"{k} = Constant<value = {_text(v)}>() "
        for k, v in constants.items()
        if k in body.replace(",", " ").replace(")", " ").split()
    )
    check(given + body, {"x": draw(*x), "w": draw(*w, seed=1, low=0.3)}, ["x", "w"], near=1e-5)


def _text(array: np.ndarray) -> str:
    kind = "int64" if array.dtype == np.int64 else "double"
    return f"{kind}{f'[{len(array)}]' if array.ndim else ''} {{{', '.join(map(str, array.reshape(-1)))}}}"


WINDOWS = {
    "Conv": "a = Conv<strides=[2,1], pads=[1,0,1,1], dilations=[1,2]>(x, w) y = Mul(a, a)",
    "grouped Conv": "a = Conv<group=2, pads=[1,1,1,1]>(x, w) y = Mul(a, a)",
    "MaxPool": "a = Conv(x, w) b = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a) y = Mul(b, b)",
    "AveragePool": "a = Conv(x, w) b = AveragePool<kernel_shape=[2,2], pads=[1,0,0,0]>(a) y = Mul(b, b)",
    "GlobalAveragePool": "a = Conv(x, w) b = GlobalAveragePool(a) y = Mul(b, b)",
}


@pytest.mark.parametrize("what", WINDOWS)
def test_gradients_of_convolutions_and_pools(what: str) -> None:
    inputs = {
        "x": draw(1, 4, 5, 6, dtype=np.float32),
        "w": draw(2, 2 if what.startswith("grouped") else 4, 3, 3, seed=1, dtype=np.float32),
    }
    check(WINDOWS[what], inputs, ["x", "w"], step=3e-3, near=5e-3)


def test_gradients_of_gathered_rows_add_up() -> None:
    ids = np.asarray([[0, 2], [2, -1]], np.int64)
    model = ge.compile(
        with_gradients("a = Gather(x, ids) y = Mul(a, a)", {"x": draw(4, 3), "ids": ids}, ["x"])
    )
    x = draw(4, 3)
    _, gradient = model(x=x, ids=ids)
    np.testing.assert_allclose(gradient, 2 * x * np.asarray([1, 0, 2, 1])[:, None])


def test_a_weight_is_a_variable_also_where_all_it_meets_is_constant() -> None:
    """Constants are folded while a file is read; what is differentiated by must stay."""
    w = np.asarray([1.0, 2.0, 3.0])
    body = "a = Mul(w, w) b = Exp(a) y = Mul(b, x)"
    model = ge.compile(with_gradients(body, {"x": draw(3)}, ["w"], {"w": w}))
    x = draw(3)
    _, gradient = model(x)
    np.testing.assert_allclose(gradient, 2 * w * np.exp(w * w) * x, rtol=1e-12)


def test_a_value_that_does_not_matter_has_a_gradient_of_zeros() -> None:
    model = ge.compile(with_gradients("a = Floor(w) y = Add(x, a)", {"x": draw(3), "w": draw(3)}, ["x", "w"]))
    _, dx, dw = model(draw(3), draw(3))
    assert (dx == 1).all() and (dw == 0).all()


def test_an_operator_without_a_rule_is_refused_by_name() -> None:
    model = with_gradients("a = Det(x) y = Mul(a, a)", {"x": draw(3, 3)}, ["x"])
    with pytest.raises(UnsupportedOperatorsError, match="Det has no gradient rule"):
        ge.compile(model)


def test_a_training_step_with_dropout_and_an_optimizer_learns() -> None:
    """A classifier whose file computes loss, gradients and the step of Adam; its results are fed back."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(0, 0.3, (8, 16)).astype(np.float32),
        "v": rng.normal(0, 0.3, (16, 3)).astype(np.float32),
    }
    state = {k: np.zeros_like(weights[k[1:]]) for k in ("mw", "mv", "sw", "sv")}
    ports = {"x": np.zeros((30, 8), np.float32), "labels": np.zeros(30, np.int64), **weights, **state}
    body = (
        "a = MatMul(x, w) r = Relu(a) ratio = Constant<value = float {0.1}>() on = Constant<value = bool {1}>() "
        "d = Dropout<seed=1>(r, ratio, on) logits = MatMul(d, v) y = SoftmaxCrossEntropyLoss(logits, labels)"
    )
    model = with_gradients(body, ports, ["w", "v"])
    states = ["w", "v", "dw", "dv", "mw", "mv", "sw", "sv"]
    made = [f"{name}_new" for name in ("w", "v", "mw", "mv", "sw", "sv")]
    model.graph.input.append(helper.make_tensor_value_info("step", TensorProto.INT64, []))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.02), "rate"))
    model.graph.node.append(helper.make_node("Adam", ["rate", "step", *states], made, domain=TRAINING))
    del model.graph.output[1:]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made)
    compiled = ge.compile(model)
    x = rng.normal(size=(30, 8)).astype(np.float32)
    labels = np.argmax(x[:, :3], axis=1).astype(np.int64)
    current = [weights["w"], weights["v"], state["mw"], state["mv"], state["sw"], state["sv"]]
    losses = []
    for step in range(60):
        loss, *current = compiled(x, labels, *current, np.asarray(step, np.int64))
        losses.append(float(loss))
    assert losses[0] > 0.8 and losses[-1] < 0.2


# -- what ONNX Runtime's training tools write -------------------------------------------------------------------

# Type: the nodes that compute y, and those that compute the gradient of y's weighted sum by x as dx.
WRITTEN = {
    "ReluGrad": ("y0 = Relu(x)", "ReluGrad(g, x)"),
    "GeluGrad": ("y0 = com.microsoft.Gelu(x)", "GeluGrad(g, x)"),
    "FastGeluGrad": ("y0 = com.microsoft.FastGelu(x)", "FastGeluGrad(g, x)"),
    "QuickGeluGrad": ("y0 = com.microsoft.QuickGelu(x)", "QuickGeluGrad(g, x)"),
    "LeakyReluGrad": ("y0 = LeakyRelu<alpha=0.2>(x)", "LeakyReluGrad<alpha=0.2>(g, x)"),
    "SigmoidGrad": ("y0 = Sigmoid(x)", "SigmoidGrad(g, y0)"),
    "TanhGrad": ("y0 = Tanh(x)", "TanhGrad(g, y0)"),
    "SoftmaxGrad_13": ("y0 = Softmax<axis=1>(x)", "SoftmaxGrad_13<axis=1>(g, y0)"),
    "LogSoftmaxGrad_13": ("y0 = LogSoftmax<axis=1>(x)", "LogSoftmaxGrad_13<axis=1>(g, y0)"),
    "LayerNormalizationGrad": (
        "y0, m, i = LayerNormalization<axis=1>(x, w)",
        "LayerNormalizationGrad<axis=1>(g, x, w, m, i)",
    ),
}


@pytest.mark.parametrize("type_", WRITTEN)
def test_a_gradient_that_onnx_runtime_writes_is_the_gradient(type_: str) -> None:
    forward, backward = WRITTEN[type_]
    inputs = {
        "x": draw(3, 4, dtype=np.float32),
        "g": draw(3, 4, seed=1, dtype=np.float32),
        "w": draw(4, dtype=np.float32),
    }
    model = with_gradients(f"{forward} y = Mul(y0, g) theirs = com.microsoft.{backward}", inputs, ["x"])
    model.graph.output.append(helper.make_tensor_value_info("theirs", TensorProto.FLOAT, None))
    _, ours, theirs = ge.compile(model)(**inputs)
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-6)


def test_the_gradients_of_a_convolution() -> None:
    inputs = {"x": draw(2, 3, 5, 5, dtype=np.float32), "w": draw(4, 3, 3, 3, seed=1, dtype=np.float32)}
    inputs["g"] = draw(2, 4, 3, 3, seed=2, dtype=np.float32)
    attrs = "<pads=[1,1,1,1], strides=[2,2]>"
    body = f"y0 = Conv{attrs}(x, w) y = Mul(y0, g) dx2, dw2, db2 = com.microsoft.ConvGrad{attrs}(g, x, w)"
    model = with_gradients(body, inputs, ["x", "w"])
    model.graph.output.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("dx2", "dw2", "db2")
    )
    _, dx, dw, dx2, dw2, db2 = ge.compile(model)(**inputs)
    np.testing.assert_allclose(dx2, dx, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dw2, dw, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(db2, inputs["g"].sum(axis=(0, 2, 3)), rtol=1e-4, atol=1e-5)


def test_the_gradients_of_a_batch_normalisation_and_of_a_pool() -> None:
    body = """
        h0, nm, nv = BatchNormalization<training_mode=1, epsilon=1e-3>(x, s, b, rm, rv)
        y0 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(h0)
        y = Mul(y0, g)
        h, nm2, nv2, m, i = com.microsoft.BatchNormInternal<epsilon=1e-3>(x, s, b, rm, rv)
        y2, places = MaxPool<kernel_shape=[2,2], strides=[2,2]>(h)
        dh = MaxPoolGrad<kernel_shape=[2,2], strides=[2,2]>(g, places)
        dx2, ds2, db2 = com.microsoft.BatchNormalizationGrad<epsilon=1e-3>(dh, x, s, m, i)
    """
    shapes = {"x": (3, 4, 6, 6), "s": (4,), "b": (4,), "rm": (4,), "rv": (4,), "g": (3, 4, 3, 3)}
    inputs = {n: draw(*shape, seed=i, dtype=np.float32) for i, (n, shape) in enumerate(shapes.items())}
    model = with_gradients(body, inputs, ["x", "s", "b"])
    more = ("y2", "dx2", "ds2", "db2", "m", "i")
    model.graph.output.extend(helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in more)
    _, dx, ds, db, _, dx2, ds2, db2, mean, inverse = ge.compile(model)(**inputs)
    for found, wanted in ((dx2, dx), (ds2, ds), (db2, db)):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(mean, inputs["x"].mean((0, 2, 3)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(inputs["x"].var((0, 2, 3)) + 1e-3), rtol=1e-4)


def test_the_gradient_of_a_pool_that_is_not_there_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[1,1,2,2] g, int64[1,1,2,2] p) => (float[n] dx) { dx = MaxPoolGrad<kernel_shape=[2,2]>(g, p) }"""
    with pytest.raises(UnsupportedOperatorsError, match="keep the MaxPool in the same graph"):
        ge.compile(onnx.parser.parse_model(text))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_gradient_of_a_loss_with_a_label_that_is_ignored(reduction: str) -> None:
    labels = np.asarray([0, 2, 1, 2], np.int64)
    inputs = {"x": draw(4, 3, dtype=np.float32), "labels": labels, "w": draw(3, low=0.2, dtype=np.float32)}
    inputs["g"] = np.ones(4 if reduction == "none" else (), np.float32)
    attrs = f'<reduction="{reduction}", ignore_index=1>'
    body = (
        f"y, logs = SoftmaxCrossEntropyLoss{attrs}(x, labels, w) "
        f"dx2 = com.microsoft.SoftmaxCrossEntropyLossGrad{attrs}(g, logs, labels, w)"
    )
    model = with_gradients(body, inputs, ["x"])
    model.graph.output.append(helper.make_tensor_value_info("dx2", TensorProto.FLOAT, None))
    _, dx, dx2 = ge.compile(model)(**inputs)
    np.testing.assert_allclose(dx2, dx, rtol=1e-4, atol=1e-6)


def test_gathered_rows_and_broadcast_axes() -> None:
    ids = np.asarray([1, 1, 3], np.int64)
    inputs = {"x": draw(4, 2, dtype=np.float32), "ids": ids, "g": draw(3, 2, seed=1, dtype=np.float32)}
    body = (
        "y0 = Gather(x, ids) y = Mul(y0, g) s = Shape(x) dx2 = com.microsoft.GatherGrad(s, ids, g) t = Shape(y0) "
        "one = Constant<value = int64[1] {2}>() a, b = com.microsoft.BroadcastGradientArgs(t, one) "
        "db = com.microsoft.ReduceSumTraining<keepdims=0>(g, b)"
    )
    model = with_gradients(body, inputs, ["x"])
    model.graph.output.extend(
        helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("dx2", "db")
    )
    _, dx, dx2, db = ge.compile(model)(**inputs)
    np.testing.assert_allclose(dx2, dx, rtol=1e-5)
    np.testing.assert_allclose(db, inputs["g"].sum(axis=0), rtol=1e-5)


def test_gradients_are_accumulated_or_overwritten() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
    net (float[3] sum, float[3] value, bool[1] reset) => (bool[1] done, float[3] total)
    { done, total = com.microsoft.InPlaceAccumulatorV2(sum, value, reset) }"""
    model = ge.compile(onnx.parser.parse_model(text))
    a, b = draw(3, dtype=np.float32), draw(3, seed=1, dtype=np.float32)
    np.testing.assert_array_equal(model(a, b, np.asarray([False]))[1], a + b)
    np.testing.assert_array_equal(model(a, b, np.asarray([True]))[1], b)


@pytest.mark.parametrize("mode", [0, 1])
def test_steps_of_adamw_over_sequences(mode: int) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
    net (float[1] rate, int64[1] step, float[2] w, float[2] g, float[2] m, float[2] v) => (float[2] w2, float[2] m2, float[2] v2)
    {{
        ws = SequenceConstruct(w) gs = SequenceConstruct(g) ms = SequenceConstruct(m) vs = SequenceConstruct(v)
        done, ws2, ms2, vs2 = com.microsoft.AdamWOptimizer<adam_mode={mode}, weight_decay=0.1>(rate, step, ws, gs, ms, vs)
        at = Constant<value = int64 {{0}}>()
        w2 = SequenceAt(ws2, at) m2 = SequenceAt(ms2, at) v2 = SequenceAt(vs2, at)
    }}"""  # noqa: E501
    w, g, m, v = (draw(2, seed=i, low=0.1, dtype=np.float32) for i in range(4))
    rate, step = 0.01, 3
    found = ge.compile(onnx.parser.parse_model(text))(
        np.asarray([rate], np.float32), np.asarray([step], np.int64), w, g, m, v
    )
    m2, v2 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    first, second = 1 - 0.9**step, 1 - 0.999**step
    if mode == 0:
        w2 = w * (1 - rate * 0.1) - rate / first * m2 / (np.sqrt(v2 / second) + 1e-8)
    else:
        w2 = (w - rate * np.sqrt(second) / first * m2 / (np.sqrt(v2) + 1e-8)) * (1 - rate * 0.1)
    for ours, expected in zip(found, (w2, m2, v2), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
