"""Operators of the library as PyTorch operators: in compiled graphs they run on the NPU, with their gradients.

    swoosh = torchair.custom_op("Swoosh")
    y = swoosh(x, beta=2.0)

The operator is defined with torch.library in the namespace `ge`; eager mode runs it through the Graph Engine too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ge.ir.types import FLOATS, TensorDesc, numpy_dtype
from ge.ops.base import REQUIRED, Attr, Operator, candidates
from ge.ops.functions import snake_case
from ge.ops.gradients import gradient_type
from ge.ops.plugins import Node, Plugin, add, find
from ge.running import describe_operator, run_operator

__all__ = ["custom_op"]

NAMESPACE = "ge"
_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}

_lock = threading.RLock()
_library: Any = None
_defined: dict[str, tuple[str, Any]] = {}  # operator type -> its schema and its function


def custom_op(type_: str) -> Callable[..., Any]:
    """The PyTorch operator of an operator: tensors in the order of its inputs, attributes by name.

    >>> custom_op("Swoosh")(torch.ones(3), beta=2.0)      # doctest: +SKIP
    """
    from ge.opp import refresh

    refresh()
    operator = candidates(type_)[0]
    with _lock:
        schema = _schema(operator)
        if type_ not in _defined or _defined[type_][0] != schema:
            _defined[type_] = (schema, _define(operator, schema))
        return _defined[type_][1]


def _schema(operator: type[Operator]) -> str:
    inputs = [f"{_tensor(port)} {name}" for name, port in operator.prototype.inputs.items()]
    attrs = [_argument(name, attr) for name, attr in operator.prototype.attrs.items()]
    many = any(port.variadic for port in operator.prototype.outputs.values())
    count = len(operator.prototype.outputs)
    result = "Tensor[]" if many else "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    return (
        f"{snake_case(operator.type)}({', '.join([*inputs, *(['*', *attrs] if attrs else [])])}) -> {result}"
    )


def _tensor(port: Any) -> str:
    return f"Tensor{'?' if port.optional else ''}{'[]' if port.variadic else ''}"


def _argument(name: str, attr: Attr) -> str:
    kind = f"{_TYPES[attr.item]}[]" if attr.type is list else _TYPES[attr.type]
    if attr.default is REQUIRED:
        return f"{kind} {name}"
    if attr.default is None:
        return f"{kind}? {name}=None"
    default = list(attr.default) if attr.type is list else attr.default
    shown = f'"{default}"' if isinstance(default, str) else str(default)
    return f"{kind} {name}={shown}"


def _define(operator: type[Operator], schema: str) -> Any:
    global _library
    if _library is None:
        _library = torch.library.Library(NAMESPACE, "FRAGMENT")
    type_, name = operator.type, schema.partition("(")[0]
    if hasattr(getattr(torch.ops, NAMESPACE), name):
        raise ValueError(f"{type_} was defined before with another prototype: start the program again")
    _library.define(schema)
    full = f"{NAMESPACE}::{name}"
    many = any(port.variadic for port in operator.prototype.outputs.values())

    def results(found: list[Any]) -> Any:
        return found if many else found[0] if len(found) == 1 else tuple(found)

    def compute(*args: Any, **attrs: Any) -> Any:
        made = run_operator(type_, *_flat(args, _array), **_given(attrs))
        return results([_to_torch(x) for x in (made if isinstance(made, tuple) else (made,))])

    def fake(*args: Any, **attrs: Any) -> Any:
        descs = describe_operator(type_, _flat(args, _desc), **_given(attrs))
        like = next(a for a in _flat(args, lambda a: a) if a is not None)
        sizes = [_open(d.shape) if operator.dynamic_outputs else d.shape for d in descs]
        kinds = [getattr(torch, d.dtype) for d in descs]
        return results([like.new_empty(s, dtype=kind) for s, kind in zip(sizes, kinds, strict=True)])

    _library.impl(name, torch.compiler.disable(compute), "CompositeExplicitAutograd")
    torch.library.register_fake(full, fake, lib=_library)
    if operator.gradient is not None:
        _define_gradient(operator, full)
    if find("aten", f"{NAMESPACE}.{name}") is None:
        add(Plugin("aten", f"{NAMESPACE}.{name}", 0, "", _mapping(operator)))
    return getattr(getattr(torch.ops, NAMESPACE), name)


def _mapping(operator: type[Operator]) -> Callable[[Node], Any]:
    """The plugin of the PyTorch operator: absent inputs keep their places."""
    ports, attrs = operator.prototype.inputs, operator.prototype.attrs

    def emitted(n: Node) -> Any:
        given = {name: n.attr(name) for name in attrs if n.attr(name) is not None}
        return n.builder.ops(operator.type, _flat([n.attr(name) for name in ports], lambda a: a), **given)

    return emitted


def _define_gradient(operator: type[Operator], full: str) -> None:
    backward = custom_op(gradient_type(operator.type))
    backward_ports = candidates(gradient_type(operator.type))[0].prototype.inputs

    together = next(iter(backward_ports.values())).variadic

    def setup(ctx: Any, inputs: Sequence[Any], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        outputs = output if isinstance(output, list | tuple) else (output,)
        ctx.save_for_backward(*_flat(inputs, lambda a: a), *outputs)
        ctx.attrs = keyword_only_inputs
        ctx.lengths = [len(x) if isinstance(x, list | tuple) else None for x in inputs]

    def apply(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        tensors = [*saved, *(g.contiguous() for g in _flat(grads, lambda a: a))]
        made = backward(tensors, **ctx.attrs) if together else backward(*tensors, **ctx.attrs)
        made = made if isinstance(made, list | tuple) else (made,)
        found = iter(
            g if x is not None and str(x.dtype).removeprefix("torch.") in FLOATS else None
            for g, x in zip(made, saved, strict=False)
        )
        return tuple(next(found) if n is None else [next(found) for _ in range(n)] for n in ctx.lengths)

    torch.library.register_autograd(full, apply, setup_context=setup, lib=_library)


# -- values -------------------------------------------------------------------------------------------------


def _flat(args: Sequence[Any], convert: Callable[[Any], Any]) -> list[Any]:
    found: list[Any] = []
    for arg in args:
        found += [convert(a) for a in arg] if isinstance(arg, list | tuple) else [convert(arg)]
    return found


def _open(shape: Sequence[int]) -> list[Any]:
    """A shape that is known only after the run."""
    context = torch.library.get_ctx()
    return [context.new_dynamic_size() for _ in shape]


def _given(attrs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if value is not None}


def _desc(tensor: Any) -> TensorDesc | None:
    if tensor is None:
        return None
    return TensorDesc(tuple(int(d) for d in tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _array(tensor: Any) -> Any:
    if tensor is None:
        return None
    plain = tensor.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:
        return plain.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return plain.numpy()


def _to_torch(array: Any) -> Any:
    if array.dtype == numpy_dtype("bfloat16"):
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)
