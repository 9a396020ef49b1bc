"""MINDIR models made by hand: the messages that `mindspore.export` writes, without MindSpore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ge.parsers.mindir.protos import ATTRIBUTE_KINDS, DTYPE_NAMES, MESSAGES

__all__ = ["MindirGraph", "MindirModel", "Name"]

_KINDS = {name: number for number, name in ATTRIBUTE_KINDS.items()}
_TYPES = {name: number for number, name in reversed(DTYPE_NAMES.items())}


class Name(str):
    """A value of a graph, as opposed to text."""


def _tensor(message: Any, shape: Sequence[int], dtype: str, data: np.ndarray | None = None) -> Any:
    message.dims.extend(shape)
    message.data_type = _TYPES[dtype]
    if data is not None:
        message.raw_data = np.ascontiguousarray(data).tobytes()
    return message


def _attribute(message: Any, value: Any) -> None:
    if isinstance(value, (tuple, list)):
        message.type = _KINDS["tuple"]
        for part in value:
            _attribute(message.values.add(), part)
    elif value is None:
        message.type = _KINDS["none"]
    elif isinstance(value, bool):
        message.type, message.i = _KINDS["bool"], int(value)
    elif isinstance(value, int):
        message.type, message.i = _KINDS["int64"], value
    elif isinstance(value, float):
        message.type, message.f = _KINDS["float"], value
    elif isinstance(value, np.ndarray):
        message.type = _KINDS["tensors"]
        _tensor(message.tensors.add(), value.shape, value.dtype.name, value)
    elif value == "umonad":
        message.type = _KINDS["umonad"]
    else:
        message.type, message.s = _KINDS["string"], str(value).encode()


def _form(message: Any, form: Any) -> None:
    """A tensor is (shape, dtype); a list of them is a tuple; None is a monad."""
    if form is None:
        message.type = _KINDS["umonad"]
    elif isinstance(form, list):
        message.type = _KINDS["tuple"]
        for part in form:
            _form(message.values.add(), part)
    else:
        message.type = _KINDS["tensors"]
        _tensor(message.tensors.add(), *form)


class MindirGraph:
    """A function; calls of `op` return names."""

    def __init__(self, model: MindirModel, message: Any, name: str) -> None:
        self.model = model
        self.message = message
        message.name = name

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> Name:
        port = self.message.input.add(name=f"{self.message.name}:{name}")
        _tensor(port.tensor.add(), shape, dtype)
        return Name(port.name)

    def parameter(self, name: str, data: np.ndarray, stored: bool = True) -> Name:
        made = self.message.parameter.add(name=f"{self.message.name}:{name}")
        _tensor(made, data.shape, data.dtype.name, data if stored else None)
        return Name(made.name)

    def constant(self, value: Any) -> Name:
        node = self.message.node.add(op_type="Constant", name=self.model.fresh("value"))
        node.output.append(node.name)
        attribute = node.attribute.add(name="value")
        _attribute(attribute, value)
        return Name(node.name)

    def op(self, type_: str, *inputs: Any, form: Any = None, **attrs: Any) -> Name:
        """A primitive; inputs that are no names become constants."""
        reference = self.model.primitive(type_, attrs)
        return self._node(f"REF::{reference}", inputs, form, type_)

    def call(self, function: str, *inputs: Any, form: Any = None) -> Name:
        return self._node(f"REF::{function}", inputs, form, "call")

    def _node(self, op_type: str, inputs: Sequence[Any], form: Any, what: str) -> Name:
        names = [v if isinstance(v, Name) else self.constant(v) for v in inputs]
        node = self.message.node.add(op_type=op_type, name=self.model.fresh(f"{self.message.name}:{what}"))
        node.input.extend(names)
        node.output.append(node.name)
        node.domain = f"Default/{what}-op{len(self.message.node)}"
        attribute = node.attribute.add(name="shape")
        _form(attribute, form)
        return Name(node.name)

    def output(self, value: Name) -> None:
        self.message.output.add(name=value)


class MindirModel:
    """A model with its main graph."""

    def __init__(self, name: str = "1_net_1") -> None:
        self.message: Any = MESSAGES["ModelProto"]()
        self.message.ir_version, self.message.producer_name = "1.1", "MindSpore"
        self.message.little_endian = True
        self.count = 0
        self.main = MindirGraph(self, self.message.graph, name)

    def function(self, name: str) -> MindirGraph:
        return MindirGraph(self, self.message.functions.add(), name)

    def fresh(self, name: str) -> str:
        self.count += 1
        return f"{name}:{self.count}"

    def primitive(self, type_: str, attrs: dict[str, Any]) -> str:
        made = self.message.primitives.add(name=self.fresh(type_), op_type=type_)
        for key, value in attrs.items():
            item = made.attribute.add(name=key)
            _attribute(item, value)
        return str(made.name)

    def bytes(self) -> bytes:
        return bytes(self.message.SerializeToString())
