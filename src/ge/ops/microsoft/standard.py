"""ONNX's own operators, for plugins of operators that are defined by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Node, find

__all__ = ["DOMAIN", "Writer", "activated", "results_of", "standard", "transposed"]

DOMAIN = "com.microsoft"
VERSION = 21  # of the operator set that `standard` speaks

_PARAMETERS = {  # of activations, in the order of `activation_params`
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "HardSwish": (),
    "Gelu": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


def results_of(
    n: Node, type_: str, inputs: Sequence[Any], outputs: int, version: int = VERSION, **attrs: Any
) -> list[Any]:
    """The results of an operator of ONNX itself."""
    found = find("onnx", type_, version)
    assert found is not None, f"no plugin maps {type_}"
    node = dataclasses.replace(
        n, type=type_, inputs=list(inputs), attrs=attrs, outputs=outputs, version=version, domain=""
    )
    results = found.apply(node)
    return [results] if isinstance(results, ir.Value) else list(results)


def standard(n: Node, type_: str, *inputs: Any, version: int = VERSION, **attrs: Any) -> Any:
    """The first result of an operator of ONNX itself."""
    return results_of(n, type_, inputs, 1, version, **attrs)[0]


@dataclass(frozen=True)
class Writer:
    """Writes operators of ONNX into a graph."""

    node: Node
    builder: GraphBuilder

    def op(self, type_: str, *inputs: Any, **attrs: Any) -> Any:
        """The first result of an operator of ONNX; arrays become constants."""
        return self.ops(type_, *inputs, outputs=1, **attrs)[0]

    def ops(self, type_: str, *inputs: Any, outputs: int, **attrs: Any) -> list[Any]:
        """All results of an operator of ONNX."""
        node = dataclasses.replace(self.node, builder=self.builder)
        values = [self.builder.constant(i) if isinstance(i, np.ndarray | np.generic) else i for i in inputs]
        return results_of(node, type_, values, outputs, **attrs)

    def cast(self, x: Any, dtype: str) -> Any:
        """x in another element type."""
        return self.builder.op("Cast", x, to=dtype)

    def reshape(self, x: Any, *shape: int) -> Any:
        """x in another shape."""
        return self.builder.op("Reshape", x, shape=list(shape))

    def part(self, x: Any, axis: int, start: int, end: int) -> Any:
        """The elements from start to end along an axis."""
        return self.op("Slice", x, *(np.array([v]) for v in (start, end, axis)))

    def body(self, graph: Any, args: Sequence[Any]) -> list[Any]:
        """The results of a graph that an attribute holds."""
        results: list[Any] = self.node.parser.body(graph, self.builder, args)
        return results


def activated(n: Node, y: Any, parameters: Sequence[float] = ()) -> Any:
    """y after the activation that the attribute `activation` names."""
    name = str(n.attr("activation", "") or "")
    if not name:
        return y
    if name == "Clip":
        low, high = (*parameters, -3.4028235e38, 3.4028235e38)[:2] if parameters else (None, None)
        return n.op("Clip", y, min=low, max=high)
    given: dict[str, Any] = dict(zip(_PARAMETERS.get(name, ()), map(float, parameters), strict=False))
    return standard(n, name, y, **given)


def transposed(n: Node, value: Any, last: bool) -> Any:
    """Images with channels moved to the last axis, or back to the second."""
    rank = len(value.shape)
    perm = [0, *range(2, rank), 1] if last else [0, rank - 1, *range(1, rank - 1)]
    return n.op("Transpose", value, perm=perm)
