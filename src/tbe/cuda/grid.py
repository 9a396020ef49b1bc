"""Grids: map the threads of a GPU onto the loops of a kernel.

A *cell* is one combination of the kept loops (with an outer lane: `width` adjacent ones). A *team* of threads shares a
cell and divides the *steps* of its reductions: thread t of the team runs steps t, t + team, and so on. With an inner
lane a step is `width` adjacent elements of the row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tbe.cuda.architectures import Architecture
from tbe.dtypes import DTYPES
from tbe.index import Index, LoopVar
from tbe.lower import Node
from tbe.schedule import Nest, Schedule, closure, effort

__all__ = ["TILE", "TILE_ROWS", "WARP", "Grid", "Mapping", "loads_of", "map_schedule"]

WARP = 32
TILE = 32  # elements along each side of a transposed tile
TILE_ROWS = 8  # rows of a tile that a block handles at a time
_VECTOR_BYTES = 16
_BLOCK = 256
_MOST_THREADS = 1024
_MOST_COPIES = 8  # unrolled steps of a thread
_MOST_ELEMENTS = 32  # the same, in elements, so that they stay in registers
_MOST_WORK = 1500.0  # the same, in instructions
_STEPS_PER_THREAD = 4


@dataclass(frozen=True)
class Mapping:
    """The threads of one nest."""

    nest: Nest
    width: int  # adjacent lanes that a thread handles as a vector
    cells: int
    team: int  # threads of one cell; a power of two
    cells_per_block: int
    steps: tuple[int, ...]  # of each group of inner loops
    copies: int  # steps unrolled at a time
    unrolled: (
        bool  # whether the copies are all steps of a thread, so that values stay in registers between stages
    )

    @property
    def tiled(self) -> bool:
        """True if a block handles a square of the lane and the tile variable through shared memory."""
        return self.nest.tile is not None

    @property
    def blocks(self) -> int:
        """Thread blocks of the nest."""
        return -(-self.cells // self.cells_per_block)

    @property
    def threads(self) -> int:
        """Threads of a block that take part."""
        return TILE * TILE_ROWS if self.tiled else self.team * self.cells_per_block


@dataclass(frozen=True)
class Grid:
    """The launch of a kernel: one range of blocks for each nest."""

    mappings: tuple[Mapping, ...]

    @property
    def blocks(self) -> int:
        """Thread blocks of the launch; 0 if there is nothing to compute."""
        return sum(m.blocks for m in self.mappings)

    @property
    def threads(self) -> int:
        """Threads of each block."""
        return max((-(-m.threads // WARP) * WARP for m in self.mappings), default=WARP)


def map_schedule(plan: Schedule, architecture: Architecture, *, aligned: bool = True) -> Grid:
    """Choose the threads of every nest; `aligned`: all buffers are aligned for vector loads."""
    return Grid(tuple(_map_nest(nest, architecture, aligned) for nest in plan.nests))


def loads_of(nest: Nest) -> Iterator[Node]:
    """Every load of a nest, including those inside reductions."""
    roots = [root for stage in nest.stages for root in stage.roots()] + [s.value for s in nest.stores]
    yield from (n for n in closure(roots, set()) if n.op == "load")


def _map_nest(nest: Nest, architecture: Architecture, aligned: bool) -> Mapping:
    if nest.tile is not None:
        sides = -(-nest.lane.extent // TILE) * -(-nest.tile.extent // TILE)
        cells = math.prod(v.extent for v in nest.outer) * sides
        return Mapping(nest, 1, cells, 1, 1, (), TILE // TILE_ROWS, True)
    width = _width(nest, architecture) if aligned else 1
    lane = nest.lane.extent // width if nest.lane_outer else 1
    cells = math.prod(v.extent for v in nest.outer) * lane
    steps = tuple(_steps(group, nest, width) for group in nest.groups)
    most = max(steps, default=1)
    if nest.runnings or not nest.groups:
        team = 1
    elif nest.lane_outer:
        team = _column_team(cells, most, architecture)
    else:
        team = _row_team(cells, most, architecture)
    per_block = _cells_per_block(nest, cells, team, architecture)
    turns = -(-most // team)
    work = sum(effort(n) for stage in nest.stages for n in closure(stage.roots(), set()))
    fits = turns <= _MOST_COPIES and turns * width <= _MOST_ELEMENTS and turns * width * work <= _MOST_WORK
    if nest.runnings:
        return Mapping(nest, width, cells, team, per_block, steps, 1, False)
    if not nest.groups or fits:
        return Mapping(nest, width, cells, team, per_block, steps, turns, True)
    most = max(1, min(turns, _MOST_COPIES, _MOST_ELEMENTS // width, int(_MOST_WORK / (width * work))))
    copies = min(
        range(most, most // 2, -1), key=lambda n: -turns % n
    )  # maximises the work in the last iteration
    return Mapping(nest, width, cells, team, per_block, steps, copies, False)


def _steps(group: Sequence[LoopVar], nest: Nest, width: int) -> int:
    size = math.prod(v.extent for v in group)
    return size if nest.lane_outer or nest.lane not in group else size // width


def _column_team(cells: int, steps: int, architecture: Architecture) -> int:
    """The threads of a warp handle adjacent cells; more threads share a cell if there are few cells."""
    team = 1
    while team < 32 and 2 * team <= steps and cells * team < architecture.busy_threads:
        team *= 2
    return team


def _row_team(cells: int, steps: int, architecture: Architecture) -> int:
    team = 1
    while team < _MOST_THREADS and team * _STEPS_PER_THREAD < steps:
        team *= 2
    while team < _MOST_THREADS and team < steps and cells * team < _BLOCK * architecture.multiprocessors:
        team *= 2
    return team


def _cells_per_block(nest: Nest, cells: int, team: int, architecture: Architecture) -> int:
    """As many cells as fill a block of the usual size; fewer if that leaves multiprocessors idle."""
    least = WARP if nest.lane_outer and nest.groups else max(1, WARP // team)
    per_block = max(least, (_BLOCK if team == 1 else _BLOCK // 2) // team)
    if nest.lane_outer and nest.groups and team > 1:
        per_block = WARP
    while per_block > least and -(-cells // per_block) < 2 * architecture.multiprocessors:
        per_block //= 2
    return per_block


def _width(nest: Nest, architecture: Architecture) -> int:
    """The widest vectors with which every access along the lane is contiguous and aligned."""
    if nest.runnings:
        return 1
    lane = nest.lane
    loads = list(loads_of(nest))
    sizes = [1]
    accesses: list[Index] = []
    for node in loads:
        if any(guard.vars & lane.bit for guard in node.args):
            return 1
        if node.data[1].vars & lane.bit:
            accesses.append(node.data[1])
            sizes.append(DTYPES[node.dtype].size)
    for store in nest.stores:
        if store.offset.vars & lane.bit:
            accesses.append(store.offset)
            sizes.append(DTYPES[store.dtype].size)
    width = _VECTOR_BYTES // max(sizes)
    extent = nest.lane.extent
    elements = math.prod(v.extent for v in [*nest.kept, *(nest.groups[0] if nest.groups else ())])
    while width > 1 and (
        extent % width
        or not all(_aligned(i, lane, width) for i in accesses)
        or elements // width < architecture.busy_threads // 2
    ):
        width //= 2
    if nest.groups and any(lane not in group for group in nest.groups) and not nest.lane_outer:
        return 1  # other groups of loops have their own lanes
    return width


def _aligned(i: Index, lane: LoopVar, width: int) -> bool:
    rest = [c for atom, c in i.terms if atom is not lane]
    return i.coefficient(lane) == 1 and not any(c % width for c in [*rest, i.const])
