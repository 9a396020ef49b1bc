"""docs/architecture.md names the files that a model goes through; here calls are traced and compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ge
from tests.support.walks import Entered, check_walk


def test_an_onnx_file(tmp_path: Path) -> None:
    weights = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 9, 13])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 7, 11])
    graph = helper.make_graph(nodes, "net", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "net.onnx")
    with Entered() as entered:
        ge.compile(tmp_path / "net.onnx").save(tmp_path / "net.om")
    check_walk("An ONNX file", entered)


SWOOSH = '''
import tbe
from ge import ops


@ops.register
class WalkedSwoosh(ops.Operator):
    """x * sigmoid(x)."""

    x = ops.Input("T", ops.FLOATS)
    y = ops.Output("T")

    @staticmethod
    def compute(op, x):
        return x * tbe.unary("sigmoid", x)
'''


def test_a_users_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "walked_swoosh.py").write_text(SWOOSH)
    monkeypatch.setenv("NPU_OPP_PATH", str(tmp_path))
    with Entered() as entered:
        graph = ge.Graph("net")
        graph.output(ge.ops.walked_swoosh(graph.input("x", (8, 16))) * 3.0)
        ge.compile(graph)
    check_walk("A user's operator", entered)
