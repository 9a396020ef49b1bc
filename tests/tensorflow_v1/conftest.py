"""Version-1 scripts need a process without version-2 behaviour: they run in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.tensorflow_v1.support import Worker, run_script


@pytest.fixture
def run_v1(tmp_path: Path) -> Callable[..., Any]:
    """Run a script as `python -m npu_bridge run` does, in a folder of its own."""
    return partial(run_script, folder=tmp_path)


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """A process for scripts that leave nothing behind."""
    process = Worker()
    yield process
    process.close()


@pytest.fixture
def run_v1_shared(worker: Worker, tmp_path: Path) -> Callable[..., Any]:
    """Run a script in a process that other scripts share: for those that leave nothing behind."""
    return partial(worker.run, folder=tmp_path)
