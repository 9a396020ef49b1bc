"""Implementations of cube operations on NVIDIA GPUs: cuBLASLt's products, cuDNN's convolutions and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ge.implementations import cuda_own
from ge.implementations.base import Candidate, Operation
from ge.implementations.decomposed import Decomposed
from ge.ir.types import TensorDesc
from ge.plan import View
from ge.target import Target

__all__ = [
    "ACTIVATIONS",
    "CANDIDATES",
    "data_gradient_rows",
    "matrix_of",
    "rows_of",
    "runs_ai_cpu",
    "weight_gradient_rows",
]

_FLOATS = ("float32", "float16", "bfloat16")


def matrix_of(view: View, leading: Sequence[int]) -> tuple[int, int, int, int, int] | None:
    """A stack of matrices as rows, columns, their strides, and the matrix stride; None for other layouts.

    >>> matrix_of(View(0, "float32", (6, 2, 3), (6, 3, 1)), (6,))
    (2, 3, 3, 1, 6)
    """
    *stack, rows, columns = view.shape
    *steps, down, across = view.strides
    if 1 not in (down, across) and rows != 1 and columns != 1:
        return None
    if math.prod(stack) == 1:
        return rows, columns, down, across, 0
    if tuple(stack) != tuple(leading):
        return None
    distance, reach = 0, 0
    for extent, step in zip(reversed(stack), reversed(steps), strict=True):
        if extent == 1:
            continue
        if distance and step != reach:
            return None
        distance = distance or step
        reach = step * extent
    return rows, columns, down, across, distance


# Activations of the libraries, by post-op name.
ACTIVATIONS = {
    "relu": "relu",
    "clip,0.0,6.0": "relu6",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "swish,1.0": "swish",
    "gelu_erf": "gelu_erf",
    "gelu_tanh": "gelu_tanh",
}


def rows_of(op: Operation) -> Operation | None:
    """A 1x1 convolution as the product of its pixels and its weights; None for others.

    The images are channels-last and contiguous, so that a pixel is a row.
    """
    x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
    if not _is_pointwise(op, w) or w.strides[1] != 1:
        return None
    rows = tuple(_pixels(v) for v in (x, *op.inputs[2 + op.flag("has_bias") :], y))
    if None in rows:
        return None
    first, *others, last = (r for r in rows if r is not None)
    turned = View(w.buffer, w.dtype, (w.shape[1], w.shape[0]), (1, w.strides[0]), w.offset)
    bias = op.inputs[2:3] if op.flag("has_bias") else ()
    return Operation("matmul", (first, turned, *bias, *others), (last,), op.attrs, op.constant, op.steady)


def _is_pointwise(op: Operation, w: View) -> bool:
    """True if a convolution, or a gradient of one, is 1x1 without stride or padding."""
    once = (1,) * (len(w.shape) - 2)
    plain = op.integers("strides", once) == op.integers("dilations", once) == w.shape[2:] == once
    borders = (*op.integers("pads_begin", (0,)), *op.integers("pads_end", (0,)))
    return plain and not any(borders) and int(op.attrs.get("groups", 1)) == 1


def data_gradient_rows(op: Operation) -> Operation | None:
    """The data gradient of a 1x1 convolution as a product: rows of pixels by the weights (O, I); None for others."""
    w = op.inputs[1]
    rows = [_pixels(v) for v in (op.inputs[0], op.outputs[0])]
    if not _is_pointwise(op, w) or w.strides[1] != 1 or rows[0] is None or rows[1] is None:
        return None
    matrix = View(w.buffer, w.dtype, w.shape[:2], w.strides[:2], w.offset)
    return Operation("matmul", (rows[0], matrix), (rows[1],), {"has_bias": False, "post_ops": ()})


def weight_gradient_rows(op: Operation) -> Operation | None:
    """The weight gradient of a 1x1 convolution as a product: channels by pixels by channels; None for others."""
    w = op.outputs[0]
    x, dy = (_pixels(v) for v in op.inputs[:2])
    if not _is_pointwise(op, w) or w.strides[1] != 1 or x is None or dy is None:
        return None
    matrix = View(w.buffer, w.dtype, w.shape[:2], w.strides[:2], w.offset)
    return Operation("matmul", (dy.permute((1, 0)), x), (matrix,), {"has_bias": False, "post_ops": ()})


def _pixels(view: View) -> View | None:
    """Images as a matrix with one row per pixel, None for other layouts."""
    images, channels, *space = view.shape
    last = View.of(view.buffer, TensorDesc((images, *space, channels), view.dtype))
    moved = (view.strides[0], *view.strides[2:], view.strides[1])
    if any(n > 1 and s != e for n, s, e in zip(last.shape, moved, last.strides, strict=True)):
        return None
    rows = images * math.prod(space)
    return View(view.buffer, view.dtype, (rows, channels), (channels, 1), view.offset)


class _Library(Candidate):
    """Constraints common to the libraries: one element type throughout, and y = act(product + bias + residual).

    A float32 bias of 16-bit operands is rounded to their type first.
    """

    device = "cuda"
    activations: tuple[str, ...] = ("relu",)

    def unfit(self, op: Operation) -> str:
        op = _with_narrow_bias(op)
        dtypes = {v.dtype for v in (*op.inputs, *op.outputs)}
        if len(dtypes) != 1 or op.inputs[0].dtype not in _FLOATS or op.quantised:
            return "it takes float32, float16 or bfloat16 throughout"
        if any(0 in v.shape for v in (*op.inputs, *op.outputs)):
            return "it has no elements"
        if op.flag("has_gate") or len(op.inputs) != 2 + op.flag("has_bias") + op.post_operands:
            return "it has no gate, and no operands but a bias and those of its epilogue"
        return self._operands(op) or self._epilogue(op)

    def _operands(self, op: Operation) -> str:
        raise NotImplementedError

    def _epilogue(self, op: Operation) -> str:
        rest = list(op.post_ops)
        if rest[:1] == ["add"]:
            if not _same_layout(op.inputs[-1], op.outputs[0]):
                return "the summand is not laid out as the result"
            rest = rest[1:]
        if len(rest) > 1 or any(ACTIVATIONS.get(text) not in self.activations for text in rest):
            return f"it has no epilogue {', '.join(op.post_ops)}"
        return ""


def _with_narrow_bias(op: Operation) -> Operation:
    """The operation with its bias in the operands' type, if the bias is wider."""
    if not op.flag("has_bias") or op.inputs[0].dtype not in ("float16", "bfloat16"):
        return op
    x, w, bias, *rest = op.inputs
    if bias.dtype != "float32":
        return op
    narrow = View(bias.buffer, x.dtype, bias.shape, bias.strides, bias.offset)
    return replace(op, inputs=(x, w, narrow, *rest))


def _same_layout(view: View, other: View) -> bool:
    """True if two tensors have the same type, shape and layout; strides of axes of one element do not matter."""
    steps = zip(view.shape, view.strides, other.strides, strict=False)
    alike = all(n == 1 or one == two for n, one, two in steps)
    return (view.shape, view.dtype) == (other.shape, other.dtype) and alike


class CublasLt(_Library):
    """Products that accumulate in float32; float32 operands are not rounded to TF32.

    It has no erf-GELU: a kernel after the product computes that in place.
    """

    name = "cublaslt"
    activations = ("relu", "gelu_tanh", "gelu_erf")

    def unfit(self, op: Operation) -> str:
        """16-bit operands may have a float32 result, without an epilogue; 8-bit integers have an int32 one."""
        y = op.outputs[0]
        if op.inputs[0].dtype == "int8":
            return _integer_unfit(op)
        if y.dtype != "float32" or op.inputs[0].dtype == "float32":
            return super().unfit(op)
        if op.flag("has_bias") or op.post_ops:
            return "a wider result has no epilogue"
        same = View(y.buffer, op.inputs[0].dtype, y.shape, y.strides, y.offset)
        return super().unfit(replace(op, outputs=(same,)))

    def _operands(self, op: Operation) -> str:
        y = op.outputs[0]
        leading = y.shape[:-2]
        if any(matrix_of(v, leading) is None for v in (*op.inputs[:2], y)):
            return "operands are not stacks of matrices at equal distances"
        if matrix_of(y, leading)[3] != 1 and y.shape[-1] != 1:  # type: ignore[index]
            return "the result is not row-major"
        bias = op.inputs[2] if op.flag("has_bias") else None
        if bias is not None and (bias.shape[-1] != y.shape[-1] or math.prod(bias.shape) != y.shape[-1]):
            return "the bias is not one number for each column"
        return ""


_INTEGER_ROW = 16  # bytes to which rows of 8-bit matrices are aligned
_PLAIN = {
    "src_scale": 1.0,
    "dst_scale": 1.0,
    "src_zero_point": 0,
    "dst_zero_point": 0,
    "has_bias": False,
    "has_weight_scales": False,
}


def _integer_unfit(op: Operation) -> str:
    """Products of int8 matrices are exact sums of 32 bits; scales and biases are separate (split_scales)."""
    x, w, y = *op.inputs[:2], op.outputs[0]
    if (x.dtype, w.dtype, y.dtype) != ("int8", "int8", "int32") or len(op.inputs) > 2 or op.post_ops:
        return "it multiplies int8 by int8, without an epilogue"
    if any(op.attrs.get(name, plain) != plain for name, plain in _PLAIN.items()):
        return "it has no scales and zero points"
    if any(len(v.shape) != 2 or not v.contiguous for v in (x, w, y)) or not all((*x.shape, *w.shape)):
        return "it takes single dense matrices"
    if w.shape[0] % _INTEGER_ROW or w.shape[1] % _INTEGER_ROW:
        return f"depth and columns are no multiples of {_INTEGER_ROW}"
    return ""


class CudnnProduct(_Library):
    """Products of few rows with an epilogue that cuBLASLt lacks, as 1x1 convolutions."""

    name = "cudnn"
    activations = ("gelu_erf",)
    _FEW_ROWS = 512  # with more, a kernel after the product costs less than the slower product

    def _operands(self, op: Operation) -> str:
        x, w, y = op.inputs[0], op.inputs[1], op.outputs[0]
        if not op.post_ops or ACTIVATIONS.get(op.post_ops[-1]) not in self.activations:
            return "cuBLASLt has its epilogue"
        if x.dtype == "float32":
            return "its engines with epilogues round float32 to TF32"
        if len(x.shape) != 2 or len(w.shape) != 2 or x.strides[1] != 1 or not y.contiguous:
            return "it takes single matrices with dense rows"
        return ""

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return 1.2 if op.inputs[0].shape[0] <= self._FEW_ROWS else 0.9


class Pointwise(CublasLt):
    """1x1 convolutions as products of pixels; faster than cuDNN if they add a residual."""

    def unfit(self, op: Operation) -> str:
        rows = rows_of(op)
        return (
            "its windows are larger, or images are not channels last" if rows is None else super().unfit(rows)
        )

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return 1.2 if "add" in op.post_ops else 0.95


class Cudnn(_Library):
    """Convolutions of images; float32 runs on engines that do not round to TF32.

    The parts of an epilogue that cuDNN's engines do not support run in a kernel after the convolution.
    """

    name = "cudnn"
    activations = tuple(ACTIVATIONS.values())

    def _operands(self, op: Operation) -> str:
        x, w = op.inputs[:2]
        if len(x.shape) != 4:
            return "it takes images"
        if w.shape[1] * int(op.attrs.get("groups", 1)) != x.shape[1]:
            return "the weights do not match the images"
        return ""


class _Gradient(_Library):
    """Gradients of image convolutions, without epilogues."""

    def unfit(self, op: Operation) -> str:
        if op.post_ops or op.flag("has_bias") or len(op.outputs) != 1:
            return "it has no epilogue and no gradient of a bias"
        return super().unfit(op)

    def _operands(self, op: Operation) -> str:
        return "" if len(op.inputs[0].shape) == 4 else "it takes images"


class CudnnDataGradient(_Gradient):
    """Transposed convolutions: the data gradients of convolutions."""

    name = "cudnn"


class PointwiseDataGradient(_Gradient):
    """The same for 1x1 convolutions, as a product of pixels."""

    name = "cublaslt"

    def _operands(self, op: Operation) -> str:
        return "" if data_gradient_rows(op) else "its windows are larger, or images are not channels last"

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return 0.95


class CudnnWeightGradient(_Gradient):
    """Weight gradients of convolutions; the result may be float32 with 16-bit operands."""

    name = "cudnn"

    def unfit(self, op: Operation) -> str:
        result = op.outputs[0]
        if result.dtype not in (op.inputs[0].dtype, "float32"):
            return "it gives the operands' type or float32"
        same = View(result.buffer, op.inputs[0].dtype, result.shape, result.strides, result.offset)
        return super().unfit(replace(op, outputs=(same, *op.outputs[1:])))


class PointwiseWeightGradient(CudnnWeightGradient):
    """The same for 1x1 convolutions, as a product over all pixels."""

    name = "cublaslt"

    def _operands(self, op: Operation) -> str:
        return "" if weight_gradient_rows(op) else "its windows are larger, or images are not channels last"

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return 0.95


class CudnnAttention(Candidate):
    """Attention of 16-bit floats that never stores its scores; masks are additive."""

    name = "cudnn"
    device = "cuda"
    _MOST_COLUMNS = 128

    def unfit(self, op: Operation) -> str:
        q, k, v = op.inputs[:3]
        y = op.outputs[0]
        if q.dtype not in ("float16", "bfloat16") or {k.dtype, v.dtype, y.dtype} != {q.dtype}:
            return "it takes float16 or bfloat16 throughout"
        if not 2 <= len(q.shape) <= 4 or any(w.shape[:-2] != q.shape[:-2] for w in (k, v)):
            return "it takes at most two leading axes, the same of all operands"
        if 0 in (*q.shape, *k.shape, *v.shape):
            return "it has no elements"
        if any(n % 8 or n > self._MOST_COLUMNS for n in (q.shape[-1], v.shape[-1])):
            return f"columns are no multiple of 8 up to {self._MOST_COLUMNS}"
        if any(w.strides[-1] != 1 for w in (q, k, v, y)):
            return "columns are not dense"
        if op.flag("causal") and q.shape[-2] != k.shape[-2]:
            return "it hides later keys only where there are as many as queries"
        return self._mask_unfit(op)

    def _mask_unfit(self, op: Operation) -> str:
        if len(op.inputs) < 4:
            return ""
        mask = op.inputs[3]
        if mask.dtype == "bool" or op.flag("zeros"):
            return "it adds masks to the scores, and gives no zeros where all are hidden"
        if mask.dtype not in ("float32", op.inputs[0].dtype) or not mask.contiguous:
            return "it takes dense masks of float32 or of the operands' type"
        return ""

    def modelled_gain(self, op: Operation, target: Target) -> float:
        return 2.0


_MOST_ROWS = 1 << 16  # of a sum by index, whose chains compare all pairs
_SUMMED = (*_FLOATS, "float64", "int32", "int64")


def runs_ai_cpu(name: str, operands: Sequence[View | TensorDesc | None], *, nested: bool = False) -> bool:
    """True if the GPU has its own kernel for an AI CPU operator on these operands; `nested`: in a branch or loop."""
    if name == "check":
        return not nested
    if name != "scatter_sum" or None in operands:
        return False
    indices, rows = operands[0], operands[1]
    assert indices is not None and rows is not None
    return indices.shape[0] <= _MOST_ROWS and rows.dtype in _SUMMED


class _Decomposed(Decomposed):
    device = "cuda"


# By kind of task; other kinds have no implementation on a GPU.
CANDIDATES: dict[str, tuple[Candidate, ...]] = {
    "matmul": (CudnnProduct(), CublasLt()),
    "conv": (Pointwise(), Cudnn()),
    "deconv": (PointwiseDataGradient(), CudnnDataGradient()),
    "conv_grad_weights": (PointwiseWeightGradient(), CudnnWeightGradient()),
    "attention": (CudnnAttention(), _Decomposed()),
    "attention_grad": (cuda_own.AttentionGradient(), _Decomposed()),
    "rnn": (_Decomposed(),),
    "lstm_steps": (_Decomposed(),),
    "lstm_steps_grad": (_Decomposed(),),
    "layer_norm_grad": (_Decomposed(),),
    "stem": (cuda_own.Stem(),),
    "bottleneck": (cuda_own.Bottleneck(),),
    "packed_matmul": (_Decomposed(),),
    "pool_grad": (_Decomposed(),),
}
