"""An ONNX file to a compiled model file, and that file run without any framework.

python examples/onnx_file.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx

import acl
import ge


def write_classifier(path: Path) -> None:
    """Write a small classifier as other tools export one: two layers, random weights."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (64, 128), "b0": (128,), "w1": (128, 10), "b1": (10,)}
    weights = {name: rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "w0", "b0"], ["h"]),
        onnx.helper.make_node("Relu", ["h"], ["r"]),
        onnx.helper.make_node("Gemm", ["r", "w1", "b1"], ["z"]),
        onnx.helper.make_node("Softmax", ["z"], ["y"]),
    ]
    ports = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [4, 64]), ("y", [4, 10]))
    ]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = onnx.helper.make_graph(nodes, "classifier", ports[:1], ports[1:], constants)
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def main() -> None:
    """Compile, explain, save, load."""
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        source, compiled = Path(folder) / "classifier.onnx", Path(folder) / "classifier.om"
        write_classifier(source)
        model = ge.compile(source)
        print(ge.explain(model))
        y = model(x)
        model.save(compiled)
        loaded = acl.Model(str(compiled))(x)
        print(f"{source.name} has {source.stat().st_size} bytes, {compiled.name} {compiled.stat().st_size}")
    np.testing.assert_array_equal(loaded, y)
    np.testing.assert_allclose(y.sum(axis=-1), 1, rtol=1e-6)
    print("probabilities of the first row:", np.round(y[0], 3))


if __name__ == "__main__":
    main()
