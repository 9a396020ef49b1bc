"""Creates protobuf classes of a framework's messages from a schema table, in a private descriptor pool.

A pool of their own keeps them apart from the messages that the framework itself registers in the same process. Fields
that a table does not declare are skipped by the decoder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

__all__ = ["declare"]

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


def declare(
    package: str,
    schema: Mapping[str, Sequence[str]],
    enums: Mapping[str, Mapping[str, int]] | None = None,
    syntax: str = "proto3",
) -> dict[str, type[message.Message]]:
    """The message classes of a schema: for each message its fields, "number name type[*] [@oneof]".

    A star marks a repeated field; a map with string keys is "map:value type"; types are those of protobuf, messages of
    the schema and names of `enums`.

    >>> Point = declare("ge.example", {"Point": ("1 x float", "2 names string*")})["Point"]
    >>> Point.FromString(Point(x=2.0, names=["a"]).SerializeToString()).names
    ['a']
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=package.replace(".", "/") + ".proto", package=package, syntax=syntax
    )
    for name, words in (enums or {}).items():
        enum = file.enum_type.add(name=name)
        for word, number in words.items():
            enum.value.add(name=word, number=number)
    writer = _Writer(package, frozenset(enums or ()))
    for name, fields in schema.items():
        target = file.message_type.add(name=name)
        for declaration in fields:
            writer.field(target, name, declaration)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{n}")) for n in schema}


class _Writer:
    """Writes field declarations into descriptors."""

    def __init__(self, package: str, enums: frozenset[str]) -> None:
        self.package = package
        self.enums = enums

    def field(self, target: Any, owner: str, declaration: str) -> None:
        number, name, type_, *oneof = declaration.split()
        field = target.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if type_.startswith("map:"):
            field.label, field.type = _Field.LABEL_REPEATED, _Field.TYPE_MESSAGE
            field.type_name = self._map_entry(target, owner, name, type_.removeprefix("map:"))
            return
        if type_.endswith("*"):
            field.label = _Field.LABEL_REPEATED
        self._typed(field, type_.rstrip("*"))
        if oneof:
            group = oneof[0].removeprefix("@")
            groups = [o.name for o in target.oneof_decl]
            if group not in groups:
                target.oneof_decl.add(name=group)
                groups.append(group)
            field.oneof_index = groups.index(group)

    def _typed(self, field: Any, type_: str) -> None:
        """Give a field its scalar, enum or message type."""
        if type_ in _SCALARS:
            field.type = _SCALARS[type_]
        else:
            field.type = _Field.TYPE_ENUM if type_ in self.enums else _Field.TYPE_MESSAGE
            field.type_name = f".{self.package}.{type_}"

    def _map_entry(self, target: Any, owner: str, name: str, value_type: str) -> str:
        """Declare the nested key/value message of a map field; its type name."""
        entry = target.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for number, part, type_ in ((1, "key", "string"), (2, "value", value_type)):
            self._typed(entry.field.add(name=part, number=number, label=_Field.LABEL_OPTIONAL), type_)
        return f".{self.package}.{owner}.{entry.name}"
