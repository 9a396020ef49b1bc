"""Kernels of a plan: equal expressions are compiled once, ahead of loading.

One thread compiles: LLVM's bindings hold one lock, so a second thread gains nothing (measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tbe
from ge.build.kernel_store import KernelStore, open_store
from ge.plan import KernelImage
from npu_runtime.bounded import BoundedCache

__all__ = ["KernelCache", "KernelTable", "shared_cache"]


class KernelCache:
    """A bounded, thread-safe cache of compiled kernels by fingerprint, target and processor."""

    def __init__(self, capacity: int = 4096) -> None:
        self._kernels: BoundedCache[tuple[str, str, tbe.Processor], tbe.Kernel] = BoundedCache(capacity)

    def get(self, fingerprint: str, target: str, processor: tbe.Processor) -> tbe.Kernel | None:
        """A cached kernel, None on a miss."""
        return self._kernels.get((fingerprint, target, processor))

    def put(self, fingerprint: str, target: str, processor: tbe.Processor, kernel: tbe.Kernel) -> None:
        """Cache a kernel."""
        self._kernels.put((fingerprint, target, processor), kernel)


_SHARED = KernelCache()


def shared_cache() -> KernelCache:
    """The cache that all compilations of this process share by default."""
    return _SHARED


@dataclass
class _Entry:
    fingerprint: str
    name: str
    inputs: list[tbe.Tensor]
    outputs: list[tbe.Tensor]
    aliases: tuple[tuple[int, int], ...]
    isolated: bool = False
    kernel: tbe.Kernel | None = None
    given: bool = False  # machine code of another compiler, without an expression


@dataclass
class KernelTable:
    """The kernels that the tasks of one plan need."""

    target: str
    processor: tbe.Processor = field(default_factory=tbe.Processor)
    cache: KernelCache = field(default_factory=shared_cache)
    entries: list[_Entry] = field(default_factory=list)
    _index: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        inputs: Sequence[tbe.Tensor],
        outputs: Sequence[tbe.Tensor],
        name: str,
        *,
        isolated: bool = False,
    ) -> int:
        """The index of the kernel for an expression; equal expressions share one kernel.

        An expression with user code is compiled in isolation, in another process.
        Raises tbe.Unfusable when one kernel cannot compute it.
        """
        key = tbe.fingerprint(inputs, outputs)
        if key not in self._index:
            aliases = tuple(tbe.schedule(inputs, outputs, self.processor).aliases)
            self._index[key] = len(self.entries)
            self.entries.append(_Entry(key, name, list(inputs), list(outputs), aliases, isolated))
        return self._index[key]

    def add_code(self, symbol: str, code: bytes) -> int:
        """The index of a kernel given as machine code, which runs as one unit."""
        if symbol not in self._index:
            self._index[symbol] = len(self.entries)
            kernel = tbe.Kernel(symbol, code, 1, 1, "", 0, 0, self.target, symbol, ())
            self.entries.append(_Entry(symbol, symbol, [], [], (), True, kernel, given=True))
        return self._index[symbol]

    def aliases(self, index: int) -> tuple[tuple[int, int], ...]:
        """The (input, output) pairs of a kernel that may share memory."""
        return self.entries[index].aliases

    def compile(self) -> None:
        """Compile the kernels that are neither in this process's cache nor in the store on disk."""
        store = open_store()
        for entry in self.entries:
            if entry.given:
                continue
            entry.kernel = self.cache.get(entry.fingerprint, self.target, self.processor)
            if entry.kernel is None:
                entry.kernel = self._build(entry, store)
                self.cache.put(entry.fingerprint, self.target, self.processor, entry.kernel)

    def _build(self, entry: _Entry, store: KernelStore | None) -> tbe.Kernel:
        if entry.isolated:
            from ge import isolation

            return isolation.build(entry.inputs, entry.outputs, self.target, entry.name, self.processor)
        kernel = store.get(entry.fingerprint, self.target, self.processor) if store is not None else None
        if kernel is None:
            kernel = tbe.build(entry.inputs, entry.outputs, self.target, entry.name, processor=self.processor)
            if store is not None:
                store.put(self.target, kernel, self.processor)
        return kernel

    def kernel(self, index: int) -> tbe.Kernel:
        """A compiled kernel."""
        kernel = self.entries[index].kernel
        assert kernel is not None, "kernels are compiled before they are asked for"
        return kernel

    def images(self) -> list[KernelImage]:
        """The kernels in the form that a plan stores."""
        return [
            KernelImage(
                symbol=self.kernel(i).symbol,
                expression="" if entry.given else tbe.to_json(entry.inputs, entry.outputs),
                total=self.kernel(i).total,
                grain=self.kernel(i).grain,
                objects={self.target: self.kernel(i).object},
                isolated=entry.isolated,
            )
            for i, entry in enumerate(self.entries)
        ]
