"""The parts of TensorFlow's messages that the parser reads, as a schema table; needs no TensorFlow.

The messages live in a descriptor pool and a package of their own, so they never meet TensorFlow's registered
ones when both are loaded in one process. Fields that are not declared here are skipped by the decoder.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import message, text_format

from ge.errors import GeError
from ge.parsers.schema import declare

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
        "6 asset_file_def AssetFileDef*",
    ),
    "AssetFileDef": ("1 tensor_info TensorInfo", "2 filename string"),
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


def _enum_word(number: int) -> str:
    name = DTYPE_NAMES[number]
    return f"DT_{_ENUM_WORDS.get(name, name.upper())}"


def _types() -> dict[str, int]:
    """The enumeration of element types, those of references included."""
    plain = {_enum_word(number): number for number in DTYPE_NAMES}
    return {"DT_INVALID": 0, **plain, **{f"{word}_REF": n + _REF_OFFSET for word, n in plain.items()}}


MESSAGES: dict[str, type[Message]] = declare(PACKAGE, _SCHEMA, {"DataType": _types()})


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
