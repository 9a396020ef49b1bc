"""Reading TensorFlow's files: messages, tensors, checkpoints, SavedModels, damaged and hostile files."""

from __future__ import annotations

import contextlib
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import ge
from ge.errors import GeError
from ge.ir.types import TENSORS
from ge.parsers.tensorflow import bundle as tensorflow_bundle
from ge.parsers.tensorflow.bundle import Checkpoint, checkpoint_prefix
from ge.parsers.tensorflow.crc import crc32c, mask
from ge.parsers.tensorflow.parser import parse, parse_model
from ge.parsers.tensorflow.protos import _SCHEMA, DTYPE_NAMES, MESSAGES, decode, dtype_name
from ge.parsers.tensorflow.tensor import tensor_array

tf = pytest.importorskip("tensorflow")

from tests.support.tf_models import concrete, freeze, run_file  # noqa: E402

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def doubled(x: Any) -> Any:
    return tf.identity(x * 2.0 + tf.constant([[1.0, 2.0, 3.0]]), name="y")


@pytest.fixture(scope="module")
def graph() -> Any:
    return freeze(concrete(doubled, [X]))


class Affine(tf.Module):
    """A model with two variables and two signatures."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(np.arange(12, dtype=np.float32).reshape(3, 4), name="w")
        self.b = tf.Variable(np.float32([1, 2, 3, 4]), name="b")

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    def forward(self, x: Any) -> Any:
        return {"y": tf.matmul(x, self.w) + self.b, "sum": tf.reduce_sum(x)}

    @tf.function(input_signature=[tf.TensorSpec([2, 3], tf.float32, name="x")])
    def negated(self, x: Any) -> Any:
        return {"z": -x}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "affine"
    model = Affine()
    tf.saved_model.save(model, str(folder), {"serving_default": model.forward, "negated": model.negated})
    return folder


# -- messages ------------------------------------------------------------------------------------------------


def real_messages() -> dict[str, Any]:
    from tensorflow.core.framework import function_pb2, graph_pb2, op_def_pb2, tensor_slice_pb2, versions_pb2
    from tensorflow.core.protobuf import (
        meta_graph_pb2,
        saved_model_pb2,
        saver_pb2,
        tensor_bundle_pb2,
        trackable_object_graph_pb2,
    )
    from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

    graph, meta = graph_pb2.GraphDef.DESCRIPTOR, meta_graph_pb2
    node = graph.fields_by_name["node"].message_type
    attr = node.fields_by_name["attr"].message_type.fields_by_name["value"].message_type
    tensor = attr.fields_by_name["tensor"].message_type
    shape = attr.fields_by_name["shape"].message_type
    info = meta.TensorInfo.DESCRIPTOR
    trackable = trackable_object_graph_pb2.TrackableObjectGraph.DESCRIPTOR
    item = trackable.fields_by_name["nodes"].message_type
    return {
        "GraphDef": graph,
        "VersionDef": versions_pb2.VersionDef.DESCRIPTOR,
        "NodeDef": node,
        "FunctionDefLibrary": function_pb2.FunctionDefLibrary.DESCRIPTOR,
        "FunctionDef": function_pb2.FunctionDef.DESCRIPTOR,
        "OpDef": op_def_pb2.OpDef.DESCRIPTOR,
        "ArgDef": op_def_pb2.OpDef.ArgDef.DESCRIPTOR,
        "AttrValue": attr,
        "ListValue": attr.fields_by_name["list"].message_type,
        "NameAttrList": attr.fields_by_name["func"].message_type,
        "TensorShapeProto": shape,
        "Dim": shape.fields_by_name["dim"].message_type,
        "TensorProto": tensor,
        "SavedModel": saved_model_pb2.SavedModel.DESCRIPTOR,
        "MetaGraphDef": meta.MetaGraphDef.DESCRIPTOR,
        "MetaInfoDef": meta.MetaGraphDef.MetaInfoDef.DESCRIPTOR,
        "SaverDef": saver_pb2.SaverDef.DESCRIPTOR,
        "SignatureDef": meta.SignatureDef.DESCRIPTOR,
        "AssetFileDef": meta.AssetFileDef.DESCRIPTOR,
        "TensorInfo": info,
        "CooSparse": info.fields_by_name["coo_sparse"].message_type,
        "CompositeTensor": info.fields_by_name["composite_tensor"].message_type,
        "BundleHeaderProto": tensor_bundle_pb2.BundleHeaderProto.DESCRIPTOR,
        "BundleEntryProto": tensor_bundle_pb2.BundleEntryProto.DESCRIPTOR,
        "TensorSliceProto": tensor_slice_pb2.TensorSliceProto.DESCRIPTOR,
        "Extent": tensor_slice_pb2.TensorSliceProto.Extent.DESCRIPTOR,
        "CheckpointState": CheckpointState.DESCRIPTOR,
        "TrackableObjectGraph": trackable,
        "TrackableObject": item,
        "SerializedTensor": item.fields_by_name["attributes"].message_type,
    }


def test_every_declared_field_is_tensorflows() -> None:
    theirs = real_messages()
    assert set(theirs) == set(_SCHEMA)
    for name, descriptor in theirs.items():
        for field in MESSAGES[name].DESCRIPTOR.fields:
            real = descriptor.fields_by_name[field.name]
            same_type = field.type == real.type or {field.type, real.type} == {
                field.TYPE_INT32,
                field.TYPE_ENUM,
            }
            assert (field.number, field.is_repeated) == (real.number, real.is_repeated), (
                f"{name}.{field.name}"
            )
            assert same_type, f"{name}.{field.name}"


def test_element_types_have_tensorflows_numbers() -> None:
    for number, name in DTYPE_NAMES.items():
        assert tf.as_dtype(number).name == name
        assert dtype_name(number + 100) == name


def test_the_table_of_output_names_is_tensorflows() -> None:
    from tensorflow.python.framework import op_def_registry

    from ge.parsers.tensorflow.graph import _OUTPUT_ARGS
    from ge.parsers.tensorflow.parser import operators

    for op in operators():
        real = op_def_registry.get(op)
        if real is None or len(real.output_arg) < 2:
            continue
        listed = [
            a.name + (f"*{a.number_attr or a.type_list_attr}" if a.number_attr or a.type_list_attr else "")
            for a in real.output_arg
        ]
        assert list(_OUTPUT_ARGS.get(op, ())) == listed, op


PLAIN = [t for t in DTYPE_NAMES.values() if t in TENSORS or t in ("string", "complex64", "complex128")]


@pytest.mark.parametrize("dtype", PLAIN)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 2)])
def test_tensors_are_read_from_bytes_and_from_values(dtype: str, shape: tuple[int, ...]) -> None:
    kind = tf.as_dtype(dtype)
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    array = values.astype(str).astype(object) if dtype == "string" else values.astype(kind.as_numpy_dtype)
    for proto in (tf.make_tensor_proto(array, kind), tf.make_tensor_proto(array.tolist(), kind, shape)):
        mine = tensor_array(decode("TensorProto", proto.SerializeToString()))
        theirs = tf.make_ndarray(proto)
        assert mine.shape == theirs.shape
        assert mine.tolist() == theirs.tolist()


def test_a_short_list_of_values_repeats_the_last() -> None:
    proto = tf.make_tensor_proto(7.5, shape=(2, 3))
    assert len(proto.float_val) == 1
    assert tensor_array(decode("TensorProto", proto.SerializeToString())).tolist() == [[7.5] * 3] * 2


def test_a_tensor_that_claims_to_be_huge_is_refused() -> None:
    proto = tf.make_tensor_proto(7.5, shape=(1,))
    for sizes in ([1 << 40], [1 << 31, 1 << 31], [-5]):
        del proto.tensor_shape.dim[:]
        for size in sizes:
            proto.tensor_shape.dim.add(size=size)
        with pytest.raises(GeError, match="E10102"):
            tensor_array(decode("TensorProto", proto.SerializeToString()))


# -- graphs --------------------------------------------------------------------------------------------------


def test_graph_is_read_from_binary_text_bytes_and_message(graph: Any, tmp_path: Path) -> None:
    binary, text = tmp_path / "m.pb", tmp_path / "m.pbtxt"
    binary.write_bytes(graph.SerializeToString())
    text.write_text(str(graph))
    unnamed = tmp_path / "m.graph"
    unnamed.write_text(str(graph))
    for source in (binary, str(text), unnamed, graph.SerializeToString(), graph):
        np.testing.assert_array_equal(run_file(source, [X])[0], X * 2 + [[1, 2, 3]])


def test_outputs_and_shapes_can_be_named(graph: Any) -> None:
    parsed = parse_model(graph, out_nodes=["mul:0", "y"], input_shapes={"x0": (2, 3)})
    assert parsed.outputs == ("mul:0", "y")
    with pytest.raises(GeError, match="similar names: mul"):
        parse(graph, out_nodes=["nowhere/mul"])
    with pytest.raises(GeError, match="which the model does not read"):
        parse(graph, input_shapes={"z": (2, 3)})
    with pytest.raises(GeError, match="does not fit"):
        parse(graph, input_shapes={"x0": (2, 4)})


def test_an_inner_node_can_be_an_input(graph: Any) -> None:
    parsed = parse_model(graph, input_shapes={"mul": (2, 3)})
    assert parsed.inputs == ("mul",)


def test_open_shapes_are_settled_or_asked_for() -> None:
    traced = tf.function(lambda x, y: x * 2 + tf.reduce_sum(y)).get_concrete_function(
        tf.TensorSpec([None, 3], name="x"), tf.TensorSpec([2, None], name="y")
    )
    definition = traced.graph.as_graph_def()
    with pytest.raises(GeError, match=r"not complete: y \[2, -1\]"):
        parse(definition)
    parsed = parse_model(definition, input_shapes={"y": (2, 5)})
    assert [tuple(v.shape) for v in parsed.graph.inputs] == [(1, 3), (2, 5)]
    assert "batch size of the input 'x' is taken as 1" in parsed.warnings[0]
    assert "taken as 1" in parsed.graph.metadata_props["ge.warnings"]


def test_parsing_needs_no_tensorflow(saved: Path, tmp_path: Path, graph: Any) -> None:
    (tmp_path / "m.pb").write_bytes(graph.SerializeToString())
    script = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "from ge.parsers.tensorflow.parser import parse\n"
        f"parse({str(tmp_path / 'm.pb')!r}); parse({str(saved)!r})\n"
        "assert not [m for m in sys.modules if m.startswith(('tensorflow.', 'keras', 'torch'))]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)


# -- SavedModels and checkpoints -----------------------------------------------------------------------------


def test_saved_model_has_its_variables_and_signatures(saved: Path) -> None:
    expected = X @ np.arange(12, dtype=np.float32).reshape(3, 4) + [1, 2, 3, 4]
    parsed = parse_model(saved, input_shapes={"x": (2, 3)})
    assert (parsed.inputs, parsed.outputs) == (("x",), ("sum", "y"))
    total, y = ge.compile(parsed.graph).run([X])
    np.testing.assert_allclose(y, expected)
    assert total == X.sum()
    np.testing.assert_array_equal(run_file(saved, [X], signature="negated")[0], -X)
    np.testing.assert_array_equal(run_file(saved / "saved_model.pb", [X], signature="negated")[0], -X)


def test_wrong_signatures_and_tags_name_the_right_ones(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(GeError, match="use one of negated, serving_default"):
        parse(saved, signature="train")
    with pytest.raises(GeError, match="use one of: serve"):
        parse(saved, tags=["gpu"])
    with pytest.raises(GeError, match=r"no saved_model\.pb"):
        parse(tmp_path)
    with pytest.raises(GeError, match="E10100"):
        parse(tmp_path / "nothing.pb")


def test_version_1_graph_takes_its_variables_from_a_checkpoint(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default() as definition, v1.Session() as session:
        x = v1.placeholder(tf.float32, [2, 3], name="x")
        old = v1.get_variable("old", initializer=np.float32([1, 2, 3]), use_resource=False)
        parts = v1.get_variable(
            "parts",
            [6, 3],
            initializer=v1.random_normal_initializer(),
            partitioner=v1.fixed_size_partitioner(3),
        )
        tf.identity(x * old + tf.convert_to_tensor(parts)[:2] + tf.convert_to_tensor(parts)[4:], name="y")
        session.run(v1.global_variables_initializer())
        expected = session.run("y:0", {x: X})
        prefix = v1.train.Saver().save(session, str(tmp_path / "model"), write_state=True)
        bare = definition.as_graph_def()
    for found in (
        run_file(prefix + ".meta", [X], out_nodes=["y"]),
        run_file(bare, [X], out_nodes=["y"], checkpoint=tmp_path),
        run_file(bare, [X], out_nodes=["y"], checkpoint=prefix + ".index"),
    ):
        np.testing.assert_array_equal(found[0], expected)
    with pytest.raises(GeError, match="give its checkpoint"):
        parse(bare, out_nodes=["y"])


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    random_values = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float32)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "c"),
        tensor_names=["big", "big", "counts", "texts", "short", "empty"],
        shape_and_slices=["300 40 0,100:-", "300 40 100,200:-", "", "", "", ""],
        tensors=[
            random_values[:100],
            random_values[100:],
            np.arange(5, dtype=np.int64),
            np.array([b"hello", b"", b"x" * 300]),
            tf.cast([1.5, 2.0], tf.bfloat16),
            np.zeros((0, 3), np.float32),
        ],
    )
    return tmp_path / "c"


def test_checkpoint_has_its_tensors(bundle: Path) -> None:
    found = Checkpoint(bundle)
    reader = tf.train.load_checkpoint(str(bundle))
    assert sorted(found.names()) == ["big", "counts", "empty", "short", "texts"]
    for name in ("big", "counts", "empty", "short"):
        np.testing.assert_array_equal(found.read(name), reader.get_tensor(name))
    assert found.read("texts").tolist() == [b"hello", b"", b"x" * 300]
    with pytest.raises(GeError, match="has no tensor 'small'"):
        found.read("small")


def test_damaged_data_is_noticed(bundle: Path) -> None:
    shard = bundle.with_name("c.data-00000-of-00001")
    data = bytearray(shard.read_bytes())
    data[20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(GeError, match="checksum does not match"):
        Checkpoint(bundle).read("big")
    shard.write_bytes(data[:100])
    with pytest.raises(GeError, match="leaves the file"):
        Checkpoint(bundle).read("big")
    shard.unlink()
    with pytest.raises(GeError, match="cannot be read"):
        Checkpoint(bundle).read("counts")


def test_damaged_index_never_gives_anything_but_an_error(bundle: Path) -> None:
    index = bundle.with_name("c.index")
    whole = index.read_bytes()
    numbers = random.Random(5)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(numbers.randint(1, 4)):
            data[numbers.randrange(len(data))] = numbers.randrange(256)
        index.write_bytes(data[: numbers.randint(0, len(data))] if numbers.random() < 0.3 else data)
        with pytest.raises(GeError):
            found = Checkpoint(bundle)
            for name in found.names():
                found.read(name)
            raise GeError("E0", "nothing that matters was changed")


def test_index_with_valid_checksums_and_hostile_entries_is_refused(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checksums do not protect from somebody who writes them."""
    monkeypatch.setattr(tensorflow_bundle, "mask", lambda checksum: checksum)
    monkeypatch.setattr(tensorflow_bundle, "crc32c", lambda data: struct.unpack("<I", b"\0\0\0\0")[0])
    index = bundle.with_name("c.index")
    whole = index.read_bytes()
    numbers = random.Random(6)
    for _ in range(150):
        data = bytearray(whole)
        data[numbers.randrange(len(data))] = numbers.randrange(256)
        index.write_bytes(data)
        with pytest.raises(GeError):
            found = Checkpoint(bundle)
            for name in found.names():
                found.read(name)
            raise GeError("E0", "it could be read")


def test_compressed_index_is_refused_in_so_many_words(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = bundle.with_name("c.index")
    data = bytearray(index.read_bytes())
    block = tensorflow_bundle._Reader(bytes(data[-48:]), "")
    tensorflow_bundle._handle(block)
    offset, size = tensorflow_bundle._handle(block)
    data[offset + size] = 1
    data[offset + size + 1 : offset + size + 5] = struct.pack(
        "<I", mask(crc32c(bytes(data[offset : offset + size + 1])))
    )
    index.write_bytes(data)
    with pytest.raises(GeError, match="snappy"):
        Checkpoint(bundle)


def test_checkpoint_outside_of_its_folder_is_refused(bundle: Path, tmp_path: Path) -> None:
    inside = tmp_path / "folder"
    inside.mkdir()
    (inside / "checkpoint").write_text('model_checkpoint_path: "../c"')
    with pytest.raises(GeError, match="outside its folder"):
        checkpoint_prefix(inside)
    (inside / "c.index").write_bytes(bundle.with_name("c.index").read_bytes())
    (inside / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/c"')
    assert checkpoint_prefix(inside) == inside / "c"


def test_checksum_is_the_castagnoli_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    for size in (0, 1, 1000, 5001, 40_003):
        data = random.Random(size).randbytes(size)
        register = 0xFFFFFFFF
        for byte in data:
            register ^= byte
            for _ in range(8):
                register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
        assert crc32c(data) == register ^ 0xFFFFFFFF


# -- damaged and hostile graphs ------------------------------------------------------------------------------


def refuses(source: Any, match: str, **options: Any) -> None:
    with pytest.raises(GeError, match=match):
        parse(source, **options)


def node(graph: Any, name: str, op: str, *inputs: str, **attrs: Any) -> None:
    made = graph.node.add(name=name, op=op, input=inputs)
    for key, value in attrs.items():
        made.attr[key].CopyFrom(value)


def test_graphs_that_make_no_sense_are_refused() -> None:
    kind = tf.compat.v1.AttrValue(type=1)
    empty = tf.compat.v1.GraphDef()
    refuses(empty, "no nodes")
    cyclic = tf.compat.v1.GraphDef()
    node(cyclic, "a", "Neg", "b", T=kind)
    node(cyclic, "b", "Neg", "a", T=kind)
    refuses(cyclic, "cycle", out_nodes=["a"])
    refuses(cyclic, "no outputs")
    missing = tf.compat.v1.GraphDef()
    node(missing, "a", "Neg", "nowhere", T=kind)
    refuses(missing, "reads the node 'nowhere'")
    twice = tf.compat.v1.GraphDef()
    node(twice, "a", "NoOp")
    node(twice, "a", "NoOp")
    refuses(twice, "two nodes")
    lacking = tf.compat.v1.GraphDef()
    node(lacking, "c", "Const", dtype=kind, value=tf.compat.v1.AttrValue(tensor=tf.make_tensor_proto(1.0)))
    node(lacking, "a", "AddV2", "c", T=kind)
    refuses(lacking, "E10", out_nodes=["a"])
    beyond = tf.compat.v1.GraphDef()
    node(beyond, "c", "Const", dtype=kind, value=tf.compat.v1.AttrValue(tensor=tf.make_tensor_proto(1.0)))
    node(beyond, "a", "Neg", "c:5", T=kind)
    refuses(beyond, "output 5 is read", out_nodes=["a"])


def test_outputs_that_are_no_tensors_are_refused() -> None:
    traced = concrete(lambda x: tf.TensorArray(tf.float32, size=2).write(0, x).write(1, x).stack(), [X])
    lists = [n.name for n in traced.graph.as_graph_def().node if n.op == "TensorListSetItem"]
    refuses(traced.graph.as_graph_def(), "is a list of tensors", out_nodes=lists[-1:])


def test_functions_that_call_themselves_are_refused() -> None:
    graph = tf.compat.v1.GraphDef()
    function = graph.library.function.add()
    function.signature.name = "f"
    function.signature.output_arg.add(name="y", type=1)
    made = function.node_def.add(name="call", op="PartitionedCall")
    made.attr["f"].func.name = "f"
    function.ret["y"] = "call:output:0"
    made = graph.node.add(name="main", op="PartitionedCall")
    made.attr["f"].func.name = "f"
    refuses(graph, "calls itself", out_nodes=["main"])


def test_calls_that_multiply_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from ge.parsers.tensorflow import convert as tensorflow_convert

    monkeypatch.setattr(tensorflow_convert, "NODE_BUDGET", 2000)
    graph = tf.compat.v1.GraphDef()
    for level in range(30):
        function = graph.library.function.add()
        function.signature.name = f"f{level}"
        function.signature.input_arg.add(name="x", type=1)
        function.signature.output_arg.add(name="y", type=1)
        for i in range(2):
            source = "x" if i == 0 else "call0:output:0"
            made = function.node_def.add(
                name=f"call{i}", op="PartitionedCall" if level else "Neg", input=[source]
            )
            if level:
                made.attr["f"].func.name = f"f{level - 1}"
            else:
                made.attr["T"].type = 1
        function.ret["y"] = "call1:output:0" if level else "call1:y:0"
        if not level:
            function.node_def[1].input[0] = "call0:y:0"
    node(
        graph,
        "x",
        "Placeholder",
        dtype=tf.compat.v1.AttrValue(type=1),
        shape=tf.compat.v1.AttrValue(shape=tf.TensorShape([2]).as_proto()),
    )
    made = graph.node.add(name="main", op="PartitionedCall", input=["x"])
    made.attr["f"].func.name = "f29"
    refuses(graph, "more than 2000 nodes", out_nodes=["main"])


def test_damaged_graphs_never_give_anything_but_an_error(saved: Path, graph: Any) -> None:
    numbers = random.Random(2)
    for whole in (graph.SerializeToString(), (saved / "saved_model.pb").read_bytes()):
        for _ in range(120):
            data = bytearray(whole)
            for _ in range(numbers.randint(1, 5)):
                data[numbers.randrange(len(data))] = numbers.randrange(256)
            with contextlib.suppress(GeError):
                parse(bytes(data[: numbers.randint(0, len(data))]) if numbers.random() < 0.2 else bytes(data))


def test_text_that_nests_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.pbtxt"
    path.write_text("node { attr { key: 'a' value { " + "func { attr { key: 'a' value { " * 3000)
    refuses(path, "E10101")
    path.write_text("node { name: 3 }")
    refuses(path, "E10101")
