"""Small model files for tests of atc."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


def images(path: Path, batch: int | str = 1, size: int | str = 8) -> Path:
    """An ONNX model of images (batch, 3, size, size): convolution, relu, mean over the picture."""
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["scores"], name="flatten"),
    ]
    return _save(path, nodes, [("image", [batch, 3, size, size])], [("scores", [batch, 4])], {"w": w})


def rows(path: Path, batch: int | str = 2) -> Path:
    """An ONNX model of rows: y = relu(x @ w), z = y + m."""
    w = np.arange(12, dtype=np.float32).reshape(4, 3) / 10 - 0.5
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="dense"),
        helper.make_node("Relu", ["m"], ["y"], name="relu"),
        helper.make_node("Add", ["y", "m"], ["z"], name="sum"),
    ]
    return _save(path, nodes, [("x", [batch, 4])], [("z", [batch, 3])], {"w": w})


def unsupported(path: Path) -> Path:
    """An ONNX model with operators that nobody maps."""
    nodes = [
        helper.make_node("Slope", ["x"], ["s"], name="slope", domain="custom"),
        helper.make_node("Nonsense", ["s"], ["t"], name="nonsense_1", domain="custom"),
        helper.make_node("Nonsense", ["t"], ["z"], name="nonsense_2", domain="custom"),
    ]
    return _save(path, nodes, [("x", [2, 4])], [("z", [2, 4])], {})


def frozen_graph() -> bytes:
    """A frozen TensorFlow graph: y = relu(x @ w), z = y + x @ w."""
    from ge.parsers.tensorflow import protos

    graph: Any = protos.MESSAGES["GraphDef"]()

    def node(name: str, op: str, *inputs: str) -> Any:
        item = graph.node.add(name=name, op=op, input=list(inputs))
        item.attr["dtype" if op in ("Placeholder", "Const") else "T"].type = 1
        return item

    x = node("x", "Placeholder")
    for size in (2, 4):
        x.attr["shape"].shape.dim.add(size=size)
    w = node("w", "Const").attr["value"].tensor
    w.dtype = 1
    for size in (4, 3):
        w.tensor_shape.dim.add(size=size)
    w.tensor_content = np.arange(12, dtype=np.float32).tobytes()
    node("m", "MatMul", "x", "w")
    node("y", "Relu", "m")
    node("z", "AddV2", "y", "m")
    return bytes(graph.SerializeToString())


def _save(
    path: Path,
    nodes: list,  # type: ignore[type-arg]
    inputs: list[tuple[str, list[int | str]]],
    outputs: list[tuple[str, list[int | str]]],
    constants: dict[str, np.ndarray],
) -> Path:
    infos = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in side]
        for side in (inputs, outputs)
    ]
    graph = helper.make_graph(
        nodes, "net", infos[0], infos[1], [numpy_helper.from_array(a, n) for n, a in constants.items()]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("custom", 1)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))
    return path
