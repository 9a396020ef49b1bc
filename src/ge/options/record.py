"""The record that a compile reads, and how options that doors were given become one."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ge.errors import GeError
from ge.options import files
from ge.options.table import OPTIONS, Option, OptionError, from_environment
from ge.options.values import Implementation, PrecisionMode, target_of

if TYPE_CHECKING:
    from ge.target import Target

__all__ = ["CompileOptions", "compile_options", "fingerprint", "meaning"]


@dataclass(frozen=True)
class CompileOptions:
    """Everything a compile depends on besides the graph; the fields are options of `ge.options.table`."""

    precision_mode: PrecisionMode = PrecisionMode.KEEP
    op_precision: Mapping[str, str] = field(default_factory=dict)  # node or operator name -> mode
    implementation: Implementation = Implementation.FAST
    op_implementation: Mapping[str, Implementation] = field(default_factory=dict)
    quantise_activations: bool = False
    disabled_passes: frozenset[str] = frozenset()
    dump_stages: frozenset[str] = frozenset()  # "all" or stage names
    dump_dir: Path = Path("npu_dump")
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    output_nodes: tuple[str, ...] = ()
    signature: str = ""  # of a SavedModel or a TensorFlow Lite file; by default the file's own default
    recompute: str = "light"
    target: Target = "host"  # type: ignore[assignment]  # a target, or the name of one
    progress: bool = False
    opp_path: tuple[Path, ...] | str = ()  # text is split as NPU_OPP_PATH is

    def __post_init__(self) -> None:
        for name, option in _by_field().items():
            object.__setattr__(self, name, option.parse(getattr(self, name), f"CompileOptions.{name}"))
        if isinstance(self.target, str):
            from ge.target import named

            object.__setattr__(self, "target", named(self.target))

    @classmethod
    def from_environment(cls, **given: object) -> CompileOptions:
        """Options with the environment taken into account; arguments win.

        >>> CompileOptions.from_environment(recompute="off").recompute
        'off'
        """
        return replace(_environment_options(), **given)  # type: ignore[arg-type]

    def fingerprint(self) -> str:
        """A text that differs whenever two records differ in what decides the outcome of a compile.

        It is derived from the table: every field counts that is not declared to decide something else.

        >>> plain = CompileOptions()
        >>> replace(plain, dump_dir=Path("elsewhere")).fingerprint() == plain.fingerprint()
        True
        >>> replace(plain, recompute="off").fingerprint() == plain.fingerprint()
        False
        """
        deciding = [name for name, option in _by_field().items() if option.decides == "compile"]
        return fingerprint({name: getattr(self, name) for name in deciding})


@functools.cache
def _by_field() -> Mapping[str, Option]:
    """The option of each field. A field without one is a mistake in the table."""
    declared = {option.field: option for option in OPTIONS.values() if option.field}
    return {f.name: declared[f.name] for f in dataclasses.fields(CompileOptions)}


def fingerprint(values: Mapping[str, Any]) -> str:
    """A digest of values by name that does not depend on the order of names, sets and mappings."""
    text = repr([(name, _plain(values[name])) for name in sorted(values)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [(str(k), _plain(value[k])) for k in sorted(value, key=str)]
    if isinstance(value, frozenset | set):
        return sorted(map(repr, value))
    return value


def _environment_options() -> CompileOptions:
    given = from_environment(only=_reaches_compiler)
    return compile_options(given, CompileOptions())


def _reaches_compiler(option: Option) -> bool:
    return bool(option.field) or (option.decides == "compile" and "ge" in option.doors)


# -- what options mean ------------------------------------------------------------------------------------------


def meaning(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that others stand for, together with those given themselves; values are parsed ones.

    >>> meaning({"debug_dir": "graphs", "precision_mode_v2": None})
    {'dump': frozenset({'all'}), 'dump_dir': 'graphs'}
    """
    found = {n: value for n, value in given.items() if OPTIONS[n].decides in ("compile", "run", "start")}
    for name, stands_for in _STAND_FOR.items():
        if given.get(name) not in (None, "", (), {}):
            found[stands_for] = given[name]
    if given.get("soc_version"):
        found["target"] = target_of(given["soc_version"])
    if given.get("debug_dir"):
        found["dump"], found["dump_dir"] = frozenset({"all"}), given["debug_dir"]
    if given.get("op_compiler_cache_mode") == "disable":
        found["cache_dir"] = Path("off")
    halves = [given.get(name) for name in ("variable_memory_max_size", "graph_memory_max_size")]
    if None not in halves:
        found["memory_limit"] = sum(halves)
    if given.get("profiling_mode") is not None:
        found["profiling"] = given["profiling_mode"]
    if (folder := _profiling_folder(given.get("profiling_options"))) and given.get("profiling_mode"):
        found["profiling_dir"] = folder
    return found


_STAND_FOR = {
    "precision_mode_v2": "precision_mode",
    "custom_opp_path": "opp_path",
    "input_shape": "input_shapes",
    "out_nodes": "output_nodes",
    "op_compiler_cache_dir": "cache_dir",
    "iterations_per_loop": "loop_size",
}


def _profiling_folder(text: str | None) -> Path | None:
    if not text or not text.strip():
        return None
    try:
        folder = json.loads(text).get("output", "")
    except (ValueError, AttributeError) as error:
        raise OptionError(
            "E10010",
            f"profiling_options cannot be {text!r}: it is not valid JSON",
            remedy='use JSON such as {"output": "folder"}',
        ) from error
    return Path(folder) if folder else None


def compile_options(given: Mapping[str, Any], base: CompileOptions | None = None) -> CompileOptions:
    """The record of options by name (parsed values), over a base: by default what the environment says."""
    options = base if base is not None else _environment_options()
    values = meaning(given)
    changes = {OPTIONS[n].field: value for n, value in values.items() if OPTIONS[n].field}
    modes = _op_precision(values)
    if modes or "op_precision" in values:
        changes["op_precision"] = modes
    if "op_select_implmode" in values or "optypelist_for_implmode" in values:
        changes.pop("implementation", None)
        changes |= files.implementation_choice(
            values.get("op_select_implmode", options.implementation),
            values.get("optypelist_for_implmode", ()),
        )
    if by_name := _op_implementation(values):
        changes["op_implementation"] = {**changes.get("op_implementation", {}), **by_name}
    if switches := values.get("fusion_switch_file"):
        off = changes.get("disabled_passes", options.disabled_passes)
        changes["disabled_passes"] = off | files.fusion_switches(switches)
    if changes.get("dump_dir", options) is None:
        del changes["dump_dir"]
    return replace(options, **changes)


def _op_precision(values: Mapping[str, Any]) -> dict[str, str]:
    modes: dict[str, str] = {}
    if path := values.get("modify_mixlist"):
        modes.update(files.mixed_precision_lists(path))
    if path := values.get("op_precision_mode"):
        modes.update(files.op_precision(path))
    if path := values.get("keep_dtype"):
        modes.update(dict.fromkeys(files.keep_dtype(path), PrecisionMode.KEEP.value))
    modes.update(values.get("op_precision") or {})
    return {name: _checked_mode(name, mode) for name, mode in modes.items()}


def _checked_mode(name: str, mode: str) -> str:
    try:
        return PrecisionMode.parse(mode).value
    except GeError as error:
        raise GeError("E10010", f"precision of '{name}': {error.cause}", remedy=error.remedy) from error


def _op_implementation(values: Mapping[str, Any]) -> dict[str, Implementation]:
    found: dict[str, Implementation] = {}
    if path := values.get("op_precision_mode"):
        found.update(files.op_implementation(path))
    found.update(values.get("op_implementation") or {})
    return found
