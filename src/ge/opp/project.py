"""Operator projects: directories laid out the usual way, read and built into a package.

op_proto/*.h, *.cc            prototypes (REG_OP) and their inference functions in C++
op_proto/*.py                 inference in Python: infer(op), verify(op); the file is named like the operator
tbe/impl/*.py                 TBE operator files
tbe/op_info_cfg/ai_core/*/*.ini          their information
cpukernel/impl/*.cc           AI CPU kernels
cpukernel/op_info_cfg/**/*.ini           their information
framework/tf_plugin/*.cc      plugins: REGISTER_CUSTOM_OP with automatic attribute mapping
framework/onnx_plugin/*.cc
framework/**/*.py, operators/*.py        plugins and operators in Python
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
from ge.opp.compiling import compile_library
from ge.opp.information import Information, read_information
from ge.ops.custom.spec import OperatorSpec, PackageSpec, PluginSpec, TbeSpec, write_manifest

__all__ = ["build", "read"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_INFER = re.compile(r"(?<!\w)(?:COMMON_)?INFER_FUNC_REG\s*\(\s*(\w+)\s*,")
_KERNEL = re.compile(r"(?<!\w)REGISTER_(?:MS_)?CPU_KERNEL\s*\(\s*(\"[^\"]+\"|\w+)\s*,")
_DYNAMIC = ("3", "4")  # subTypeOfInferShape: the shape is known when the kernel has run


@dataclass
class Project:
    """What a project's files say."""

    root: Path
    name: str
    operators: dict[str, OperatorSpec] = field(default_factory=dict)
    plugins: list[PluginSpec] = field(default_factory=list)
    python: list[Path] = field(default_factory=list)
    copied: list[Path] = field(default_factory=list)  # TBE and inference files
    sources: list[Path] = field(default_factory=list)  # C++ to compile
    prototypes: bool = False  # C++ inference functions are among them
    notes: list[str] = field(default_factory=list)


def read(root: Path, name: str = "") -> Project:
    """Read a project. Everything that is wrong with a file raises GeError with the place."""
    if not root.is_dir():
        raise GeError("E10612", f"there is no directory {root}", remedy="give the directory of the project")
    project = Project(root, name or root.resolve().name)
    if not _NAME.fullmatch(project.name):
        raise GeError(
            "E10612",
            f"'{project.name}' cannot be the name of a package",
            remedy="use letters, digits, '_', '.' and '-', or give --name",
        )
    _read_prototypes(project)
    _read_tbe(project)
    _read_kernels(project)
    _read_plugins(project)
    _check(project)
    return project


def build(root: Path, target: Path, name: str = "", version: str = "1.0") -> tuple[PackageSpec, Path]:
    """Build a project and install it below the target directory; its description and its directory."""
    project = read(root, name)
    target.mkdir(parents=True, exist_ok=True)
    final = target / project.name
    with tempfile.TemporaryDirectory(prefix=f".{project.name}-", dir=target) as temporary:
        staged = Path(temporary) / project.name
        staged.mkdir()
        spec = _stage(project, staged, version)
        _trial(spec, staged, root)
        if final.exists():
            final.rename(Path(temporary) / "former")
        staged.rename(final)
    return spec, final


# -- reading ------------------------------------------------------------------------------------------------


def _files(root: Path, *patterns: str) -> list[Path]:
    found = [p for pattern in patterns for p in root.glob(pattern) if p.is_file()]
    return sorted(p for p in dict.fromkeys(found) if not p.name.startswith((".", "__")))


def _read_prototypes(project: Project) -> None:
    folder = project.root / "op_proto"
    for path in _files(folder, "*.h", "*.cc", "*.cpp"):
        for spec in cpp.prototypes_of(path):
            if spec.type in project.operators and project.operators[spec.type] != spec:
                raise GeError("E10612", f"{spec.type} is declared twice", location=str(path))
            project.operators[spec.type] = spec
    for path in _files(folder, "*.cc", "*.cpp"):
        types = _INFER.findall(path.read_text(errors="replace"))
        if types:
            project.sources.append(path)
            project.prototypes = True
        for type_ in types:
            _change(project, type_, path, infer="library")
    for path in _files(folder, "*.py"):
        type_ = _by_file_name(project, path)
        project.copied.append(path)
        _change(project, type_, path, infer=str(path.relative_to(project.root)))


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


def _change(project: Project, type_: str, path: Path, **changes: object) -> None:
    if type_ not in project.operators:
        raise GeError(
            "E10612", f"there is no prototype of {type_}", location=str(path), remedy="declare it with REG_OP"
        )
    project.operators[type_] = replace(project.operators[type_], **changes)  # type: ignore[arg-type]


def _adopt(project: Project, info: Information) -> None:
    """An operator that only its information declares."""
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
        for info in read_information(path):
            _adopt(project, info)
            file = folder / "impl" / f"{info.file or _snake(info.type)}.py"
            if not file.is_file():
                raise GeError(
                    "E10612", f"{info.type} names {file.name}, which is not there", location=str(path)
                )
            tbe = TbeSpec(
                str(file.relative_to(project.root)),
                info.function or file.stem,
                _ordered_columns(project.operators[info.type], info),
                info.asks,
                info.refused,
            )
            if info.refused:
                project.notes.append(f"the TBE implementation of {info.type} is not used: {info.refused}")
            _change(project, info.type, path, tbe=_joined(project.operators[info.type].tbe, tbe))
    project.copied += _files(folder / "impl", "**/*.py")


def _joined(before: TbeSpec | None, new: TbeSpec) -> TbeSpec:
    """The information of two processors about one file: what either takes."""
    if before is None or (before.file, before.function) != (new.file, new.function) or before.refused:
        return new
    if new.refused:
        return before
    return replace(
        before, columns=tuple(dict.fromkeys((*before.columns, *new.columns))), asks=before.asks or new.asks
    )


def _ordered_columns(spec: OperatorSpec, info: Information) -> tuple[tuple[str, ...], ...]:
    """The columns in the order of the prototype's ports; types the prototype does not have are left out."""
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
    sources = _files(folder / "impl", "*.cc", "*.cpp")
    project.sources += sources
    kernels = {name for path in sources for name in _kernel_names(path)}
    dynamic: dict[str, bool] = {}
    for path in _files(folder / "op_info_cfg", "**/*.ini"):
        text = path.read_text(errors="replace")
        for info in read_information(path):
            _adopt(project, info) if info.inputs or info.outputs else None
            section = text.partition(f"[{info.type}]")[2].partition("\n[")[0]
            kind = re.search(r"opInfo\.subTypeOfInferShape\s*=\s*(\d+)", section)
            dynamic[info.type] = kind is not None and kind[1] in _DYNAMIC
            if info.type not in kernels:
                raise GeError(
                    "E10612",
                    f"there is no kernel for {info.type}",
                    location=str(path),
                    remedy=f'register one with REGISTER_CPU_KERNEL("{info.type}", …)',
                )
    for name in sorted(kernels):
        _change(project, name, folder / "impl", aicpu=name, dynamic=dynamic.get(name, False))


def _kernel_names(path: Path) -> list[str]:
    """The types of a file's kernels; a constant may stand for the text."""
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
        for item in cpp.plugins_of(path):
            if item.framework == "caffe":
                project.notes.append(f"the plugin of {item.type} for Caffe is left out: there is no parser")
            else:
                project.plugins.append(item)
    project.python += _files(folder, "**/*.py") + _files(project.root / "operators", "*.py")


def _check(project: Project) -> None:
    if not project.operators and not project.python:
        raise GeError(
            "E10612",
            f"{project.root} declares no operator",
            remedy="see 'python -m ge.opp new NAME' for the layout of a project",
        )
    for spec in project.operators.values():
        usable = spec.tbe is not None and not spec.tbe.refused
        if not usable and not spec.aicpu:
            raise GeError(
                "E10612",
                f"{spec.type} has no implementation",
                remedy="add tbe/impl with its information, or a kernel in cpukernel/impl",
            )
        if not usable and not spec.infer:
            raise GeError(
                "E10612",
                f"nothing tells the shapes of {spec.type}'s outputs",
                remedy="register an inference function in op_proto/, or write "
                f"op_proto/{_snake(spec.type)}.py with infer(op)",
            )
    known = set(project.operators)
    for item in project.plugins:
        if item.type not in known and not project.python and not _is_known(item.type):
            raise GeError("E10612", f"a plugin maps to {item.type}, which is no operator")


def _is_known(type_: str) -> bool:
    import ge.ops

    return type_ in ge.ops.registered()


# -- building -----------------------------------------------------------------------------------------------


def _stage(project: Project, staged: Path, version: str) -> PackageSpec:
    for path in (*project.copied, *project.python):
        copy = staged / path.relative_to(project.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    digest = _digest(project)
    library = ""
    if project.sources:
        library = f"lib{project.name}-{digest[:12]}.so"
        includes = _include_folders(project)
        compile_library(project.sources, staged / library, includes=includes, prototypes=project.prototypes)
    spec = PackageSpec(
        project.name,
        version,
        digest,
        library,
        tuple(project.operators.values()),
        tuple(project.plugins),
        tuple(str(p.relative_to(project.root)) for p in project.python),
        tuple(project.notes),
    )
    write_manifest(spec, staged)
    return spec


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


def _trial(spec: PackageSpec, staged: Path, root: Path) -> None:
    """Load every file of a package once, in a process of its own."""
    from ge.ops.custom import guard

    who = UserCodeError("E10610", "", location=str(staged))

    try:
        guard.run_apart(partial(_load_all, spec, staged), who)
    except GeError as error:
        raise GeError(
            error.code,
            error.cause.replace(str(staged), str(root)),
            operator=error.operator,
            location=error.location.replace(str(staged), str(root)),
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
