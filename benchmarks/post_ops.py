"""Elementwise work after a product: as it is compiled, as kernels after the bare product, and in PyTorch, interleaved.

What goes into a product may cost more than it saves: an algorithm or a primitive may not know it. The first ratio
would tell, below 1. Weights and operands are inputs, as in training; images lie channels last for all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contenders import limit_threads
from benchmarks.measure import (
    console,
    geometric_mean,
    interleave,
    milliseconds,
    new_table,
    ratio,
    relative_error,
)

LAST = {"data_format": "channels_last", "weight_format": "IO"}
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Product:
    """A product of data by weights: our operator, and PyTorch's function."""

    title: str
    data: tuple[int, ...]
    weights: tuple[int, ...]
    operator: str
    attrs: dict[str, Any]
    torch: Callable[[Any, Any], Any]


def _convolution(title: str, channels: tuple[int, int], size: int, kernel: int, stride: int = 1) -> Product:
    import torch

    inputs, outputs = channels
    pad = kernel // 2
    attrs = {**LAST, "strides": [stride] * 2, "pads_begin": [pad] * 2, "pads_end": [pad] * 2}

    def run(x: Any, w: Any) -> Any:
        return torch.conv2d(x, w.permute(3, 2, 0, 1), stride=stride, padding=pad)

    return Product(title, (8, size, size, inputs), (kernel, kernel, inputs, outputs), "Conv", attrs, run)


def _transposed(title: str, channels: tuple[int, int], size: int, kernel: int) -> Product:
    import torch

    inputs, outputs = channels
    attrs = {**LAST, "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}

    def run(x: Any, w: Any) -> Any:
        return torch.conv_transpose2d(x, w.permute(3, 2, 0, 1), stride=2, padding=1)

    weights = (kernel, kernel, outputs, inputs)
    return Product(title, (8, size, size, inputs), weights, "ConvTranspose", attrs, run)


def _matrix(title: str, rows: int, depth: int, columns: int) -> Product:
    return Product(title, (rows, depth), (depth, columns), "MatMul", {}, lambda x, w: x @ w)


def products(small: bool) -> list[Product]:
    """Products that oneDNN computes, and such as algorithms of our own do."""
    size, rows = (7, 32) if small else (28, 512)
    return [
        _convolution("3x3, 3 to 16", (3, 16), size, 3),
        _convolution("3x3, 64 to 64", (64, 64), size, 3),
        _convolution("3x3 by 2, 64 to 128", (64, 128), size, 3, 2),
        _convolution("1x1, 64 to 256", (64, 256), size, 1),
        _transposed("transposed 3x3 by 2, 64 to 64", (64, 64), size, 3),
        _transposed("transposed 4x4 by 2, 128 to 64", (128, 64), size // 2, 4),
        _matrix("2 rows, 1024 to 1024", 2, 1024, 1024),
        _matrix(f"{rows} rows, 768 to 3072", rows, 768, 3072),
    ]


ENDINGS: dict[str, Sequence[str]] = {
    "bias, relu": ("bias", "Relu"),
    "bias, swish": ("bias", "Swish"),
    "sum": ("Add",),
    "bias, sum, tanh": ("bias", "Add", "Tanh"),
    "bias, sigmoid, product": ("bias", "Sigmoid", "Mul"),
}


class Case:
    """A product with an ending, on arrays of a type."""

    def __init__(self, product: Product, ending: Sequence[str], dtype: str) -> None:
        import torch

        from ge.compiler import compile_graph
        from ge.ir.values import desc_of
        from ge.ops.builder import GraphBuilder
        from ge.options import CompileOptions

        self.product, self.ending = product, ending
        b = GraphBuilder("product")
        x, w = b.input("x", product.data, dtype), b.input("w", product.weights, dtype)
        y = b.op(product.operator, x, w, **product.attrs)
        shapes = [product.data, product.weights]
        whole = desc_of(y).shape
        for number, step in enumerate(ending):
            if step in ("bias", "Add", "Mul"):
                shapes.append(whole[-1:] if step == "bias" else whole)
                y = b.op("Mul" if step == "Mul" else "Add", y, b.input(f"operand{number}", shapes[-1], dtype))
            else:
                y = b.op(step, y)
        b.output(y)
        random = np.random.default_rng(0)
        scale = 1 / np.sqrt(np.prod(product.weights[:-1]))
        arrays = [
            random.standard_normal(s, np.float32) * (scale if i == 1 else 1) for i, s in enumerate(shapes)
        ]
        self.tensors = [torch.from_numpy(a).to(getattr(torch, dtype)) for a in arrays]
        self.arrays = [_numpy(t) for t in self.tensors]
        apart = CompileOptions(disabled_passes=frozenset({"fuse_post_ops"}))
        self.ours, self.apart = compile_graph(b.graph), compile_graph(b.graph, apart)

    def torch(self) -> Any:
        """PyTorch's answer, channels last."""
        import torch

        functions = {
            "Relu": torch.relu,
            "Swish": torch.nn.functional.silu,
            "Tanh": torch.tanh,
            "Sigmoid": torch.sigmoid,
        }
        x, w, *operands = self.tensors
        images = x.ndim == 4
        y = self.product.torch(x.permute(0, 3, 1, 2) if images else x, w)
        y = y.permute(0, 2, 3, 1) if images else y
        for step in self.ending:
            if step in functions:
                y = functions[step](y)
            else:
                y = y * operands.pop(0) if step == "Mul" else y + operands.pop(0)
        return y


def _numpy(tensor: Any) -> np.ndarray:
    """The same numbers as an array, whose type NumPy alone may not have."""
    import ml_dtypes
    import torch

    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())


def main() -> int:
    """Measure and print; the exit status says whether the answers agree."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--dtypes", nargs="+", choices=sorted(TOLERANCE), default=["float32", "bfloat16"])
    parser.add_argument("--quick", action="store_true", help="small images, one round")
    given = parser.parse_args()
    limit_threads()

    wrong = False
    for dtype in given.dtypes:
        table = new_table(
            f"After a product, {dtype} (ms)",
            ["product", "then", "compiled", "apart", "PyTorch", "/ apart", "/ PyTorch", "error"],
        )
        found: list[tuple[float, float]] = []
        for product in products(given.quick):
            for title, ending in ENDINGS.items():
                case = Case(product, ending, dtype)
                expected = case.torch().float().numpy()
                answers = [model.run(case.arrays)[0].astype(np.float32) for model in (case.ours, case.apart)]
                error = max(relative_error([answer], [expected]) for answer in answers)
                wrong |= error > TOLERANCE[dtype]
                calls = {
                    "compiled": lambda case=case: case.ours.run(case.arrays),
                    "apart": lambda case=case: case.apart.run(case.arrays),
                    "torch": case.torch,
                }
                times = interleave(calls, 1 if given.quick else given.rounds, 0.0 if given.quick else 0.02)
                ours, apart, torch = (statistics.median(times[name]) for name in calls)
                found.append((apart / ours, torch / ours))
                table.add_row(
                    product.title,
                    title,
                    *map(milliseconds, (ours, apart, torch)),
                    ratio(apart / ours),
                    ratio(torch / ours),
                    f"{error:.0e}",
                )
        console.print(table)
        means = [geometric_mean(values) for values in zip(*found, strict=True)]
        least = [min(values) for values in zip(*found, strict=True)]
        console.print(
            f"apart: {means[0]:.2f} in the mean, {least[0]:.2f} at least; PyTorch: {means[1]:.2f}, {least[1]:.2f}\n"
        )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
