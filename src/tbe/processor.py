"""The properties of a processor, besides its instructions, that kernel loops depend on: caches and thread costs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Processor"]

_ELEMENT = 4  # bytes of a float32


@dataclass(frozen=True)
class Processor:
    """Caches in bytes, costs in their own units; the defaults are those of a named target.

    >>> Processor(l1_bytes=48 << 10).chunk
    4096
    """

    l1_bytes: int = 32 << 10  # data cache of a core
    last_bytes: int = 32 << 20  # of the last level
    wake_ns: float = 20_000.0  # work that justifies another thread
    serial_elements: int = 1 << 16  # of a reduction that one core computes as fast as all
    l2_bytes: int = 1 << 20  # of a core; for the runtime's kernels

    @property
    def chunk(self) -> int:
        """Elements of a long row per unit of parallel work: half of the L1 cache."""
        return _power_of_two(self.l1_bytes) // 2 // _ELEMENT

    @property
    def long_row_bytes(self) -> int:
        """Size of a row of accumulators from which several rows of operands are read at a time."""
        return _power_of_two(self.l1_bytes) // 2

    @property
    def stack_bytes(self) -> int:
        """Space for the temporaries of a row that stays close to the core."""
        return 2 * _power_of_two(self.l1_bytes)

    @property
    def tiled_elements(self) -> int:
        """Size of a transposed tensor from which longer pieces of its rows are read: half of the last-level cache."""
        return self.last_bytes // 2 // _ELEMENT

    @property
    def streamed_bytes(self) -> int:
        """Traffic from which a kernel's outputs are evicted from the caches before they are read."""
        return 2 * self.last_bytes


def _power_of_two(size: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (max(size, 4096).bit_length() - 1)
