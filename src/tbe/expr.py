"""Tensor expressions: an immutable graph of structured tensor nodes and, inside `compute`, of scalars.

A tensor node keeps the kind of its operation (broadcast, transpose, reduce, ...), so that the interpreter
can use NumPy directly and the scheduler can reason about it. Nodes compare by identity; `tbe.fingerprint`
compares whole graphs by structure.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

import numpy as np

from tbe.dtypes import dtype_of
from tbe.ops import REDUCTIONS, SCANS, binary_dtype, unary_dtype

__all__ = [
    "Binary",
    "Broadcast",
    "Cast",
    "Compute",
    "Concat",
    "Const",
    "Constant",
    "Iota",
    "Load",
    "Pad",
    "Placeholder",
    "Reduce",
    "Reshape",
    "Scalar",
    "ScalarOp",
    "Scan",
    "Select",
    "Shape",
    "Slice",
    "Take",
    "Tensor",
    "Transpose",
    "Unary",
    "Var",
    "binary",
    "broadcast_shapes",
    "broadcast_to",
    "cast",
    "compute",
    "concat",
    "constant",
    "iota",
    "pad",
    "placeholder",
    "reduce",
    "reshape",
    "scan",
    "select",
    "slice",
    "take",
    "transpose",
    "unary",
]

Shape = tuple[int, ...]
Number = int | float | bool
MAX_RANK = 32


class _Arithmetic:
    """Python operators shared by tensors and scalars; a Python number takes the dtype of its partner."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return binary("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return binary("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return binary("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return binary("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return binary("div", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Any:
        return binary("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return binary("mod", other, self)

    def __pow__(self, other: Any) -> Any:
        return binary("pow", self, other)

    def __neg__(self) -> Any:
        return _apply("neg", self)

    def __lt__(self, other: Any) -> Any:
        return binary("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return binary("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return binary("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return binary("ge", self, other)

    def __and__(self, other: Any) -> Any:
        return binary("and" if _dtype_in(self, other) == "bool" else "bitand", self, other)

    def __or__(self, other: Any) -> Any:
        return binary("or" if _dtype_in(self, other) == "bool" else "bitor", self, other)

    def __xor__(self, other: Any) -> Any:
        return binary("xor" if _dtype_in(self, other) == "bool" else "bitxor", self, other)

    def __lshift__(self, other: Any) -> Any:
        return binary("shl", self, other)

    def __rshift__(self, other: Any) -> Any:
        return binary("shr", self, other)

    def __invert__(self) -> Any:
        return _apply("not" if _dtype_in(self) == "bool" else "bitwise_not", self)

    def __bool__(self) -> bool:
        raise TypeError("a tbe expression has no truth value; use tbe.select")


def _dtype_in(*operands: Any) -> str:
    return next(x.dtype for x in operands if isinstance(x, (Tensor, Scalar)))


# ---------------------------------------------------------------------------------------------------------
# Tensors
# ---------------------------------------------------------------------------------------------------------


class Tensor(_Arithmetic):
    """A node of the tensor graph: a shape, a dtype and the tensors it is computed from."""

    __slots__ = ("__weakref__", "dtype", "inputs", "shape")
    shape: Shape
    dtype: str
    inputs: tuple[Tensor, ...]

    def __init__(self, shape: Shape, dtype: str, inputs: tuple[Tensor, ...]) -> None:
        self.shape = shape
        self.dtype = dtype
        self.inputs = inputs

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __getitem__(self, indices: Any) -> Scalar:
        """Read one element at scalar index expressions; an index outside the tensor reads its edge."""
        indices = indices if isinstance(indices, tuple) else (indices,)
        if len(indices) != len(self.shape):
            raise ValueError(f"{len(indices)} indices for a tensor of shape {self.shape}")
        return Load(self, tuple(_index(i) for i in indices))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.dtype}{list(self.shape)})"


class Placeholder(Tensor):
    """An input of the kernel."""

    __slots__ = ("name",)

    def __init__(self, shape: Shape, dtype: str, name: str) -> None:
        super().__init__(shape, dtype, ())
        self.name = name


class Constant(Tensor):
    """A number as a tensor without dimensions."""

    __slots__ = ("value",)

    def __init__(self, value: Number, dtype: str) -> None:
        super().__init__((), dtype, ())
        self.value = value


class Unary(Tensor):
    """An elementwise operation on one tensor."""

    __slots__ = ("op",)

    def __init__(self, op: str, x: Tensor, dtype: str) -> None:
        super().__init__(x.shape, dtype, (x,))
        self.op = op


class Binary(Tensor):
    """An elementwise operation on two tensors, with broadcasting."""

    __slots__ = ("op",)

    def __init__(self, op: str, a: Tensor, b: Tensor, dtype: str) -> None:
        super().__init__(broadcast_shapes(a.shape, b.shape), dtype, (a, b))
        self.op = op


class Select(Tensor):
    """Elementwise choice between two tensors by a bool tensor, with broadcasting."""

    __slots__ = ()


class Cast(Tensor):
    """Elementwise conversion to another dtype."""

    __slots__ = ()


class Broadcast(Tensor):
    """The same elements broadcast to a larger shape."""

    __slots__ = ()


class Reshape(Tensor):
    """The same elements in the same order in another shape."""

    __slots__ = ()


class Transpose(Tensor):
    """Permuted dimensions: dimension i of the result is dimension perm[i] of the input."""

    __slots__ = ("perm",)

    def __init__(self, x: Tensor, perm: Shape) -> None:
        super().__init__(tuple(x.shape[p] for p in perm), x.dtype, (x,))
        self.perm = perm


class Slice(Tensor):
    """A box of the input: out[i] = x[starts + i * steps]."""

    __slots__ = ("starts", "steps")

    def __init__(self, x: Tensor, starts: Shape, steps: Shape, shape: Shape) -> None:
        super().__init__(shape, x.dtype, (x,))
        self.starts = starts
        self.steps = steps


class Pad(Tensor):
    """The input with constant padding."""

    __slots__ = ("low", "value")

    def __init__(self, x: Tensor, low: Shape, shape: Shape, value: Number) -> None:
        super().__init__(shape, x.dtype, (x,))
        self.low = low
        self.value = value


class Concat(Tensor):
    """Tensors concatenated along an axis."""

    __slots__ = ("axis",)

    def __init__(self, parts: tuple[Tensor, ...], axis: int, shape: Shape) -> None:
        super().__init__(shape, parts[0].dtype, parts)
        self.axis = axis


class Iota(Tensor):
    """The position along an axis."""

    __slots__ = ("axis",)

    def __init__(self, shape: Shape, axis: int, dtype: str) -> None:
        super().__init__(shape, dtype, ())
        self.axis = axis


class Take(Tensor):
    """Slices of x along an axis chosen by an index tensor; inputs are (x, indices)."""

    __slots__ = ("axis", "batch_dims")

    def __init__(self, x: Tensor, indices: Tensor, axis: int, batch_dims: int, shape: Shape) -> None:
        super().__init__(shape, x.dtype, (x, indices))
        self.axis = axis
        self.batch_dims = batch_dims


class Compute(Tensor):
    """A tensor given by a scalar expression of its index variables; inputs are the tensors it reads."""

    __slots__ = ("body", "vars")

    def __init__(
        self, shape: Shape, variables: tuple[Var, ...], body: Scalar, inputs: tuple[Tensor, ...]
    ) -> None:
        super().__init__(shape, body.dtype, inputs)
        self.vars = variables
        self.body = body


class Reduce(Tensor):
    """A reduction over some axes; with `last`, argmax/argmin pick the last of equal elements."""

    __slots__ = ("axes", "keepdims", "last", "op")

    def __init__(
        self, op: str, x: Tensor, axes: Shape, keepdims: bool, last: bool, shape: Shape, dtype: str
    ) -> None:
        super().__init__(shape, dtype, (x,))
        self.op = op
        self.axes = axes
        self.keepdims = keepdims
        self.last = last


class Scan(Tensor):
    """A running reduction along an axis."""

    __slots__ = ("axis", "exclusive", "op", "reverse")

    def __init__(self, op: str, x: Tensor, axis: int, exclusive: bool, reverse: bool) -> None:
        super().__init__(x.shape, x.dtype, (x,))
        self.op = op
        self.axis = axis
        self.exclusive = exclusive
        self.reverse = reverse


# ---------------------------------------------------------------------------------------------------------
# Scalars: the language inside compute
# ---------------------------------------------------------------------------------------------------------


class Scalar(_Arithmetic):
    """A scalar expression inside `compute`."""

    __slots__ = ("args", "dtype")
    dtype: str
    args: tuple[Scalar, ...]

    def __init__(self, dtype: str, args: tuple[Scalar, ...]) -> None:
        self.dtype = dtype
        self.args = args


class Var(Scalar):
    """An index variable with values 0 .. extent-1."""

    __slots__ = ("extent",)

    def __init__(self, extent: int) -> None:
        super().__init__("int64", ())
        self.extent = extent


class Const(Scalar):
    """A number."""

    __slots__ = ("value",)

    def __init__(self, value: Number, dtype: str) -> None:
        super().__init__(dtype, ())
        self.value = value


class Load(Scalar):
    """One element of a tensor; args are its int64 indices, each clamped to the tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor, indices: tuple[Scalar, ...]) -> None:
        super().__init__(tensor.dtype, indices)
        self.tensor = tensor


class ScalarOp(Scalar):
    """An operation on scalars: a unary or binary name, "select" or "cast"."""

    __slots__ = ("op",)

    def __init__(self, op: str, args: tuple[Scalar, ...], dtype: str) -> None:
        super().__init__(dtype, args)
        self.op = op


Node = TypeVar("Node", Tensor, Scalar)


# ---------------------------------------------------------------------------------------------------------
# Constructors
# ---------------------------------------------------------------------------------------------------------


def placeholder(shape: Iterable[int], dtype: str, name: str = "") -> Placeholder:
    """An input of a kernel."""
    return Placeholder(_shape(shape), dtype_of(dtype).name, name)


def constant(value: Number | np.generic, dtype: str) -> Constant:
    """A number as a 0-d tensor, rounded to `dtype`."""
    return Constant(_number(value, dtype), dtype)


@overload
def unary(op: str, x: Tensor) -> Tensor: ...
@overload
def unary(op: str, x: Scalar) -> Scalar: ...
def unary(op: str, x: Any) -> Any:
    """Apply a unary operation to every element of a tensor, or to a scalar."""
    return _apply(op, x)


def _apply(op: str, x: Any) -> Any:
    dtype = unary_dtype(op, x.dtype)
    if isinstance(x, Tensor):
        return Unary(op, x, dtype)
    return ScalarOp(op, (x,), dtype)


def binary(op: str, a: Any, b: Any) -> Any:
    """Apply a binary operation to tensors (NumPy broadcasting) or to scalars; both of one dtype.

    A Python number takes the dtype of the other operand.
    """
    a, b = _operands(a, b)
    dtype = binary_dtype(op, a.dtype, b.dtype)
    if isinstance(a, Tensor):
        return Binary(op, a, b, dtype)
    return ScalarOp(op, (a, b), dtype)


def select(condition: Any, a: Any, b: Any) -> Any:
    """Elementwise a where the bool condition holds, else b (NumPy broadcasting)."""
    a, b = _operands(a, b)
    if condition.dtype != "bool":
        raise TypeError(f"select needs a bool condition, got {condition.dtype}")
    if a.dtype != b.dtype:
        raise TypeError(f"select needs values of one dtype, got {a.dtype} and {b.dtype}")
    if isinstance(condition, Tensor) != isinstance(a, Tensor):
        raise TypeError("select takes three tensors or three scalars")
    if isinstance(a, Tensor):
        shape = broadcast_shapes(broadcast_shapes(condition.shape, a.shape), b.shape)
        return Select(shape, a.dtype, (condition, a, b))
    return ScalarOp("select", (condition, a, b), a.dtype)


@overload
def cast(x: Tensor, dtype: str) -> Tensor: ...
@overload
def cast(x: Scalar, dtype: str) -> Scalar: ...
def cast(x: Any, dtype: str) -> Any:
    """Convert to another dtype: float to int truncates and saturates (NaN gives 0), int to int wraps."""
    if x.dtype == dtype:
        return x
    dtype = dtype_of(dtype).name
    if isinstance(x, Tensor):
        return Cast(x.shape, dtype, (x,))
    return ScalarOp("cast", (x,), dtype)


def broadcast_to(x: Tensor, shape: Iterable[int]) -> Tensor:
    """Broadcast x to `shape` by NumPy's rules."""
    shape = _shape(shape)
    if shape == x.shape:
        return x
    if broadcast_shapes(x.shape, shape) != shape:
        raise ValueError(f"cannot broadcast {x.shape} to {shape}")
    return Broadcast(shape, x.dtype, (x,))


def reshape(x: Tensor, shape: Iterable[int]) -> Tensor:
    """The same elements in another shape."""
    shape = _shape(shape)
    if shape == x.shape:
        return x
    if math.prod(shape) != x.size:
        raise ValueError(f"cannot reshape {x.shape} to {shape}: {x.size} elements against {math.prod(shape)}")
    return Reshape(shape, x.dtype, (x,))


def transpose(x: Tensor, perm: Iterable[int]) -> Tensor:
    """Permute dimensions as numpy.transpose does."""
    perm = tuple(perm)
    if sorted(perm) != list(range(len(x.shape))):
        raise ValueError(f"{perm} is not a permutation of the {len(x.shape)} dimensions of {x.shape}")
    return x if perm == tuple(range(len(perm))) else Transpose(x, perm)


def slice(x: Tensor, starts: Iterable[int], steps: Iterable[int], shape: Iterable[int]) -> Tensor:
    """out[i] = x[starts + i * steps]; steps may be negative, every element read must exist."""
    starts, steps, shape = tuple(starts), tuple(steps), _shape(shape)
    if not len(starts) == len(steps) == len(shape) == len(x.shape):
        raise ValueError(f"slice of {x.shape} needs {len(x.shape)} starts, steps and extents")
    for dim, start, step, extent in zip(x.shape, starts, steps, shape, strict=False):
        last = start + (extent - 1) * step
        if extent and not (0 <= start < dim and 0 <= last < dim):
            raise ValueError(f"slice reads elements {start} to {last} of a dimension of {dim}")
    return Slice(x, starts, steps, shape)


def pad(x: Tensor, low: Iterable[int], high: Iterable[int], value: Number = 0) -> Tensor:
    """Pad x with `value`: low[i] elements before and high[i] after dimension i."""
    low, high = tuple(low), tuple(high)
    if not len(low) == len(high) == len(x.shape) or builtins.min(low + high, default=0) < 0:
        raise ValueError(f"pad of {x.shape} needs {len(x.shape)} low and high widths, none negative")
    shape = _shape(d + a + b for d, a, b in zip(x.shape, low, high, strict=False))
    return x if shape == x.shape else Pad(x, low, shape, _number(value, x.dtype))


def concat(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate tensors along `axis`."""
    parts = tuple(parts)
    if not parts:
        raise ValueError("concat needs at least one tensor")
    first = parts[0]
    axis = _axis(axis, len(first.shape))
    for part in parts[1:]:
        if part.dtype != first.dtype:
            raise TypeError(f"concat needs tensors of one dtype, got {first.dtype} and {part.dtype}")
        if len(part.shape) != len(first.shape) or any(
            i != axis and a != b for i, (a, b) in enumerate(zip(part.shape, first.shape, strict=False))
        ):
            raise ValueError(f"cannot concatenate {first.shape} and {part.shape} along {axis}")
    if len(parts) == 1:
        return first
    extent = sum(part.shape[axis] for part in parts)
    return Concat(parts, axis, _shape((*first.shape[:axis], extent, *first.shape[axis + 1 :])))


def iota(shape: Iterable[int], axis: int, dtype: str) -> Tensor:
    """The position along `axis` as `dtype`."""
    shape = _shape(shape)
    if dtype_of(dtype).kind == "bool":
        raise TypeError("iota does not take bool")
    return Iota(shape, _axis(axis, len(shape)), dtype)


def take(x: Tensor, indices: Tensor, axis: int, batch_dims: int = 0) -> Tensor:
    """Gather slices of x along `axis`: negative indices count from the end, others are clamped."""
    axis = _axis(axis, len(x.shape))
    if not dtype_of(indices.dtype).is_int:
        raise TypeError(f"take needs integer indices, got {indices.dtype}")
    if not 0 <= batch_dims <= builtins.min(axis, len(indices.shape)):
        raise ValueError(f"batch_dims {batch_dims} must not exceed axis {axis} and the rank of the indices")
    if x.shape[:batch_dims] != indices.shape[:batch_dims]:
        raise ValueError(f"batch dimensions differ: {x.shape} and {indices.shape}")
    shape = _shape(x.shape[:axis] + indices.shape[batch_dims:] + x.shape[axis + 1 :])
    if not x.shape[axis] and 0 not in shape:
        raise ValueError(f"take reads from an empty dimension {axis} of {x.shape}")
    return Take(x, indices, axis, batch_dims, shape)


def compute(shape: Iterable[int], body: Callable[..., Any], dtype: str | None = None) -> Tensor:
    """A tensor given element by element: `body` maps index variables to a scalar expression."""
    shape = _shape(shape)
    variables = tuple(Var(extent) for extent in shape)
    value = body(*variables)
    if not isinstance(value, Scalar):
        if dtype is None:
            raise TypeError("compute needs a dtype when its body is a plain number")
        value = Const(_number(value, dtype), dtype)
    return from_scalar(shape, variables, value if dtype is None else cast(value, dtype))


def from_scalar(shape: Shape, variables: tuple[Var, ...], body: Scalar) -> Compute:
    """A Compute node from its parts; checks that the body uses no other variables."""
    inputs: dict[int, Tensor] = {}
    known = {id(v) for v in variables}
    stack, seen = [body], set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Var) and id(node) not in known:
            raise ValueError("the body of compute uses an index variable of another compute")
        if isinstance(node, Load):
            inputs.setdefault(id(node.tensor), node.tensor)
            if not node.tensor.size and 0 not in shape:
                raise ValueError(f"compute reads from an empty tensor of shape {node.tensor.shape}")
        stack.extend(node.args)
    return Compute(shape, variables, body, tuple(inputs.values()))


def reduce(
    op: str, x: Tensor, axes: Iterable[int] | int, keepdims: bool = False, *, last: bool = False
) -> Tensor:
    """Reduce over `axes`; argmax and argmin return int64 positions (in row-major order over the axes)."""
    if op not in REDUCTIONS:
        raise ValueError(f"unknown reduction {op!r}; expected one of {' '.join(REDUCTIONS)}")
    if x.dtype not in REDUCTIONS[op]:
        raise TypeError(f"reduction {op} does not take {x.dtype}")
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    axes = tuple(sorted({_axis(a, len(x.shape)) for a in axes}))
    arg = op in ("argmax", "argmin")
    if not axes and not arg:
        return x
    if arg and not math.prod(x.shape[a] for a in axes):
        raise ValueError(f"{op} over an empty dimension of {x.shape}")
    if keepdims:
        shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
    else:
        shape = tuple(d for i, d in enumerate(x.shape) if i not in axes)
    return Reduce(op, x, axes, bool(keepdims), bool(last), shape, "int64" if arg else x.dtype)


def scan(op: str, x: Tensor, axis: int, exclusive: bool = False, reverse: bool = False) -> Tensor:
    """Running sum, product, maximum or minimum along `axis`."""
    if op not in SCANS:
        raise ValueError(f"unknown scan {op!r}; expected one of {' '.join(SCANS)}")
    if x.dtype not in SCANS[op]:
        raise TypeError(f"scan {op} does not take {x.dtype}")
    return Scan(op, x, _axis(axis, len(x.shape)), bool(exclusive), bool(reverse))


# ---------------------------------------------------------------------------------------------------------
# Helpers
# ---------------------------------------------------------------------------------------------------------


def broadcast_shapes(a: Shape, b: Shape) -> Shape:
    """The common shape of two shapes by NumPy's rules."""
    if a == b or not b:
        return a
    if not a:
        return b
    if len(a) < len(b):
        a, b = b, a
    skip = len(a) - len(b)
    dims = list(a)
    for i, d in enumerate(b, skip):
        if dims[i] == 1:
            dims[i] = d
        elif d not in (1, dims[i]):
            raise ValueError(f"shapes {a} and {b} do not broadcast together")
    return tuple(dims)


def _shape(shape: Iterable[int]) -> Shape:
    shape = tuple(shape)
    if len(shape) > MAX_RANK:
        raise ValueError(f"rank {len(shape)} exceeds {MAX_RANK}")
    for dim in shape:
        if dim < 0:
            raise ValueError(f"negative dimension in shape {shape}")
    return shape


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def _number(value: Any, dtype: str) -> Number:
    """A Python number equal to `value` rounded to `dtype`."""
    kind = dtype_of(dtype)
    if kind.is_float:
        with np.errstate(over="ignore"):
            return float(np.float64(value).astype(kind.numpy))
    if kind.kind == "bool":
        return bool(value)
    number = int(value)
    if number != value or not kind.min <= number <= kind.max:
        raise ValueError(f"{value!r} is not a value of {dtype}")
    return number


def _operands(a: Any, b: Any) -> tuple[Any, Any]:
    """Both operands as nodes of one kind, numbers converted to the dtype of the other one."""
    if isinstance(a, Tensor):
        return (a, b) if isinstance(b, Tensor) else (a, _as_constant(a, b))
    if isinstance(b, Tensor):
        return _as_constant(b, a), b
    if isinstance(a, Scalar):
        return (a, b) if isinstance(b, Scalar) else (a, Const(_number(b, a.dtype), a.dtype))
    if isinstance(b, Scalar):
        return Const(_number(a, b.dtype), b.dtype), b
    raise TypeError("at least one operand must be a tensor or a scalar expression")


def _as_constant(x: Tensor, number: Any) -> Tensor:
    if isinstance(number, Scalar):
        raise TypeError("tensors and scalar expressions do not mix; index the tensor inside compute")
    return constant(number, x.dtype)


def _index(i: Any) -> Scalar:
    if isinstance(i, Scalar):
        if not dtype_of(i.dtype).is_int:
            raise TypeError(f"an index must be an integer expression, got {i.dtype}")
        return cast(i, "int64")
    return Const(_number(i, "int64"), "int64")
