"""User-defined converters of operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ge.errors import GeError, UserCodeError
from ge.ops.custom.guard import located
from ge.ops.plugins import Unsupported

__all__ = ["custom_converter", "register_fx_node_ge_converter"]

_CONVERTERS: dict[Any, Callable[..., Any]] = {}


def register_fx_node_ge_converter(aten_op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare how an operator becomes operators of the Graph Engine (a decorator).

    The function gets the builder as keyword `graph`, tensors as values of the graph and the other arguments as they
    are, and returns the operator's results:

    >>> @register_fx_node_ge_converter(torch.ops.mylib.shift.default)      # doctest: +SKIP
    ... def shift(x, amount, *, graph):
    ...     return graph.op("Add", x, float(amount))
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        _CONVERTERS[aten_op] = function
        return function

    return declare


def custom_converter(target: Any) -> Callable[[Any, Any], Any] | None:
    """The user's converter of an operator, as a function of the emission and the node."""
    function = _CONVERTERS.get(target)
    if function is None:
        return None

    def convert(emission: Any, node: Any) -> Any:
        arguments = [emission.argument(a) for a in node.args]
        named = {k: emission.argument(v) for k, v in node.kwargs.items()}
        who = UserCodeError("E10601", "", node=node.name, operator=str(target))
        try:
            return located(
                lambda: function(*arguments, **named, graph=emission.builder),
                who,
                "the converter",
                (Unsupported,),
            )
        except UserCodeError:
            raise
        except GeError as error:
            raise Unsupported(error.cause, error.remedy) from error

    return convert
