"""A model of one operator, from its type, tensor descriptions and attributes (atc --singleop, acl.op)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ge.errors import GeError
from ge.ir.types import TENSORS, TensorDesc, numpy_dtype
from ge.ir.values import desc_of
from ge.ops.base import Operator, registered
from ge.ops.builder import GraphBuilder
from ge.ops.plugins import Node, Unsupported
from ge.ops.plugins import find as find_plugin
from ge.options.files import read_json

__all__ = ["OpTensor", "SingleOp", "read_descriptions"]

ONNX_VERSION = 21


@dataclass(frozen=True)
class OpTensor:
    """An input or output of a single operator; an input with a value is a constant."""

    desc: TensorDesc
    format: str = "ND"
    value: bytes | None = None

    def array(self) -> np.ndarray | None:
        """The value of a constant."""
        if self.value is None:
            return None
        return np.frombuffer(self.value, numpy_dtype(self.desc.dtype)).reshape(self.desc.shape)


@dataclass(frozen=True)
class SingleOp:
    """One operator with its inputs and outputs.

    >>> x = OpTensor(TensorDesc((2, 3), "float32"))
    >>> op = SingleOp("Add", (x, x), (x,))
    >>> [node.op_type for node in op.graph()]
    ['Add']
    """

    type: str
    inputs: tuple[OpTensor, ...]
    outputs: tuple[OpTensor, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for operators that may share a model."""
        attrs = tuple(sorted((k, repr(v)) for k, v in self.attrs.items()))
        inputs = tuple((str(t.desc), t.value) for t in self.inputs)
        text = repr((self.type, inputs, tuple(str(t.desc) for t in self.outputs), attrs))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def file_name(self) -> str:
        """A file name derived from the operator and its tensors."""
        parts = [
            f"{t.desc.dtype}_{t.format}_{'_'.join(map(str, t.desc.shape))}"
            for t in (*self.inputs, *self.outputs)
        ]
        name = "__".join([self.type, *parts])
        return name if len(name) < 180 else f"{name[:160]}_{self.key[:12]}"

    def graph(self) -> ir.Graph:
        """The operator as a graph."""
        builder = GraphBuilder(self.type)
        values: list[ir.Value] = []
        for index, tensor in enumerate(self.inputs):
            array = tensor.array()
            if array is None:
                values.append(builder.input(f"x{index}", tensor.desc.shape, tensor.desc.dtype))
            else:
                values.append(builder.constant(array))
        results = self._emit(builder, values)
        if len(results) < len(self.outputs):
            raise GeError(
                "E10002",
                f"gives {len(results)} outputs, {len(self.outputs)} are described",
                operator=self.type,
            )
        for index, (value, tensor) in enumerate(zip(results, self.outputs, strict=False)):
            builder.output(self._fit(builder, value, tensor.desc), f"y{index}")
        return builder.graph

    def _fit(self, builder: GraphBuilder, value: ir.Value, wanted: TensorDesc) -> ir.Value:
        """The result in the described form: casts the element type, rejects another shape."""
        desc = desc_of(value)
        if desc.size != wanted.size:
            raise GeError("E10002", f"its output is {desc}, described as {wanted}", operator=self.type)
        if desc.dtype != wanted.dtype:
            value = builder.op("Cast", value, to=wanted.dtype)
        return value if desc.shape == wanted.shape else builder.op("Reshape", value, shape=list(wanted.shape))

    def _emit(self, builder: GraphBuilder, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Emit the operator: one of the library, or by a framework's name."""
        type_ = _ALIASES.get(self.type, self.type)
        operators = registered()
        if type_ in operators and _takes(operators[type_], len(values)):
            names = _RENAMED.get(type_, {})
            attrs = {names.get(k, _COMMON.get(k, k)): v for k, v in self.attrs.items()}
            known = operators[type_].prototype.attrs
            return builder.checked_ops(
                type_, list(values), **{k: _value(k, v) for k, v in attrs.items() if k in known or v}
            )
        for framework, version in (("tensorflow", 0), ("onnx", ONNX_VERSION)):
            plugin = find_plugin(framework, type_, version)
            if plugin is not None:
                node = Node(type_, type_, list(values), dict(self.attrs), len(self.outputs), builder, version)
                return _listed(self, plugin.apply, node)
        raise GeError(
            "E10001", f"operator type '{self.type}' is not in the operator library", operator=self.type
        )


def _takes(operator: type[Operator], count: int) -> bool:
    """True if an operator accepts this many inputs; with more, it is a framework's operator."""
    ports = list(operator.prototype.inputs.values())
    return count <= len(ports) or (bool(ports) and ports[-1].variadic)


def _listed(op: SingleOp, function: Any, node: Node) -> Sequence[ir.Value]:
    try:
        result = function(node)
    except Unsupported as error:
        raise GeError("E10002", error.reason, operator=op.type, remedy=error.remedy) from error
    return [result] if isinstance(result, ir.Value) else [v for v in result if v is not None]


def _value(name: str, value: Any) -> Any:
    """An attribute's value; element types may be acl codes."""
    return _DTYPE_CODES.get(value, value) if name == "to" and isinstance(value, int) else value


# Other names of the same operators.
_ALIASES = {
    "MatMulV2": "MatMul",
    "BatchMatMul": "MatMul",
    "BatchMatMulV2": "MatMul",
    "SoftmaxV2": "Softmax",
    "RealDiv": "Div",
    "TransposeD": "Transpose",
    "ConcatD": "Concat",
    "ReduceSumD": "ReduceSum",
    "ReduceMeanD": "ReduceMean",
    "ReduceMaxD": "ReduceMax",
    "ReduceMinD": "ReduceMin",
    "TileD": "Tile",
    "ArgMaxV2": "ArgMax",
    "ArgMinV2": "ArgMin",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "LogicalNot": "Not",
}
_RENAMED = {
    "MatMul": {
        "transpose_x1": "transpose_a",
        "transpose_x2": "transpose_b",
        "adj_x1": "transpose_a",
        "adj_x2": "transpose_b",
    },
    "Cast": {"dst_type": "to"},
    "Concat": {"concat_dim": "axis"},
    "Tile": {"multiples": "repeats"},
}
_COMMON = {"keep_dims": "keepdims"}
_DTYPE_CODES = {
    0: "float32",
    1: "float16",
    2: "int8",
    3: "int32",
    4: "uint8",
    6: "int16",
    7: "uint16",
    8: "uint32",
    9: "int64",
    10: "uint64",
    11: "float64",
    12: "bool",
    27: "bfloat16",
}
_DTYPE_NAMES = {
    "float": "float32",
    "fp16": "float16",
    "fp32": "float32",
    "double": "float64",
    "bf16": "bfloat16",
}


# -- description files ------------------------------------------------------------------------------


def read_descriptions(path: Path) -> list[SingleOp]:
    """The operators of a JSON file: a list of {op, input_desc, output_desc, attr}."""
    data = read_json(path, "operator description")
    entries = data if isinstance(data, list) else [data]
    if not entries:
        raise GeError("E12011", f"{path} describes no operator")
    return [_read_one(entry, f"{path}[{index}]") for index, entry in enumerate(entries)]


def _read_one(entry: Any, where: str) -> SingleOp:
    if not isinstance(entry, dict) or not isinstance(entry.get("op"), str):
        raise GeError("E12011", f"{where} must be an object with 'op'", remedy=_EXAMPLE)
    attrs = {str(_part(a, "name", where)): _part(a, "value", where) for a in _list(entry, "attr", where)}
    return SingleOp(
        entry["op"],
        tuple(_read_tensor(t, where) for t in _list(entry, "input_desc", where)),
        tuple(_read_tensor(t, where) for t in _list(entry, "output_desc", where)),
        attrs,
    )


def _list(entry: dict[str, Any], key: str, where: str) -> list[Any]:
    value = entry.get(key, [])
    if not isinstance(value, list):
        raise GeError("E12011", f"'{key}' of {where} must be a list", remedy=_EXAMPLE)
    return value


def _part(item: Any, key: str, where: str) -> Any:
    if not isinstance(item, dict) or key not in item:
        raise GeError("E12011", f"an entry of {where} has no '{key}'", remedy=_EXAMPLE)
    return item[key]


def _read_tensor(item: Any, where: str) -> OpTensor:
    name = str(_part(item, "type", where)).lower()
    dtype = _DTYPE_NAMES.get(name, name)
    shape = _part(item, "shape", where)
    if dtype not in TENSORS:
        raise GeError(
            "E12011", f"{where} has the element type '{name}'", remedy=f"use {', '.join(sorted(TENSORS))}"
        )
    if not isinstance(shape, list) or not all(isinstance(d, int) and d >= 0 for d in shape):
        raise GeError("E12011", f"{where} has the shape {shape}", remedy="shapes are lists of numbers")
    desc = TensorDesc(tuple(shape), dtype)
    value = item.get("const_value")
    data = None if value is None else np.asarray(value, numpy_dtype(dtype)).reshape(desc.shape).tobytes()
    return OpTensor(desc, str(item.get("format", "ND")), data)


_EXAMPLE = (
    'for example [{"op": "Add", "input_desc": [{"format": "ND", "shape": [8, 16], "type": "float32"}, …], '
    '"output_desc": [{"format": "ND", "shape": [8, 16], "type": "float32"}]}]'
)
