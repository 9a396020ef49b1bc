"""Scripts written for TensorFlow 1: `import tensorflow` in them means version-1 names.

`python -m npu_bridge run script.py` calls `run_script`: in the script's own modules `tensorflow` is
`tensorflow.compat.v1` with `tf.contrib` beside it; installed packages keep the TensorFlow they were written for.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import runpy
import sys
import sysconfig
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_bridge import contrib

__all__ = ["disable_v2_behavior", "install", "run_script", "tensorflow_v1"]

_LEGACY_KERAS = "TF_USE_LEGACY_KERAS"


class _VersionOne(types.ModuleType):
    """`tensorflow` as version-1 scripts know it: compat.v1 first, then contrib, then TensorFlow's own modules."""

    def __init__(self) -> None:
        super().__init__("tensorflow")
        real = importlib.import_module("tensorflow")
        self.__dict__.update(
            __file__=real.__file__,
            __path__=list(real.__path__),
            __version__=real.__version__,
            contrib=contrib.MODULE,
        )

    def __getattr__(self, name: str) -> Any:
        version1 = importlib.import_module("tensorflow.compat.v1")
        for owner in (version1, importlib.import_module("tensorflow")):
            try:
                return getattr(owner, name)
            except AttributeError:
                continue
        raise AttributeError(f"TensorFlow {self.__version__} has no version-1 name 'tf.{name}'")

    def __dir__(self) -> list[str]:
        return [*dir(importlib.import_module("tensorflow.compat.v1")), "contrib"]


def disable_v2_behavior() -> None:
    """Graphs and sessions, reference variables and version-1 control flow, as TensorFlow 1 has them."""
    import tensorflow as tf

    if tf.executing_eagerly() or tf.compat.v1.control_flow_v2_enabled():
        tf.compat.v1.disable_v2_behavior()


def tensorflow_v1() -> types.ModuleType:
    """The module that `import tensorflow` gives in a version-1 script."""
    global _module
    if _module is None:
        contrib.install()
        _module = _VersionOne()
    return _module


_module: types.ModuleType | None = None


def install() -> None:
    """From now on, `import tensorflow` outside installed packages gives version-1 names."""
    global _installed
    if _installed:
        return
    if "tensorflow" not in sys.modules and importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault(_LEGACY_KERAS, "1")  # tf.layers and sessions need Keras 2
    version1 = tensorflow_v1()
    disable_v2_behavior()
    original = builtins.__import__

    def version1_import(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        result = original(name, globals, locals, fromlist or (), level)
        top = name == "tensorflow" or (name.startswith("tensorflow.") and not fromlist)
        return version1 if top and level == 0 and _is_script(globals) else result

    builtins.__import__ = version1_import
    _installed = True


_installed = False


def _is_script(names: Mapping[str, Any] | None) -> bool:
    """Whether the importing module is the user's own, not part of an installed package."""
    file = (names or {}).get("__file__")
    if not file:
        return (names or {}).get("__name__") == "__main__"
    return not str(Path(file).resolve()).startswith(_LIBRARIES)


def _library_folders() -> tuple[str, ...]:
    installed = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    ours = Path(__file__).resolve().parent.parent
    packages = ("npu_bridge", "npu_device", "tf_adapter", "ge", "tbe", "hccl")
    return (*(str(Path(p).resolve()) for p in installed if p), *(str(ours / name) for name in packages))


_LIBRARIES = _library_folders()


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Run a version-1 script as `python path arguments…` would, on the NPU."""
    install()
    import npu_bridge.npu_init  # noqa: F401  (sessions offload from here on)

    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    runpy.run_path(path, run_name="__main__")
