"""The record of a device that graphs are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Target"]

_LEAST_PIECES_PER_CORE = 2  # fewer leave cores idle when one piece takes longer
_ROWS_PER_CORE = 4


@dataclass(frozen=True)
class Target:
    """A device as the compiler sees it; two equal targets get equal plans.

    >>> Target("small", code="avx2", isa="avx2", cores=4, cache_bytes=8 << 20).narrow_floats
    frozenset()
    """

    name: str
    code: str  # what generated kernels are compiled for: a name that `tbe.build` takes
    isa: str  # the instruction set of the library's primitives, in oneDNN's words
    cores: int
    cache_bytes: int  # of the last level
    kind: str = "cpu"

    @property
    def narrow_floats(self) -> frozenset[str]:
        """The 16-bit float types that products have."""
        has_half = "fp16" in self.isa or "amx" in self.isa or self.isa == "avx2_vnni_2"
        has_brain = self.isa.startswith("avx512_core") or self.isa == "avx2_vnni_2"
        return frozenset({"float16"} if has_half else ()) | frozenset({"bfloat16"} if has_brain else ())

    @property
    def least_pieces(self) -> int:
        """Pieces of a kernel's range from which all cores take part."""
        return _LEAST_PIECES_PER_CORE * self.cores

    @property
    def rows(self) -> int:
        """Rows of results that keep all cores busy."""
        return _ROWS_PER_CORE * self.cores
