"""The record of a device that graphs are compiled for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ge.target.costs import CostTable

if TYPE_CHECKING:
    from tbe.processor import Processor

__all__ = ["Target", "processor_of", "runtime_loops"]

_RUNTIME_LOOPS = ("l1_bytes", "l2_bytes", "last_bytes", "wake_ns")
_LEAST_PIECES_PER_CORE = 2  # fewer leave cores idle when one piece takes longer
_ROWS_PER_CORE = 4
_COLUMNS_PER_ROW = 16  # threads of a GPU that compute one row together

# Float32 operations per cycle and core, by vector registers; 16-bit products are this much faster.
_FLOPS_PER_CYCLE = {"": 8, "avx2": 32, "avx512": 64}
_NARROW_SPEED = {"avx512_bf16": 2, "amx": 16}
_HERTZ = 3e9
_BYTES_PER_SECOND = 10e9  # of a core, from memory

# oneDNN's names of instruction sets and the features each implies for generated code and our own kernels.
_FEATURES = {
    "sse41": (),
    "avx": (),
    "avx2": ("avx2",),
    "avx2_vnni": ("avx2",),
    "avx2_vnni_2": ("avx2",),
    "avx512_core": ("avx2", "avx512"),
    "avx512_core_vnni": ("avx2", "avx512", "avx512_vnni"),
    "avx512_core_bf16": ("avx2", "avx512", "avx512_vnni", "avx512_bf16"),
    "avx512_core_fp16": ("avx2", "avx512", "avx512_vnni", "avx512_bf16"),
    "avx512_core_amx": ("avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"),
    "avx512_core_amx_fp16": ("avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx"),
}


@dataclass(frozen=True)
class Target:
    """A device from the compiler's point of view; equal targets get equal plans.

    >>> Target("small", code="avx2", isa="avx2", cores=4, cache_bytes=8 << 20).narrow_floats
    frozenset()
    >>> sorted(Target("server", code="avx512", isa="avx512_core", cores=4, cache_bytes=8 << 20).features)
    ['avx2', 'avx512']
    """

    name: str
    code: str  # the target of generated kernels: a name that `tbe.build` accepts
    isa: str  # the instruction set of the library's primitives, by oneDNN's name
    cores: int
    cache_bytes: int  # of the last level
    kind: str = "cpu"
    l1_bytes: int = 32 << 10  # of a core, for data
    l2_bytes: int = 1 << 20  # of a core
    memory_bytes: int = 0  # 0: not known
    onednn: str = ""  # version of the library that runs the primitives
    library: bool = True  # False: no library, every cube operator is a generated kernel
    kernel_elements: int = 1 << 18  # of a generated kernel, from which it needs all cores
    reduction_elements: int = 1 << 15  # of a reduction, from which two steps on all cores are faster than one
    serial_elements: int = 1 << 16  # of a generated reduction that one core computes as fast as all
    costs: CostTable | None = None  # None: a model of operations and bytes decides (see costs_of)

    @property
    def measured(self) -> CostTable:
        """The measured costs, else those that hold for most processors."""
        return self.costs or CostTable()

    @property
    def wake_ns(self) -> float:
        """Nanoseconds of work on one core that justify waking another."""
        return self.measured.wake_ns

    def costs_of(self, dtype: str) -> CostTable | None:
        """The measured costs of products of a type, None if a model decides."""
        narrow = dtype in ("bfloat16", "float16")
        return None if self.costs is None or (narrow and not self.costs.narrow_floats) else self.costs

    @property
    def features(self) -> frozenset[str]:
        """The instruction sets beyond SSE4 that kernels may use: avx2, avx512, avx512_vnni, avx512_bf16, amx."""
        return frozenset(_FEATURES.get(self.isa, ()))

    @property
    def narrow_floats(self) -> frozenset[str]:
        """The 16-bit float types that products support."""
        if self.kind == "cuda":
            return frozenset({"float16", "bfloat16"})
        has_half = "fp16" in self.isa or "amx" in self.isa or self.isa == "avx2_vnni_2"
        has_brain = "avx512" in self.features or self.isa == "avx2_vnni_2"
        return frozenset({"float16"} if has_half else ()) | frozenset({"bfloat16"} if has_brain else ())

    @property
    def least_pieces(self) -> int:
        """The number of pieces from which a kernel uses all cores."""
        return _LEAST_PIECES_PER_CORE * self.cores

    @property
    def rows(self) -> int:
        """Rows of results that keep all cores busy."""
        return _ROWS_PER_CORE * self.cores

    @property
    def columns(self) -> int:
        """Results that keep all threads of a GPU busy."""
        return _COLUMNS_PER_ROW * self.rows

    @property
    def processor(self) -> Processor:
        """The processor parameters of generated kernels' loops; GPU loops depend on none of its caches."""
        from tbe.processor import Processor

        if self.kind == "cuda":
            return Processor(serial_elements=self.serial_elements)
        return Processor(self.l1_bytes, self.cache_bytes, self.wake_ns, self.serial_elements, self.l2_bytes)

    def report(self) -> dict[str, Any]:
        """The target's entry in a plan's report."""
        return {"name": self.name, "isa": self.isa, "loops": dataclasses.asdict(self.processor)}

    def seconds(self, flops: float, nbytes: float, dtype: str = "float32") -> float:
        """Time of this many operations and bytes from memory on all cores, whichever takes longer."""
        vectors = next((name for name in ("avx512", "avx2") if name in self.features), "")
        rate = _FLOPS_PER_CYCLE[vectors] * _HERTZ
        if dtype in ("bfloat16", "float16") and dtype in self.narrow_floats:
            rate *= max((speed for name, speed in _NARROW_SPEED.items() if name in self.features), default=1)
        return max(flops / rate, nbytes / _BYTES_PER_SECOND) / self.cores


def processor_of(report: Mapping[str, Any]) -> Processor:
    """The processor that the loops of a plan with this report were generated for; the default if it is not recorded.

    >>> processor_of({"target": {"loops": {"l1_bytes": 65536}}}).stack_bytes
    131072
    """
    from tbe.processor import Processor

    loops = _loops_of(report)
    known = {field.name for field in dataclasses.fields(Processor)}
    return Processor(**loops) if loops.keys() <= known else Processor()


def runtime_loops(report: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the runtime's own kernels: the arguments of `npu_runtime.Program.set_loops`; needs no compiler.

    >>> runtime_loops({"target": {"loops": {"l2_bytes": 65536, "serial_elements": 4096}}})
    {'l2_bytes': 65536}
    """
    return {name: value for name, value in _loops_of(report).items() if name in _RUNTIME_LOOPS}


def _loops_of(report: Mapping[str, Any]) -> dict[str, Any]:
    target = report.get("target")
    loops = target.get("loops") if isinstance(target, Mapping) else None
    if not isinstance(loops, Mapping):
        return {}
    valid = all(isinstance(value, int | float) and 0 < value < 1 << 40 for value in loops.values())
    return dict(loops) if valid else {}
