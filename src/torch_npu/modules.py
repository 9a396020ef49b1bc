"""Modules that move between the host and the device keep their parameters, as on PyTorch's other accelerators.

PyTorch writes new contents into a parameter itself only between devices that it knows; for others it puts a new one in
its place. Optimizers would then go on with the old one, and shared weights would part.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["keep_parameters"]

_TYPES = {"cpu", "npu"}


def keep_parameters(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Module._apply` with parameters that stay the same objects."""

    def _apply(self: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> Any:
        before = dict(self._parameters)
        result = original(self, fn, recurse)
        for key, old in before.items():
            new = self._parameters.get(key)
            if old is None or new is None or new is old:
                continue
            if {old.device.type, new.device.type} == _TYPES:
                self._parameters[key] = _moved(old, new, f"{type(self).__name__}.{key}")
        return result

    return _apply


def _moved(old: torch.nn.Parameter, new: torch.nn.Parameter, name: str) -> torch.nn.Parameter:
    """The old parameter with the new one's contents; the new one, with a warning, where others hold on to the old."""
    if torch.__future__.get_overwrite_module_params_on_conversion():
        return new
    kind, attributes = type(old), dict(old.__dict__)
    try:
        torch.utils.swap_tensors(old, new)
    except RuntimeError as error:
        warnings.warn(
            f"{name} is a new parameter on {new.device}: {error}. Optimizers that were made before do not see it: "
            "make them after the module has moved.",
            stacklevel=2,
        )
        return new
    old.__class__ = kind
    old.__dict__.update(attributes)
    return old
