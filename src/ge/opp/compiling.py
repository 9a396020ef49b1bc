"""Compiles the C++ files of an operator project into one library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from ge.errors import GeError

__all__ = ["check_source", "compile_library", "compiler", "include_directory"]

LIMIT = 600.0  # seconds
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
_MESSAGE = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:\d+:)? (?:fatal )?error: (?P<text>.*)$", re.MULTILINE
)


def include_directory() -> Path:
    """The directory of the headers for kernels and prototypes."""
    return Path(__file__).resolve().parent / "include"


def compiler() -> str:
    """The machine's C++ compiler: $CXX, c++, g++ or clang++."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        found = shutil.which(name)
        if found:
            return found
    raise GeError(
        "E10613",
        "there is no C++ compiler to compile AI CPU kernels with",
        remedy="install g++ or clang++, or set CXX",
    )


def compile_library(
    sources: Sequence[Path], target: Path, *, includes: Sequence[Path] = (), entries: Collection[str] = ()
) -> None:
    """Compile and link sources with the entry points that the runtime expects.

    `entries` adds those of inference functions ("proto") and of parse functions ("plugin"). An error names the file and
    line of the first message.
    """
    own = include_directory()
    mains = [own / "npu_opp_main.cc", *(own / f"npu_opp_{entry}.cc" for entry in sorted(entries))]
    files = [str(p) for p in (*sources, *mains)]
    _run(includes, ["-shared", *files, f"-Wl,-soname,{target.name}", "-Wl,--no-undefined", "-o", str(target)])


def check_source(source: Path, includes: Sequence[Path] = ()) -> None:
    """Raise the error of compiling a source file by itself."""
    _run(includes, ["-fsyntax-only", str(source)])


def _run(includes: Sequence[Path], arguments: Sequence[str]) -> None:
    command = [
        compiler(),
        *_FLAGS,
        f"-I{include_directory()}",
        *(f"-I{path}" for path in includes),
        *arguments,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired as error:
        raise GeError("E10613", f"the C++ compiler did not end within {LIMIT:g} s") from error
    if done.returncode:
        raise _failed(done.stderr)


def _failed(text: str) -> GeError:
    first = _MESSAGE.search(text)
    if first is None:
        return GeError("E10613", f"the C++ files cannot be compiled: {text.strip()[-1500:]}")
    more = len(_MESSAGE.findall(text)) - 1
    cause = first["text"] + (f" (and {more} more)" if more else "")
    remedy = ""
    if "No such file" in cause or "has no member" in cause or "not declared" in cause:
        remedy = (
            f"the headers offered are in {include_directory()}; shape inference may also be written in Python"
        )
    return GeError("E10613", cause, location=f"{first['file']}:{first['line']}", remedy=remedy)
