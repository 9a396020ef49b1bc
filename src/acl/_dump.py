"""Dumps: the inputs and outputs of models as they run, as NumPy files below the folder that a configuration names.

{"dump": {"dump_path": "out", "dump_mode": "all", "dump_list": [{"model_name": "resnet50"}]}}

A run writes dump_path/<model>/<run>/input.<name>.npy and output.<name>.npy. Values between operators are not
memory of their own here; `npu_tools check` compares them layer by layer.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acl import _memory
from acl import constants as c
from acl._conventions import AclError
from ge.ir.types import numpy_dtype

__all__ = ["dumping", "parsed"]

_MODES = {"input": ("input",), "output": ("output",), "all": ("input", "output")}


@dataclass(frozen=True)
class Settings:
    """What is dumped, and where to."""

    folder: Path
    sides: tuple[str, ...]
    models: frozenset[str]  # all when empty


@dataclass
class Dumping:
    """The dump in force."""

    initialised: bool = False
    settings: Settings | None = None
    runs: Iterator[int] = field(default_factory=itertools.count)

    def write(self, model: str, sides: Mapping[str, tuple[Sequence[Any], Sequence[int]]]) -> None:
        """Write the tensors of a run: ports and addresses of inputs and of outputs."""
        settings = self.settings
        if settings is None or (settings.models and model not in settings.models):
            return
        folder = settings.folder / _file_name(model) / str(next(self.runs))
        folder.mkdir(parents=True, exist_ok=True)
        for side in settings.sides:
            for port, address in zip(*sides[side], strict=True):
                raw = _memory.read(address, port.desc.nbytes)
                array = np.frombuffer(raw, numpy_dtype(port.desc.dtype)).reshape(port.desc.shape)
                np.save(folder / f"{side}.{_file_name(port.name)}.npy", array)


dumping = Dumping()


def _file_name(text: str) -> str:
    """
    >>> _file_name("block/conv:0")
    'block_conv_0'
    """
    return re.sub(r"[^\w.-]", "_", text)


def parsed(path: str) -> Settings | None:
    """What a configuration file says about dumps; None when it says nothing."""
    try:
        text = Path(path).read_text()
        data = json.loads(text) if text.strip() else {}
        said = data.get("dump")
    except OSError as error:
        raise AclError(c.ACL_ERROR_INVALID_FILE, f"{path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise AclError(c.ACL_ERROR_PARSE_FILE, f"{path} is no JSON object: {error}") from error
    if not said or (not said.get("dump_path") and not said.get("dump_list")):
        return None
    mode = said.get("dump_mode", "output")
    if mode not in _MODES or not said.get("dump_path"):
        cause = f"{path}: dump needs dump_path, and a dump_mode of {', '.join(_MODES)}"
        raise AclError(c.ACL_ERROR_INVALID_PARAM, cause)
    models = frozenset(item["model_name"] for item in said.get("dump_list", ()) if item.get("model_name"))
    return Settings(Path(said["dump_path"]), _MODES[mode], models)
