"""Hooks of the documentation site (mkdocs.yml): pages made of other files, and links that leave the documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the files of the root, and the page of errors."""
    from ge.error_codes import text

    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "errors.md", content=text(ROOT / "src")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links between documents are those of the site; what is not part of it is named instead of linked."""
    folder = ROOT if page.file.src_uri in PAGES else ROOT / "docs"
    return _LINK.sub(lambda link: _linked(link, folder), markdown)


def _linked(link: re.Match[str], folder: Path) -> str:
    words, target, anchor = link.groups()
    if "://" in target:
        return link.group(0)
    path = (folder / target).resolve()
    for page, source in PAGES.items():
        if path == ROOT / source:
            return f"[{words}]({page}{anchor or ''})"
    if path.parent == ROOT / "docs" and path.suffix == ".md":
        return f"[{words}]({path.name}{anchor or ''})"
    inside = (ROOT / "docs") in path.parents
    return link.group(0) if inside else f"{words} (`{path.relative_to(ROOT)}`)"
