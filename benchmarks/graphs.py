"""Synthetic ONNX graphs of a wanted number of nodes, for measuring the compiler and the cost of a call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.contenders import FileCase

__all__ = ["layered_graph"]

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
    graph = helper.make_graph(
        made,
        f"layers{nodes}",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (rows, width))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (rows, width))],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return FileCase(path, {"x": rng.standard_normal((rows, width), np.float32)})
