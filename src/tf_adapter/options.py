"""Options of the adapter: one typed object, `tf_adapter.options`, read from the environment at import.

    tf_adapter.options.precision_mode = "allow_mix_precision_bf16"
    with tf_adapter.options.override(allow_host_fallback=False):
        model(x)                                  # an operator that would run on the host is an error here

Options are those of the process, like tf.config's. A change takes part in the key of every compiled function
(`fingerprint`) and is told to whoever keeps compiled code (`subscribe`).

TensorFlow's own switches count as well:
* tf.config.optimizer.set_experimental_options: `auto_mixed_precision` True allows float16 inside models,
  `auto_mixed_precision_onednn_bfloat16` (or `…_mkl`) True allows bfloat16, and False for the first forbids
  both, whatever precision_mode says.
* tf.keras.mixed_precision policies put their casts into the model, which runs as it is written.
* TensorFloat-32 is an arithmetic of some GPUs: TensorFlow's flag allows it there and has no effect on the CPU
  device, where float32 products are float32 products.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

from ge import configs
from ge.errors import GeError
from ge.options import RECOMPUTE, CompileOptions, Implementation, PrecisionMode
from ge.target import Target

__all__ = ["Options", "Setting", "options", "start", "tell_of_precision"]

T = TypeVar("T")

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no", ""})
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# TensorFlow's switches of mixed precision; the first one that is on decides.
_AUTO_MIXED = {
    "auto_mixed_precision_onednn_bfloat16": PrecisionMode.MIX_BF16,
    "auto_mixed_precision_mkl": PrecisionMode.MIX_BF16,
    "auto_mixed_precision": PrecisionMode.MIX_FP16,
}
_NARROWING = frozenset(
    {
        PrecisionMode.MIX_BF16,
        PrecisionMode.MIX_FP16,
        PrecisionMode.FORCE_FP16,
        PrecisionMode.CUBE_FP16,
    }
)


# -- what values an option takes -----------------------------------------------------------------------------


def _boolean(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ValueError("use True or False")


def _count(value: Any) -> int:
    return _at_least(0, value)


def _positive(value: Any) -> int:
    return _at_least(1, value)


def _at_least(least: int, value: Any) -> int:
    try:
        found = -1 if isinstance(value, bool) or int(value) != float(value) else int(value)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if found < least:
        raise ValueError(f"use a whole number, {least} or more")
    return found


def _size(value: Any) -> int:
    """Bytes; a text may end in K, M, G or T."""
    if not isinstance(value, str):
        return _count(value)
    text = value.strip().lower().removesuffix("b").removesuffix("i")
    number = re.fullmatch(r"(\d+\.?\d*|\.\d+)\s*([kmgt]?)", text)
    if number is None:
        raise ValueError("use bytes, or a number with K, M, G or T")
    return int(float(number[1]) * _UNITS[number[2]])


def _mode(value: Any) -> PrecisionMode:
    return value if isinstance(value, PrecisionMode) else PrecisionMode.parse(str(value))


def _implementation(value: Any) -> Implementation:
    return Implementation.parse(value)


def _path(value: Any) -> Path | None:
    if value not in (None, "") and not isinstance(value, str | os.PathLike):
        raise ValueError("use a path, or None")
    return Path(value).expanduser() if value not in (None, "") else None


def _file(value: Any) -> Path | None:
    path = _path(value)
    if path is not None and not path.is_file():
        raise ValueError("there is no such file")
    return path


def _names(value: Any) -> frozenset[str]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, Iterable):
        raise ValueError("use names: a sequence of them, or a text with commas between them")
    return frozenset(filter(None, (str(p).strip() for p in parts)))


def _modes(value: Any) -> dict[str, str]:
    """Precision modes by operator or node: a mapping, or "MatMul=must_keep_origin_dtype,…"."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if not all(sign for _, sign, _ in pairs):
            raise ValueError(
                "use a mapping of names to precision modes, or 'name=mode' with commas between them"
            )
        value = {name.strip(): mode.strip() for name, _, mode in pairs}
    if not isinstance(value, Mapping):
        raise ValueError("use a mapping of names to precision modes, or 'name=mode' with commas between them")
    return {str(name): _mode(mode).value for name, mode in value.items()}


def _target(value: Any) -> str:
    if value not in ("host", "portable"):
        raise ValueError("use 'host' or 'portable'")
    return str(value)


def _recompute(value: Any) -> str:
    if value not in RECOMPUTE:
        raise ValueError(f"use one of {', '.join(map(repr, RECOMPUTE))}")
    return str(value)


@dataclass(frozen=True)
class Setting(Generic[T]):
    """One option: how a value is read, what holds when none is given, and what it decides.

    `decides` is "compile" (part of a model's key), "run" or "start" (fixed once the devices are registered).
    """

    parse: Callable[[Any], T]
    default: Any
    environment: str
    decides: str
    text: str
    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        object.__setattr__(self, "name", name)

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: Options, owner: type) -> T: ...
    def __get__(self, instance: Options | None, owner: type) -> Setting[T] | T:
        return self if instance is None else cast(T, instance.value(self.name))

    def __set__(self, instance: Options, value: Any) -> None:
        instance.set(**{self.name: value})

    def read(self, value: Any) -> T:
        """A value as this option keeps it; what it cannot be raises with what it can."""
        try:
            return self.parse(value)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"tf_adapter.options.{self.name} cannot be {value!r}: {error}") from error
        except GeError as error:
            message = f"tf_adapter.options.{self.name} cannot be {value!r}: {error.cause}; {error.remedy}"
            raise ValueError(message) from error


class Options:
    """The options in force. Attributes are checked when they are set; unknown names are errors.

    >>> given = Options({})
    >>> given.precision_mode = "allow_mix_precision_bf16"
    >>> given.precision_mode.name, given.compile_options().precision_mode.name
    ('MIX_BF16', 'MIX_BF16')
    >>> given.memory_limit = "2G"
    >>> given.memory_limit
    2147483648
    """

    precision_mode = Setting[PrecisionMode](
        _mode, PrecisionMode.KEEP, "NPU_PRECISION_MODE", "compile", "how far element types may be lowered"
    )
    op_precision = Setting[dict[str, str]](
        _modes, {}, "NPU_OP_PRECISION", "compile", "precision modes of single operators or nodes"
    )
    op_select_implmode = Setting[Implementation](
        _implementation,
        Implementation.FAST,
        "NPU_OP_SELECT_IMPLMODE",
        "compile",
        "whether products may save arithmetic at the cost of rounding errors",
    )
    optypelist_for_implmode = Setting[frozenset[str]](
        _names, frozenset(), "NPU_OPTYPELIST_FOR_IMPLMODE", "compile", "operators it is for; none: all"
    )
    modify_mixlist = Setting[Path | None](
        _file, None, "NPU_MODIFY_MIXLIST", "compile", "file that moves operators between precision lists"
    )
    fusion_switch_file = Setting[Path | None](
        _file, None, "NPU_FUSION_SWITCH_FILE", "compile", "file that switches passes off"
    )
    disabled_passes = Setting[frozenset[str]](
        _names, frozenset(), "NPU_DISABLE_PASSES", "compile", "passes that do not run"
    )
    allow_host_fallback = Setting[bool](
        _boolean,
        True,
        "NPU_ALLOW_HOST_FALLBACK",
        "compile",
        "whether operators the NPU lacks run on the host (mixed computing); an error otherwise",
    )
    deterministic = Setting[bool](
        _boolean, False, "NPU_DETERMINISTIC", "compile", "whether a run gives the same bits as the one before"
    )
    recompute = Setting[str](
        _recompute, "light", "NPU_RECOMPUTE", "compile", "what is made again rather than kept in memory"
    )
    target = Setting[str](
        _target, "host", "NPU_TARGET", "compile", "kernels for this machine, or portable ones"
    )
    dump = Setting[frozenset[str]](
        _names, frozenset(), "NPU_DUMP", "run", "stages whose graphs are written: names, or 'all'"
    )
    dump_dir = Setting[Path | None](_path, Path("npu_dump"), "NPU_DUMP_DIR", "run", "where dumps are written")
    profiling = Setting[bool](
        _boolean, False, "NPU_PROFILING", "run", "whether the time of every task is written down"
    )
    profiling_dir = Setting[Path | None](
        _path, Path("npu_profile"), "NPU_PROFILING_DIR", "run", "where profiles are written"
    )
    explain = Setting[bool](
        _boolean, False, "NPU_EXPLAIN", "run", "whether every compile says which node runs where, and why"
    )
    memory_limit = Setting[int](
        _size, 0, "NPU_MEMORY_LIMIT", "run", "bytes a device may use; 0: the machine's memory"
    )
    num_threads = Setting[int](
        _count, 0, "NPU_NUM_THREADS", "run", "threads of a device; 0: its share of the cores"
    )
    cache_dir = Setting[Path | None](
        _path, None, "NPU_CACHE_DIR", "run", "where compiled models are kept between processes; None: nowhere"
    )
    prefetch = Setting[int](
        _count, 2, "NPU_PREFETCH", "run", "batches prepared ahead by iterators over datasets; 0: none"
    )
    loop_size = Setting[int](
        _positive, 1, "NPU_LOOP_SIZE", "run", "steps in one call of Keras models whose compile() names none"
    )
    device_count = Setting[int](
        _positive, 1, "NPU_DEVICE_COUNT", "start", "how many devices there are, sharing this machine"
    )

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.RLock()
        self._listeners: list[Callable[[], None]] = []
        self._started = False
        source = os.environ if environment is None else environment
        self._values: dict[str, Any] = {}
        for name, setting in self.settings().items():
            text = source.get(setting.environment)
            self._values[name] = setting.default if text is None else setting.read(text)

    @classmethod
    def settings(cls) -> dict[str, Setting[Any]]:
        """All options by name."""
        return {name: item for name, item in vars(cls).items() if isinstance(item, Setting)}

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in self.settings():
            raise AttributeError(_unknown(name, self.settings()))
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        changed = {n: v for n, v in self._values.items() if v != self.settings()[n].default}
        return f"Options({', '.join(f'{n}={v!r}' for n, v in changed.items())})"

    def value(self, name: str) -> Any:
        """The value of an option by name."""
        return self._values[name]

    def set(self, **values: Any) -> None:
        """Set several options at once: either all are valid and set, or none is."""
        known = self.settings()
        for name in values:
            if name not in known:
                raise AttributeError(_unknown(name, known))
        read = {name: known[name].read(value) for name, value in values.items()}
        with self._lock:
            changed = {name: value for name, value in read.items() if value != self._values[name]}
            late = [name for name in changed if known[name].decides == "start" and self._started]
            if late:
                variable = known[late[0]].environment
                raise RuntimeError(
                    f"tf_adapter.options.{late[0]} is fixed once the devices are registered;"
                    f" set {variable} before importing tf_adapter"
                )
            self._values.update(changed)
        if changed:
            self.changed()

    @contextmanager
    def override(self, **values: Any) -> Iterator[Options]:
        """Options that hold inside a with statement, in all threads."""
        before = {name: self._values[name] for name in values if name in self._values}
        self.set(**values)
        try:
            yield self
        finally:
            self.set(**before)

    def reset(self) -> None:
        """Back to what the environment says."""
        fresh = Options()
        self.set(**{n: fresh.value(n) for n, s in self.settings().items() if s.decides != "start"})

    # -- who listens -----------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Have a function called after every change of options."""
        with self._lock:
            self._listeners.append(listener)

    def changed(self) -> None:
        """Tell the listeners; also called when one of TensorFlow's own switches was set."""
        for listener in tuple(self._listeners):
            listener()

    def freeze_start(self) -> None:
        """Say that the devices are registered: what decides their number is fixed."""
        self._started = True

    # -- what the compiler gets ------------------------------------------------------------------------------

    @property
    def effective_precision(self) -> PrecisionMode:
        """The precision mode after TensorFlow's own switches."""
        switches = _tensorflow_switches()
        if switches.get("auto_mixed_precision") is False and self.precision_mode in _NARROWING:
            return PrecisionMode.KEEP
        if self.precision_mode is not PrecisionMode.KEEP:
            return self.precision_mode
        return next((mode for name, mode in _AUTO_MIXED.items() if switches.get(name)), PrecisionMode.KEEP)

    def compile_options(self, **given: Any) -> CompileOptions:
        """The options of a compile; arguments win."""
        values: dict[str, Any] = {
            "precision_mode": self.effective_precision,
            "op_precision": self._op_precision(),
            "disabled_passes": self._disabled_passes(),
            "dump_stages": self.dump,
            "dump_dir": self.dump_dir or Path("npu_dump"),
            "target": self.target,
            "recompute": self.recompute,
            **configs.implementation_choice(self.op_select_implmode, self.optypelist_for_implmode),
        }
        chosen = CompileOptions(**{**values, **given})
        tell_of_precision(chosen.precision_mode, chosen.target)
        return chosen

    def fingerprint(self) -> str:
        """A text that differs whenever options differ that decide what a compile gives.

        >>> given = Options({})
        >>> before = given.fingerprint()
        >>> given.cache_dir = "models"
        >>> given.fingerprint() == before
        True
        >>> given.disabled_passes = "fuse_softmax"
        >>> given.fingerprint() == before
        False
        """
        parts = [
            self.effective_precision.value,
            sorted(self._op_precision().items()),
            sorted(self._disabled_passes()),
            self.target,
            self.recompute,
            self.op_select_implmode.value,
            sorted(self.optypelist_for_implmode),
            self.allow_host_fallback,
            self.deterministic,
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def _op_precision(self) -> dict[str, str]:
        moved = configs.mixed_precision_lists(self.modify_mixlist) if self.modify_mixlist else {}
        return {**moved, **self.op_precision}

    def _disabled_passes(self) -> frozenset[str]:
        switched = (
            configs.fusion_switches(self.fusion_switch_file) if self.fusion_switch_file else frozenset()
        )
        return self.disabled_passes | switched


def _unknown(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 3, 0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known)}"
    return f"tf_adapter.options has no option '{name}'; {hint}"


@functools.cache
def tell_of_precision(mode: PrecisionMode, target: Target) -> None:
    """Say once that a mode which allows a narrow type changes nothing where the target lacks that type."""
    from ge.passes.lower_precision import MODES

    lowered = MODES.get(mode)
    if lowered is None or lowered.forced or lowered.dtype in target.narrow_floats:
        return
    others = [m.value for m, other in MODES.items() if other.forced or other.dtype in target.narrow_floats]
    warnings.warn(
        f"precision mode '{mode.value}' changes nothing: the primitives of target '{target.name}' lack "
        f"{lowered.dtype}, so products stay float32. Modes that take effect here: {', '.join(others)}.",
        stacklevel=3,
    )


# -- TensorFlow's own switches -------------------------------------------------------------------------------


def _tensorflow_switches() -> dict[str, Any]:
    """What was set with tf.config.optimizer.set_experimental_options, {} without TensorFlow."""
    context = sys.modules.get("tensorflow.python.eager.context")
    if context is None:
        return {}
    return dict(context.context().get_optimizer_experimental_options())


options = Options()


def start() -> None:
    """What follows from options once the devices are registered: limits, threads, TensorFlow's own switches."""
    from tf_adapter.compatibility import patch_keras

    options.freeze_start()
    options.subscribe(_Limits().apply)
    options.subscribe(patch_keras)
    patch_keras()


class _Limits:
    """Hands limits to the runtime when they change; what was never set here stays as others set it."""

    def __init__(self) -> None:
        import npu_runtime

        self.runtime = npu_runtime
        self.devices = range(npu_runtime.device_count())
        self.threads = [npu_runtime.num_threads(index) for index in self.devices]
        self.applied = (0, 0)
        self.apply()

    def apply(self) -> None:
        """Apply what differs from the last time."""
        limit, threads = options.memory_limit, options.num_threads
        for index in self.devices:
            if limit != self.applied[0]:
                self.runtime.set_memory_limit(limit, index)
            if threads != self.applied[1]:
                self.runtime.set_num_threads(threads or self.threads[index], index)
        self.applied = (limit, threads)
