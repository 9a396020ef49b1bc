"""Scopes of a model's code: hints that other devices schedule by. Results are the same with and without them.

A program here runs its steps on all cores one after another, in an order that respects every dependence, so streams,
fusion into one kernel and numbers of cores have nothing to choose; the scopes check their arguments, are traced by
torch.compile without cutting the graph, and say once, in the log `torchair`, that they change nothing.
"""

from __future__ import annotations

import logging

import torch

__all__ = ["limit_core_num", "npu_stream_switch", "npu_wait_tensor", "op_never_timeout", "super_kernel"]


_log = logging.getLogger("torchair")
_said: set[str] = set()


@torch._dynamo.assume_constant_result
def _note_once(name: str) -> None:
    """Note once that a scope has no effect, also while tracing."""
    if name not in _said:
        _said.add(name)
        _log.warning("torchair.scope.%s changes nothing on this device: every step runs on all cores", name)


class _Scope:
    """A scope without effect on results."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


class npu_stream_switch(_Scope):
    """Calls inside may run beside those outside, on the stream of that name.

    >>> with npu_stream_switch("second"):
    ...     y = torch.ones(2) + 1
    """

    def __init__(self, stream_tag: str, stream_priority: int = 0) -> None:
        if not isinstance(stream_tag, str) or not stream_tag:
            raise ValueError("a stream needs a name")
        if stream_priority < 0:
            raise ValueError("a priority is not negative")
        _note_once("npu_stream_switch")


class super_kernel(_Scope):
    """Calls inside are wanted as one kernel; fusion here looks at the whole graph anyway.

    >>> with super_kernel("block"):
    ...     y = torch.ones(2) + 1
    """

    def __init__(self, scope: str, options: str = "") -> None:
        if not isinstance(scope, str) or not isinstance(options, str):
            raise TypeError("a scope has a name and options, both texts")
        _note_once("super_kernel")


class limit_core_num(_Scope):
    """Calls inside are to use that many cores; set the number for all of a program by torch.set_num_threads.

    >>> with limit_core_num(2, 4):
    ...     y = torch.ones(2) + 1
    """

    def __init__(self, op_aicore_num: int, op_vectorcore_num: int) -> None:
        if op_aicore_num < 1 or op_vectorcore_num < 1:
            raise ValueError("at least one core is needed")
        _note_once("limit_core_num")


class op_never_timeout(_Scope):
    """Calls inside may take any time, as all calls may here.

    >>> with op_never_timeout(True):
    ...     y = torch.ones(2) + 1
    """

    def __init__(self, enable: bool = True) -> None:
        if not isinstance(enable, bool):
            raise TypeError("it is switched on or off by a bool")
        _note_once("op_never_timeout")


def npu_wait_tensor(self: torch.Tensor, dependency: torch.Tensor) -> torch.Tensor:
    """The first tensor, to be used only after the second is there.

    >>> npu_wait_tensor(torch.ones(1), torch.zeros(1))
    tensor([1.])
    """
    if not isinstance(self, torch.Tensor) or not isinstance(dependency, torch.Tensor):
        raise TypeError("npu_wait_tensor takes two tensors")
    return self
