"""Linear algebra beyond products: einsum, determinants, inverses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.ir.types import FLOATS, TensorDesc
from ge.ir.values import desc_of
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.plugins import Node, Results, Unsupported, plugin


class SquareMatrices(Operator):
    """A function of square matrices in the last two axes."""

    x = Input("T", FLOATS)
    y = Output("T")

    @staticmethod
    def verify(op: NodeView) -> None:
        desc = op.inputs[0]
        assert desc is not None
        if desc.rank < 2 or desc.shape[-1] != desc.shape[-2]:
            raise fail(op, f"{desc} does not hold square matrices")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return op.inputs[0]  # type: ignore[return-value]


@register
class Det(SquareMatrices):
    """The determinants of matrices."""

    aicpu = "det"

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        desc = op.inputs[0]
        assert desc is not None
        return TensorDesc(desc.shape[:-2], desc.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        return [np.linalg.det(np.asarray(arrays[0], np.float64))]


@register
class Inverse(SquareMatrices):
    """The inverses of matrices."""

    aicpu = "inverse"

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        return [np.linalg.inv(np.asarray(arrays[0], np.float64))]


@register
class Cholesky(SquareMatrices):
    """Lower triangular matrices whose product with their transposes is x.

    A matrix that is not positive definite fails the run, or has a factor of NaN.
    """

    nan_if_indefinite = Attr(bool, False)
    aicpu = "cholesky"

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        try:
            return [np.linalg.cholesky(np.asarray(arrays[0], np.float64))]
        except np.linalg.LinAlgError:
            return None


@plugin(onnx="Det")
def _det(n: Node) -> Results:
    return n.op("Det", n.inputs[0])


# -- sums over named indices -------------------------------------------------------------------------------


@register
class Einsum(Operator):
    """Sums of products over named indices, as numpy.einsum has them; made of transposes and products."""

    inputs = Input("T", variadic=True)
    y = Output("T")
    equation = Attr(str)

    @staticmethod
    def verify(op: NodeView) -> None:
        terms, result = parse_equation(op)
        if len(set(result)) < len(result):
            raise fail(op, f"the result {''.join(result)!r} names an index twice")
        for term, desc in zip(terms, op.inputs, strict=True):
            if desc is None or len(term) != desc.rank:
                raise fail(op, f"term {''.join(term)!r} does not match {desc}")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        raise AssertionError("Einsum is always expanded")

    @staticmethod
    def expand(builder: Any, op: NodeView, *values: Any) -> Any:
        terms, result = parse_equation(op)
        operands = [_diagonal(builder, v, t) for v, t in zip(values, terms, strict=True)]
        value, term = operands[0]
        for index, (other, names) in enumerate(operands[1:], 1):
            later = {name for _, t in operands[index + 1 :] for name in t}
            kept = later | set(result)
            value, term = _pair(builder, (value, term), (other, names), kept)
        return _arranged(builder, value, term, result)


def parse_equation(op: NodeView) -> tuple[list[list[str]], list[str]]:
    """The index names of each operand and of the result; an ellipsis becomes unique names."""
    text = "".join(op.equation.split())
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(op.inputs):
        raise fail(op, f"equation {op.equation!r} has {len(parts)} terms for {len(op.inputs)} inputs")
    width = 0
    for part, desc in zip(parts, op.inputs, strict=True):
        if "..." in part:
            width = max(width, desc.rank - len(part.replace("...", "")))  # type: ignore[union-attr]
    dots = [f"~{i}" for i in range(width)]

    def names(part: str, rank: int | None) -> list[str]:
        if "..." not in part:
            return list(part)
        before, after = part.split("...", 1)
        own = width if rank is None else rank - len(before) - len(after)
        return [*before, *dots[width - own :], *after]

    terms = [names(p, d.rank) for p, d in zip(parts, op.inputs, strict=True)]  # type: ignore[union-attr]
    if arrow:
        return terms, names(right, None)
    counts: dict[str, int] = {}
    for name in (c for t in terms for c in t):
        counts[name] = counts.get(name, 0) + 1
    return terms, [*dots, *sorted(c for c, k in counts.items() if k == 1 and not c.startswith("~"))]


def _diagonal(builder: Any, value: Any, term: Sequence[str]) -> tuple[Any, list[str]]:
    """An operand with repeated names reduced to its diagonal."""
    names = list(term)
    while len(set(names)) < len(names):
        name = next(c for c in names if names.count(c) > 1)
        first = names.index(name)
        second = names.index(name, first + 1)
        shape = list(desc_of(value).shape)
        perm = [first, second] + [i for i in range(len(names)) if i not in (first, second)]
        value = builder.op("Transpose", value, perm=perm)
        rest = [shape[i] for i in perm[2:]]
        value = builder.op("Reshape", value, shape=[shape[first] * shape[second], *rest])
        picks = np.arange(shape[first], dtype=np.int64) * (shape[second] + 1)
        value = builder.op("Gather", value, picks, axis=0)
        names = [name] + [names[i] for i in perm[2:]]
    return value, names


def _summed(builder: Any, value: Any, names: list[str], kept: set[str]) -> tuple[Any, list[str]]:
    axes = [i for i, c in enumerate(names) if c not in kept]
    if axes:
        value = builder.op("ReduceSum", value, axes=axes)
    return value, [c for c in names if c in kept]


def _pair(
    builder: Any, a: tuple[Any, list[str]], b: tuple[Any, list[str]], kept: set[str]
) -> tuple[Any, list[str]]:
    """The product of two operands, summed over the subscripts that are no longer needed."""
    left, a_names = _summed(builder, a[0], a[1], kept | set(b[1]))
    right, b_names = _summed(builder, b[0], b[1], kept | set(a[1]))
    sizes = _sizes(left, a_names) | {
        c: max(s, _sizes(left, a_names).get(c, 1)) for c, s in _sizes(right, b_names).items()
    }
    shared = [c for c in a_names if c in b_names]
    batch = [c for c in shared if c in kept]
    inner = [c for c in shared if c not in kept]
    rows = [c for c in a_names if c not in shared]
    columns = [c for c in b_names if c not in shared]
    left = _stretched(builder, left, a_names, [*batch, *rows, *inner], sizes)
    right = _stretched(builder, right, b_names, [*batch, *inner, *columns], sizes)

    def product(names: list[str]) -> int:
        return math.prod(sizes[c] for c in names)

    dims = [sizes[c] for c in batch]
    left = builder.op("Reshape", left, shape=[*dims, product(rows), product(inner)])
    right = builder.op("Reshape", right, shape=[*dims, product(inner), product(columns)])
    if inner:
        value = builder.op("MatMul", left, right)
    else:
        value = builder.op("Mul", left, right)  # (…, rows, 1) by (…, 1, columns)
    order = [*batch, *rows, *columns]
    return builder.op("Reshape", value, shape=[sizes[c] for c in order]), order


def _sizes(value: Any, names: Sequence[str]) -> dict[str, int]:
    return dict(zip(names, desc_of(value).shape, strict=True))


def _stretched(builder: Any, value: Any, names: list[str], order: list[str], sizes: dict[str, int]) -> Any:
    """An operand with permuted axes, those of one element broadcast to full size."""
    value = _arranged(builder, value, names, order)
    full = [sizes[c] for c in order]
    return value if list(desc_of(value).shape) == full else builder.op("BroadcastTo", value, shape=full)


def _arranged(builder: Any, value: Any, names: list[str], order: list[str]) -> Any:
    value, names = _summed(builder, value, names, set(order))
    perm = [names.index(c) for c in order]
    return value if perm == sorted(perm) else builder.op("Transpose", value, perm=perm)


@plugin(onnx="Einsum")
def _einsum(n: Node) -> Results:
    equation = n.attr("equation")
    if not equation:
        raise Unsupported("Einsum has no equation")
    return n.op("Einsum", *n.inputs, equation=equation)


# -- TensorFlow --------------------------------------------------------------------------------------------


class LinearSystem(Operator):
    """x such that a x = b, for matrices in the last two axes of a and the columns of b."""

    a = Input("T", FLOATS)
    b = Input("T", FLOATS)
    x = Output("T")

    @staticmethod
    def verify(op: NodeView) -> None:
        a, b = op.inputs[:2]
        assert a is not None and b is not None
        if a.rank < 2 or a.shape[-1] != a.shape[-2] or b.shape[:-1] != a.shape[:-1]:
            raise fail(op, f"{a} and {b} do not form linear systems")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        return op.inputs[1]  # type: ignore[return-value]


@register
class Solve(LinearSystem):
    """The solution of linear systems with general matrices."""

    aicpu = "solve"

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        a, b = (np.asarray(v, np.float64) for v in arrays[:2])
        return [np.linalg.solve(a, b)]


@register
class TriangularSolve(LinearSystem):
    """The solution of linear systems of which one triangle of the matrix is read."""

    lower = Attr(bool, True)
    transposed = Attr(bool, False)
    unit_diagonal = Attr(bool, False)
    aicpu = "triangular_solve"

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray]:
        a, b = (np.asarray(v, np.float64) for v in arrays[:2])
        a = np.tril(a) if op.lower else np.triu(a)
        if op.unit_diagonal:
            a = a * (1 - np.eye(a.shape[-1])) + np.eye(a.shape[-1])
        return [np.linalg.solve(np.swapaxes(a, -1, -2) if op.transposed else a, b)]


@plugin(tensorflow="Einsum")
def _einsum_tf(n: Node) -> Results:
    _, _, result = str(n.attr("equation")).partition("->")
    names = result.strip().replace("...", "")
    if len(set(names)) < len(names):
        raise Unsupported(f"the result {result!r} names an index twice", "use tf.linalg.diag")
    return n.op("Einsum", *n.inputs, equation=str(n.attr("equation")))


@plugin(tensorflow=["MatrixDeterminant", "BatchMatrixDeterminant"])
def _determinant_tf(n: Node) -> Results:
    return n.op("Det", n.inputs[0])


@plugin(tensorflow=["Cholesky", "BatchCholesky"])
def _cholesky_tf(n: Node) -> Results:
    return n.op("Cholesky", n.inputs[0], nan_if_indefinite=True)


def _swapped(n: Node, x: Any) -> Any:
    rank = desc_of(x).rank
    return n.op("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


@plugin(tensorflow=["MatrixInverse", "BatchMatrixInverse"])
def _inverse_tf(n: Node) -> Results:
    y = n.op("Inverse", n.inputs[0])
    return _swapped(n, y) if n.attr("adjoint", False) else y


@plugin(tensorflow=["MatrixSolve", "BatchMatrixSolve"])
def _solve_tf(n: Node) -> Results:
    a = _swapped(n, n.inputs[0]) if n.attr("adjoint", False) else n.inputs[0]
    return n.op("Solve", a, n.inputs[1])


@plugin(tensorflow=["MatrixTriangularSolve", "BatchMatrixTriangularSolve"])
def _triangular_solve_tf(n: Node) -> Results:
    """Batch axes broadcast."""
    batch = list(np.broadcast_shapes(n.desc(0).shape[:-2], n.desc(1).shape[:-2]))
    a, b = (
        v
        if list(n.desc(i).shape[:-2]) == batch
        else n.op("BroadcastTo", v, shape=[*batch, *n.desc(i).shape[-2:]])
        for i, v in enumerate(n.inputs[:2])
    )
    flags = {"lower": bool(n.attr("lower", True)), "transposed": bool(n.attr("adjoint", False))}
    return n.op("TriangularSolve", a, b, **flags)


@plugin(tensorflow="LogMatrixDeterminant")
def _log_determinant(n: Node) -> Results:
    """The sign and the logarithm of the magnitude of the determinant, computed in double precision."""
    if n.desc().shape[-1] > _DETERMINANT_ORDER:
        raise Unsupported(
            f"determinants of more than {_DETERMINANT_ORDER} rows", "their product may overflow"
        )
    det = n.op("Det", n.op("Cast", n.inputs[0], to="float64"))
    return [n.op("Cast", v, to=n.desc().dtype) for v in (n.op("Sign", det), n.op("Log", n.op("Abs", det)))]


_DETERMINANT_ORDER = 32


@plugin(tensorflow="TridiagonalMatMul")
def _tridiagonal_product(n: Node) -> Results:
    """Each row of the product combines three adjacent rows."""
    rank, rows = n.desc(3).rank, n.desc(3).shape[-2]

    def diagonal(index: int) -> Any:
        return n.op("Reshape", n.inputs[index], shape=[*n.desc(index).shape[:-2], rows, 1])

    def moved(by: int) -> Any:
        low, high = [0] * rank, [0] * rank
        (low if by < 0 else high)[-2] = 1
        padded = n.op("Pad", n.inputs[3], low=low, high=high, value=0.0)
        starts = [0] * rank
        starts[-2] = 1 if by > 0 else 0
        shape = n.desc(3).shape
        return n.op("Slice", padded, starts=starts, ends=[s + d for s, d in zip(starts, shape, strict=True)])

    parts = [
        n.op("Mul", diagonal(0), moved(1)),
        n.op("Mul", diagonal(1), n.inputs[3]),
        n.op("Mul", diagonal(2), moved(-1)),
    ]
    return n.op("Add", n.op("Add", parts[0], parts[1]), parts[2])
