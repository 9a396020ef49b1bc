"""Compares answers on older x86 processors, under emulation: ``python -m tests.processors``.

qemu runs this environment's Python as each processor of PROCESSORS, with a sample of the runtime's tests that covers
every kind of task (KINDS). qemu emulates no AVX-512: `NPU_MAX_ISA` caps a processor that has it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROCESSORS = {  # qemu's name of a processor: the instruction set that the runtime must find
    "Nehalem": "sse41",
    "SandyBridge": "avx",
    "IvyBridge": "avx",
    "Haswell": "avx2",
    "EPYC": "avx2",
}
KINDS = {  # tests/native/test_*.py: kinds of tasks that it runs
    "onednn": ("matmul", "conv", "deconv", "pool", "lrn", "rnn", "reorder", "kernel", "copy"),
    "gradients": ("conv_grad_weights", "pool_grad"),
    "attention": ("attention", "attention_grad"),
    "layer_norm_grad": ("layer_norm_grad",),
    "lstm_steps": ("lstm_steps", "lstm_steps_grad"),
    "packed_product": ("packed_matmul",),
    "control": ("if", "while", "scan_load", "scan_store", "aicpu"),
    "check": ("check",),
}


class _Sample:
    """Keeps one test in so many of each file."""

    def __init__(self, every: int) -> None:
        self.every = every

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in items:
            files[item.path].append(item)
        items[:] = [item for found in files.values() for item in found[:: self.every]]


def inside(processor: str, every: int) -> int:
    """Run the sample on this processor; returns the status of the tests."""
    import npu_runtime

    found = npu_runtime.version()["isa"]
    assert found == PROCESSORS[processor], f"the runtime takes {processor} for {found}"
    files = [str(ROOT / "tests" / "native" / f"test_{name}.py") for name in KINDS]
    fast = ["-p", "no:cacheprovider", "-m", "not slow and not exhaustive"]
    return int(pytest.main([*fast, *files], plugins=[_Sample(every)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--every", type=int, default=6, help="one in so many of the runtime's tests")
    qemu = shutil.which("qemu-x86_64") or "qemu-x86_64-static"
    parser.add_argument("--qemu", default=qemu, help="the emulator; 7.2 crashes where a Haswell does not")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("processors", nargs="*", default=[*PROCESSORS])
    arguments = parser.parse_args()
    if arguments.inside:
        sys.exit(inside(arguments.inside, arguments.every))
    if shutil.which(arguments.qemu) is None:
        parser.exit(1, "missing: apt-get install qemu-user\n")
    failed = []
    variables = {**os.environ, "NPU_CACHE_DIR": "off", "NPU_NUM_THREADS": "2"}
    variables.pop("OPENBLAS_CORETYPE", None)  # NumPy chooses its kernels for the emulated processor
    for name in arguments.processors:
        started = time.perf_counter()
        command = [arguments.qemu, "-cpu", name, sys.executable, "-m", "tests.processors", "--inside", name]
        if subprocess.run([*command, "--every", str(arguments.every)], cwd=ROOT, env=variables).returncode:
            failed.append(name)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    sys.exit(f"failed on {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
