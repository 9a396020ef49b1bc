"""The finished plan of a model: buffers, tasks, constants and kernels, as plain data.

A plan is what the build stages produce, what a `.om` file stores and what the runtime executes. It names no
framework and no graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ge.ir.types import TensorDesc

__all__ = ["Buffer", "KernelImage", "Plan", "Port", "Task", "View", "contiguous_strides"]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(int(shape[axis + 1]), 1)
    return tuple(strides)


@dataclass(frozen=True, slots=True)
class View:
    """A tensor inside a buffer: element type, shape, strides and offset in elements."""

    buffer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def of(cls, buffer: int, desc: TensorDesc, offset: int = 0) -> View:
        """The contiguous view of a whole tensor."""
        return cls(buffer, desc.dtype, desc.shape, contiguous_strides(desc.shape), offset)

    @property
    def desc(self) -> TensorDesc:
        return TensorDesc(self.shape, self.dtype)

    @property
    def nbytes(self) -> int:
        return self.desc.nbytes

    @property
    def contiguous(self) -> bool:
        expected = contiguous_strides(self.shape)
        return all(n <= 1 or s == e for n, s, e in zip(self.shape, self.strides, expected, strict=True))

    def permute(self, perm: Sequence[int]) -> View:
        """The view with permuted axes (no data moves)."""
        return replace(
            self, shape=tuple(self.shape[p] for p in perm), strides=tuple(self.strides[p] for p in perm)
        )

    def reshape(self, shape: Sequence[int]) -> View:
        """The contiguous view in another shape."""
        assert self.contiguous, "only a contiguous view can be reshaped"
        assert math.prod(shape) == math.prod(self.shape), f"cannot view {self.shape} as {tuple(shape)}"
        return replace(self, shape=tuple(shape), strides=contiguous_strides(shape))

    def as_tuple(self) -> tuple[int, str, tuple[int, ...], tuple[int, ...], int]:
        """The runtime's form."""
        return (self.buffer, self.dtype, self.shape, self.strides, self.offset)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory: the arena at an offset, a constant, or a caller's input or output by index."""

    kind: str  # "arena" | "constant" | "input" | "output"
    nbytes: int
    offset: int = 0
    index: int = 0


@dataclass(slots=True)
class Task:
    """One step of execution, in the uniform form of the runtime (see native/README.md for the kinds)."""

    kind: str
    name: str
    inputs: list[View]
    outputs: list[View]
    attrs: dict[str, Any] = field(default_factory=dict)
    engine: str = ""
    origin: tuple[str, ...] = ()
    block: int = 0
    flops: int = 0


@dataclass(slots=True)
class KernelImage:
    """A generated kernel: its expression and its machine code per target (a cache of it).

    The machine code of a TIK program has no expression.
    """

    symbol: str
    expression: str  # tbe.to_json
    total: int
    grain: int
    objects: dict[str, bytes] = field(default_factory=dict)  # target ("host:<cpu>", "portable") -> ELF object
    isolated: bool = False  # contains user code: further variants are compiled in another process


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model, as the user sees it."""

    name: str
    desc: TensorDesc
    format: str = "ND"
    dynamic: bool = False  # the actual shape is known only after the run


@dataclass(slots=True)
class Plan:
    """A whole model, ready to load."""

    name: str
    inputs: list[Port]
    outputs: list[Port]
    buffers: list[Buffer] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    blocks: int = 1
    constants: list[np.ndarray] = field(default_factory=list)
    kernels: list[KernelImage] = field(default_factory=list)
    arena_bytes: int = 0
    donated: tuple[
        tuple[int, int], ...
    ] = ()  # (output, input) pairs that share memory, passed by the caller for both
    left: tuple[int, ...] = ()  # arena offsets of results that the next program reads there
    steps: int = 1  # a run repeats the tasks this many times, each time for the next rows of the batch
    report: dict[str, Any] = field(default_factory=dict)  # memory lower bound, strategies, options, versions

    def feeds(self) -> Iterator[tuple[int, ...]]:
        """For each task, the tasks that wrote its inputs."""
        wrote: dict[int, int] = {}
        for number, task in enumerate(self.tasks):
            yield tuple(dict.fromkeys(wrote[view.buffer] for view in task.inputs if view.buffer in wrote))
            wrote.update((view.buffer, number) for view in task.outputs)

    def strides(self, kind: str) -> list[int]:
        """The bytes by which each input ("input") or output ("output") advances per step.

        A tensor that is larger than its buffer carries the batch; the others are the same in every step.
        """
        ports = self.inputs if kind == "input" else self.outputs
        sizes = {b.index: b.nbytes for b in self.buffers if b.kind == kind}
        return [0 if sizes[i] == p.desc.nbytes else sizes[i] for i, p in enumerate(ports)]
