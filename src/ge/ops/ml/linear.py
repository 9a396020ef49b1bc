"""Linear models and support vector machines."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.flow.control import repeat
from ge.ops.ml.scores import DOMAIN, classified, labelled, real_rows, transformed
from ge.ops.plugins import Node, Results, Unsupported, plugin


def _affine(n: Node, width: int) -> Any:
    """x w' + b with the coefficients of the node."""
    x = real_rows(n)
    weights = np.asarray(n.attr("coefficients"), np.float32).reshape(width, -1)
    product = n.op("MatMul", x, n.builder.constant(np.ascontiguousarray(weights.T)))
    shift = n.attr("intercepts")
    return (
        product if shift is None else n.op("Add", product, n.builder.constant(np.asarray(shift, np.float32)))
    )


@plugin(onnx="LinearRegressor", domain=DOMAIN)
def _regressor(n: Node) -> Results:
    y = _affine(n, int(n.attr("targets", 1)))
    return transformed(n, y, str(n.attr("post_transform", "NONE")))


@plugin(onnx="LinearClassifier", domain=DOMAIN)
def _classifier(n: Node) -> Results:
    count = len(n.attr("classlabels_ints") or n.attr("classlabels_strings") or [])
    width = len(n.attr("intercepts") or []) or count
    return classified(n, _affine(n, width), count, positive=False)


@plugin(onnx="SVMRegressor", domain=DOMAIN)
def _svm_regressor(n: Node) -> Results:
    """Sums of kernels between rows and support vectors; without those, a linear model."""
    x = real_rows(n)
    rho = float((n.attr("rho") or [0.0])[0])
    weights = np.asarray(n.attr("coefficients"), np.float32)
    count = int(n.attr("n_supports", 0))
    if count:
        vectors = np.asarray(n.attr("support_vectors"), np.float32).reshape(count, -1)
        x = _kernel(n, x, vectors)
    y = n.op("Add", n.op("MatMul", x, n.builder.constant(weights.reshape(-1, 1))), rho)
    if n.attr("one_class", 0):
        return n.op("Select", n.op("Greater", y, 0.0), 1.0, -1.0)
    return transformed(n, y, str(n.attr("post_transform", "NONE")))


@plugin(onnx="SVMClassifier", domain=DOMAIN)
def _svm_classifier(n: Node) -> Results:
    """One score for each pair of classes; a row's label is the class that wins most pairs."""
    x = real_rows(n)
    count = max(len(n.attr("classlabels_ints") or n.attr("classlabels_strings") or []), 1)
    weights = np.asarray(n.attr("coefficients"), np.float32)
    rho, sizes = np.asarray(n.attr("rho") or [0.0], np.float32), list(n.attr("vectors_per_class") or [])
    how = str(n.attr("post_transform", "NONE"))
    if not sum(sizes):
        turned = n.builder.constant(np.ascontiguousarray(weights.reshape(count, -1).T))
        scores = n.op("Add", n.op("MatMul", x, turned), float(rho[0]))
        return _svm_label(n, n.op("ArgMax", scores, axis=1, keepdims=False)), transformed(n, scores, how)
    vectors = np.asarray(n.attr("support_vectors"), np.float32).reshape(sum(sizes), -1)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    spread = _pair_weights(weights.reshape(-1, sum(sizes)), sizes, pairs)
    scores = n.op("MatMul", _kernel(n, x, vectors), n.builder.constant(spread))
    scores = n.op("Add", scores, n.builder.constant(rho[: len(pairs)]))
    place = n.op("ArgMax", _votes(n, scores, pairs, count), axis=1, keepdims=False)
    if n.attr("prob_a"):
        return _svm_label(n, place), transformed(n, _probabilities(n, scores, pairs, count), how)
    if len(pairs) > 1:
        return _svm_label(n, place), transformed(n, scores, how)
    if weights.min() >= 0:  # the second class, whoever wins: as ONNX Runtime has it
        place = n.op("Add", n.op("Mul", place, 0), 1)
    return _svm_label(n, place), transformed(n, n.op("Concat", n.op("Neg", scores), scores, axis=1), how)


def _svm_label(n: Node, place: Any) -> Any:
    return labelled(n, n.op("Cast", place, to="int64"))


def _pair_weights(weights: np.ndarray, sizes: list[int], pairs: list[tuple[int, int]]) -> np.ndarray:
    """The weight of each support vector (rows) in the score of each pair (columns)."""
    starts = np.concatenate([[0], np.cumsum(sizes)])
    spread = np.zeros((starts[-1], len(pairs)), np.float32)
    for column, (i, j) in enumerate(pairs):
        first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        spread[first, column] = weights[j - 1, first]
        spread[second, column] = weights[i, second]
    return spread


def _votes(n: Node, scores: Any, pairs: list[tuple[int, int]], count: int) -> Any:
    """The number of pairs that each class wins: the first with a score above zero, else the second."""
    won, lost = (np.zeros((len(pairs), count), np.float32) for _ in range(2))
    for row, (i, j) in enumerate(pairs):
        won[row, i], lost[row, j] = 1, 1
    first = n.op("Cast", n.op("Greater", scores, 0.0), to="float32")
    gained = n.op("MatMul", first, n.builder.constant(won - lost))
    return n.op("Add", gained, n.builder.constant(lost.sum(0)))


def _probabilities(n: Node, scores: Any, pairs: list[tuple[int, int]], count: int) -> Any:
    """Probabilities of classes from those of pairs, by the iteration of Wu, Lin and Weng (2004), method two."""
    slope, shift = (n.builder.constant(np.asarray(n.attr(a), np.float32)) for a in ("prob_a", "prob_b"))
    beside = n.op("Sub", 1.0, n.op("Sigmoid", n.op("Add", n.op("Mul", scores, slope), shift)))
    wins = n.op("Clip", beside, min=1e-7, max=1 - 1e-7)
    columns = [n.op("Gather", wins, np.asarray([k]), axis=1) for k in range(len(pairs))]
    ratio: dict[tuple[int, int], Any] = {}
    for column, (i, j) in zip(columns, pairs, strict=True):
        ratio[i, j], ratio[j, i] = column, n.op("Sub", 1.0, column)
    rows = desc_of(scores).shape[0]
    matrix = [_matrix_row(n, ratio, t, count) for t in range(count)]
    steps = max(100, count)
    start = n.op("BroadcastTo", np.float32(1.0 / count), shape=[rows, count])
    going = n.op("BroadcastTo", np.float32(1.0), shape=[rows, 1])

    def step(b: Any, counter: Any, states: list[Any]) -> tuple[list[Any], list[Any]]:
        return _refined(b, states[0], states[1], matrix, 0.005 / count), []

    return repeat(n.builder, steps, [start, going], step)[0][0]


def _matrix_row(n: Node, ratio: dict[tuple[int, int], Any], t: int, count: int) -> Any:
    others = [j for j in range(count) if j != t]
    own = None
    for j in others:
        square = n.op("Square", ratio[j, t])
        own = square if own is None else n.op("Add", own, square)
    cells = [own if j == t else n.op("Neg", n.op("Mul", ratio[j, t], ratio[t, j])) for j in range(count)]
    return n.op("Concat", *cells, axis=1)


def _refined(b: Any, guess: Any, going: Any, matrix: list[Any], limit: float) -> list[Any]:
    """One round over all classes, for the rows that have not converged."""
    sums = [b.op("ReduceSum", b.op("Mul", row, guess), axes=[1], keepdims=True) for row in matrix]
    products = b.op("Concat", *sums, axis=1)
    total = b.op("ReduceSum", b.op("Mul", guess, products), axes=[1], keepdims=True)
    error = b.op("ReduceMax", b.op("Abs", b.op("Sub", products, total)), axes=[1], keepdims=True)
    still = b.op("Mul", going, b.op("Cast", b.op("GreaterEqual", error, limit), to="float32"))
    p, weighted = guess, products
    for t, row in enumerate(matrix):
        own = b.op("Gather", row, np.asarray([t]), axis=1)
        here = b.op("Gather", weighted, np.asarray([t]), axis=1)
        change = b.op("Div", b.op("Sub", total, here), own)
        scale = b.op("Add", change, 1.0)
        mark = b.constant(np.eye(len(matrix), dtype=np.float32)[t : t + 1])
        p = b.op("Div", b.op("Add", p, b.op("Mul", change, mark)), scale)
        inner = b.op("Add", b.op("Mul", change, own), b.op("Mul", here, 2.0))
        total = b.op("Div", b.op("Add", total, b.op("Mul", change, inner)), b.op("Square", scale))
        weighted = b.op("Div", b.op("Add", weighted, b.op("Mul", change, row)), scale)
    return [b.op("Select", b.op("Greater", still, 0.0), p, guess), still]


def _kernel(n: Node, x: Any, vectors: np.ndarray) -> Any:
    """k(row, support vector) for all pairs."""
    gamma, shift, degree = ([float(v) for v in n.attr("kernel_params") or []] + [0.0, 0.0, 3.0])[:3]
    name = str(n.attr("kernel_type", "LINEAR"))
    turned = n.builder.constant(np.ascontiguousarray(vectors.T))
    if name == "RBF":
        rows, features = desc_of(x).shape
        a = n.op("Reshape", x, shape=[rows, 1, features])
        squares = n.op("SquaredDifference", a, n.builder.constant(vectors.reshape(1, *vectors.shape)))
        return n.op("Exp", n.op("Mul", n.op("ReduceSum", squares, axes=[2]), -gamma))
    product = n.op("MatMul", x, turned)
    if name == "LINEAR":
        return product
    inner = n.op("Add", n.op("Mul", product, gamma), shift)
    if name == "SIGMOID":
        return n.op("Tanh", inner)
    if name == "POLY":
        return n.op("Pow", inner, degree)
    raise Unsupported(f"the kernel {name}", "use LINEAR, POLY, RBF or SIGMOID")
