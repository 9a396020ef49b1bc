"""Kernels are compiled for AVX2 and for AVX-512 from one source: those of AVX2, on a processor that has more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.native_support import HAS_WIDE_VECTORS

HERE = Path(__file__).parent
KERNELS = (
    "attention",
    "convolution",
    "depthwise_gradient",
    "layer_norm_grad",
    "lstm_steps",
    "narrow_product",
    "small_lstm",
    "special_results",
    "weight_gradient",
)


@pytest.mark.skipif(not HAS_WIDE_VECTORS, reason="the tests of the kernels run these already")
def test_kernels_of_avx2() -> None:
    files = [str(HERE / f"test_{name}.py") for name in KERNELS]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not exhaustive",
        *files,
    ]
    done = subprocess.run(
        command,
        cwd=HERE.parents[1],
        env={**os.environ, "NPU_MAX_ISA": "avx2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_emulated_processors_run_every_kind_of_task() -> None:
    """The table of tests/processors.py names every kind of the runtime, and its files exist."""
    from tests.processors import KINDS

    source = (HERE.parents[1] / "native" / "runtime" / "lowering.cc").read_text()
    kinds = set(re.findall(r'^    \{"(\w+)", lower_', source, re.MULTILINE))
    assert kinds and {kind for named in KINDS.values() for kind in named} == kinds
    assert all((HERE / f"test_{name}.py").is_file() for name in KINDS)
