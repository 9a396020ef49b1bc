"""Options of a session: the parameters of the custom optimizer "NpuOptimizer" in a session's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorflow.core.protobuf import config_pb2

from ge import tensor_dump
from ge.options import CompileOptions, OptionError, compile_options
from ge.options.record import meaning
from ge.options.table import Option, tell_idle, unknown, view
from tf_adapter.options import options as process_options
from tf_adapter.options import tell_of_precision

__all__ = ["OPTIMIZER", "SessionOptions", "configured", "set_parameters"]

OPTIMIZER = "NpuOptimizer"
_FIELDS = {bool: "b", int: "i", str: "s"}  # of a parameter's message


@dataclass(frozen=True)
class SessionOptions:
    """Options set in a session's configuration."""

    offload: bool = True
    mixed: bool = False
    iterations_per_loop: int = 1
    compile_options: CompileOptions = field(default_factory=CompileOptions)
    process: Mapping[str, Any] = field(default_factory=dict)  # process-wide options

    def start(self) -> None:
        """Apply process-wide options: profiling, dumps, and the cache folder."""
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
    def read(cls, given: Mapping[str, Any]) -> SessionOptions:
        """Options from parameters by name."""
        values: dict[str, Any] = {}
        for name, value in given.items():
            option, spelling = _option(name), f'parameter_map["{name}"]'
            parsed = option.parse(value, spelling)
            tell_idle(option, "v1", spelling)
            if not option.idle_at("v1"):
                values[option.name] = parsed
        mixed = values.get("mix_compile_mode", False)
        iterations = values.pop("iterations_per_loop", 1)
        if mixed and iterations > 1:
            raise ValueError(
                f"iterations_per_loop={iterations} cannot be used with mix_compile_mode: host operators run once "
                "per sess.run; leave iterations_per_loop at 1 or switch mix_compile_mode off"
            )
        chosen = {name: value for name, value in values.items() if value not in (None, "")}
        process = {n: value for n, value in meaning(chosen).items() if n in _PROCESS and value}
        return cls(values.get("use_off_line", True), mixed, iterations, compile_options(chosen), process)


_PROCESS = ("cache_dir", "profiling", "profiling_dir", *tensor_dump.NAMES)  # process-wide options


def set_parameters(optimizer: Any, values: Mapping[str, Any]) -> None:
    """Write parameters other than None into a custom optimizer's message."""
    for name, value in values.items():
        if value is None:
            continue
        kind = type(value) if type(value) in _option(name).parser.types else _option(name).parser.types[0]
        message = optimizer.parameter_map[name]
        setattr(message, _FIELDS[kind], str(value).encode() if kind is str else kind(value))


def configured(session_config: Any, parameters: dict[str, Any]) -> Any:
    """Copy a session's configuration and add the NPU's options; invalid ones raise."""
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
    types = _option(name).parser.types
    field = message.WhichOneof("value")
    for kind in types:
        if field == _FIELDS[kind]:
            return message.s.decode() if kind is str else kind(getattr(message, field))
    examples = {bool: ".b = True or False", int: ".i = a number", str: '.s = tf.compat.as_bytes("…")'}
    wanted = " or ".join(examples[kind] for kind in types)
    given = f".{field} = {getattr(message, field)!r}" if field else "nothing"
    raise OptionError("E10010", f'parameter_map["{name}"] takes {wanted}; it was given {given}')


def _option(name: str) -> Option:
    known = view("v1")
    if name not in known:
        raise unknown(name, known, OPTIMIZER)
    return known[name]
