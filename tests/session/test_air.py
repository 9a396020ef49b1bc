"""`.air` files: graphs come back with the same meaning; nothing else than a graph of ours is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import ge
from ge.errors import GeError, UnsupportedOperatorsError
from ge.options import CompileOptions
from ge.parsers import air

X = np.random.default_rng(0).standard_normal((2, 4), np.float32)


def network() -> ge.Graph:
    g = ge.Graph("net")
    x = g.input("x", (2, 4))
    w = g.constant(np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3))
    y = ge.ops.layer_norm(x @ w, axes=[-1], name="norm")
    g.output(ge.ops.concat([y, y[::-1]], axis=1), "y")
    return g


def test_a_graph_comes_back_with_the_same_meaning(tmp_path: Path) -> None:
    path = air.write(network().ir, tmp_path / "net")
    assert path.name == "net.air"
    np.testing.assert_array_equal(ge.compile(path)(X), ge.compile(network())(X))


def test_names_survive(tmp_path: Path) -> None:
    graph = air.parse(air.write(network().ir, tmp_path / "net"))
    assert [v.name for v in graph.inputs] == ["x"]
    assert [v.name for v in graph.outputs] == ["y"]


def test_inputs_may_get_another_shape(tmp_path: Path) -> None:
    g = ge.Graph()
    g.output(ge.ops.relu(g.input("x", (2, 4))), "y")
    graph = air.parse(air.write(g.ir, tmp_path / "net"), CompileOptions(input_shapes={"x": (7, 4)}))
    assert tuple(graph.outputs[0].shape or ()) == (7, 4)


def _changed(tmp_path: Path, change: object) -> bytes:
    proto = onnx.ModelProto()
    proto.ParseFromString(air.write(network().ir, tmp_path / "net").read_bytes())
    change(proto)  # type: ignore[operator]
    return bytes(proto.SerializeToString())


def test_data_in_other_files_is_refused(tmp_path: Path) -> None:
    def external(proto: onnx.ModelProto) -> None:
        tensor = proto.graph.initializer[0]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="/etc/passwd")

    with pytest.raises(GeError, match="another file"):
        air.parse(_changed(tmp_path, external))


def test_unknown_operators_are_reported_together(tmp_path: Path) -> None:
    def unknown(proto: onnx.ModelProto) -> None:
        proto.graph.node[0].op_type = "Nonsense"
        proto.graph.node[1].op_type = "Whatever"

    with pytest.raises(UnsupportedOperatorsError) as caught:
        air.parse(_changed(tmp_path, unknown))
    assert [item.operator for item in caught.value.items] == ["Nonsense", "Whatever"]


def test_onnx_files_are_not_taken_for_air_files(tmp_path: Path) -> None:
    def foreign(proto: onnx.ModelProto) -> None:
        proto.producer_name = "pytorch"

    with pytest.raises(GeError, match="--framework=5"):
        air.parse(_changed(tmp_path, foreign))
    with pytest.raises(GeError):
        air.parse(tmp_path / "none.air")


def test_attributes_keep_the_digits_of_doubles(tmp_path: Path) -> None:
    """ONNX's attributes hold float32."""
    g = ge.Graph("doubles")
    x = g.input("x", (3,), "float64")
    g.output(g.op("LeakyRelu", x, alpha=0.01))
    found = ge.compile(air.write(g.ir, tmp_path / "net")).run([np.array([-1.0, -3.0, 2.0])])[0]
    np.testing.assert_array_equal(found, [-0.01, -0.03, 2.0])
