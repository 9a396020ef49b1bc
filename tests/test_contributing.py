"""CONTRIBUTING.md: each worked example is short and works as it is printed."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

TEXT = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()
SECTIONS = dict(re.findall(r"^## Add an? (\w+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def test_every_kind_of_extension_has_an_example() -> None:
    assert list(SECTIONS) == ["operator", "pass", "implementation", "target"]


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_example_works_as_printed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", SECTIONS[kind], re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) < 100
    module = types.ModuleType(f"contributing_{kind}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, f"CONTRIBUTING.md, {kind}", "exec"), vars(module))
    tests = [function for name, function in vars(module).items() if name.startswith("test_")]
    assert tests
    try:
        for test in tests:
            test()
    finally:
        getattr(module, "teardown", lambda: None)()
