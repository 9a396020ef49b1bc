"""Configuration of an NPUEstimator."""

from __future__ import annotations

import inspect
from typing import Any

import tensorflow.compat.v1 as tf

from ge.options.table import unknown, view
from npu_bridge.lazy import require_estimators
from npu_bridge.options import configured

require_estimators("npu_bridge.estimator.npu.npu_config")

__all__ = ["DumpConfig", "DynamicInputConfig", "NPURunConfig", "ProfilingConfig"]

_RUN_CONFIG_ONLY = (
    "profiling_config",
    "dump_config",
    "dynamic_input_config",
    "enable_reduce_precision",
    "horovod_mode",
    "npu_run_config",
)


class ProfilingConfig:
    """Profiling options."""

    def __init__(self, enable_profiling: bool = False, profiling_options: str = "") -> None:
        if enable_profiling and not isinstance(profiling_options, (str, list)):
            raise ValueError("profiling_options must be a text")
        self.enable_profiling = enable_profiling
        self.profiling_options = profiling_options

    def parameters(self) -> dict[str, Any]:
        """Convert to parameters of a session."""
        text = (
            ",".join(self.profiling_options)
            if isinstance(self.profiling_options, list)
            else self.profiling_options
        )
        return {"profiling_mode": self.enable_profiling, "profiling_options": text or None}


class DumpConfig:
    """Dump options."""

    def __init__(
        self,
        enable_dump: bool = False,
        dump_path: str | None = None,
        dump_step: str | None = None,
        dump_mode: str = "output",
        enable_dump_debug: bool = False,
        dump_debug_mode: str = "all",
        dump_data: str = "tensor",
        dump_layer: str | None = None,
    ) -> None:
        if (enable_dump or enable_dump_debug) and not dump_path:
            raise ValueError("a dump needs a dump_path")
        self.values = {
            "enable_dump": enable_dump,
            "dump_path": dump_path,
            "dump_step": dump_step,
            "dump_mode": dump_mode,
            "enable_dump_debug": enable_dump_debug,
            "dump_debug_mode": dump_debug_mode,
            "dump_data": dump_data,
            "dump_layer": dump_layer,
        }

    def parameters(self) -> dict[str, Any]:
        """As parameters of a session; only non-default ones."""
        if not (self.values["enable_dump"] or self.values["enable_dump_debug"]):
            return {}
        return dict(self.values)


class DynamicInputConfig:
    """Sizes of dynamic inputs; models are compiled for the actual sizes."""

    def __init__(self, input_shape: str, dynamic_dims: str, dynamic_node_type: int = 0) -> None:
        self.values = {
            "input_shape": input_shape,
            "dynamic_dims": dynamic_dims,
            "dynamic_node_type": dynamic_node_type,
        }

    def parameters(self) -> dict[str, Any]:
        """Convert to parameters of a session."""
        return dict(self.values)


class NPURunConfig(tf.estimator.RunConfig):
    """A RunConfig with the NPU's options; `session_config` carries them into every session.

    config = NPURunConfig(model_dir="model", mix_compile_mode=True, iterations_per_loop=1)
    """

    def __init__(
        self,
        iterations_per_loop: int = 1,
        profiling_config: ProfilingConfig | None = None,
        model_dir: str | None = None,
        tf_random_seed: int | None = 1,
        save_summary_steps: int = 0,
        save_checkpoints_steps: int | None = None,
        save_checkpoints_secs: int | None = None,
        session_config: Any = None,
        keep_checkpoint_max: int = 5,
        keep_checkpoint_every_n_hours: int = 10000,
        log_step_count_steps: int = 100,
        dump_config: DumpConfig | None = None,
        dynamic_input_config: DynamicInputConfig | None = None,
        train_distribute: Any = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        device_fn: Any = None,
        protocol: str | None = None,
        session_creation_timeout_secs: int = 7200,
        experimental_max_worker_delay_secs: int | None = None,
        **options: Any,
    ) -> None:
        parameters = _parameters(iterations_per_loop, options)
        for part in (profiling_config, dump_config, dynamic_input_config):
            parameters.update(part.parameters() if part is not None else {})
        super().__init__(
            model_dir=model_dir,
            tf_random_seed=tf_random_seed,
            save_summary_steps=save_summary_steps or None,
            session_config=configured(session_config, parameters),
            keep_checkpoint_max=keep_checkpoint_max,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            log_step_count_steps=log_step_count_steps,
            train_distribute=train_distribute,
            eval_distribute=eval_distribute,
            experimental_distribute=experimental_distribute,
            device_fn=device_fn,
            protocol=protocol,
            session_creation_timeout_secs=session_creation_timeout_secs,
            experimental_max_worker_delay_secs=experimental_max_worker_delay_secs,
            **_checkpoints(save_checkpoints_steps, save_checkpoints_secs),
        )
        self.iterations_per_loop = iterations_per_loop


def _checkpoints(steps: int | None, seconds: int | None) -> dict[str, int]:
    """Arguments for RunConfig; if neither is given, its own default applies."""
    if steps is not None and seconds is not None:
        raise ValueError("give save_checkpoints_steps or save_checkpoints_secs, not both")
    if steps is not None:
        return {"save_checkpoints_steps": steps}
    return {} if seconds is None else {"save_checkpoints_secs": seconds}


def _option_names() -> set[str]:
    own = inspect.signature(NPURunConfig.__init__).parameters
    return {*view("v1"), *_RUN_CONFIG_ONLY, *(n for n in own if n not in ("self", "options"))}


def _parameters(iterations_per_loop: int, options: dict[str, Any]) -> dict[str, Any]:
    known = view("v1")
    for name in options:
        if name not in known and name not in _RUN_CONFIG_ONLY:
            raise unknown(name, _option_names(), "NPURunConfig")
    values = {name: value for name, value in options.items() if name in known and value is not None}
    return {**values, "iterations_per_loop": iterations_per_loop}
