"""GPU kernels: compiled tensor expressions and the shape of their launch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from npu_runtime.bounded import BoundedCache
from tbe import expr as e
from tbe.cuda.architectures import architecture_of, compile_to_ptx
from tbe.cuda.grid import map_schedule
from tbe.cuda.platforms import Nvptx, Platform, Simulated
from tbe.cuda.render import render
from tbe.schedule import Schedule, row_by_row, schedule
from tbe.serialize import fingerprint
from tbe.target import compile_ir

__all__ = ["GridKernel", "build"]

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_cache: BoundedCache[tuple[str, str, bool, bool, str], GridKernel] = BoundedCache(4096)


@dataclass(frozen=True)
class GridKernel:
    """One fused computation as a kernel for a grid of `blocks` blocks of `threads` threads.

    The parameters are the addresses of the inputs, then of the outputs, each a multiple of 16.
    """

    symbol: str
    code: bytes  # PTX text; for the simulation an object file of the host
    blocks: int
    threads: int
    ir: str
    flops: int
    bytes_moved: int
    target: str
    fingerprint: str
    aliases: tuple[tuple[int, int], ...]  # (input, output) pairs that may share a buffer


def build(
    inputs: Sequence[e.Tensor],
    outputs: Sequence[e.Tensor],
    architecture: str,
    name: str | None = None,
    plan: Schedule | None = None,
    *,
    simulated: bool = False,
    aligned: bool = True,
) -> GridKernel:
    """Compile `outputs` as one GPU kernel of `inputs`; raises Unfusable if that is impossible.

    `simulated` compiles the code of the threads for the host, to be run by a simulated driver. With `aligned` false,
    buffers may start at any element; threads then handle one element at a time.
    """
    described = architecture_of(architecture)
    identity = fingerprint(inputs, outputs)
    symbol = name or f"tbe_{identity[:16]}"
    if not _SYMBOL.fullmatch(symbol):
        raise ValueError(f"{symbol!r:.80} is not a symbol: letters, digits and underscores")
    key = (identity, architecture, simulated, aligned, symbol)
    found = _cache.get(key)
    if found is not None:
        return found
    plan = row_by_row(plan or schedule(inputs, outputs))
    grid = map_schedule(plan, described, aligned=aligned)
    platform: Platform = Simulated() if simulated else Nvptx(described)
    text = render(plan, grid, platform, symbol, aligned=aligned)
    code = (
        compile_ir(text, platform.machine) if simulated else compile_to_ptx(text, platform.machine).encode()
    )
    kernel = GridKernel(
        symbol,
        code,
        grid.blocks,
        grid.threads,
        text,
        plan.flops,
        plan.bytes_moved,
        architecture,
        identity,
        tuple(plan.aliases),
    )
    return _cache.put(key, kernel)
