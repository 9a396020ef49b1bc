"""Maps single ATen calls to operators of the library, for front doors that walk their own graph.

    emitter = Emitter(builder)
    y = emitter.emit(Call("aten.add.Tensor", "y", {"self": x, "other": 1, "alpha": 1}, [desc]))

Arguments come bound to the names of ATen's schema, defaults filled in: tensors as values of the graph, element types
as their names, numbers and lists as they are. The front door knows what each call gives, and a plugin that gives
something else is refused, so that a call is either mapped exactly or left to the framework.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

import ge.ops  # noqa: F401  the operators
from ge.errors import GeError, UserCodeError
from ge.faults import absorb
from ge.ir.types import TensorDesc
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, tensors_of
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Plugin, Unsupported, find, mapped

__all__ = ["Call", "Emitter", "is_mapped", "names"]


@dataclass(frozen=True)
class Call:
    """One ATen call: the operator with its overload, the node's name, its arguments and what it gives."""

    target: str
    name: str
    arguments: Mapping[str, Any]
    results: Sequence[TensorDesc | None]


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
        inputs = [v for given in call.arguments.values() for v in tensors_of(given)]
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


def _checked(call: Call, values: list[ir.Value | None]) -> list[ir.Value | None]:
    """The values, after a look at whether they are what the framework says."""
    values += [None] * (len(call.results) - len(values))
    for index, (value, wanted) in enumerate(zip(values, call.results, strict=False)):
        if value is not None and wanted is not None and desc_of(value) != wanted:
            raise Unsupported(f"result {index} would be {desc_of(value)} where the framework has {wanted}")
    return values
