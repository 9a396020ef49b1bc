"""Stores a program's packed constants in a file, so that loading does not pack them again.

Such a file is valid for the machine, versions, thread count and user that wrote it: it is read only if the seal is this
user's. Constants and their packed image have fast checksums, which detect damage but not forgery; machine code and plan
have cryptographic ones. Constants that the program reads only in packed form are not in the file.
"""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path
from typing import Any

import numpy as np

import npu_runtime
from ge.errors import GeError
from ge.ir.types import TensorDesc, numpy_dtype
from ge.model import keys
from ge.model.codec import (
    ConstantPool,
    KernelPool,
    decode_json,
    decode_plan,
    encode_json,
    encode_plan,
    record,
)
from ge.model.container import PAGE, Section, read_file, read_sections, write_sections
from ge.model.model import Model, PackedConstants

__all__ = ["SUFFIX", "read", "write"]

SUFFIX = ".program"
_ABSENT = -1  # the offset of a constant that is only needed in packed form
_FAST = {"weights": npu_runtime.checksum, "image": npu_runtime.checksum}


def write(model: Model, path: Path) -> Path:
    """Write a loaded model, sealed with the user's key."""
    plan, program = model.plan, model.program
    kernels = KernelPool()
    data = encode_plan(dataclasses.replace(plan, constants=[]), ConstantPool(), kernels)
    wanted = set(program.plain_constants)
    table, weights = _stored([a if i in wanted else None for i, a in enumerate(plan.constants)])
    for entry, array in zip(table, plan.constants, strict=True):
        entry.update(dtype=array.dtype.name, shape=list(array.shape))
    facts = {"plan": data, "constants": table, "layout": program.image_layout}
    sections = {
        "facts": Section([encode_json(facts)]),
        "kernels": Section([encode_json(kernels.table)]),
        "objects": Section(kernels.pieces, align=PAGE),
        "weights": Section([weights], PAGE, npu_runtime.checksum),
        "image": Section([program.constant_image.data], PAGE, npu_runtime.checksum),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sections(path, sections, keys.sign)
    return path


def _stored(arrays: list[np.ndarray | None]) -> tuple[list[dict[str, Any]], memoryview]:
    """The offset of each array in one block of memory, and the block."""
    places, end = [], 0
    for array in arrays:
        places.append(end if array is not None else _ABSENT)
        end += -(-array.nbytes // PAGE) * PAGE if array is not None else 0
    block = np.zeros(end, np.uint8)
    for array, place in zip(arrays, places, strict=True):
        if array is not None:
            block[place : place + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [{"offset": place} for place in places], block.data


def read(path: Path) -> Model | None:
    """A model whose file this user wrote on this machine; None for any other or damaged file."""
    try:
        contents = read_sections(read_file(path), path.name, _FAST)
        if not keys.verify(contents.signed, contents.seal):
            return None
        sections = contents.sections
        facts = record(decode_json(sections["facts"], "facts"), "facts", "plan", "constants", "layout")
        kernels = KernelPool.decode(decode_json(sections["kernels"], "kernels"), sections["objects"], True)
        constants = [_constant(entry, sections["weights"]) for entry in facts["constants"]]
        plan = decode_plan(
            {**facts["plan"], "constants": list(range(len(constants)))}, constants, kernels, "plan"
        )
        image = np.frombuffer(sections["image"], np.uint8)
        return Model(plan, PackedConstants(image, facts["layout"]))
    except (OSError, GeError, KeyError, ValueError):
        return None


def _constant(entry: dict[str, Any], weights: memoryview) -> np.ndarray:
    desc = TensorDesc(tuple(entry["shape"]), entry["dtype"])
    kind = numpy_dtype(desc.dtype)
    if not desc.nbytes:
        return np.empty(desc.shape, kind)
    if entry["offset"] == _ABSENT:
        return np.frombuffer(mmap.mmap(-1, desc.nbytes), kind).reshape(desc.shape)  # never read
    return np.frombuffer(weights, np.uint8, desc.nbytes, entry["offset"]).view(kind).reshape(desc.shape)
