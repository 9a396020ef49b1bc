"""The backend "hccl": collectives of NPU tensors, over Gloo on the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from torch_npu.memory import as_cpu, is_npu

__all__ = ["register"]


def _host(value: Any) -> Any:
    if is_npu(value):
        return as_cpu(value)
    return [_host(v) for v in value] if isinstance(value, (list, tuple)) else value


class _Hccl(dist.ProcessGroup):
    """Collectives handed to Gloo, NPU tensors as CPU tensors over the same memory."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._inner = dist.ProcessGroupGloo(dist.PrefixStore("hccl", store), rank, size, timeout)

    def getBackendName(self) -> str:
        return "hccl"


def _handed_on(name: str, options: Callable[[], Any] | None) -> Callable[..., Any]:
    def call(self: _Hccl, *args: Any, **named: Any) -> Any:
        given = [_host(a) for a in (*args, *named.values())]
        if options is not None and (not given or given[-1] is None):
            given = [*(given[:-1] if given else []), options()]
        return getattr(self._inner, name)(*given)

    call.__name__ = name
    return call


_COLLECTIVES: dict[str, str | None] = {
    "allreduce": "AllreduceOptions",
    "allreduce_coalesced": "AllreduceCoalescedOptions",
    "broadcast": "BroadcastOptions",
    "reduce": "ReduceOptions",
    "allgather": "AllgatherOptions",
    "_allgather_base": "AllgatherOptions",
    "allgather_into_tensor_coalesced": "AllgatherOptions",
    "gather": "GatherOptions",
    "scatter": "ScatterOptions",
    "reduce_scatter": "ReduceScatterOptions",
    "_reduce_scatter_base": "ReduceScatterOptions",
    "alltoall": "AllToAllOptions",
    "alltoall_base": "AllToAllOptions",
    "barrier": "BarrierOptions",
    "send": None,
    "recv": None,
}

for _name, _options in _COLLECTIVES.items():
    setattr(_Hccl, _name, _handed_on(_name, getattr(dist, _options, None) if _options else None))


def register() -> None:
    """Make the backend known to torch.distributed."""
    if dist.is_available() and "hccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("hccl", _Hccl, devices=["npu", "cpu"])
