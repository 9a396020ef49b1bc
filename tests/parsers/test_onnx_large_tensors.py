"""Large tensors of ONNX files are read past protobuf: the same values, the same errors."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ge
from ge.errors import GeError
from ge.parsers.onnx import large_tensors
from ge.parsers.onnx.model import array_of, load

ROWS, COLUMNS = 192, 160  # 122,880 bytes
RNG = np.random.default_rng(0)


def model_of(*tensors: TensorProto, nodes: list[onnx.NodeProto] | None = None) -> onnx.ModelProto:
    port = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, s]) for n, s in (("x", ROWS), ("y", COLUMNS))
    ]
    graph = helper.make_graph(
        nodes or [helper.make_node("MatMul", ["x", "w"], ["y"])], "net", port[:1], port[1:], list(tensors)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def weights(dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal((ROWS, COLUMNS)).astype(dtype)


def write(folder: Path, proto: onnx.ModelProto | bytes) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return path


def is_past_protobuf(path: Path) -> bool:
    return bool(load(path).folder.arrays)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64"])
def test_values_are_those_of_onnx(dtype: str, tmp_path: Path) -> None:
    arrays = {f"w{i}": np.tile(weights(), (1, 4)).astype(dtype) for i in range(3)} | {
        "small": np.ones(3, dtype)
    }
    proto = model_of(*(numpy_helper.from_array(a, n) for n, a in arrays.items()))
    proto.graph.doc_string = "after the tensors"
    file = load(write(tmp_path, proto))
    assert len(file.folder.arrays) == 3
    for tensor in file.proto.graph.initializer:
        found = array_of(tensor, file.folder)
        np.testing.assert_array_equal(found, arrays[tensor.name])
        assert found.dtype == arrays[tensor.name].dtype
    restored = onnx.ModelProto()
    restored.CopyFrom(file.proto)
    for tensor in restored.graph.initializer:
        tensor.CopyFrom(large_tensors.restored(tensor, file.folder.arrays))
    assert restored == proto


def test_a_model_computes_the_same(tmp_path: Path) -> None:
    w = weights()
    path = write(tmp_path, model_of(numpy_helper.from_array(w, "w")))
    assert is_past_protobuf(path)
    x = RNG.standard_normal((2, ROWS)).astype(np.float32)
    model = ge.compile(path)
    write(tmp_path, model_of(numpy_helper.from_array(w * 2, "w")))  # what was read stays as it was
    np.testing.assert_array_equal(model(x), ge.compile(model_of(numpy_helper.from_array(w, "w")))(x))


@pytest.mark.parametrize("narrow", [TensorProto.INT4, TensorProto.UINT4])
def test_types_of_less_than_a_byte(narrow: int, tmp_path: Path) -> None:
    values = RNG.integers(0, 7, (512, 512))
    tensor = helper.make_tensor("w", narrow, values.shape, values.reshape(-1).tolist())
    packed = helper.make_tensor("w", narrow, values.shape, numpy_bytes(tensor), raw=True)
    file = load(write(tmp_path, model_of(packed)))
    assert file.folder.arrays
    np.testing.assert_array_equal(
        array_of(file.proto.graph.initializer[0], file.folder).astype(np.int64), values
    )


def numpy_bytes(tensor: TensorProto) -> bytes:
    flat = numpy_helper.to_array(tensor).reshape(-1).view(np.uint8)
    return ((flat[0::2] & 15) | (flat[1::2] << 4)).astype(np.uint8).tobytes()


def test_data_that_does_not_fit_its_shape_is_named(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(weights(), "w")
    tensor.dims[0] += 1
    with pytest.raises(GeError, match=r"E10014.*the data of tensor w does not fit its shape"):
        ge.compile(write(tmp_path, model_of(tensor)))


def test_a_reference_without_an_array_is_refused(tmp_path: Path) -> None:
    for value in ("0", "7", "-1", "x"):
        tensor = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="array", value=value)
        with pytest.raises(GeError, match="E10015"):
            ge.compile(write(tmp_path, model_of(tensor)))


def test_tensors_of_another_form_are_left_to_protobuf(tmp_path: Path) -> None:
    typed = helper.make_tensor("w", TensorProto.FLOAT, (ROWS, COLUMNS), weights().reshape(-1).tolist())
    twice = model_of(numpy_helper.from_array(weights(), "w")).SerializeToString() * 2
    for content in (model_of(typed), model_of(numpy_helper.from_array(np.ones(8, np.float32), "w")), twice):
        assert not is_past_protobuf(write(tmp_path, content))


def test_cut_and_changed_files_give_protobufs_answer() -> None:
    """Whatever the bytes are, the walk fails nowhere and hides no error: protobuf reads an equal rest."""
    whole = model_of(
        numpy_helper.from_array(weights(), "w"), numpy_helper.from_array(weights(), "v")
    ).SerializeToString()
    places = [
        *range(200),
        *range(len(whole) // 2 - 40, len(whole) // 2 + 40),
        *range(len(whole) - 60, len(whole)),
    ]
    cases = [whole[:at] for at in places] + [
        whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :] for at in places for flip in (1, 0x80, 0xFF)
    ]
    for content in cases:
        assert parsed(content) == parsed(content, past_protobuf=True)


def parsed(content: bytes, past_protobuf: bool = False) -> onnx.ModelProto | None:
    arrays: list[np.ndarray] = []
    if past_protobuf:
        content, arrays = read_bytes(content)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception:
        return None
    for tensor in proto.graph.initializer:
        tensor.CopyFrom(large_tensors.restored(tensor, arrays))
    return proto


def read_bytes(content: bytes) -> tuple[bytes, list[np.ndarray]]:
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        return large_tensors.read(file)
