"""Dumps the tensors of models and operators as NumPy files below a configured folder.

{"dump": {"dump_path": "out", "dump_mode": "all", "dump_step": "0|5-10", "dump_data": "tensor", "dump_debug": "off",
          "dump_list": [{"model_name": "resnet50", "layer": ["conv1"]}]}}

A run writes dump_path/<model>/<run>/input.<name>.npy and output.<name>.npy of the model; `ge.tensor_dump` writes those
of its operators and of overflows ("dump_debug": "on").
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from acl import _memory
from acl import constants as c
from acl._conventions import AclError

if TYPE_CHECKING:
    from ge import tensor_dump  # imported where dumps are used: most programs dump nothing

__all__ = ["dumping", "parsed"]

_MODES = {"input": ("input",), "output": ("output",), "all": ("input", "output")}


@dataclass(frozen=True)
class Settings:
    """What to dump, and where."""

    folder: Path
    sides: tuple[str, ...]
    models: frozenset[str]  # all when empty
    operators: tensor_dump.Settings


@dataclass
class Dumping:
    """The active dump."""

    initialised: bool = False
    settings: Settings | None = None
    runs: Iterator[int] = field(default_factory=itertools.count)

    def turn(self, settings: Settings | None) -> None:
        """Activate dump settings; None: stop dumping."""
        if settings is None and self.settings is None:
            return
        from ge import tensor_dump

        self.settings = settings
        tensor_dump.dump_to(None if settings is None else settings.operators, "acl")

    def write(self, model: str, sides: Mapping[str, tuple[Sequence[Any], Sequence[int]]]) -> None:
        """Write the tensors of a run: ports and addresses of inputs and of outputs."""
        settings = self.settings
        if settings is None or (settings.models and model not in settings.models):
            return
        if not settings.operators.tensors:
            return
        from ge.ir.types import numpy_dtype

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
    """Parse the dump settings of a configuration file; None if there are none."""
    try:
        text = Path(path).read_text()
        data = json.loads(text) if text.strip() else {}
        said = data.get("dump")
    except OSError as error:
        raise AclError(c.ACL_ERROR_INVALID_FILE, f"{path}: {error.strerror}") from error
    except (ValueError, AttributeError) as error:
        raise AclError(c.ACL_ERROR_PARSE_FILE, f"{path} is not a JSON object: {error}") from error
    if not said or (not said.get("dump_path") and not said.get("dump_list")):
        return None
    from ge import tensor_dump

    mode = said.get("dump_mode", "output")
    if mode not in _MODES or not said.get("dump_path"):
        cause = f"{path}: dump needs dump_path, and a dump_mode of {', '.join(_MODES)}"
        raise AclError(c.ACL_ERROR_INVALID_PARAM, cause)
    listed = said.get("dump_list", ())
    models = frozenset(item["model_name"] for item in listed if item.get("model_name"))
    layers = frozenset(name for item in listed for name in item.get("layer", ()))
    folder, debug = Path(said["dump_path"]), said.get("dump_debug", "off") == "on"
    operators = tensor_dump.Settings(
        folder, not debug, _MODES[mode], _option(path, said, "dump_step"), layers,
        _option(path, said, "dump_data") == "stats", "all" if debug else "", models,
    )  # fmt: skip
    return Settings(folder, _MODES[mode], models, operators)


def _option(path: str, said: Mapping[str, Any], name: str) -> Any:
    """Check a value of the configuration against the option of that name."""
    from ge.errors import GeError
    from ge.options.table import OPTIONS

    if said.get(name) in (None, ""):
        return OPTIONS[name].default
    try:
        return OPTIONS[name].parse(said[name], name)
    except GeError as error:
        raise AclError(c.ACL_ERROR_INVALID_PARAM, f"{path}: {error.cause}") from error
