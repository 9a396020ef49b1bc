"""Benchmarks: every figure the documentation states is printed by a script of this folder."""

import os

from ge.compatibility import load_triton_before_tensorflow

# Compiles are measured, not what an earlier run has left on disk.
os.environ.setdefault("NPU_CACHE_DIR", "off")

# Some benchmarks load TensorFlow first and PyTorch later.
load_triton_before_tensorflow()
