"""Texts of atc's options into values, and the table of options without effect. Imports nothing heavy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ge.errors import GeError

__all__ = [
    "NO_EFFECT",
    "ParsedExtras",
    "parse_extras",
    "parse_names",
    "parse_output_type",
    "parse_shapes",
    "parse_soc_version",
    "unknown_option",
]

# Options of the original tool whose meaning is bound to its hardware or its caches.
_NO_EFFECT = """
    ac_parallel_enable aicore_num allow_hf32 atomic_clean_policy auto_tune_mode buffer_optimize
    check_report cluster_config compress_weight_conf compression_optimize_conf core_type
    customize_dtypes ddk_version deterministic deterministic_level disable_reuse_memory
    distributed_cluster_build dynamic_compatible enable_compress_weight enable_graph_parallel
    enable_scope_fusion_passes enable_single_stream enable_small_channel enable_sparse_matrix_weight
    export_compile_stat external_weight graph_parallel_option_path host_env_cpu host_env_os
    input_hint_shape is_input_adjust_hw_layout is_output_adjust_hw_layout jit_compile mdl_bank_path
    model_relation_config net_format oo_constant_folding oo_dead_code_elimination oo_level
    op_bank_path op_bank_update op_compiler_cache_dir op_compiler_cache_mode op_debug_config
    op_debug_level op_name_map quant_dumpable save_original_model
    shape_generalized_build_mode sparsity status_check tiling_schedule_optimize topo_sorting_mode
    virtual_type weight
"""
NO_EFFECT = frozenset(_NO_EFFECT.split())
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
_ASCEND = re.compile(r"(ascend|bs9sx|hi\d)", re.IGNORECASE)


@dataclass(frozen=True)
class ParsedExtras:
    """What is left of a command line besides the options that mean something."""

    without_effect: tuple[str, ...]


def parse_extras(extras: Sequence[str], known: Iterable[str]) -> ParsedExtras:
    """Sort out unknown options: those of the original tool are accepted, others are errors.

    >>> parse_extras(["--op_debug_level=1", "--weight", "w.caffemodel"], [])
    ParsedExtras(without_effect=('op_debug_level', 'weight'))
    """
    found: list[str] = []
    expects_value = False
    for word in extras:
        if word.startswith("--"):
            name = word[2:].split("=", 1)[0]
            if name not in NO_EFFECT:
                raise unknown_option(name, [*known, *NO_EFFECT])
            found.append(name)
            expects_value = "=" not in word
        elif expects_value:
            expects_value = False
        else:
            raise GeError("E12002", f"'{word}' is not an option", remedy="options are written --name=value")
    return ParsedExtras(tuple(dict.fromkeys(found)))


def unknown_option(name: str, known: Iterable[str]) -> GeError:
    """The error of an option that does not exist, with the nearest that do."""
    near = difflib.get_close_matches(name, sorted(set(known)), 3, 0.5)
    remedy = f"did you mean {', '.join('--' + n for n in near)}" if near else "atc --help lists the options"
    return GeError("E12001", f"there is no option --{name}", remedy=remedy)


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes by input name; names may contain colons.

    >>> parse_shapes("x:1,3,224,224;ids:0:-1,128")
    {'x': (1, 3, 224, 224), 'ids:0': (-1, 128)}
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for part in filter(None, (p.strip() for p in text.strip("\"' ").split(";"))):
        name, colon, dims = part.rpartition(":")
        try:
            shape = tuple(int(d) for d in dims.split(",") if d.strip())
        except ValueError:
            shape, colon = (), ""
        if not colon or not name or any(d < -1 for d in shape):
            raise GeError("E12004", f"'{part}' is not an input shape", remedy='write "x:1,3,224,224;y:1,10"')
        shapes[name.strip()] = shape
    return shapes


def parse_names(text: str) -> tuple[str, ...]:
    """Names separated by semicolons.

    >>> parse_names("a:0; b:1")
    ('a:0', 'b:1')
    """
    return tuple(filter(None, (part.strip() for part in text.strip("\"' ").split(";"))))


def parse_output_type(text: str) -> dict[str, str]:
    """Element types by output; the empty name stands for all of them.

    >>> parse_output_type("FP16"), parse_output_type("a:0:FP32;b:UINT8")
    ({'': 'float16'}, {'a:0': 'float32', 'b': 'uint8'})
    """
    types: dict[str, str] = {}
    for part in parse_names(text):
        name, _, type_ = part.rpartition(":")
        if type_.upper() not in _OUTPUT_TYPES:
            raise GeError(
                "E12004", f"output type '{type_}' is unknown", remedy=f"use {', '.join(_OUTPUT_TYPES)}"
            )
        types[name] = _OUTPUT_TYPES[type_.upper()]
    return types


def parse_soc_version(text: str) -> tuple[str, str]:
    """The target that a name stands for, and what to say about it.

    >>> parse_soc_version("Ascend310P3")
    ('host', 'soc_version Ascend310P3 stands for this machine: the model is compiled for the CPU device')
    """
    name = text.lower()
    if name in ("", "cpu", "host"):
        return "host", ""
    if name in ("portable", "cpu_portable", "x86_64"):
        return "portable", ""
    if _ASCEND.match(text):
        return "host", f"soc_version {text} stands for this machine: the model is compiled for the CPU device"
    from ge.target import NAMES

    if name in NAMES:
        return name, ""
    raise GeError(
        "E12006",
        f"soc_version '{text}' is unknown",
        remedy=f"use cpu, one of {', '.join(NAMES)}, or an Ascend name, which means cpu",
    )
