"""Shared libraries built on first use against the headers of an installed framework."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ge.errors import GeError
from ge.opp.compiling import compiler
from npu_runtime import environment

__all__ = ["library"]


def library(source: Path, framework: str, flags: Sequence[str]) -> Path:
    """The library of a C++ source for a framework (its name and version), from the cache folder or built now.

    Each is the only file of its folder, so that a framework can search the folder for plug-ins.
    """
    content = f"{framework}{sysconfig.get_config_var('SOABI')}{flags}".encode() + source.read_bytes()
    package = source.parent.name
    name = f"{package}-{framework}-{hashlib.sha256(content).hexdigest()[:16]}"
    target = environment.cache_folder() / name / f"{package}.so"
    if not target.is_file():
        target = _writable(target)
        _build(source, target, framework, flags)
    return target


def _writable(target: Path) -> Path:
    """The target; in a folder of this process if the cache folder cannot be written."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        environment.unwritable(environment.cache_folder(), error.strerror or str(error))
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder) / target.parent.name / target.name
    return target


def _build(source: Path, target: Path, framework: str, flags: Sequence[str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    include = f"-I{sysconfig.get_paths()['include']}"
    with tempfile.TemporaryDirectory(dir=target.parent.parent) as folder:
        made = Path(folder) / target.name
        command = [
            compiler(),
            "-shared",
            "-fPIC",
            "-std=c++17",
            str(source),
            "-o",
            str(made),
            include,
            *flags,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise GeError(
                "E10613",
                f"{source.name} cannot be built against {framework}: {done.stderr.strip()[-2000:]}",
                remedy="is it a version that the documentation names?",
            )
        os.replace(made, target)  # atomic, in case another process builds it too
