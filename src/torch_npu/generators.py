"""Generators of random numbers on the NPU: the host's, under the name of the device."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu import devices

__all__ = ["NpuGenerator", "generator_type"]

_Plain: Any = torch._C.Generator


class NpuGenerator(_Plain):
    """A generator of the host that says it is the device's: kernels that draw numbers run on the host."""

    _index: int

    def __new__(cls, index: int) -> NpuGenerator:
        made: NpuGenerator = _Plain.__new__(cls)
        made._index = index
        return made

    def __init__(self, index: int) -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:
        """The device whose numbers these are."""
        return torch.device("npu", self._index)

    def clone_state(self) -> NpuGenerator:
        """Another generator in the same state."""
        return _again(self._index, self.get_state())

    def __reduce__(self) -> Any:
        return _again, (self._index, self.get_state())

    def __deepcopy__(self, memo: Any) -> NpuGenerator:
        return self.clone_state()


def _again(index: int, state: torch.Tensor) -> NpuGenerator:
    made = NpuGenerator(index)
    made.set_state(state)
    return made


class _Kind(type(_Plain)):  # type: ignore[misc]
    """`torch.Generator` as a type: every generator is one, and the device decides which kind a new one is."""

    def __call__(cls, device: Any = "cpu") -> Any:
        device = torch.device("npu", device) if isinstance(device, int) else torch.device(device)
        return NpuGenerator(devices.index_of(device)) if device.type == "npu" else _Plain(device)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Plain)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _Plain)


class Generator(metaclass=_Kind):
    __doc__ = _Plain.__doc__


def generator_type(original: Any) -> Any:
    """A patch of `torch.Generator` that makes generators of the device."""
    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator
