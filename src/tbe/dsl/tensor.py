"""The values of operator files: tensors, scalar expressions inside `tvm.compute`, and typed numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from tbe import expr as e
from tbe.dtypes import DTYPES, dtype_of

__all__ = [
    "Dim",
    "Expr",
    "FloatImm",
    "IntImm",
    "IterVar",
    "Operation",
    "SymbolicVar",
    "Tensor",
    "const",
    "dsl_function",
    "dtype_name",
    "lift",
    "lower",
    "number",
]

_SPELLINGS = {"float": "float32", "double": "float64", "half": "float16", "int": "int32", "bfp16": "bfloat16"}


def dtype_name(dtype: Any) -> str:
    """The name of a type as operator files and information libraries spell it.

    >>> dtype_name("float"), dtype_name("FLOAT16")
    ('float32', 'float16')
    """
    name = str(dtype).lower()
    return dtype_of(_SPELLINGS.get(name, name)).name


class IntImm(int):
    """An integer with a type, as `tvm.const(1, "int32")` gives it."""

    dtype: str

    def __new__(cls, value: int, dtype: str = "int32") -> IntImm:
        made = super().__new__(cls, value)
        made.dtype = dtype
        return made

    @property
    def value(self) -> int:
        """The plain number."""
        return int(self)


class FloatImm(float):
    """A number with a type, as `tvm.const(1.0, "float32")` gives it."""

    dtype: str

    def __new__(cls, value: float, dtype: str = "float32") -> FloatImm:
        made = super().__new__(cls, value)
        made.dtype = dtype
        return made

    @property
    def value(self) -> float:
        """The plain number."""
        return float(self)


class Text(str):
    """A string attribute; `.value` is itself."""

    @property
    def value(self) -> str:
        """The plain string."""
        return str(self)


Dim = IntImm


def const(value: Any, dtype: str | None = None) -> IntImm | FloatImm:
    """A number with a type; without one, int32 or float32 by the number's own kind.

    >>> const(2, "float16"), const(2, "float16").dtype
    (2.0, 'float16')
    """
    if isinstance(value, (Tensor, Expr)):
        raise TypeError("tvm.const takes a number")
    if dtype is None:
        dtype = getattr(value, "dtype", "int32" if isinstance(value, (int, np.integer)) else "float32")
    dtype = dtype_name(dtype)
    return FloatImm(float(value), dtype) if DTYPES[dtype].is_float else IntImm(int(value), dtype)


def number(value: Any, dtype: str, what: str = "the scalar") -> int | float | bool:
    """A plain number for a tensor of `dtype`; whatever is not a number raises."""
    if isinstance(value, SymbolicVar):
        raise TypeError(f"{what} is the variable {value.name!r}; this build needs its value")
    if isinstance(value, (Tensor, Expr, e.Tensor)) or not isinstance(
        value, (int, float, bool, np.generic, np.ndarray)
    ):
        raise TypeError(f"{what} must be a number, not {type(value).__name__}")
    plain = np.asarray(value).item()
    if DTYPES[dtype].is_int and isinstance(plain, float):
        if not plain.is_integer():
            raise TypeError(f"{what} {plain!r} is not a value of {dtype}; cast the tensor first")
        plain = int(plain)
    return plain


class SymbolicVar:
    """A dimension that is only known when the operator runs (`tvm.var`)."""

    def __init__(self, name: str, dtype: str = "int32", bounds: Any = None) -> None:
        self.name = name
        self.dtype = dtype
        self.bounds = bounds
        self.known: int | None = None

    def bind(self, value: int) -> None:
        """Tell the variable its value; one that has another already raises."""
        if self.known not in (None, value):
            raise ValueError(f"variable {self.name} is {self.known} for one input and {value} for another")
        self.known = int(value)

    def __index__(self) -> int:
        if self.known is None:
            raise TypeError(
                f"variable {self.name!r} has no value yet: use it as a dimension of tvm.placeholder first"
            )
        return self.known

    __int__ = __index__

    def __eq__(self, other: object) -> bool:
        return self is other or (self.known is not None and self.known == other)

    __hash__ = object.__hash__

    def __mul__(self, other: Any) -> int:
        return int(self) * int(other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> int:
        return int(self) + int(other)

    __radd__ = __add__

    def __repr__(self) -> str:
        return self.name


class Operation:
    """What operator files read of `tensor.op`: name, tag, attributes (which they may set) and inputs."""

    def __init__(
        self, name: str, tag: str, inputs: tuple[Tensor, ...], attrs: dict[str, Any] | None = None
    ) -> None:
        self.name = name
        self.tag = tag
        self.input_tensors = list(inputs)
        self.attrs: dict[str, Any] = {k: _attribute(v) for k, v in (attrs or {}).items()}


def _attribute(value: Any) -> Any:
    if isinstance(value, str):
        return Text(value)
    return const(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


class Tensor:
    """A tensor of an operator file, over a `tbe` expression.

    `x(i, j)` and `x[i, j]` read an element inside `tvm.compute`.
    """

    __slots__ = ("expression", "op")

    def __init__(
        self,
        expression: e.Tensor,
        name: str = "",
        tag: str = "",
        inputs: tuple[Tensor, ...] = (),
        attrs: dict[str, Any] | None = None,
    ) -> None:
        self.expression = expression
        self.op = Operation(name or tag, tag, inputs, attrs)

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The dimensions; each is an int that also answers `.value`."""
        return tuple(Dim(d) for d in self.expression.shape)

    @property
    def dtype(self) -> str:
        """The element type."""
        return self.expression.dtype

    @property
    def name(self) -> str:
        """The name given in the operator file."""
        return self.op.name

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.expression.shape)

    def __call__(self, *indices: Any) -> Expr:
        if len(indices) != len(self.expression.shape):
            raise ValueError(f"{len(indices)} indices for {self!r}")
        at = tuple(_index(i) for i in indices)
        return Expr(e.Load(self.expression, at), reads=(self,))

    def __getitem__(self, indices: Any) -> Expr:
        return self(*indices) if isinstance(indices, tuple) else self(indices)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a tensor of an operator file has no values to go through")

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype}{list(self.expression.shape)})"


def _index(i: Any) -> e.Scalar:
    if isinstance(i, Expr):
        if not DTYPES[i.dtype].is_int:
            raise TypeError(f"an index must be an integer expression, not {i.dtype}")
        return e.cast(i.scalar, "int64")
    return e.Const(int(i), "int64")


class Expr:
    """A scalar expression inside `tvm.compute`; operands of two types meet in the wider one, as in TVM."""

    __slots__ = ("is_index", "reads", "scalar")

    def __init__(self, scalar: e.Scalar, is_index: bool = False, reads: tuple[Tensor, ...] = ()) -> None:
        self.scalar = scalar
        self.is_index = is_index
        self.reads = reads

    @property
    def dtype(self) -> str:
        """The element type; arithmetic on index variables is int32."""
        return "int32" if self.is_index else self.scalar.dtype

    def astype(self, dtype: str) -> Expr:
        """Convert: float to int truncates."""
        return Expr(e.cast(self.scalar, dtype_name(dtype)), reads=self.reads)

    def equal(self, other: Any) -> Expr:
        """Whether both are equal."""
        return _binary("eq", self, other)

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value here; use tvm.select, tvm.all or tvm.any")

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return _binary("div", other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return _binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Expr:
        return _binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Expr:
        return _binary("fmod", self, other)

    def __rmod__(self, other: Any) -> Expr:
        return _binary("fmod", other, self)

    def __pow__(self, other: Any) -> Expr:
        return _binary("pow", self, other)

    def __neg__(self) -> Expr:
        return Expr(e.unary("neg", self.scalar), self.is_index, self.reads)

    def __lt__(self, other: Any) -> Expr:
        return _binary("lt", self, other)

    def __le__(self, other: Any) -> Expr:
        return _binary("le", self, other)

    def __gt__(self, other: Any) -> Expr:
        return _binary("gt", self, other)

    def __ge__(self, other: Any) -> Expr:
        return _binary("ge", self, other)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary("eq", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _binary("ne", self, other)

    def __and__(self, other: Any) -> Expr:
        return _binary("and" if self.dtype == "bool" else "bitand", self, other)

    def __or__(self, other: Any) -> Expr:
        return _binary("or" if self.dtype == "bool" else "bitor", self, other)

    def __xor__(self, other: Any) -> Expr:
        return _binary("xor" if self.dtype == "bool" else "bitxor", self, other)

    def __lshift__(self, other: Any) -> Expr:
        return _binary("shl", self, other)

    def __rshift__(self, other: Any) -> Expr:
        return _binary("shr", self, other)

    def __invert__(self) -> Expr:
        op = "not" if self.dtype == "bool" else "bitwise_not"
        return Expr(e.unary(op, self.scalar), reads=self.reads)


class IterVar(Expr):
    """An index of `tvm.compute` or an axis of `tvm.reduce_axis`."""

    __slots__ = ("dom", "name")

    def __init__(self, extent: int, name: str = "i") -> None:
        super().__init__(e.Var(extent), is_index=True)
        self.name = name
        self.dom = (0, extent)

    @property
    def var(self) -> IterVar:
        """Itself: the variable of the axis."""
        return self

    @property
    def extent(self) -> int:
        """How many values it takes."""
        return self.dom[1]


def as_expr(value: Any, beside: str | None = None) -> Expr:
    """A number or an expression as an expression; a plain number takes the type of what it stands beside."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, Tensor):
        raise TypeError(f"{value!r} is read as a whole; index it, x(i, j)")
    if isinstance(value, bool):
        return Expr(e.Const(value, "bool" if beside is None else beside))
    typed = getattr(value, "dtype", None) if isinstance(value, (IntImm, FloatImm)) else None
    dtype = typed or beside or ("int32" if isinstance(value, (int, np.integer)) else "float32")
    if (
        not DTYPES[dtype].is_float
        and isinstance(value, (float, np.floating))
        and not float(value).is_integer()
    ):
        dtype = "float32"
    return Expr(e.Const(e.constant(value, dtype).value, dtype))


_RANK = {
    name: rank
    for rank, name in enumerate(
        ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
        + ("bfloat16", "float16", "float32", "float64")
    )
}


def wider(a: str, b: str) -> str:
    """The type in which operands of two types meet.

    >>> wider("int32", "float16"), wider("float16", "float32")
    ('float16', 'float32')
    """
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return max(a, b, key=_RANK.__getitem__)


def meet(*values: Any) -> tuple[list[e.Scalar], bool, tuple[Tensor, ...]]:
    """Operands in one type, whether all are index arithmetic, and the tensors they read."""
    known = [v for v in values if isinstance(v, Expr)]
    typed = [v.dtype for v in values if isinstance(v, (IntImm, FloatImm))]
    beside = functools.reduce(wider, [v.dtype for v in known]) if known else None
    if beside is None and typed:
        beside = functools.reduce(wider, typed)
    exprs = [
        as_expr(v, None if isinstance(v, (IntImm, FloatImm)) and not known else _plain(v, beside))
        for v in values
    ]
    is_index = all(x.is_index or (isinstance(x.scalar, e.Const) and DTYPES[x.dtype].is_int) for x in exprs)
    is_index = is_index and any(x.is_index for x in exprs)
    dtype = "int64" if is_index else functools.reduce(wider, [x.dtype for x in exprs])
    reads = tuple({id(t): t for x in exprs for t in x.reads}.values())
    return [e.cast(x.scalar, dtype) for x in exprs], is_index, reads


def _plain(value: Any, beside: str | None) -> str | None:
    """The type a plain number takes beside an expression."""
    if beside is None or beside == "bool":
        return None
    fractional = isinstance(value, (float, np.floating)) and not DTYPES[beside].is_float
    return "float32" if fractional else beside


def _binary(op: str, a: Any, b: Any) -> Expr:
    (x, y), is_index, reads = meet(a, b)
    scalar = e.binary(op, x, y)
    return Expr(scalar, is_index and scalar.dtype == "int64", reads)


binary_expr = _binary


# ---------------------------------------------------------------------------------------------------------
# Functions over tensors
# ---------------------------------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])


def lower(value: Any) -> Any:
    """Expressions in place of an operator file's tensors, also inside lists."""
    if isinstance(value, Tensor):
        return value.expression
    if isinstance(value, (list, tuple)):
        return type(value)(lower(v) for v in value)
    return value


def lift(value: Any, tag: str = "", inputs: tuple[Tensor, ...] = (), name: str = "") -> Any:
    """An operator file's tensors in place of expressions, also inside lists."""
    if isinstance(value, e.Tensor):
        return Tensor(value, name, tag, inputs)
    if isinstance(value, (list, tuple)):
        return type(value)(lift(v, tag, inputs, name) for v in value)
    return value


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def dsl_function(function: F) -> F:
    """Let a function over expressions take and give an operator file's tensors.

    Given expressions, it gives expressions; an error names the function and what it was given.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = list(_flat([*args, *kwargs.values()]))
        tensors = tuple(v for v in given if isinstance(v, Tensor))
        try:
            result = function(*(lower(a) for a in args), **{k: lower(v) for k, v in kwargs.items()})
        except (TypeError, ValueError) as error:
            what = ", ".join(f"{t.dtype}{list(t.shape)}" for t in given if isinstance(t, (Tensor, e.Tensor)))
            raise type(error)(f"{function.__name__}({what}): {error}") from error
        if not tensors and any(isinstance(v, e.Tensor) for v in given):
            return result
        return lift(result, function.__name__, tensors)

    call.is_dsl = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def integers(values: Any) -> list[int]:
    """A list of plain integers from a number, a list or a shape."""
    if isinstance(values, Sequence):
        return [int(v) for v in values]
    return [int(values)]
