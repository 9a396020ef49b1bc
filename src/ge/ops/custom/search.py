"""The search path of custom operators: loads operators found there, and reloads them when they change.

Each directory (`ge.opp_paths`) may contain operator files (`*.py`) and packages (directories with a `package.json`), or
be a package itself. Earlier entries take precedence.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ge.errors import GeError, UserCodeError
from ge.opp_paths import MANIFEST, add_paths, entries, home, roots
from ge.ops import plugins
from ge.ops.base import Operator, is_custom, register, registered_custom, unregister
from ge.ops.custom import guard, packages
from ge.ops.custom.spec import PackageSpec, read_manifest

__all__ = ["Found", "add_paths", "find_package", "home", "installed", "refresh", "require", "roots"]


@dataclass
class Found:
    """A file or package of the search path, and its declarations."""

    path: Path
    stamp: tuple[int, int]
    package: PackageSpec | None = None
    operators: list[type[Operator]] = field(default_factory=list)
    plugins: list[plugins.Plugin] = field(default_factory=list)

    def withdraw(self) -> None:
        """Unregister the declarations."""
        for operator in self.operators:
            unregister(operator)
        for item in self.plugins:
            plugins.remove(item)


_lock = threading.RLock()
_loaded: dict[Path, Found] = {}


def refresh() -> None:
    """Load new entries of the search path, reload changed ones, unregister removed ones.

    Raises GeError, with the line, for a file or package that cannot be loaded.
    """
    with _lock:
        there = dict(_there())
        order = list(there)
        if [p for p in _loaded if p in there] == order[::-1] and all(
            _loaded[p].stamp == there[p] for p in order
        ):
            stale = [p for p in _loaded if p not in there]
        else:
            stale = list(_loaded)
        for path in stale:
            _loaded.pop(path).withdraw()
        for path in reversed(order):  # the last one registered takes precedence
            if path not in _loaded:
                _loaded[path] = _load(path, there[path])


def _there() -> Iterator[tuple[Path, tuple[int, int]]]:
    for root in roots():
        for path in entries(root):
            try:
                status = (path / MANIFEST if path.is_dir() else path).stat()
            except OSError:
                continue
            yield path, (status.st_mtime_ns, status.st_size)


def _load(path: Path, stamp: tuple[int, int]) -> Found:
    found = Found(path, stamp)
    try:
        if path.is_dir():
            _load_package(found)
        else:
            _load_file(found, path)
    except BaseException:
        found.withdraw()
        raise
    return found


def _load_package(found: Found) -> None:
    spec = found.package = read_manifest(found.path)
    packages.load_library(spec, found.path)
    for operator in packages.operators_of(spec, found.path):
        found.operators.append(register(operator, custom=True))
    for item in packages.plugins_of(spec, found.path):
        plugins.add(item)
        found.plugins.append(item)
    for name in spec.python:
        _load_file(found, found.path / name)


def _load_file(found: Found, path: Path) -> None:
    """Run an operator file: first in another process, then here."""
    who = UserCodeError("E10610", "", location=str(path))
    guard.rehearse(partial(_run, path), (str(path), found.stamp), who)
    operators, before = set(registered_custom()), plugins.declared()
    try:
        guard.located(lambda: _run(path), who, "the operator file")
    finally:
        fresh = [o for o in registered_custom() if o not in operators]
        found.operators += fresh
        found.plugins += list(plugins.declared() - before)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for operator in fresh:
        operator.digest = digest  # type: ignore[attr-defined]
        if "source" not in vars(operator):
            operator.source = str(path)  # type: ignore[attr-defined]


def _run(path: Path) -> None:
    name = f"opp_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, f"{path} is not a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    for value in vars(module).values():  # what the file declares without registering it
        own = isinstance(value, type) and issubclass(value, Operator) and value.__module__ == name
        if own and not is_custom(value):
            register(value, custom=True)


# -- packages -----------------------------------------------------------------------------------------------


def installed() -> list[tuple[Path, PackageSpec]]:
    """The packages of the search path, in order."""
    return [(path, read_manifest(path)) for root in roots() for path in entries(root) if path.is_dir()]


def find_package(name: str) -> tuple[Path, PackageSpec] | None:
    """A package of the search path."""
    return next(((path, spec) for path, spec in installed() if spec.name == name), None)


def require(kernel: str, wanted: str = "") -> None:
    """Make a package's kernel ("opp:package/kernel") known to the runtime; raises if there is no such package.

    `wanted` is the version that a model was compiled with.
    """
    name, _, function = kernel.removeprefix("opp:").partition("/")
    found = find_package(name)
    if found is None:
        searched = ", ".join(map(str, roots()))
        raise GeError(
            "E10611",
            f"the model needs the AI CPU kernel {function} of operator package {name}"
            f"{f' {wanted}' if wanted else ''}, which is not installed (searched: {searched})",
            remedy="install it with 'python -m ge.opp build', or name its directory in NPU_OPP_PATH",
        )
    path, spec = found
    if wanted and wanted != spec.version:
        warnings.warn(
            f"the model was compiled with version {wanted} of operator package {name}, {spec.version} is installed",
            stacklevel=2,
        )
    if kernel not in packages.load_library(spec, path):
        raise GeError(
            "E10611",
            f"operator package {name} {spec.version} at {path} has no AI CPU kernel {function}",
            remedy=f"install version {wanted} of the package" if wanted else "build the package again",
        )
