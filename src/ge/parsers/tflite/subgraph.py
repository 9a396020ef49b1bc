"""A subgraph of a TensorFlow Lite file as a body of TensorFlow nodes; quantised operators compute in float32 between
a dequantisation of what they read and a quantisation of what they give, which later passes make integer products of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ge.errors import GeError
from ge.ir.values import desc_of
from ge.ops.plugins import Unsupported
from ge.parsers.tensorflow.convert import Context, Outputs, handler
from ge.parsers.tensorflow.graph import ARGUMENT, Body, GraphNode, Ref
from ge.parsers.tflite.flatbuffer import Table
from ge.parsers.tflite.operators import NAMES, OPTIONS, RAW, convert

__all__ = ["Operation", "Reader", "Tensor"]

_NUMBERED = """
    float32 float16 int32 uint8 int64 string bool int16 complex64 int8 float64 complex128 uint64 resource
    variant uint32 uint16 int4 bfloat16
"""
_TYPES = tuple(_NUMBERED.split())
_STORED = {"int8", "uint8", "int16", "int4"}
_QUANTISE, _DEQUANTISE = "_LiteQuantize", "_LiteDequantize"  # nodes that only this parser makes
_REFUSED = "_LiteRefused"
MAX_DEPTH = 16


@dataclass(frozen=True)
class Tensor:
    """A tensor of a subgraph: what the file says of it, and its value where that is constant."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]  # the shape with -1 for open sizes
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int
    value: np.ndarray | None

    @property
    def quantised(self) -> bool:
        """Whether its integers stand for real numbers; those of 32 and 64 bits do in biases only."""
        stored = self.dtype in _STORED or (self.dtype in ("int32", "int64") and self.value is not None)
        return stored and self.scale.size > 0

    @property
    def float_type(self) -> str:
        """The type of what an operator sees of it."""
        return "float32" if self.quantised else self.dtype


@dataclass
class Operation:
    """One operator as its conversion sees it: tensors, options, and the way to emit TensorFlow nodes."""

    reader: Reader
    type: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    table: Table
    numbers: Sequence[int]
    name: str
    depth: int

    def has(self, index: int) -> bool:
        """Whether an optional input is there."""
        return index < len(self.numbers) and self.numbers[index] >= 0

    def ref(self, index: int) -> Ref:
        """An input, as real numbers where it is quantised."""
        if not self.has(index):
            raise GeError("E10101", f"its input {index} is missing", node=self.name, operator=self.type)
        return self.reader.value(int(self.numbers[index]), real=self.type not in RAW)

    def refs(self) -> list[Ref]:
        """All inputs that are there."""
        return [self.ref(i) for i in range(len(self.numbers)) if self.has(i)]

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of an input."""
        return self.reader.tensors[int(self.numbers[index])].shape

    def option(self, name: str) -> Any:
        """A field of the operator's options; element types as their names, vectors as lists."""
        value = getattr(self.table.options(OPTIONS[self.type]), name)
        if name == "type":
            return _TYPES[value]
        return value.tolist() if isinstance(value, np.ndarray) else value

    def emit(self, kind: str, *inputs: Ref | np.ndarray | np.generic, **attrs: Any) -> Ref:
        """Add a node; arrays become constants."""
        refs = [i if isinstance(i, tuple) else self.reader.constant(np.asarray(i)) for i in inputs]
        return self.reader.add(f"{self.name}/{kind}", kind, refs, attrs)

    def body(self, index: int) -> Body:
        """A subgraph of the model, for branches and loops."""
        if self.depth >= MAX_DEPTH:
            raise GeError("E10106", f"subgraphs are nested more than {MAX_DEPTH} deep", node=self.name)
        return Reader(self.reader.model, index, self.reader.where, self.depth + 1).body()

    def refused(self, reason: str, remedy: str = "") -> Unsupported:
        """The reason why this operator cannot be converted."""
        return Unsupported(reason, remedy)


class Reader:
    """Reads one subgraph."""

    def __init__(self, model: Table, index: int, where: str, depth: int = 0) -> None:
        if index >= len(model.subgraphs):
            raise GeError("E10101", f"the file has no subgraph {index}", location=where)
        self.model, self.where, self.depth = model, where, depth
        self.table = model.subgraphs[index]
        self.name = self.table.name or f"subgraph_{index}"
        self.nodes: dict[str, GraphNode] = {}
        self.values: dict[int, Ref] = {}
        self._real: dict[int, Ref] = {}
        self._constants: dict[tuple[str, bytes], Ref] = {}
        made = [self.table.inputs, *(operator.outputs for operator in self.table.operators)]
        self._computed = {int(i) for numbers in made for i in numbers}
        taken: set[str] = set()
        self.tensors = [self._tensor(t, i, taken) for i, t in enumerate(self.table.tensors)]

    def body(self) -> Body:
        """The subgraph with its inputs as arguments."""
        args = [self._argument(int(i)) for i in self.table.inputs]
        self.read()
        return Body(self.name, self.nodes, args, [self.value(int(i)) for i in self.table.outputs])

    def read(self) -> None:
        """Convert all operators; the inputs have their values."""
        for place, operator in enumerate(self.table.operators):
            self._operator(operator, place)

    def add(self, name: str, kind: str, inputs: list[Ref], attrs: dict[str, Any]) -> Ref:
        """A new node with a name of its own."""
        unique, count = name, 1
        while unique in self.nodes:
            unique, count = f"{name}_{count}", count + 1
        self.nodes[unique] = GraphNode(unique, kind, inputs, [], attrs)
        return unique, 0

    def constant(self, value: np.ndarray) -> Ref:
        """A node for a small constant; equal ones share it."""
        key = (f"{value.dtype}{value.shape}", value.tobytes())
        if key not in self._constants:
            self._constants[key] = self.add("const", "Const", [], {"value": value, "dtype": value.dtype.name})
        return self._constants[key]

    def value(self, index: int, *, real: bool = False) -> Ref:
        """A tensor as it is stored, or as the real numbers it stands for."""
        tensor = self.tensor(index)
        if index not in self.values:
            if tensor.value is None:
                raise GeError(
                    "E10101", "it is read before it is computed", node=tensor.name, location=self.where
                )
            self.values[index] = self.add(
                tensor.name, "Const", [], {"value": tensor.value, "dtype": tensor.dtype}
            )
        if not real or not tensor.quantised:
            return self.values[index]
        if index not in self._real:
            self._real[index] = self.add(
                f"{tensor.name}/dequantized", _DEQUANTISE, [self.values[index]], _scales(tensor)
            )
        return self._real[index]

    def tensor(self, index: int) -> Tensor:
        """A tensor by its number."""
        if not 0 <= index < len(self.tensors):
            raise GeError("E10101", f"the subgraph '{self.name}' has no tensor {index}", location=self.where)
        return self.tensors[index]

    def _argument(self, index: int) -> Ref:
        tensor = self.tensor(index)
        self.values[index] = self.add(tensor.name, ARGUMENT, [], {"count": 1})
        return self.values[index]

    def _operator(self, table: Table, place: int) -> None:
        codes = self.model.operator_codes
        if table.opcode >= len(codes):
            raise GeError("E10101", f"operator {place} is of no known kind", location=self.where)
        numbers = [int(i) for i in table.inputs]
        outputs = [self.tensor(int(i)) for i in table.outputs]
        inputs = [self.tensor(i) for i in numbers if i >= 0]
        name = outputs[0].name if outputs else f"operator_{place}"
        op = Operation(self, _type_of(codes[table.opcode]), inputs, outputs, table, numbers, name, self.depth)
        try:
            made = convert(op)
        except Unsupported as error:
            refusal = {"type": op.type, "reason": error.reason, "remedy": error.remedy}
            made = [self.add(f"{name}/{op.type}", _REFUSED, [], refusal)] * len(outputs)
        for index, tensor, ref in zip(table.outputs, outputs, made, strict=False):
            stored = tensor.quantised and op.type not in RAW
            kind, attrs = (
                (_QUANTISE, {**_scales(tensor), "dtype": tensor.dtype}) if stored else ("Identity", {})
            )
            self.values[int(index)] = self.add(tensor.name, kind, [ref], attrs)

    # -- tensors ---------------------------------------------------------------------------------------------

    def _tensor(self, table: Table, index: int, taken: set[str]) -> Tensor:
        name = table.name.partition(";")[0].removesuffix(":0").replace(":", "_") or f"tensor_{index}"
        while name in taken:
            name = f"{name}_{index}"
        taken.add(name)
        if not 0 <= table.type < len(_TYPES):
            raise GeError(
                "E10101", f"its element type {table.type} is not known", node=name, location=self.where
            )
        shape = tuple(int(d) for d in table.shape)
        signature = tuple(int(d) for d in table.shape_signature) if len(table.shape_signature) else shape
        quantization = table.quantization
        scale, zero, axis = (
            (
                np.array(quantization.scale, np.float32),
                np.array(quantization.zero_point, np.int64),
                quantization.axis,
            )
            if quantization is not None and len(quantization.scale)
            else (np.zeros(0, np.float32), np.zeros(0, np.int64), 0)
        )
        dtype = _TYPES[table.type]
        value = self._value(table, index, name, dtype, shape)
        return Tensor(
            name, "int8" if dtype == "int4" else dtype, shape, signature, scale, zero, int(axis), value
        )

    def _is_empty_constant(self, table: Table, index: int) -> bool:
        """A constant without elements has no buffer of its own; what distinguishes it is that nothing computes it."""
        return 0 in table.shape and table.type != _TYPES.index("string") and index not in self._computed

    def _value(
        self, table: Table, index: int, name: str, dtype: str, shape: tuple[int, ...]
    ) -> np.ndarray | None:
        buffers = self.model.buffers
        if table.buffer >= len(buffers):
            raise GeError("E10101", f"the file has no buffer {table.buffer}", node=name, location=self.where)
        data = self._bytes(buffers[table.buffer])
        if table.is_variable or (not data.size and not self._is_empty_constant(table, index)):
            return None
        if table.sparsity is not None:
            raise GeError(
                "E10101",
                "its elements are stored as a sparse tensor",
                node=name,
                remedy="convert without sparsity",
            )
        if dtype == "string":
            return np.frombuffer(data, np.uint8)
        count = int(np.prod(shape, dtype=np.int64))
        if dtype == "int4":
            low, high = (data << 4).astype(np.int8) >> 4, data.astype(np.int8) >> 4
            found = np.stack([low, high], -1).reshape(-1)[:count]
        else:
            kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
            if data.size != count * np.dtype(kind).itemsize:
                cause = f"it has {data.size} bytes for {list(shape)} elements of {dtype}"
                raise GeError("E10101", cause, node=name, location=self.where)
            found = np.frombuffer(data.tobytes(), kind)
        return found.reshape(shape)

    def _bytes(self, buffer: Table) -> np.ndarray:
        """A buffer's content; large files have it after the flatbuffer."""
        if buffer.offset > 1:
            return buffer.outside(buffer.offset, buffer.size)
        return np.asarray(buffer.data, np.uint8)


def _type_of(code: Table) -> str:
    """The name of an operator; a custom one has its own."""
    number = max(int(code.old_code), int(code.builtin_code))
    if number < len(NAMES) and NAMES[number] != "CUSTOM":
        return NAMES[number]
    return code.custom_code or f"BUILTIN_{number}"


def _scales(tensor: Tensor) -> dict[str, Any]:
    zero = tensor.zero_point if tensor.zero_point.size else np.zeros_like(tensor.scale, np.int64)
    one = tensor.scale.size == 1
    return {
        "scale": tensor.scale,
        "zero": np.broadcast_to(zero, tensor.scale.shape),
        "axis": 0 if one else tensor.axis,
    }


def _parameters(c: Context, dtype: str) -> list[Any]:
    scale, zero = c.attr("scale"), c.attr("zero")
    shape = () if scale.size == 1 else (-1,)
    zeros = None if not zero.any() else c.builder.constant(zero.reshape(shape).astype(dtype))
    return [c.builder.constant(scale.reshape(shape)), zeros]


@handler(_QUANTISE)
def _quantise(c: Context) -> Outputs:
    dtype = c.attr("dtype")
    parameters = _parameters(c, dtype)
    return c.builder.ops("Quantize", [c.tensor(0), *parameters], dtype=dtype, axis=c.attr("axis"))


@handler(_DEQUANTISE)
def _dequantise(c: Context) -> Outputs:
    x = c.tensor(0)
    return c.builder.ops("Dequantize", [x, *_parameters(c, desc_of(x).dtype)], axis=c.attr("axis"))


@handler(_REFUSED)
def _refused(c: Context) -> Outputs:
    raise Unsupported(f"{c.attr('type')}: {c.attr('reason')}", c.attr("remedy", ""))
