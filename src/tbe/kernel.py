"""Kernels: compiled tensor expressions, and the cache that compiles each of them once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_runtime.bounded import BoundedCache
from tbe import elf
from tbe import expr as e
from tbe.llvm import render
from tbe.processor import Processor
from tbe.schedule import Schedule, retuned, schedule
from tbe.serialize import fingerprint, structure
from tbe.target import compile_ir, machine_for
from tbe.tuning import Tuning, tuning_of

if TYPE_CHECKING:
    from tbe.cuda import GridKernel

__all__ = ["Kernel", "build", "forget"]


@dataclass(frozen=True)
class Kernel:
    """Machine code for one fused computation.

    On a CPU the symbol is `void symbol(void** args, int64_t lo, int64_t hi)`: args are the inputs, then the outputs; it
    computes the units lo .. hi-1 of 0 .. total-1. Ranges may run in any order and concurrently. A range shorter than
    `grain` is not worth a separate thread. On a GPU the object is PTX text for `total` blocks of `grain` threads
    (tbe.cuda.GridKernel).
    """

    symbol: str
    object: bytes
    total: int
    grain: int
    ir: str
    flops: int
    bytes_moved: int
    target: str
    fingerprint: str
    aliases: tuple[tuple[int, int], ...]  # (input, output) pairs that may share a buffer


_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_cache: BoundedCache[tuple[str, str, Processor, str], Kernel] = BoundedCache(4096)


def forget() -> None:
    """Clear the kernel cache, so that kernels are compiled again."""
    _cache.clear()


def build(
    inputs: Sequence[e.Tensor],
    outputs: Sequence[e.Tensor],
    target: str = "host",
    name: str | None = None,
    plan: Schedule | None = None,
    tuning: Tuning | None = None,
    *,
    aligned: bool = True,
    processor: Processor | None = None,
) -> Kernel:
    """Compile `outputs` as one kernel of `inputs`; raises Unfusable if that is impossible.

    `plan` may be an existing schedule of the same inputs and outputs; without it `processor` decides the loops.
    `tuning` overrides the stored choices for the expression. On a GPU, buffers are aligned to 16 bytes unless `aligned`
    is false.
    """
    if target == "simulated" or target.startswith("sm_"):
        from tbe import cuda

        simulated = target == "simulated"
        architecture = "sm_90" if simulated else target
        made = cuda.build(inputs, outputs, architecture, name, plan, simulated=simulated, aligned=aligned)
        return _on_grid(made, target)
    machine = machine_for(target)
    hashed = structure(inputs, outputs)
    identity = fingerprint(inputs, outputs) if tuning is None else f"{hashed} {tuning.given()}"
    symbol = name or f"tbe_{identity[:16]}"
    if not _SYMBOL.fullmatch(symbol):
        raise ValueError(f"{symbol!r:.80} is not a symbol: letters, digits and underscores")
    loops = plan.processor if plan is not None else processor or Processor()
    key = (identity, machine.name + machine.cpu, loops, symbol)
    found = _cache.get(key)
    if found is not None:
        return found
    chosen = tuning or tuning_of(hashed, target)
    plan = plan or schedule(inputs, outputs, loops)
    if chosen is not None:
        plan = retuned(plan, chosen)
    text = render(plan, machine, symbol)
    code = compile_ir(text, machine)
    defined, undefined = elf.symbols(code)
    if undefined or symbol not in defined:
        raise AssertionError(f"kernel {symbol} refers to {sorted(undefined)}")
    kernel = Kernel(
        symbol,
        code,
        plan.total,
        plan.grain,
        text,
        plan.flops,
        plan.bytes_moved,
        machine.name,
        identity,
        tuple(plan.aliases),
    )
    return _cache.put(key, kernel)


def _on_grid(kernel: GridKernel, target: str) -> Kernel:
    return Kernel(
        kernel.symbol,
        kernel.code,
        kernel.blocks,
        kernel.threads,
        kernel.ir,
        kernel.flops,
        kernel.bytes_moved,
        target,
        kernel.fingerprint,
        kernel.aliases,
    )
