"""The documentation site builds without warnings; its page of errors has every code of the sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ge.error_codes import text, uses

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="the site needs mkdocs-material, a dependency of development")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.parent.name for path in tmp_path.rglob("index.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} | {
        "errors",
        "contributing",
        "changelog",
    } <= pages
    assert "E10501" in (tmp_path / "errors" / "index.html").read_text(encoding="utf-8")


def test_the_page_of_errors_has_every_code_with_a_cause() -> None:
    page = text(ROOT / "src")
    literals = {
        code
        for path in (ROOT / "src").rglob("*.py")
        for code in re.findall(r'"([EW]\d{5})"', path.read_text(encoding="utf-8"))
    }
    found = {use.code for use in uses(ROOT / "src")}
    assert literals - found <= {"E80000"}  # an example of the operator language's own messages
    for code in found:
        assert f"| `{code}` |" in page
