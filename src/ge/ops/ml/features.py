"""Preparation of features: scaling, normalising, encoding, filling gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.types import numpy_dtype
from ge.ops.ml.scores import DOMAIN, real_rows
from ge.ops.plugins import Node, Results, Unsupported, plugin


def _vector(n: Node, values: Any, dtype: Any = np.float32) -> Any:
    return n.builder.constant(np.asarray(values, dtype))


@plugin(onnx="Scaler", domain=DOMAIN)
def _scaler(n: Node) -> Results:
    x = real_rows(n)
    return n.op("Mul", n.op("Sub", x, _vector(n, n.attr("offset"))), _vector(n, n.attr("scale")))


@plugin(onnx="Normalizer", domain=DOMAIN)
def _normaliser(n: Node) -> Results:
    """Rows divided by their largest element, sum of magnitudes or length."""
    x, norm = real_rows(n), str(n.attr("norm", "MAX"))
    if norm == "MAX":
        size = n.op("ReduceMax", x, axes=[1], keepdims=True)
    elif norm == "L1":
        size = n.op("ReduceSum", n.op("Abs", x), axes=[1], keepdims=True)
    else:
        size = n.op("Sqrt", n.op("ReduceSum", n.op("Square", x), axes=[1], keepdims=True))
    return n.op("Div", x, n.op("Select", n.op("Equal", size, 0.0), 1.0, size))


@plugin(onnx="Binarizer", domain=DOMAIN)
def _binariser(n: Node) -> Results:
    above = n.op("Greater", n.inputs[0], float(n.attr("threshold", 0.0)))
    return n.op("Cast", above, to=n.desc().dtype)


@plugin(onnx="Imputer", domain=DOMAIN)
def _imputer(n: Node) -> Results:
    """A given number where another one stands, often NaN."""
    integers = n.desc().dtype in ("int64", "int32")
    values = n.attr("imputed_value_int64s" if integers else "imputed_value_floats")
    missing = n.attr("replaced_value_int64" if integers else "replaced_value_float", 0)
    x: Any = n.inputs[0]
    absent = n.op("IsNan", x) if not integers and np.isnan(missing) else n.op("Equal", x, missing)
    return n.op("Select", absent, _vector(n, values, numpy_dtype(n.desc().dtype)), x)


@plugin(onnx="ArrayFeatureExtractor", domain=DOMAIN)
def _extractor(n: Node) -> Results:
    """Columns by number; a vector gives a row."""
    picked = n.op(
        "Gather", n.inputs[0], n.op("Reshape", n.inputs[1], shape=[n.desc(1).size]), axis=n.desc().rank - 1
    )
    return n.op("Reshape", picked, shape=[1, n.desc(1).size]) if n.desc().rank == 1 else picked


@plugin(onnx="FeatureVectorizer", domain=DOMAIN)
def _vectoriser(n: Node) -> Results:
    """Inputs side by side."""
    parts = [real_rows(n, i) for i in range(len(n.inputs))]
    return n.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]


@plugin(onnx="OneHotEncoder", domain=DOMAIN)
def _one_hot(n: Node) -> Results:
    """1 at the place of each element in the list of categories; nothing for others."""
    categories = n.attr("cats_int64s")
    if not categories:
        raise Unsupported("categories that are strings", "encode strings before the model")
    if not n.attr("zeros", 1):
        raise Unsupported("an error for unknown categories (zeros=0)", "export with zeros=1")
    x, shape = n.inputs[0], n.desc().shape
    column = n.op(
        "Reshape", x if n.desc().dtype == "int64" else n.op("Cast", x, to="int64"), shape=[*shape, 1]
    )
    return n.op("Cast", n.op("Equal", column, _vector(n, categories, np.int64)), to="float32")


_LISTS = ("int64s", "floats")


@plugin(onnx="LabelEncoder", domain=DOMAIN)
def _label_encoder(n: Node) -> Results:
    """Each element replaced by the value whose key it is, or by a default."""
    keys, values = (_listed(n, side) for side in ("keys", "values"))
    x = n.inputs[0]
    default = n.attr("default_tensor")
    if default is None:
        default = n.attr("default_int64", -1) if values.dtype.kind == "i" else n.attr("default_float", -0.0)
    shape = n.desc().shape
    column = n.op("Reshape", x, shape=[*shape, 1])
    same = n.op("Equal", column, n.builder.constant(keys.astype(numpy_dtype(n.desc().dtype))))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        nan = n.op("And", n.op("IsNan", column), n.builder.constant(np.isnan(keys)))
        same = n.op("Or", same, nan)
    place = n.op("ArgMax", n.op("Cast", same, to="int32"), axis=len(shape), keepdims=False)
    found = n.op("Gather", n.builder.constant(values), place, axis=0)
    known = n.op("ReduceMax", n.op("Cast", same, to="int32"), axes=[len(shape)])
    other = n.builder.constant(np.asarray(default, values.dtype).reshape(()))
    return n.op("Select", n.op("Greater", known, 0), found, other)


def _listed(n: Node, side: str) -> np.ndarray:
    tensor = n.attr(f"{side}_tensor")
    if tensor is not None and np.asarray(tensor).dtype.kind in "if":
        return np.asarray(tensor).reshape(-1)
    for name, dtype in zip(_LISTS, (np.int64, np.float32), strict=True):
        if n.attr(f"{side}_{name}"):
            return np.asarray(n.attr(f"{side}_{name}"), dtype)
    raise Unsupported("keys or values that are strings", "encode strings before the model")


@plugin(onnx="ZipMap", domain=DOMAIN)
def _zip_map(n: Node) -> Results:
    raise Unsupported(
        "its result is a list of dictionaries", "export without it: options={'zipmap': False} in skl2onnx"
    )
