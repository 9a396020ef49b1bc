"""TensorFlow's file messages, as far as the parser reads them: one schema table, no TensorFlow installation.

The messages live in a descriptor pool and a package of their own, so they never meet TensorFlow's registered
ones when both are loaded in one process. Fields that are not declared here are skipped by the decoder.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from ge.errors import GeError

__all__ = ["DTYPE_NAMES", "MESSAGES", "Message", "decode", "decode_text", "dtype_name"]

Message = message.Message

PACKAGE = "ge.tensorflow"

# Numbers of TensorFlow's DataType and the element type names used here. Names outside ge.ir.types.TENSORS
# ("string", "complex64", …) only ever appear in messages.
DTYPE_NAMES: dict[int, str] = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "qint8",
    12: "quint8",
    13: "qint32",
    14: "bfloat16",
    15: "qint16",
    16: "quint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    20: "resource",
    21: "variant",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
    29: "int4",
    30: "uint4",
}
_ENUM_WORDS = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF"}  # where DT_<NAME> is not the name
_REF_OFFSET = 100  # DT_FLOAT_REF = DT_FLOAT + 100

_SCHEMA: dict[str, tuple[str, ...]] = {
    # graph
    "GraphDef": ("1 node NodeDef*", "2 library FunctionDefLibrary", "4 versions VersionDef"),
    "VersionDef": ("1 producer int32", "2 min_consumer int32"),
    "NodeDef": ("1 name string", "2 op string", "3 input string*", "4 device string", "5 attr map:AttrValue"),
    "FunctionDefLibrary": ("1 function FunctionDef*",),
    "FunctionDef": (
        "1 signature OpDef",
        "3 node_def NodeDef*",
        "4 ret map:string",
        "5 attr map:AttrValue",
        "6 control_ret map:string",
    ),
    "OpDef": ("1 name string", "2 input_arg ArgDef*", "3 output_arg ArgDef*", "17 is_stateful bool"),
    "ArgDef": (
        "1 name string",
        "3 type DataType",
        "4 type_attr string",
        "5 number_attr string",
        "6 type_list_attr string",
    ),
    # attributes and tensors
    "AttrValue": (
        "1 list ListValue @value",
        "2 s bytes @value",
        "3 i int64 @value",
        "4 f float @value",
        "5 b bool @value",
        "6 type DataType @value",
        "7 shape TensorShapeProto @value",
        "8 tensor TensorProto @value",
        "9 placeholder string @value",
        "10 func NameAttrList @value",
    ),
    "ListValue": (
        "2 s bytes*",
        "3 i int64*",
        "4 f float*",
        "5 b bool*",
        "6 type DataType*",
        "7 shape TensorShapeProto*",
        "8 tensor TensorProto*",
        "9 func NameAttrList*",
    ),
    "NameAttrList": ("1 name string", "2 attr map:AttrValue"),
    "TensorShapeProto": ("2 dim Dim*", "3 unknown_rank bool"),
    "Dim": ("1 size int64", "2 name string"),
    "TensorProto": (
        "1 dtype DataType",
        "2 tensor_shape TensorShapeProto",
        "4 tensor_content bytes",
        "5 float_val float*",
        "6 double_val double*",
        "7 int_val int32*",
        "8 string_val bytes*",
        "9 scomplex_val float*",
        "10 int64_val int64*",
        "11 bool_val bool*",
        "12 dcomplex_val double*",
        "13 half_val int32*",
        "16 uint32_val uint32*",
        "17 uint64_val uint64*",
    ),
    # SavedModel
    "SavedModel": ("1 saved_model_schema_version int64", "2 meta_graphs MetaGraphDef*"),
    "MetaGraphDef": (
        "1 meta_info_def MetaInfoDef",
        "2 graph_def GraphDef",
        "3 saver_def SaverDef",
        "5 signature_def map:SignatureDef",
    ),
    "MetaInfoDef": ("4 tags string*", "5 tensorflow_version string"),
    "SaverDef": ("1 filename_tensor_name string", "2 save_tensor_name string", "3 restore_op_name string"),
    "SignatureDef": ("1 inputs map:TensorInfo", "2 outputs map:TensorInfo", "3 method_name string"),
    "TensorInfo": (
        "1 name string @encoding",
        "2 dtype DataType",
        "3 tensor_shape TensorShapeProto",
        "4 coo_sparse CooSparse @encoding",
        "5 composite_tensor CompositeTensor @encoding",
    ),
    "CooSparse": (
        "1 values_tensor_name string",
        "2 indices_tensor_name string",
        "3 dense_shape_tensor_name string",
    ),
    "CompositeTensor": ("2 components TensorInfo*",),
    # checkpoints
    "BundleHeaderProto": ("1 num_shards int32", "2 endianness int32", "3 version VersionDef"),
    "BundleEntryProto": (
        "1 dtype DataType",
        "2 shape TensorShapeProto",
        "3 shard_id int32",
        "4 offset int64",
        "5 size int64",
        "6 crc32c fixed32",
        "7 slices TensorSliceProto*",
    ),
    "TensorSliceProto": ("1 extent Extent*",),
    "Extent": ("1 start int64", "2 length int64 @has_length"),
    "CheckpointState": ("1 model_checkpoint_path string", "2 all_model_checkpoint_paths string*"),
    "TrackableObjectGraph": ("1 nodes TrackableObject*",),
    "TrackableObject": ("2 attributes SerializedTensor*",),
    "SerializedTensor": ("1 name string", "2 full_name string", "3 checkpoint_key string"),
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
    "fixed32": _Field.TYPE_FIXED32,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
    "bool": _Field.TYPE_BOOL,
}


def _enum_word(number: int) -> str:
    name = DTYPE_NAMES[number]
    return f"DT_{_ENUM_WORDS.get(name, name.upper())}"


def _typed(field: Any, type_: str) -> None:
    """Give a field its scalar, enum or message type."""
    if type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        field.type = _Field.TYPE_ENUM if type_ == "DataType" else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type_}"


def _map_entry(target: Any, owner: str, name: str, value_type: str) -> str:
    """Declare the nested key/value message of a map field; its type name."""
    entry = target.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    for number, part, type_ in ((1, "key", "string"), (2, "value", value_type)):
        _typed(entry.field.add(name=part, number=number, label=_Field.LABEL_OPTIONAL), type_)
    return f".{PACKAGE}.{owner}.{entry.name}"


def _declare_field(target: Any, owner: str, declaration: str) -> None:
    """Declare "number name type[*] [@oneof]"; a map with string keys is "map:value type"."""
    number, name, type_, *oneof = declaration.split()
    field = target.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if type_.startswith("map:"):
        field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
        field.type_name = _map_entry(target, owner, name, type_.removeprefix("map:"))
        return
    if type_.endswith("*"):
        field.label = _Field.LABEL_REPEATED
    _typed(field, type_.rstrip("*"))
    if oneof:
        group = oneof[0].removeprefix("@")
        groups = [o.name for o in target.oneof_decl]
        if group not in groups:
            target.oneof_decl.add(name=group)
            groups.append(group)
        field.oneof_index = groups.index(group)


def _declare() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="ge/tensorflow.proto", package=PACKAGE, syntax="proto3")
    enum = file.enum_type.add(name="DataType")
    enum.value.add(name="DT_INVALID", number=0)
    for number in DTYPE_NAMES:
        enum.value.add(name=_enum_word(number), number=number)
        enum.value.add(name=f"{_enum_word(number)}_REF", number=number + _REF_OFFSET)
    for name, fields in _SCHEMA.items():
        target = file.message_type.add(name=name)
        for declaration in fields:
            _declare_field(target, name, declaration)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{n}")) for n in _SCHEMA}


MESSAGES: dict[str, type[Message]] = _declare()


def decode(kind: str, data: bytes, source: str = "") -> Any:
    """A message of a kind from its binary form; anything malformed raises GeError."""
    made = MESSAGES[kind]()
    try:
        made.ParseFromString(data)
    except (message.DecodeError, ValueError, RecursionError) as error:
        raise _malformed(kind, source, str(error)) from error
    return made


def decode_text(kind: str, text: str, source: str = "") -> Any:
    """A message of a kind from protobuf's text form; anything malformed raises GeError."""
    made = MESSAGES[kind]()
    try:
        text_format.Parse(text, made, allow_unknown_field=True)
    except (text_format.ParseError, ValueError, RecursionError) as error:
        raise _malformed(kind, source, str(error)) from error
    return made


def _malformed(kind: str, source: str, detail: str) -> GeError:
    return GeError(
        "E10101",
        f"not a readable {kind} message ({detail.strip()[:200]})",
        location=source,
        remedy="check that the file is whole and of the format its name says",
    )


def dtype_name(number: int) -> str:
    """The element type name of a DataType number; references are named as what they refer to.

    >>> dtype_name(101)
    'float32'
    """
    plain = number - _REF_OFFSET if number > _REF_OFFSET else number
    return DTYPE_NAMES.get(plain, f"DataType({number})")
