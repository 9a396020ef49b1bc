"""The part of TVM's names that operator files of the vector DSL use.

`compute` with index functions, `reduce_axis` with `sum`, `max`, `min` and `prod`, `select` and the mathematical
functions work on expressions; schedules written by hand are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tbe import expr as e
from tbe.dsl import tensor as _tensor
from tbe.dsl import tracing as _tracing
from tbe.dsl.tensor import Expr, IterVar, SymbolicVar, Tensor, const, dtype_name

__all__ = [
    "Tensor",
    "abs",
    "all",
    "any",
    "api",
    "build",
    "cast",
    "ceil",
    "compute",
    "const",
    "convert",
    "create_schedule",
    "div",
    "exp",
    "expr",
    "extern",
    "floor",
    "floordiv",
    "floormod",
    "if_then_else",
    "log",
    "max",
    "min",
    "placeholder",
    "power",
    "prod",
    "reduce_axis",
    "round",
    "select",
    "sigmoid",
    "sqrt",
    "sum",
    "tanh",
    "target",
    "tensor",
    "thread_axis",
    "topi",
    "trunc",
    "truncdiv",
    "truncmod",
    "var",
]


def placeholder(
    shape: Any, dtype: str | None = None, name: str = "placeholder", attrs: dict[str, Any] | None = None
) -> Tensor:
    """An input of the operator. A dimension may be a variable whose value the operator's input tells.

    >>> placeholder((2, 3), name="x", dtype="float16")
    Tensor('x', float16[2, 3])
    """
    dims = [shape] if isinstance(shape, (int, SymbolicVar)) else list(shape)
    dtype = dtype_name(dtype or "float32")
    known = _tracing.dimensions(dims)
    return Tensor(e.placeholder(known, dtype, name), name, "", (), attrs)


def var(name: str = "tindex", dtype: str = "int32") -> SymbolicVar:
    """A dimension that is known when the operator is run for given inputs."""
    return SymbolicVar(name, dtype)


class Reduction:
    """A reduction over axes of `reduce_axis`; the whole body of a compute."""

    def __init__(self, op: str, source: Expr, axes: Sequence[IterVar]) -> None:
        self.op = op
        self.source = source
        self.axes = list(axes)


def reduce_axis(dom: Any, name: str = "rv", *_: Any) -> IterVar:
    """An axis to reduce over, from `dom = (0, extent)`."""
    low, high = dom
    if int(low):
        raise ValueError(f"a reduction axis starts at 0, not at {int(low)}: shift the index instead")
    return IterVar(int(high), name)


def compute(
    shape: Any,
    fcompute: Callable[..., Any],
    name: str = "compute",
    tag: str = "",
    attrs: dict[str, Any] | None = None,
) -> Tensor:
    """A tensor given element by element by a function of its indices.

    >>> x = placeholder((2, 3), "float32", "x")
    >>> k = reduce_axis((0, 3), "k")
    >>> compute((2,), lambda i: sum(x[i, k] * 2.0, axis=k), name="rows")
    Tensor('rows', float32[2])
    """
    dims = [int(d) for d in (shape if isinstance(shape, (list, tuple)) else [shape])]
    axes = [IterVar(d, f"i{n}") for n, d in enumerate(dims)]
    body = fcompute(*axes)
    if isinstance(body, (list, tuple)):
        raise NotImplementedError("tvm.compute with several results: write one compute for each")
    if isinstance(body, Reduction):
        made, reads = _reduction(dims, axes, body)
    else:
        value = _tensor.as_expr(body)
        scalar = e.cast(value.scalar, value.dtype)
        made, reads = e.from_scalar(tuple(dims), _variables(axes), scalar), value.reads
    return Tensor(made, name, tag, reads, attrs)


def _variables(axes: Sequence[IterVar]) -> tuple[e.Var, ...]:
    return tuple(v.scalar for v in axes if isinstance(v.scalar, e.Var))


def _reduction(dims: list[int], axes: list[IterVar], body: Reduction) -> tuple[e.Tensor, tuple[Tensor, ...]]:
    whole = [*axes, *body.axes]
    shape = (*dims, *(a.extent for a in body.axes))
    source = e.cast(body.source.scalar, body.source.dtype)
    full = e.from_scalar(shape, _variables(whole), source)
    return e.reduce(body.op, full, range(len(dims), len(shape))), body.source.reads


def _reducer(op: str, joined: str) -> Callable[..., Any]:
    def reducer(expr: Any, axis: Any = None, where: Any = None, **_: Any) -> Any:
        if axis is None:
            raise TypeError(f"tvm.{op} reduces: give the axis")
        if isinstance(axis, (list, tuple)) and axis and all_axes(axis):
            axes = list(axis)
        elif isinstance(axis, IterVar):
            axes = [axis]
        else:
            return _tensor.binary_expr(joined, expr, axis)  # of two values
        source = _tensor.as_expr(expr)
        if where is not None:
            raise NotImplementedError(f"tvm.{op} with a condition: use tvm.select inside it")
        return Reduction(op, source, axes)

    reducer.__name__ = op
    reducer.__doc__ = f"The {op} over an axis of reduce_axis."
    return reducer


def all_axes(values: Sequence[Any]) -> bool:
    """Whether every value is an axis."""
    return builtin_all(isinstance(v, IterVar) for v in values)


builtin_all = all
sum = _reducer("sum", "add")
prod = _reducer("prod", "mul")
max = _reducer("max", "max")
min = _reducer("min", "min")


def select(condition: Any, true_value: Any, false_value: Any) -> Expr:
    """One of two values."""
    holds = _tensor.as_expr(condition)
    (a, b), is_index, reads = _tensor.meet(true_value, false_value)
    if holds.dtype != "bool":
        raise TypeError(f"a condition must be a comparison, not {holds.dtype}")
    return Expr(e.select(holds.scalar, a, b), is_index, _joined(holds.reads, reads))


if_then_else = select


def _joined(*groups: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple({id(t): t for group in groups for t in group}.values())


def _logic(op: str) -> Callable[..., Expr]:
    def logic(*conditions: Any) -> Expr:
        result = _tensor.as_expr(conditions[0])
        for condition in conditions[1:]:
            result = _tensor.binary_expr(op, result, condition)
        return result

    logic.__doc__ = f"Conditions joined by {op}."
    return logic


all = _logic("and")
any = _logic("or")


def cast(value: Any, dtype: str) -> Expr:
    """Convert: float to int truncates."""
    return _tensor.as_expr(value).astype(dtype)


def convert(value: Any) -> Any:
    """A number as a typed number; lists element by element."""
    if isinstance(value, (list, tuple)):
        return [convert(v) for v in value]
    return const(value) if isinstance(value, (int, float)) else value


def _unary(op: str) -> Callable[[Any], Expr]:
    def function(x: Any) -> Expr:
        value = _tensor.as_expr(x)
        scalar = e.cast(value.scalar, value.dtype)
        if op not in ("abs", "floor", "ceil", "round", "trunc") and scalar.dtype.startswith(("int", "uint")):
            scalar = e.cast(scalar, "float32")
        return Expr(e.unary(op, scalar), reads=value.reads)

    function.__name__ = op
    function.__doc__ = f"{op} of a value."
    return function


exp, exp2, log, log2, sqrt, rsqrt = map(_unary, ("exp", "exp2", "log", "log2", "sqrt", "rsqrt"))
tanh, sigmoid, erf, sin, cos, tan = map(_unary, ("tanh", "sigmoid", "erf", "sin", "cos", "tan"))
asin, acos, atan, sinh, cosh = map(_unary, ("asin", "acos", "atan", "sinh", "cosh"))
abs, floor, ceil, round, trunc = map(_unary, ("abs", "floor", "ceil", "round", "trunc"))


def _two(op: str) -> Callable[[Any, Any], Expr]:
    def function(a: Any, b: Any) -> Expr:
        return _tensor.binary_expr(op, a, b)

    function.__doc__ = f"{op} of two values."
    return function


power = pow = _two("pow")
floordiv, floormod, truncdiv, truncmod, div = map(_two, ("floordiv", "mod", "div", "fmod", "div"))


def _refused(name: str, remedy: str) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"tvm.{name} is not part of the vector DSL here: {remedy}")

    function.__doc__ = f"Refused: {remedy}."
    return function


create_schedule = _refused("create_schedule", "leave the loops to auto_schedule")
thread_axis = _refused("thread_axis", "leave the loops to auto_schedule")
extern = _refused("extern", "write the computation with compute or the functions of tbe.dsl")
comm_reducer = _refused("comm_reducer", "use sum, prod, max or min")
scan = _refused("scan", "use the CumSum and CumProd operators of the Graph Engine")
lower = _refused("lower", "use tbe.build")


def build(
    sch: Any,
    args: Sequence[Any] = (),
    target: Any = "",
    target_host: Any = None,
    name: str = "kernel",
    **_: Any,
) -> Any:
    """Build a schedule with the tensors of the operator: its inputs, then its outputs."""
    from tbe.dsl.building import build as of_schedule

    return of_schedule(sch, {"name": name, "tensor_list": list(args)})


from tbe.tvm import api, expr, target, tensor, topi  # noqa: E402
