"""Generated kernels: loading of objects, refusal of anything malformed, ranges over threads."""

from __future__ import annotations

import functools
import struct

import llvmlite.binding as llvm
import numpy as np
import pytest

import npu_runtime as rt
from tests.native.native_support import randn, single, view

# y[i] = table[i % 2] * x[i]; the table lies in read-only data, so the code needs a relocation.
_SCALE = """
@table = private unnamed_addr constant [2 x float] [float 2.0, float 3.0]
define void @scale(ptr %args, i64 %lo, i64 %hi) {
entry:
  %x = load ptr, ptr %args
  %slot = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %slot
  br label %head
head:
  %i = phi i64 [%lo, %entry], [%next, %body]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %odd = and i64 %i, 1
  %tp = getelementptr [2 x float], ptr @table, i64 0, i64 %odd
  %t = load float, ptr %tp
  %xp = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %xp
  %r = fmul float %t, %v
  %yp = getelementptr float, ptr %y, i64 %i
  store float %r, ptr %yp
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""

# A global counter and calls between functions: writable data, 64-bit addresses, imported memset.
_RICH = """
@pointer = global ptr @helper
@count = global i64 0
declare ptr @memset(ptr, i32, i64)
define void @helper(ptr %y) noinline {
  %r = call ptr @memset(ptr %y, i32 1, i64 4)
  %n = load i64, ptr @count
  %m = add i64 %n, 1
  store i64 %m, ptr @count
  ret void
}
define void @rich(ptr %args, i64 %lo, i64 %hi) {
  %y = load ptr, ptr %args
  %f = load volatile ptr, ptr @pointer
  call void %f(ptr %y)
  call void @helper(ptr %y)
  %n = load i64, ptr @count
  %wide = getelementptr i64, ptr %y, i64 1
  store i64 %n, ptr %wide
  ret void
}
"""

_MISSING = """
declare void @elsewhere()
define void @calls(ptr %args, i64 %lo, i64 %hi) {
  call void @elsewhere()
  ret void
}
"""


@functools.cache
def _compile(text: str, relocation: str = "pic") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=2, reloc=relocation, codemodel="small", jit=False
    )
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


@pytest.mark.parametrize("relocation", ["pic", "static"])
def test_a_kernel_runs_on_ranges_that_cover_everything(relocation: str) -> None:
    handle = rt.load_object(_compile(_SCALE, relocation), "scale")
    assert handle.symbol == "scale" and handle.nbytes >= 4096 and handle.address
    for total in (1, 7, 100, 10_001):
        x = randn(total)
        y = np.zeros_like(x)
        program, _, _ = single("kernel", [x], [y], {"kernel": handle, "total": total, "grain": 16})
        program.run([x], [y])
        np.testing.assert_array_equal(y, x * np.where(np.arange(total) % 2, 3, 2).astype(np.float32))
    assert program.task_info()[0]["impl"] == "generated:scale"


def test_the_code_outlives_its_handle() -> None:
    x = randn(8)
    handle = rt.load_object(_compile(_SCALE), "scale")
    program, _, fills = single("kernel", [x], [np.zeros_like(x)], {"kernel": handle, "total": 8})
    del handle
    program.run([x], fills)
    assert fills[0][0] == x[0] * 2


def test_views_begin_at_their_offset() -> None:
    x = randn(16)
    y = np.zeros(8, np.float32)
    handle = rt.load_object(_compile(_SCALE), "scale")
    program = rt.Program("offset")
    source, out = program.input(0, x.nbytes), program.output(0, y.nbytes)
    inputs = [(source, "float32", (8,), (1,), 4)]
    program.task("kernel", "k", inputs, [view(out, y)], {"kernel": handle, "total": 8, "grain": 100})
    program.finalize(0)
    program.run([x], [y])
    np.testing.assert_array_equal(y, x[4:12] * np.tile(np.float32([2, 3]), 4))


@pytest.mark.parametrize("relocation", ["pic", "static"])
def test_data_calls_and_imports_are_relocated(relocation: str) -> None:
    y = np.zeros(2, np.int64)
    handle = rt.load_object(_compile(_RICH, relocation), "rich")
    program, _, _ = single("kernel", [], [y], {"kernel": handle, "total": 1})
    program.run([], [y])
    assert y.tolist() == [0x01010101, 2]


def test_undefined_symbols_are_named() -> None:
    with pytest.raises(rt.ObjectError, match="undefined symbol 'elsewhere'"):
        rt.load_object(_compile(_MISSING), "calls")


def test_a_symbol_that_is_not_there() -> None:
    with pytest.raises(rt.ObjectError, match="kernel object 'other': the symbol is not defined"):
        rt.load_object(_compile(_SCALE), "other")
    with pytest.raises(rt.ObjectError, match="not a function"):
        rt.load_object(_compile(_RICH), "count")


@pytest.mark.parametrize("junk", [b"", b"\x7fELF", b"\x7fELF" + bytes(60), bytes(1000), b"MZ" * 100])
def test_bytes_that_are_no_object(junk: bytes) -> None:
    with pytest.raises(rt.ObjectError):
        rt.load_object(junk, "scale")


def _try_load(data: bytes) -> bool:
    try:
        rt.load_object(data, "rich")
    except rt.ObjectError:
        return False
    return True


def test_truncated_objects_never_load_past_their_end() -> None:
    data = _compile(_RICH)
    for size in range(0, len(data), 7):
        _try_load(data[:size])
    assert not _try_load(data[: len(data) // 2])


def test_damaged_objects_load_or_raise() -> None:
    data = _compile(_RICH)
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(4000):
        damaged = bytearray(data)
        for position in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[position] = rng.integers(0, 256)
        refused += not _try_load(bytes(damaged))
    assert refused > 100


def test_damaged_headers_load_or_raise() -> None:
    """Every field of every section header, symbol and relocation set to awkward numbers."""
    data = _compile(_RICH)
    awkward = [0, 1, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF]
    places = [*range(0x10, 64, 2), *range(64, len(data) - 8, 4)]
    for place in places:
        for number in awkward:
            damaged = bytearray(data)
            damaged[place : place + 8] = struct.pack("<Q", number)
            _try_load(bytes(damaged))


def test_a_kernel_task_needs_a_kernel() -> None:
    with pytest.raises(ValueError, match="attribute 'kernel' is missing"):
        single("kernel", [], [np.zeros(1, np.float32)], {"total": 1})
    with pytest.raises(ValueError, match="must be a kernel handle"):
        single("kernel", [], [np.zeros(1, np.float32)], {"total": 1, "kernel": 5})
