"""`tf.contrib` for TensorFlow 1 scripts: names with an equivalent today, and errors for the others.

Layers, framework and slim come from the `tf_slim` package, the successor of `tf.contrib.slim`.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["MODULE", "install"]

_V1 = "tensorflow.compat.v1"

# contrib module -> modules to look its names up in, in this order
_SOURCES: dict[str, tuple[str, ...]] = {
    "slim": ("tf_slim",),
    "layers": ("tf_slim.layers", "tf_slim"),
    "framework": (
        "tf_slim.ops.variables",
        "tf_slim.ops.arg_scope",
        "tf_slim",
        f"{_V1}.train",
        f"{_V1}.nest",
        _V1,
    ),
    "losses": ("tf_slim.losses",),
    "metrics": ("tf_slim.metrics",),
    "rnn": (f"{_V1}.nn.rnn_cell", f"{_V1}.nn"),
    "data": (f"{_V1}.data.experimental", f"{_V1}.data"),
    "lookup": (f"{_V1}.lookup", f"{_V1}.lookup.experimental", _V1),
    "distribute": (f"{_V1}.distribute",),
    "eager": (_V1,),
    "summary": ("tensorflow.compat.v2.summary",),
    "image": (f"{_V1}.image",),
    "training": ("npu_bridge.contrib_training", f"{_V1}.train", f"{_V1}.data.experimental"),
    "opt": ("npu_bridge.contrib_opt", f"{_V1}.train"),
    "mixed_precision": (
        "npu_bridge.estimator.npu.npu_loss_scale_manager",
        "npu_bridge.estimator.npu.npu_loss_scale_optimizer",
    ),
    "tpu": (f"{_V1}.tpu", f"{_V1}.estimator.tpu"),
    "estimator": (f"{_V1}.estimator",),
    "keras": (f"{_V1}.keras",),
    "saved_model": (f"{_V1}.saved_model",),
    "util": (_V1, f"{_V1}.nest"),
    "tensorboard": (),
    "seq2seq": ("tensorflow_addons.seq2seq",),
    "crf": ("tensorflow_addons.text.crf",),
}

# Renamed names.
_RENAMED: dict[tuple[str, str], str] = {
    ("layers", "xavier_initializer"): "tf_slim.xavier_initializer",
    ("layers", "xavier_initializer_conv2d"): "tf_slim.xavier_initializer_conv2d",
    ("data", "AUTOTUNE"): f"{_V1}.data.experimental.AUTOTUNE",
    ("data", "batch_and_drop_remainder"): "npu_bridge.contrib_training.batch_and_drop_remainder",
    ("lookup", "index_table_from_tensor"): "npu_bridge.contrib_training.index_table_from_tensor",
    ("mixed_precision", "LossScaleOptimizer"): (
        "npu_bridge.estimator.npu.npu_loss_scale_optimizer.NPULossScaleOptimizer"
    ),
    ("rnn", "BasicRNNCell"): f"{_V1}.nn.rnn_cell.BasicRNNCell",
    ("rnn", "stack_bidirectional_dynamic_rnn"): "npu_bridge.contrib_training.stack_bidirectional_dynamic_rnn",
}
_PACKAGES = {"tf_slim": "tf-slim", "tensorflow_addons": "tensorflow-addons"}


def _find(path: str) -> Any:
    """Resolve a dotted path; AttributeError if a name is missing, ImportError if a package is."""
    parts = path.split(".")
    if parts[0] == "tf_slim":
        _prepare_slim()
    found: Any = None
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if error.name not in [".".join(parts[: k + 1]) for k in range(end)]:
                raise
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(path, name=parts[0])


def _prepare_slim() -> None:
    """Add classes to the places where tf_slim, written for older TensorFlow versions, expects them."""
    import tensorflow as tf
    from tensorflow.python.framework import ops

    if not hasattr(ops, "Tensor"):
        ops.Tensor = tf.Tensor


class _ContribModule(types.ModuleType):
    """A module of contrib; names are looked up lazily."""

    def __init__(self, name: str) -> None:
        super().__init__(f"tensorflow.contrib.{name}")
        self.__dict__.update(_contrib=name, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        module: str = self.__dict__["_contrib"]
        renamed = _RENAMED.get((module, name))
        if renamed is not None:
            return _needed(lambda: _find(renamed), renamed)
        for source in _SOURCES[module]:
            try:
                return getattr(_needed(lambda source=source: _find(source), source), name)  # type: ignore[misc]
            except AttributeError:
                continue
        raise AttributeError(
            f"tf.contrib.{module}.{name} has no equivalent in this TensorFlow: replace it in the script"
        )


def _needed(find: Callable[[], Any], path: str) -> Any:
    try:
        return find()
    except ModuleNotFoundError as error:
        top = path.split(".")[0]
        if top in _PACKAGES:
            raise ImportError(
                f"tf.contrib needs {top}: install it with `pip install {_PACKAGES[top]}`"
            ) from error
        raise AttributeError(path) from error


class _Contrib(types.ModuleType):
    """`tf.contrib`."""

    def __init__(self) -> None:
        super().__init__("tensorflow.contrib")
        self.__path__: list[str] = []
        for name in _SOURCES:
            self.__dict__[name] = _ContribModule(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"tf.contrib.{name} has no equivalent in this TensorFlow: replace it in the script"
        )


MODULE = _Contrib()


def install() -> None:
    """Make `import tensorflow.contrib…` work."""
    sys.modules.setdefault("tensorflow.contrib", MODULE)
    for name in _SOURCES:
        sys.modules.setdefault(f"tensorflow.contrib.{name}", getattr(MODULE, name))
