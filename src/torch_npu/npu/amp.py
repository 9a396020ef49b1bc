"""`torch.npu.amp`: mixed precision under the names of ported scripts."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["GradScaler", "autocast"]


class autocast(torch.autocast):
    """Autocast on the NPU."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool | None = True
    ) -> None:
        super().__init__("npu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """Scales losses; the host's, as the memory is the host's."""

    def __init__(self, init_scale: float = 2.0**16, enabled: bool = True, **options: Any) -> None:
        options.pop("dynamic", None)
        super().__init__("npu", init_scale=init_scale, enabled=enabled, **options)
