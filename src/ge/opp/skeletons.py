"""New operator projects: the files of `skeleton/` with a name filled in."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template

from ge.errors import GeError

__all__ = ["new_project"]

_HERE = Path(__file__).resolve().parent / "skeleton"
_SUFFIX = ".in"


def new_project(name: str, parent: Path) -> Path:
    """Write the skeleton of a project whose operator is named after it; the project's directory.

    >>> new_project("swoosh", Path("."))      # doctest: +SKIP
    """
    file_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", file_name) or keyword.iskeyword(file_name):
        raise GeError(
            "E10612", f"'{name}' cannot name an operator", remedy="use letters, digits and underscores"
        )
    target = parent / file_name
    if target.exists():
        raise GeError("E10612", f"{target} exists already", remedy="choose another name, or remove it")
    type_ = "".join(part.capitalize() for part in file_name.split("_"))
    for source in sorted(_HERE.rglob(f"*{_SUFFIX}")):
        relative = source.relative_to(_HERE)
        written = relative.with_name(_file_name(relative.name, file_name))
        path = target / written
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template(source.read_text()).substitute(name=file_name, type=type_))
    return target


def _file_name(pattern: str, name: str) -> str:
    """
    >>> _file_name("name_kernels.cc.in", "swoosh"), _file_name("test_name.py.in", "swoosh")
    ('swoosh_kernels.cc', 'test_swoosh.py')
    """
    return re.sub(r"(?<![a-z])name(?![a-z])", name, pattern.removesuffix(_SUFFIX))
