"""Operators on images whose channels are stored in blocks (domain com.microsoft.nchwc).

ONNX Runtime writes them at its highest optimisation level. Values keep plain order here, with as many channels as the
blocks have; only weights are blocked. The block size is that of the machine which wrote the file, and the file does not
record it: this machine's size is assumed, as in ONNX Runtime, unless the file contradicts it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ge.ir.values import desc_of
from ge.ops.microsoft.standard import activated, standard, transposed
from ge.ops.plugins import Node, Results, Unsupported, plugin
from ge.target import host

DOMAIN = "com.microsoft.nchwc"


def _block() -> int:
    return 16 if host().isa.startswith("avx512") else 8


@plugin(onnx="ReorderInput", domain=DOMAIN)
def _reorder_input(n: Node) -> Results:
    """Plain images, with channels padded to whole blocks."""
    x: Any = transposed(n, n.inputs[0], last=False) if n.attr("channels_last", 0) else n.inputs[0]
    shape = desc_of(x).shape
    missing = -shape[1] % _block()
    return (
        x if not missing else n.op("Pad", x, low=[0] * len(shape), high=[0, missing, *[0] * (len(shape) - 2)])
    )


@plugin(onnx="ReorderOutput", domain=DOMAIN)
def _reorder_output(n: Node) -> Results:
    shape = n.desc().shape
    channels = int(n.attr("channels", 0)) or shape[1]
    x: Any = n.inputs[0]
    if channels != shape[1]:
        x = n.op("Slice", x, starts=[0] * len(shape), ends=[shape[0], channels, *shape[2:]])
    return transposed(n, x, last=True) if n.attr("channels_last", 0) else x


@plugin(onnx="Conv", domain=DOMAIN)
def _conv(n: Node) -> Results:
    """activation(conv(x, w) + b + sum), with blocked weights."""
    weight = n.builder.constant(_plain_weight(n.const(1, "the weight"), int(n.attr("group", 1))))
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attrs = {name: n.attrs[name] for name in names if name in n.attrs}
    y = standard(n, "Conv", n.inputs[0], weight, n.input(2), **attrs)
    y = y if n.input(3) is None else n.op("Add", y, n.inputs[3])
    return activated(n, y, n.attr("activation_params") or ())


def _plain_weight(weight: np.ndarray, groups: int) -> np.ndarray:
    """Weights (O, I, …) from (O / block, I, …, block), or from (O / block, I / block, …, block of I, block of O)."""
    block = _block()
    outputs, inputs, *kernel = weight.shape
    if outputs % block or (groups == 1 and inputs > block and inputs % block):
        raise Unsupported(
            f"the file was optimised for a machine with blocks of other than {block} channels",
            "optimise the model at a lower level (ORT_ENABLE_EXTENDED)",
        )
    axes = range(len(kernel))
    if inputs < block:
        stored = weight.reshape(outputs // block, inputs, *kernel, block)
        order = [0, len(kernel) + 2, 1, *(2 + i for i in axes)]
    else:
        stored = weight.reshape(outputs // block, inputs // block, *kernel, block, block)
        order = [0, len(kernel) + 3, 1, len(kernel) + 2, *(2 + i for i in axes)]
    return np.ascontiguousarray(stored.transpose(order)).reshape(weight.shape)


@plugin(onnx=["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"], domain=DOMAIN)
def _pool(n: Node) -> Results:
    return standard(n, n.type, n.inputs[0], **n.attrs)


@plugin(onnx="Upsample", domain=DOMAIN)
def _upsample(n: Node) -> Results:
    scales = n.builder.constant(np.asarray(n.attr("scales"), np.float32))
    attrs: dict[str, Any] = {"mode": n.attr("mode", "nearest")}
    attrs["coordinate_transformation_mode"] = n.attr("coordinate_transformation_mode", "asymmetric")
    if attrs["mode"] == "nearest":
        attrs["nearest_mode"] = "floor"
    return standard(n, "Resize", n.inputs[0], None, scales, **attrs)
