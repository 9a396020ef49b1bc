"""The information files (`.ini`) of operator projects: what an implementation accepts.

    [Swoosh]
    input0.name=x
    input0.dtype=float16,float
    input0.format=ND,ND
    output0.name=y
    output0.dtype=float16,float
    output0.format=ND,ND
    attr.list=beta
    attr_beta.type=float
    attr_beta.defaultValue=1.0
    opFile.value=swoosh
    opInterface.value=swoosh

The element types and formats of all ports are columns: the n-th entries form a combination.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge.errors import GeError
from ge.ir.types import TENSORS
from ge.opp.faults import Faults
from ge.ops.custom.spec import AttrSpec, PortSpec

__all__ = ["Information", "read_information"]

_NAMES = {"float": "float32", "double": "float64", "bf16": "bfloat16"}
_PLAIN = frozenset(
    {"ND", "NCHW", "NHWC", "HWCN", "CHWN", "NCDHW", "NDHWC", "DHWCN", "DHWNC", "NCL", "NHWC1", "NHC", "NC"}
)
_ATTRS = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "str": "str",
    "type": "str",
    "listInt": "list_int",
    "listFloat": "list_float",
    "listBool": "list_bool",
    "listStr": "list_str",
    "listType": "list_str",
}


@dataclass(frozen=True)
class Information:
    """The contents of one section."""

    type: str
    inputs: tuple[PortSpec, ...]
    outputs: tuple[PortSpec, ...]
    attrs: tuple[AttrSpec, ...]
    columns: tuple[tuple[str, ...], ...]
    refused: str  # why no column can be used
    file: str
    function: str
    asks: bool  # check_supported decides as well
    kernel: bool  # an AI CPU kernel, not a TBE operator file


def read_information(path: Path, faults: Faults | None = None) -> list[Information]:
    """The sections of an information file; a fault of one is raised, or added to `faults`."""
    collected = Faults(strict=True) if faults is None else faults
    found: list[Information] = []
    with collected.part():
        parser = _parsed(path)
        for name in parser.sections():
            with collected.part():
                found.append(_section(path, name, parser[name]))
    return found


def _parsed(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(path.read_text(encoding="utf-8-sig"), source=str(path))
    except (configparser.Error, OSError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        raise GeError("E10612", f"the information cannot be read: {error}", location=where) from error
    return parser


def _section(path: Path, type_: str, values: Mapping[str, str]) -> Information:
    inputs, outputs = _ports(values, "input"), _ports(values, "output")
    columns, refused = _columns(path, type_, [*inputs, *outputs])
    return Information(
        type_,
        tuple(p for p, _, _ in inputs),
        tuple(p for p, _, _ in outputs),
        _attrs(path, type_, values),
        columns,
        refused,
        values.get("opFile.value", ""),
        values.get("opInterface.value", ""),
        values.get("needCheckSupport.flag", "").strip().lower() == "true",
        any(key.startswith("opInfo.") for key in values),
    )


_Port = tuple[PortSpec, Sequence[str], Sequence[str]]  # the port, its element types, its formats


def _ports(values: Mapping[str, str], side: str) -> list[_Port]:
    found: list[_Port] = []
    while f"{side}{len(found)}.name" in values:
        key = f"{side}{len(found)}"
        dtypes = [_NAMES.get(t.lower(), t.lower()) for t in _listed(values.get(f"{key}.dtype", ""))]
        formats = [f.upper().removeprefix("FORMAT_") for f in _listed(values.get(f"{key}.format", ""))]
        kind = values.get(f"{key}.paramType", "required").strip()
        known = tuple(dict.fromkeys(d for d in dtypes if d in TENSORS))
        found.append((PortSpec(values[f"{key}.name"].strip(), kind, known), dtypes, formats))
    return found


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _columns(path: Path, type_: str, ports: Sequence[_Port]) -> tuple[tuple[tuple[str, ...], ...], str]:
    """The supported combinations, and the reason if there is none."""
    lengths = {len(dtypes) for _, dtypes, _ in ports if dtypes}
    if not lengths:
        return (), ""
    if len(lengths) > 1:
        names = ", ".join(f"{p.name}: {len(d)}" for p, d, _ in ports)
        raise GeError(
            "E10612", f"the ports of {type_} list different numbers of types ({names})", location=str(path)
        )
    count = lengths.pop()
    rows = [(d or ["float32"] * count, _filled(f, count)) for _, d, f in ports]
    kept = []
    for i in range(count):
        if all(d[i] in TENSORS and f[i] in _PLAIN for d, f in rows):
            kept.append(tuple(d[i] for d, _ in rows))
    if kept:
        return tuple(dict.fromkeys(kept)), ""
    formats = sorted({f for _, fs in rows for f in fs if f not in _PLAIN})
    why = f"it takes only the storage formats {', '.join(formats)}" if formats else "no engine has its types"
    return (), f"{why}; tensors here are plain"


def _filled(items: Sequence[str], count: int) -> list[str]:
    """Formats of all columns: a single one applies to all, missing ones are ND."""
    rest = items[0] if len(items) == 1 else "ND"
    return [*items, *[rest] * (count - len(items))]


def _attrs(path: Path, type_: str, values: Mapping[str, str]) -> tuple[AttrSpec, ...]:
    found = []
    for name in _listed(values.get("attr.list", "")):
        kind = values.get(f"attr_{name}.type", "").strip()
        if kind not in _ATTRS:
            cause = f"attribute '{name}' of {type_} is of type '{kind}'"
            raise GeError("E10612", cause, location=str(path), remedy=f"use one of {', '.join(_ATTRS)}")
        default = values.get(f"attr_{name}.defaultValue")
        required = values.get(f"attr_{name}.paramType", "").strip() == "required" or default is None
        try:
            value = None if required else _value(str(default).strip(), _ATTRS[kind])
        except ValueError as error:
            cause = (
                f"the default of attribute '{name}' of {type_} is '{default}', which is not a valid {kind}"
            )
            raise GeError("E10612", cause, location=str(path)) from error
        found.append(AttrSpec(name, _ATTRS[kind], required, value))
    return tuple(found)


def _value(text: str, kind: str) -> Any:
    """
    >>> _value("[1,2]", "list_int"), _value("false", "bool")
    ([1, 2], False)
    """
    if kind.startswith("list_"):
        return [_value(item, kind[5:]) for item in _listed(text.strip("[]{}"))]
    convert: Any = {"int": int, "float": float, "bool": lambda t: t.lower() == "true", "str": str}[kind]
    return convert(text.strip('"'))
