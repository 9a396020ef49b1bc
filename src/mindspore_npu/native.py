"""The back end's shared library: built once from `backend.cc` against the headers of the installed MindSpore."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

from ge.opp import extensions

__all__ = ["library"]

_INCLUDES = (
    "",
    "mindspore",
    "mindspore/core",
    "mindspore/core/include",
    "mindspore/core/mindrt",
    "mindspore/ccsrc",
    "mindspore/ccsrc/include",
    "mindspore/ops",
    "mindspore/ops/include",
    "third_party",
    "third_party/include",
    "third_party/robin_hood_hashing",
)
_LIBRARIES = ("mindspore_core", "mindspore_common", "mindspore_backend_manager", "mindspore_runtime_pipeline")
# MindSpore's packages are built with the old ABI of libstdc++.
_FLAGS = ("-O1", "-w", "-D_GLIBCXX_USE_CXX11_ABI=0", "-DENABLE_FAST_HASH_TABLE=1")


def library() -> Path:
    """The path of the library; builds it once per version of MindSpore (about half a minute)."""
    found = importlib.util.find_spec("mindspore")
    assert found is not None and found.origin is not None, "MindSpore is not installed"
    package = Path(found.origin).parent
    flags = [
        *_FLAGS,
        *(f"-I{package / 'include' / name}" for name in _INCLUDES),
        f"-L{package / 'lib'}",
        *(f"-l{name}" for name in _LIBRARIES),
    ]
    framework = f"mindspore-{importlib.metadata.version('mindspore')}"
    return extensions.library(Path(__file__).with_name("backend.cc"), framework, flags)
