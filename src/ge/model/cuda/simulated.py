"""NVIDIA's libraries for the simulated driver: the same calls on the same addresses, as kernels that the host runs.

They read only what the call declares of an operand, so that a plan that relies on more than the call declares gives a
different result, as it would on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tbe
from ge.ir.types import numpy_dtype
from ge.model.cuda.epilogue import activated
from ge.ops.nn.spatial import Window, expression_windows
from npu_runtime import UnsupportedTask, cuda

__all__ = ["Attention", "Convolution", "Product"]

_Matrix = Sequence[int]  # rows, columns, their strides, and the matrix stride


class _Operand:
    """A strided operand: the placeholder of the memory that it spans, and its values in float32."""

    def __init__(self, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> None:
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        self.memory = memory = tbe.placeholder((reach,), dtype)

        def element(*at: tbe.Scalar) -> tbe.Scalar:
            return memory[
                (sum((i * s for i, s in zip(at, strides, strict=True)), tbe.cast(at[0], "int64") * 0),)
            ]

        self.value = tbe.cast(tbe.compute(shape, element), "int32" if dtype == "int8" else "float32")


class _Kernel:
    """A generated kernel whose result is written to strided memory, row by row if rows have gaps between them."""

    def __init__(
        self, device: int, operands: Sequence[_Operand], value: tbe.Tensor, strides: Sequence[int], dtype: str
    ) -> None:
        shape = value.shape
        order = sorted(range(len(shape)), key=lambda axis: -strides[axis] if shape[axis] > 1 else -math.inf)
        sorted_shape, steps = [shape[a] for a in order], [strides[a] for a in order]
        outputs = [tbe.cast(tbe.transpose(value, order), dtype)]
        kernel = tbe.build([o.memory for o in operands], outputs, "simulated")
        self._module = cuda.Module(device, kernel.object)
        self._launch = kernel.symbol, kernel.total, kernel.grain
        size = numpy_dtype(dtype).itemsize
        self._row, rows = sorted_shape[-1] * size, math.prod(sorted_shape[:-1])
        starts = [0]
        for extent, step in zip(sorted_shape[:-1], steps[:-1], strict=True):
            starts = [start + i * step * size for start in starts for i in range(extent)]
        self._starts = [] if starts == [i * self._row for i in range(rows)] else starts
        self._rows = cuda.Memory(device, rows * self._row, "rows of a result") if self._starts else None

    def enqueue(self, stream: cuda.Stream, inputs: Sequence[int], output: int) -> None:
        symbol, blocks, threads = self._launch
        result = output if self._rows is None else self._rows.address
        stream.launch(self._module, symbol, blocks, threads, [*inputs, result])
        for number, start in enumerate(self._starts):
            stream.copy(output + start, result + number * self._row, self._row)


class _Call:
    """The interface of all library calls."""

    candidates = 1

    def describe(self, candidate: int) -> str:
        return "simulated"

    def prepare(self, candidate: int) -> int:
        return 0


class _Sum(_Call):
    """act(sum of products + bias + residual): common to products and convolutions."""

    def __init__(
        self,
        device: int,
        operands: Sequence[_Operand],
        value: tbe.Tensor,
        result: tuple[str, Sequence[int]],
        channel_axis: int,
        epilogue: tuple[bool, bool, str],
    ) -> None:
        dtype, strides = result
        self._has_bias, self._has_residual, activation = epilogue
        operands = list(operands)
        if self._has_bias:
            wide = [n if axis == channel_axis else 1 for axis, n in enumerate(value.shape)]
            operands.append(_Operand(dtype, wide, [int(axis == channel_axis) for axis in range(len(wide))]))
            value = value + operands[-1].value
        if self._has_residual:
            operands.append(_Operand(dtype, value.shape, strides))
            value = value + operands[-1].value
        self._kernel = _Kernel(device, operands, activated(value, activation), strides, dtype)

    def enqueue(
        self,
        stream: cuda.Stream,
        candidate: int,
        a: int,
        b: int,
        bias: int,
        residual: int,
        y: int,
        workspace: int,
    ) -> None:
        given = [a, b, *([bias] if self._has_bias else []), *([residual] if self._has_residual else [])]
        self._kernel.enqueue(stream, given, y)


class Product(_Sum):
    """Mirrors `npu_runtime.cuda.Product`."""

    def __init__(
        self,
        device: int,
        library: str,
        dtype: str,
        result: str,
        stack: int,
        a: _Matrix,
        b: _Matrix,
        y: _Matrix,
        residual: _Matrix,
        has_bias: bool,
        activation: str,
    ) -> None:
        first, second = (_Operand(dtype, (stack, *m[:2]), (m[4], *m[2:4])) for m in (a, b))
        rows, depth, columns = a[0], a[1], b[1]

        def element(n: tbe.Scalar, i: tbe.Scalar, j: tbe.Scalar, k: tbe.Scalar) -> tbe.Scalar:
            return first.value[(n, i, k)] * second.value[(n, k, j)]

        value = tbe.reduce("sum", tbe.compute((stack, rows, columns, depth), element), 3)
        strides = y[4], y[2], y[3]
        epilogue = has_bias, bool(residual), activation
        super().__init__(device, [first, second], value, (result, strides), 2, epilogue)


class Convolution(_Sum):
    """Mirrors `npu_runtime.cuda.Convolution`."""

    def __init__(
        self,
        device: int,
        library: str,
        direction: str,
        dtype: str,
        result: str,
        x: Sequence[int],
        x_strides: Sequence[int],
        w: Sequence[int],
        w_strides: Sequence[int],
        y: Sequence[int],
        y_strides: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        pads_begin: Sequence[int],
        pads_end: Sequence[int],
        has_bias: bool,
        has_residual: bool,
        activation: str,
    ) -> None:
        self._direction = direction
        window = Window(tuple(w[2:]), tuple(strides), tuple(dilations), tuple(pads_begin), tuple(pads_end))
        sides = {
            "x": _Operand(dtype, x, x_strides),
            "w": _Operand(dtype, w, w_strides),
            "y": _Operand(dtype, y, y_strides),
        }
        computed = {"forward": "y", "data": "x", "weights": "w"}[direction]
        if window.outputs(x[2:]) != tuple(y[2:]) or x[1] % w[1] or y[1] != w[0] or x[0] != y[0]:
            raise UnsupportedTask("the shapes of a convolution do not go together")
        operands = [side for name, side in sides.items() if name != computed]
        value = _CONVOLUTIONS[direction](operands[0].value, operands[1].value, window, (x, w, y))
        strides_of = {"x": x_strides, "w": w_strides, "y": y_strides}[computed]
        epilogue = has_bias, has_residual, activation
        super().__init__(device, operands, value, (result, strides_of), 1, epilogue)

    def enqueue(
        self,
        stream: cuda.Stream,
        candidate: int,
        a: int,
        b: int,
        bias: int,
        residual: int,
        y: int,
        workspace: int,
    ) -> None:
        """Addresses of images, weights and result; a gradient is written to the address of its tensor."""
        order = {"forward": (a, b, y), "data": (b, y, a), "weights": (a, y, b)}[self._direction]
        super().enqueue(stream, candidate, order[0], order[1], bias, residual, order[2], workspace)


_Shapes = tuple[Sequence[int], Sequence[int], Sequence[int]]


def _forward(x: tbe.Tensor, w: tbe.Tensor, window: Window, shapes: _Shapes) -> tbe.Tensor:
    (n, channels, *_), (outputs, inner, *kernel), y = shapes
    groups, space = channels // inner, tuple(y[2:])
    views = tbe.reshape(expression_windows(x, window, 0), (n, groups, 1, inner, *space, *kernel))
    weights = tbe.reshape(w, (groups, outputs // groups, inner, *(1,) * len(space), *kernel))
    axes = (3, *range(4 + len(space), 4 + 2 * len(space)))
    return tbe.reshape(tbe.reduce("sum", views * weights, axes), tuple(y))


def _weights(x: tbe.Tensor, y: tbe.Tensor, window: Window, shapes: _Shapes) -> tbe.Tensor:
    (n, channels, *_), (outputs, inner, *kernel), (_, _, *space) = shapes
    groups = channels // inner
    views = expression_windows(x, window, 0)
    views = tbe.reshape(views, (n, groups, 1, inner, *space, *kernel))
    slopes = tbe.reshape(y, (n, groups, outputs // groups, 1, *space, *(1,) * len(kernel)))
    total = tbe.reduce("sum", views * slopes, (0, *range(4, 4 + len(space))))
    return tbe.reshape(total, (outputs, inner, *kernel))


def _data(w: tbe.Tensor, y: tbe.Tensor, window: Window, shapes: _Shapes) -> tbe.Tensor:
    (n, channels, *sizes), (outputs, inner, *kernel), (_, _, *space) = shapes
    groups, rank = channels // inner, len(sizes)
    slopes = tbe.reshape(y, (n, groups, outputs // groups, *space))
    weights = tbe.reshape(w, (groups, outputs // groups, inner, *kernel))

    def term(*index: tbe.Scalar) -> tbe.Scalar:
        b, g, i, *rest = index
        place, o, taps = rest[:rank], rest[rank], rest[rank + 1 :]
        rows = zip(place, taps, window.dilations, window.pads_begin, strict=True)
        shifted = [p + low - k * hole for p, k, hole, low in rows]
        source = [s // stride for s, stride in zip(shifted, window.strides, strict=True)]
        value = slopes[(b, g, o, *source)] * weights[(g, o, i, *taps)]
        for s, q, stride, extent in zip(shifted, source, window.strides, space, strict=True):
            value = tbe.select((tbe.binary("eq", s % stride, 0)) & (q >= 0) & (q < extent), value, 0)
        return value

    terms = tbe.compute((n, groups, inner, *sizes, outputs // groups, *kernel), term)
    total = tbe.reduce("sum", terms, tuple(range(3 + rank, 4 + 2 * rank)))
    return tbe.reshape(total, (n, channels, *sizes))


_CONVOLUTIONS = {"forward": _forward, "data": _data, "weights": _weights}


class Attention(_Call):
    """Mirrors `npu_runtime.cuda.Attention`: scores, their softmax and its product with the values, in sequence."""

    def __init__(
        self,
        device: int,
        library: str,
        dtype: str,
        q: Sequence[int],
        q_strides: Sequence[int],
        k: Sequence[int],
        k_strides: Sequence[int],
        v: Sequence[int],
        v_strides: Sequence[int],
        y: Sequence[int],
        y_strides: Sequence[int],
        mask_dtype: str,
        mask: Sequence[int],
        mask_strides: Sequence[int],
        scale: float,
        causal: bool,
        has_sums: bool,
    ) -> None:
        queries, keys = _Operand(dtype, q, q_strides), _Operand(dtype, k, k_strides)
        stack, heads, rows, depth = q
        shape = stack, heads, rows, k[2]

        def score(n: tbe.Scalar, h: tbe.Scalar, i: tbe.Scalar, j: tbe.Scalar, d: tbe.Scalar) -> tbe.Scalar:
            return queries.value[(n, h, i, d)] * keys.value[(n, h, j, d)]

        scores = tbe.reduce("sum", tbe.compute((*shape, depth), score), 4) * scale
        given = [queries, keys]
        if mask_dtype:
            given.append(_Operand(mask_dtype, mask, mask_strides))
            scores = scores + given[-1].value
        self._has_mask, self._has_sums = bool(mask_dtype), has_sums
        dense = [math.prod(shape[i + 1 :]) for i in range(4)]
        self._scores = _Kernel(device, given, scores, dense, "float32")

        seen = _Operand("float32", shape, dense)
        value = seen.value
        if causal:
            value = tbe.compute(
                shape,
                lambda n, h, i, j: tbe.select(tbe.binary("le", j, i), seen.value[(n, h, i, j)], -math.inf),
            )
        most = tbe.reduce("max", value, 3, keepdims=True)
        powers = tbe.unary("exp", value - most)
        sums = tbe.reduce("sum", powers, 3, keepdims=True)
        self._weights = _Kernel(device, [seen], powers / sums, dense, "float32")
        logarithms = most + tbe.unary("log", sums)
        self._sums = _Kernel(device, [seen], logarithms, [*(s // k[2] for s in dense[:3]), 1], "float32")

        weights, values = _Operand("float32", shape, dense), _Operand(dtype, v, v_strides)

        def element(n: tbe.Scalar, h: tbe.Scalar, i: tbe.Scalar, d: tbe.Scalar, j: tbe.Scalar) -> tbe.Scalar:
            return weights.value[(n, h, i, j)] * values.value[(n, h, j, d)]

        result = tbe.reduce("sum", tbe.compute((*y, k[2]), element), 4)
        self._result = _Kernel(device, [weights, values], result, y_strides, dtype)
        self._memory = [cuda.Memory(device, 4 * math.prod(shape), "scores") for _ in range(2)]

    def enqueue(
        self,
        stream: cuda.Stream,
        candidate: int,
        q: int,
        k: int,
        v: int,
        mask: int,
        y: int,
        sums: int,
        workspace: int,
    ) -> None:
        scores, weights = (memory.address for memory in self._memory)
        self._scores.enqueue(stream, [q, k, *([mask] if self._has_mask else [])], scores)
        self._weights.enqueue(stream, [scores], weights)
        if self._has_sums:
            self._sums.enqueue(stream, [scores], sums)
        self._result.enqueue(stream, [weights, v], y)
