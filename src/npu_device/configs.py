"""`npu_device.global_options()`: the tree of options, each with its values; those that mean something here are set in
`tf_adapter.options`, the others are accepted, checked, and said once to have no effect."""

from __future__ import annotations

import difflib
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tf_adapter.options import options

__all__ = ["Branch", "global_options", "say_once"]

_log = logging.getLogger("npu_device")
_said: set[str] = set()


def say_once(text: str) -> None:
    """Tell the user something, the first time only."""
    if text not in _said:
        _said.add(text)
        _log.warning("%s", text)


# -- values --------------------------------------------------------------------------------------------------


def _one_of(*allowed: Any) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if not any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed):
            raise ValueError(f"use one of {', '.join(map(repr, allowed))}")
        return value

    return check


_switch = _one_of(True, False)
_flag = _one_of(0, 1, True, False, "0", "1")


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, (str, Path)):
        raise ValueError("use a text")
    return None if value is None else str(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("use a whole number")
    return value


def _bytes(value: Any) -> int:
    """A number of bytes, or a text like "16 * 1024 * 1024 * 1024"."""
    text = str(value)
    if not re.fullmatch(r"\s*\d+(\s*\*\s*\d+)*\s*", text):
        raise ValueError("use bytes, as a number or a product of numbers")
    return math.prod(int(part) for part in text.split("*"))


def _steps(value: Any) -> str | None:
    """Steps to dump: "0|5|10-20"."""
    if value is not None and not re.fullmatch(r"\d+(-\d+)?(\|\d+(-\d+)?)*", str(value)):
        raise ValueError('use steps like "0|5|10-20"')
    return None if value is None else str(value)


def _precision(value: Any) -> str:
    return options.settings()["precision_mode"].read(value).value


def _implementation(value: Any) -> str:
    return options.settings()["op_select_implmode"].read(value).value


def _loop_size(value: Any) -> int:
    return int(options.settings()["loop_size"].read(value))


def _recompute(value: Any) -> str:
    return str(options.settings()["recompute"].read(value))


def _file(value: Any) -> str | None:
    if value is not None and not Path(value).is_file():
        raise ValueError("there is no such file")
    return None if value is None else str(value)


# -- the tree ------------------------------------------------------------------------------------------------


class Branch:
    """A node of the tree: its options by name, checked when they are set."""

    def __init__(
        self, path: str, checks: Mapping[str, Callable[[Any], Any] | Branch], effects: Mapping[str, Any]
    ) -> None:
        inner = {n: c for n, c in checks.items() if isinstance(c, Branch)}
        self.__dict__.update(_path=path, _checks=checks, _effects=effects, _values=dict(inner))

    def __getattr__(self, name: str) -> Any:
        if name not in self._checks:
            raise AttributeError(self._unknown(name))
        return self._values.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        check = self._checks.get(name)
        if check is None or isinstance(check, Branch):
            raise AttributeError(self._unknown(name))
        try:
            self._values[name] = check(value)
        except ValueError as error:
            raise ValueError(f"{self._path}.{name} cannot be {value!r}: {error}") from error
        effect = self._effects.get(name)
        if effect is not None:
            effect(self)
        else:
            say_once(f"{self._path}.{name} has no effect on this device")

    def __dir__(self) -> list[str]:
        return sorted(self._checks)

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, list(self._checks), 3, 0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(sorted(self._checks))}"
        return f"{self._path} has no option '{name}'; {hint}"


def _same(name: str) -> Callable[[Branch], None]:
    def effect(branch: Branch) -> None:
        options.set(**{name: getattr(branch, name)})

    return effect


def _cache(branch: Branch) -> None:
    on = branch.op_compiler_cache_mode != "disable"
    options.cache_dir = branch.op_compiler_cache_dir if on else None


def _memory(branch: Branch) -> None:
    """The limit holds once both halves are known."""
    halves = (branch.variable_memory_max_size, branch.graph_memory_max_size)
    if None not in halves:
        options.memory_limit = sum(halves)


def _iterations(branch: Branch) -> None:
    from npu_device.devices import set_npu_loop_size

    set_npu_loop_size(branch.iterations_per_loop)


def _host_fallback(branch: Branch) -> None:
    if branch.mix_compile_mode:
        options.allow_host_fallback = True
    else:
        say_once(
            "mix_compile_mode=False has no effect on this device: operators the NPU lacks run on the host; "
            "tf_adapter.options.allow_host_fallback=False makes them errors"
        )


def _dump(branch: Branch) -> None:
    """Graphs are dumped after every stage of a compile."""
    if branch.dump_path is not None:
        options.dump_dir = branch.dump_path
    options.dump = "all" if branch.enable_dump else ""


def _profiling(branch: Branch) -> None:
    if branch.profiling_options is not None:
        try:
            given = json.loads(branch.profiling_options)
        except ValueError as error:
            raise ValueError(f"profiling_options is not valid JSON: {error}") from error
        if given.get("output"):
            options.profiling_dir = given["output"]
    options.profiling = bool(branch.enable_profiling)


def _tree() -> Branch:
    root = "npu_device.global_options()"
    dump = Branch(
        f"{root}.dump_config",
        {
            "enable_dump": _switch,
            "dump_path": _text,
            "dump_step": _steps,
            "dump_mode": _one_of("input", "output", "all"),
            "enable_dump_debug": _switch,
            "dump_debug_mode": _one_of("aicore_overflow", "atomic_overflow", "all"),
            "dump_data": _one_of("tensor", "stats"),
            "dump_layer": _text,
        },
        {"enable_dump": _dump, "dump_path": _dump},
    )
    profiling = Branch(
        f"{root}.profiling_config",
        {"enable_profiling": _switch, "profiling_options": _text},
        {"enable_profiling": _profiling, "profiling_options": _profiling},
    )
    branches = Branch(
        f"{root}.experimental.multi_branches_config",
        {"input_shape": _text, "dynamic_dims": _text, "dynamic_node_type": _one_of(0, 1, "0", "1")},
        {},
    )
    return Branch(
        root,
        {
            "precision_mode": _precision,
            "precision_mode_v2": _precision,
            "modify_mixlist": _file,
            "fusion_switch_file": _file,
            "mix_compile_mode": _switch,
            "deterministic": _flag,
            "recompute": _recompute,
            "variable_memory_max_size": _bytes,
            "graph_memory_max_size": _bytes,
            "op_compiler_cache_mode": _one_of("enable", "disable", "force"),
            "op_compiler_cache_dir": _text,
            "auto_tune_mode": _text,
            "hcom_parallel": _switch,
            "is_tailing_optimization": _switch,
            "graph_run_mode": _one_of(0, 1),
            "iterations_per_loop": _loop_size,
            "enable_data_pre_proc": _switch,
            "dynamic_input": _switch,
            "dynamic_graph_execute_mode": _one_of("lazy_recompile", "dynamic_execute"),
            "dynamic_inputs_shape_range": _text,
            "customize_dtypes": _text,
            "op_debug_level": _one_of(0, 1, 2, 3, 4),
            "op_select_implmode": _implementation,
            "optypelist_for_implmode": _text,
            "jit_compile": _one_of(True, False, "auto"),
            "min_group_size": _whole,
            "enable_scope_fusion_passes": _text,
            "enable_small_channel": _flag,
            "buffer_optimize": _text,
            "stream_max_parallel_num": _text,
            "dump_config": dump,
            "profiling_config": profiling,
            "experimental": Branch(f"{root}.experimental", {"multi_branches_config": branches}, {}),
        },
        {
            "precision_mode": _same("precision_mode"),
            "precision_mode_v2": lambda b: options.set(precision_mode=b.precision_mode_v2),
            "modify_mixlist": _same("modify_mixlist"),
            "op_select_implmode": _same("op_select_implmode"),
            "optypelist_for_implmode": lambda b: options.set(
                optypelist_for_implmode=b.optypelist_for_implmode or ""
            ),
            "fusion_switch_file": _same("fusion_switch_file"),
            "recompute": _same("recompute"),
            "iterations_per_loop": _iterations,
            "mix_compile_mode": _host_fallback,
            "deterministic": lambda b: options.set(deterministic=b.deterministic in (1, True, "1")),
            "variable_memory_max_size": _memory,
            "graph_memory_max_size": _memory,
            "op_compiler_cache_mode": _cache,
            "op_compiler_cache_dir": _cache,
        },
    )


_TREE = _tree()


def global_options() -> Branch:
    """The options of all devices of this process.

    >>> global_options().precision_mode = "must_keep_origin_dtype"
    >>> global_options().precision_mode
    'must_keep_origin_dtype'
    """
    return _TREE
