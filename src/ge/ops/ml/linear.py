"""Linear models and support vector machines."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.ml.scores import DOMAIN, classified, real_rows, transformed
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
    if n.attr("post_transform", "NONE") != "NONE" or n.attr("one_class", 0):
        raise Unsupported("SVMRegressor with a transformation or one class", "use its plain form")
    x = real_rows(n)
    rho = float((n.attr("rho") or [0.0])[0])
    weights = np.asarray(n.attr("coefficients"), np.float32)
    count = int(n.attr("n_supports", 0))
    if not count:
        y = n.op("MatMul", x, n.builder.constant(weights.reshape(-1, 1)))
    else:
        vectors = np.asarray(n.attr("support_vectors"), np.float32).reshape(count, -1)
        y = n.op("MatMul", _kernel(n, x, vectors), n.builder.constant(weights.reshape(-1, 1)))
    return n.op("Add", y, rho)


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
