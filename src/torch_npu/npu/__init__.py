"""`torch.npu`: the device's own functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

import npu_runtime
from torch_npu import devices
from torch_npu.npu import amp
from torch_npu.streams import Event, Stream, current_stream, default_stream, set_stream, stream

__all__ = [
    "Event",
    "Stream",
    "amp",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "ipc_collect",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "random",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]

_in_bad_fork = False


def _is_in_bad_fork() -> bool:
    return False


def is_available() -> bool:
    """Whether there is a device: always, as the runtime brings one."""
    return True


def is_initialized() -> bool:
    """Whether the device can be used."""
    return True


def init() -> None:
    """Nothing is left to do."""


def _lazy_init() -> None:
    """Nothing is left to do."""


def device_count() -> int:
    """How many devices there are for tensors: NPU_DEVICE_COUNT, all in the machine's memory."""
    return devices.count()


def current_device() -> int:
    """The device that this thread's tensors are made on."""
    return devices.current()


def set_device(device: Any) -> None:
    """Choose the device of this thread.

    >>> set_device("npu:0")
    """
    devices.set_current(_index(device))


_index = devices.index_of


class device:
    """A block on a device."""

    def __init__(self, device: Any) -> None:
        self.idx = _index(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = devices.set_current(self.idx)
        return self

    def __exit__(self, *error: object) -> None:
        devices.set_current(self.prev_idx)


class device_of(device):
    """A block on the device of a tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "npu" else None)


def get_device_capability(device: Any = None) -> None:
    """There are no generations of this device to tell apart."""
    _index(device)


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Whether a device reads another's memory, which is the machine's."""
    return _index(device) != _index(peer_device)


def ipc_collect() -> None:
    """Nothing is left to collect: memory shared between processes is the host's."""


def get_device_name(device: Any = None) -> str:
    """The name of a device."""
    _index(device)
    return f"NPU on CPU ({npu_runtime.version()['isa']})"


class _Properties:
    """What a device is."""

    def __init__(self, name: str, total_memory: int) -> None:
        self.name = name
        self.total_memory = total_memory
        self.multi_processor_count = npu_runtime.num_threads()
        self.major = self.minor = 0  # older than every GPU, for code that compares


def get_device_properties(device: Any = None) -> _Properties:
    """The name and the memory of a device."""
    return _Properties(get_device_name(device), int(npu_runtime.memory_info()["limit"]))


def synchronize(device: Any = None) -> None:
    """Wait for the device: calls return when they are done, so nothing is left to wait for."""
    _index(device)


# -- random numbers ----------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Numbers on the device come from the host's generator."""
    torch.default_generator.manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> int:
    """A seed at random."""
    return torch.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """The seed in force."""
    return torch.default_generator.initial_seed()


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """The state of the generator."""
    return torch.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    """Put the generator into a state."""
    torch.default_generator.set_state(new_state.cpu())


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices' generators, which are the host's."""
    return [get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Put the generators of all devices into states."""
    for state in new_states:
        set_rng_state(state)


# -- memory ------------------------------------------------------------------------------------------------------


def memory_allocated(device: Any = None) -> int:
    """Bytes that compiled graphs hold: constants and working memory. Tensors are in host memory."""
    return int(npu_runtime.memory_info(_index(device))["current"])


memory_reserved = memory_cached = memory_allocated


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that compiled graphs held."""
    return int(npu_runtime.memory_info(_index(device))["peak"])


max_memory_reserved = max_memory_cached = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Count the peak from here on."""
    npu_runtime.reset_peak(_index(device))


reset_max_memory_allocated = reset_max_memory_cached = reset_accumulated_memory_stats = (
    reset_peak_memory_stats
)


def memory_stats(device: Any = None) -> dict[str, int]:
    """What compiled graphs hold, in bytes, by what it is.

    >>> sorted(memory_stats())[:2]
    ['allocated_bytes.all.current', 'allocated_bytes.all.peak']
    """
    info = npu_runtime.memory_info(_index(device))
    found = {
        f"{kind}_bytes.all.{name}": int(info[name])
        for kind in ("allocated", "reserved")
        for name in ("current", "peak")
    }
    return found | {f"{name}_bytes": int(info[name]) for name in ("constants", "arenas", "buffers")}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """`memory_stats` as a table for people."""
    del abbreviated
    rows = [f"{name:32} {value:>16,}" for name, value in memory_stats(device).items()]
    return "\n".join([f"{get_device_name(device)}: bytes of compiled graphs", *rows])


def memory_snapshot() -> list[dict[str, Any]]:
    """Nothing: graphs hold their memory in single pieces, which `memory_stats` counts."""
    return []


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Bytes that are free, and all of them."""
    info = npu_runtime.memory_info(_index(device))
    return int(info["limit"] - info["current"]), int(info["limit"])


def empty_cache() -> None:
    """Give back working memory that no graph uses now."""
    npu_runtime.trim()


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What autocast may lower to."""
    return [torch.bfloat16, torch.float16]


def is_autocast_enabled() -> bool:
    """Whether autocast is on."""
    return torch.is_autocast_enabled("npu")


def is_bf16_supported() -> bool:
    """Whether bfloat16 works."""
    return True


from torch_npu.npu import random as random  # noqa: E402  it has the functions above
