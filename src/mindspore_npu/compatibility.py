"""Every patch of MindSpore that `python -m mindspore_npu run` applies, in one table.

`import mindspore_npu` alone patches nothing; it only registers a back end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from ge.compatibility import Patch, PatchTable
from mindspore_npu.register import NAME

__all__ = ["PATCHES"]

Function = Callable[..., Any]
TARGET = "Ascend"


class _Device:
    """The device that the script sees."""

    target = ""
    number = 0


# Shown to modules of MindSpore that reject dynamic loss scaling on CPUs; the engine supports it and, as on GPUs,
# detects overflows from the gradients.
_SEEN = {"mindspore.train.amp": TARGET, "mindspore.nn.wrap.loss_scale": "GPU"}


def _shown() -> str | None:
    """The device that the caller of `get_context` sees; None for MindSpore itself, which sees the real one."""
    caller = str(sys._getframe(2).f_globals.get("__name__", ""))
    inside = caller.partition(".")[0] in ("mindspore", "mindspore_npu")
    return _SEEN.get(caller) if inside else _Device.target


def _with_target(original: Function) -> Function:
    """`device_target="Ascend"` is the NPU, which shares the CPU's memory."""

    def set_context(**settings: Any) -> Any:
        if settings.get("device_target") == TARGET:
            _Device.target = TARGET
            settings["device_target"] = "CPU"
        _Device.number = int(settings.pop("device_id", _Device.number))
        return original(**settings)

    return set_context


def _as_set(original: Function) -> Function:
    def get_context(attr_key: str) -> Any:
        shown = _shown() if _Device.target and attr_key in ("device_target", "device_id") else None
        if shown is None:
            return original(attr_key)
        return shown if attr_key == "device_target" else _Device.number

    return get_context


def _with_device(original: Function) -> Function:
    def set_device(device_target: str, device_id: int | None = None) -> Any:
        if device_target != TARGET:
            return original(device_target, device_id)
        _Device.target, _Device.number = TARGET, device_id or 0
        return original("CPU")

    return set_device


def _compiled_for_npu(original: Function) -> Function:
    """Compile cells of graph mode for the back end unless they name another."""

    def compile(self: Any, obj: Any, *args: Any, jit_config_dict: Any = None, **kwargs: Any) -> Any:
        from mindspore.graph.jit_config import JitConfig

        settings = dict(jit_config_dict or JitConfig().jit_config_dict)
        settings["backend"] = settings.get("backend") or NAME
        return original(self, obj, *args, jit_config_dict=settings, **kwargs)

    return compile


def _jitted_for_npu(original: Function) -> Function:
    def jit(*args: Any, **kwargs: Any) -> Any:
        kwargs["backend"] = kwargs.get("backend") or NAME
        return original(*args, **kwargs)

    return jit


def _ranks() -> int:
    return int(os.environ.get("RANK_SIZE") or os.environ.get("MS_WORKER_NUM") or 1)


def _joined(original: Function) -> Function:
    """A single process needs no group; several, started by msrun, form MindSpore's CPU group."""

    def init(backend_name: str | None = None) -> Any:
        if _ranks() == 1:
            return None
        return original("mccl" if backend_name in (None, "hccl") else backend_name)

    return init


def _alone(value: int) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def answer(*args: Any, **kwargs: Any) -> Any:
            return value if _ranks() == 1 else original(*args, **kwargs)

        return answer

    return make


def _rows() -> list[Patch]:
    lost = "scripts for Ascend have to name the CPU"
    rows = [
        Patch(
            "mindspore.graph.api:_CellGraphExecutor.compile",
            _compiled_for_npu,
            needs=("mindspore.graph.jit_config:JitConfig",),
        ),
        Patch("mindspore:jit", _jitted_for_npu, without="functions need jit(backend='npu')"),
    ]
    for module in ("mindspore", "mindspore.context"):
        rows.append(Patch(f"{module}:set_context", _with_target, without=lost))
        rows.append(Patch(f"{module}:get_context", _as_set, without=lost))
    for module in ("mindspore", "mindspore.device_manager"):
        rows.append(Patch(f"{module}:set_device", _with_device, without=lost))
    lost = "scripts that form a group of one process fail"
    for module in ("mindspore.communication", "mindspore.communication.management"):
        rows.append(Patch(f"{module}:init", _joined, without=lost))
        rows.append(Patch(f"{module}:get_rank", _alone(0), without=lost))
        rows.append(Patch(f"{module}:get_group_size", _alone(1), without=lost))
    return rows


PATCHES = PatchTable("MindSpore", ("2.10.0",), _rows())
