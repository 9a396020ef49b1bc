"""The description of an operator package: plain records, stored as JSON beside its files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ge.errors import GeError
from ge.opp_paths import MANIFEST

__all__ = [
    "AttrSpec",
    "OperatorSpec",
    "PackageSpec",
    "PluginSpec",
    "PortSpec",
    "TbeSpec",
    "read_manifest",
    "write_manifest",
]

FORMAT = 1


@dataclass(frozen=True)
class PortSpec:
    """An input or output of a prototype."""

    name: str
    kind: str = "required"  # required, optional, dynamic
    dtypes: tuple[str, ...] = ()  # () means all


@dataclass(frozen=True)
class AttrSpec:
    """An attribute of a prototype."""

    name: str
    type: str  # int, float, bool, str, list_int, list_float, list_bool, list_str
    required: bool = False
    default: Any = None


@dataclass(frozen=True)
class TbeSpec:
    """A TBE implementation: an operator file, its function, and the combinations of element types it accepts."""

    file: str
    function: str
    columns: tuple[tuple[str, ...], ...] = ()  # inputs, then outputs
    asks: bool = False  # check_supported decides as well
    refused: str = ""  # why it cannot be used at all


@dataclass(frozen=True)
class OperatorSpec:
    """One operator of a package."""

    type: str
    inputs: tuple[PortSpec, ...] = ()
    outputs: tuple[PortSpec, ...] = ()
    attrs: tuple[AttrSpec, ...] = ()
    tbe: TbeSpec | None = None
    aicpu: str = ""  # name of the kernel in the package's library
    infer: str = ""  # "library", or a Python file with infer(op) and perhaps verify(op)
    dynamic: bool = False  # the kernel determines the actual output shapes


@dataclass(frozen=True)
class PluginSpec:
    """A mapping of framework operators to an operator: attributes of the same name, or those of a parse function."""

    framework: str  # tensorflow, onnx, aten
    names: tuple[str, ...]
    type: str
    parse: str = ""  # a function in the package's library that provides the attributes


@dataclass(frozen=True)
class PackageSpec:
    """A package: its operators, its plugins, and the files they need, relative to its directory."""

    name: str
    version: str = "1.0"
    digest: str = ""
    library: str = ""
    operators: tuple[OperatorSpec, ...] = ()
    plugins: tuple[PluginSpec, ...] = ()
    python: tuple[str, ...] = ()  # operator and plugin files in this package's own form
    notes: tuple[str, ...] = field(default=())
    faults: tuple[str, ...] = field(default=())  # errors in parts that were skipped


def write_manifest(spec: PackageSpec, directory: Path) -> None:
    """Write a package's description into its directory."""
    text = json.dumps({"format": FORMAT, **asdict(spec)}, indent=1)
    (directory / MANIFEST).write_text(text + "\n")


def read_manifest(directory: Path) -> PackageSpec:
    """The description in a package's directory."""
    path = directory / MANIFEST
    try:
        data = json.loads(path.read_text())
        if data.pop("format") != FORMAT:
            raise ValueError("it was written by another version")
        return _package(data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise GeError(
            "E10610", f"{path} cannot be used: {error}", remedy="build the operator project again"
        ) from error


def _package(data: dict[str, Any]) -> PackageSpec:
    operators = tuple(_operator(item) for item in data.pop("operators"))
    plugins = tuple(
        PluginSpec(item["framework"], tuple(item["names"]), item["type"], item.get("parse", ""))
        for item in data.pop("plugins")
    )
    data |= {name: tuple(data.get(name, ())) for name in ("python", "notes", "faults")}
    return PackageSpec(operators=operators, plugins=plugins, **data)


def _operator(item: dict[str, Any]) -> OperatorSpec:
    inputs, outputs = (
        tuple(PortSpec(p["name"], p["kind"], tuple(p["dtypes"])) for p in item.pop(side))
        for side in ("inputs", "outputs")
    )
    attrs = tuple(AttrSpec(**a) for a in item.pop("attrs"))
    tbe = item.pop("tbe")
    if tbe is not None:
        tbe = TbeSpec(**{**tbe, "columns": tuple(map(tuple, tbe["columns"]))})
    return OperatorSpec(inputs=inputs, outputs=outputs, attrs=attrs, tbe=tbe, **item)
