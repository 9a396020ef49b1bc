"""Pytest plugin that logs the start and the outcome of every test to a file as JSON lines.

The parent process reads from it which test was running when this process died or hung. The environment variable
NPU_CONFORMANCE_RECORDER holds the settings.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ge.conformance.suites.limits import Limits

__all__ = ["VARIABLE", "Recorder", "Settings"]

VARIABLE = "NPU_CONFORMANCE_RECORDER"
_MESSAGE = 400  # characters
_WORSE = ("passed", "skipped", "xfailed", "failed")


class Settings:
    """Settings from the parent: test selection and output file."""

    def __init__(self, text: str) -> None:
        values = json.loads(text)
        self.record: str = values["record"]
        choice = json.loads(Path(values["choice"]).read_text())
        self.done = frozenset(choice["done"])
        self.among = None if choice["among"] is None else frozenset(choice["among"])
        self.renames = [(re.compile(p), r) for p, r in values["renames"]]
        self.only = re.compile(values["only"])
        self.limits = Limits(**values["limits"])

    def name(self, node: str) -> str:
        """The test's name on both devices."""
        for pattern, replacement in self.renames:
            node = pattern.sub(replacement, node)
        return node

    def wanted(self, node: str) -> bool:
        name = self.name(node)
        return (
            bool(self.only.search(node))
            and name not in self.done
            and (self.among is None or name in self.among)
            and self.limits.wants(name)
            and self.limits.mine(name)
        )


class Recorder:
    """Writes a line before and after every test."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.record = open(settings.record, "a")  # noqa: SIM115  # open as long as the process lives
        self.outcome: tuple[str, str] = ("passed", "")

    def _write(self, *line: str) -> None:
        self.record.write(json.dumps(line) + "\n")
        self.record.flush()

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write("outcome", self.settings.name(report.nodeid), "failed", _message(report))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        wanted = [item for item in items if self.settings.wanted(item.nodeid)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(wanted)])
        items[:] = wanted
        self._write("collected", str(len(items)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.outcome = ("passed", "")
        self._write("start", self.settings.name(nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        status = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        if _WORSE.index(status) > _WORSE.index(self.outcome[0]):
            self.outcome = (status, _message(report))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write("outcome", self.settings.name(nodeid), *self.outcome)


def _message(report: Any) -> str:
    """The line of the error message, without the traceback."""
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return str(report.longrepr[2])[:_MESSAGE]
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr or "")
    return text[:_MESSAGE] if crash is not None else text[-_MESSAGE:]


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Recorder(Settings(os.environ[VARIABLE])), "npu-conformance-recorder")
