"""Synthetic ONNX graphs, for measuring the compiler, the cost of a call and a machine that others use too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.contenders import FileCase

__all__ = ["layered_graph", "small_models"]

# One layer: (operator, whether it takes a weight); the last one adds the layer's input back.
LAYER = (("MatMul", True), ("Add", True), ("Relu", False), ("Mul", True), ("Add", False))


def layered_graph(nodes: int, path: Path, rows: int = 4, width: int = 16) -> FileCase:
    """A chain of small residual layers with `nodes` nodes in all, written to a file."""
    rng = np.random.default_rng(0)
    weights = {
        "square": 0.1 * rng.standard_normal((width, width), np.float32),
        "vector": 0.1 * rng.standard_normal(width, np.float32),
    }
    made: list[onnx.NodeProto] = []
    current = entry = "x"
    for index in range(nodes):
        operator, weighted = LAYER[index % len(LAYER)]
        if index % len(LAYER) == 0:
            entry = current
        second = ["square" if operator == "MatMul" else "vector"] if weighted else []
        if operator == "Add" and not weighted:
            second = [entry]
        output = "y" if index == nodes - 1 else f"v{index}"
        made.append(helper.make_node(operator, [current, *second], [output], name=f"n{index}"))
        current = output
    return _saved(path, made, weights, (rows, width), (rows, width))


def small_models(folder: Path) -> dict[str, FileCase]:
    """Models of a millisecond or less, in which threads meet often."""
    return {
        "LSTM, 1024 steps of 16 units": _recurrent(folder / "narrow.onnx", 1024, 16),
        "LSTM, 64 steps of 256 units": _recurrent(folder / "wide.onnx", 64, 256),
        "8 convolutions of 32 channels": _convolutions(folder / "convolutions.onnx", 8, 32, 28),
        "products, 20 layers": layered_graph(100, folder / "products.onnx", rows=32, width=128),
    }


def _recurrent(path: Path, steps: int, hidden: int) -> FileCase:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((1, 4 * hidden, hidden), np.float32) / hidden**0.5,
        "r": rng.standard_normal((1, 4 * hidden, hidden), np.float32) / hidden**0.5,
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=hidden)
    return _saved(path, [node], weights, (steps, 1, hidden), (steps, 1, 1, hidden))


def _convolutions(path: Path, layers: int, channels: int, size: int) -> FileCase:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((channels, channels, 3, 3), np.float32) / (9 * channels) ** 0.5
    nodes, current = [], "x"
    for i in range(layers):
        output = "y" if i == layers - 1 else f"r{i}"
        nodes.append(helper.make_node("Conv", [current, "w"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [output]))
        current = output
    shape = (1, channels, size, size)
    return _saved(path, nodes, {"w": weight}, shape, shape)


def _saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    source: tuple[int, ...],
    target: tuple[int, ...],
) -> FileCase:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, source)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, target)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return FileCase(path, {"x": np.random.default_rng(1).standard_normal(source, np.float32)})
