"""Scopes that say how the operators made in them are treated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow.compat.v1 as tf

__all__ = [
    "HOST_ATTRIBUTE",
    "KEEP_DTYPE_ATTRIBUTE",
    "keep_dtype_scope",
    "npu_variable_scope",
    "subgraph_multi_dims_scope",
    "without_npu_compile_scope",
]

HOST_ATTRIBUTE = "_without_npu_compile"
KEEP_DTYPE_ATTRIBUTE = "_keep_dtype"


@contextmanager
def _marked(attribute: str) -> Iterator[None]:
    from tensorflow.core.framework import attr_value_pb2

    value = attr_value_pb2.AttrValue(b=True)
    with tf.get_default_graph()._attr_scope({attribute: value}):
        yield


def without_npu_compile_scope() -> object:
    """Operators made inside stay on the host in mixed computing.

    with npu_scope.without_npu_compile_scope():
        pred = tf.add(tf.multiply(x, 1.0), 0.0)
    """
    return _marked(HOST_ATTRIBUTE)


def keep_dtype_scope() -> object:
    """Operators made inside keep their own element types, whatever the precision mode."""
    return _marked(KEEP_DTYPE_ATTRIBUTE)


@contextmanager
def npu_variable_scope(placement: str = "device") -> Iterator[None]:
    """Placement of variables made inside; host and device share memory here, so it makes no difference."""
    if placement not in ("device", "host"):
        raise ValueError(f"placement must be 'device' or 'host', not '{placement}'")
    yield


@contextmanager
def subgraph_multi_dims_scope(index: int) -> Iterator[None]:
    """A part with its own set of sizes; models are compiled for the sizes that come, so nothing is to be done."""
    del index
    yield
