"""Installed operator packages: their descriptions become operators and plugins."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ge.distributions import ascend
from ge.errors import GeError
from ge.ir.types import TENSORS, TensorDesc
from ge.ops.base import (
    REQUIRED,
    Attr,
    Input,
    NodeView,
    Operator,
    Output,
    Prototype,
    candidates,
    fail,
    lookup,
)
from ge.ops.custom.spec import AttrSpec, OperatorSpec, PackageSpec, PluginSpec, PortSpec
from ge.ops.plugins import Node, Plugin, Results, Unsupported, mapping, parse_name

__all__ = ["kernel_name", "load_library", "operators_of", "plugins_of"]

_TYPES: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}
# The C++ codes of element types (aicpu::DataType, ge::DataType).
_NUMBERS = {
    "float32": 0,
    "float16": 1,
    "int8": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 6,
    "uint16": 7,
    "uint32": 8,
    "int64": 9,
    "uint64": 10,
    "float64": 11,
    "bool": 12,
    "bfloat16": 27,
}
_SHARED = "impl"  # the package that contains operator files
_DTYPES = {number: name for name, number in _NUMBERS.items()}


def kernel_name(package: str, kernel: str) -> str:
    """The runtime's name of a package's kernel."""
    return f"opp:{package}/{kernel}"


def load_library(package: PackageSpec, directory: Path) -> list[str]:
    """Register the kernels of a package with the runtime; returns their names."""
    if not package.library:
        return []
    import npu_runtime

    try:
        return npu_runtime.load_kernels(str(directory / package.library), package.name)
    except ValueError as error:
        raise GeError(
            "E10610",
            f"package {package.name}: {error}",
            location=str(directory),
            remedy="build the operator project again on this machine",
        ) from error


def operators_of(package: PackageSpec, directory: Path) -> list[type[Operator]]:
    """The operators of a package, not yet registered."""
    return [_operator(package, directory, spec) for spec in package.operators]


def plugins_of(package: PackageSpec, directory: Path) -> list[Plugin]:
    """The plugins of a package, not yet registered."""
    attrs = {spec.type: [a.name for a in spec.attrs] for spec in package.operators}
    found = []
    for item in package.plugins:
        for name in item.names:
            function: Any = mapping(item.type, attrs.get(item.type, ()))
            if item.parse:
                function = ParsedMapping(item, name, str(directory / package.library))
            found.append(Plugin(item.framework, *parse_name(item.framework, name), function, custom=True))
    return found


def _operator(package: PackageSpec, directory: Path, spec: OperatorSpec) -> type[Operator]:
    members: dict[str, Any] = {
        "__module__": f"opp.{package.name}",
        "__doc__": f"{spec.type} of package {package.name}.",
        "type": spec.type,
        "source": f"package {package.name} ({directory})",
        "digest": package.digest,
        "dynamic_outputs": spec.dynamic,
    }
    code = None
    if spec.tbe is not None and not spec.tbe.refused:
        code = _TbeCode(spec, directory / spec.tbe.file)
        members.update(
            compute=staticmethod(code.compute),
            program=staticmethod(code.program),
            combinations=spec.tbe.columns,
            file=str(directory / spec.tbe.file),
        )
        if spec.tbe.asks:
            members["unsuitable"] = staticmethod(code.unsuitable)
    if spec.aicpu:
        members["aicpu"] = kernel_name(package.name, spec.aicpu)
        if shared := _shared(spec):
            members["kernel_attrs"] = staticmethod(
                lambda op: {**Operator.kernel_attrs(op), "_shared": shared}
            )
    members.update(_inference(package, directory, spec, code))
    operator: type[Operator] = type(spec.type, (Operator,), members)
    # Separate from the class, in which a port may have the same name.
    operator.prototype = Prototype(
        {p.name: _input(p) for p in spec.inputs},
        {p.name: Output(variadic=p.kind == "dynamic") for p in spec.outputs},
        {a.name: _attr(a) for a in spec.attrs},
    )
    return operator


def _shared(spec: OperatorSpec) -> list[int]:
    """For each output the position of the input of the same name, whose memory it shares, or -1; [] if none does."""
    ports = [*spec.inputs, *spec.outputs]
    inputs = [p.name for p in spec.inputs]
    if any(p.kind == "dynamic" for p in ports) or not {p.name for p in spec.outputs} & set(inputs):
        return []
    return [inputs.index(p.name) if p.name in inputs else -1 for p in spec.outputs]


def _input(port: PortSpec) -> Input:
    dtypes = frozenset(port.dtypes) or TENSORS
    return Input("", dtypes, optional=port.kind == "optional", variadic=port.kind == "dynamic")


def _attr(spec: AttrSpec) -> Attr:
    default = REQUIRED if spec.required else spec.default
    if spec.type.startswith("list_"):
        return Attr(list, tuple(default) if default is not REQUIRED else default, item=_TYPES[spec.type[5:]])
    return Attr(_TYPES[spec.type], default)


# -- parse functions ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParsedMapping:
    """A plugin whose attributes come from a C++ parse function; the inputs are the node's."""

    plugin: PluginSpec
    name: str  # of the framework's operator, as it is registered
    library: str

    def __call__(self, n: Node) -> Results:
        kept: list[Any] = []
        given = {**n.attrs, "attribute": _as_json(n.attrs)} if self.plugin.framework == "onnx" else n.attrs
        attrs = [_plain_attr(k, v, kept) for k, v in given.items() if _is_plain(v)]
        found: dict[str, Any] = {}
        message = ctypes.create_string_buffer(1024)
        call = _ParseCall(
            self.plugin.framework.encode(),
            self.name.encode(),
            n.name.encode(),
            len(n.inputs),
            n.outputs,
            len(attrs),
            (_Attr * max(1, len(attrs)))(*attrs),
            None,
            _SET_ATTR(lambda _, attr: found.update([_attribute(attr.contents)])),
            ctypes.cast(message, ctypes.c_char_p),
            1023,
        )
        parse = ctypes.CDLL(self.library).npu_opp_parse
        parse.restype = ctypes.c_uint32
        if parse(ctypes.byref(call)):
            said = message.value.decode(errors="replace") or f"{self.plugin.parse} refuses the node"
            raise Unsupported(f"its parse function in C++: {said}")
        return n.builder.ops(self.plugin.type, n.operands(given), **self._known(found))

    def _known(self, found: dict[str, Any]) -> dict[str, Any]:
        """The attributes that the function sets and the operator declares, in the operator's types."""
        known = candidates(self.plugin.type)[0].prototype.attrs
        return {name: _fitted(value, known[name]) for name, value in found.items() if name in known}


def _is_plain(value: Any) -> bool:
    many = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(v, bool | int | float | str) for v in many)


def _as_json(attrs: Mapping[str, Any]) -> str:
    """The attributes of an ONNX node as JSON text, which some functions parse."""
    kinds = ((bool, "i", 2), (int, "i", 2), (float, "f", 1), (str, "s", 3))
    found = []
    for name, value in attrs.items():
        if not _is_plain(value):
            continue
        many = isinstance(value, list | tuple)
        sample = (value[0] if value else 0) if many else value
        key, number = next((k, n) for t, k, n in kinds if isinstance(sample, t))
        plural = {"i": "ints", "f": "floats", "s": "strings"}[key]
        found.append({"name": name, "type": number + 5 * many, plural if many else key: value})
    return json.dumps({"attribute": found})


def _attribute(attr: _Attr) -> tuple[str, Any]:
    """Name and value of an attribute in the form of npu_opp_abi.h."""
    kinds: tuple[Any, ...] = (ctypes.c_int64, ctypes.c_int64, ctypes.c_double, ctypes.c_char_p)
    scalar = attr.kind if attr.kind < 4 else attr.kind - 3
    values = ctypes.cast(attr.values, ctypes.POINTER(kinds[scalar]))[: attr.count]
    plain = [v.decode() if isinstance(v, bytes) else v for v in values]
    return attr.name.decode(), plain if attr.kind >= 4 else plain[0]


def _fitted(value: Any, attr: Attr) -> Any:
    if isinstance(value, list):
        return [attr.item(v) for v in value] if attr.item is not None else value
    return [value] if attr.type is list else attr.type(value)


# -- TBE operator files -------------------------------------------------------------------------------------


class _TbeCode:
    """An operator file's function; called in the process that traces custom operators, never in the user's process."""

    def __init__(self, spec: OperatorSpec, path: Path) -> None:
        import tbe.dsl  # noqa: F401  here, so that the process that traces has it already

        self.spec = spec
        self.path = path

    def compute(self, op: NodeView, *tensors: Any) -> tuple[Any, ...]:
        """The operator's expressions."""
        from tbe.dsl.tracing import trace

        entry = self.load().entry
        inferred = _library_answer_or_none(op)
        outputs = None if inferred is None else [(d.shape, d.dtype) for d in inferred]
        return trace(entry, self._ports(tensors), outputs, self._attrs(op, entry), self.spec.type.lower())

    def program(self, op: NodeView, inferred: Sequence[TensorDesc] | None = None) -> Any:
        """The TIK program of the file for a node, None if it has none."""
        from tbe.dsl.tracing import tik_program
        from tbe.expr import placeholder

        entry = self.load().entry
        places = [None if d is None else placeholder(d.shape, d.dtype) for d in op.inputs]
        outputs = None if inferred is None else [(d.shape, d.dtype) for d in inferred]
        return tik_program(
            entry, self._ports(places), outputs, self._attrs(op, entry), self.spec.type.lower()
        )

    def described(self, op: NodeView) -> list[TensorDesc]:
        """The outputs as computed by the file, if nothing else determines their sizes."""
        from tbe.dsl.tracing import trace
        from tbe.expr import placeholder

        program = self.program(op)
        if program is not None:
            return [TensorDesc(tuple(t.shape), t.dtype) for t in program.outputs]
        entry = self.load().entry
        places = [None if d is None else placeholder(d.shape, d.dtype) for d in op.inputs]
        made = trace(entry, self._ports(places), None, self._attrs(op, entry), self.spec.type.lower())
        return [TensorDesc(tuple(t.shape), t.dtype) for t in made]

    def unsuitable(self, op: NodeView) -> str:
        """The reason of check_supported against a node."""
        from tbe.dsl.tracing import description

        file = self.load()
        inputs = [None if d is None else description(d.shape, d.dtype) for d in op.inputs]
        first = next(d for d in inputs if d is not None)
        fits, why = file.supports(
            self._ports(inputs), [first] * len(self.spec.outputs), self._attrs(op, file.entry)
        )
        return "" if fits else why

    def load(self) -> Any:
        """The operator file, which may import its siblings, directly or as part of `impl`."""
        from tbe.dsl.tracing import load_operator

        assert self.spec.tbe is not None
        folder = str(self.path.parent)
        for places in (sys.path, ascend(_SHARED).__path__):
            if folder not in places:
                places.append(folder)
        return load_operator(self.path, self.spec.tbe.function)

    def _ports(self, items: Sequence[Any]) -> list[Any]:
        """Items by port: a dynamic input takes a list."""
        kinds = [port.kind for port in self.spec.inputs]
        if "dynamic" in kinds:
            place = kinds.index("dynamic")
            return [*items[:place], list(items[place:])]
        return [*items, *[None] * (len(kinds) - len(items))]

    def _attrs(self, op: NodeView, entry: Callable[..., Any]) -> dict[str, Any]:
        import inspect

        known = inspect.signature(entry).parameters
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in op.attrs.items()
            if name in known and value is not None
        }


def _library_answer_or_none(op: NodeView) -> Sequence[TensorDesc] | None:
    """The operator's own inference, None if it has none."""
    operator = lookup(op.type)
    if operator.infer is Operator.infer:
        return None
    answer = operator.infer(op)
    return [answer] if isinstance(answer, TensorDesc) else list(answer)


# -- inference ----------------------------------------------------------------------------------------------


def _inference(
    package: PackageSpec, directory: Path, spec: OperatorSpec, code: _TbeCode | None
) -> dict[str, Any]:
    if spec.infer == "library":
        question = _Question(spec, directory / package.library, code)
        return {"infer": staticmethod(question.ask)}
    if spec.infer:
        own = _PythonCode(directory / spec.infer)
        return {"infer": staticmethod(own.infer), "verify": staticmethod(own.verify)}
    return {}


class _PythonCode:
    """A file with infer(op) and optionally verify(op); loaded in the process that traces custom operators."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def infer(self, op: NodeView) -> Any:
        return self._module().infer(op)

    def verify(self, op: NodeView) -> None:
        check = getattr(self._module(), "verify", None)
        if check is not None:
            check(op)

    def _module(self) -> ModuleType:
        name = f"opp_{self.path.stem}"
        spec = importlib.util.spec_from_file_location(name, self.path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_uint64),
    )


class _Attr(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("kind", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("values", ctypes.c_void_p),
    )


_SET_OUTPUT = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.c_int32,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_int32,
)


class _InferCall(ctypes.Structure):
    _fields_ = (
        ("num_inputs", ctypes.c_uint64),
        ("num_outputs", ctypes.c_uint64),
        ("num_attrs", ctypes.c_uint64),
        ("input_names", ctypes.POINTER(ctypes.c_char_p)),
        ("inputs", ctypes.POINTER(_Tensor)),
        ("output_names", ctypes.POINTER(ctypes.c_char_p)),
        ("attrs", ctypes.POINTER(_Attr)),
        ("sink", ctypes.c_void_p),
        ("set_output", _SET_OUTPUT),
        ("message", ctypes.c_char_p),
        ("message_size", ctypes.c_uint64),
    )


_SET_ATTR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Attr))


class _ParseCall(ctypes.Structure):
    _fields_ = (
        ("framework", ctypes.c_char_p),
        ("type", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("num_inputs", ctypes.c_uint64),
        ("num_outputs", ctypes.c_uint64),
        ("num_attrs", ctypes.c_uint64),
        ("attrs", ctypes.POINTER(_Attr)),
        ("sink", ctypes.c_void_p),
        ("set_attr", _SET_ATTR),
        ("message", ctypes.c_char_p),
        ("message_size", ctypes.c_uint64),
    )


class _Question:
    """Calls the C++ inference function of a package (in the process that traces custom operators)."""

    def __init__(self, spec: OperatorSpec, library: Path, code: _TbeCode | None = None) -> None:
        self.spec = spec
        self.library = library
        self.code = code

    def ask(self, op: NodeView) -> list[TensorDesc]:
        """The function's answer; raises its message if it refuses."""
        kept: list[Any] = []
        names, tensors = self._inputs(op, kept)
        outputs = [p.name.encode() for p in self.spec.outputs]
        attrs = [_plain_attr(name, value, kept) for name, value in op.attrs.items() if value is not None]
        found: dict[int, TensorDesc] = {}

        def take(_sink: Any, output: int, dtype: int, dims: Any, rank: int) -> None:
            found[output] = TensorDesc(
                tuple(int(dims[i]) for i in range(rank)), _DTYPES.get(dtype, str(dtype))
            )

        message = ctypes.create_string_buffer(1024)
        call = _InferCall(
            len(tensors),
            len(outputs),
            len(attrs),
            (ctypes.c_char_p * max(1, len(names)))(*names),
            (_Tensor * max(1, len(tensors)))(*tensors),
            (ctypes.c_char_p * max(1, len(outputs)))(*outputs),
            (_Attr * max(1, len(attrs)))(*attrs),
            None,
            _SET_OUTPUT(take),
            ctypes.cast(message, ctypes.c_char_p),
            1023,
        )
        infer = ctypes.CDLL(str(self.library)).npu_opp_infer
        infer.restype = ctypes.c_uint32
        status = infer(self.spec.type.encode(), ctypes.byref(call))
        if status:
            said = message.value.decode(errors="replace") or "its C++ inference function refuses the node"
            raise fail(op, said if status == 1 else "the package has no inference function for it")
        answer = [found[i] for i in range(len(outputs)) if i in found]
        if len(answer) < len(outputs) or any(d < 0 for desc in answer for d in desc.shape):  # UNKNOWN_DIM
            if self.code is None:
                which = next((p.name for i, p in enumerate(self.spec.outputs) if i not in found), "")
                what = f"output '{which}'" if which else "a dimension"
                remedy = "set it there, or write infer(op) in op_proto/<operator>.py"
                raise fail(op, f"its C++ inference function leaves {what} open", remedy)
            return self.code.described(op)
        return answer

    def _inputs(self, op: NodeView, kept: list[Any]) -> tuple[list[bytes], list[_Tensor]]:
        names: list[bytes] = []
        tensors: list[_Tensor] = []
        for index, desc in enumerate(op.inputs):
            port = self.spec.inputs[min(index, len(self.spec.inputs) - 1)]
            number = index - (len(self.spec.inputs) - 1)
            names.append(f"{port.name}{number if port.kind == 'dynamic' else ''}".encode())
            if desc is None:
                tensors.append(_Tensor(0, -1, None, None, 0))
                continue
            dims = (ctypes.c_int64 * max(1, desc.rank))(*desc.shape)
            array = op.const(index)
            data = None if array is None else np.ascontiguousarray(array)
            kept += [dims, data]
            address = None if data is None else data.ctypes.data
            tensors.append(_Tensor(_NUMBERS[desc.dtype], desc.rank, dims, address, desc.nbytes))
        return names, tensors


def _plain_attr(name: str, value: Any, kept: list[Any]) -> _Attr:
    """An attribute in the form of npu_opp_abi.h."""
    items = list(value) if isinstance(value, tuple | list) else [value]
    sample = items[0] if items else 0
    kinds = ((bool, 0, ctypes.c_int64), (int, 1, ctypes.c_int64), (float, 2, ctypes.c_double))
    kind, ctype = next(((k, c) for t, k, c in kinds if isinstance(sample, t)), (3, ctypes.c_char_p))
    if isinstance(value, tuple | list):
        kind = {0: 4, 1: 4, 2: 5, 3: 6}[kind]
    plain: list[Any] = [item.encode() if isinstance(item, str) else item for item in items]
    make: Any = ctype * max(1, len(plain))
    values = make(*plain)
    kept.append(values)
    return _Attr(name.encode(), kind, len(items), ctypes.cast(values, ctypes.c_void_p))
