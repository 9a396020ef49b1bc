"""No function stands twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import figures


def test_no_function_stands_twice() -> None:
    assert figures.repeated("src/*.py", "benchmarks/*.py") == []


def test_the_same_code_under_two_names_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "    y = x + 1\n    y = y * y\n    print(y)\n    return y\n"
    for name, documentation in (("a", ""), ("b", '    """What it does."""\n')):
        (tmp_path / f"{name}.py").write_text(f"def {name}(x):\n{documentation}{body}")
    (tmp_path / "c.py").write_text("def c(x):\n" + body.replace("1", "2"))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "tracked", lambda *patterns: sorted(tmp_path.glob("*.py")))
    assert figures.repeated("*.py") == [["a.py:1 a", "b.py:1 b"]]
