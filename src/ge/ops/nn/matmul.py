"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import tbe
from ge.ir.types import NUMBERS, TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.aten import AtenNode, aten
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.dataflow import Dataflow, Part, Sliced, Stack, Stacked, aligned_part, joined_rows
from ge.ops.math.checks import in_range
from ge.ops.math.reduce import widened
from ge.ops.nn.post_ops import apply_post_ops
from ge.ops.nn.quantise import integer_matmul
from ge.ops.nn.spatial import aligned, fused_activation
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.ops.traits import Precision, Result, WeightAxes
from ge.ops.views import is_matrix, is_row_major
from ge.plan import Task, View


class Product(Dataflow):
    """Rows of a product are those of its first operand; stacks go with stacks."""

    def slice(self, op: NodeView, part: Part) -> Sliced | None:
        a, rank = op.inputs[0], op.outputs[0].rank
        assert a is not None
        if a.rank != rank or part.axis == rank - 1 or aligned_part(op, 2, part) is not None:
            return None
        operands = [0, *range(3, len(op.inputs))]
        if part.axis < rank - 2:
            operands.append(1)
        size = op.outputs[0].shape[part.axis]
        parts = {i: p for i in operands if (p := aligned_part(op, i, part)) is not None}
        if part.axis == rank - 2 and op.transpose_a:
            parts[0] = part.at(rank - 1)
        if any(op.inputs[i].shape[p.axis] != size for i, p in parts.items()):
            return None
        return Sliced(parts)

    def stack(self, op: NodeView, stack: Stack) -> Stacked | None:
        """The rows of all runs by one matrix are one product; else there is one product per run."""
        a, b = op.inputs[:2]
        assert a is not None and b is not None
        if max(stack.inputs) > 1 or op.post_ops:
            return None
        if a.rank == b.rank == 2 and stack.inputs == {0} and not op.transpose_a:
            return joined_rows(op, stack)
        rank = max(a.rank, b.rank)
        shapes = {i: op.inputs[i].shape for i in stack.inputs}  # type: ignore[union-attr]
        return Stacked(shapes={i: (stack.count, *(1,) * (rank - len(s)), *s) for i, s in shapes.items()})


@register
class MatMul(Operator):
    """a times b over the last two axes, batch axes broadcast; bias and post-ops are fused in.

    post_ops are kinds of the runtime's matmul task; those of two operands take the extra inputs in order.
    """

    a = Input("T", NUMBERS)
    b = Input("T", NUMBERS)
    bias = Input("", NUMBERS, optional=True)
    post = Input("", NUMBERS, variadic=True)
    y = Output("T")
    transpose_a = Attr(bool, False)
    transpose_b = Attr(bool, False)
    post_ops = Attr(list, (), item=str)
    output_dtype = Attr(str, None)  # if a wider result of 16-bit operands is requested
    dataflow = Product()
    precision = Precision(narrows=True, product=True, result=Result.EITHER, widens=True)
    takes_epilogues = True
    algorithm_names = (
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "MatMulV2",
        "MatMulV3",
        "Gemm",
        "GEMM",
    )
    strided_inputs = (is_matrix, is_matrix)
    strided_output = is_row_major
    aligned_rows = True

    @staticmethod
    def weight_axes(op: NodeView) -> WeightAxes:
        outputs, inputs = (-2, -1) if op.transpose_b else (-1, -2)
        is_matrix_of_weights = op.inputs[1].rank == 2 and not op.transpose_a  # type: ignore[union-attr]
        return WeightAxes(-1, outputs, inputs if is_matrix_of_weights else None, (inputs,))

    @staticmethod
    def verify(op: NodeView) -> None:
        a, b = _shapes(op)
        if len(a) < 2 or len(b) < 2:
            raise fail(
                op, f"takes matrices, got {op.inputs[0]} and {op.inputs[1]}", "reshape vectors to matrices"
            )
        if a[-1] != b[-2]:
            raise fail(op, f"cannot multiply {list(a)} by {list(b)}: {a[-1]} columns against {b[-2]} rows")
        bias = op.input(2)
        if bias is not None and bias.shape != (b[-1],):
            raise fail(op, f"the bias is {bias} where a vector of {b[-1]} elements is expected")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        a, b = _shapes(op)
        batch = np.broadcast_shapes(a[:-2], b[:-2])
        return TensorDesc((*batch, a[-2], b[-1]), op.output_dtype or op.inputs[0].dtype)  # type: ignore[union-attr]

    @staticmethod
    def refuse(op: NodeView) -> str:
        if op.inputs[0].dtype in ("int8", "uint8"):  # type: ignore[union-attr]
            return "8-bit products on the AI Core have 32-bit results (QMatMul)"
        return "an operand has no elements" if 0 in (*op.inputs[0].shape, *op.inputs[1].shape) else ""  # type: ignore[union-attr]

    @staticmethod
    def compute(op: NodeView, a: tbe.Tensor, b: tbe.Tensor, bias: tbe.Tensor | None = None) -> tbe.Tensor:
        assert not op.post_ops, "post-ops are fused into AI Core nodes only"
        dtype = op.output_dtype or a.dtype
        a = _transposed(a) if op.transpose_a else a
        b = _transposed(b) if op.transpose_b else b
        a, b = (tbe.cast(v, dtype) if _is_integer(dtype) else widened(v) for v in (a, b))
        left = tbe.reshape(a, (*a.shape, 1))
        right = tbe.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
        product = left * right
        total = tbe.reduce("sum", product, (len(product.shape) - 2,))
        if bias is not None:
            total = total + tbe.cast(widened(bias), total.dtype)
        return tbe.cast(total, dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        a, b = (np.asarray(v) for v in arrays[:2])
        dtype = op.output_dtype or op.inputs[0].dtype  # type: ignore[union-attr]
        wide = np.dtype(np.float32) if dtype in ("float16", "bfloat16") else numpy_dtype(dtype)
        a, b = a.astype(wide), b.astype(wide)
        a = np.swapaxes(a, -1, -2) if op.transpose_a else a
        b = np.swapaxes(b, -1, -2) if op.transpose_b else b
        y = np.matmul(a, b)
        if len(arrays) > 2 and arrays[2] is not None:
            y = y + arrays[2].astype(y.dtype)
        return [apply_post_ops(y, op.post_ops, arrays[3:])]

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        a, b = inputs[0], inputs[1]
        a = _swapped(a) if op.transpose_a else a
        b = _swapped(b) if op.transpose_b else b
        bias = inputs[2] if len(inputs) > 2 else None
        post = [v for v in inputs[3:] if v is not None]
        out = outputs[0]
        flat = _flattened(a, b, out, post)
        if flat is not None:
            a, out, post = flat
        rank = len(out.shape)
        views = [aligned(v, rank) for v in (a, b, *([bias] if bias is not None else []), *post)]
        attrs: dict[str, Any] = {"has_bias": bias is not None, "post_ops": list(op.post_ops)}
        return Task("matmul", op.name, views, [out], attrs, flops=MatMul.flops(op))

    @staticmethod
    def flops(op: NodeView) -> int:
        a, b = _shapes(op)
        batch = np.broadcast_shapes(a[:-2], b[:-2])
        return 2 * math.prod(batch) * a[-2] * a[-1] * b[-1]


def _shapes(op: NodeView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of both operands after their transposes."""
    a, b = op.inputs[0].shape, op.inputs[1].shape  # type: ignore[union-attr]
    a = (*a[:-2], a[-1], a[-2]) if op.transpose_a and len(a) > 1 else a
    b = (*b[:-2], b[-1], b[-2]) if op.transpose_b and len(b) > 1 else b
    return a, b


def _is_integer(dtype: str) -> bool:
    return numpy_dtype(dtype).kind in "iu"


def _transposed(x: tbe.Tensor) -> tbe.Tensor:
    rank = len(x.shape)
    return tbe.transpose(x, (*range(rank - 2), rank - 1, rank - 2))


def _swapped(view: View) -> View:
    rank = len(view.shape)
    return view.permute((*range(rank - 2), rank - 1, rank - 2))


def _flattened(a: View, b: View, out: View, post: list[View]) -> tuple[View, View, list[View]] | None:
    """A stack of products with one right-hand matrix as one product; None if the views do not allow it."""
    if len(b.shape) != 2 or len(a.shape) == 2 or not (a.contiguous and out.contiguous):
        return None
    rows, columns = math.prod(out.shape[:-1]), out.shape[-1]
    flat = []
    for view in post:
        if view.shape == out.shape and view.contiguous:
            flat.append(view.reshape((rows, columns)))
        elif math.prod(view.shape[:-1]) == 1:
            last = view.strides[-1] if view.shape else 1
            width = view.shape[-1] if view.shape else 1
            flat.append(replace(view, shape=(1, width), strides=(width, last)))
        else:
            return None
    return a.reshape((rows, a.shape[-1])), out.reshape((rows, columns)), flat


# -- ONNX --------------------------------------------------------------------------------------------------


def matrix_product(n: Node, a: Any, b: Any) -> Any:
    """numpy.matmul: vectors become matrices for the product, and the added axes are removed after it."""
    left, right = [int(d) for d in a.shape], [int(d) for d in b.shape]
    if len(left) == 1:
        a = n.op("Reshape", a, shape=[1, *left])
    if len(right) == 1:
        b = n.op("Reshape", b, shape=[*right, 1])
    y = n.op("MatMul", a, b)
    shape = [int(d) for d in y.shape]
    if len(right) == 1:
        shape = shape[:-1]
    if len(left) == 1:
        shape = shape[:-1] if len(right) == 1 else [*shape[:-2], shape[-1]]
    return y if len(shape) == len(y.shape) else n.op("Reshape", y, shape=shape)


@plugin(onnx="MatMul")
def _matmul(n: Node) -> Results:
    return matrix_product(n, n.inputs[0], n.inputs[1])


@plugin(onnx="Gemm")
def _gemm(n: Node) -> Results:
    """alpha * a' * b' + beta * c; a vector c is the product's bias.

    alpha is a factor of the product, not of b, which might overflow or lose digits.
    """
    a, b, c = n.inputs[0], n.inputs[1], n.input(2)
    alpha, beta = float(n.attr("alpha", 1.0)), float(n.attr("beta", 1.0))
    trans: dict[str, Any] = {
        "transpose_a": bool(n.attr("transA", 0)),
        "transpose_b": bool(n.attr("transB", 0)),
    }
    columns = n.desc(1).shape[0 if trans["transpose_b"] else 1]
    if c is not None and beta != 0 and alpha == 1 and _is_bias(n.desc(2).shape, columns):
        bias = c if n.desc(2).rank == 1 else n.op("Reshape", c, shape=[columns])
        return n.op("MatMul", a, b, bias if beta == 1 else n.op("Mul", bias, beta), **trans)
    product = n.op("MatMul", a, b, **trans)
    product = product if alpha == 1 else n.op("Mul", product, alpha)
    if c is None or beta == 0:
        return product
    return n.op("Add", product, c if beta == 1 else n.op("Mul", c, beta))


def _is_bias(shape: tuple[int, ...], columns: int) -> bool:
    """True if an operand of this shape has one number per column."""
    return math.prod(shape) == columns and (not shape or shape[-1] == columns) and math.prod(shape[:-1]) == 1


# -- TensorFlow --------------------------------------------------------------------------------------------


@plugin(tensorflow=["MatMul", "SparseMatMul"])
def _matmul_tf(n: Node) -> Results:
    flags = {name: bool(n.attr(name, False)) for name in ("transpose_a", "transpose_b")}
    return n.op("MatMul", n.inputs[0], n.inputs[1], **flags)


@plugin(tensorflow=["BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"])
def _batch_matmul(n: Node) -> Results:
    flags = {"transpose_a": bool(n.attr("adj_x", False)), "transpose_b": bool(n.attr("adj_y", False))}
    wanted = str(n.attr("Tout", n.desc().dtype))
    operands = {n.desc(i).dtype for i in range(2)}
    if wanted == "int32" and operands <= {"int8", "uint8"} and n.desc(0).size and n.desc(1).size:
        a, b = (_with_axes_swapped(n, i) if flag else n.inputs[i] for i, flag in enumerate(flags.values()))
        return integer_matmul(n, a, b, None, None)
    if operands != {wanted}:
        flags["output_dtype"] = wanted  # type: ignore[assignment]
    return n.op("MatMul", n.inputs[0], n.inputs[1], **flags)


def _with_axes_swapped(n: Node, index: int) -> Any:
    """An input with its last two axes swapped."""
    rank = n.desc(index).rank
    return n.op("Transpose", n.inputs[index], perm=[*range(rank - 2), rank - 1, rank - 2])


@plugin(tensorflow="_FusedMatMul")
def _fused_matmul(n: Node) -> Results:
    """A product with a bias and one activation, as TensorFlow's own optimiser writes it."""
    flags = {name: bool(n.attr(name, False)) for name in ("transpose_a", "transpose_b")}
    after = [str(v) for v in n.attr("fused_ops", [])]
    bias = n.inputs[2] if after[:1] == ["BiasAdd"] else None
    y = n.op("MatMul", n.inputs[0], n.inputs[1], bias, **flags)
    return fused_activation(n, y, after[1:] if bias is not None else after, n.inputs[3:])


@plugin(tensorflow="SparseTensorDenseMatMul")
def _sparse_matmul(n: Node) -> Results:
    """Rows of the dense operand, times the elements, added up: what is absent does not meet NaN or infinities."""
    shape = n.ints(2, "the shape of the sparse operand")
    count, row, column = n.desc(0).shape[0], *((1, 0) if n.attr("adjoint_a", False) else (0, 1))
    places = in_range(n.builder, n.op("Cast", n.inputs[0], to="int64"), shape)
    rows, columns = (n.op("Slice", places, starts=[0, i], ends=[count, i + 1]) for i in (row, column))
    swapped = bool(n.attr("adjoint_b", False))
    dense = _with_axes_swapped(n, 3) if swapped else n.inputs[3]
    width = n.desc(3).shape[0 if swapped else 1]
    read = n.op("Gather", dense, n.op("Reshape", columns, shape=[count]), axis=0)
    terms = n.op("Mul", read, n.op("Reshape", n.inputs[1], shape=[count, 1]))
    zero = n.builder.constant(np.zeros((), numpy_dtype(n.desc(1).dtype)))
    return n.op(
        "ScatterNd", n.op("BroadcastTo", zero, shape=[shape[row], width]), rows, terms, reduction="add"
    )


# -- ATen ------------------------------------------------------------------------------------------------


def _product(n: AtenNode, a: Any, b: Any, bias: Any = None) -> Any:
    if desc_of(a).dtype == "bool":
        raise Unsupported("a product of bools")
    if not desc_of(a).shape[-1]:
        raise Unsupported("a product over an axis of size 0")
    return n.op("MatMul", a, b, bias)


@aten("mm.default", "bmm.default")
def _mm(n: AtenNode) -> Any:
    return _product(n, n.arg("self"), n.arg("mat2"))


@aten("mv")
def _mv(n: AtenNode) -> Any:
    vector = n.arg("vec")
    y = _product(n, n.arg("self"), n.shaped(vector, [desc_of(vector).size, 1]))
    return n.shaped(y, n.out().shape)


@aten("dot", "vdot")
def _dot(n: AtenNode) -> Any:
    x, y = n.arg("self"), n.arg("tensor", n.arg("other"))
    size = desc_of(x).size
    return n.shaped(_product(n, n.shaped(x, [1, size]), n.shaped(y, [size, 1])), [])


@aten("addmm.default", "baddbmm.default")
def _addmm(n: AtenNode) -> Any:
    """beta * self + alpha * (a @ b); a vector is the product's bias."""
    a = n.arg("mat1", n.arg("batch1"))
    b = n.arg("mat2", n.arg("batch2"))
    alpha, beta = n.arg("alpha", 1), n.arg("beta", 1)
    extra, desc = n.arg("self"), desc_of(n.arg("self"))
    columns = desc_of(b).shape[-1]
    if (
        alpha == beta == 1
        and math.prod(desc.shape) == columns
        and (not desc.rank or desc.shape[-1] == columns)
    ):
        return _product(n, a, b, n.shaped(extra, [columns]))
    y = _product(n, a, b)
    y = y if alpha == 1 else n.op("Mul", y, n.cast(alpha, n.out().dtype))
    if beta == 0:
        return y
    extra = extra if beta == 1 else n.op("Mul", extra, n.cast(beta, n.out().dtype))
    return n.op("Add", y, extra)


@aten("linear")
def _linear(n: AtenNode) -> Any:
    x, w = n.arg("input"), n.arg("weight")
    if desc_of(w).rank != 2 or not desc_of(x).rank:
        raise Unsupported("linear over vectors")
    lifted = n.shaped(x, [1, *desc_of(x).shape]) if desc_of(x).rank == 1 else x
    y = n.op("MatMul", lifted, w, n.arg("bias"), transpose_b=True)
    return n.shaped(y, n.out().shape)
