"""Compile the kernels of this folder to the PTX that the package carries; needs nvcc. Nothing else does.

`python native/cuda/kernels/make.py` after a change; a test compares the sources with what the PTX was made from.
"""

from __future__ import annotations

import hashlib
import lzma
import subprocess
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
RESULTS = SOURCES.parents[2] / "src" / "ge" / "model" / "cuda" / "kernels"
# The oldest architecture and PTX version that know the instructions of a file.
KERNELS = {"stem": ("80", "7.0"), "bottleneck": ("90a", "8.0"), "attention_gradient": ("80", "7.0")}


def fingerprint(name: str) -> str:
    """A name for the sources of a file, which its PTX carries in the first line."""
    texts = [(SOURCES / file).read_bytes() for file in ("common.cuh", f"{name}.cu")]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]


def compiled(name: str) -> bytes:
    """PTX for the oldest driver that can take it, without comments."""
    architecture, version = KERNELS[name]
    virtual = f"compute_{architecture}"
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "code.ptx"
        options = ["-std=c++17", "-O3", f"-gencode=arch={virtual},code={virtual}", "--ptx"]
        subprocess.run(["nvcc", *options, "-o", str(result), f"{name}.cu"], check=True, cwd=SOURCES)
        lines = [line.strip() for line in result.read_text().splitlines()]
    kept = [line for line in lines if line and not line.startswith("//")]
    kept = [f".version {version}" if line.startswith(".version") else line for line in kept]
    return "\n".join([f"// from sources {fingerprint(name)}", *kept, ""]).encode()


if __name__ == "__main__":
    RESULTS.mkdir(exist_ok=True)
    for kernel in KERNELS:
        (RESULTS / f"{kernel}.ptx.xz").write_bytes(lzma.compress(compiled(kernel), preset=9))
