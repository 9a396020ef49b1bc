"""The package operator files belong to; folders named `impl` on the import path are part of it."""

from importlib.util import find_spec
from pkgutil import extend_path
from typing import NoReturn

__path__ = extend_path(__path__, __name__)

_OF_TIK = ("common_util", "constant_util")  # helpers of operators written instruction by instruction


def __getattr__(name: str) -> NoReturn:
    if name in _OF_TIK and find_spec(f"{__name__}.{name}") is None:
        raise ImportError(
            f"impl.{name} is not provided: it belongs to other operators written with TIK. "
            f"An operator project that needs it brings its own tbe/impl/{name}.py."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
