"""The parts of MINDIR's messages that the parser reads, as a schema table; needs no MindSpore."""

from __future__ import annotations

from typing import Any

from google.protobuf import message

from ge.errors import GeError
from ge.parsers.schema import declare

__all__ = ["ATTRIBUTE_KINDS", "DTYPE_NAMES", "MESSAGES", "TYPE_IDS", "decode"]

PACKAGE = "ge.mindir"

# Numbers of TensorProto.DataType and our names; names outside ge.ir.types.TENSORS are refused where they matter.
DTYPE_NAMES: dict[int, str] = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: "string",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
    16: "bfloat16",
    17: "float64",
}

# MindSpore's numbers of element types in arguments such as the target of a Cast.
TYPE_IDS: dict[int, str] = {
    30: "bool",
    32: "int8",
    33: "int16",
    34: "int32",
    35: "int64",
    37: "uint8",
    38: "uint16",
    39: "uint32",
    40: "uint64",
    42: "float16",
    43: "float32",
    44: "float64",
    45: "bfloat16",
    51: "complex64",
    52: "complex128",
}

# Numbers of AttributeProto.AttributeType.
_KINDS = """
undefined float uint8 int8 uint16 int16 int32 int64 string bool float16 double uint32 uint64 complex64 complex128
bfloat16 tensor graph tensors tuple list dict umonad iomonad none primitive_closure graph_closure partial_closure
union_closure csr_tensor coo_tensor row_tensor class_type name_space symbol type_null map_tensor functor scalar
scalar_graph_holder
"""
ATTRIBUTE_KINDS: dict[int, str] = dict(enumerate(_KINDS.split()))

_SCHEMA: dict[str, tuple[str, ...]] = {
    "ModelProto": (
        "1 ir_version string",
        "2 producer_name string",
        "3 producer_version string",
        "5 model_version string",
        "7 graph GraphProto",
        "8 functions GraphProto*",
        "10 little_endian bool",
        "12 primitives PrimitiveProto*",
        "13 mind_ir_version int64",
    ),
    "GraphProto": (
        "1 node NodeProto*",
        "2 name string",
        "3 parameter TensorProto*",
        "5 input ValueInfoProto*",
        "6 output ValueInfoProto*",
        "8 attribute AttributeProto*",
        "10 map_parameter MapTensorProto*",
    ),
    "MapTensorProto": ("1 name string",),
    "ValueInfoProto": ("1 name string", "2 tensor TensorProto*", "5 attr_info AttributeProto"),
    "NodeProto": (
        "1 input string*",
        "2 output string*",
        "3 name string",
        "4 op_type string",
        "5 attribute AttributeProto*",
        "7 domain string",
    ),
    "PrimitiveProto": (
        "1 name string",
        "2 op_type string",
        "3 attribute AttributeProto*",
        "4 instance_name string",
    ),
    "AttributeProto": (
        "1 name string",
        "2 f float",
        "3 i int64",
        "4 d double",
        "5 s bytes",
        "6 t TensorProto",
        "8 floats float*",
        "9 doubles double*",
        "10 ints int64*",
        "11 strings bytes*",
        "12 tensors TensorProto*",
        "16 type int32",
        "17 values AttributeProto*",
        "18 seq_info SeqInfoProto",
    ),
    "SeqInfoProto": ("1 is_dyn_len bool", "2 tuple_elem_item AttributeProto"),
    "TensorProto": (
        "1 dims int64*",
        "2 data_type int32",
        "3 float_data float*",
        "4 int32_data int32*",
        "6 int64_data int64*",
        "7 name string",
        "9 raw_data bytes",
        "10 double_data double*",
        "11 uint64_data uint64*",
        "12 external_data ExternalDataProto",
        "16 compression_type int32",
    ),
    "ExternalDataProto": ("1 location string", "2 offset int64", "3 length int64"),
}

MESSAGES: dict[str, type[message.Message]] = declare(PACKAGE, _SCHEMA, syntax="proto2")


def decode(data: bytes, source: str = "") -> Any:
    """A model from its binary form; anything malformed raises GeError."""
    made: Any = MESSAGES["ModelProto"]()
    try:
        made.ParseFromString(data)
    except (message.DecodeError, ValueError, RecursionError) as error:
        raise malformed(source, str(error)) from error
    if not made.HasField("graph") or not made.graph.name:
        raise malformed(source, "it has no graph")
    return made


def malformed(source: str, detail: str) -> GeError:
    """The error of a file that is no MINDIR, or a damaged one."""
    return GeError(
        "E10101",
        f"not a readable MINDIR model ({detail.strip()[:200]})",
        location=source,
        remedy="export the network again: mindspore.export(net, inputs, file_name=..., file_format='MINDIR')",
    )
