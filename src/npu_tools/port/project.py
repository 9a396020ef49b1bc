"""Finds the scripts of a folder, detects each one's framework, and ports them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from npu_tools.outcome import Failure
from npu_tools.port.common import COMMON
from npu_tools.port.horovod import horovod_rules
from npu_tools.port.porter import Facts, Rules, port_source
from npu_tools.port.pytorch import PYTORCH
from npu_tools.port.result import Ported
from npu_tools.port.tensorflow1 import TENSORFLOW1
from npu_tools.port.tensorflow2 import TENSORFLOW2
from npu_tools.scripts import framework_of_tree, imported_modules

__all__ = ["port_files", "write"]

_NOT_OURS = frozenset({"site-packages", "node_modules", "__pycache__", "build", "dist", "venv"})
_ROOTS = {
    "tensorflow1": frozenset({"tensorflow"}),
    "tensorflow": frozenset({"tensorflow", "keras", "tf_keras"}),
    "torch": frozenset({"torch"}),
}


@dataclass(frozen=True)
class _File:
    path: Path
    shown: str
    source: str
    encoding: str
    tree: ast.Module
    framework: str
    modules: frozenset[str]


def port_files(paths: Sequence[Path], framework: str = "") -> list[Ported]:
    """Port scripts and folders of scripts; nothing is written."""
    read = [_read(path, shown, framework) for path, shown in _found(paths)]
    frameworks = frozenset(file.framework for file in read)
    return [_port(file, read, frameworks) for file in read]


def write(ported: Ported, path: Path) -> None:
    """Replace a file by its port, keeping the encoding."""
    encoding = cst.parse_module(path.read_bytes()).encoding
    aside = path.with_name(f".{path.name}.ported")
    aside.write_bytes(ported.after.encode(encoding))
    aside.chmod(path.stat().st_mode)
    aside.replace(path)


def _found(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    for path in paths:
        if path.is_dir():
            files = [p for p in sorted(path.rglob("*.py")) if not _NOT_OURS & set(p.relative_to(path).parts)]
            own = [p for p in files if not any(part.startswith(".") for part in p.relative_to(path).parts)]
            if not own:
                raise Failure(f"there is no script in '{path}'")
            yield from ((p, p.as_posix()) for p in own)
        elif path.is_file():
            yield path, path.as_posix()
        else:
            raise Failure(f"there is no script '{path}'")


def _read(path: Path, shown: str, framework: str) -> _File:
    data = path.read_bytes()
    try:
        encoding = cst.parse_module(data).encoding
        source = data.decode(encoding)
        tree = ast.parse(source)
    except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, ValueError) as error:
        line = getattr(error, "raw_line", getattr(error, "lineno", 0))
        cause = f"{path}:{line} is not Python of this version: {error}"
        raise Failure(cause, "correct it, or port the other files") from error
    found = framework_of_tree(tree)
    return _File(path, shown, source, encoding, tree, framework if framework and found != "none" else found,
                 imported_modules(tree))  # fmt: skip


def _port(file: _File, files: Sequence[_File], frameworks: frozenset[str]) -> Ported:
    framework = file.framework
    if framework == "tensorflow" and "tensorflow1" in frameworks:
        framework = "tensorflow1"
    if framework == "none" and "torch" in frameworks:
        framework = "torch"
    facts = Facts(frozenset({framework}), file.modules, file.source, _is_entry(file, files))
    roots = _ROOTS.get(framework, frozenset())
    return port_source(file.source, file.shown, facts, _rules(file, facts, framework), roots)


def _rules(file: _File, facts: Facts, framework: str) -> Iterator[Rules]:
    yield COMMON
    if framework == "tensorflow1":
        yield horovod_rules(facts)
        yield TENSORFLOW1
    elif framework == "tensorflow":
        yield horovod_rules(facts)
        yield TENSORFLOW2
    if framework == "torch" or any(m == "torch" or m.startswith("torch.") for m in file.modules):
        yield PYTORCH


def _is_entry(file: _File, files: Sequence[_File]) -> bool:
    """True if a file is an entry point: it has a main guard, or no other file imports it."""
    if len(files) == 1:
        return True
    for node in file.tree.body:
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            return True
    name = file.path.stem if file.path.stem != "__init__" else file.path.parent.name
    others = (other.modules for other in files if other is not file)
    return not any(
        module.rpartition(".")[2] == name or f".{name}." in f".{module}." for m in others for module in m
    )
