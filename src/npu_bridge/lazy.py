"""Names of the star import that need tf.estimator or Keras 2; without these, an error on first use."""

from __future__ import annotations

import importlib
from typing import Any, NoReturn

__all__ = ["estimator_names", "require_estimators"]

_NPU = "npu_bridge.estimator.npu"
_WHERE = {
    "npu_config": ("DumpConfig", "DynamicInputConfig", "NPURunConfig", "ProfilingConfig"),
    "npu_estimator": ("NPUEstimator", "NPUEstimatorSpec"),
    "npu_callbacks": ("NPUBroadcastGlobalVariablesCallback",),
    "npu_strategy": ("NPUStrategy", "npu_strategy"),
    "keras_to_npu": ("keras_to_npu",),
}


class _Missing:
    """Placeholder for a name that this TensorFlow cannot provide; using it raises an error."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def _refuse(self) -> NoReturn:
        raise _refusal(self.__dict__["_name"])

    def __call__(self, *arguments: Any, **named: Any) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


def _refusal(name: str) -> ImportError:
    import tensorflow as tf

    return ImportError(
        f"{name} needs tf.estimator and Keras 2, which TensorFlow {tf.__version__} no longer has: use TensorFlow 2.15 "
        "for scripts with estimators"
    )


def require_estimators(module: str) -> None:
    """Raise an ImportError with a remedy if TensorFlow has no estimators."""
    import tensorflow.compat.v1 as tf

    if not hasattr(tf, "estimator"):
        raise _refusal(module)


def estimator_names() -> dict[str, Any]:
    """All such names with their objects or placeholders."""
    found: dict[str, Any] = {}
    for module, names in _WHERE.items():
        try:
            loaded = importlib.import_module(f"{_NPU}.{module}")
        except (AttributeError, ImportError):  # TensorFlow without estimators
            found.update({name: _Missing(name) for name in names})
            continue
        found.update({name: loaded if name == module else getattr(loaded, name) for name in names})
    return found
