"""Convolutions fused with their successors, for devices that run them as one kernel (see ge.passes.fusion)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ge.ir.types import FLOATS, TensorDesc
from ge.ops.base import Attr, Input, NodeView, Operator, Output, fail, register
from ge.ops.nn.convolution import convolve
from ge.ops.nn.spatial import FORMATS, Window, array_windows, channels_first_perm
from ge.plan import Task, View

__all__: list[str] = []

_KERNEL, _STRIDES, _PADS = (7, 7), (2, 2), (3, 3)
_POOL = Window((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def _convolved(window: Window, x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Images and weights with channels first, in float32."""
    x, w, b = (a.astype(np.float32) for a in (x, w, b))
    return convolve(x, w, window, 1) + b.reshape(-1, 1, 1)


@register
class Stem(Operator):
    """The first layers of residual networks: 7x7 convolution of stride 2, ReLU, 3x3 max pool of stride 2.

    Weights are (O, I, 7, 7); the result has its channels last.
    """

    x = Input("T", FLOATS)
    w = Input("T", FLOATS)
    bias = Input("T", FLOATS)
    y = Output("T")
    data_format = Attr(str, "channels_first", choices=FORMATS)

    @staticmethod
    def verify(op: NodeView) -> None:
        x, w, bias = op.inputs
        assert x is not None and w is not None and bias is not None
        if x.rank != 4 or w.shape[1:] != (_channels(op), *_KERNEL) or bias.shape != w.shape[:1]:
            raise fail(op, f"images {x}, weights {w} and bias {bias} do not go together")

    @staticmethod
    def infer(op: NodeView) -> TensorDesc:
        x, w = op.inputs[:2]
        assert x is not None and w is not None
        images, _, *space = (x.shape[p] for p in channels_first_perm(4, op.data_format))
        return TensorDesc((images, *_POOL.outputs(_window().outputs(space)), w.shape[0]), x.dtype)

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        x, w, bias = (np.asarray(a) for a in arrays)
        data = x.transpose(channels_first_perm(4, op.data_format))
        y = _relu(_convolved(_window(), data, w, bias))
        return [array_windows(y, _POOL, 0).max((4, 5)).transpose(0, 2, 3, 1).astype(x.dtype)]

    @staticmethod
    def task(op: NodeView, inputs: list[View], outputs: list[View]) -> Task:
        return Task("stem", op.name, inputs, outputs, {"channels_first": op.data_format == FORMATS[0]})

    @staticmethod
    def flops(op: NodeView) -> int:
        w = op.inputs[1]
        assert w is not None
        return 2 * 4 * op.outputs[0].size * math.prod(w.shape[1:])


def _channels(op: NodeView) -> int:
    x = op.inputs[0]
    assert x is not None
    return x.shape[channels_first_perm(4, op.data_format)[1]]


def _window() -> Window:
    return Window(_KERNEL, _STRIDES, (1, 1), _PADS, _PADS)


@register
class Bottleneck(Operator):
    """The middle of a residual block of images with channels last, and the beginning of the next block.

    y = relu(conv1x1(relu(conv3x3(t))) + shortcut), onward = relu(conv1x1(y)). The shortcut is the residual itself or,
    with weights of its own, their 1x1 convolution of it. Weights are (O, I, kernel).
    """

    t = Input("T", FLOATS)
    residual = Input("T", FLOATS)
    w_middle = Input("T", FLOATS)
    b_middle = Input("T", FLOATS)
    w_wide = Input("T", FLOATS)
    b_wide = Input("T", FLOATS)
    w_onward = Input("T", FLOATS)
    b_onward = Input("T", FLOATS)
    w_short = Input("T", FLOATS, optional=True)
    b_short = Input("T", FLOATS, optional=True)
    y = Output("T")
    onward = Output("T")

    @staticmethod
    def verify(op: NodeView) -> None:
        t, residual, *weights = op.inputs
        assert t is not None and residual is not None
        shapes = [w.shape for w in weights if w is not None]
        middle, wide, onward, *short = shapes[::2]
        last = short[0] if short else (wide[0], residual.shape[-1], 1, 1)
        fits = (
            middle == (wide[1], t.shape[-1], 3, 3)
            and onward[1:] == (wide[0], 1, 1)
            and last == (wide[0], residual.shape[-1], 1, 1)
            and (short or residual.shape[-1] == wide[0])
            and t.shape[:-1] == residual.shape[:-1]
            and [b for (b,) in shapes[1::2]] == [w[0] for w in shapes[::2]]
        )
        if not fits:
            raise fail(op, f"images {t} and {residual} do not match weights {shapes}")

    @staticmethod
    def infer(op: NodeView) -> Sequence[TensorDesc]:
        t, wide, onward = op.inputs[0], op.inputs[4], op.inputs[6]
        assert t is not None and wide is not None and onward is not None
        return [TensorDesc((*t.shape[:-1], w.shape[0]), t.dtype) for w in (wide, onward)]

    @staticmethod
    def evaluate(op: NodeView, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray] | None:
        given = [np.asarray(a) for a in arrays if a is not None]
        t, residual = (a.transpose(0, 3, 1, 2) for a in given[:2])
        dtype = t.dtype
        once, border = (Window((k, k), (1, 1), (1, 1), (k // 2,) * 2, (k // 2,) * 2) for k in (1, 3))
        middle = _relu(_convolved(border, t, *given[2:4])).astype(dtype)
        short = _convolved(once, residual, *given[8:]) if len(given) > 8 else residual.astype(np.float32)
        y = _relu(_convolved(once, middle, *given[4:6]) + short).astype(dtype)
        onward = _relu(_convolved(once, y, *given[6:8])).astype(dtype)
        return [a.transpose(0, 2, 3, 1) for a in (y, onward)]

    @staticmethod
    def task(op: NodeView, inputs: list[View | None], outputs: list[View]) -> Task:
        return Task("bottleneck", op.name, [v for v in inputs if v is not None], outputs, {})

    @staticmethod
    def flops(op: NodeView) -> int:
        pixels = math.prod(op.outputs[0].shape[:-1])
        return 2 * pixels * sum(w.size for w in op.inputs[2::2] if w is not None)
