"""A minimal ELF reader: the symbols that an object defines and those that are undefined."""

from __future__ import annotations

import struct

__all__ = ["symbols"]

_SYMTAB = 2


def symbols(data: bytes) -> tuple[set[str], set[str]]:
    """The names an ELF64 object defines and those it refers to without defining."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF64 object")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    (count,) = struct.unpack_from("<H", data, 0x3C)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    defined: set[str] = set()
    undefined: set[str] = set()
    for section in sections:
        if section[1] != _SYMTAB:
            continue
        names = sections[section[6]][4]
        for offset in range(section[4] + 24, section[4] + section[5], 24):
            name_at, _, _, where = struct.unpack_from("<IBBH", data, offset)
            end = data.index(b"\0", names + name_at)
            name = data[names + name_at : end].decode()
            if name:
                (undefined if where == 0 else defined).add(name)
    return defined, undefined
