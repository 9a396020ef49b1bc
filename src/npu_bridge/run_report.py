"""The report of mixed computing: placement of operations with reasons, parts, bytes that cross."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from npu_bridge.partition import Partition, Region, is_free
from npu_bridge.variables import bytes_of, is_resource, variable_of

__all__ = ["RunReport"]


@dataclass(frozen=True)
class Placed:
    """Where one operation runs."""

    name: str
    type: str
    side: str  # "npu" or "host"
    part: int  # the part, -1 on the host
    reason: str


@dataclass(frozen=True)
class RunReport:
    """Placement of a run's operations.

    `crossing` counts the bytes that enter and leave the parts; unknown sizes count as 1. Resident tensors do not cross.
    """

    operations: tuple[Placed, ...]
    parts: int
    crossing: int

    @classmethod
    def of(
        cls,
        region: Region,
        cut: Partition,
        sizes: Mapping[str, tuple[int, ...]] | None = None,
        resident: Collection[str] = (),
    ) -> RunReport:
        """The report of a partition; `sizes` are the sizes of tensors that the graph does not know, by name.

        `resident` are tensors that stay in device memory between two parts.
        """
        part_of = cut.part_of()
        placed = [
            Placed(
                name,
                operation.type,
                "npu" if name in part_of else "host",
                part_of.get(name, -1),
                "" if name in part_of else cut.reasons.get(name, "nothing of it is computed at run time"),
            )
            for name, operation in region.operations.items()
            if not is_free(operation)
        ]
        return cls(tuple(placed), len(cut.parts), _crossing(region, part_of, sizes or {}, resident))

    def on_host(self) -> list[str]:
        """Names of the operations on the host."""
        return [p.name for p in self.operations if p.side == "host"]

    def on_npu(self) -> list[str]:
        """Names of the operations on the NPU."""
        return [p.name for p in self.operations if p.side == "npu"]

    def json(self) -> str:
        """Convert to JSON data."""
        return json.dumps(asdict(self), indent=1)

    def text(self) -> str:
        """Format as a table."""
        share = len(self.on_npu()) / max(1, len(self.operations))
        lines = [
            f"{len(self.on_npu())} of {len(self.operations)} operations ({share:.0%}) on the NPU in {self.parts} "
            f"part(s); {self.crossing:,} bytes cross per run"
        ]
        reasons = Counter((p.type, p.reason) for p in self.operations if p.side == "host")
        width = max((len(kind) for kind, _ in reasons), default=0)
        lines += [f"  host {kind:{width}} x{count}: {why}" for (kind, why), count in reasons.most_common()]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def _crossing(
    region: Region, part_of: dict[str, int], sizes: Mapping[str, tuple[int, ...]], resident: Collection[str]
) -> int:
    tensors: dict[str, Any] = {}
    for name, operation in region.operations.items():
        for tensor in operation.inputs:
            source = tensor.op.name
            fed = tensor.name in region.fed
            sides = part_of.get(name), None if fed else part_of.get(source)
            if sides[0] != sides[1] and not is_free(tensor.op) and tensor.name not in resident:
                tensors[tensor.name] = tensor
    return sum(_bytes(t, sizes.get(t.name)) for t in tensors.values())


def _bytes(tensor: Any, known: tuple[int, ...] | None) -> int:
    handle = variable_of(tensor) if is_resource(tensor) else None
    if handle is not None:
        return bytes_of(handle)
    if known is None and tensor.shape.rank is None:
        return 0
    dims = known if known is not None else [d or 1 for d in tensor.shape.as_list()]
    return math.prod(dims) * max(1, tensor.dtype.base_dtype.size)
