"""Single operators by type: their output descriptions, and running them on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.compiler import compile_graph
from ge.errors import GeError
from ge.identity import process_identity
from ge.ir.types import TensorDesc
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.custom import search
from npu_runtime.bounded import BoundedCache

__all__ = ["describe_operator", "run_operator"]

MOST = 256  # compiled operators that are cached

_models: BoundedCache[tuple[Any, ...], Any] = BoundedCache(MOST)


def describe_operator(type_: str, inputs: Sequence[TensorDesc | None], **attrs: Any) -> list[TensorDesc]:
    """The output descriptions of an operator for inputs of some shapes and element types.

    >>> describe_operator("Relu", [TensorDesc((2, 3), "float32")])
    [TensorDesc(shape=(2, 3), dtype='float32')]
    """
    return [desc_of(v) for v in _built(type_, inputs, attrs)[1]]


def run_operator(type_: str, *arrays: Any, **attrs: Any) -> Any:
    """Run an operator on arrays; compiled once per signature.

    >>> run_operator("Relu", np.array([-1, 2], np.float32))
    array([0., 2.], dtype=float32)
    """
    given = [None if a is None else np.asarray(a) for a in arrays]
    descs = [None if a is None else TensorDesc(a.shape, a.dtype.name) for a in given]
    model = _model(type_, descs, attrs)
    results = model.run([a for a in given if a is not None])
    return results[0] if len(results) == 1 else tuple(results)


def _built(
    type_: str, inputs: Sequence[TensorDesc | None], attrs: dict[str, Any]
) -> tuple[GraphBuilder, tuple[Any, ...]]:
    builder = GraphBuilder(type_)
    values = [None if d is None else builder.input(f"x{i}", d.shape, d.dtype) for i, d in enumerate(inputs)]
    return builder, builder.checked_ops(type_, values, **attrs)


def _model(type_: str, inputs: Sequence[TensorDesc | None], attrs: dict[str, Any]) -> Any:
    search.refresh()  # before the key, which covers the loaded operators, is computed
    try:
        key = (type_, tuple(inputs), repr(sorted(attrs.items())), process_identity())
    except TypeError as error:
        raise GeError("E10003", f"attributes {attrs} of {type_} are not plain values") from error
    found = _models.get(key)
    if found is not None:
        return found
    builder, results = _built(type_, inputs, attrs)
    for value in results:
        builder.output(value)
    return _models.put(key, compile_graph(builder.graph, name=type_))
