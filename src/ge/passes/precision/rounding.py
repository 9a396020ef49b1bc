"""Rounds constant weights to 16-bit floats so that the errors of a sum cancel."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

import npu_runtime
from ge.ir.values import constant_of, desc_of
from ge.ops.base import lookup
from ge.passes.rewrite import attrs_of, weight_axes_of

__all__ = ["WeightLayout", "layout_of", "round_weights", "typical_means"]


@dataclass(frozen=True)
class WeightLayout:
    """The layout of a weight: the numbers that go into one sum, as channels times the taps of a window.

    Rows (one per output) come first, as (…, rows, channels, taps…), or last, as (…, taps…, channels, rows).
    """

    channels: int
    taps: int = 1
    rows_last: bool = False


def round_weights(
    weights: np.ndarray, dtype: str, layout: WeightLayout, means: np.ndarray | None = None
) -> np.ndarray:
    """Round float32 weights to a narrower type so that the errors of the sums they go into largely cancel.

    Rounding each weight to nearest gives every sum an error that is the same at every position of an image and for
    every input, so that nothing later averages it out. Here weights near the midpoint of two numbers are rounded the
    other way where that compensates for the errors of the others: first among the taps of a window on one channel,
    which see nearly the same value, then over all channels, each weighted by its mean (`means`, by group and channel;
    all equal if unknown).

    >>> w = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    >>> plain = w.astype(npu_runtime.numpy_dtype("bfloat16"))
    >>> kept = round_weights(w, "bfloat16", WeightLayout(channels=256))
    >>> bool(np.abs((kept - w).sum(1)).mean() < 0.1 * np.abs((plain - w).sum(1)).mean())
    True
    """
    if not weights.size:
        return weights.astype(npu_runtime.numpy_dtype(dtype))
    rows = weights.shape[-1]
    shape = (
        (-1, layout.taps, layout.channels, rows)
        if layout.rows_last
        else (1, -1, layout.channels, layout.taps)
    )
    if means is None:
        means = np.ones((1, layout.channels), np.float32)
    scale = math.sqrt(float(np.mean(np.square(means, dtype=np.float64)))) or 1.0
    arrays = [weights.reshape(shape), (means / scale).astype(np.float32)]
    outputs = [(dtype, arrays[0].shape)]
    rounded = npu_runtime.run_aicpu("round_weights", arrays, outputs, {"rows_last": layout.rows_last})[0]
    return rounded.reshape(weights.shape)


def layout_of(node: ir.Node) -> WeightLayout | None:
    """The layout of the weight of a product; None if its sums are unknown or run over axes in another order."""
    axes = weight_axes_of(node)
    if axes is None or axes.outputs is None or not axes.summed:
        return None
    shape = desc_of(node.inputs[1]).shape  # type: ignore[arg-type]
    rank = len(shape)
    rows = axes.outputs % rank
    channels, *taps = (a % rank for a in axes.summed)
    found = WeightLayout(shape[channels], math.prod(shape[a] for a in taps), rows_last=rows == rank - 1)
    order = [*taps, channels, rows] if found.rows_last else [rows, channels, *taps]
    return found if order == list(range(rank - len(order), rank)) else None


def typical_means(node: ir.Node) -> np.ndarray | None:
    """The relative means of a convolution's input channels, by group and channel.

    Known if the input comes, without an activation, from a depthwise convolution with constant weights: a constant
    channel becomes the sum of its taps.
    """
    axes = weight_axes_of(node)
    if axes is None or axes.groups is None:
        return None
    means = _channel_means(node.inputs[0])
    return None if means is None else means.reshape(axes.groups, -1)


def _channel_means(value: ir.Value | None) -> np.ndarray | None:
    """The means of a value's channels, 1 where unknown; None if all are unknown."""
    node = None if value is None else value.producer()
    if node is None:
        return None
    if lookup(node.op_type).keeps_means:
        return _channel_means(node.inputs[0])
    weight = _depthwise_weight(node)
    if weight is None:
        return None
    means, source = weight.sum(axis=1), _channel_means(node.inputs[0])
    if source is not None:
        means = means * np.repeat(source, means.size // source.size)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        return means
    shift = constant_of(bias)
    return None if shift is None else means + shift


def _depthwise_weight(node: ir.Node) -> np.ndarray | None:
    """The constant weight of a depthwise convolution without activation, as (channels, taps)."""
    axes, layout, attrs = weight_axes_of(node), layout_of(node), attrs_of(node)
    weight = None if axes is None or axes.groups is None else constant_of(node.inputs[1])
    if weight is None or layout is None or layout.channels != 1 or attrs["post_ops"] or attrs.get("gated"):
        return None
    wide = weight.astype(np.float32)
    return wide.reshape(layout.taps, -1).T if layout.rows_last else wide.reshape(-1, layout.taps)
