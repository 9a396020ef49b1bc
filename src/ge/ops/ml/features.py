"""Preparation of features: scaling, normalising, encoding, filling gaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.interface.strings import identify
from ge.ir import facts
from ge.ir.types import numpy_dtype
from ge.ops.math.checks import in_range
from ge.ops.ml.scores import DOMAIN, TEXT, real_rows
from ge.ops.plugins import Maps, Node, Results, Unsupported, plugin


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


def _keys(n: Node, values: Any) -> Any:
    """Numbers or strings to compare the input with, as a constant."""
    array = np.asarray(values)
    if array.dtype.kind in "OSU":
        if facts.narrow(n.input(0)) != TEXT:
            raise Unsupported("strings are looked for among numbers", "feed strings")
        return n.builder.constant(identify(array))
    if facts.narrow(n.input(0)) == TEXT:
        raise Unsupported("numbers are looked for among strings", "feed numbers")
    return n.builder.constant(array.astype(numpy_dtype(n.desc().dtype)))


@plugin(onnx="OneHotEncoder", domain=DOMAIN)
def _one_hot(n: Node) -> Results:
    """1 at the place of each element in the list of categories; nothing for others."""
    categories = n.attr("cats_int64s") or n.attr("cats_strings")
    x, shape = n.inputs[0], n.desc().shape
    whole = n.desc().dtype == "int64"
    column = n.op("Reshape", x if whole else n.op("Cast", x, to="int64"), shape=[*shape, 1])
    keys = _keys(n, categories) if whole else _vector(n, categories, np.int64)
    hits = n.op("Cast", n.op("Equal", column, keys), to="float32")
    if n.attr("zeros", 1):
        return hits
    known = n.op("ReduceMax", hits, axes=[len(shape)], keepdims=True)
    unknown = n.op("Cast", n.op("Sub", 1.0, known), to="int64")
    text = "the element at {place} is none of the categories"
    none = in_range(n.builder, unknown, [1], operator=n.type, message=text)
    return n.op("Sub", hits, n.op("Cast", none, to="float32"))  # by zero, once the check has passed


_LISTS = {"int64s": np.int64, "floats": np.float32, "strings": object}


@plugin(onnx="LabelEncoder", domain=DOMAIN)
def _label_encoder(n: Node) -> Results:
    """Each element replaced by the value whose key it is, or by a default."""
    if n.attr("classes_strings") is not None:
        return _first_label_encoder(n)
    keys, values = (_listed(n, side) for side in ("keys", "values"))
    default = n.attr("default_tensor")
    if default is None:
        names = {"i": ("default_int64", -1), "f": ("default_float", -0.0)}
        default = n.attr(*names.get(values.dtype.kind, ("default_string", "_Unused")))
    return _looked_up(n, keys, values, np.asarray(default).reshape(-1)[0])


def _first_label_encoder(n: Node) -> Results:
    """Version 1: strings to their positions, or positions to strings."""
    classes = np.asarray(n.attr("classes_strings"), object)
    places = np.arange(len(classes), dtype=np.int64)
    if facts.narrow(n.input(0)) == TEXT:
        return _looked_up(n, classes, places, n.attr("default_int64", -1))
    return _looked_up(n, places, classes, n.attr("default_string", "_Unused"))


@plugin(onnx="CategoryMapper", domain=DOMAIN)
def _category_mapper(n: Node) -> Results:
    """Strings to numbers or numbers to strings."""
    strings, numbers = np.asarray(n.attr("cats_strings"), object), np.asarray(n.attr("cats_int64s"), np.int64)
    if facts.narrow(n.input(0)) == TEXT:
        return _looked_up(n, strings, numbers, n.attr("default_int64", -1))
    return _looked_up(n, numbers, strings, n.attr("default_string", "_Unused"))


def _looked_up(n: Node, keys: np.ndarray, values: np.ndarray, default: Any) -> Any:
    """The value of the first equal key for each element."""
    shape, text = n.desc().shape, values.dtype.kind in "OSU"
    column = n.op("Reshape", n.inputs[0], shape=[*shape, 1])
    same = n.op("Equal", column, _keys(n, keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        nan = n.op("And", n.op("IsNan", column), n.builder.constant(np.isnan(keys)))
        same = n.op("Or", same, nan)
    hits = n.op("Cast", same, to="int32")
    place = n.op("ArgMax", hits, axis=len(shape), keepdims=False)
    table = identify(values) if text else values
    other = identify(np.asarray(default, object)) if text else np.asarray(default, values.dtype)
    found = n.op("Gather", n.builder.constant(table), place, axis=0)
    known = n.op("Greater", n.op("ReduceMax", hits, axes=[len(shape)]), 0)
    result = n.op("Select", known, found, n.builder.constant(other))
    if text:
        facts.set_narrow(result, TEXT)
    return result


def _listed(n: Node, side: str) -> np.ndarray:
    tensor = n.attr(f"{side}_tensor")
    if tensor is not None:
        return np.asarray(tensor).reshape(-1)
    for name, dtype in _LISTS.items():
        if n.attr(f"{side}_{name}"):
            return np.asarray(n.attr(f"{side}_{name}"), dtype)
    raise Unsupported(f"it has no {side}", "check the model")


@plugin(onnx="ZipMap", domain=DOMAIN)
def _zip_map(n: Node) -> Results:
    """Rows as dictionaries, made when a caller gets them."""
    keys = n.attr("classlabels_int64s") or n.attr("classlabels_strings") or []
    value, shape = n.inputs[0], n.desc().shape
    if not keys or not shape or shape[-1] != len(keys):
        raise Unsupported(f"{len(keys)} keys for rows of shape {shape}", "check the model")
    return Maps(value, tuple(keys))  # type: ignore[arg-type, return-value]
