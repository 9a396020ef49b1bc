"""What compiles leave in the process goes back to the system, and compilers work on after it."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_code_of_the_compiler_leaves_and_comes_back() -> None:
    npu_runtime.reclaim()
    rested = resident_code("libllvmlite")
    before = compile_ir(IR, PORTABLE)
    used = resident_code("libllvmlite")
    assert used > rested + 2 * MIB
    npu_runtime.reclaim()
    assert resident_code("libllvmlite") < used - 2 * MIB
    assert compile_ir(IR, PORTABLE) == before


def test_code_of_kernels_leaves_as_well() -> None:
    npu_runtime.version()
    npu_runtime.reclaim()
    assert resident_code("libdnnl") < MIB
    assert npu_runtime.version()["isa"] != ""
