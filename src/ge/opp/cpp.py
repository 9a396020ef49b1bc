"""The declarations in C++ files of operator projects, read as text: prototypes and framework plugins.

REG_OP(Swoosh)
    .INPUT(x, TensorType({DT_FLOAT16, DT_FLOAT}))
    .OUTPUT(y, TensorType({DT_FLOAT16, DT_FLOAT}))
    .ATTR(beta, Float, 1.0)
    .OP_END_FACTORY_REG(Swoosh)

REGISTER_CUSTOM_OP("Swoosh").FrameworkType(TENSORFLOW).OriginOpType("Swoosh").ParseParamsFn(AutoMappingFn);

An invalid declaration is a fault: it is raised, or added to the caller's list, and the rest is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ge.errors import GeError
from ge.ir.types import BOOL, FLOATS, INTS, NUMBERS, TENSORS
from ge.opp.faults import Faults
from ge.ops.custom.spec import AttrSpec, OperatorSpec, PluginSpec, PortSpec

__all__ = ["DTYPES", "plugins_of", "prototypes_of", "without_comments"]

T = TypeVar("T")

DTYPES = {
    "DT_FLOAT": "float32",
    "DT_FLOAT16": "float16",
    "DT_BF16": "bfloat16",
    "DT_BFLOAT16": "bfloat16",
    "DT_DOUBLE": "float64",
    "DT_BOOL": "bool",
    **{f"DT_{name.upper()}": name for name in INTS},
}
_GROUPS = {
    "ALL": TENSORS,
    "BasicType": TENSORS,
    "NumberType": NUMBERS,
    "RealNumberType": NUMBERS,
    "UnaryDataType": FLOATS,
    "FloatingDataType": FLOATS,
    "IntegerDataType": INTS,
    "IndexNumberType": frozenset({"int32", "int64"}),
    "QuantifiedType": INTS,
    "Bool": BOOL,
}
_PORTS = {
    "INPUT": ("inputs", "required"),
    "OPTIONAL_INPUT": ("inputs", "optional"),
    "DYNAMIC_INPUT": ("inputs", "dynamic"),
    "OUTPUT": ("outputs", "required"),
    "DYNAMIC_OUTPUT": ("outputs", "dynamic"),
}
_ATTRS = {
    "Int": "int",
    "Float": "float",
    "Bool": "bool",
    "String": "str",
    "Type": "str",
    "ListInt": "list_int",
    "ListFloat": "list_float",
    "ListBool": "list_bool",
    "ListString": "list_str",
    "ListType": "list_str",
    "Bytes": "str",
}
_FRAMEWORKS = {"TENSORFLOW": "tensorflow", "ONNX": "onnx", "PYTORCH": "aten", "CAFFE": "caffe"}
_PLUGIN_CALLS = frozenset(
    {"FrameworkType", "OriginOpType", "ParseParamsFn", "ParseParamsByOperatorFn", "ImplyType"}
)
# Parse functions that map attributes of the same name.
_AUTOMATIC = frozenset(
    {"AutoMappingFn", "AutoMappingByOpFn", "AutoMappingFnDynamic", "AutoMappingSubgraphIndex"}
)


def prototypes_of(path: Path, faults: Faults | None = None) -> list[OperatorSpec]:
    """The prototypes that a header or source file declares."""
    return _each(path, "REG_(?:CUST_)?OP", _prototype, faults)


def plugins_of(path: Path, faults: Faults | None = None) -> list[PluginSpec]:
    """The plugins that a source file registers."""
    return _each(path, "REGISTER_CUSTOM_OP", _plugin, faults)


def _each(path: Path, macro: str, reader: Callable[..., T], faults: Faults | None) -> list[T]:
    """Apply a reader to every declaration of a file."""
    collected = Faults(strict=True) if faults is None else faults
    found: list[T] = []
    with collected.part():
        for line, calls in _chains(path, macro):
            with collected.part():
                found.append(reader(path, line, calls))
    return found


def _malformed(path: Path, line: int, cause: str, remedy: str = "", operator: str = "") -> GeError:
    return GeError("E10612", cause, operator=operator, location=f"{path}:{line}", remedy=remedy)


# -- prototypes ---------------------------------------------------------------------------------------------


def _prototype(path: Path, line: int, calls: list[tuple[str, str]]) -> OperatorSpec:
    type_ = calls[0][1].strip()
    try:
        return _declared(path, line, type_, calls)
    except GeError as error:
        raise _malformed(path, line, error.cause, error.remedy, type_) from None


def _declared(path: Path, line: int, type_: str, calls: list[tuple[str, str]]) -> OperatorSpec:
    if not calls[-1][0].endswith("OP_END_FACTORY_REG"):
        raise _malformed(path, line, f"the prototype of {type_} does not end in OP_END_FACTORY_REG({type_})")
    ports: dict[str, list[PortSpec]] = {"inputs": [], "outputs": []}
    attrs: list[AttrSpec] = []
    # Types that several ports share have a name: .INPUT(x, "T").DATATYPE(T, TensorType({...}))
    shared = {a[0]: a[1] for macro, text in calls if macro == "DATATYPE" and len(a := _arguments(text)) >= 2}
    for macro, text in calls[1:-1]:
        args = _arguments(text)
        if macro in _PORTS and len(args) >= 2:
            side, kind = _PORTS[macro]
            types = shared.get(args[1].strip('"'), args[1])
            ports[side].append(PortSpec(args[0], kind, _dtypes(path, line, types)))
        elif macro in ("ATTR", "REQUIRED_ATTR") and len(args) >= 2:
            attrs.append(_attr(path, line, macro, args))
        elif macro not in ("GRAPH", "DYNAMIC_GRAPH", "INFER_SHAPE_AND_TYPE", "DATATYPE"):
            raise _malformed(
                path, line, f"{macro}({text.strip()[:60]}) in the prototype of {type_} is unknown"
            )
    return OperatorSpec(type_, tuple(ports["inputs"]), tuple(ports["outputs"]), tuple(attrs))


def _dtypes(path: Path, line: int, text: str) -> tuple[str, ...]:
    group = re.search(r"TensorType\s*::\s*(\w+)", text)
    if group:
        if group[1] not in _GROUPS:
            raise _malformed(path, line, f"TensorType::{group[1]} is unknown", f"use {', '.join(_GROUPS)}")
        return tuple(sorted(_GROUPS[group[1]]))
    names = re.findall(r"DT_\w+", text)
    # Types that our tensors never have (strings, complex numbers) are dropped.
    return tuple(dict.fromkeys(DTYPES[name] for name in names if name in DTYPES))


def _attr(path: Path, line: int, macro: str, args: list[str]) -> AttrSpec:
    name, kind = args[:2]
    if kind not in _ATTRS:
        raise _malformed(
            path, line, f"attribute '{name}' is of type {kind}", f"use one of {', '.join(_ATTRS)}"
        )
    if macro == "REQUIRED_ATTR" or len(args) < 3:
        return AttrSpec(name, _ATTRS[kind], True)
    return AttrSpec(name, _ATTRS[kind], False, _literal(path, line, ", ".join(args[2:]), _ATTRS[kind]))


def _literal(path: Path, line: int, text: str, kind: str) -> Any:
    """The value of a C++ literal.

    >>> _literal(Path("x.h"), 1, "{1, 2}", "list_int"), _literal(Path("x.h"), 1, "0.5f", "float")
    ([1, 2], 0.5)
    """
    text = re.sub(r"(?<!\w)ge::", "", text.strip())
    if kind.startswith("list_"):
        inner = text[text.find("{") + 1 : text.rfind("}")] if "{" in text else text
        return [_literal(path, line, item, kind[5:]) for item in _arguments(inner)]
    try:
        return _LITERALS[kind](text)
    except (KeyError, ValueError) as error:
        raise _malformed(path, line, f"'{text}' is not a literal of type {kind}") from error


_LITERALS: dict[str, Any] = {
    "int": lambda t: int(t.rstrip("uUlL"), 0),
    "float": lambda t: float(t.rstrip("fF")),
    "bool": lambda t: {"true": True, "false": False}[t],
    "str": lambda t: DTYPES.get(t, t.strip('"')),
}


# -- plugins ------------------------------------------------------------------------------------------------


def _plugin(path: Path, line: int, calls: list[tuple[str, str]]) -> PluginSpec:
    type_ = calls[0][1].strip().strip('"')
    found: dict[str, list[str]] = {}
    for macro, text in calls[1:]:
        found.setdefault(macro, []).append(text.strip())
    framework = re.sub(r".*::", "", found.get("FrameworkType", [""])[0])
    if framework not in _FRAMEWORKS:
        cause = f"the plugin of {type_} is for framework '{framework}'"
        raise _malformed(path, line, cause, f"use {', '.join(_FRAMEWORKS)}")
    unknown = sorted(set(found) - _PLUGIN_CALLS)
    if unknown and framework != "CAFFE":
        cause = f"the plugin of {type_} has {', '.join(unknown)}"
        raise _malformed(path, line, cause, "write it in Python: a file beside this one with @ge.ops.plugins")
    names = re.findall(r'"([^"]+)"', " ".join(found.get("OriginOpType", ())))
    if not names:
        raise _malformed(path, line, f"the plugin of {type_} names no OriginOpType")
    functions = [f for m in ("ParseParamsFn", "ParseParamsByOperatorFn") for f in found.get(m, ())]
    own = [f for f in functions if re.sub(r".*::", "", f) not in _AUTOMATIC]
    return PluginSpec(_FRAMEWORKS[framework], tuple(names), type_, own[0] if own else "")


# -- text ---------------------------------------------------------------------------------------------------


def _chains(path: Path, macro: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Each `MACRO(…).CALL(…).CALL(…)` of a file, with its line."""
    text = without_comments(path.read_text(errors="replace"))
    for match in re.finditer(rf"(?<!\w)(?:{macro})\s*\(", text):
        line_start = text.rfind("\n", 0, match.start()) + 1
        if text[line_start : match.start()].lstrip().startswith("#"):
            continue
        line = text.count("\n", 0, match.start()) + 1
        calls: list[tuple[str, str]] = []
        name, position = macro, match.end()
        while True:
            end = _closing(path, line, text, position)
            calls.append((name, text[position:end]))
            following = re.compile(r"\s*\.\s*(\w+)\s*\(").match(text, end + 1)
            if following is None:
                break
            name, position = following[1], following.end()
        yield line, calls


def without_comments(text: str) -> str:
    """The text with comments blanked, preserving lines."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])

    return re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', blank, text, flags=re.DOTALL)


def _closing(path: Path, line: int, text: str, start: int) -> int:
    depth = 1
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise _malformed(path, line, "a parenthesis is not closed")


def _arguments(text: str) -> list[str]:
    """Arguments at the top level of a list.

    >>> _arguments('x, TensorType({DT_FLOAT, DT_INT32}), "a, b"')
    ['x', 'TensorType({DT_FLOAT, DT_INT32})', '"a, b"']
    """
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += 0 if quoted else {"(": 1, "{": 1, ")": -1, "}": -1}.get(char, 0)
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]
