"""The back end's shared library: built once from `backend.cc` against the headers of the installed MindSpore."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from npu_runtime import environment

__all__ = ["library"]

SOURCE = Path(__file__).with_name("backend.cc")
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
_LIBRARIES = ("mindspore_core", "mindspore_common", "mindspore_backend_manager")
# MindSpore's packages are built with the old ABI of libstdc++.
_FLAGS = (
    "-shared",
    "-fPIC",
    "-O1",
    "-std=c++17",
    "-w",
    "-D_GLIBCXX_USE_CXX11_ABI=0",
    "-DENABLE_FAST_HASH_TABLE=1",
)


def _package() -> tuple[Path, str]:
    """Where MindSpore is installed, and its version."""
    found = importlib.util.find_spec("mindspore")
    assert found is not None and found.origin is not None, "MindSpore is not installed"
    return Path(found.origin).parent, importlib.metadata.version("mindspore")


def library() -> Path:
    """The path of the library; builds it the first time for a version of MindSpore (about half a minute)."""
    package, version = _package()
    key = hashlib.sha256(f"{version}{sysconfig.get_config_var('SOABI')}".encode() + SOURCE.read_bytes())
    target = environment.cache_folder() / f"mindspore_npu-{version}-{key.hexdigest()[:16]}.so"
    if not target.is_file():
        _build(package, target)
    return target


def _build(package: Path, target: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("mindspore_npu needs a C++ compiler once: install g++, or set CXX")
    target.parent.mkdir(parents=True, exist_ok=True)
    include = package / "include"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [
            compiler,
            *_FLAGS,
            *(f"-I{include / name}" for name in _INCLUDES),
            f"-I{sysconfig.get_paths()['include']}",
            str(SOURCE),
            "-o",
            str(made),
            f"-L{package / 'lib'}",
            *(f"-l{name}" for name in _LIBRARIES),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(
                f"the MindSpore back end cannot be built against {package}: {done.stderr.strip()[-2000:]}"
            )
        os.replace(made, target)  # complete or not there, whoever else builds it
