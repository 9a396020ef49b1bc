"""The command's request to a child process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Request"]


@dataclass(frozen=True)
class Request:
    """One run of a script or model file in a process of its own."""

    side: str  # "plain" | "npu"
    kind: str
    framework: str
    path: str  # as the process sees it
    arguments: tuple[str, ...]
    roots: tuple[tuple[str, str], ...]
    result: str  # folder for the record and the outputs
    steps: int = 20
    seconds: float = 120.0
    seed: int = 0
    brief: bool = False  # only the steps
    other_kernels: bool = False  # in the plain run: other kernels of the framework's than it would choose
    layers: bool = False
    modes: tuple[str, ...] = ()
    mixlist: str = ""
    keep: int = 0  # operators that the mixlist may have; 0 for as many as are needed
    dump: str = ""  # folder for the values of layers
    tolerance: float = 0.01
    batches: tuple[int, ...] = ()
    dumps: bool = False  # let the script write its tensor dumps; measure nothing else
    trial: int = 0  # a batch to try once, instead of all other measurements
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def save(self, path: Path) -> Path:
        """Write the request for the process."""
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: str) -> Request:
        """Read a request."""
        data = json.loads(Path(path).read_text())
        for name in ("arguments", "modes", "batches"):
            data[name] = tuple(data[name])
        data["roots"] = tuple(tuple(pair) for pair in data["roots"])
        data["shapes"] = {name: tuple(shape) for name, shape in data["shapes"].items()}
        return cls(**data)
