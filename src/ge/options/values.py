"""Values of options: the closed sets, and one parser for each kind of value. Imports nothing heavy."""

from __future__ import annotations

import enum
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge.errors import GeError

__all__ = [
    "RECOMPUTE",
    "Implementation",
    "Parser",
    "PrecisionMode",
    "anything",
    "boolean",
    "count",
    "directories",
    "existing_file",
    "implementation",
    "implementations",
    "is_foreign",
    "json_object",
    "names",
    "nodes",
    "one_of",
    "output_types",
    "path",
    "positive",
    "precision",
    "precisions",
    "shapes",
    "size",
    "soc",
    "steps",
    "target",
    "target_of",
    "text",
]


class PrecisionMode(enum.Enum):
    """How far element types may be lowered; the default keeps the user's."""

    KEEP = "must_keep_origin_dtype"
    MIX_BF16 = "allow_mix_precision_bf16"
    MIX_FP16 = "allow_mix_precision_fp16"
    FORCE_FP16 = "force_fp16"
    FORCE_FP32 = "force_fp32"
    CUBE_FP16 = "cube_fp16in_fp32out"

    @classmethod
    def parse(cls, given: str | PrecisionMode) -> PrecisionMode:
        """The mode with this name; other names used by ported scripts mean their nearest mode.

        >>> PrecisionMode.parse("allow_mix_precision").value
        'allow_mix_precision_fp16'
        """
        if isinstance(given, cls):
            return given
        name = _SYNONYMS.get(str(given), given)
        for mode in cls:
            if mode.value == name:
                return mode
        raise GeError(
            "E10010", f"precision mode '{given}' is unknown", remedy=f"use one of {', '.join(cls.names())}"
        )

    @classmethod
    def names(cls) -> list[str]:
        """All names that `parse` accepts."""
        return [*(m.value for m in cls), *_SYNONYMS]


_SYNONYMS = {
    "allow_mix_precision": "allow_mix_precision_fp16",
    "allow_fp32_to_fp16": "must_keep_origin_dtype",
    "origin": "must_keep_origin_dtype",
    "fp16": "force_fp16",
    "mixed_float16": "allow_mix_precision_fp16",
    "mixed_bfloat16": "allow_mix_precision_bf16",
    "cube_hif8": "must_keep_origin_dtype",
}


class Implementation(enum.Enum):
    """How a product is computed: in the least time, or with the least rounding error.

    FAST may save arithmetic at the cost of larger rounding errors (Winograd convolutions, Strassen products);
    PRECISE never does.
    """

    FAST = "high_performance"
    PRECISE = "high_precision"

    @classmethod
    def parse(cls, given: str | Implementation) -> Implementation:
        """The implementation with this name; "…_for_all" means the same.

        >>> Implementation.parse("high_precision_for_all").name
        'PRECISE'
        """
        if isinstance(given, cls):
            return given
        for choice in cls:
            if str(given).removesuffix("_for_all") == choice.value:
                return choice
        valid = ", ".join(choice.value for choice in cls)
        raise GeError("E10010", f"implementation '{given}' is unknown", remedy=f"use one of {valid}")


RECOMPUTE = ("off", "light", "vector", "segments")
"""What a training step recomputes: nothing; what costs at most one pass over memory; activations, normalisations and
element-wise work; whole segments, convolutions and products included."""

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no", ""})
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_OUTPUT_TYPES = {
    "FP32": "float32",
    "FP16": "float16",
    "BF16": "bfloat16",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
}
# Those of ge.target, which loads the runtime: commands start without it.
_TARGETS = "host, portable, avx2, avx512, avx512_bf16, amx, sm_80, sm_86, sm_89, sm_90, sm_100"
_ASCEND = re.compile(r"(ascend|bs9sx|hi\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Parser:
    """Reads the values of an option.

    `read` converts a value and raises for one that cannot be; `choices` tells what can be; `types` are the types of
    plain values, as configurations carry them.
    """

    read: Callable[[Any], Any]
    choices: str
    types: tuple[type, ...] = (str,)


# -- functions that read one kind of value ----------------------------------------------------------------------


def _boolean(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ValueError


def _at_least(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or int(value) != float(value) or int(value) < least:
            raise ValueError
        return int(value)

    return read


def _size(value: Any) -> int:
    if not isinstance(value, str):
        return _at_least(0)(value)
    if re.fullmatch(r"\s*\d+(\s*\*\s*\d+)+\s*", value):
        return math.prod(int(part) for part in value.split("*"))
    number = re.fullmatch(
        r"(\d+\.?\d*|\.\d+)\s*([kmgt]?)", value.strip().lower().removesuffix("b").removesuffix("i")
    )
    if number is None:
        raise ValueError
    return int(float(number[1]) * _UNITS[number[2]])


def _path(value: Any) -> Path | None:
    if value in (None, ""):
        return None
    if not isinstance(value, str | os.PathLike):
        raise ValueError
    return Path(value).expanduser()


def _existing_file(value: Any) -> Path | None:
    found = _path(value)
    if found is not None and not found.is_file():
        raise ValueError("there is no such file")
    return found


def _directories(value: Any) -> tuple[Path, ...]:
    parts = value.split(os.pathsep) if isinstance(value, str) else value
    return tuple(Path(os.fspath(part)).expanduser() for part in parts if part)


def _names(value: Any) -> frozenset[str]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable):
        raise ValueError
    return frozenset(filter(None, (str(part).strip() for part in parts)))


def _by_name(parse: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Values by operator or node: a mapping, or "MatMul=value,…"."""

    def read(value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            pairs = [part.partition("=") for part in value.split(",") if part.strip()]
            if not all(sign for _, sign, _ in pairs):
                raise ValueError
            value = {name.strip(): item.strip() for name, _, item in pairs}
        if not isinstance(value, Mapping):
            raise ValueError
        return {str(name): parse(item) for name, item in value.items()}

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError
    return str(value)


def _anything(value: Any) -> Any:
    return value


def _one_of(*allowed: Any) -> Callable[[Any], Any]:
    """One of several values, which texts may spell in any case."""

    def read(value: Any) -> Any:
        for choice in allowed:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
            if isinstance(value, str) and value.lower() == str(choice).lower():
                return choice
        raise ValueError

    return read


def _json_object(value: Any) -> dict[str, Any]:
    import json

    found = value if isinstance(value, Mapping) else json.loads(value) if value.strip() else {}
    if not isinstance(found, Mapping):
        raise ValueError
    return dict(found)


class SizeRange(int):
    """An open size that has bounds; -1 as a number.

    >>> size = SizeRange(1, 8)
    >>> size == -1, list(size.sizes)
    (True, [1, 2, 3, 4, 5, 6, 7, 8])
    """

    sizes: range

    def __new__(cls, low: int, high: int) -> SizeRange:
        made = super().__new__(cls, -1)
        made.sizes = range(low, high + 1)
        return made


def _dimension(text: str) -> int:
    low, tilde, high = text.partition("~")
    if not tilde:
        return int(text)
    if not 0 < int(low) <= int(high):
        raise ValueError(f"'{text}' is not a range of sizes")
    return SizeRange(int(low), int(high))


def _given_size(size: Any) -> int:
    return size if isinstance(size, SizeRange) else int(size)


def _shapes(value: Any) -> dict[str, tuple[int, ...]]:
    """Shapes by input name; names may contain colons, sizes may be ranges.

    >>> _shapes("x:1,3,224,224;ids:0:-1,128;y:1~4,3")
    {'x': (1, 3, 224, 224), 'ids:0': (-1, 128), 'y': (-1, 3)}
    """
    if isinstance(value, Mapping):
        return {str(name): tuple(_given_size(d) for d in shape) for name, shape in value.items()}
    found: dict[str, tuple[int, ...]] = {}
    for part in filter(None, (p.strip() for p in value.strip("\"' ").split(";"))):
        name, _, dims = part.rpartition(":")
        shape = tuple(_dimension(d) for d in dims.split(",") if d.strip())
        if not name or any(d < -1 for d in shape):
            raise ValueError(f"'{part}' is not an input shape")
        found[name.strip()] = shape
    return found


def _nodes(value: Any) -> tuple[str, ...]:
    """Names separated by semicolons.

    >>> _nodes("a:0; b:1")
    ('a:0', 'b:1')
    """
    parts = value.strip("\"' ").split(";") if isinstance(value, str) else value
    return tuple(filter(None, (str(part).strip() for part in parts)))


def _output_types(value: Any) -> dict[str, str]:
    """Element types by output; the empty name stands for all of them.

    >>> _output_types("FP16"), _output_types("a:0:FP32;b:UINT8")
    ({'': 'float16'}, {'a:0': 'float32', 'b': 'uint8'})
    """
    if isinstance(value, Mapping):
        return {str(name): str(type_) for name, type_ in value.items()}
    pairs = [part.rpartition(":") for part in _nodes(value)]
    return {name: _OUTPUT_TYPES[type_.upper()] for name, _, type_ in pairs}


def _soc(value: Any) -> str:
    _target(target_of(str(value)))
    return str(value)


def target_of(soc_version: str) -> str:
    """The target that the name of a processor stands for.

    >>> target_of("Ascend310P3"), target_of("cpu_portable")
    ('host', 'portable')
    """
    name = soc_version.lower()
    if is_foreign(soc_version):
        return "host"
    return {"": "host", "cpu": "host", "cpu_portable": "portable", "x86_64": "portable"}.get(name, name)


def is_foreign(soc_version: str) -> bool:
    """True for the name of a processor of the original tool, which stands for this machine."""
    return _ASCEND.match(soc_version) is not None


def _target(value: Any) -> Any:
    """A target, or the name of one: what exists is known to `ge.target`."""
    if isinstance(value, str):
        from ge.target import named

        named(value)
    return value


# -- the parsers -------------------------------------------------------------------------------------------------

boolean = Parser(_boolean, "True or False", (bool, int))
count = Parser(_at_least(0), "a whole number, 0 or more", (int, str))
positive = Parser(_at_least(1), "a whole number, 1 or more", (int, str))
size = Parser(_size, "bytes, as a number, a product of numbers, or a number with K, M, G or T", (str, int))
precision = Parser(PrecisionMode.parse, f"one of {', '.join(PrecisionMode.names())}")
precisions = Parser(
    _by_name(lambda mode: PrecisionMode.parse(mode).value),
    "a mapping of names to precision modes, or 'name=mode' with commas between them",
)
implementation = Parser(
    Implementation.parse, f"one of {', '.join(i.value for i in Implementation)}, with or without _for_all"
)
implementations = Parser(
    _by_name(Implementation.parse),
    "a mapping of names to implementations, or 'name=implementation' with commas between them",
)
path = Parser(_path, "a path, or None")
existing_file = Parser(_existing_file, "the path of a file")
directories = Parser(_directories, f"paths of directories, as a sequence or with {os.pathsep!r} between them")
names = Parser(_names, "names, as a sequence or with commas between them")
nodes = Parser(_nodes, "names, as a sequence or with semicolons between them")
text = Parser(_text, "a text")
anything = Parser(_anything, "any value", (str, int, bool))
json_object = Parser(_json_object, 'a JSON object such as {"output": "folder"}')
shapes = Parser(_shapes, 'shapes by input: "x:1,3,224,224;y:1,10"')
output_types = Parser(
    _output_types, f"one of {', '.join(_OUTPUT_TYPES)}, for all outputs or as 'name:0:FP16'"
)
steps = Parser(
    lambda value: re.fullmatch(r"(\d+(-\d+)?(\|\d+(-\d+)?)*)?", str(value))[0],  # type: ignore[index]
    'steps like "0|5|10-20"; "" for all',
)
soc = Parser(_soc, f"cpu, one of {_TARGETS}, or an Ascend name, which means cpu")
target = Parser(_target, f"a target, or the name of one: {_TARGETS}")


def one_of(*allowed: Any) -> Parser:
    """The parser of a closed set of plain values."""
    types = tuple(dict.fromkeys(type(a) for a in allowed if a is not None))
    return Parser(_one_of(*allowed), f"one of {', '.join(map(repr, allowed))}", types)
