"""The configuration files that compile options name: fusion switches, precision lists, nodes to keep."""

from __future__ import annotations

import configparser
import json
from pathlib import Path
from typing import Any

from ge.errors import GeError
from ge.options.values import Implementation

__all__ = [
    "fusion_switches",
    "implementation_choice",
    "keep_dtype",
    "mixed_precision_lists",
    "op_implementation",
    "op_precision",
    "read_text",
]

MAX_BYTES = 16 << 20
_KEPT, _AS_THE_MODEL = "must_keep_origin_dtype", ""
_IMPLEMENTATIONS = {
    "high_precision": _KEPT,
    "enable_float_32_execution": _KEPT,
    "enable_hi_float_32_execution": _KEPT,
    "high_performance": _AS_THE_MODEL,
    "support_out_of_bound_index": _AS_THE_MODEL,
}


def read_text(path: Path, what: str) -> str:
    """The text of a configuration file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise GeError("E12010", f"the {what} {path} is too large")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GeError(
            "E12010", f"the {what} {path} cannot be read: {error}", remedy="check the path"
        ) from error


def read_json(path: Path, what: str) -> Any:
    """The content of a JSON configuration file."""
    try:
        return json.loads(read_text(path, what))
    except (ValueError, RecursionError) as error:
        raise GeError("E12011", f"the {what} {path} is not valid JSON: {error}") from error


def fusion_switches(path: Path) -> frozenset[str]:
    """The passes that a fusion switch file turns off.

    Both forms are read: `{"Switch": {"GraphFusion": {"name": "off"}, "UBFusion": {…}}}` and lines `name:off`. ALL
    stands for every fusion that is not named itself: it stays in the result, with the names that are on as "+name",
    until the compiler puts the names of its fusions there.
    """
    text = read_text(path, "fusion switch file")
    if text.lstrip().startswith("{"):
        states = _switches(read_json(path, "fusion switch file"))
    else:
        pairs = [line.split(":", 1) for line in text.splitlines() if ":" in line]
        states = {name.strip(): state.strip().lower() for name, state in pairs}
    off = frozenset("ALL" if n.upper() == "ALL" else n for n, state in states.items() if state == "off")
    on = {f"+{name}" for name, state in states.items() if state != "off"} if "ALL" in off else ()
    return off.union(on)


def _switches(tree: Any) -> dict[str, str]:
    """All names with a state of their own, at any depth."""
    if not isinstance(tree, dict):
        return {}
    states = {str(name): state.lower() for name, state in tree.items() if isinstance(state, str)}
    for branch in tree.values():
        states |= _switches(branch)
    return states


def op_precision(path: Path) -> dict[str, str]:
    """Precision modes by node or operator name, from an ini file with or without sections.

    The original tool's choices between implementations are read as well: a precise one keeps its element types, the
    others are as the whole model.
    """
    modes = {name: _IMPLEMENTATIONS.get(value, value) for name, value in _by_name(path).items()}
    return {name: mode for name, mode in modes.items() if mode != _AS_THE_MODEL}


def op_implementation(path: Path) -> dict[str, Implementation]:
    """Implementations by node or operator name, from the file that `op_precision` reads."""
    choices = {choice.value for choice in Implementation}
    return {name: Implementation(value) for name, value in _by_name(path).items() if value in choices}


def implementation_choice(mode: Any, types: Any = ()) -> dict[str, Any]:
    """The fields of CompileOptions that a choice means: for the operators named (a list, or text with commas), or for
    the whole model.

    >>> implementation_choice("high_precision", "Conv2D,MatMul")["op_implementation"]["MatMul"].name
    'PRECISE'
    >>> implementation_choice("high_precision")["implementation"].name
    'PRECISE'
    """
    choice = Implementation.parse(mode or Implementation.FAST)
    listed = types.split(",") if isinstance(types, str) else types or ()
    names = [name.strip() for name in listed if name.strip()]
    return {"op_implementation": dict.fromkeys(names, choice)} if names else {"implementation": choice}


def _by_name(path: Path) -> dict[str, str]:
    """The values of a precision file by name."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    text = read_text(path, "precision file")
    try:
        parser.read_string(text if text.lstrip().startswith("[") else "[all]\n" + text)
    except configparser.Error as error:
        raise GeError("E12011", f"the precision file {path} is not valid: {error}") from error
    return {name: value.strip() for section in parser.sections() for name, value in parser.items(section)}


def keep_dtype(path: Path) -> tuple[str, ...]:
    """Node names (or `OpType::Type`) whose precision is kept, one per line."""
    lines = (line.strip() for line in read_text(path, "list of nodes").splitlines())
    return tuple(line.removeprefix("OpType::") for line in lines if line and not line.startswith("#"))


def mixed_precision_lists(path: Path) -> dict[str, str]:
    """Operators moved between the lists of mixed precision: `{"black-list": {"to-add": […]}, …}`.

    Operators added to the black list keep their type, those added to the white list are lowered.
    """
    tree = read_json(path, "mixed precision list")
    if not isinstance(tree, dict):
        raise GeError("E12011", f"the mixed precision list {path} must be an object")
    moves: dict[str, str] = {}
    for colour, mode in (("black-list", "must_keep_origin_dtype"), ("white-list", "allow_mix_precision")):
        changes = tree.get(colour, {})
        added = changes.get("to-add", []) if isinstance(changes, dict) else []
        moves.update({str(name): mode for name in added if isinstance(added, list)})
    return moves
