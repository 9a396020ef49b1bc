"""Operators of the training graphs that ONNX Runtime's tools write: gradients of layers and losses, sums, steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ir.values import desc_of
from ge.ops.differentiate import differentiate
from ge.ops.microsoft.standard import DOMAIN, VERSION, results_of, standard
from ge.ops.plugins import Node, Results, Sequence_, Unsupported, plugin


def _given(n: Node, count: int) -> list[Any]:
    """The first inputs, which must be there."""
    if any(n.input(i) is None for i in range(count)):
        raise Unsupported(f"{n.type} needs {count} inputs", "check the model")
    return list(n.inputs[:count])


def _times(n: Node, dy: Any, slope: Any) -> Any:
    return n.op("Mul", dy, slope)


# -- functions of one number: the gradient of the result, and the operand ------------------------------------------


_SLOPES = ("ReluGrad", "LeakyReluGrad", "GeluGrad", "FastGeluGrad", "QuickGeluGrad")


@plugin(onnx=[*_SLOPES, "BiasGeluGrad_dX", "BiasFastGeluGrad_dX"], domain=DOMAIN)
def _by_operand(n: Node) -> Results:
    dy, x = _given(n, 2)
    if n.input(2) is not None:
        x = n.op("Add", x, n.inputs[2])
    kind = n.type.removeprefix("Bias").partition("Grad")[0]
    if kind in ("Gelu", "FastGelu"):
        return _times(n, dy, n.op("GeluSlope", x, approximate="none" if kind == "Gelu" else "tanh"))
    if kind == "QuickGelu":
        alpha = float(n.attr("alpha", 1.702))
        share = n.op("Sigmoid", n.op("Mul", x, alpha))
        slope = n.op(
            "Add", share, n.op("Mul", n.op("Mul", x, alpha), n.op("Mul", share, n.op("Sub", 1.0, share)))
        )
        return _times(n, dy, slope)
    below = n.op("Mul", dy, float(n.attr("alpha", 0.01)) if kind == "LeakyRelu" else 0.0)
    return n.op("Select", n.op("Greater", x, 0.0), dy, below)


@plugin(onnx="SigmoidGrad", domain=DOMAIN)
def _sigmoid_grad(n: Node) -> Results:
    dy, y = _given(n, 2)
    return _times(n, dy, n.op("Mul", y, n.op("Sub", 1.0, y)))


@plugin(onnx="TanhGrad", domain=DOMAIN)
def _tanh_grad(n: Node) -> Results:
    dy, y = _given(n, 2)
    return _times(n, dy, n.op("Sub", 1.0, n.op("Square", y)))


@plugin(onnx=["SoftmaxGrad_13", "LogSoftmaxGrad_13"], domain=DOMAIN)
def _softmax_grad(n: Node) -> Results:
    dy, y = _given(n, 2)
    axes = [int(n.attr("axis", -1))]
    if n.type.startswith("Log"):
        total = n.op("ReduceSum", dy, axes=axes, keepdims=True)
        return n.op("Sub", dy, n.op("Mul", n.op("Exp", y), total))
    weighted = n.op("Mul", dy, y)
    return n.op("Sub", weighted, n.op("Mul", y, n.op("ReduceSum", weighted, axes=axes, keepdims=True)))


@plugin(onnx="DropoutGrad", domain=DOMAIN)
def _dropout_grad(n: Node) -> Results:
    dy, mask = _given(n, 2)
    if n.input(3) is None or not bool(n.const(3, "training_mode").reshape(-1)[0]):
        return dy
    ratio = 0.5 if n.input(2) is None else float(n.const(2, "ratio").reshape(-1)[0])
    return n.op("Select", mask, n.op("Mul", dy, 1 / (1 - ratio) if ratio < 1 else 0.0), 0.0)


# -- gradients that are those of the operator itself ----------------------------------------------------------------


def _gradients(n: Node, dy: Any, y: Any, by: list[Any]) -> list[Any]:
    """The gradients of y by some values, where dy is that of y."""
    return differentiate(n.builder, n.op("Mul", y, dy), by)


@plugin(onnx="ConvGrad", domain=DOMAIN)
def _conv_grad(n: Node) -> Results:
    dy, *operands = _given(n, 3)
    x, w = map(n.builder.variable, operands)
    y = standard(n, "Conv", x, w, **n.attrs)
    bias = n.op("ReduceSum", dy, axes=[0, *range(2, desc_of(dy).rank)], keepdims=False)
    return [*_gradients(n, dy, y, [x, w]), bias][: max(n.outputs, 1)]


@plugin(onnx=["LayerNormalizationGrad", "SimplifiedLayerNormalizationGrad"], domain=DOMAIN)
def _layer_norm_grad(n: Node) -> Results:
    """dy, x, scale, mean (not in the simplified form) and the inverse deviation."""
    dy, x, scale = _given(n, 3)
    axis = int(n.attr("axis", -1)) % desc_of(x).rank
    axes = list(range(axis, desc_of(x).rank))
    inverse = n.inputs[-1]
    plain = n.type.startswith("Simplified")
    centred = x if plain else n.op("Sub", x, n.inputs[3])
    normal = n.op("Mul", centred, inverse)
    scaled = n.op("Mul", dy, scale)
    along = n.op("ReduceMean", n.op("Mul", scaled, normal), axes=axes, keepdims=True)
    inner = n.op("Sub", scaled, n.op("Mul", normal, along))
    if not plain:
        inner = n.op("Sub", inner, n.op("ReduceMean", scaled, axes=axes, keepdims=True))
    outer = list(range(axis))
    dscale = n.op("ReduceSum", n.op("Mul", dy, normal), axes=outer, keepdims=False)
    dbias = n.op("ReduceSum", dy, axes=outer, keepdims=False)
    return [n.op("Mul", inner, inverse), dscale, dbias][: max(n.outputs, 1)]


@plugin(onnx="BatchNormInternal", domain=DOMAIN)
def _batch_norm(n: Node) -> Results:
    """As ONNX's own in training, with the mean and the inverse deviation of the batch as well."""
    if not n.attr("training_mode", 1):
        raise Unsupported("BatchNormInternal is for training", "use BatchNormalization")
    attrs = {name: n.attrs[name] for name in ("epsilon", "momentum") if name in n.attrs}
    results = results_of(n, "BatchNormalization", _given(n, 5), 3, VERSION, training_mode=1, **attrs)
    mean, inverse = (n.op("Reshape", v, shape=[desc_of(v).size]) for v in _statistics(n, n.inputs[0]))
    return [*results, mean, inverse][: max(n.outputs, 1)]


def _others(x: Any) -> list[int]:
    """The axes of a value but that of its channels."""
    return [axis for axis in range(desc_of(x).rank) if axis != 1]


def _statistics(n: Node, x: Any) -> tuple[Any, Any]:
    """Mean and inverse deviation of each channel."""
    axes = _others(x)
    mean = n.op("ReduceMean", x, axes=axes, keepdims=True)
    spread = n.op("ReduceMean", n.op("Square", n.op("Sub", x, mean)), axes=axes, keepdims=True)
    return mean, n.op("Rsqrt", n.op("Add", spread, float(n.attr("epsilon", 1e-5))))


@plugin(onnx="BatchNormalizationGrad", domain=DOMAIN)
def _batch_norm_grad(n: Node) -> Results:
    """dy, x, scale; what is saved of the batch's statistics follows from x."""
    dy, x, scale = _given(n, 3)
    axes = _others(x)
    mean, inverse = _statistics(n, x)
    normal = n.op("Mul", n.op("Sub", x, mean), inverse)
    along = n.op("ReduceMean", n.op("Mul", dy, normal), axes=axes, keepdims=True)
    level = n.op("ReduceMean", dy, axes=axes, keepdims=True)
    inner = n.op("Sub", n.op("Sub", dy, level), n.op("Mul", normal, along))
    shape = [1, n.desc(1).shape[1], *[1] * (n.desc(1).rank - 2)]
    dx = n.op("Mul", n.op("Mul", inner, inverse), n.op("Reshape", scale, shape=shape))
    dscale = n.op("ReduceSum", n.op("Mul", dy, normal), axes=axes, keepdims=False)
    return [dx, dscale, n.op("ReduceSum", dy, axes=axes, keepdims=False)][: max(n.outputs, 1)]


@plugin(onnx="MaxPoolGrad")
def _max_pool_grad(n: Node) -> Results:
    """dy and the places of the maxima in the whole input, whose shape that of the pool before it tells."""
    dy, places = _given(n, 2)
    node = places.producer()
    while node is not None and node.op_type != "MaxPoolIndices":
        node = next((v.producer() for v in node.inputs if v is not None and v.producer() is not None), None)
    if node is None:
        raise Unsupported(
            "MaxPoolGrad does not define the shape of its result", "keep the MaxPool in the same graph"
        )
    shape = desc_of(node.inputs[0]).shape
    zeros, count = _zeros(n, [math.prod(shape)], dy), desc_of(dy).size
    spots, values = (n.op("Reshape", v, shape=[count]) for v in (places, dy))
    flat = n.op("ScatterElements", zeros, spots, values, axis=0, reduction="add")
    return n.op("Reshape", flat, shape=list(shape))


def _zeros(n: Node, shape: Any, like: Any) -> Any:
    zero = np.zeros((), numpy_dtype(desc_of(like).dtype))
    return n.op("BroadcastTo", zero, shape=[int(d) for d in shape])


@plugin(onnx="GatherGrad", domain=DOMAIN)
def _gather_grad(n: Node) -> Results:
    """The shape of what was gathered from, the indices, dy."""
    x = n.builder.variable(_zeros(n, n.const(0, "the shape"), n.inputs[2]))
    y = standard(n, "Gather", x, n.inputs[1], axis=int(n.attr("axis", 0)))
    return _gradients(n, n.inputs[2], y, [x])


@plugin(onnx="GatherElementsGrad", domain=DOMAIN)
def _gather_elements_grad(n: Node) -> Results:
    zeros = _zeros(n, n.const(1, "the shape"), n.inputs[0])
    return n.op(
        "ScatterElements", zeros, n.inputs[2], n.inputs[0], axis=int(n.attr("axis", 0)), reduction="add"
    )


# -- losses ----------------------------------------------------------------------------------------------------


@plugin(onnx="SoftmaxCrossEntropyLossInternal", domain=DOMAIN)
def _loss(n: Node) -> Results:
    """As ONNX's own; the label to be ignored is an input, and the second result the logarithms."""
    attrs = {"reduction": n.attr("reduction", "mean")}
    ignored = _ignored(n, 3)
    if ignored is not None:
        attrs["ignore_index"] = ignored
    loss = standard(n, "SoftmaxCrossEntropyLoss", *n.inputs[:3], **attrs)
    loss = loss[0] if isinstance(loss, list | tuple) else loss
    return [loss, n.op("LogSoftmax", n.inputs[0], axes=[1])][: max(n.outputs, 1)]


def _ignored(n: Node, index: int) -> int | None:
    if n.attr("ignore_index") is not None:
        return int(n.attr("ignore_index"))
    return None if n.input(index) is None else int(n.const(index, "ignore_index").reshape(-1)[0])


@plugin(onnx=["SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLossInternalGrad"], domain=DOMAIN)
def _loss_grad(n: Node) -> Results:
    """dy, the logarithms of the probabilities (classes second), labels, weights of classes."""
    dy, logs, labels = _given(n, 3)
    shape, dtype = desc_of(logs).shape, desc_of(logs).dtype
    classes, ignored = shape[1], _ignored(n, 4)
    index_type = desc_of(labels).dtype
    kept = None if ignored is None else n.op("NotEqual", labels, np.asarray(ignored, numpy_dtype(index_type)))
    safe = labels if kept is None else n.op("Select", kept, labels, np.zeros((), numpy_dtype(index_type)))
    number = numpy_dtype(dtype)
    if n.input(3) is not None:
        weights = n.op("Gather", n.inputs[3], safe, axis=0)
    else:
        weights = n.op("BroadcastTo", np.ones((), number), shape=list(desc_of(labels).shape))
    weights = weights if kept is None else n.op("Select", kept, weights, np.zeros((), number))
    reduction = str(n.attr("reduction", "mean"))
    if reduction == "mean":
        total = n.op("ReduceSum", weights, axes=list(range(desc_of(labels).rank)), keepdims=False)
        weights = n.op("Div", weights, n.op("Maximum", total, float(np.finfo(np.float32).tiny)))
    hits = n.op("OneHot", safe, np.ones((), number), np.zeros((), number), depth=classes, axis=1)
    by_sample = n.op(
        "Mul", n.op("Reshape", dy, shape=[1] * desc_of(labels).rank) if reduction != "none" else dy, weights
    )
    spread = n.op("Reshape", by_sample, shape=[shape[0], 1, *shape[2:]])
    return n.op("Mul", n.op("Sub", n.op("Exp", logs), hits), spread)


# -- shapes ----------------------------------------------------------------------------------------------------


@plugin(onnx="ReduceSumTraining", domain=DOMAIN)
def _reduce_sum(n: Node) -> Results:
    axes = [int(a) for a in n.const(1, "the axes").reshape(-1)]
    if not axes and n.attr("noop_with_empty_axes", 0):
        return n.inputs[0]  # type: ignore[return-value]
    axes = axes or list(range(n.desc().rank))
    return n.op("ReduceSum", n.inputs[0], axes=axes, keepdims=bool(n.attr("keepdims", 1)))


@plugin(onnx="SplitTraining", domain=DOMAIN)
def _split(n: Node) -> Results:
    sizes = [int(s) for s in n.const(1, "the lengths").reshape(-1)]
    return n.builder.ops("Split", [n.inputs[0]], axis=int(n.attr("axis", 0)) % n.desc().rank, sizes=sizes)


@plugin(onnx="ConcatTraining", domain=DOMAIN)
def _concat(n: Node) -> Results:
    axis = int(n.attr("axis")) % n.desc().rank
    lengths = [n.desc(i).shape[axis] for i in range(len(n.inputs))]
    joined = n.op("Concat", *n.inputs, axis=axis)
    return [joined, n.builder.constant(np.asarray(lengths, np.int64))][: max(n.outputs, 1)]


@plugin(onnx="BroadcastGradientArgs", domain=DOMAIN)
def _broadcast_axes(n: Node) -> Results:
    """The axes along which each of two shapes was broadcast, the last one first."""
    shapes = [[int(d) for d in n.const(i, "a shape").reshape(-1)] for i in range(2)]
    rank = max(map(len, shapes))
    aligned = [[1] * (rank - len(s)) + s for s in shapes]
    found = [
        [i for i in reversed(range(rank)) if mine[i] == 1 and (other[i] != 1 or i < rank - len(own))]
        for own, mine, other in zip(shapes, aligned, reversed(aligned), strict=True)
    ]
    return [n.builder.constant(np.asarray(axes, np.int64)) for axes in found][: max(n.outputs, 1)]


# -- accumulation and steps -----------------------------------------------------------------------------------------


@plugin(onnx="InPlaceAccumulatorV2", domain=DOMAIN)
def _accumulate(n: Node) -> Results:
    """The flag that it was updated, and the sum, or only the value where the old sum is overwritten."""
    total = n.op("Add", n.inputs[0], n.inputs[1])
    if n.input(2) is not None:
        total = n.op("Select", n.op("Reshape", n.inputs[2], shape=[]), n.inputs[1], total)
    return [n.builder.constant(np.ones(1, np.bool_)), total][: max(n.outputs, 1)]


def _columns(n: Node, first: int, count: int) -> list[tuple[Any, ...]]:
    """Weights, gradients and states, by tensor."""
    given = n.inputs[first : first + count]
    if not all(isinstance(s, Sequence_) for s in given) or len({len(s.items) for s in given}) != 1:  # type: ignore[union-attr]
        raise Unsupported(f"{n.type} takes sequences of one length", "check the model")
    return list(zip(*(s.items for s in given), strict=True))  # type: ignore[union-attr]


def _updated(n: Node, results: list[tuple[Any, ...]], signal: int) -> Results:
    if n.input(signal) is not None and n.maybe_const(signal) is None:
        raise Unsupported("an update that depends on a signal", "leave the signal out")
    columns: list[Any] = [Sequence_(tuple(column)) for column in zip(*results, strict=True)]
    return [n.builder.constant(np.ones((), np.bool_)), *columns][: max(n.outputs, 1)]


@plugin(onnx="AdamWOptimizer", domain=DOMAIN)
def _adamw(n: Node) -> Results:
    """Rate, step (from 1), weights, gradients, two momenta. Mode 0 is PyTorch's, 1 that of Hugging Face."""
    rate = n.op("Reshape", n.inputs[0], shape=[])
    step = n.op("Cast", n.op("Reshape", n.inputs[1], shape=[]), to="float32")
    alpha, beta = float(n.attr("alpha", 0.9)), float(n.attr("beta", 0.999))
    epsilon, decay = float(n.attr("epsilon", 1e-8)), float(n.attr("weight_decay", 0.01))
    later = bool(n.attr("adam_mode", 0))
    first_part, second_part = (n.op("Sub", 1.0, n.op("Pow", np.float32(f), step)) for f in (alpha, beta))
    shrunk = n.op("Sub", 1.0, n.op("Mul", rate, decay))
    results = []
    for w, g, m, v in _columns(n, 2, 4):
        w = w if later else n.op("Mul", w, shrunk)
        m = n.op("Add", n.op("Mul", m, alpha), n.op("Mul", g, 1 - alpha))
        v = n.op("Add", n.op("Mul", v, beta), n.op("Mul", n.op("Square", g), 1 - beta))
        size: Any = rate
        if not n.attr("correct_bias", 1):
            spread = n.op("Add", n.op("Sqrt", v), epsilon)
        elif later:
            size = n.op("Div", n.op("Mul", rate, n.op("Sqrt", second_part)), first_part)
            spread = n.op("Add", n.op("Sqrt", v), epsilon)
        else:
            size = n.op("Div", rate, first_part)
            spread = n.op("Add", n.op("Div", n.op("Sqrt", v), n.op("Sqrt", second_part)), epsilon)
        w = n.op("Sub", w, n.op("Mul", size, n.op("Div", m, spread)))
        results.append((n.op("Mul", w, shrunk) if later else w, m, v))
    return _updated(n, results, 6)


@plugin(onnx="SGDOptimizerV2", domain=DOMAIN)
def _sgd(n: Node) -> Results:
    rate = n.op("Reshape", n.inputs[0], shape=[])
    results = [(n.op("Sub", w, n.op("Mul", rate, g)),) for w, g in _columns(n, 1, 2)]
    return _updated(n, results, 3)
