"""Encodes and decodes plans as plain data. Decoding trusts nothing: it checks sizes, views and references."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ge.errors import GeError
from ge.ir.types import TENSORS, TensorDesc, numpy_dtype
from ge.model.kernels import select, stored
from ge.plan import Buffer, KernelImage, Plan, Port, Task, View

__all__ = [
    "ConstantPool",
    "KernelPool",
    "decode_json",
    "decode_plan",
    "decode_port",
    "encode_json",
    "encode_plan",
    "encode_port",
    "integer",
    "items",
    "malformed",
    "record",
    "shape",
    "text",
]

MAX_RANK = 32
MAX_BYTES = 1 << 46
MAX_COUNT = 1 << 24
MAX_TEXT = 1 << 20
MAX_NESTING = 64
ALIGN = 64

# Tasks whose views may have arbitrary strides; all others access their tensors contiguously.
STRIDED = frozenset({"matmul", "conv", "deconv", "pool", "reorder", "lrn", "rnn", "check"})
BUFFERS = ("arena", "constant", "input", "output")
NO_BLOCK = -1
BLOCK_ATTRIBUTES = ("then_block", "else_block", "body_block")


# -- JSON -------------------------------------------------------------------------------------------


def encode_json(data: Any) -> bytes:
    """Compact JSON; NumPy numbers and tuples become plain ones."""
    return json.dumps(data, default=_plain, separators=(",", ":"), sort_keys=True).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def decode_json(data: bytes | memoryview, what: str) -> Any:
    """The JSON of a section; rejects anything else."""
    try:
        return json.loads(bytes(data).decode())
    except (ValueError, RecursionError) as error:
        raise malformed(what, f"is not valid JSON ({type(error).__name__})") from error


def malformed(what: str, cause: str) -> GeError:
    """The error for invalid content with a valid checksum."""
    return GeError("E11006", f"malformed model: {what} {cause}", remedy="compile the original model with atc")


# -- checked access ---------------------------------------------------------------------------------


def integer(value: Any, what: str, low: int = 0, high: int = MAX_BYTES) -> int:
    """An integer between two bounds, inclusive."""
    if type(value) is not int or not low <= value <= high:
        raise malformed(what, f"must be an integer from {low} to {high}, is {_short(value)}")
    return value


def text(value: Any, what: str, limit: int = MAX_TEXT) -> str:
    """A string of bounded length."""
    if not isinstance(value, str) or len(value) > limit:
        raise malformed(what, f"must be a string of at most {limit} characters, is {_short(value)}")
    return value


def items(value: Any, what: str, limit: int = MAX_COUNT, exactly: int | None = None) -> list[Any]:
    """A list of bounded length."""
    if not isinstance(value, list) or len(value) > limit or (exactly is not None and len(value) != exactly):
        size = f"of {exactly} items" if exactly is not None else f"of at most {limit} items"
        raise malformed(what, f"must be a list {size}, is {_short(value)}")
    return value


def record(value: Any, what: str, *keys: str) -> dict[str, Any]:
    """An object with at least these keys."""
    if not isinstance(value, dict) or any(key not in value for key in keys):
        raise malformed(
            what, f"must be an object with {', '.join(keys) or 'string keys'}, is {_short(value)}"
        )
    return value


def _short(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge integer"
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def dtype(value: Any, what: str) -> str:
    """A valid element type name."""
    if not isinstance(value, str) or value not in TENSORS:
        raise malformed(what, f"has element type {_short(value)}")
    return value


def shape(value: Any, what: str) -> tuple[int, ...]:
    """A tensor's shape, bounded in rank and size."""
    dims = tuple(integer(d, what) for d in items(value, what, MAX_RANK))
    if math.prod(dims) > MAX_BYTES:
        raise malformed(what, "describes an impossibly large tensor")
    return dims


# -- ports ------------------------------------------------------------------------------------------


def encode_port(port: Port) -> dict[str, Any]:
    """A port as plain data."""
    return {
        "name": port.name,
        "dtype": port.desc.dtype,
        "shape": list(port.desc.shape),
        "format": port.format,
        "dynamic": port.dynamic,
    }


def decode_port(data: Any, what: str) -> Port:
    """A port from plain data."""
    fields = record(data, what, "name", "dtype", "shape", "format", "dynamic")
    desc = TensorDesc(shape(fields["shape"], what), dtype(fields["dtype"], what))
    name = text(fields["name"], what, 4096)
    return Port(name, desc, text(fields["format"], what, 64), bool(fields["dynamic"]))


# -- constants and kernels, shared by the plans of one file -----------------------------------------


@dataclass
class ConstantPool:
    """The constants of all plans of a file, each stored once."""

    table: list[dict[str, Any]] = field(default_factory=list)
    pieces: list[bytes | memoryview] = field(default_factory=list)
    nbytes: int = 0
    _known: dict[bytes, int] = field(default_factory=dict)
    _seen: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)

    def add(self, array: np.ndarray) -> int:
        """The index of an array in the pool."""
        seen = self._seen.get(id(array))
        if seen is not None and seen[0] is array:
            return seen[1]
        index = self._store(np.ascontiguousarray(array).reshape(array.shape))
        self._seen[id(array)] = (array, index)
        return index

    def _store(self, array: np.ndarray) -> int:
        content = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        entry = {"dtype": array.dtype.name, "shape": list(array.shape), "offset": 0}
        key = hashlib.sha256(encode_json(entry)).digest() + hashlib.sha256(content).digest()
        if key in self._known:
            return self._known[key]
        padding = -self.nbytes % ALIGN
        if padding:
            self.pieces.append(bytes(padding))
        entry["offset"] = self.nbytes + padding
        self.pieces.append(content)
        self.nbytes += padding + content.nbytes
        self.table.append(entry)
        self._known[key] = len(self.table) - 1
        return len(self.table) - 1

    @staticmethod
    def decode(table: Any, weights: memoryview) -> list[np.ndarray]:
        """The arrays of a stored pool, as views of the weights."""
        arrays = []
        for index, data in enumerate(items(table, "constants")):
            what = f"constants[{index}]"
            fields = record(data, what, "dtype", "shape", "offset")
            desc = TensorDesc(shape(fields["shape"], what), dtype(fields["dtype"], what))
            offset = integer(fields["offset"], what)
            if offset % ALIGN or offset + desc.nbytes > weights.nbytes:
                raise malformed(what, "is outside the weights")
            raw = (
                np.frombuffer(weights, np.uint8, desc.nbytes, offset)
                if desc.nbytes
                else np.empty(0, np.uint8)
            )
            arrays.append(raw.view(numpy_dtype(desc.dtype)).reshape(desc.shape))
        return arrays


@dataclass
class KernelPool:
    """The generated kernels of all plans of a file, each stored once: expression and machine code."""

    table: list[dict[str, Any]] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    _known: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, image: KernelImage) -> int:
        """The index of a kernel in the pool."""
        key = (image.symbol, image.expression)
        if key not in self._known:
            self._known[key] = len(self.table)
            self.table.append(
                {
                    "symbol": image.symbol,
                    "expression": image.expression,
                    "total": image.total,
                    "grain": image.grain,
                    "objects": {target: self._store(code) for target, code in sorted(stored(image).items())},
                }
            )
        return self._known[key]

    def _store(self, code: bytes) -> list[int]:
        self.pieces.append(code)
        self.nbytes += len(code)
        return [self.nbytes - len(code), len(code)]

    @staticmethod
    def decode(table: Any, objects: memoryview, trusted: bool) -> list[KernelImage]:
        """The kernels of a stored pool; with their machine code only if it is trusted."""
        images = []
        for index, data in enumerate(items(table, "kernels")):
            what = f"kernels[{index}]"
            fields = record(data, what, "symbol", "expression", "total", "grain", "objects")
            code = {
                text(target, what, 256): _code(place, objects, what)
                for target, place in record(fields["objects"], what).items()
            }
            images.append(
                KernelImage(
                    text(fields["symbol"], what, 1024),
                    text(fields["expression"], what, 1 << 26),
                    integer(fields["total"], what),
                    integer(fields["grain"], what),
                    select(code) if trusted else {},
                )
            )
        return images


def _code(place: Any, objects: memoryview, what: str) -> bytes:
    offset, size = (integer(v, what) for v in items(place, what, exactly=2))
    if offset + size > objects.nbytes:
        raise malformed(what, "is outside the machine code")
    return bytes(objects[offset : offset + size])


# -- plans ------------------------------------------------------------------------------------------


def encode_plan(plan: Plan, constants: ConstantPool, kernels: KernelPool) -> dict[str, Any]:
    """A plan as plain data; its constants and kernels go into the pools."""
    return {
        "name": plan.name,
        "inputs": [encode_port(p) for p in plan.inputs],
        "outputs": [encode_port(p) for p in plan.outputs],
        "buffers": [[b.kind, b.nbytes, b.offset, b.index] for b in plan.buffers],
        "blocks": plan.blocks,
        "constants": [constants.add(a) for a in plan.constants],
        "kernels": [kernels.add(k) for k in plan.kernels],
        "tasks": [_encode_task(t) for t in plan.tasks],
        "arena_bytes": plan.arena_bytes,
        "donated": plan.donated,
        "left": plan.left,
        "steps": plan.steps,
        "report": plan.report,
    }


def _encode_task(task: Task) -> dict[str, Any]:
    return {
        "kind": task.kind,
        "name": task.name,
        "inputs": [v.as_tuple() for v in task.inputs],
        "outputs": [v.as_tuple() for v in task.outputs],
        "attrs": {name: value for name, value in task.attrs.items() if value is not None},
        "engine": task.engine,
        "origin": task.origin,
        "block": task.block,
        "flops": task.flops,
    }


def decode_plan(
    data: Any, constants: Sequence[np.ndarray], kernels: Sequence[KernelImage], what: str
) -> Plan:
    """A plan from plain data, with all references checked."""
    keys = (
        "name",
        "inputs",
        "outputs",
        "buffers",
        "blocks",
        "constants",
        "kernels",
        "tasks",
        "arena_bytes",
        "donated",
        "left",
        "steps",
        "report",
    )
    fields = record(data, what, *keys)
    arena = integer(fields["arena_bytes"], f"{what}.arena_bytes")
    plan = Plan(
        name=text(fields["name"], f"{what}.name", 4096),
        inputs=[decode_port(p, f"{what}.inputs[{i}]") for i, p in enumerate(items(fields["inputs"], what))],
        outputs=[
            decode_port(p, f"{what}.outputs[{i}]") for i, p in enumerate(items(fields["outputs"], what))
        ],
        blocks=integer(fields["blocks"], f"{what}.blocks", 1, MAX_COUNT),
        constants=[_pick(constants, i, f"{what}.constants") for i in items(fields["constants"], what)],
        kernels=[_pick(kernels, i, f"{what}.kernels") for i in items(fields["kernels"], what)],
        arena_bytes=arena,
        donated=_decode_donated(fields["donated"], f"{what}.donated"),
        left=tuple(integer(p, f"{what}.left", 0, arena) for p in items(fields["left"], what)),
        steps=integer(fields["steps"], f"{what}.steps", 1, MAX_COUNT),
        report=record(fields["report"], f"{what}.report"),
    )
    sizes = {
        "constant": [a.nbytes for a in plan.constants],
        "input": [p.desc.nbytes for p in plan.inputs],
        "output": [p.desc.nbytes for p in plan.outputs],
    }
    plan.buffers = [
        _decode_buffer(b, plan.arena_bytes, sizes, f"{what}.buffers[{i}]")
        for i, b in enumerate(items(fields["buffers"], what))
    ]
    _check_ports(plan, what)
    _check_donated(plan, what)
    plan.tasks = [
        _decode_task(t, plan, f"{what}.tasks[{i}]") for i, t in enumerate(items(fields["tasks"], what))
    ]
    _check_blocks(plan, what)
    return plan


def _pick(pool: Sequence[Any], index: Any, what: str) -> Any:
    return pool[integer(index, what, 0, len(pool) - 1)]


def _decode_buffer(data: Any, arena_bytes: int, sizes: Mapping[str, Sequence[int]], what: str) -> Buffer:
    kind, nbytes, offset, index = items(data, what, exactly=4)
    if kind not in BUFFERS:
        raise malformed(what, f"is of kind {_short(kind)}")
    buffer = Buffer(kind, integer(nbytes, what), integer(offset, what), integer(index, what, 0, MAX_COUNT))
    if kind == "arena":
        if buffer.offset + buffer.nbytes > arena_bytes:
            raise malformed(what, "is outside the arena")
    elif buffer.index >= len(sizes[kind]) or buffer.nbytes > sizes[kind][buffer.index]:
        raise malformed(what, f"does not match the model's {kind}s")
    return buffer


def _check_ports(plan: Plan, what: str) -> None:
    """Check that each input and output has one buffer, all of it or its part of one step, and that steps advance."""
    advancing = plan.steps == 1
    for kind, ports in (("input", plan.inputs), ("output", plan.outputs)):
        sizes = [b for b in plan.buffers if b.kind == kind]
        if sorted(b.index for b in sizes) != list(range(len(ports))):
            raise malformed(what, f"must have one buffer for each {kind}")
        for buffer in sizes:
            whole = ports[buffer.index].desc.nbytes
            if whole not in (buffer.nbytes, buffer.nbytes * plan.steps):
                raise malformed(what, f"does not cover {kind} {buffer.index} in its steps")
            advancing |= 0 < buffer.nbytes < whole
    if not advancing:
        raise malformed(what, f"repeats {plan.steps} steps over the same data")


def _decode_donated(data: Any, what: str) -> tuple[tuple[int, int], ...]:
    pairs = [items(pair, what, exactly=2) for pair in items(data, what)]
    return tuple((integer(o, what, 0, MAX_COUNT), integer(i, what, 0, MAX_COUNT)) for o, i in pairs)


def _check_donated(plan: Plan, what: str) -> None:
    """Check that each output takes the memory of at most one input of its own size, which no other output takes."""
    for side in (0, 1):
        named = [pair[side] for pair in plan.donated]
        if len(set(named)) != len(named):
            raise malformed(what, "donates something twice")
    for output, source in plan.donated:
        if output >= len(plan.outputs) or source >= len(plan.inputs):
            raise malformed(what, "donates what it does not have")
        if plan.outputs[output].desc != plan.inputs[source].desc:
            raise malformed(what, f"donates input {source} to an output of another size")
    if plan.donated and plan.steps > 1:
        raise malformed(what, "repeats steps over donated inputs")


def _decode_task(data: Any, plan: Plan, what: str) -> Task:
    keys = ("kind", "name", "inputs", "outputs", "attrs", "engine", "origin", "block", "flops")
    fields = record(data, what, *keys)
    kind = text(fields["kind"], what, 64)
    read = _view_reader(plan, kind in STRIDED)
    task = Task(
        kind=kind,
        name=text(fields["name"], what),
        inputs=[read(v, f"{what}.inputs[{i}]", BUFFERS) for i, v in enumerate(items(fields["inputs"], what))],
        outputs=[
            read(v, f"{what}.outputs[{i}]", ("arena", "output"))
            for i, v in enumerate(items(fields["outputs"], what))
        ],
        attrs={
            text(k, what, 256): _attribute(v, f"{what}.{k}") for k, v in record(fields["attrs"], what).items()
        },
        engine=text(fields["engine"], what, 256),
        origin=tuple(text(o, what) for o in items(fields["origin"], what)),
        block=integer(fields["block"], f"{what}.block", 0, plan.blocks - 1),
        flops=integer(fields["flops"], f"{what}.flops", 0, 1 << 62),
    )
    if kind == "kernel":
        integer(task.attrs.get("kernel"), f"{what}.kernel", 0, len(plan.kernels) - 1)
    return task


def _view_reader(plan: Plan, strided: bool) -> Callable[[Any, str, Sequence[str]], View]:
    def read(data: Any, what: str, kinds: Sequence[str]) -> View:
        buffer, element, dims, strides, offset = items(data, what, exactly=5)
        dims = shape(dims, what)
        view = View(
            integer(buffer, what, 0, len(plan.buffers) - 1),
            dtype(element, what),
            dims,
            tuple(integer(s, what) for s in items(strides, what, exactly=len(dims))),
            integer(offset, what),
        )
        target = plan.buffers[view.buffer]
        if target.kind not in kinds:
            raise malformed(what, f"may not use an {target.kind} buffer")
        if _last(view, strided) * numpy_dtype(view.dtype).itemsize > target.nbytes:
            raise malformed(what, f"reaches beyond its buffer of {target.nbytes} bytes")
        return view

    return read


def _last(view: View, strided: bool) -> int:
    """One past the last element that a task may access through a view."""
    size = math.prod(view.shape)
    if not size:
        return 0
    reach = sum((d - 1) * s for d, s in zip(view.shape, view.strides, strict=True)) + 1
    return view.offset + (reach if strided else max(reach, size))


def _attribute(value: Any, what: str) -> Any:
    """A number, a string, or a list of them."""
    if isinstance(value, list):
        return [_scalar(v, what) for v in items(value, what)]
    return _scalar(value, what)


def _scalar(value: Any, what: str) -> bool | int | float | str:
    if isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return integer(value, what, -(1 << 63), (1 << 63) - 1)
    return text(value, what)


def _check_blocks(plan: Plan, what: str) -> None:
    """Check that nested task lists form a tree: each has one entry, none is inside itself."""
    if plan.blocks > 1 + 2 * len(plan.tasks):
        raise malformed(f"{what}.blocks", "are more than the tasks can enter")
    parent: dict[int, int] = {}
    for task in plan.tasks:
        for name in BLOCK_ATTRIBUTES:
            block = task.attrs.get(name, NO_BLOCK)
            if block == NO_BLOCK:
                continue
            integer(block, f"{what}.{task.name}.{name}", 1, plan.blocks - 1)
            if block in parent:
                raise malformed(f"{what}.{task.name}.{name}", "is entered from two places")
            parent[block] = task.block
    for block in parent:
        depth = 0
        while block in parent:
            block, depth = parent[block], depth + 1
            if depth > MAX_NESTING:
                raise malformed(f"{what}.blocks", "nest too deeply or in a circle")
