"""acl.prof: writes the runs of models between start and stop as JSON, with the time of each task."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acl import constants as c
from acl._conventions import AclError, Handles, plain, returns_code

__all__ = ["create_config", "destroy_config", "finalize", "init", "start", "stop"]


@dataclass
class Config:
    """The devices to profile."""

    devices: tuple[int, ...]


@dataclass
class Recorder:
    """Records the runs of models between start and stop."""

    folder: Path | None = None
    started: bool = False
    runs: dict[str, list[float]] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, model: Any, seconds: float) -> None:
        """Record a run."""
        with self.lock:
            self.runs.setdefault(model.name, []).append(seconds)
            self.models[model.name] = model


configs: Handles[Config] = Handles("profiling configuration")
recorder = Recorder()


def _initialised() -> Path:
    if recorder.folder is None:
        raise AclError(c.ACL_ERROR_UNINITIALIZE, "call acl.prof.init first")
    return recorder.folder


@returns_code
def init(profiler_result_path: str) -> None:
    """Set, and create, the folder for profiles. Returns ret."""
    try:
        Path(profiler_result_path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AclError(c.ACL_ERROR_INVALID_FILE, f"{profiler_result_path}: {error.strerror}") from error
    recorder.folder = Path(profiler_result_path)


@plain(0)
def create_config(
    device_id_list: Sequence[int],
    aicore_metrics: int = 0,
    aicore_events: Any = None,
    data_type_config: int = 0,
) -> int:
    """Create a configuration; everything is recorded regardless of it."""
    return configs.add(Config(tuple(device_id_list)))


@returns_code
def destroy_config(profiler_config: int) -> None:
    """Destroy a configuration. Returns ret."""
    configs.remove(profiler_config)


@returns_code
def start(profiler_config: int) -> None:
    """Start recording the runs of models. Returns ret."""
    _initialised()
    configs.get(profiler_config)
    recorder.started = True


@returns_code
def stop(profiler_config: int) -> None:
    """Stop recording and write summary_N.json into the folder. Returns ret."""
    folder, config = _initialised(), configs.get(profiler_config)
    recorder.started = False
    with recorder.lock:
        runs, recorder.runs = recorder.runs, {}
        models, recorder.models = recorder.models, {}
    data = {"devices": list(config.devices), "models": [_told(n, s, models[n]) for n, s in runs.items()]}
    number = sum(name.startswith("summary_") for name in os.listdir(folder))
    (folder / f"summary_{number}.json").write_text(json.dumps(data, indent=1) + "\n")


def _told(name: str, seconds: list[float], model: Any) -> dict[str, Any]:
    tasks = [
        {"name": t.name, "engine": t.engine, "kind": t.kind, "seconds": t.seconds}
        for t in model.profile(repeats=3)
    ]
    return {"name": name, "runs": len(seconds), "seconds": seconds, "tasks": tasks}


@returns_code
def finalize() -> None:
    """End profiling. Returns ret."""
    _initialised()
    recorder.folder, recorder.started = None, False


def clear() -> None:
    """Release everything (acl.finalize)."""
    configs.clear()
    recorder.folder, recorder.started = None, False
    recorder.runs.clear()
    recorder.models.clear()
