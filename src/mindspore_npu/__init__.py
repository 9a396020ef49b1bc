"""MindSpore's front door: `jit(backend="npu")`, graph mode and `python -m mindspore_npu run train.py`.

import mindspore_npu                       # registers the back end "npu"
step = mindspore.jit(train_step, backend="npu")
mindspore_npu.counts()                     # Counts(compiled=1, runs=20, fallbacks=0)
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("mindspore") is None:
    raise ImportError("mindspore_npu needs MindSpore: pip install tf-adapter[mindspore]")

from mindspore_npu.backend import Counts, counts, explain, fallbacks, reset_counts
from mindspore_npu.register import register

__all__ = ["Counts", "counts", "explain", "fallbacks", "register", "reset_counts"]

register()
