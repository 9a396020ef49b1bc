"""Options of the adapter: one typed object, `tf_adapter.options`, read from the environment at import.

    tf_adapter.options.precision_mode = "allow_mix_precision_bf16"
    with tf_adapter.options.override(allow_host_fallback=False):
        model(x)                                  # an operator that would run on the host is an error here

Options are those of the process, like tf.config's. A change takes part in the key of every compiled function
(`fingerprint`) and is announced to the caches of compiled code (`subscribe`).

TensorFlow's own switches count as well:
* tf.config.optimizer.set_experimental_options: `auto_mixed_precision` True allows float16 inside models,
  `auto_mixed_precision_onednn_bfloat16` (or `…_mkl`) True allows bfloat16, and False for the first forbids
  both, whatever precision_mode says.
* tf.keras.mixed_precision policies put their casts into the model, which runs as it is written.
* TensorFloat-32 is an arithmetic of some GPUs: TensorFlow's flag allows it there and has no effect on the CPU
  device, where float32 products are float32 products.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ge import tensor_dump
from ge.options import CompileOptions, PrecisionMode, compile_options
from ge.options.record import fingerprint
from ge.options.table import Option, from_environment, tell_idle, unknown, view
from ge.target import Target

__all__ = ["Options", "options", "start", "tell_of_precision"]

_LABEL = "tf_adapter.options"
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

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._lock = threading.RLock()
        self._listeners: list[Callable[[], None]] = []
        self._started = False
        self._values: dict[str, Any] = {name: option.default for name, option in self.settings().items()}
        given = from_environment(environment)
        self._values.update({name: value for name, value in given.items() if name in self._values})

    @staticmethod
    def settings() -> Mapping[str, Option]:
        """All options by name."""
        return view("tf")

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name.startswith("_") or name not in values:
            raise unknown(name, self.settings(), _LABEL)
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self.set(**{name: value})

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.settings()})

    def __repr__(self) -> str:
        changed = {n: v for n, v in self._values.items() if v != self.settings()[n].default}
        return f"Options({', '.join(f'{n}={v!r}' for n, v in changed.items())})"

    def value(self, name: str) -> Any:
        """The value of an option by name."""
        return self._values[name]

    def set(self, **values: Any) -> None:
        """Set several options at once: either all are valid and set, or none is."""
        known = self.settings()
        read: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise unknown(name, known, _LABEL)
            read[name] = known[name].parse(value, f"{_LABEL}.{name}")
        with self._lock:
            changed = {name: value for name, value in read.items() if value != self._values[name]}
            late = [name for name in changed if known[name].decides == "start" and self._started]
            if late:
                variable = known[late[0]].variable
                raise RuntimeError(
                    f"tf_adapter.options.{late[0]} is fixed once the devices are registered;"
                    f" set {variable} before importing tf_adapter"
                )
            self._values.update(changed)
        for name in changed:
            tell_idle(known[name], "tf", f"{_LABEL}.{name}")
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

    def given(self) -> dict[str, Any]:
        """The values in force by name, with the precision mode after TensorFlow's own switches."""
        return {**self._values, "precision_mode": self.effective_precision}

    def compile_options(self) -> CompileOptions:
        """The options of a compile."""
        chosen = compile_options(self.given(), CompileOptions())
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
        values = {name: self._values[name] for name, o in self.settings().items() if o.decides == "compile"}
        return fingerprint({**values, "": self.compile_options().fingerprint()})


@functools.cache
def tell_of_precision(mode: PrecisionMode, target: Target) -> None:
    """Say once that a mode which allows a narrow type changes nothing where the target lacks that type."""
    from ge.passes.precision.lower_precision import MODES

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
    options.subscribe(_apply_dumps)
    patch_keras()


def _apply_dumps() -> None:
    tensor_dump.apply(options.given())


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
