"""Scopes that control the treatment of the operators created in them."""

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
    """Keep operators created inside on the host in mixed computing.

    with npu_scope.without_npu_compile_scope():
        pred = tf.add(tf.multiply(x, 1.0), 0.0)
    """
    return _marked(HOST_ATTRIBUTE)


def keep_dtype_scope() -> object:
    """Operators created inside keep their element types in every precision mode."""
    return _marked(KEEP_DTYPE_ATTRIBUTE)


@contextmanager
def npu_variable_scope(placement: str = "device") -> Iterator[None]:
    """Placement of variables created inside; no effect, since host and device share memory."""
    if placement not in ("device", "host"):
        raise ValueError(f"placement must be 'device' or 'host', not '{placement}'")
    yield


@contextmanager
def subgraph_multi_dims_scope(index: int) -> Iterator[None]:
    """A subgraph with its own set of sizes; no effect, since models are compiled for the actual sizes."""
    del index
    yield
