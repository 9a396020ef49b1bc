"""Definition of a test suite and the registry of front doors that provide one."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["EVERY_FILE", "SUITES", "MissingSuiteError", "Side", "Suite", "find_suite"]

# The module of a front door that has `find(source: Path | None) -> Suite`.
SUITES = {
    "keras": "tf_adapter.conformance.keras_suite",
    "torch": "torchair.conformance.torch_suite",
    "transformers": "torchair.conformance.transformers_suite",
}


EVERY_FILE = r"^([^:]+)"


class MissingSuiteError(Exception):
    """The suite, or the framework it tests, is not on this machine; the message says how to get it."""


@dataclass(frozen=True)
class Side:
    """Settings for running the tests on one device."""

    environment: Mapping[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()  # of pytest
    # Regular expressions and replacements that turn a test id into a name common to both devices.
    renames: tuple[tuple[str, str], ...] = ()
    only: str = ""  # run only tests whose id matches


@dataclass(frozen=True)
class Suite:
    """Test files of one version of a project."""

    name: str
    version: str
    root: Path  # ids of tests are relative to it
    files: tuple[str, ...]
    cpu: Side
    npu: Side
    files_per_process: int = 1
    alone: tuple[str, ...] = ()  # files whose tests change what later files of their process find
    arguments: tuple[str, ...] = ()  # of pytest
    groups: str = EVERY_FILE  # outcomes are counted by what this expression's group matches in a test's name


def find_suite(name: str, source: Path | None) -> Suite:
    """Locate a suite through its front door. Raises MissingSuiteError."""
    try:
        door = importlib.import_module(SUITES[name])
    except ModuleNotFoundError as error:
        raise MissingSuiteError(f"{name}: {error}; install the framework first") from error
    suite: Suite = door.find(source)
    return suite
