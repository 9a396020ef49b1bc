"""Options of a session: the parameters of the custom optimizer "NpuOptimizer" in a session's configuration."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorflow.core.protobuf import config_pb2

from ge.options import CompileOptions
from tf_adapter.options import Options, tell_of_precision
from tf_adapter.options import options as process_options

__all__ = ["OPTIMIZER", "SessionOptions", "configured", "known_names", "set_parameters", "valid_names"]

OPTIMIZER = "NpuOptimizer"
_log = logging.getLogger("npu_bridge")

# Options of a session that mean something here; the rest of what scripts set is listed below.
_MEANING = {
    "use_off_line": bool,
    "mix_compile_mode": bool,
    "iterations_per_loop": int,
    "precision_mode": str,
    "precision_mode_v2": str,
    "modify_mixlist": str,
    "op_select_implmode": str,
    "optypelist_for_implmode": str,
    "fusion_switch_file": str,
    "enable_dump": bool,
    "dump_path": str,
    "deterministic": int,
    "op_compiler_cache_dir": str,
    "op_compiler_cache_mode": str,
    "profiling_mode": bool,
    "profiling_options": str,
}
# Accepted, checked for their type, and said once to have no effect on our devices.
_WITHOUT_EFFECT = {
    "ac_parallel_enable": str,
    "allow_mix_precision": bool,
    "aoe_config_file": str,
    "aoe_mode": str,
    "auto_multistream_parallel_mode": str,
    "auto_tune_mode": str,
    "buffer_optimize": str,
    "compile_dynamic_mode": bool,
    "compile_hybrid_mode": int,
    "compress_weight_conf": str,
    "customize_dtypes": str,
    "debug_dir": str,
    "device_type": str,
    "distribute_config": str,
    "do_npu_optimizer": bool,
    "dump_data": str,
    "dump_debug_mode": str,
    "dump_layer": str,
    "dump_mode": str,
    "dump_step": str,
    "dynamic_dims": str,
    "dynamic_graph_execute_mode": str,
    "dynamic_input": bool,
    "dynamic_inputs_shape_range": str,
    "dynamic_node_type": int,
    "enable_compress_weight": bool,
    "enable_data_pre_proc": bool,
    "enable_dump_debug": bool,
    "enable_exception_dump": int,
    "enable_online_inference": bool,
    "enable_scope_fusion_passes": str,
    "enable_small_channel": int,
    "event_sync_timeout": int,
    "execute_placement": str,
    "experimental_logical_device_cluster_deploy_mode": str,
    "experimental_logical_device_id": str,
    "external_weight": bool,
    "frozen_variable": bool,
    "graph_compiler_cache_dir": str,
    "graph_memory_max_size": str,
    "graph_parallel_option_path": str,
    "graph_run_mode": int,
    "graph_slice": str,
    "HCCL_algorithm": str,
    "hccl_timeout": int,
    "hcom_multi_mode": bool,
    "hcom_parallel": bool,
    "input_batch_cpy": bool,
    "input_fusion_size": int,
    "input_shape": str,
    "insert_op_file": str,
    "is_tailing_optimization": bool,
    "is_var_init_graph": bool,
    "jit_compile": bool,
    "job": str,
    "jobgraph_memory": str,
    "local_device_list": str,
    "local_rank_id": int,
    "logical_device_cluster_deploy_mode": str,
    "lower_functional_ops": bool,
    "memory_optimization_policy": str,
    "min_group_size": int,
    "mstune_mode": str,
    "oo_constant_folding": str,
    "oo_dead_code_elimination": str,
    "oo_level": str,
    "op_debug_config": str,
    "op_debug_level": int,
    "op_execute_timeout": int,
    "op_precision_mode": str,
    "op_tune_mode": str,
    "op_wait_timeout": int,
    "quant_dumpable": str,
    "session_device_id": int,
    "shape_generalization": str,
    "soc_config": str,
    "static_memory_policy": int,
    "stream_max_parallel_num": str,
    "stream_sync_timeout": int,
    "task_index": int,
    "topo_sorting_mode": int,
    "variable_format_optimize": bool,
    "variable_memory_max_size": str,
    "variable_placement": str,
    "work_path": str,
}


def known_names() -> dict[str, type]:
    """Every parameter by name, with the type of its value."""
    return {**_MEANING, **_WITHOUT_EFFECT}


def valid_names(name: str, known: Collection[str]) -> str:
    """What to use instead of an unknown name: the nearest ones, then all.

    >>> valid_names("precison_mode", ["precision_mode", "dump_path"])
    'did you mean precision_mode? Valid names: dump_path, precision_mode'
    """
    near = difflib.get_close_matches(name, known, 3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return f"{hint}Valid names: {', '.join(sorted(known))}"


@dataclass(frozen=True)
class SessionOptions:
    """What the configuration of a session asks for."""

    offload: bool = True
    mixed: bool = False
    iterations_per_loop: int = 1
    compile_options: CompileOptions = field(default_factory=CompileOptions)
    process: Mapping[str, Any] = field(default_factory=dict)  # options that hold for the whole process

    def start(self) -> None:
        """Put into effect what holds for the whole process: profiles, and where compiled models are kept."""
        tell_of_precision(self.compile_options.precision_mode, self.compile_options.target)
        if self.process:
            process_options.set(**self.process)

    @classmethod
    def of(cls, config: Any) -> SessionOptions:
        """The options in a ConfigProto; without the custom optimizer, the defaults."""
        optimizers = [] if config is None else config.graph_options.rewrite_options.custom_optimizers
        chosen = [o for o in optimizers if o.name == OPTIMIZER]
        return cls.read({} if not chosen else {k: _value(k, v) for k, v in chosen[-1].parameter_map.items()})

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> SessionOptions:
        """Options from parameters by name."""
        for name in values:
            _check_name(name)
        _announce(name for name in values if name in _WITHOUT_EFFECT)
        mixed = values.get("mix_compile_mode", False)
        iterations = values.get("iterations_per_loop", 1)
        if mixed and iterations > 1:
            raise ValueError(
                f"iterations_per_loop={iterations} cannot be used with mix_compile_mode: host operators run once "
                "per sess.run; leave iterations_per_loop at 1 or switch mix_compile_mode off"
            )
        if iterations < 1:
            raise ValueError(f"iterations_per_loop must be 1 or more, not {iterations}")
        offload = values.get("use_off_line", True)
        return cls(offload, mixed, iterations, _compile_options(values), _process(values))


def _process(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the process that parameters of a session mean."""
    found: dict[str, Any] = {}
    if values.get("op_compiler_cache_mode", "enable") != "disable" and values.get("op_compiler_cache_dir"):
        found["cache_dir"] = values["op_compiler_cache_dir"]
    if values.get("profiling_mode"):
        found["profiling"] = True
        folder = _profiling_folder(values.get("profiling_options", ""))
        found.update({"profiling_dir": folder} if folder else {})
    return found


def _profiling_folder(text: str) -> str:
    """Where profiles go: "output" in profiling_options, which are JSON."""
    if not text.strip():
        return ""
    try:
        return str(json.loads(text).get("output", ""))
    except (ValueError, AttributeError) as error:
        raise ValueError(f'profiling_options must be JSON such as {{"output": "folder"}}: {error}') from error


def _compile_options(values: Mapping[str, Any]) -> CompileOptions:
    """Those of the process, with what the session changes."""
    options = Options()
    changes = {
        "precision_mode": values.get("precision_mode_v2") or values.get("precision_mode"),
        "modify_mixlist": values.get("modify_mixlist"),
        "op_select_implmode": values.get("op_select_implmode"),
        "optypelist_for_implmode": values.get("optypelist_for_implmode"),
        "fusion_switch_file": values.get("fusion_switch_file"),
        "deterministic": values.get("deterministic"),
        "dump": "all" if values.get("enable_dump") else None,
        "dump_dir": values.get("dump_path"),
    }
    options.set(**{name: value for name, value in changes.items() if value not in (None, "")})
    return options.compile_options()


def set_parameters(optimizer: Any, values: Mapping[str, Any]) -> None:
    """Write parameters, those that are not None, into a custom optimizer's message."""
    known = known_names()
    for name, value in values.items():
        if value is None:
            continue
        _check_name(name)
        field = {bool: "b", int: "i", str: "s"}[known[name]]
        setattr(optimizer.parameter_map[name], field, value.encode() if field == "s" else value)


def configured(session_config: Any, parameters: dict[str, Any]) -> Any:
    """A copy of a session's configuration that carries the NPU's options; wrong ones raise."""
    config = config_pb2.ConfigProto(allow_soft_placement=True)
    if session_config is not None:
        config.CopyFrom(session_config)
    optimizers = config.graph_options.rewrite_options.custom_optimizers
    existing = [o for o in optimizers if o.name == OPTIMIZER]
    optimizer = existing[-1] if existing else optimizers.add(name=OPTIMIZER)
    set_parameters(optimizer, parameters)
    SessionOptions.of(config)
    return config


def _value(name: str, message: Any) -> Any:
    _check_name(name)
    kind = known_names()[name]
    field = message.WhichOneof("value")
    if kind is bool and field == "b":
        return message.b
    if kind is int and field == "i":
        return int(message.i)
    if kind is str and field == "s":
        return message.s.decode()
    wanted = {bool: ".b = True or False", int: ".i = a number", str: '.s = tf.compat.as_bytes("…")'}[kind]
    given = f".{field} = {getattr(message, field)!r}" if field else "nothing"
    raise ValueError(f'parameter_map["{name}"] takes {wanted}; it was given {given}')


def _check_name(name: str) -> None:
    if name not in known_names():
        raise ValueError(f"NpuOptimizer has no parameter '{name}'; {valid_names(name, known_names())}")


_announced: set[str] = set()


def _announce(names: Any) -> None:
    """Say, once a process, which options have no effect."""
    new = sorted(set(names) - _announced)
    _announced.update(new)
    if new:
        _log.warning("options without effect on this device: %s", ", ".join(new))
