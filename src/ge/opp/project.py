"""Operator projects: directories in the usual layout, read and built into a package.

op_proto/*.h, *.cc            prototypes (REG_OP) and their inference functions in C++
op_proto/*.py                 inference in Python: infer(op), verify(op); the file is named like the operator
tbe/impl/*.py                 TBE operator files
tbe/op_info_cfg/ai_core/*/*.ini          their information
cpukernel/impl/*.cc           AI CPU kernels
cpukernel/op_info_cfg/**/*.ini           their information
framework/tf_plugin/*.cc      plugins: REGISTER_CUSTOM_OP, attributes by name or by a parse function in C++
framework/onnx_plugin/*.cc
framework/**/*.py, operators/*.py        plugins and operators in Python

A project is built part by part: an error in a declaration, an information file, a C++ or a Python file is a fault of
the package, and everything that does not depend on that part is built.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ge.errors import GeError, UserCodeError
from ge.opp import cpp
from ge.opp.compiling import check_source, compile_library
from ge.opp.faults import Faults
from ge.opp.information import Information, read_information
from ge.ops.custom.spec import OperatorSpec, PackageSpec, PluginSpec, TbeSpec, write_manifest

__all__ = ["build", "read"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_INFER = re.compile(r"(?<!\w)(?:CUST_)?(?:COMMON_)?INFER_FUNC_REG\s*\(\s*(\w+)\s*,")
_KERNEL = re.compile(r"(?<!\w)REGISTER_(?:MS_)?CPU_KERNEL\s*\(\s*(\"[^\"]+\"|\w+)\s*,")
_DYNAMIC = ("3", "4")  # subTypeOfInferShape: the shape is known when the kernel has run


@dataclass
class Project:
    """The contents of a project's files."""

    root: Path
    name: str
    operators: dict[str, OperatorSpec] = field(default_factory=dict)
    plugins: list[PluginSpec] = field(default_factory=list)
    python: list[Path] = field(default_factory=list)
    copied: list[Path] = field(default_factory=list)  # TBE and inference files
    sources: list[Path] = field(default_factory=list)  # C++ to compile
    entries: set[str] = field(default_factory=set)  # what is in them beside kernels: "proto", "plugin"
    notes: list[str] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)

    def has(self, type_: str, path: Path) -> bool:
        """True if an operator is declared; a missing declaration is a fault, unless the declaration itself was one."""
        if type_ in self.operators:
            return True
        if type_ not in {error.operator for error in self.faults.found}:
            with self.faults.part():
                remedy = "declare it with REG_OP"
                raise GeError(
                    "E10612", f"there is no prototype of {type_}", location=str(path), remedy=remedy
                )
        return False

    def change(self, type_: str, path: Path, **changes: object) -> None:
        """Add to what is known of an operator."""
        if self.has(type_, path):
            self.operators[type_] = replace(self.operators[type_], **changes)  # type: ignore[arg-type]


def read(root: Path, name: str = "") -> Project:
    """Read a project; errors in its parts are recorded as faults, with their location."""
    if not root.is_dir():
        raise GeError("E10612", f"there is no directory {root}", remedy="give the directory of the project")
    project = Project(_inner(root), name or _package_name(root))
    if not _NAME.fullmatch(project.name):
        raise GeError(
            "E10612",
            f"'{project.name}' cannot be the name of a package",
            remedy="use letters, digits, '_', '.' and '-'",
        )
    _read_prototypes(project)
    _read_tbe(project)
    _read_kernels(project)
    _read_plugins(project)
    _drop_incomplete(project)
    return project


def _inner(root: Path) -> Path:
    """The directory with the parts of a project: the given one, or its only subdirectory with parts."""
    parts = ("op_proto", "tbe", "cpukernel", "framework", "operators")
    if any((root / part).is_dir() for part in parts):
        return root
    below = {path.parent for part in parts[:3] for path in root.glob(f"*/{part}") if path.is_dir()}
    return below.pop() if len(below) == 1 else root


def _package_name(root: Path) -> str:
    """A directory's name with invalid characters replaced.

    >>> _package_name(Path("/projects/1 custom op"))
    'opp_1_custom_op'
    """
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", root.resolve().name)[:59]
    return name if _NAME.fullmatch(name) else f"opp_{name}"


def build(root: Path, target: Path, name: str = "", version: str = "1.0") -> tuple[PackageSpec, Path]:
    """Build a project and install it below the target directory; returns its description and its directory.

    The description lists the faults of parts that were skipped. A project of which nothing is left is an error.
    """
    project = read(root, name)
    _require_content(project)
    target.mkdir(parents=True, exist_ok=True)
    final = target / project.name
    with tempfile.TemporaryDirectory(prefix=f".{project.name}-", dir=target) as temporary:
        staged = Path(temporary) / project.name
        staged.mkdir()
        _copy_files(project, staged)
        library = _compile(project, staged)
        spec = _described(project, version, library)
        if not _trial(project, spec, staged):
            spec = _described(project, version, library)
        write_manifest(spec, staged)
        if final.exists():
            final.rename(Path(temporary) / "former")
        staged.rename(final)
    return spec, final


def _require_content(project: Project) -> None:
    if project.operators or project.python or project.plugins:
        return
    if not project.faults.found:
        raise GeError(
            "E10612",
            f"{project.root} declares no operator",
            remedy="see 'python -m ge.opp new NAME' for the layout of a project",
        )
    first, *more = project.faults.found
    if not more:
        raise first
    others = "; ".join(str(error) for error in more)
    cause = f"{first.cause} (and {len(more)} more: {others})"
    raise GeError(
        first.code, cause, operator=first.operator, location=first.location, remedy=first.remedy
    ) from first


# -- reading ------------------------------------------------------------------------------------------------


def _files(root: Path, *patterns: str) -> list[Path]:
    found = [p for pattern in patterns for p in root.glob(pattern) if p.is_file()]
    return sorted(p for p in dict.fromkeys(found) if not p.name.startswith((".", "__")))


def _read_prototypes(project: Project) -> None:
    folder = project.root / "op_proto"
    for path in _files(folder, "**/*.h", "**/*.cc", "**/*.cpp"):
        for spec in cpp.prototypes_of(path, project.faults):
            with project.faults.part():
                if project.operators.get(spec.type, spec) != spec:
                    raise GeError("E10612", f"{spec.type} is declared twice", location=str(path))
                project.operators[spec.type] = spec
    for path in _files(folder, "**/*.cc", "**/*.cpp"):
        types = _inferred(path)
        if types:
            project.sources.append(path)
            project.entries.add("proto")
        for type_ in types:
            project.change(type_, path, infer="library")
    for path in _files(folder, "*.py"):
        with project.faults.part():
            type_ = _by_file_name(project, path)
            project.copied.append(path)
            project.change(type_, path, infer=str(path.relative_to(project.root)))


def _inferred(path: Path) -> list[str]:
    """The operators for which a source file registers inference functions."""
    return _INFER.findall(cpp.without_comments(path.read_text(errors="replace")))


def _by_file_name(project: Project, path: Path) -> str:
    wanted = path.stem.replace("_", "").lower()
    for type_ in project.operators:
        if type_.lower() == wanted:
            return type_
    known = ", ".join(project.operators) or "none"
    raise GeError(
        "E10612",
        f"{path.name} is named like no operator of the project",
        location=str(path),
        remedy=f"the prototypes are: {known}",
    )


def _adopt(project: Project, info: Information) -> None:
    """Add an operator that only its information file declares."""
    if info.type not in project.operators:
        if not info.inputs and not info.outputs:
            raise GeError(
                "E10612",
                f"{info.type} has no prototype, and its information lists no ports",
                remedy="declare it with REG_OP in op_proto/",
            )
        project.operators[info.type] = OperatorSpec(info.type, info.inputs, info.outputs, info.attrs)


def _read_tbe(project: Project) -> None:
    folder = project.root / "tbe"
    for path in _files(folder / "op_info_cfg" / "ai_core", "*/*.ini", "*.ini"):
        for info in read_information(path, project.faults):
            if info.type in {error.operator for error in project.faults.found}:
                continue  # its declaration is a fault
            with project.faults.part():
                _adopt(project, info)
                _take_tbe(project, info, path)
    project.copied += _files(folder / "impl", "**/*.py")


def _take_tbe(project: Project, info: Information, path: Path) -> None:
    file = project.root / "tbe" / "impl" / f"{info.file or _snake(info.type)}.py"
    if not file.is_file():
        raise GeError("E10612", f"{info.type} names {file.name}, which is not there", location=str(path))
    tbe = TbeSpec(
        str(file.relative_to(project.root)),
        info.function or file.stem,
        _ordered_columns(project.operators[info.type], info),
        info.asks,
        info.refused,
    )
    if info.refused:
        project.notes.append(f"the TBE implementation of {info.type} is not used: {info.refused}")
    project.change(info.type, path, tbe=_joined(project.operators[info.type].tbe, tbe))


def _joined(before: TbeSpec | None, new: TbeSpec) -> TbeSpec:
    """The information of two processors about one file: the union of what they accept."""
    if before is None or (before.file, before.function) != (new.file, new.function) or before.refused:
        return new
    if new.refused:
        return before
    return replace(
        before, columns=tuple(dict.fromkeys((*before.columns, *new.columns))), asks=before.asks or new.asks
    )


def _ordered_columns(spec: OperatorSpec, info: Information) -> tuple[tuple[str, ...], ...]:
    """The columns in the order of the prototype's ports, without types that the prototype lacks."""
    names = [p.name for p in (*info.inputs, *info.outputs)]
    ports = [p for p in (*spec.inputs, *spec.outputs) if p.name in names]
    if len(ports) != len(names):
        extra = sorted(set(names) - {p.name for p in (*spec.inputs, *spec.outputs)})
        raise GeError(
            "E10612", f"the information of {info.type} has ports {extra} that its prototype has not"
        )
    columns = [tuple(column[names.index(p.name)] for p in ports) for column in info.columns]
    return tuple(
        c for c in columns if all(not p.dtypes or t in p.dtypes for p, t in zip(ports, c, strict=True))
    )


def _snake(type_: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type_).lower()


def _read_kernels(project: Project) -> None:
    folder = project.root / "cpukernel"
    kernels: dict[str, Path] = {}
    for path in _files(folder / "impl", "**/*.cc", "**/*.cpp"):
        with project.faults.part():
            kernels |= dict.fromkeys(_kernel_names(path), path)
            project.sources.append(path)
    dynamic: dict[str, bool] = {}
    for path in _files(folder / "op_info_cfg", "**/*.ini"):
        text = path.read_text(errors="replace")
        for info in read_information(path, project.faults):
            with project.faults.part():
                if info.inputs or info.outputs:
                    _adopt(project, info)
                section = text.partition(f"[{info.type}]")[2].partition("\n[")[0]
                kind = re.search(r"opInfo\.subTypeOfInferShape\s*=\s*(\d+)", section)
                dynamic[info.type] = kind is not None and kind[1] in _DYNAMIC
                if info.type not in kernels:
                    remedy = f'register one with REGISTER_CPU_KERNEL("{info.type}", …)'
                    cause = f"there is no kernel for {info.type}"
                    raise GeError("E10612", cause, location=str(path), remedy=remedy)
    for name in sorted(kernels):
        project.change(name, kernels[name], aicpu=name, dynamic=dynamic.get(name, False))


def _kernel_names(path: Path) -> list[str]:
    """The types of a file's kernels, as literals or constants."""
    text = cpp.without_comments(path.read_text(errors="replace"))
    found = []
    for name in _KERNEL.findall(text):
        if not name.startswith('"'):
            constant = re.search(rf"(?<!\w){name}\s*(?:\[\])?\s*=\s*\"([^\"]+)\"", text)
            if constant is None:
                raise GeError(
                    "E10612", f"the type of REGISTER_CPU_KERNEL({name}, …) is not a text", location=str(path)
                )
            name = constant[1]
        found.append(name.strip('"'))
    return found


def _read_plugins(project: Project) -> None:
    folder = project.root / "framework"
    for path in _files(folder, "**/*.cc", "**/*.cpp"):
        found = cpp.plugins_of(path, project.faults)
        for item in found:
            if item.framework == "caffe":
                project.notes.append(f"the plugin of {item.type} for Caffe is left out: there is no parser")
            else:
                project.plugins.append(item)
        if any(item.parse for item in found if item.framework != "caffe"):
            project.sources.append(path)
            project.entries.add("plugin")
    project.python += _files(folder, "**/*.py") + _files(project.root / "operators", "*.py")


def _drop_incomplete(project: Project) -> None:
    """Skip incomplete operators, and plugins for missing operators."""
    for type_ in list(project.operators):
        cause, remedy = _lack(project.operators[type_])
        if cause:
            with project.faults.part():
                del project.operators[type_]
                if type_ not in {error.operator for error in project.faults.found}:
                    raise GeError("E10612", cause, operator=type_, remedy=remedy)
    gone = {error.operator for error in project.faults.found}
    for item in list(project.plugins):
        if item.type in project.operators or project.python or _is_known(item.type):
            continue
        project.plugins.remove(item)
        if item.type not in gone:
            with project.faults.part():
                raise GeError("E10612", f"a plugin maps to {item.type}, which is not an operator")


def _lack(spec: OperatorSpec) -> tuple[str, str]:
    """What an operator lacks, and the remedy."""
    usable = spec.tbe is not None and not spec.tbe.refused
    if not usable and not spec.aicpu:
        remedy = "add tbe/impl with its information, or a kernel in cpukernel/impl"
        return f"{spec.type} has no implementation", remedy
    if not usable and not spec.infer:
        file = f"op_proto/{_snake(spec.type)}.py"
        remedy = f"register an inference function in op_proto/, or write {file} with infer(op)"
        return f"nothing tells the shapes of {spec.type}'s outputs", remedy
    return "", ""


def _is_known(type_: str) -> bool:
    import ge.ops

    return type_ in ge.ops.registered()


# -- building -----------------------------------------------------------------------------------------------


def _copy_files(project: Project, staged: Path) -> None:
    for path in (*project.copied, *project.python):
        copy = staged / path.relative_to(project.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def _described(project: Project, version: str, library: str) -> PackageSpec:
    return PackageSpec(
        project.name,
        version,
        _digest(project),
        library,
        tuple(project.operators.values()),
        tuple(project.plugins),
        tuple(str(p.relative_to(project.root)) for p in project.python),
        tuple(project.notes),
        tuple(str(error) for error in project.faults.found),
    )


def _compile(project: Project, staged: Path) -> str:
    """Compile the C++ files into a library; returns its name, "" if there are none. Skips files that do not compile."""
    includes = _include_folders(project)
    if not project.sources:
        return ""
    library = f"lib{project.name}-{_digest(project)[:12]}.so"
    try:
        compile_library(project.sources, staged / library, includes=includes, entries=project.entries)
        return library
    except GeError as error:
        before = len(project.faults.found)
        for path in list(project.sources):
            with project.faults.part():
                _skip_if_invalid(project, path, includes)
        if len(project.faults.found) == before:  # each compiles separately, but not all together
            raise error
    _drop_incomplete(project)
    _require_content(project)
    return _compile(project, staged)


def _skip_if_invalid(project: Project, path: Path, includes: Sequence[Path]) -> None:
    """Skip a C++ file that does not compile, and everything it declares."""
    try:
        check_source(path, includes)
    except GeError as error:
        project.sources.remove(path)
        for type_ in _inferred(path):
            project.change(type_, path, infer="")
        if "REGISTER_" in path.read_text(errors="replace"):
            for name in _kernel_names(path):
                project.change(name, path, aicpu="")
            mapped = {(p.framework, p.names) for p in cpp.plugins_of(path, Faults()) if p.parse}
            project.plugins = [p for p in project.plugins if (p.framework, p.names) not in mapped]
        raise error


def _include_folders(project: Project) -> list[Path]:
    folders = [project.root / "op_proto", project.root / "cpukernel" / "impl", project.root / "cpukernel"]
    return [f for f in folders if f.is_dir()]


def _digest(project: Project) -> str:
    folders = ("op_proto", "tbe", "cpukernel", "framework", "operators")
    hasher = hashlib.sha256()
    for path in _files(project.root, *(f"{folder}/**/*" for folder in folders)):
        if "__pycache__" not in path.parts:
            hasher.update(str(path.relative_to(project.root)).encode() + b"\0" + path.read_bytes())
    return hasher.hexdigest()


def _load_all(spec: PackageSpec, staged: Path) -> bool:
    from ge.ops.custom import packages

    packages.load_library(spec, staged)
    for operator in packages.operators_of(spec, staged):
        code = getattr(operator.compute, "__self__", None)
        if code is not None:
            code.load()
    return True


def _trial(project: Project, spec: PackageSpec, staged: Path) -> bool:
    """Load every file of a package once, in another process; False if operators had to be skipped."""
    try:
        _load_in_subprocess(spec, staged)
        return True
    except GeError:
        for operator in spec.operators:
            with project.faults.part():
                _keep_if_loaded(project, replace(spec, operators=(operator,)), staged)
    _drop_incomplete(project)
    _require_content(project)
    return False


def _load_in_subprocess(spec: PackageSpec, staged: Path) -> None:
    from ge.ops.custom import guard

    guard.run_in_subprocess(
        partial(_load_all, spec, staged), UserCodeError("E10610", "", location=str(staged))
    )


def _keep_if_loaded(project: Project, spec: PackageSpec, staged: Path) -> None:
    """Skip the TBE implementation of an operator whose file does not load."""
    (operator,) = spec.operators
    try:
        _load_in_subprocess(spec, staged)
    except GeError as error:
        if operator.tbe is None:
            raise
        project.operators[operator.type] = replace(operator, tbe=None)
        raise GeError(
            error.code,
            error.cause.replace(str(staged), str(project.root)),
            operator=error.operator or operator.type,
            location=error.location.replace(str(staged), str(project.root)),
            remedy=error.remedy,
        ) from error


def rows(specs: Iterable[tuple[Path, PackageSpec]]) -> Sequence[tuple[str, ...]]:
    """Packages as rows of a table: name, version, operators, implementations, place."""
    return [
        (
            spec.name,
            spec.version,
            ", ".join(o.type for o in spec.operators) or ", ".join(spec.python),
            ", ".join(sorted({kind for o in spec.operators for kind in _kinds(o)})) or "Python",
            str(path),
        )
        for path, spec in specs
    ]


def _kinds(spec: OperatorSpec) -> list[str]:
    return [
        *(["TBE"] if spec.tbe is not None and not spec.tbe.refused else []),
        *(["AI CPU"] if spec.aicpu else []),
    ]
