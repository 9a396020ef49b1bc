"""Benchmarks: every figure the documentation states is printed by a script of this folder."""

import contextlib
import importlib
import os
import sys

# Compiles are measured, not what an earlier run has left on disk.
os.environ.setdefault("NPU_CACHE_DIR", "off")

# Some benchmarks load TensorFlow first, PyTorch later. Triton must come before both (ge.compatibility says why). `ge`
# is not imported here: versions.py measures that of another tree.
if "tensorflow" not in sys.modules:
    with contextlib.suppress(ImportError):
        importlib.import_module("triton")
