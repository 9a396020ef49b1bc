"""A suite of a few tests that end in every possible way, for the runner of suites."""

from __future__ import annotations

from pathlib import Path

from ge.conformance.suites import MissingSuiteError, Side, Suite

FILES = {
    "first_test.py": """
import os
import pytest

NPU = os.environ["FAKE_DEVICE"] == "npu"

class TestsCPU:
    def test_good_cpu(self): pass
    def test_wrong_cpu(self): assert not NPU, "wrong on the NPU"
    def test_dies_cpu(self): NPU and os._exit(7)
    def test_good_after_the_crash_cpu(self): pass
    def test_hangs_cpu(self): NPU and __import__("time").sleep(600)
    def test_listed_cpu(self): assert not NPU
    def test_listed_and_good_cpu(self): pass
    def test_wrong_everywhere_cpu(self): assert False
    def test_skipped_cpu(self): NPU and pytest.skip("not on this device")
    def test_wrong_teardown_cpu(self, request): request.addfinalizer(lambda: NPU and 1 / 0)

def test_of_no_device(): assert False
""",
    "second_test.py": """
import os

if os.environ["FAKE_DEVICE"] == "npu":
    os._exit(3)

def test_never_runs_cpu(): pass
""",
    "third_test.py": """
import os

if os.environ["FAKE_DEVICE"] == "npu":
    raise ImportError("not on the NPU")

def test_is_not_collected_cpu(): pass
""",
}


def find(source: Path | None) -> Suite:
    """The suite, written to the folder that is named."""
    if source is None:
        raise MissingSuiteError("name a folder with --source")
    for name, text in FILES.items():
        # The device is part of the ids, as in PyTorch's tests.
        (source / name).write_text(text)
    renames = ((r"CPU::", "::"), (r"_cpu$", ""))
    sides = [
        Side({"FAKE_DEVICE": device}, renames=renames, only=r"_cpu$", plugins=()) for device in ("cpu", "npu")
    ]
    return Suite("fake", "1.0", source, tuple(FILES), *sides, files_per_process=3)
