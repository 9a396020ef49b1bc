"""ONNX's own operators, for plugins of operators that are defined by them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ge.ops.plugins import Node, find

__all__ = ["DOMAIN", "activated", "results_of", "standard", "transposed"]

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
