"""Which tensors stay in the device's memory between two parts.

A tensor that only one other part reads need not become one of TensorFlow's: the part that makes it leaves it in its
arena, and the part that reads it runs in the same one. Both together then need the memory that one program would.
1. A part takes from one other, and leaves to one other: the pair with the most such tensors comes first.
2. Numbers only: whole numbers may be sizes, whose values a compile asks for.
3. A part with operations whose results have no size before the run leaves nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from npu_bridge.drafts import Draft
from npu_bridge.partition import Partition, Region

__all__ = ["hand_over"]

_UNSIZED = frozenset(
    {"DynamicPartition", "ListDiff", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where"}
    | {f"NonMaxSuppressionV{n}" for n in range(2, 6)}
)

Pair = tuple[int, int]  # the part that leaves something, the part that reads it


def hand_over(
    region: Region, cut: Partition, drafts: Sequence[Draft], wanted: Collection[str]
) -> list[Draft]:
    """The drafts, with what they leave to each other; `wanted` are tensors that the run fetches."""
    found = _candidates(region, cut, drafts, wanted)
    done = list(drafts)
    leaving: set[int] = set()
    taking: set[int] = set()
    for (maker, reader), outputs in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        if maker in leaving or reader in taking:
            continue
        leaving.add(maker)
        taking.add(reader)
        places = {t.name: i for i, t in enumerate(drafts[reader].inputs)}
        names = {j: drafts[maker].outputs[j].name for j in outputs}
        done[maker] = replace(done[maker], left=tuple(outputs))
        done[reader] = replace(done[reader], given={places[name]: j for j, name in names.items()})
    return done


def _candidates(
    region: Region, cut: Partition, drafts: Sequence[Draft], wanted: Collection[str]
) -> dict[Pair, list[int]]:
    """For pairs of parts, the outputs of the first that only the second reads."""
    part_of = cut.part_of()
    found: dict[Pair, list[int]] = defaultdict(list)
    for maker, draft in enumerate(drafts):
        if any(region.operations[name].type in _UNSIZED for name in cut.parts[maker]):
            continue
        for position, tensor in enumerate(draft.outputs):
            readers = {part_of.get(name) for name in _readers(region, tensor)} - {maker}
            reader = next(iter(readers)) if len(readers) == 1 else None
            if reader is None or tensor.name in wanted or not tensor.dtype.is_floating:
                continue
            if any(t.name == tensor.name for t in drafts[reader].inputs):
                found[maker, reader].append(position)
    return found


def _readers(region: Region, tensor: Any) -> list[str]:
    return [c.name for c in tensor.consumers() if c.name in region.operations]
