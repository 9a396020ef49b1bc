"""What classifiers and regressors have in common: rows of features, transformed scores, labels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ge.interface.strings import identify
from ge.ir import facts
from ge.ir.values import desc_of
from ge.ops.plugins import Node, Results, Unsupported

__all__ = ["DOMAIN", "TEXT", "classified", "labelled", "real_rows", "transformed"]

DOMAIN = "ai.onnx.ml"
TEXT = "string"  # the mark of values that hold identifiers of strings


def real_rows(n: Node, index: int = 0) -> Any:
    """An input as rows of float32 features; a vector is one row."""
    desc, x = n.desc(index), n.inputs[index]
    x = x if desc.dtype == "float32" else n.op("Cast", x, to="float32")
    return n.op("Reshape", x, shape=[1, *desc.shape]) if desc.rank == 1 else x


def transformed(n: Node, scores: Any, how: str) -> Any:
    """Scores after `post_transform`."""
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return n.op("Sigmoid", scores)
    if how == "SOFTMAX":
        return n.op("Softmax", scores, axes=[1])
    if how == "SOFTMAX_ZERO":  # zeros stay zeros
        zero = n.op("Equal", scores, 0.0)
        hidden = n.op("Select", zero, -math.inf, scores)
        return n.op("Select", zero, 0.0, n.op("Softmax", hidden, axes=[1]))
    if how == "PROBIT":
        return _probit(n, scores)
    raise Unsupported(f"the transformation {how} of scores", "use one of ONNX's")


def _probit(n: Node, scores: Any) -> Any:
    """The inverse of the normal distribution, by Winitzki's approximation, which ONNX Runtime uses."""
    x = n.op("Sub", n.op("Mul", scores, 2.0), 1.0)
    log = n.op("Log", n.op("Mul", n.op("Sub", 1.0, x), n.op("Add", 1.0, x)))
    v = n.op("Add", n.op("Mul", log, 0.5), 2.0 / (math.pi * 0.147))
    inner = n.op("Sub", n.op("Square", v), n.op("Mul", log, 1.0 / 0.147))
    size = n.op("Sqrt", n.op("Sub", n.op("Sqrt", inner), v))
    signed = n.op("Select", n.op("Less", x, 0.0), n.op("Neg", size), size)
    return n.op("Mul", signed, 1.41421356)


def classified(n: Node, scores: Any, count: int, positive: bool) -> Results:
    """The label and the scores of each row.

    Of two classes one score is enough. Where no weight is negative it is the second's probability and the label
    changes above one half; else the label changes above zero, and the first class has the score's negative.
    """
    how = str(n.attr("post_transform", "NONE"))
    rows, width = desc_of(scores).shape
    if width > 1 or count != 2:
        place = n.op("ArgMax", scores, axis=1, keepdims=False)
        return labelled(n, place), transformed(n, scores, how)
    second = n.op("Greater", scores, 0.5 if positive else 0.0)
    place = n.op("Reshape", n.op("Cast", second, to="int64"), shape=[rows])
    if positive:
        both = n.op("Concat", n.op("Sub", 1.0, scores), scores, axis=1)
    else:
        both = n.op("Concat", n.op("Neg", scores), scores, axis=1)
        both = n.op("Sigmoid", both) if how == "LOGISTIC" else both
    return labelled(n, place), both


def labelled(n: Node, place: Any) -> Any:
    """The label of each row, by the position of its class."""
    numbers = n.attr("classlabels_int64s") or n.attr("classlabels_ints")
    strings = n.attr("classlabels_strings")
    if not numbers and not strings:
        raise Unsupported("a classifier without labels", "check the model")
    table = np.asarray(numbers, np.int64) if numbers else identify(np.asarray(strings, object))
    found = n.op("Gather", n.builder.constant(table), place, axis=0)
    if not numbers:
        facts.set_narrow(found, TEXT)
    return found
