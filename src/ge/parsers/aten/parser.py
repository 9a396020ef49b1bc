"""ATen's operators as operators of the library: one call at a time, for a front door that walks its own graph.

    emitter = Emitter(builder)
    y = emitter.emit(Call("aten.add.Tensor", "y", {"self": x, "other": 1, "alpha": 1}, [desc]))

Arguments come bound to the names of ATen's schema, defaults filled in: tensors as values of the graph, element types
as their names, numbers and lists as they are. The front door knows what each call gives, and a plugin that gives
something else is refused, so that a call is either mapped exactly or left to the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

import ge.ops  # noqa: F401  the operators
from ge.errors import GeError, UserCodeError
from ge.faults import absorb
from ge.ir.types import FLOATS, INTS, TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.builder import GraphBuilder
from ge.ops.math.truncation import truncated
from ge.ops.plugins import Node, Plugin, Unsupported, find, mapped, plugin

__all__ = ["AtenNode", "Call", "Emitter", "aten", "is_mapped", "names", "promoted"]


@dataclass(frozen=True)
class Call:
    """One ATen call: the operator with its overload, the node's name, its arguments and what it gives."""

    target: str
    name: str
    arguments: Mapping[str, Any]
    results: Sequence[TensorDesc | None]


@dataclass
class AtenNode(Node):
    """A call as a plugin sees it."""

    results: Sequence[TensorDesc | None] = field(default_factory=list)

    def arg(self, name: str, default: Any = None) -> Any:
        """An argument, the default where it is None or does not exist."""
        value = self.attrs.get(name)
        return default if value is None else value

    def operands(self, attrs: Collection[str] = ()) -> list[ir.Value | None]:
        """The tensors in their order; an argument that is None and no attribute is an absent one."""
        found: list[ir.Value | None] = []
        for name, given in self.attrs.items():
            found += [None] if given is None and name not in attrs else _tensors(given)
        while found and found[-1] is None:
            found.pop()
        return found

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
    """Declare how ATen operators map (a decorator); a name without an overload stands for all of them."""
    return plugin(aten=names)


def _found(target: str) -> Plugin | None:
    name = target.removeprefix("aten.")
    return find("aten", name) or find("aten", name.rpartition(".")[0])


def is_mapped(target: str) -> bool:
    """Whether a plugin maps the operator.

    >>> is_mapped("aten.add.Tensor"), is_mapped("aten.nonzero.default")
    (True, False)
    """
    return _found(target) is not None


def names() -> list[str]:
    """The operators with a plugin, by their names without overloads."""
    return sorted({name.partition(".")[0] for name in mapped("aten")})


class Emitter:
    """Emits calls into a graph; raises Unsupported for one that must stay with the framework."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder

    def emit(self, call: Call) -> list[ir.Value | None]:
        """The values that a call gives."""
        found = _found(call.target)
        if found is None:
            raise Unsupported("no plugin maps it", "it runs on the host")
        inputs = [v for given in call.arguments.values() for v in _tensors(given)]
        node = AtenNode(
            call.target.removeprefix("aten."),
            call.name,
            inputs,
            call.arguments,
            len(call.results),
            self.builder,
            parser=self,
            results=call.results,
        )
        self.builder.set_origin(call.name)
        try:
            made = found.apply(node)
        except Unsupported:
            raise
        except GeError as error:
            if isinstance(error, UserCodeError):
                raise
            raise Unsupported(error.cause, error.remedy) from error
        except MemoryError as error:
            raise Unsupported("its result does not fit into memory") from error
        except Exception as error:
            raise Unsupported(str(absorb(f"{call.target} '{call.name}'", error))) from error
        values: list[ir.Value | None] = [made] if isinstance(made, ir.Value) else [*made]
        return _checked(call, values)


def _tensors(argument: Any) -> list[ir.Value]:
    """The tensors of an argument, which may be a list of them."""
    items = argument if isinstance(argument, list | tuple) else [argument]
    return [item for item in items if isinstance(item, ir.Value)]


def _checked(call: Call, values: list[ir.Value | None]) -> list[ir.Value | None]:
    """The values, after a look at whether they are what the framework says."""
    values += [None] * (len(call.results) - len(values))
    for index, (value, wanted) in enumerate(zip(values, call.results, strict=False)):
        if value is not None and wanted is not None and desc_of(value) != wanted:
            raise Unsupported(f"result {index} would be {desc_of(value)} where the framework has {wanted}")
    return values


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
