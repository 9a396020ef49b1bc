"""The device's shared library: built once from `device.cc` against the C interfaces of the installed PaddlePaddle."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
import warnings
from pathlib import Path

from ge.errors import GeError
from ge.opp import extensions

__all__ = ["announce", "install", "library"]

_ROOT = "CUSTOM_DEVICE_ROOT"  # where PaddlePaddle looks for devices when it is imported


def _package() -> Path:
    found = importlib.util.find_spec("paddle")
    assert found is not None and found.origin is not None, "PaddlePaddle is not installed"
    return Path(found.origin).parent


def library() -> Path:
    """The path of the library; builds it once per version of PaddlePaddle (about ten seconds)."""
    framework = f"paddle-{importlib.metadata.version('paddlepaddle')}"
    package = _package()
    flags = ["-O2", "-Wall", "-Wextra", "-isystem", str(package / "include")]
    flags += [f"-L{package / 'libs'}", "-lphi_core", "-lcommon"]
    return extensions.library(Path(__file__).with_name("device.cc"), framework, flags)


def announce() -> None:
    """Make PaddlePaddle find the device when it is imported; devices named by the user come first."""
    if "paddle" in sys.modules or _installed().is_file() or os.environ.get(_ROOT):
        return
    try:
        os.environ[_ROOT] = str(library().parent)
    except GeError as error:
        warnings.warn(f'there is no paddle.set_device("npu"): {error}', stacklevel=3)


def _installed() -> Path:
    return _package().parent / "paddle_custom_device" / "paddle_npu.so"


def install() -> Path:
    """Install the device where every `import paddle` finds it; returns the path."""
    target = _installed()
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(library(), target)
    return target
