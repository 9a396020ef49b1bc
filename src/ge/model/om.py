"""The `.om` file: one or several plans of a model with weights, kernels and properties; write, read, inspect.

Sections: `properties` (JSON: ports, gears, options, versions), `plans` (JSON: buffers and tasks), `kernels` (JSON:
expressions, offsets of machine code), `objects` (machine code), `weights` (page-aligned).

Machine code runs only from a file that this user sealed or that is loaded with `trust=True`; otherwise the kernels are
regenerated from their expressions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ge.errors import GeError, typed
from ge.gears import GearKind, Gears
from ge.model import kernels as machine_code
from ge.model import keys
from ge.model.codec import (
    ConstantPool,
    KernelPool,
    decode_json,
    decode_plan,
    decode_port,
    encode_json,
    encode_plan,
    encode_port,
    integer,
    items,
    malformed,
    record,
    text,
)
from ge.model.container import PAGE, Contents, Section, read_file, read_sections, write_sections
from ge.plan import Plan, Port

if TYPE_CHECKING:
    from ge.model.geared import GearedModel
    from ge.model.model import Model

__all__ = ["Package", "load", "read", "save", "summary", "write"]

MAX_PLANS = 128


@dataclass
class Package:
    """The contents of an `.om` file: a plan for each gear (one without gears) and user-visible properties."""

    plans: list[Plan]
    gears: Gears | None = None
    properties: dict[str, Any] = field(default_factory=dict)
    trusted: bool = True

    @property
    def name(self) -> str:
        return self.plans[0].name

    @property
    def largest(self) -> Plan:
        """The plan with the largest inputs, whose buffers fit every gear."""
        return max(self.plans, key=lambda p: sum(port.desc.nbytes for port in p.inputs))


@typed
def save(model: Model | GearedModel, path: str | os.PathLike[str], **properties: Any) -> Path:
    """Save a compiled model. Returns the path of the file, which ends in `.om`.

    >>> save(model, "resnet50")      # doctest: +SKIP
    """
    plans = getattr(model, "plans", None) or [model.plan]
    return write(Package(plans, getattr(model, "gears", None), properties), path)


@typed
def load(source: str | os.PathLike[str] | bytes, *, trust: bool = False) -> Model | GearedModel:
    """Load a compiled model. `trust` runs the machine code of a file that this user did not compile.

    >>> model = load("resnet50.om")      # doctest: +SKIP
    """
    package = read(source, trust=trust)
    if not package.trusted:
        machine_code.regenerate(package.plans)
    from ge.model.geared import GearedModel, build_model

    if package.gears is not None:
        return GearedModel(package.plans, package.gears)
    return build_model(package.plans[0])


def write(package: Package, path: str | os.PathLike[str], *, portable: bool = True) -> Path:
    """Write a package, sealed with the user's key. Returns the path, which ends in `.om`.

    portable: also include machine code for other processors.
    """
    target = Path(path)
    if target.suffix != ".om":
        target = target.with_name(target.name + ".om")
    if portable:
        machine_code.add_portable(package.plans)
    constants, kernels = ConstantPool(), KernelPool()
    plans = [encode_plan(plan, constants, kernels) for plan in package.plans]
    sections = {
        "properties": Section([encode_json(_properties(package))]),
        "plans": Section([encode_json({"plans": plans, "constants": constants.table})]),
        "kernels": Section([encode_json(kernels.table)]),
        "objects": Section(kernels.pieces, align=PAGE),
        "weights": Section(constants.pieces, align=PAGE),
    }
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_sections(target, sections, keys.sign)
    except OSError as error:
        raise GeError(
            "E11010", f"{target} cannot be written: {error.strerror}", remedy="choose another --output"
        ) from error
    return target


def _properties(package: Package) -> dict[str, Any]:
    gears = package.gears
    return {
        "name": package.name,
        "inputs": [encode_port(p) for p in package.largest.inputs],
        "outputs": [encode_port(p) for p in package.largest.outputs],
        "gears": None
        if gears is None
        else {"kind": gears.kind.value, "inputs": dict(gears.inputs), "choices": gears.choices},
        "properties": package.properties,
    }


def read(source: str | os.PathLike[str] | bytes, *, trust: bool = False) -> Package:
    """Read and check a file or its bytes."""
    contents, name = _open(source)
    trusted = trust or keys.verify(contents.signed, contents.seal)
    fields = record(
        decode_json(_section(contents, "properties", name), "properties"), "properties", *_PROPERTIES
    )
    data = record(decode_json(_section(contents, "plans", name), "plans"), "plans", "plans", "constants")
    constants = ConstantPool.decode(data["constants"], _section(contents, "weights", name))
    kernels = KernelPool.decode(
        decode_json(_section(contents, "kernels", name), "kernels"),
        _section(contents, "objects", name),
        trusted,
    )
    plans = [
        decode_plan(plan, constants, kernels, f"plans[{i}]")
        for i, plan in enumerate(items(data["plans"], "plans", MAX_PLANS))
    ]
    gears = _decode_gears(fields["gears"])
    _check_plans(plans, gears)
    return Package(plans, gears, record(fields["properties"], "properties"), trusted)


_PROPERTIES = ("name", "inputs", "outputs", "gears", "properties")


def _open(source: str | os.PathLike[str] | bytes) -> tuple[Contents, str]:
    if isinstance(source, bytes | bytearray | memoryview):
        own = bytes(source)  # a copy if the caller could write to it
        return read_sections(memoryview(own), "the model in memory"), "the model in memory"
    try:
        name = os.fspath(source)
        data = read_file(source)
    except (OSError, TypeError, ValueError, MemoryError) as error:
        raise GeError(
            "E11001",
            f"{source!s} cannot be read: {getattr(error, 'strerror', None) or error}",
            remedy="check the path and its permissions",
        ) from error
    return read_sections(data, name), name


def _section(contents: Contents, section: str, name: str) -> memoryview:
    if section not in contents.sections:
        raise malformed(name, f"has no section '{section}'")
    return contents.sections[section]


def _decode_gears(data: Any) -> Gears | None:
    if data is None:
        return None
    fields = record(data, "gears", "kind", "inputs", "choices")
    kinds = {kind.value: kind for kind in GearKind}
    kind = kinds.get(text(fields["kind"], "gears.kind", 64))
    if kind is None:
        raise malformed("gears", "are of an unknown kind")
    inputs = {
        text(name, "gears", 4096): tuple(integer(d, "gears", -1) for d in items(shape, "gears", 64))
        for name, shape in record(fields["inputs"], "gears.inputs").items()
    }
    choices = tuple(
        tuple(integer(v, "gears", 1) for v in items(choice, "gears", 256))
        for choice in items(fields["choices"], "gears.choices", MAX_PLANS)
    )
    gears = Gears(kind, inputs, choices)
    try:
        gears.check()
    except GeError as error:
        raise malformed("gears", f"are inconsistent: {error.cause}") from error
    return gears


def _check_plans(plans: list[Plan], gears: Gears | None) -> None:
    """Check that all plans of a file have the same ports, and input shapes that tell them apart."""
    if len(plans) != (1 if gears is None else len(gears.choices)):
        raise malformed("the model", f"has {len(plans)} plans")
    ports = [_signature(plan.inputs) + _signature(plan.outputs) for plan in plans]
    if any(p != ports[0] for p in ports):
        raise malformed("the model", "has plans with different inputs or outputs")
    shapes = {tuple(port.desc.shape for port in plan.inputs) for plan in plans}
    if len(shapes) != len(plans):
        raise malformed("the model", "has gears with equal input shapes")


def _signature(ports: list[Port]) -> list[tuple[str, str, int]]:
    return [(p.name, p.desc.dtype, p.desc.rank) for p in ports]


def summary(source: str | os.PathLike[str] | bytes) -> Mapping[str, Any]:
    """A file's metadata: ports, gears, options, versions, sizes. Nothing in it is executed."""
    contents, name = _open(source)
    data = record(
        decode_json(_section(contents, "properties", name), "properties"), "properties", *_PROPERTIES
    )
    for kind in ("inputs", "outputs"):
        for index, port in enumerate(items(data[kind], kind)):
            decode_port(port, f"{kind}[{index}]")
    _decode_gears(data["gears"])
    return {
        **data,
        "sealed_by_this_user": keys.verify(contents.signed, contents.seal),
        "sections": {label: view.nbytes for label, view in contents.sections.items()},
    }
