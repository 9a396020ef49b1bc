"""Custom operators: operator files, operator projects, packages, and their search path."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ge.errors import GeError

if TYPE_CHECKING:
    from ge.ops.custom.spec import PackageSpec

__all__ = ["build", "installed", "new_project", "refresh", "remove", "searching"]


def build(
    project: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    name: str = "",
    version: str = "1.0",
) -> tuple[PackageSpec, Path]:
    """Build an operator project and install it; its description and where it is.

    >>> ge.opp.build("swoosh")      # doctest: +SKIP
    """
    from ge.opp import project as projects
    from ge.ops.custom import search

    folder = search.home() if target is None else Path(target)
    return projects.build(Path(project), folder, name, version)


def new_project(name: str, parent: str | os.PathLike[str] = ".") -> Path:
    """Write the skeleton of an operator project."""
    from ge.opp import skeletons

    return skeletons.new_project(name, Path(parent))


def installed() -> list[tuple[Path, PackageSpec]]:
    """The packages of the search path, with their directories."""
    from ge.ops.custom import search

    return search.installed()


def remove(name: str) -> Path:
    """Remove an installed package; the directory that is gone."""
    from ge.ops.custom import search

    found = search.find_package(name)
    if found is None:
        known = ", ".join(spec.name for _, spec in search.installed()) or "none"
        raise GeError("E10611", f"operator package {name} is not installed", remedy=f"installed are: {known}")
    shutil.rmtree(found[0])
    return found[0]


def refresh() -> None:
    """Load what is new or changed on the search path; done before every compile."""
    from ge.ops.custom import search

    search.refresh()


@contextlib.contextmanager
def searching(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Search further directories within a block, before all others.

    >>> with ge.opp.searching("my_operators"):      # doctest: +SKIP
    ...     model = ge.compile("net.onnx")
    """
    before = os.environ.get("NPU_OPP_PATH")
    parts = [*(os.path.abspath(p) for p in paths), *([before] if before else [])]
    os.environ["NPU_OPP_PATH"] = os.pathsep.join(parts)
    try:
        refresh()
        yield
    finally:
        if before is None:
            del os.environ["NPU_OPP_PATH"]
        else:
            os.environ["NPU_OPP_PATH"] = before
        refresh()
