"""ATen: a call as its plugin sees it, for plugins that stand beside the operators.

    simple("Relu", onnx="Relu", tensorflow="Relu", aten="relu")

    @aten("tril", "triu")
    def _triangle(n: AtenNode) -> Any:
        return n.op("Trilu", n.arg("self"), upper=n.type.startswith("triu"), k=int(n.arg("diagonal", 0)))

A name without an overload covers all overloads. The plugins of calls that several operators compute together are in
the modules `aten_….py` of the families; `ge.parsers.aten` loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.ir.types import BOOL, FLOATS, INTS, TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.base import Pattern, is_custom, lookup
from ge.ops.math.truncation import truncated
from ge.ops.plugins import Node, Unsupported, plugin

__all__ = ["AtenNode", "aten", "promoted", "tensors_of"]


@dataclass
class AtenNode(Node):
    """A call as a plugin sees it."""

    results: Sequence[TensorDesc | None] = field(default_factory=list)

    def arg(self, name: str, default: Any = None) -> Any:
        """An argument, the default where it is None or does not exist."""
        value = self.attrs.get(name)
        return default if value is None else value

    def operands(self, attrs: Collection[str] = (), type_: str = "") -> list[ir.Value | None]:
        """The tensors in their order; an argument that is None and not an attribute is absent.

        The operands of a built-in elementwise operator, numbers included, are converted to the type in which PyTorch
        computes the call.
        """
        if type_ and _is_elementwise(type_):
            return self._converted(type_, [v for name, v in self.attrs.items() if name not in attrs])
        found: list[ir.Value | None] = []
        for name, given in self.attrs.items():
            found += [None] if given is None and name not in attrs else tensors_of(given)
        while found and found[-1] is None:
            found.pop()
        return found

    def _converted(self, type_: str, operands: Sequence[Any]) -> list[Any]:
        """Operands in the type of the result, or their common type if the result is bool."""
        kind = self.out().dtype
        kind = promoted(*operands) if kind == "bool" else kind
        ports = lookup(type_).prototype.inputs.values()
        return [
            self.cast(value, "bool" if port.dtypes == BOOL else kind)
            for value, port in zip(operands, ports, strict=True)
        ]

    def out(self, index: int = 0) -> TensorDesc:
        """What the call gives."""
        desc = self.results[index]
        if desc is None:
            raise Unsupported(f"result {index} of {self.type} is not a tensor")
        return desc

    def of(self, value: Any) -> TensorDesc:
        """The description of a tensor argument."""
        return desc_of(value)

    def cast(self, value: Any, dtype: str) -> Any:
        """A tensor or a number in an element type."""
        if not isinstance(value, ir.Value):
            return self.builder.constant(np.asarray(value).astype(numpy_dtype(dtype)))
        source = desc_of(value).dtype
        if source in FLOATS and dtype in INTS:
            return truncated(self, value, dtype)
        return value if source == dtype else self.op("Cast", value, to=dtype)

    def wide(self, value: Any) -> Any:
        """16-bit floats as float32, in which the framework computes them."""
        return self.cast(value, "float32") if desc_of(value).dtype in ("float16", "bfloat16") else value

    def back(self, value: Any, index: int = 0) -> Any:
        """A value in the element type that the call gives."""
        return self.cast(value, self.out(index).dtype)

    def shaped(self, value: Any, shape: Sequence[int]) -> Any:
        """A value under another shape."""
        shape = [int(d) for d in shape]
        return value if list(desc_of(value).shape) == shape else self.op("Reshape", value, shape=shape)

    def spread(self, value: Any, shape: Sequence[int]) -> Any:
        """A value repeated to a shape."""
        shape = [int(d) for d in shape]
        return value if list(desc_of(value).shape) == shape else self.op("BroadcastTo", value, shape=shape)

    def filled(self, number: Any, desc: TensorDesc) -> Any:
        """A tensor of one number."""
        return self.spread(self.cast(number, desc.dtype), desc.shape)

    def turned(self, value: Any, perm: Sequence[int]) -> Any:
        """A value with its axes in another order."""
        perm = [int(p) for p in perm]
        return value if perm == list(range(len(perm))) else self.op("Transpose", value, perm=perm)


def aten(*names: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Declare how ATen operators map (a decorator); a name without an overload is all of them."""
    return plugin(aten=names)


def tensors_of(argument: Any) -> list[ir.Value]:
    """The tensors of an argument, which may be a list of them."""
    items = argument if isinstance(argument, list | tuple) else [argument]
    return [item for item in items if isinstance(item, ir.Value)]


def _is_elementwise(type_: str) -> bool:
    operator = lookup(type_)
    return operator.pattern in (Pattern.ELEMENTWISE, Pattern.BROADCAST) and not is_custom(operator)


# -- types -------------------------------------------------------------------------------------------------

_FLOAT_ORDER = ("bfloat16", "float16", "float32", "float64")
_SIGNED = ("int8", "int16", "int32", "int64")


def _category(dtype: str) -> int:
    return 0 if dtype == "bool" else 1 if dtype in INTS else 2


def _common(a: str, b: str) -> str:
    """The type of both in the framework's lattice of types."""
    if a == b:
        return a
    low, high = sorted((a, b), key=_category)
    if _category(low) != _category(high):
        return high
    if low in FLOATS:
        if {low, high} == {"bfloat16", "float16"}:
            return "float32"
        return max(low, high, key=_FLOAT_ORDER.index)
    if low in _SIGNED and high in _SIGNED:
        return max(low, high, key=_SIGNED.index)
    if {low, high} & {"uint16", "uint32", "uint64"}:
        raise Unsupported(f"no common type of {a} and {b}")
    other = high if low == "uint8" else low
    return "int16" if other == "int8" else other


def promoted(*operands: Any) -> str:
    """The element type in which operands are computed together; tensors with axes count before scalars.

    >>> promoted(1, 2.5)
    'float32'
    """
    ranks: list[Any] = [None, None, None]  # tensors with axes, tensors without, numbers
    for item in operands:
        if isinstance(item, ir.Value):
            level, dtype = (0 if desc_of(item).rank else 1), desc_of(item).dtype
        else:
            level, dtype = 2, _number_type(item)
        ranks[level] = dtype if ranks[level] is None else _common(ranks[level], dtype)
    result: str | None = None
    for dtype in ranks:
        if dtype is None:
            continue
        if result is None or (_category(dtype) > _category(result)):
            result = dtype
    assert result is not None, "operands are needed"
    return result


def _number_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64"
    if isinstance(value, float):
        return "float32"
    raise Unsupported(f"a {type(value).__name__} where a number is expected")
