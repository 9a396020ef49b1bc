"""Versions of the project and of its dependencies; `python -m ge.versions` prints what a bug report needs."""

from __future__ import annotations

import os
import platform
import sys

import npu_runtime
from ge.distributions import installed
from ge.target import host

__all__ = ["describe", "facts", "project", "versions"]

_PACKAGES = (
    *("numpy", "ml_dtypes", "onnx", "onnx_ir", "llvmlite", "protobuf"),
    *("tensorflow-cpu", "tensorflow", "keras", "torch"),
)


def project() -> str:
    """The version declared in pyproject.toml; "source" if the project is not installed."""
    return installed("tf-adapter") or "source"


def versions() -> dict[str, str]:
    """The versions that a model is compiled with."""
    found = {"onednn": str(npu_runtime.version()["onednn"])}
    return found | {name: installed(name) for name in ("tf-adapter", "llvmlite", "onnx") if installed(name)}


def facts() -> dict[str, str]:
    """Versions, machine and settings, by name."""
    target = host()
    caches = f"{target.cache_bytes >> 20} MiB last-level cache"
    found = {
        "tf-adapter": project(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": f"{platform.platform()}, {platform.libc_ver()[0]} {platform.libc_ver()[1]}",
        "processor": _processor(),
        "target": f"{target.kind}, {target.isa}, {target.cores} threads, {caches}",
        "oneDNN": versions()["onednn"],
        **{name: installed(name) for name in _PACKAGES},
        **{name: value for name, value in sorted(os.environ.items()) if name.startswith("NPU_")},
    }
    return {name: value for name, value in found.items() if value}


def describe() -> str:
    """The facts, one per line.

    >>> describe().splitlines()[0].split()[0]
    'tf-adapter'
    """
    return "\n".join(f"{name:<22} {value}" for name, value in facts().items())


def _processor() -> str:
    """The model name reported by the kernel, else what Python knows."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0]}, {len(names)} logical cores" if names else platform.machine()


if __name__ == "__main__":
    print(describe())
