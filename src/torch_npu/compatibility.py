"""Every patch of PyTorch that the device applies, in one table.

`torch_npu.contrib.transfer_to_npu` has another one, applied only where a script imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ge.compatibility import Patch, PatchTable
from torch_npu import accelerator, autocast, devices, generators, modules, storage, streams

__all__ = ["PATCHES"]

Function = Callable[..., Any]


def _with_streams(original: Function) -> Function:
    """Streams of this device: a tensor's memory is freed only when its last user is done anyway."""

    def record_stream(self: torch.Tensor, s: Any) -> None:
        if s.device.type != "npu":
            original(self, s)

    return record_stream


def _without_pinning(original: Function) -> Function:
    """Pinning does nothing: the device reads the host's memory as it is."""

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if self.device.type != "cpu":
            raise RuntimeError(f"cannot pin '{self.type()}': only dense CPU tensors can be pinned")
        return self

    return pin_memory


def _on_this_thread(original: Function) -> Function:
    """Backward passes run on the thread that asks for them, as the CPU's do.

    PyTorch has a thread for each device that the guard counts, which is one in Python; and it frees what a pass held
    after the caller has gone on, which takes the process down when the interpreter ends meanwhile.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return original(*args, **kwargs)

    return run


def _current_device(original: Function) -> Function:
    """`npu` without an index means this thread's device; PyTorch itself would read it as the first one."""
    if devices.count() == 1:
        return original

    def told(value: Any) -> Any:
        if isinstance(value, str) and value == "npu":
            return torch.device("npu", devices.current())
        if isinstance(value, torch.device) and value.type == "npu" and value.index is None:
            return torch.device("npu", devices.current())
        return value

    def call(*args: Any, **kwargs: Any) -> Any:
        return original(*[told(a) for a in args], **{k: told(v) for k, v in kwargs.items()})

    return call


def _of_the_host(original: Function) -> Function:
    """Random numbers of the NPU come from the host's generator, whose state a compiled checkpoint keeps."""

    def get_device(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        return "cpu" if found == "npu" else found

    return get_device


def _always(ours: Any) -> Callable[[Any], Any]:
    return lambda original: ours


def _accelerator() -> list[Patch]:
    """PyTorch asks a C++ allocator and guard, which a device in Python does not have."""
    without = "torch.accelerator does not know the NPU: use torch.npu"
    return [
        Patch(f"{module.__name__}:{name}", _always(function), without, named=False)
        for name, function in (accelerator.FUNCTIONS | accelerator.MEMORY).items()
        for module in (torch.accelerator, torch.accelerator.memory)
        if hasattr(module, name)  # versions differ in where a function is
    ]


PATCHES = PatchTable(
    "PyTorch",
    ("2.13.0",),
    (
        Patch("torch:UntypedStorage.__new__", storage.new_storage),
        Patch("torch:UntypedStorage.copy_", storage.copy_storage),
        Patch("torch:UntypedStorage.resize_", storage.resize_storage),
        Patch("torch:UntypedStorage.nbytes", storage.storage_bytes),
        Patch("torch:Generator", generators.generator_type),
        *(Patch(f"{module}:Stream", streams.stream_type) for module in ("torch", "torch._C")),
        *(Patch(f"{module}:Event", streams.event_type) for module in ("torch", "torch._C")),
        Patch("torch:autocast.__init__", autocast.with_default),
        Patch("torch:clear_autocast_cache", autocast.with_weights),
        Patch(
            "torch:Tensor.record_stream", _with_streams, without="record_stream refuses streams of the NPU"
        ),
        Patch("torch:Tensor.pin_memory", _without_pinning),
        Patch("torch.nn:Module._apply", modules.keep_parameters),
        Patch("torch.autograd:_engine_run_backward", _on_this_thread),
        Patch("torch.autograd.graph:_engine_run_backward", _on_this_thread),
        *(
            Patch(f"torch:{name}", _current_device)
            for name in ("Tensor.to", "tensor", "as_tensor", "asarray")
        ),
        Patch(
            "torch._prims.rng_prims:get_device",
            _of_the_host,
            without="compiled checkpoints that draw random numbers fail on the NPU",
        ),
        *_accelerator(),
    ),
)
