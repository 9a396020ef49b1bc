"""Aligns rows of large 16-bit products and convolutions on GPUs, whose tensor cores read 16 bytes at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from ge.ir.values import constant_of, desc_of
from ge.ops.base import lookup
from ge.options import CompileOptions
from ge.passes.base import Pass
from ge.passes.rewrite import Rewriter, attrs_of, producer, replace_node
from ge.target import CostTable

__all__ = ["AlignProducts"]

_ELEMENTS = 8  # 16-bit elements between addresses that cuBLAS's fast kernels can read from


@dataclass
class _Sides:
    """Rows, columns and depth of a product, and the padding of each."""

    operands: list[ir.Value]  # in memory order
    a: str  # their last axes: "mk" or "km"
    b: str  # "kn" or "nk"
    more: dict[str, int] = field(default_factory=dict)

    def high(self, rank: int, axes: str) -> list[int]:
        """The padding of a tensor with these last axes."""
        return [0] * (rank - len(axes)) + [self.more.get(axis, 0) for axis in axes]


def _sides(node: ir.Node, costs: CostTable) -> _Sides | None:
    """The sides of an unaligned product that is worth aligning, else None."""
    attrs = attrs_of(node)
    (first, turned_a), (second, turned_b) = (
        _in_memory(value, attrs[f"transpose_{name}"]) for name, value in zip("ab", node.inputs, strict=False)
    )
    a, b = desc_of(first), desc_of(second)
    if a.dtype not in ("float16", "bfloat16") or b.dtype != a.dtype or b.rank != 2 or len(node.inputs) > 3:
        return None
    if turned_a and a.rank != 2:
        return None
    sides = _Sides([first, second, *node.inputs[2:]], "km" if turned_a else "mk", "nk" if turned_b else "kn")  # type: ignore[list-item]
    sizes = dict(zip(sides.a, a.shape[-2:], strict=True)) | dict(zip(sides.b, b.shape, strict=True))
    work = math.prod(sizes.values()) * math.prod(a.shape[:-2])
    shortest = min(sizes["n"], sizes["k"], work // (sizes["n"] * sizes["k"]))
    if shortest < costs.aligned_side or work < costs.aligned_work:
        return None
    rows = {sides.a[-1], sides.b[-1], "n"}  # axes along which some tensor's rows run
    sides.more = {axis: -sizes[axis] % _ELEMENTS for axis in rows if sizes[axis] % _ELEMENTS}
    return sides if sides.more else None


def _in_memory(value: ir.Value | None, turned: bool) -> tuple[ir.Value, bool]:
    """The matrix that a transposed matrix is a view of, and whether it is transposed."""
    assert value is not None
    node = producer(value, "Transpose")
    if node is None or desc_of(value).rank != 2:
        return value, turned
    assert node.inputs[0] is not None
    return node.inputs[0], turned != (list(attrs_of(node)["perm"]) == [1, 0])


def _missing_channels(node: ir.Node, costs: CostTable) -> int:
    """The number of input channels that a large convolution, or its weight gradient, lacks to a multiple of 8."""
    x, other = (desc_of(v) for v in node.inputs[:2])  # type: ignore[arg-type]
    attrs = attrs_of(node)
    last = attrs["data_format"] == "channels_last" and attrs["weight_format"] == "OKI"
    if x.dtype not in ("float16", "bfloat16") or other.dtype != x.dtype or not last or attrs["groups"] != 1:
        return 0
    if constant_of(node.inputs[1]) is not None:  # the program packs it
        return 0
    result = desc_of(node.outputs[0])
    gradient = node.op_type == "ConvGradWeight"
    weight, places = (
        (result, other.size // other.shape[-1]) if gradient else (other, result.size // result.shape[-1])
    )
    work = places * weight.size
    return -x.shape[-1] % _ELEMENTS if work >= costs.aligned_windows else 0


class AlignProducts(Pass):
    """Align the rows of large 16-bit products, and the pixels of convolutions, to 16 bytes on GPUs.

    1. An axis that is the last one of an operand or of the result, and not a multiple of 8 elements, is padded with
       zeros; the result is sliced.
    2. A tensor that is padded for one product is padded for all, and other readers read a slice of it, so that it is
       stored once.
    3. So are the input channels of convolutions and weight gradients with computed weights.
    4. Small ones, and products with operands in their epilogues, stay.
    """

    name = "align_products"

    def run(self, graph: ir.Graph, options: CompileOptions) -> bool:
        if options.target.kind != "cuda":
            return False
        padded: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
        costs = options.target.measured
        nodes = [(n, sides) for n in graph if n.op_type == "MatMul" and (sides := _sides(n, costs))]
        for node, sides in nodes:
            _align(graph, options, node, sides, padded)
        windows = [
            (node, missing)
            for node in graph
            if node.op_type in ("Conv", "ConvGradWeight") and (missing := _missing_channels(node, costs))
        ]
        for node, missing in windows:
            _align_channels(graph, options, node, missing, padded)
        return bool(nodes or windows)


def _align(
    graph: ir.Graph,
    options: CompileOptions,
    node: ir.Node,
    sides: _Sides,
    padded: dict[tuple[ir.Value, tuple[int, ...]], ir.Value],
) -> None:
    axes = (sides.a, sides.b, "n")
    inputs = [
        _padded(graph, options, value, sides.high(desc_of(value).rank, along), padded)
        for value, along in zip(sides.operands, axes, strict=False)
    ]
    r = Rewriter(graph, node, options)
    product = r.op_like(node, inputs, transpose_a=sides.a == "km", transpose_b=sides.b == "nk")
    shape = desc_of(node.outputs[0]).shape
    if desc_of(product).shape != shape:
        product = r.op("Slice", product, starts=[0] * len(shape), ends=list(shape))
    replace_node(graph, node, [product])


def _align_channels(
    graph: ir.Graph,
    options: CompileOptions,
    node: ir.Node,
    missing: int,
    padded: dict[tuple[ir.Value, tuple[int, ...]], ir.Value],
) -> None:
    def wider(value: ir.Value | None) -> ir.Value:
        assert value is not None
        return _padded(graph, options, value, [0] * (desc_of(value).rank - 1) + [missing], padded)

    x, other, *rest = node.inputs
    shape = desc_of(node.outputs[0]).shape
    gradient = node.op_type == "ConvGradWeight"
    x, other = wider(x), other if gradient else wider(other)
    r = Rewriter(graph, node, options)
    result = r.op_like(node, [x, other, *rest])
    if gradient:
        result = r.op("Slice", result, starts=[0] * len(shape), ends=list(shape))
    replace_node(graph, node, [result])


def _padded(
    graph: ir.Graph,
    options: CompileOptions,
    value: ir.Value,
    high: list[int],
    padded: dict[tuple[ir.Value, tuple[int, ...]], ir.Value],
) -> ir.Value:
    """Pad a value with zeros where it is produced; its other readers read a slice of the result."""
    if not any(high):
        return value
    key = value, tuple(high)
    if key not in padded:
        maker = value.producer()
        rest = iter(graph)
        following = next(rest) if maker is None else next(n for n in rest if n is maker) and next(rest)
        r = Rewriter(graph, following, options)
        readers = [use for use in value.uses() if not lookup(use.node.op_type).aligned_rows]
        padded[key] = r.op("Pad", value, low=[0] * len(high), high=high)
        if maker is not None and readers and not value.is_graph_output():
            whole = r.op("Slice", padded[key], starts=[0] * len(high), ends=list(desc_of(value).shape))
            for use in readers:
                use.node.replace_input_with(use.idx, whole)
    return padded[key]
