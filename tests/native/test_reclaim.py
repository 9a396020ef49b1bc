"""What compiles leave in the process goes back to the system, and compilers work on after it."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest

import npu_runtime
from tbe.target import PORTABLE, compile_ir

IR = """
define i32 @triple(i32 %x) {
  %y = mul i32 %x, 3
  ret i32 %y
}
"""
MIB = 1 << 20


def resident_code(library: str) -> int:
    """Bytes of a library's code that are in this process."""
    found, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            counts = " r-xp " in line and library in line
        elif counts and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


def code_pages(library: str) -> np.ndarray:
    """Which pages of a library's code are in this process, from a multiple of 16 pages on."""
    line = next(
        found
        for found in Path("/proc/self/maps").read_text().splitlines()
        if " r-xp " in found and library in found
    )
    begin, end = (int(address, 16) // mmap.PAGESIZE for address in line.split()[0].split("-"))
    begin = (begin + 15) // 16 * 16
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(begin * 8)
        entries = np.frombuffer(pages.read((end - begin) * 8), np.uint64)
    return entries >> np.uint64(63) == 1


def test_code_of_the_compiler_leaves_and_comes_back() -> None:
    npu_runtime.reclaim()
    rested = resident_code("libllvmlite")
    before = compile_ir(IR, PORTABLE)
    used = resident_code("libllvmlite")
    assert used > rested + 2 * MIB
    npu_runtime.reclaim()
    assert resident_code("libllvmlite") < used - 2 * MIB
    assert compile_ir(IR, PORTABLE) == before


def test_only_pages_that_are_read_come() -> None:
    if not npu_runtime.map_single_pages():
        pytest.skip("the system maps pages as it likes")
    npu_runtime.reclaim()
    compile_ir(IR, PORTABLE)
    present = code_pages("libllvmlite")
    groups = present[: len(present) // 16 * 16].reshape(-1, 16)
    assert groups.any(axis=1).sum() > 100
    assert (
        groups[groups.any(axis=1)].mean() < 0.6
    )  # a third; all of them where the system maps sixteen at a time


def test_code_of_kernels_leaves_as_well() -> None:
    npu_runtime.version()
    npu_runtime.reclaim()
    assert resident_code("libdnnl") < MIB
    assert npu_runtime.version()["isa"] != ""
