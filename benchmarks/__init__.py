"""Benchmarks: every figure the documentation states is printed by a script of this folder."""

import os

# Compiles are measured, not what an earlier run has left on disk.
os.environ.setdefault("NPU_CACHE_DIR", "off")
