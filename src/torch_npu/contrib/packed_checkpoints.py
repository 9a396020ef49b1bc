"""Importing this module lets transformers load GPTQ and AWQ checkpoints for this device, without further packages.

from torch_npu.contrib import packed_checkpoints
model = transformers.AutoModelForCausalLM.from_pretrained("folder")
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

try:
    from safetensors import safe_open
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
    from transformers.quantizers.base import HfQuantizer
except ImportError as error:
    raise ImportError(
        f"torch_npu.contrib.packed_checkpoints reads checkpoints of transformers ({error}): pip install transformers"
    ) from error

from torch_npu.checkpoints import Layout, pack, replace_linear

__all__ = ["AwqCheckpoints", "GptqCheckpoints"]

_MARK = ".qweight"


class _PackedCheckpoints(HfQuantizer):
    """Layers whose tensors a checkpoint has packed become packed layers of the device."""

    requires_calibration = True  # nothing is quantised here
    layouts: ClassVar[dict[str, Layout]]  # by their names in configurations

    def _layout(self) -> Layout:
        config = self.quantization_config
        given = (getattr(config, name, None) for name in ("format", "checkpoint_format", "version"))
        form = next((str(getattr(f, "value", f)).lower() for f in given if f), next(iter(self.layouts)))
        if form not in self.layouts:
            known = " or ".join(self.layouts)
            raise NotImplementedError(f"layout {form!r} of packed weights: convert the checkpoint to {known}")
        return self.layouts[form]

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        self._layout()

    def update_dtype(self, dtype: torch.dtype | None) -> torch.dtype | None:
        return dtype

    def _process_model_before_weight_loading(
        self, model: nn.Module, checkpoint_files: Iterable[str] | None = None, **kwargs: Any
    ) -> None:
        config = self.quantization_config
        if not checkpoint_files:
            raise ValueError("a folder with .safetensors files is expected")
        names = sorted({name for file in checkpoint_files for name in _packed_names(file)})
        replace_linear(model, names, layout=self._layout(), bits=config.bits, group=config.group_size)

    def _process_model_after_weight_loading(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        return pack(model)

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return True


class GptqCheckpoints(_PackedCheckpoints):
    """Checkpoints of GPTQ, of either version, also with the order of activations."""

    layouts: ClassVar = {"gptq": Layout.GPTQ, "gptq_v2": Layout.GPTQ_V2}


class AwqCheckpoints(_PackedCheckpoints):
    """Checkpoints of AWQ as AutoAWQ writes them."""

    layouts: ClassVar = {"gemm": Layout.AWQ}


def _packed_names(file: str) -> list[str]:
    if Path(file).suffix != ".safetensors":
        raise ValueError(f"{file} is no .safetensors file")
    with safe_open(file, "pt") as tensors:
        return [name.removesuffix(_MARK) for name in tensors.keys() if name.endswith(_MARK)]  # noqa: SIM118  no iterator


AUTO_QUANTIZER_MAPPING.update({"gptq": GptqCheckpoints, "awq": AwqCheckpoints})
