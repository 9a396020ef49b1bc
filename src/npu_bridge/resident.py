"""Chooses the tensors that stay in device memory between two parts.

A tensor whose only reader is another part need not become a TensorFlow tensor: its producer keeps it in the arena, in
which the reader runs too, so both need no more memory than one program.
1. A part has at most one resident producer and one resident consumer; pairs with the most tensors first.
2. Floating-point tensors only: integers may be sizes, whose values the compiler needs.
3. Parts with data-dependent output sizes have no resident outputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from npu_bridge.candidates import CandidatePart
from npu_bridge.partition import Partition, Region

__all__ = ["keep_resident"]

_UNSIZED = frozenset(
    {"DynamicPartition", "ListDiff", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where"}
    | {f"NonMaxSuppressionV{n}" for n in range(2, 6)}
)

Pair = tuple[int, int]  # producer, consumer


def keep_resident(
    region: Region, cut: Partition, candidates: Sequence[CandidatePart], wanted: Collection[str]
) -> list[CandidatePart]:
    """The candidates with their resident tensors; `wanted` are the fetched tensors."""
    found = _candidates(region, cut, candidates, wanted)
    done = list(candidates)
    leaving: set[int] = set()
    taking: set[int] = set()
    for (maker, reader), outputs in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        if maker in leaving or reader in taking:
            continue
        leaving.add(maker)
        taking.add(reader)
        places = {t.name: i for i, t in enumerate(candidates[reader].inputs)}
        names = {j: candidates[maker].outputs[j].name for j in outputs}
        done[maker] = replace(done[maker], left=tuple(outputs))
        done[reader] = replace(done[reader], given={places[name]: j for j, name in names.items()})
    return done


def _candidates(
    region: Region, cut: Partition, candidates: Sequence[CandidatePart], wanted: Collection[str]
) -> dict[Pair, list[int]]:
    """For pairs of parts, the outputs of the first read only by the second."""
    part_of = cut.part_of()
    found: dict[Pair, list[int]] = defaultdict(list)
    for maker, candidate in enumerate(candidates):
        if any(region.operations[name].type in _UNSIZED for name in cut.parts[maker]):
            continue
        for position, tensor in enumerate(candidate.outputs):
            readers = {part_of.get(name) for name in _readers(region, tensor)} - {maker}
            reader = next(iter(readers)) if len(readers) == 1 else None
            if reader is None or tensor.name in wanted or not tensor.dtype.is_floating:
                continue
            if any(t.name == tensor.name for t in candidates[reader].inputs):
                found[maker, reader].append(position)
    return found


def _readers(region: Region, tensor: Any) -> list[str]:
    return [c.name for c in tensor.consumers() if c.name in region.operations]
