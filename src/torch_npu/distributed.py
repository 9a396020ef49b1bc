"""The backend "hccl": collectives of NPU tensors, by Gloo on the same memory.

The process group and its backend are PyTorch's own. Its collectives are operators, `c10d::allreduce_` and so on; here
each of them is declared for NPU tensors as itself on CPU tensors over the same memory. So all that is built on them
works: DDP, FSDP, device meshes, DTensor, functional collectives. Before each call the ranks compare what they call.
"""

from __future__ import annotations

import atexit
import contextlib
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hccl.ranks import attempt
from torch_npu.agreement import Calls
from torch_npu.memory import as_cpu, is_npu

__all__ = ["register"]

_COLLECTIVES = (
    "_allgather_base_",
    "_reduce_scatter_base_",
    "allgather_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "allreduce_",
    "allreduce_coalesced_",
    "alltoall_",
    "alltoall_base_",
    "barrier",
    "broadcast_",
    "gather_",
    "monitored_barrier_",
    "recv_",
    "recv_any_source_",
    "reduce_",
    "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_",
    "scatter_",
    "send",
)
_library: Any = None  # operators are declared as long as it lives
_calls: weakref.WeakKeyDictionary[Any, Calls] = weakref.WeakKeyDictionary()  # by backend


class _Aliases:
    """CPU tensors over the memory of NPU tensors, and the way back."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Any, Any]] = {}

    def host(self, value: Any) -> Any:
        """A value with CPU tensors in place of NPU tensors."""
        if is_npu(value):
            alias = as_cpu(value)
            self._pairs[id(alias)] = alias, value
            return alias
        return [self.host(v) for v in value] if isinstance(value, (list, tuple)) else value

    def back(self, value: Any) -> Any:
        """A result with the NPU tensors that its CPU tensors stand for."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.back(v) for v in value)
        return self._pairs[id(value)][1] if id(value) in self._pairs else value


def _on_host(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
    @torch._disable_dynamo
    def call(*args: Any) -> Any:
        aliases = _Aliases()
        with _compared(name, args):
            return aliases.back(op(*[aliases.host(a) for a in args]))

    return call


def _compared(name: str, args: tuple[Any, ...]) -> contextlib.AbstractContextManager[None]:
    boxed = next(a for a in args if isinstance(a, torch.ScriptObject))  # each operator's first is the group
    calls = _calls.get(dist.ProcessGroup.unbox(boxed)._get_backend(torch.device("npu")))
    return calls.compared(name, args) if calls else contextlib.nullcontext()


def _flat(op: Callable[..., Any]) -> Callable[..., Any]:
    """Gloo splits the first axis of a tensor that stands for all ranks; only its memory counts."""

    def call(output: torch.Tensor, given: torch.Tensor, *rest: Any) -> Any:
        return output, op(output.view(-1), given.view(-1), *rest)[1]

    return call


def _of_any_shape(all_gather: Callable[..., Any]) -> Callable[..., Any]:
    """Gloo gathers equal shapes only: of others each rank sends its own to all."""

    def call(outputs: Any, inputs: Any, group: Any, *rest: Any) -> Any:
        works, ranks = [], dist.ProcessGroup.unbox(group)
        pairs = list(zip(outputs, inputs, strict=True))
        fit = all(len(o) == ranks.size() and o[ranks.rank()].shape == mine.shape for o, mine in pairs)
        if not fit or all(out.shape == mine.shape for outs, mine in pairs for out in outs):
            return all_gather(outputs, inputs, group, *rest)
        for root in range(ranks.size()):
            targets = [outs[root] for outs in outputs]
            if root == ranks.rank():
                for target, mine in zip(targets, inputs, strict=True):
                    target.copy_(mine)
            works.append(torch.ops.c10d.broadcast_.default(targets, group, root, 0, *rest)[1])
        for work in works[:-1]:
            work.wait()
        return outputs, works[-1]

    return call


def _all_to_all(_: Callable[..., Any]) -> Callable[..., Any]:
    """Gloo exchanges lists of equal shapes only; parts of one tensor may have any size."""

    def call(outputs: Any, inputs: Any, group: Any, *rest: Any) -> Any:
        given, taken = torch.cat([t.reshape(-1) for t in inputs]), [t.numel() for t in outputs]
        found = given.new_empty(sum(taken))
        sizes = [t.numel() for t in inputs]
        work = torch.ops.c10d.alltoall_base_.default(found, given, group, taken, sizes, *rest)
        work.wait()
        for output, part in zip(outputs, found.split(taken), strict=True):
            output.copy_(part.view(output.shape))
        return outputs, work

    return call


_ADAPTED = {
    "_allgather_base_": _flat,
    "_reduce_scatter_base_": _flat,
    "allgather_": _of_any_shape,
    "alltoall_": _all_to_all,
}


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    own = dist.PrefixStore(f"hccl/{attempt()}", store)
    backend = dist.ProcessGroupGloo(own, rank, size, timeout)
    if size > 1:
        _calls[backend] = Calls(own, backend)
    return backend


def _close() -> None:
    """End the groups that a script leaves open: their threads must not outlive the objects of C++ that they use."""
    if dist.is_initialized() and "hccl" in str(dist.get_backend_config()):
        dist.destroy_process_group()


def register() -> None:
    """Make the backend known to torch.distributed."""
    global _library
    if not dist.is_available() or "hccl" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("hccl", _gloo, devices=["npu", "cpu"])
    atexit.register(_close)
    _library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():  # PyTorch's own hand NPU tensors to the backend as they are
        warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
        for name in _COLLECTIVES:
            op = getattr(torch.ops.c10d, name).default
            _library.impl(name, _on_host(name, _ADAPTED.get(name, lambda op: op)(op)), "PrivateUse1")
